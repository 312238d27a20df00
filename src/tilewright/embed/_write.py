"""Kernel 2: merged runs -> the padded buffers, when nothing is cut or dropped: copies, pads and pointers only.

Copies and fills are written as slices, which become memcpy and vector stores; loops over elements were half as fast.
"""

from __future__ import annotations

import numpy as np

from tilewright.embed._types import Entries, Index, Ints, Longs
from tilewright.kernels import njit

__all__ = ["PAD", "fill_pads", "write_plain"]

PAD = 2**31 - 1
"""Both ids of an unused slot; its gain is NaN."""

_PAD = np.int32(PAD)
_NAN = np.float32(np.nan)


@njit(cache=True, nogil=True)
def fill_pads(out: Entries, begin: Index, end: Index) -> None:
    """Make the slots ``begin .. end`` padding."""
    ids, samples, gains = out
    ids[begin:end] = _PAD
    samples[begin:end] = _PAD
    gains[begin:end] = _NAN


@njit(cache=True, nogil=True)
def write_plain(
    tables: Longs,
    sources: tuple[int, int],
    bases: Longs,
    counts: Ints,
    entries: Entries,
    places: Longs,
    out: Entries,
    pointers: Ints,
) -> None:
    """Write the stacks' buffers for the sources ``sources[0] <= l < sources[1]``.

    ``tables`` int64[stacks + 1]: first table of every stack; ``bases`` int64[tables, sources] and ``entries``: the runs
    of kernel 1, ``counts`` int32[tables, 2, sources, S]: the lengths of the runs stand at [:, 0]. ``places``
    int64[stacks, sources, 4]: the slot pointers count from, first slot, end of the slots to fill, first pointer.
    """
    rows, samples, gains = entries
    out_rows, out_samples, out_gains = out
    shards = counts.shape[3]
    cursor = np.empty(counts.shape[0], np.int64)
    for l in range(sources[0], sources[1]):
        for k in range(tables.size - 1):
            for t in range(tables[k], tables[k + 1]):
                cursor[t] = bases[t, l]
            origin, at, end, pointer = places[k, l, 0], places[k, l, 1], places[k, l, 2], places[k, l, 3]
            for shard in range(shards):
                for t in range(tables[k], tables[k + 1]):
                    begin, n = cursor[t], np.int64(counts[t, 0, l, shard])
                    cursor[t] = begin + n
                    out_rows[at : at + n] = rows[begin : begin + n]
                    out_samples[at : at + n] = samples[begin : begin + n]
                    out_gains[at : at + n] = gains[begin : begin + n]
                    at += n
                pointers[pointer + shard] = at - origin
                padded = origin + ((at - origin + 7) & ~7)
                fill_pads(out, at, padded)
                at = padded
            for shard in range(shards, 8):
                pointers[pointer + shard] = at - origin
            fill_pads(out, at, end)

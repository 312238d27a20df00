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

_SHORT = 8  # entries of a run that a loop copies sooner than memcpy does
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
    units: Longs,
    sources: tuple[int, int],
    bases: Longs,
    counts: Ints,
    entries: Entries,
    places: Longs,
    ends: Longs,
    out: Entries,
    pointers: Ints,
) -> None:
    """Write the stacks' buffers for the sources ``sources[0] <= l < sources[1]``.

    ``units`` int64[stacks + 1]: first unit of every stack; ``bases`` int64[units, sources] and ``entries``: the runs
    of kernel 1, ``counts`` int32[units, 2, sources, S]: the lengths of the runs stand at [:, 0]. ``places``
    int64[stacks, sources, 4]: the slot pointers count from, first slot, end of the slots to fill, first pointer.
    ``ends`` int64[stacks, sources]: the slots from there on are padding already; becomes where the data ends now.
    """
    rows, samples, gains = entries
    out_rows, out_samples, out_gains = out
    shards = counts.shape[3]
    cursor = np.empty(counts.shape[0], np.int64)
    for l in range(sources[0], sources[1]):
        for k in range(units.size - 1):
            for t in range(units[k], units[k + 1]):
                cursor[t] = bases[t, l]
            origin, at, end, pointer = places[k, l, 0], places[k, l, 1], places[k, l, 2], places[k, l, 3]
            for shard in range(shards):
                for t in range(units[k], units[k + 1]):
                    begin, n = cursor[t], np.int64(counts[t, 0, l, shard])
                    cursor[t] = begin + n
                    if n <= _SHORT:
                        for j in range(n):
                            out_rows[at + j] = rows[begin + j]
                            out_samples[at + j] = samples[begin + j]
                            out_gains[at + j] = gains[begin + j]
                    else:
                        out_rows[at : at + n] = rows[begin : begin + n]
                        out_samples[at : at + n] = samples[begin : begin + n]
                        out_gains[at : at + n] = gains[begin : begin + n]
                    at += n
                pointers[pointer + shard] = at - origin
                if (at - origin) & 7 == 0:
                    continue
                padded = origin + ((at - origin + 7) & ~7)
                fill_pads(out, at, padded)
                at = padded
            for shard in range(shards, 8):
                pointers[pointer + shard] = at - origin
            fill_pads(out, at, min(end, ends[k, l]))
            ends[k, l] = at

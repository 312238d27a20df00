"""Kernel 2: merged runs -> the padded buffers, when nothing is cut or dropped: copies, pads and pointers only.

Runs are short, so they are copied in whole vectors: what a vector writes behind its run, the next run or the padding
overwrites. Only where a source's slots end are entries counted.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.embed._types import Entries, Index, Ints, Longs
from tilewright.kernels import njit
from tilewright.layout.move._vectors import copy_vector

__all__ = ["LANES", "PAD", "fill_pads", "write_plain"]

PAD = 2**31 - 1
"""Both ids of an unused slot; its gain is NaN."""

LANES = 8
"""Slots of a vector, and of the unit partitions are rounded up to; so many entries may be read behind the last."""

Addresses: TypeAlias = tuple[int, int, int]
"""Of rows, samples and gains."""

_BYTES = 4 * LANES
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
def _copy_exactly(out: Entries, at: Index, entries: Entries, begin: Index, n: Index) -> None:
    rows, samples, gains = entries
    ids_out, samples_out, gains_out = out
    for j in range(n):
        ids_out[at + j] = rows[begin + j]
        samples_out[at + j] = samples[begin + j]
        gains_out[at + j] = gains[begin + j]


@njit(cache=True, nogil=True)
def _copy_vectors(target: Addresses, source: Addresses, at: Index, begin: Index, n: Index) -> None:
    """``n`` entries, rounded up to whole vectors."""
    to, of = 4 * at, 4 * begin
    for j in range(0, 4 * n, _BYTES):
        copy_vector(target[0] + to + j, source[0] + of + j, 32, False)
        copy_vector(target[1] + to + j, source[1] + of + j, 32, False)
        copy_vector(target[2] + to + j, source[2] + of + j, 32, False)


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
    shards = counts.shape[3]
    cursor = np.empty(counts.shape[0], np.int64)
    target = (out[0].ctypes.data, out[1].ctypes.data, out[2].ctypes.data)
    source = (entries[0].ctypes.data, entries[1].ctypes.data, entries[2].ctypes.data)
    pads, no_gains = np.full(LANES, _PAD, np.int32), np.full(LANES, _NAN, np.float32)
    padding = (pads.ctypes.data, pads.ctypes.data, no_gains.ctypes.data)
    for l in range(sources[0], sources[1]):
        for k in range(units.size - 1):
            for t in range(units[k], units[k + 1]):
                cursor[t] = bases[t, l]
            origin, at, end, pointer = places[k, l, 0], places[k, l, 1], places[k, l, 2], places[k, l, 3]
            for shard in range(shards):
                for t in range(units[k], units[k + 1]):
                    begin, n = cursor[t], np.int64(counts[t, 0, l, shard])
                    cursor[t] = begin + n
                    if at + n + LANES <= end:
                        _copy_vectors(target, source, at, begin, n)
                    else:
                        _copy_exactly(out, at, entries, begin, n)
                    at += n
                pointers[pointer + shard] = at - origin
                padded = origin + ((at - origin + 7) & ~7)
                if at + LANES <= end:
                    _copy_vectors(target, padding, at, 0, LANES)
                else:
                    fill_pads(out, at, padded)
                at = padded
            for shard in range(shards, 8):
                pointers[pointer + shard] = at - origin
            fill_pads(out, at, min(end, ends[k, l]))
            ends[k, l] = at
    pads[0] = no_gains[0] = 0  # read by address only: keep them alive until here

"""Sorting of packed 64-bit keys by their upper half, stable: insertion for a few, counting per digit for many."""

from __future__ import annotations

import numpy as np

from tilewright.embed._types import Index, Ints, Keys
from tilewright.kernels import njit

__all__ = ["DIGIT_SLOTS", "sort_keys"]

DIGIT_BITS = 11
DIGIT_SLOTS = 4 << DIGIT_BITS
"""Counters that :func:`sort_keys` needs."""

_FEW = 40
_LOW = np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def _insertion(keys: Keys, n: Index) -> None:
    for i in range(1, n):
        key = keys[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@njit(cache=True, nogil=True)
def _count(keys: Keys, n: Index, passes: Index, width: Index, counters: Ints) -> None:
    """How often every value of every digit occurs, digit after digit in ``counters``; straight code for up to three."""
    size = np.uint64(1) << np.uint64(width)
    mask, step, first = size - np.uint64(1), np.uint64(width), _LOW
    second = first + step
    if passes == 1:
        for i in range(n):
            counters[(keys[i] >> first) & mask] += 1
    elif passes == 2:
        for i in range(n):
            key = keys[i]
            counters[(key >> first) & mask] += 1
            counters[size + ((key >> second) & mask)] += 1
    elif passes == 3:
        for i in range(n):
            key = keys[i]
            counters[(key >> first) & mask] += 1
            counters[size + ((key >> second) & mask)] += 1
            counters[size + size + ((key >> (second + step)) & mask)] += 1
    else:
        for i in range(n):
            rest, base = keys[i] >> first, np.uint64(0)
            for _ in range(passes):
                counters[base + (rest & mask)] += 1
                rest >>= step
                base += size


@njit(cache=True, nogil=True)
def sort_keys(keys: Keys, spare: Keys, n: Index, bits: Index, counters: Ints) -> bool:
    """Sort ``keys[:n]`` by bits 32 .. 32 + bits; the lower halves ascend already. True: the result is in ``spare``.

    All digits are counted in one pass over the keys. Few keys take narrow digits, so that the counters stay few.
    """
    if n <= _FEW:
        _insertion(keys, n)
        return False
    widest = 8 if n < 1000 else DIGIT_BITS
    passes = (bits + widest - 1) // widest
    if passes == 0:
        return False
    width = (bits + passes - 1) // passes
    size = 1 << width
    mask = np.uint64(size - 1)
    counters[: passes * size] = 0
    _count(keys, n, passes, width, counters)
    swapped = False
    for p in range(passes):
        count = counters[p * size : (p + 1) * size]
        at = np.int32(0)
        for d in range(size):
            at, count[d] = at + count[d], at
        shift = _LOW + np.uint64(p * width)
        source, target = (spare, keys) if swapped else (keys, spare)
        for i in range(n):
            key = source[i]
            digit = (key >> shift) & mask
            place = count[digit]
            target[np.uint64(place)] = key
            count[digit] = place + 1
        swapped = not swapped
    return swapped

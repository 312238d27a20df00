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
    for c in range(passes * size):
        counters[c] = 0
    step = np.uint64(width)
    first = np.uint64(32)
    for i in range(n):
        rest = keys[i] >> first
        for p in range(passes):
            counters[p * size + np.int64(rest & mask)] += 1
            rest >>= step
    swapped = False
    for p in range(passes):
        count = counters[p * size : (p + 1) * size]
        at = 0
        for d in range(size):
            at, count[d] = at + count[d], at
        shift = first + np.uint64(p * width)
        source, target = (spare, keys) if swapped else (keys, spare)
        for i in range(n):
            key = source[i]
            digit = np.int64((key >> shift) & mask)
            target[count[digit]] = key
            count[digit] += 1
        swapped = not swapped
    return swapped

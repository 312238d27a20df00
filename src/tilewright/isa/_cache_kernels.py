"""numba kernels: one touch of a cache, and what may be evicted from it. Imported on first use.

A cache is one array (:class:`tilewright.isa._caches.Cache`): a touch is a call, and arrays are dear to hand over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._caches import (
    BUILT,
    END,
    FIRST,
    GIVEN_UP,
    KEPT,
    LINE_OF,
    LIST,
    MASK,
    QUEUE,
    SETS,
    SLOT_OF,
    STAMPS,
    TIME,
    USED,
    WAYS,
)
from tilewright.kernels import njit

__all__ = ["BYPASSED", "HIT", "KEPT_BIT", "MISS", "PINNED", "drop_lines", "lru_list", "lru_touch", "relist", "touch"]

HIT, MISS, PINNED, BYPASSED = 0, 1, 2, 3
"""A hit; a miss; one that evicted a retained line; one served without a place."""
KEPT_BIT = 62
"""The bit of a stamp that says retained: such stamps are later than all others."""


# Indices are unsigned where it matters: signed ones are tested for being negative, each time.


@njit(cache=True, nogil=True)
def _line_up(c: Any, which: int) -> None:
    """Fill the queue with the slots of a list, least recent first: a radix sort of their stamps."""
    stamps, here, there, n = c[STAMPS], c[QUEUE], c[QUEUE] + c[WAYS], 0
    low, high = np.int64(1) << KEPT_BIT, np.int64(0)
    for slot in range(c[USED]):
        stamp = c[np.uint64(stamps + slot)]
        if stamp >= 0 and stamp >> KEPT_BIT == which:
            c[np.uint64(here + n)] = slot
            stamp &= (1 << KEPT_BIT) - 1
            low, high = min(low, stamp), max(high, stamp)
            n += 1
    low |= np.int64(which) << KEPT_BIT
    counts, shift = np.empty(256, np.int64), 0
    while n > 1 and (high - (low & ((1 << KEPT_BIT) - 1))) >> shift > 0:
        counts[:] = 0
        for i in range(n):
            counts[np.uint64((c[np.uint64(stamps + c[np.uint64(here + i)])] - low) >> shift & 255)] += 1
        total = there
        for digit in range(256):
            counts[digit], total = total, total + counts[digit]
        for i in range(n):
            slot = c[np.uint64(here + i)]
            to = np.uint64((c[np.uint64(stamps + slot)] - low) >> shift & 255)
            c[np.uint64(counts[to])] = slot
            counts[to] += 1
        here, there = there, here
        shift += 8
    c[FIRST], c[END], c[LIST], c[BUILT] = here, here + n, which, c[TIME]


@njit(cache=True, nogil=True)
def _oldest(c: Any, which: int) -> Any:
    """The least recent slot of a list that is not empty. Slots in the queue that were touched since are skipped."""
    while True:
        if c[LIST] == which:
            stamps, built, end = c[STAMPS], c[BUILT] | np.int64(which) << KEPT_BIT, c[END]
            for at in range(c[FIRST], end):
                slot = c[np.uint64(at)]
                stamp = c[np.uint64(stamps + slot)]
                if 0 <= stamp < built and stamp >> KEPT_BIT == which:
                    c[FIRST] = at + 1
                    return slot
        _line_up(c, which)


@njit(cache=True, nogil=True)
def _place(c: Any, bypass: bool) -> Any:
    """A slot of the only set for a new line (-1: none), and what the touch comes to."""
    free = c[GIVEN_UP]
    if free > 0:
        c[GIVEN_UP] = free - 1
        return c[c[QUEUE] + 2 * c[WAYS] + free - 1], MISS
    if c[USED] < c[WAYS]:
        c[USED] += 1
        return c[USED] - 1, MISS
    if c[KEPT] < c[WAYS]:
        return _oldest(c, 0), MISS
    if bypass:
        return np.int64(-1), BYPASSED
    return _oldest(c, 1), PINNED


@njit(cache=True, nogil=True)
def _miss(c: Any, line: int, bypass: bool) -> int:
    sets, mask, ways, base = c[SETS], c[MASK], c[WAYS], c[STAMPS]
    if sets == 1:
        slot, result = _place(c, bypass)
        if slot < 0:
            return BYPASSED
    else:
        result, group = MISS, (line & mask if mask >= 0 else line % sets) * ways
        slot, oldest = group, c[np.uint64(base + group)]
        for each in range(group + 1, group + ways):
            stamp = c[np.uint64(base + each)]
            if stamp < oldest:
                slot, oldest = each, stamp
        if oldest >> KEPT_BIT == 1:  # every line of the set is retained
            if bypass:
                return BYPASSED
            result = PINNED
    if result == PINNED:
        c[KEPT] -= 1
    place = np.uint64(c[LINE_OF] + slot)
    old = c[place]
    if old >= 0:
        c[np.uint64(c[SLOT_OF] + old)] = 0
    c[np.uint64(c[SLOT_OF] + line)] = slot + 1
    c[place] = line
    c[np.uint64(base + slot)] = c[TIME]
    c[TIME] += 1
    return int(result)


@njit(cache=True, nogil=True)
def touch(c: Any, line: int, bypass: bool) -> int:
    """Touch a line: HIT, MISS, PINNED or BYPASSED."""
    slot = c[np.uint64(c[SLOT_OF] + line)] - 1
    if slot < 0:
        return _miss(c, line, bypass)
    at = np.uint64(c[STAMPS] + slot)
    c[at] = c[TIME] | c[at] >> KEPT_BIT << KEPT_BIT
    c[TIME] += 1
    return HIT


@njit(cache=True, nogil=True)
def relist(c: Any, line: int, which: int) -> int:
    """Put a line in list ``which`` (0 evictable, 1 retained), if it is here at all; 1 if it was in the other one."""
    slot = c[np.uint64(c[SLOT_OF] + line)] - 1
    if slot < 0 or c[np.uint64(c[STAMPS] + slot)] >> KEPT_BIT == which:
        return 0
    c[np.uint64(c[STAMPS] + slot)] = c[TIME] | np.int64(which) << KEPT_BIT
    c[TIME] += 1
    c[KEPT] += 2 * which - 1
    return 1


@njit(cache=True, nogil=True)
def lru_touch(cache: Any, line: int, bypass: bool) -> int:
    """:func:`touch`, for Python."""
    return touch(cache, line, bypass)


@njit(cache=True, nogil=True)
def lru_list(cache: Any, line: int, which: int) -> int:
    """:func:`relist`, for Python."""
    return relist(cache, line, which)


@njit(cache=True, nogil=True)
def drop_lines(begin: int, end: int, c: Any) -> None:
    """Forget lines begin to end - 1; their slots become the first victims."""
    for line in range(begin, end):
        slot = c[c[SLOT_OF] + line] - 1
        if slot < 0:
            continue
        c[c[SLOT_OF] + line] = 0
        c[c[LINE_OF] + slot] = -1
        c[KEPT] -= c[c[STAMPS] + slot] >> KEPT_BIT
        c[c[STAMPS] + slot] = -1
        if c[SETS] == 1:
            c[c[QUEUE] + 2 * c[WAYS] + c[GIVEN_UP]] = slot
            c[GIVEN_UP] += 1

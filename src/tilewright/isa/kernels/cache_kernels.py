"""numba kernels: one touch of a cache, and what may be evicted from it. Imported on first use.

A cache is one array (:class:`tilewright.isa.chip.caches.Cache`), here by its address: see
:mod:`tilewright.isa.kernels.cells`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.chip.caches import (
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
from tilewright.isa.kernels.cells import cell, put
from tilewright.kernels import inner, njit

HIT, MISS, PINNED, BYPASSED = 0, 1, 2, 3
"""A hit; a miss; one that evicted a retained line; one served without a place."""
KEPT_BIT = 62
"""The bit of a stamp that says retained: such stamps are later than all others."""


@inner(inline="always")
def address_of(cells: Any) -> Any:
    """A cache as the functions below take it."""
    return np.int64(cells.ctypes.data)


@inner(inline="always")
def tables_of(c: Any) -> Any:
    """(sets, mask, ways, lines, stamps, slots) of a cache, which stay: a kernel asks once."""
    return cell(c, SETS), cell(c, MASK), cell(c, WAYS), cell(c, LINE_OF), cell(c, STAMPS), cell(c, SLOT_OF)


@inner()
def _line_up(c: Any, which: Any) -> None:
    """Fill the queue with the slots of a list, least recent first: a radix sort of their stamps."""
    stamps, here, n = cell(c, STAMPS), cell(c, QUEUE), np.int64(0)
    there, low, high = here + cell(c, WAYS), np.int64(1) << KEPT_BIT, np.int64(0)
    for slot in range(cell(c, USED)):
        stamp = cell(c, stamps + slot)
        if stamp > 0 and stamp >> KEPT_BIT == which:
            put(c, here + n, slot)
            stamp &= (1 << KEPT_BIT) - 1
            low, high = min(low, stamp), max(high, stamp)
            n += 1
    low |= which << KEPT_BIT
    counts, shift = np.empty(256, np.int64), 0
    while n > 1 and (high - (low & ((1 << KEPT_BIT) - 1))) >> shift > 0:
        counts[:] = 0
        for i in range(n):
            counts[np.uint64((cell(c, stamps + cell(c, here + i)) - low) >> shift & 255)] += 1
        total = there
        for digit in range(256):
            counts[digit], total = total, total + counts[digit]
        for i in range(n):
            slot = cell(c, here + i)
            bucket = np.uint64((cell(c, stamps + slot) - low) >> shift & 255)
            put(c, counts[bucket], slot)
            counts[bucket] += 1
        here, there = there, here
        shift += 8
    put(c, FIRST, here)
    put(c, END, here + n)
    put(c, LIST, which)
    put(c, BUILT, cell(c, TIME))


@inner()
def _oldest(c: Any, which: Any) -> Any:
    """The least recent slot of a list that is not empty. Slots in the queue that were touched since are skipped."""
    while True:
        if cell(c, LIST) == which:
            stamps, built = cell(c, STAMPS), cell(c, BUILT) | which << KEPT_BIT
            for at in range(cell(c, FIRST), cell(c, END)):
                slot = cell(c, at)
                stamp = cell(c, stamps + slot)
                if 0 < stamp < built and stamp >> KEPT_BIT == which:
                    put(c, FIRST, at + 1)
                    return slot
        _line_up(c, which)


@inner()
def _place(c: Any, bypass: bool) -> Any:
    """A slot of the only set for a new line (-1: none), and what the touch comes to."""
    ways, free, used = cell(c, WAYS), cell(c, GIVEN_UP), cell(c, USED)
    if free > 0:
        put(c, GIVEN_UP, free - 1)
        return cell(c, cell(c, QUEUE) + 2 * ways + free - 1), MISS
    if used < ways:
        put(c, USED, used + 1)
        return used, MISS
    if cell(c, KEPT) < ways:
        return _oldest(c, np.int64(0)), MISS
    if bypass:
        return np.int64(-1), BYPASSED
    return _oldest(c, np.int64(1)), PINNED


@inner(forceinline=True)
def _miss(c: Any, tables: Any, line: Any, bypass: bool) -> Any:
    sets, mask, ways, lines, stamps, slots = tables
    result = np.int64(MISS)
    if sets == 1:
        slot, result = _place(c, bypass)
        if slot < 0:
            return np.int64(BYPASSED)
    else:
        slot = (line & mask if mask >= 0 else line % sets) * ways
        oldest: Any = cell(c, stamps + slot)
        way: Any = np.int64(0)
        for each in range(np.int64(1), ways):
            stamp = cell(c, stamps + slot + each)
            older = stamp < oldest
            oldest, way = stamp if older else oldest, each if older else way
        slot += way
        if oldest >> KEPT_BIT == 1:  # every line of the set is retained
            if bypass:
                return np.int64(BYPASSED)
            result = np.int64(PINNED)
    if result == PINNED:
        put(c, KEPT, cell(c, KEPT) - 1)
    old, now = cell(c, lines + slot), cell(c, TIME)
    if old > 0:
        put(c, slots + old - 1, 0)
    put(c, slots + line, slot + 1)
    put(c, lines + slot, line + 1)
    put(c, stamps + slot, now)
    put(c, TIME, now + 1)
    return result


@inner(forceinline=True)
def touch(c: Any, tables: Any, line: Any, bypass: bool) -> Any:
    """Touch a line: HIT, MISS, PINNED or BYPASSED. ``tables``: :func:`tables_of` it."""
    slot = cell(c, tables[5] + line)
    if slot == 0:
        return _miss(c, tables, line, bypass)
    at, now = tables[4] + slot - 1, cell(c, TIME)
    put(c, at, now | cell(c, at) >> KEPT_BIT << KEPT_BIT)
    put(c, TIME, now + 1)
    return np.int64(HIT)


@inner(forceinline=True)
def relist(c: Any, tables: Any, line: Any, which: Any) -> Any:
    """Put a line in list ``which`` (0 evictable, 1 retained), if it is here at all; 1 if it was in the other one."""
    slot = cell(c, tables[5] + line)
    if slot == 0 or cell(c, tables[4] + slot - 1) >> KEPT_BIT == which:
        return np.int64(0)
    now = cell(c, TIME)
    put(c, tables[4] + slot - 1, now | which << KEPT_BIT)
    put(c, TIME, now + 1)
    put(c, KEPT, cell(c, KEPT) + 2 * which - 1)
    return np.int64(1)


@njit(cache=True, nogil=True)
def lru_touch(cache: Any, line: int, bypass: bool) -> int:
    """:func:`touch`, for Python."""
    c = address_of(cache)
    return int(touch(c, tables_of(c), line, bypass))


@njit(cache=True, nogil=True)
def lru_list(cache: Any, line: int, which: int) -> int:
    """:func:`relist`, for Python."""
    c = address_of(cache)
    return int(relist(c, tables_of(c), line, which))


@njit(cache=True, nogil=True)
def drop_lines(begin: int, end: int, cache: Any) -> None:
    """Forget lines begin to end - 1; their slots become the first victims."""
    c = address_of(cache)
    sets, _, ways, lines, stamps, slots = tables_of(c)
    for line in range(begin, end):
        slot = cell(c, slots + line) - 1
        if slot < 0:
            continue
        put(c, KEPT, cell(c, KEPT) - (cell(c, stamps + slot) >> KEPT_BIT))
        put(c, slots + line, 0)
        put(c, lines + slot, 0)
        put(c, stamps + slot, 0)
        if sets == 1:
            given_up = cell(c, GIVEN_UP)
            put(c, cell(c, QUEUE) + 2 * ways + given_up, slot)
            put(c, GIVEN_UP, given_up + 1)

"""numba kernels: caches of lines.

A cache is one array (:class:`tilewright.isa.chip.state.Cache`), here by its address: see
:mod:`tilewright.isa.kernels.pointers`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewright.isa.kernels.pointers import cache_at, cell, put
from tilewright.kernels import inner, njit

HIT, MISS, PINNED, BYPASSED = 0, 1, 2, 3
"""A hit; a miss; one that evicted a retained line; one served without a place."""
_BITS = 11
"""Of a digit by which stamps are sorted."""
KEPT_BIT = 62
"""The bit of a stamp that says retained: such stamps are later than all others."""


@inner(inline="always")
def address_of(cells: Any) -> Any:
    """Where an array begins: a cache as the functions below take it."""
    return np.int64(cells.ctypes.data)


class Tables(NamedTuple):
    """What of a cache's record stays: a kernel asks once, or it would be read again after every write."""

    sets: Any
    mask: Any
    ways: Any
    lines: Any
    stamps: Any
    slots: Any


@inner(inline="always")
def tables_of(c: Any) -> Any:
    """The tables of the cache at address ``c``, which begin so many cells behind it."""
    head = cache_at(c)
    return Tables(head.sets, head.mask, head.ways, head.lines, head.stamps, head.slots)


@inner()
def _refill_queue(c: Any, which: Any) -> None:
    """Fill the queue with the slots of a list, least recent first: a radix sort of their stamps."""
    head = cache_at(c)
    stamps, here, n = head.stamps, head.queue, np.int64(0)
    there, low, high = here + head.ways, np.int64(1) << KEPT_BIT, np.int64(0)
    for slot in range(head.used):
        stamp = cell(c, stamps + slot)
        if stamp > 0 and stamp >> KEPT_BIT == which:
            put(c, here + n, slot)
            stamp &= (1 << KEPT_BIT) - 1
            low, high = min(low, stamp), max(high, stamp)
            n += 1
    low |= which << KEPT_BIT
    counts, shift = np.empty(1 << _BITS, np.int64), 0
    while n > 1 and (high - (low & ((1 << KEPT_BIT) - 1))) >> shift > 0:
        counts[:] = 0
        for i in range(n):
            counts[np.uint64((cell(c, stamps + cell(c, here + i)) - low) >> shift & (1 << _BITS) - 1)] += 1
        total = there
        for digit in range(1 << _BITS):
            counts[digit], total = total, total + counts[digit]
        for i in range(n):
            slot = cell(c, here + i)
            bucket = np.uint64((cell(c, stamps + slot) - low) >> shift & (1 << _BITS) - 1)
            put(c, counts[bucket], slot)
            counts[bucket] += 1
        here, there = there, here
        shift += _BITS
    head.first = here
    head.end = here + n
    head.list = which
    head.built = head.time


@inner()
def _oldest(c: Any, which: Any) -> Any:
    """The least recent slot of a list that is not empty. Slots in the queue that were touched since are skipped."""
    head = cache_at(c)
    while True:
        if head.list == which:
            stamps, built = head.stamps, head.built | which << KEPT_BIT
            for at in range(head.first, head.end):
                slot = cell(c, at)
                stamp = cell(c, stamps + slot)
                if 0 < stamp < built and stamp >> KEPT_BIT == which:
                    head.first = at + 1
                    return slot
        _refill_queue(c, which)


@inner()
def _place(c: Any, bypass: Any) -> Any:
    """A slot of the only set for a new line (-1: none), and what the touch comes to."""
    head = cache_at(c)
    ways, free, used = head.ways, head.given_up, head.used
    if free > 0:
        head.given_up = free - 1
        return cell(c, head.queue + 2 * ways + free - 1), MISS
    if used < ways:
        head.used = used + 1
        return used, MISS
    if head.kept < ways:
        return _oldest(c, np.int64(0)), MISS
    if bypass > 0:
        return np.int64(-1), BYPASSED
    return _oldest(c, np.int64(1)), PINNED


@inner(forceinline=True)
def _miss(c: Any, tables: Any, line: Any, bypass: Any) -> Any:
    head = cache_at(c)
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
        for other in range(np.int64(1), ways):
            stamp = cell(c, stamps + slot + other)
            older = stamp < oldest
            oldest, way = stamp if older else oldest, other if older else way
        slot += way
        if oldest >> KEPT_BIT == 1:  # every line of the set is retained
            if bypass > 0:
                return np.int64(BYPASSED)
            result = np.int64(PINNED)
    if result == PINNED:
        head.kept -= 1
    old, now = cell(c, lines + slot), head.time
    if old > 0:
        put(c, slots + old - 1, 0)
    put(c, slots + line, slot + 1)
    put(c, lines + slot, line + 1)
    put(c, stamps + slot, now)
    head.time = now + 1
    return result


@inner(forceinline=True)
def touch(c: Any, tables: Any, line: Any, bypass: Any) -> Any:
    """Touch a line: HIT, MISS, PINNED or BYPASSED. ``tables``: :func:`tables_of` it."""
    head = cache_at(c)
    slot = cell(c, tables.slots + line)
    if slot == 0:
        return _miss(c, tables, line, bypass)
    at, now = tables.stamps + slot - 1, head.time
    put(c, at, now | cell(c, at) >> KEPT_BIT << KEPT_BIT)
    head.time = now + 1
    return np.int64(HIT)


@inner(forceinline=True)
def move_to_list(c: Any, tables: Any, line: Any, which: Any) -> Any:
    """Put a line in list ``which`` (0 evictable, 1 retained), if it is here at all; 1 if it was in the other one."""
    head = cache_at(c)
    slot = cell(c, tables.slots + line)
    if slot == 0 or cell(c, tables.stamps + slot - 1) >> KEPT_BIT == which:
        return np.int64(0)
    now = head.time
    put(c, tables.stamps + slot - 1, now | which << KEPT_BIT)
    head.time = now + 1
    head.kept += 2 * which - 1
    return np.int64(1)


@inner()
def release_retained(c: Any) -> Any:
    """Nothing is retained any more: every line keeps its place in the order of touches. How many were."""
    head, released = cache_at(c), np.int64(0)
    if head.kept == 0:
        return released
    for slot in range(head.used if head.sets == 1 else head.sets * head.ways):
        stamp = cell(c, head.stamps + slot)
        if stamp >> KEPT_BIT == 1:
            put(c, head.stamps + slot, stamp & ((1 << KEPT_BIT) - 1))
            released += 1
    head.kept = np.int64(0)
    head.first = head.end  # what was released may be older than all that queue
    return released


@njit(cache=True, nogil=True)
def lru_release(cache: Any) -> int:
    """:func:`release_retained`, for Python."""
    return int(release_retained(address_of(cache)))


@njit(cache=True, nogil=True)
def lru_touch(cache: Any, line: int, bypass: bool) -> int:
    """:func:`touch`, for Python."""
    c = address_of(cache)
    return int(touch(c, tables_of(c), line, np.int64(bypass)))


@njit(cache=True, nogil=True)
def lru_list(cache: Any, line: int, which: int) -> int:
    """:func:`move_to_list`, for Python."""
    c = address_of(cache)
    return int(move_to_list(c, tables_of(c), line, which))


@njit(cache=True, nogil=True)
def hold_lines(begin: int, end: int, cache: Any) -> None:
    """Lines begin to end - 1 take places that nobody else gets until they are dropped."""
    c = address_of(cache)
    tables = tables_of(c)
    for line in range(begin, end):
        touch(c, tables, np.int64(line), np.int64(1))
        move_to_list(c, tables, np.int64(line), np.int64(1))


@njit(cache=True, nogil=True)
def drop_lines(begin: int, end: int, cache: Any) -> None:
    """Forget lines begin to end - 1; their slots become the first victims."""
    c = address_of(cache)
    head = cache_at(c)
    sets, _, ways, lines, stamps, slots = tables_of(c)
    for line in range(begin, end):
        slot = cell(c, slots + line) - 1
        if slot < 0:
            continue
        head.kept -= cell(c, stamps + slot) >> KEPT_BIT
        put(c, slots + line, 0)
        put(c, lines + slot, 0)
        put(c, stamps + slot, 0)
        if sets == 1:
            given_up = head.given_up
            put(c, head.queue + 2 * ways + given_up, slot)
            head.given_up = given_up + 1

"""numba kernels: one touch of a cache and its lists. Imported on first use.

The cache's arrays come as the tuple of :meth:`tilewright.isa._caches.Cache.arrays`; the helpers take them one by one,
because a tuple would be unpacked, and its arrays counted, on every touch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit

__all__ = ["BYPASSED", "HIT", "MISS", "PINNED", "drop_lines", "lru_list", "lru_touch", "relist", "touch"]

HIT, MISS, PINNED, BYPASSED = 0, 1, 2, 3
"""A hit; a miss; one that evicted a retained line; one served without a place."""


@njit(cache=True, nogil=True, inline="always")
def move(links: Any, slot: Any, head: Any) -> None:
    """Take a slot out of its list and put it first in the list of sentinel ``head``."""
    s, h = np.uint32(2 * slot), np.uint32(2 * head)
    after, before = links[s], links[s + np.uint32(1)]
    links[np.uint32(2 * before)] = after
    links[np.uint32(2 * after + 1)] = before
    first = links[h]
    links[h] = slot
    links[s] = first
    links[s + np.uint32(1)] = head
    links[np.uint32(2 * first + 1)] = slot


@njit(cache=True, nogil=True)
def touch(slot_of: Any, line_of: Any, links: Any, list_of: Any, shape: Any, line: Any, bypass: bool) -> int:
    """Touch a line: HIT, MISS, PINNED or BYPASSED."""
    slot = slot_of[line]
    if slot >= 0:
        head = list_of[slot]
        if links[np.uint32(2 * head)] != slot:
            move(links, slot, head)
        return HIT
    sets, mask, slots = shape
    group = line & mask if mask >= 0 else line % sets
    head = np.int32(slots + 2 * group)
    slot = links[np.uint32(2 * head + 1)]
    result = MISS
    if slot == head:  # every line of the set is retained
        if bypass:
            return BYPASSED
        result = PINNED
        slot = links[np.uint32(2 * head + 3)]
    old = line_of[slot]
    if old >= 0:
        slot_of[old] = -1
    slot_of[line] = slot
    line_of[slot] = line
    list_of[slot] = head
    move(links, slot, head)
    return result


@njit(cache=True, nogil=True)
def relist(slot_of: Any, line_of: Any, links: Any, list_of: Any, shape: Any, line: Any, which: int) -> int:
    """Put a line in list ``which`` (0 evictable, 1 retained), if it is here at all; 1 if it was in the other one."""
    slot = slot_of[line]
    if slot < 0 or (list_of[slot] - shape[2]) & 1 == which:
        return 0
    head = np.int32(list_of[slot] + (1 if which else -1))
    list_of[slot] = head
    move(links, slot, head)
    return 1


@njit(cache=True, nogil=True)
def lru_touch(cache: Any, line: int, bypass: bool) -> int:
    """:func:`touch` of a cache given as a tuple."""
    slot_of, line_of, links, list_of, shape = cache
    return touch(slot_of, line_of, links, list_of, shape, line, bypass)


@njit(cache=True, nogil=True)
def lru_list(cache: Any, line: int, which: int) -> int:
    """:func:`relist` of a cache given as a tuple."""
    slot_of, line_of, links, list_of, shape = cache
    return relist(slot_of, line_of, links, list_of, shape, line, which)


@njit(cache=True, nogil=True)
def drop_lines(begin: int, end: int, cache: Any) -> None:
    """Forget lines begin to end - 1; their slots become the first victims."""
    slot_of, line_of, links, list_of, shape = cache
    for line in range(begin, end):
        slot = slot_of[line]
        if slot < 0:
            continue
        slot_of[line] = -1
        line_of[slot] = -1
        head = list_of[slot] - (list_of[slot] - shape[2] & 1)
        list_of[slot] = head
        move(links, slot, head)
        # First of a circular list is last once the sentinel has stepped over it.
        after, last = links[2 * slot], links[2 * head + 1]
        if after == head:
            continue
        links[2 * head], links[2 * after + 1] = after, head
        links[2 * last], links[2 * slot + 1] = slot, last
        links[2 * slot], links[2 * head + 1] = head, slot

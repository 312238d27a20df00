"""Caches of lines as arrays which the traffic kernels walk: LRU sets, with lines that a ``t1`` walk retains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Cache"]

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Cache:
    """One level; a touch costs the same however many lines there are.

    Every set has two circular lists, most recent first: lines that may be evicted and lines that are retained. Each has
    a sentinel, a place behind all slots, so that no end needs a test; slots without a line are last of the first list.

    ================  =========================================================================================
    ``slot_of``       per line of the memory: its slot, or -1
    ``line_of``       per slot: its line, or -1
    ``links``         per slot and sentinel: the next and the one before, flat
    ``list_of``       per slot: the sentinel of its list
    ``shape``         sets, mask of the set number (-1: sets are no power of two), slots
    ``capacity``      lines and ways it was asked to have; no more are made than the memory has lines
    ================  =========================================================================================
    """

    slot_of: Array
    line_of: Array
    links: Array
    list_of: Array
    shape: tuple[int, int, int]
    capacity: tuple[int, int]

    @classmethod
    def of(cls, lines: int, capacity: int, ways: int) -> Cache:
        """An empty cache of ``capacity`` lines for a memory of ``lines``; ``ways`` 0: fully associative."""
        sets = max(1, min(capacity // ways, lines)) if ways else 1
        each = min(ways or capacity, max(1, lines))
        slots = sets * each
        slot = np.arange(slots, dtype=np.int32)
        group, place = slot // each, slot % each
        links = np.empty((slots + 2 * sets, 2), np.int32)
        sentinels = (slots + 2 * np.arange(sets)).astype(np.int32)
        links[:slots, 0] = np.where(place == each - 1, sentinels[group], slot + 1)
        links[:slots, 1] = np.where(place == 0, sentinels[group], slot - 1)
        links[slots::2] = np.stack((np.arange(sets) * each, np.arange(sets) * each + each - 1), axis=1)
        links[slots + 1 :: 2] = sentinels[:, None] + 1
        mask = sets - 1 if sets & (sets - 1) == 0 else -1
        empty = np.full(lines, -1, np.int32), np.full(slots, -1, np.int32)
        return cls(*empty, links.reshape(-1), sentinels[group], (sets, mask, slots), (capacity, ways))

    def grow(self, lines: int) -> None:
        """The memory has ``lines`` now; what is cached stays."""
        more = lines - len(self.slot_of)
        if more <= 0:
            return
        if self.shape[2] == self.capacity[0]:
            self.slot_of = np.concatenate((self.slot_of, np.full(more, -1, np.int32)))
        else:
            self._rebuild(lines)

    def _rebuild(self, lines: int) -> None:
        """Sets that had been made smaller than asked for: touch what they held, in order, in larger ones."""
        from tilewright.isa._traffic_kernels import lru_list, lru_touch

        old, new = self.lines(), Cache.of(lines, *self.capacity)
        for retained, line in old:
            lru_touch(new.arrays(), line, True)
            lru_list(new.arrays(), line, retained)
        self.__dict__.update(new.__dict__)

    def lines(self) -> list[tuple[int, int]]:
        """What is here, set by set, least recent first: (1 if retained, line)."""
        sets, _, slots = self.shape
        found = []
        for sentinel in range(slots, slots + 2 * sets):
            at = int(self.links[2 * sentinel + 1])
            while at != sentinel:
                if self.line_of[at] >= 0:
                    found.append(((sentinel - slots) % 2, int(self.line_of[at])))
                at = int(self.links[2 * at + 1])
        return found

    def arrays(self) -> tuple[Any, ...]:
        """What the kernels take."""
        return (self.slot_of, self.line_of, self.links, self.list_of, self.shape)

"""Caches of lines as arrays which the traffic kernels walk: LRU sets, with lines that a ``t1`` walk retains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.isa.kernels.records import CACHE
from tilewright.memory import fresh_zeros

Array = np.ndarray[Any, Any]
_AT, _HEAD = CACHE.places, len(CACHE.names)
LARGE = 1 << 20
"""Cells from which a cache is touched here and there only, and clearing all of it would cost more."""
SPARE = 1 << 16
"""Cells behind a new cache, for memory that is added; they cost nothing until then."""


@dataclass(eq=False)
class Cache:
    """One level; a touch costs about the same however many lines there are.

    Every slot has a stamp: the later, the more recent, from 1; a bit above all others says that its line is retained.
    The victim in a set is the smallest stamp. One set of all lines would be long to search, so victims queue: all slots
    in the order of their stamps, once; the next victim is the next that was not touched since, and a queue that has
    ended is made anew.

    ``cells`` has it all, in this order: the record CACHE; per slot its line + 1, or 0; per slot its stamp, or
    0; one set: two queues (one is sorted into the other), then slots that were given up; per line of the memory its
    slot + 1, or 0. ``capacity``: lines and ways it was asked to have; no more are made than the memory has lines.
    ``room``: the cells with zeros behind them, for lines to come.
    """

    cells: Array
    capacity: tuple[int, int]
    room: Array = field(compare=False, repr=False)

    @classmethod
    def of(cls, lines: int, capacity: int, ways: int) -> Cache:
        """An empty cache of ``capacity`` lines for a memory of ``lines``; ``ways`` 0: fully associative."""
        sets = max(1, min(capacity // ways, lines)) if ways else 1
        own_ways = min(ways or capacity, max(1, lines))
        slots, mask = sets * own_ways, sets - 1 if sets & (sets - 1) == 0 else -1
        tables = np.cumsum([_HEAD, slots, slots, 3 * own_ways if sets == 1 else 0]).tolist()
        count = tables[-1] + lines + SPARE
        room = fresh_zeros(count, np.int64, filled=count < LARGE)
        cells = room[: tables[-1] + lines]
        cells[:8] = [sets, mask, own_ways, *tables, 1]
        return cls(cells, (capacity, ways), room)

    @property
    def slot_of(self) -> Array:
        """Per line of the memory: its slot, or -1."""
        return self.cells[self.cells[_AT["slots"]] :] - 1

    def grow(self, lines: int) -> None:
        """The memory has ``lines`` now; what is cached stays."""
        more = lines - (len(self.cells) - int(self.cells[_AT["slots"]]))
        if more <= 0:
            return
        if self.cells[_AT["sets"]] * self.cells[_AT["ways"]] == self.capacity[0]:
            if len(self.cells) + more > len(self.room):
                self.room = np.concatenate((self.cells, np.zeros(more + SPARE, np.int64)))
            self.cells = self.room[: len(self.cells) + more]
        else:
            self._rebuild(lines)

    def _rebuild(self, lines: int) -> None:
        """Sets that had been made smaller than asked for: touch what they held, in order, in larger ones."""
        from tilewright.isa.kernels.memory_kernels import lru_list, lru_touch

        old, new = self.lines(), Cache.of(lines, *self.capacity)
        for retained, line in old:
            lru_touch(new.cells, line, True)
            lru_list(new.cells, line, retained)
        self.cells, self.room = new.cells, new.room

    def lines(self) -> list[tuple[int, int]]:
        """What is here, set by set, least recent first: (1 if retained, line)."""
        ways = int(self.cells[_AT["ways"]])
        slots = int(self.cells[_AT["sets"]]) * ways
        line_of, stamps = self.cells[_HEAD : _HEAD + 2 * slots].reshape(2, slots)
        order = np.lexsort((stamps, np.arange(slots) // ways))
        return [(int(stamps[s] >> 62), int(line_of[s]) - 1) for s in order if line_of[s] > 0]

"""Caches of lines as arrays which the traffic kernel walks: LRU sets, with lines that a ``t1`` walk retains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Cache"]

Array = np.ndarray[Any, Any]


@dataclass
class Cache:
    """One level.

    =====================  =========================================================================================
    ``slot_of``            per line of the memory: its slot, or -1
    ``line_of``            per slot: its line
    ``before``, ``after``  per slot: neighbours in its list, most recent first
    ``list_of``            per slot: 0 evictable, 1 retained
    ``ends``               [set, list, 0 | 1]: most and least recent slot
    ``used``               per set: slots in use
    =====================  =========================================================================================
    """

    slot_of: Array
    line_of: Array
    before: Array
    after: Array
    list_of: Array
    ends: Array
    used: Array

    @classmethod
    def of(cls, lines: int, capacity: int, ways: int) -> Cache:
        """An empty cache of ``capacity`` lines for a memory of ``lines``; ``ways`` 0: fully associative."""
        # Neither more sets nor more ways than lines can ever be used.
        sets = max(1, min(capacity // ways, lines)) if ways else 1
        capacity = sets * min(ways or capacity, max(1, lines))
        slot_of, line_of, before, after = (np.full(n, -1, np.int32) for n in (lines, capacity, capacity, capacity))
        ends = np.full((sets, 2, 2), -1, np.int32)
        return cls(slot_of, line_of, before, after, np.zeros(capacity, np.int8), ends, np.zeros(sets, np.int32))

    def arrays(self) -> tuple[Array, ...]:
        """What the kernels take."""
        return (self.slot_of, self.line_of, self.before, self.after, self.list_of, self.ends, self.used)

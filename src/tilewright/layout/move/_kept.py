"""Moves that were made before and are made again.

A program moves arrays of few shapes many times. What a move needs besides its addresses (checks of shapes and types, a
plan, the number that padding is) is the same every time, and with cold caches finding it all again costs as much as
moving several megabytes. So a layout keeps its moves under the shapes, strides and types they were made for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.layout.move._move import address_of, run_at
from tilewright.layout.move._plan import MovePlan

__all__ = ["Kept"]

Array = np.ndarray[Any, Any]
_LINE = 64
_MOST = 32


def _key(target: Array, source: Array, to: int, packing: bool) -> tuple[Any, ...]:
    """Shapes tell packing from unpacking, unless both sides are 1-D and nothing is padding."""
    aligned, way = to % _LINE == 0, packing and target.shape == source.shape
    return aligned, way, target.shape, target.strides, target.dtype, source.shape, source.strides, source.dtype


def _reach(array: Array) -> tuple[int, int]:
    """First byte of the array and first byte behind it, from its first element."""
    ends = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + array.itemsize


@dataclass(frozen=True, eq=False)
class _Move:
    """A plan and its padding's number; what bytes it writes and reads, from either array's first element."""

    plan: MovePlan
    value: int
    writes: tuple[int, int]
    reads: tuple[int, int]


class Kept:
    """The moves of one layout: packing and unpacking into given memory.

    >>> from tilewright.layout import parse
    >>> layout = parse("s32[2,3]{1,0:T(2,2)}")
    >>> array, out = np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros(layout.num_slots, np.int32)
    >>> layout._kept.again(out, array), layout.pack(array, out=out).tolist(), layout._kept.again(out, array + 1)
    (False, [0, 1, 3, 4, 2, 0, 5, 0], True)
    >>> out.tolist()
    [1, 2, 4, 5, 3, 0, 6, 0]
    """

    __slots__ = ("_moves",)

    def __init__(self) -> None:
        self._moves: dict[tuple[Any, ...], _Move] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()  # plans hold addresses of this process

    def keep(self, target: Array, source: Array, plan: MovePlan, value: int = 0, packing: bool = False) -> None:
        """Make this move again when arrays like these come, on a cache line or off it."""
        if len(self._moves) >= _MOST:
            self._moves.clear()
        self._moves[_key(target, source, address_of(target), packing)] = _Move(
            plan, value, _reach(target), _reach(source)
        )

    def again(self, target: Any, source: Any, packing: bool = False) -> bool:
        """Make a kept move; False, and nothing moved, where none fits or anything about the arrays is unusual."""
        if type(target) is not np.ndarray or type(source) is not np.ndarray:
            return False
        to, read_only = target.__array_interface__["data"]
        found = self._moves.get(_key(target, source, to, packing))
        if found is None:
            return False
        out_of = source.__array_interface__["data"][0]
        apart = to + found.writes[1] <= out_of + found.reads[0] or out_of + found.reads[1] <= to + found.writes[0]
        if read_only or not apart:
            return False
        run_at(found.plan, to, out_of, found.value, (target, source))
        return True

"""Moves that were made before and are made again.

A program moves arrays of few shapes many times. What a move needs besides its addresses (checks of shapes and types, a
plan, the number that padding is) is the same every time, and with cold caches finding it all again costs as much as
moving several megabytes. So a layout keeps its moves under the shapes, strides and types they were made for, as records
that a kernel looks through (``find_kernels.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright.layout.move.blocks import LINE
from tilewright.layout.move.calls import MovePlan, address_of, give_call, run_call, take_call
from tilewright.layout.move.words import DONE, GIVEN, MOST_DIMS, RECORD, WAY

Array = np.ndarray[Any, Any]
Find = Callable[[int, int, int, int, int, int], int]
_MOST = 32


def _reach(array: Array) -> tuple[int, int]:
    """First byte of the array and first byte behind it, from its first element."""
    ends = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    return sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends) + array.itemsize


def _side(array: Array) -> tuple[int, ...]:
    """Type, rank, sizes and steps of an array, as a record has them."""
    more = (0,) * (MOST_DIMS - array.ndim)
    return id(array.dtype), array.ndim, *array.shape, *more, *array.strides, *more


def _record(target: Array, source: Array, packing: bool, header: int, value: int) -> tuple[int, ...]:
    """What a move is kept under; 1-D sides do not show whether it packs or unpacks, so the record says it."""
    alike = int(packing), int(address_of(target) % LINE == 0), *_side(target), *_side(source)
    return header, value, *_reach(target), *_reach(source), *alike


def _usual(array: Array) -> bool:
    """Whether arrays like this one have its very type object, and no more dims than a record has room for."""
    return array.ndim <= MOST_DIMS and np.dtype(array.dtype.type) is array.dtype


@cache
def _finder() -> Find | None:
    """The kernel that looks through records; None where numpy's arrays do not lie in memory as it expects."""
    from tilewright.layout.move.find_kernels import find_move

    target, source, call = np.zeros((3, 2), np.int16)[::2], np.zeros(5), take_call()
    records = np.array(_record(target, source, True, 5, 7), np.int64)
    record = find_move(address_of(records), 1, id(target), id(source), 1, call.address)
    words = call.words[[0, DONE, *range(GIVEN, GIVEN + 4)]].tolist()
    give_call(call)
    return find_move if (record, words) == (0, [0, 0, address_of(target), address_of(source), 5, 7]) else None


class Kept:
    """The moves of one layout: packing and unpacking into given memory.

    >>> from tilewright.layout import parse
    >>> layout = parse("s32[2,3]{1,0:T(2,2)}")
    >>> array, out = np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros(layout.num_slots, np.int32)
    >>> layout._kept.again(out, array, 1), layout.pack(array, out=out).tolist(), layout._kept.again(out, array + 1, 1)
    (False, [0, 1, 3, 4, 2, 0, 5, 0], True)
    >>> out.tolist()
    [1, 2, 4, 5, 3, 0, 6, 0]
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self.forget()

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()  # plans hold addresses of this process

    def __len__(self) -> int:
        return len(self._found[2])

    def forget(self) -> None:
        """Keep none of them."""
        self._found: tuple[int, int, tuple[MovePlan, ...], Array] = 0, 0, (), np.zeros((0, RECORD), np.int64)

    def keep(self, target: Array, source: Array, plan: MovePlan, value: int = 0, packing: bool = False) -> None:
        """Make this move again for arrays like these, on a cache line or off it."""
        if not (_usual(target) and _usual(source)):
            return
        record = np.array([_record(target, source, packing, plan.header, value)], np.int64)
        _, _, plans, records = self._found
        others = np.flatnonzero((records[:, WAY:] != record[:, WAY:]).any(axis=1))
        others = others if len(others) < _MOST else others[:0]
        records = np.concatenate([records[others], record])
        self._found = address_of(records), len(records), (*(plans[k] for k in others), plan), records

    def again(self, target: Any, source: Any, packing: int = 0) -> bool:
        """Make a kept move; False, and nothing moved, where none fits or the arrays are unusual."""
        address, count, plans, _records = self._found  # held here: another thread may put others in their place
        if not count or type(target) is not np.ndarray or type(source) is not np.ndarray:
            return False
        find = _finder()
        if find is None:
            return False
        call = take_call()
        record = find(address, count, id(target), id(source), packing, call.address)
        if record < 0:
            give_call(call)
            return False
        run_call(call, plans[record])
        return True

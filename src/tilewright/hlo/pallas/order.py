"""What a kernel moves over its grid, and what another order of the grid's dims would move."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from tilewright.hlo.reading.kernel import Kernel, moves_of

_MOST_DIMS, _MOST_STEPS = 4, 1 << 20


@dataclass(frozen=True)
class Order:
    """An order of the grid's dims, the outermost first, and the bytes that all windows move in it."""

    dims: tuple[int, ...]
    bytes: int


def best_order(kernel: Kernel) -> Order | None:
    """The order that moves least, where it moves less than the kernel's own; None where none does, or nobody knows.

    Of orders that would fetch a block of a result again, or write it in parts, none is taken.
    """
    windows = [window for window in kernel.windows if window.space == "vmem"]
    if len(kernel.grid) > _MOST_DIMS or kernel.steps > _MOST_STEPS or not all(window.places for window in windows):
        return None
    own = sum(window.megabytes for window in windows)
    best = min(_orders(kernel), key=lambda order: order.bytes, default=None)
    return best if best and best.bytes < own * 1e6 * 0.98 else None


def _orders(kernel: Kernel) -> Iterator[Order]:
    rank = len(kernel.grid)
    for dims in permutations(range(rank)):
        grid, moved = tuple(kernel.grid[d] for d in dims), 0.0
        for window in kernel.windows:
            if window.space != "vmem":
                continue
            places = [
                np.transpose(place.reshape((1,) * (rank - place.ndim) + place.shape), dims) for place in window.places
            ]
            known = window.array if len(window.array) == len(window.block) else ()
            moves = moves_of(places, grid, window.block, known, window.dtype)
            if window.result and moves.fetches > window.fetches:
                break
            moved += moves.megabytes
        else:
            yield Order(dims, round(moved * 1e6))

"""An axis as a chain over the linear logical index: what the bitcast decision compares.

With E the row-major index of an element, an axis is base + sum of c_k * stride_k, the c_k being greedy digits of E at
ascending ``places`` (1 = p_0 < p_1 < ...): c_last = E div p_last, and so on downwards. Neighbours that continue
each other linearly are one entry, so equal functions of E have equal chains; the one exception, places that do not
divide each other (a dim that its tile does not divide), is settled by looking for a witness and then by enumeration.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from tilewright.layout._digits import Digit, Line

__all__ = ["Chain", "chain", "first_difference"]

_CHUNK = 1 << 20
_BY_DIV = attrgetter("div")


@dataclass(frozen=True)
class Chain:
    """``places`` ascend from 1; ``exact`` tells whether each divides the next."""

    base: int
    places: tuple[int, ...]
    strides: tuple[int, ...]
    exact: bool

    def __call__(self, e: Any) -> Any:
        """The axis value of linear index ``e`` (an int or an int64 array)."""
        value, rest = self.base, e
        for place, stride in zip(reversed(self.places), reversed(self.strides), strict=True):
            value = value + rest // place * stride
            rest = rest % place
        return value


def _entries(digits: list[Digit], size: int) -> list[tuple[int, int]] | None:
    """(div, weight) of one dim's digits; None unless they partition the dim's index without shifts."""
    found: list[tuple[int, int]] = []
    next_div = 1
    digits.sort(key=_BY_DIV)
    for k, (_, weight, div, mod, _, shift) in enumerate(digits):
        if shift or div < next_div:
            return None
        if div > next_div:  # the axis ignores these digits
            found.append((next_div, 0))
        found.append((div, weight))
        if mod == 0 or div * mod >= size:
            return found if k == len(digits) - 1 else None
        next_div = div * mod
    return [*found, (next_div, 0)] if next_div < size else found


def chain(line: Line, shape: tuple[int, ...], order: tuple[int, ...]) -> Chain | None:
    """The chain of an axis over the dims of ``shape`` read in ``order`` (row-major); None where none exists."""
    places: list[int] = []
    strides: list[int] = []
    below = 1
    of_dim: list[list[Digit]] = [[] for _ in shape]
    for digit in line.digits:
        of_dim[digit.dim].append(digit)
    for dim in reversed(order):
        size = shape[dim]
        if size > 1:
            entries = _entries(of_dim[dim], size)
            if entries is None:
                return None
            for div, weight in entries:
                place = below * div
                if places and place % places[-1] == 0 and weight == place // places[-1] * strides[-1]:
                    continue
                places.append(place)
                strides.append(weight)
            below *= size
    exact = all(b % a == 0 for a, b in pairwise(places))
    return Chain(line.base, tuple(places), tuple(strides), exact)


def first_difference(a: Chain, b: Chain, count: int) -> int | None:
    """Some E below ``count`` where the two differ, or None where they are the same function."""
    if a == b:
        return None
    marks = {*a.places, *b.places}
    tries = {m * k + d for m in marks for k in (1, 2, 3) for d in (-1, 0, 1)}
    tries |= {m + n + d for m in marks for n in marks for d in (-1, 0, 1)} | {0, count - 1}
    for e in sorted(t for t in tries if 0 <= t < count):
        if a(e) != b(e):
            return e
    for start in range(0, count, _CHUNK):  # rare: decide by looking at every element
        many = np.arange(start, min(start + _CHUNK, count), dtype=np.int64)
        differs = np.nonzero(a(many) != b(many))[0]
        if len(differs):
            return start + int(differs[0])
    return None

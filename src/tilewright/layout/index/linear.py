"""Linearisation: the value sum of c_k * stride_k with 0 <= c_k < size_k, and back.

Row-major and tiled layouts have nested strides, where greedy division decodes a value. Free strides (an NPU's free
mode) may interleave or overlap; there a bounded search over the strides, largest first, decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_ENUMERATED = 1 << 20
Terms = list[tuple[int, int]]  # (size, stride)


def _ordered(terms: Terms) -> tuple[list[int], bool]:
    """Terms by falling stride, and whether they nest (each stride is larger than all the smaller ones can reach)."""
    order = sorted(range(len(terms)), key=lambda k: (-terms[k][1], k))
    reach, nested = 0, True
    for k in reversed(order):
        size, stride = terms[k]
        if size > 1:
            nested &= stride > reach
            reach += (size - 1) * stride
    return order, nested


def is_injective(terms: Terms) -> bool:
    """Whether no two coordinate vectors share a value."""
    order, nested = _ordered(terms)
    if nested:
        return True
    live = [terms[k] for k in order if terms[k][0] > 1]
    if any(stride == 0 for _, stride in live):
        return False
    if math.prod(size for size, _ in live) <= _ENUMERATED:
        return _all_different(live)
    reach = [sum((n - 1) * s for n, s in live[k:]) for k in range(len(live) + 1)]

    def collides(k: int, rest: int, moved: bool) -> bool:
        """Whether differences of terms k.. can bring ``rest`` to 0, with any term moved."""
        if k == len(live):
            return moved and rest == 0
        size, stride = live[k]
        low = max(1 - size, -(-(-rest - reach[k + 1]) // stride))
        high = min(size - 1, (reach[k + 1] - rest) // stride)
        return any(collides(k + 1, rest + d * stride, moved or d != 0) for d in range(low, high + 1))

    return not collides(0, 0, False)


def _all_different(live: Terms) -> bool:
    """Whether all values differ, by listing them (tangled strides in many terms would take a search for ever)."""
    values = np.zeros(1, np.int64 if sum((n - 1) * s for n, s in live) < 2**63 else object)
    for size, stride in live:
        values = (values[:, None] + np.arange(size, dtype=values.dtype) * stride).reshape(-1)
    values.sort()
    return bool((values[1:] != values[:-1]).all())


def solutions(value: int, terms: Terms) -> Iterator[tuple[int, ...]]:
    """All coordinate vectors with this value (one at most where strides nest)."""
    order, _ = _ordered(terms)
    values = [0] * len(terms)
    live = [k for k in order if terms[k][0] > 1]
    reach = [sum((terms[k][0] - 1) * terms[k][1] for k in live[i:]) for i in range(len(live) + 1)]

    def search(i: int, rest: int) -> Iterator[tuple[int, ...]]:
        if i == len(live):
            if rest == 0:
                yield tuple(values)
            return
        size, stride = terms[live[i]]
        low = max(0, -(-(rest - reach[i + 1]) // stride)) if stride else 0
        high = min(size - 1, rest // stride) if stride else size - 1
        for c in range(high, low - 1, -1):
            values[live[i]] = c
            yield from search(i + 1, rest - c * stride)

    yield from search(0, value)


def decode_many(values: Array, terms: Terms) -> tuple[list[Array], Array] | None:
    """The coordinates of many values and which values have any; None where the strides do not nest."""
    order, nested = _ordered(terms)
    if not nested:
        return None
    digits = [np.zeros(values.shape, np.int64) for _ in terms]
    rest = values.copy()
    ok = np.ones(values.shape, bool)
    for k in order:
        size, stride = terms[k]
        if size > 1:
            digits[k] = rest // stride
            ok &= (digits[k] >= 0) & (digits[k] < size)
            rest = rest - digits[k] * stride
    return digits, ok & (rest == 0)

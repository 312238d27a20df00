"""A move as strided boxes: the digit forms of two address maps, cut until both are affine.

A move takes every element from a source place to a target place, both in bytes. Each side is a sum of
:class:`Term` over common dims. A dim is cut into segments on which both sides are nested affine loops; the product of
the segments of all dims is a list of boxes:

    f32[21,300]{1,0:T(8,128)}     dim 0: 16 = 2 x 8 | 5       dim 1: 256 = 2 x 128 | 44       4 boxes

Ragged edges are boxes of their own, so kernels never test bounds, and a digit that wraps (a rotation, a start NPU)
is one more cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.types import Array

_MOST_BOXES = 512
_MOST_SEGMENTS = 1 << 21
_MOST_LENGTHS = 64


@dataclass(frozen=True)
class Term:
    """weight * (((x + shift) div div) mod mod) with x = (e div below) mod size; mod or size 0: no such bound."""

    weight: int
    div: int = 1
    mod: int = 0
    shift: int = 0
    below: int = 1
    size: int = 0

    def __call__(self, e: Any) -> Any:
        x = e // self.below
        x = ((x % self.size if self.size else x) + self.shift) // self.div
        return self.weight * (x % self.mod if self.mod else x)

    @property
    def marks(self) -> tuple[int, ...]:
        """Distances in e at which the term starts, steps and wraps."""
        marks = (self.below, self.below * self.div, self.below * self.div * self.mod, self.below * self.size)
        return tuple(m for m in marks if m)


@dataclass(frozen=True)
class CommonDim:
    """A dim that both sides share: its size and the terms of each side."""

    size: int
    source: tuple[Term, ...]
    target: tuple[Term, ...]


@dataclass(frozen=True)
class Loop:
    """``count`` steps of ``source`` and ``target`` bytes."""

    count: int
    source: int
    target: int


@dataclass(frozen=True, eq=False)
class Box:
    """A perfect nest of ``loops`` (any order), repeated from every pair of places in ``sources`` and ``targets``."""

    sources: Array
    targets: Array
    loops: tuple[Loop, ...]

    @property
    def reach(self) -> tuple[int, int]:
        """First and last source byte that the box reads from."""
        ends = [(loop.count - 1) * loop.source for loop in self.loops]
        low, high = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
        return int(self.sources.min()) + low, int(self.sources.max()) + high


_Segment = tuple[Array, tuple[tuple[int, int], ...]]
"""Indices starts[k] + sum of i * step over loops (count, step)."""
Terms = tuple[tuple[Term, ...], ...]  # per dim


def layout_terms(layout: AddressMap, slot: int) -> tuple[int, Terms] | None:
    """(base, terms per logical dim) in bytes of a buffer of ``slot``-byte slots; None without a digit form."""
    if layout.digits is None:
        return None
    base, unit = 0, slot
    terms: list[list[Term]] = [[] for _ in layout.shape]
    for axis, line in zip(reversed(layout.axis_terms), reversed(layout.digits.values()), strict=True):
        base += line.base * unit
        for d in line.digits:
            terms[d.dim].append(Term(d.weight * unit, d.div, d.mod, d.shift))
        unit *= axis.extent
    return base, tuple(map(tuple, terms))


def _group_ends(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Places (i, j) from the right at which the products of a[i:] and b[j:] agree, so that dims of both end there."""
    i, j, product_a, product_b = len(a), len(b), 1, 1
    while i or j:
        if product_a <= product_b and i:
            i, product_a = i - 1, product_a * a[i - 1]
        else:
            j, product_b = j - 1, product_b * b[j - 1]
        if product_a == product_b:
            yield i, j


def _along(shape: Sequence[int], terms: Sequence[tuple[Term, ...]]) -> tuple[Term, ...]:
    """Terms of neighbouring dims as terms of the one dim they make together."""
    along, below = list[Term](), 1
    for place in range(len(shape) - 1, -1, -1):
        size = shape[place] if any(n > 1 for n in shape[:place]) else 0
        if shape[place] > 1:
            along += [replace(t, below=below, size=size) for t in terms[place]]
        below *= shape[place]
    return tuple(along)


def line_up(shape_a: Sequence[int], terms_a: Terms, shape_b: Sequence[int], terms_b: Terms) -> list[CommonDim]:
    """Common dims of two shapes of as many elements: the longest list of groups whose products agree."""
    dims, last_i, last_j = [], len(shape_a), len(shape_b)
    for i, j in _group_ends(shape_a, shape_b):
        size = math.prod(shape_a[i:last_i])
        if size > 1:
            one = _along(shape_a[i:last_i], terms_a[i:last_i])
            dims.append(CommonDim(size, one, _along(shape_b[j:last_j], terms_b[j:last_j])))
        last_i, last_j = i, j
    return dims[::-1]


def _levels(size: int, terms: tuple[Term, ...]) -> list[int] | None:
    """Block sizes at which terms step or wrap, ascending from 1; None unless they nest and shifts respect them."""
    levels = sorted({1, *(m for t in terms for m in t.marks if m < size)})
    if any(big % small for small, big in pairwise(levels)):
        return None
    for t in terms:
        for every in (t.below * t.div, t.below * t.div * t.mod):  # if wider than the dim, no multiple of a level
            if every and any(-t.shift * t.below % every % c for c in levels if c < every):
                return None
    return levels


def _wraps(terms: tuple[Term, ...], first: int, last: int, step: int) -> list[int]:
    """Multiples k of ``step``, first < k < last, at which a shifted term steps or wraps, and both ends."""
    cuts = {first, last}
    for t in terms:
        for period in (t.div, t.div * t.mod):
            if t.shift and t.below * period > step:
                every = t.below * period
                at = -t.shift * t.below % every
                at += (first * step - at) // every * every
                cuts |= {e // step for e in range(at, last * step, every) if e > first * step}
    return sorted(cuts)


def _nested(size: int, terms: tuple[Term, ...], levels: list[int]) -> Iterator[_Segment]:
    """Whole blocks of every level, and what is left at the edges."""

    def cut(low: int, high: int, level: int) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
        if low >= high:
            return
        if level == 0:
            yield low, ()
            return
        step = levels[level - 1]
        first, last = -(-low // step), high // step
        if first > last:
            yield from cut(low, high, level - 1)
            return
        yield from cut(low, first * step, level - 1)
        for a, b in pairwise(_wraps(terms, first, last, step)):
            for start, loops in cut(a * step, (a + 1) * step, level - 1):
                yield start, ((b - a, step), *loops)
        yield from cut(last * step, high, level - 1)

    for start, loops in cut(0, size, len(levels)):
        yield np.array([start]), tuple(loop for loop in loops if loop[0] > 1)


def _uneven(dim: CommonDim) -> list[_Segment] | None:
    """Runs of constant slope where blocks do not nest (14 rows against tiles of 8): runs of one length together."""
    if dim.size > _MOST_SEGMENTS:
        return None
    e = np.arange(dim.size, dtype=np.int64)
    slopes = np.stack([np.diff(_value(terms, e)) for terms in (dim.source, dim.target)], axis=-1)
    pairs, which, counts = np.unique(slopes, axis=0, return_inverse=True, return_counts=True)
    breaks = np.nonzero(which.reshape(-1) != counts.argmax())[0] + 1
    starts = np.concatenate([[0], breaks])
    lengths = np.diff(np.concatenate([starts, [dim.size]]))
    different = np.unique(lengths)
    if len(different) > _MOST_LENGTHS or not len(pairs):
        return None
    return [(starts[lengths == n], ((int(n), 1),) if n > 1 else ()) for n in different]


def _value(terms: tuple[Term, ...], e: Any) -> Any:
    return sum((t(e) for t in terms), start=e * 0)


def _piece(dim: CommonDim, segment: _Segment) -> Box:
    """A segment as a box of its own dim."""
    starts, counts = segment
    places = [_value(terms, starts) for terms in (dim.source, dim.target)]
    first = int(starts[0])
    loops = []
    for count, step in counts:
        source, target = (_value(t, first + step) - _value(t, first) for t in (dim.source, dim.target))
        loops.append(Loop(count, int(source), int(target)))
    return Box(places[0], places[1], tuple(loops))


def _join(pieces: tuple[Box, ...], base: tuple[int, int]) -> Box:
    sources, targets = (np.array([b], np.int64) for b in base)
    for piece in pieces:
        sources = (sources[:, None] + piece.sources).reshape(-1)
        targets = (targets[:, None] + piece.targets).reshape(-1)
    return Box(sources, targets, merged([loop for piece in pieces for loop in piece.loops]))


def merged(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Loops in ascending target stride, neighbours that continue each other as one."""
    ascending: list[Loop] = []
    for loop in sorted(loops, key=lambda x: (abs(x.target), abs(x.source))):
        last = ascending[-1] if ascending else None
        if last and loop.source == last.source * last.count and loop.target == last.target * last.count:
            ascending[-1] = replace(last, count=last.count * loop.count)
        elif loop.count > 1:
            ascending.append(loop)
    return tuple(ascending)


def boxes_of(dims: Sequence[CommonDim], base: tuple[int, int] = (0, 0)) -> list[Box] | None:
    """The move over ``dims`` as boxes; None where it falls into too many of them."""
    cut = []
    for dim in dims:
        levels = _levels(dim.size, dim.source + dim.target)
        segments = _uneven(dim) if levels is None else list(_nested(dim.size, dim.source + dim.target, levels))
        if segments is None:
            return None
        cut.append([_piece(dim, segment) for segment in segments])
    if math.prod(len(pieces) for pieces in cut) > _MOST_BOXES:
        return None
    if math.prod(max(len(p.sources) for p in pieces) for pieces in cut) > _MOST_SEGMENTS:
        return None
    return [_join(pieces, base) for pieces in product(*cut)]

"""Is a reshape or a transpose free?

Two layouts hold the same bytes in the same places iff every element keeps its address. With a permutation p, b is
reshape(transpose(a, p)), p read as numpy.transpose reads it. Decided on the maps' digit forms, exactly; where a map has
none, by enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.steps import Digit, Line
from tilewright.layout.index.types import Array, require_layout, to_ints

# An axis as a chain over the linear logical index: what the bitcast decision compares.

_CHUNK = 1 << 20
_BY_DIV = attrgetter("div")


@dataclass(frozen=True)
class Chain:
    """``places`` ascend from 1; ``exact`` says whether each divides the next."""

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
    entries: list[tuple[int, int]] = []
    next_div = 1
    digits.sort(key=_BY_DIV)
    for k, (_, weight, div, mod, _, shift) in enumerate(digits):
        if shift or div < next_div:
            return None
        if div > next_div:  # the axis ignores these digits
            entries.append((next_div, 0))
        entries.append((div, weight))
        if mod == 0 or div * mod >= size:
            return entries if k == len(digits) - 1 else None
        next_div = div * mod
    return [*entries, (next_div, 0)] if next_div < size else entries


def chain(line: Line, shape: tuple[int, ...], order: Sequence[int]) -> Chain | None:
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
    if a.exact and b.exact:  # they differ first at the least place that only one has, or has with this stride
        odd = {*zip(a.places, a.strides, strict=True)} ^ {*zip(b.places, b.strides, strict=True)}
        return min(odd)[0] if a.base == b.base else 0
    marks = {*a.places, *b.places}
    tries = {m * k + d for m in marks for k in (1, 2, 3) for d in (-1, 0, 1)}
    tries |= {m + n + d for m in marks for n in marks for d in (-1, 0, 1)} | {0, count - 1}
    for e in sorted(t for t in tries if 0 <= t < count):
        if a(e) != b(e):
            return e
    for many in _all_numbers(count):  # rare: decide by looking at every element
        differs = np.nonzero(a(many) != b(many))[0]
        if len(differs):
            return int(many[differs[0]])
    return None


def _all_numbers(count: int) -> Iterator[Array]:
    """0 .. count - 1, in pieces that fit into memory."""
    for start in range(0, count, _CHUNK):
        yield np.arange(start, min(start + _CHUNK, count), dtype=np.int64)


_MOST = 1 << 27  # elements that are looked at one by one, in about ten seconds


def order_of(a: AddressMap, b: AddressMap, permutation: Sequence[int] | None) -> tuple[int, ...]:
    """The order in which b reads the dims of a; a :class:`UsageError` where b is not a reshape of that."""
    for layout in (a, b):
        require_layout(layout)
    order = tuple(range(a.rank)) if permutation is None else to_ints(permutation, "a dim")
    if sorted(order) != list(range(a.rank)):
        raise UsageError(f"permutation {order} is not an order of the {a.rank} dims of {a}")
    if math.prod(a.shape) != math.prod(b.shape):
        raise UsageError(f"{a} has {math.prod(a.shape)} elements, {b} has {math.prod(b.shape)}: not a reshape")
    return order


def _chains(layout: AddressMap, order: Sequence[int]) -> list[Chain] | None:
    if layout.digits is None:
        return None
    chains = [chain(line, layout.shape, order) for line in layout.digits.values()]
    return None if any(c is None for c in chains) else [c for c in chains if c is not None]


@lru_cache(maxsize=65536)
def _difference(a: AddressMap, b: AddressMap, order: tuple[int, ...]) -> int | None:
    """The number of an element (of the transposed a) whose address differs, or None."""
    count = a.num_elements
    if not count:
        return None
    chains_a, chains_b = _chains(a, order), _chains(b, range(b.rank))
    if chains_a is not None and chains_b is not None:
        pairs = zip(chains_a, chains_b, strict=True)
        return next((e for one, other in pairs if (e := first_difference(one, other, count)) is not None), None)
    plain = not (a.scrambles or b.scrambles)
    same = plain and (a.shape, a.steps, a.axis_terms) == (b.shape, b.steps, b.axis_terms)  # whatever they are called
    if same and order == tuple(range(b.rank)):
        return None
    numbers: Iterable[Array] = _all_numbers(count)
    if count > _MOST:  # a difference is mostly found near the ends or anywhere; sameness would need every element
        ends = np.concatenate([np.arange(_CHUNK), np.arange(count - _CHUNK, count)])
        numbers = ends, np.linspace(0, count - 1, _CHUNK).astype(np.int64)
    for some in numbers:
        places_a, places_b = a.addresses(a.indices_of(some, order)), b.addresses(b.indices_of(some))
        differs = np.nonzero((places_a != places_b).any(axis=1))[0]
        if len(differs):
            return int(some[differs[0]])
    if count > _MOST:
        how = "a '*' whose tile does not divide has no digit form, and looking at every element would take too long"
        raise UnsupportedError(f"cannot decide whether {a} and {b} keep all {count} places", how=how)
    return None


def _outer_reason(a: AddressMap, b: AddressMap) -> str:
    """Why the two cannot be the same bytes, whatever the elements do; empty if nothing stands against it."""
    if a.metadata_prefix != b.metadata_prefix:
        prefixes = a.metadata_prefix, b.metadata_prefix
        return f"the data begins behind {prefixes[0]} bytes of metadata, M({prefixes[0]}), and behind {prefixes[1]}"
    if a.memory_space != b.memory_space:
        return f"memory space S({a.memory_space}) differs from S({b.memory_space})"
    if a.element_bits != b.element_bits:
        return f"elements of {a.element_bits} bits differ from elements of {b.element_bits} bits"
    if a.size_bytes != b.size_bytes:
        return f"{a.size_bytes} bytes with padding differ from {b.size_bytes}"
    extents = [tuple((x.name, x.extent) for x in m.axis_terms) for m in (a, b)]
    return "" if extents[0] == extents[1] else f"axes {a.axes} differ from {b.axes}"


def why_not(a: AddressMap, b: AddressMap, order: tuple[int, ...]) -> str:
    """Why b is not a bitcast of a; empty if it is."""
    if outer := _outer_reason(a, b):
        return outer
    moved = _difference(a, b, order)
    if moved is None:
        return ""
    number = np.array(moved)
    places = a.addresses(a.indices_of(number, order)), b.addresses(b.indices_of(number))
    index = tuple(int(i) for i in np.unravel_index(moved, b.shape))
    names = "/".join(a.axes)
    old, new = ("/".join(map(str, place.tolist())) for place in places)
    return f"element {index} of the result moves from {names} {old} to {new}"


def is_bitcast(a: AddressMap, b: AddressMap, permutation: Sequence[int] | None = None) -> bool:
    """Whether b = reshape(transpose(a, permutation)) costs nothing: every element keeps its byte address.

    Raises :class:`UsageError` where the element counts differ or the permutation is not one. Exact.

    >>> from tilewright.layout import parse
    >>> is_bitcast(parse("f32[8,32,256]{2,1,0:T(8,128)}"), parse("f32[256,256]{1,0:T(8,128)}"))
    True
    >>> is_bitcast(parse("f32[14,14,256]{2,1,0:T(8,128)}"), parse("f32[196,256]{1,0:T(8,128)}"))
    False
    """
    order = order_of(a, b, permutation)
    return not _outer_reason(a, b) and _difference(a, b, order) is None

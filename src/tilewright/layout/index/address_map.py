"""AddressMap: logical index -> address on named axes, by a short straight-line program.

                     steps                        linearisation
    (i, j, ...)  ------------->  coordinates  ------------------->  {"offset": 17}   or  {"npu": 3, "offset": 64}
     bounds live here             Split, Pad, ...    per axis: sum of coordinate * stride

Scalar and vectorised evaluation, the inverse, the sizes and the digit form are views of this one value. The inverse
runs the program backwards and tests every bound, so that a place holds an index or is padding, nothing else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations, islice, product
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.kernels.threads import run_all, thread_count
from tilewright.layout.index.steps import Digit, Line, Permute, Step, is_chain, scale_digits
from tilewright.layout.index.types import UNBOUNDED, Array, array_of, numpy_dtype, type_bits

# Linearisation: the value sum of c_k * stride_k with 0 <= c_k < size_k, and back.
#
# Row-major and tiled layouts have nested strides, where greedy division decodes a value. Free strides (an NPU's free
# mode) may interleave or overlap; there a bounded search over the strides, largest first, decides.

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
    if math.prod(size for size, _ in live) > 1 + sum((size - 1) * stride for size, stride in live):
        return False  # more vectors than values
    for a, b in combinations(live, 2):  # alone: so many steps of one that they are a number of steps of the other
        common = math.lcm(a[1], b[1])
        if common // a[1] < a[0] and common // b[1] < b[0]:
            return False
    if math.prod(size for size, _ in live) <= _ENUMERATED:
        # List all values: tangled strides in many terms would take a search for ever.
        values = np.zeros(1, np.int64 if sum((n - 1) * s for n, s in live) < 2**63 else object)
        for size, stride in live:
            values = (values[:, None] + np.arange(size, dtype=values.dtype) * stride).reshape(-1)
        values.sort()
        return bool((values[1:] != values[:-1]).all())
    # Differences of two vectors, each moved up by size - 1: more than one gives the value of no difference.
    middle = sum((size - 1) * stride for size, stride in live)
    return len([*islice(solutions(middle, [(2 * size - 1, stride) for size, stride in live]), 2)]) == 1


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


# Places of many indices by one table per dim, where a map is a sum over dims.

_TABLE_ENTRIES = 1 << 22  # 32 MiB of tables at most; beyond, the program itself is run on the arrays
_FEW = 1 << 13  # indices for which a kernel is not worth loading numba
_PART = 1 << 18


def dim_tables(lines: Mapping[str, Line] | None, shape: Sequence[int]) -> list[list[Array]] | None:
    """Per axis and dim, what every index adds; None without ``lines`` (see ``.digits``), or where it is too much."""
    if lines is None or sum(shape) > _TABLE_ENTRIES:
        return None
    tables = [[np.zeros(size, np.int64) for size in shape] for _ in lines]
    for of_axis, line in zip(tables, lines.values(), strict=True):
        for d in line.digits:
            value = (np.arange(shape[d.dim], dtype=np.int64) + d.shift) // d.div
            of_axis[d.dim] += d.weight * (value % d.mod if d.mod else value)
    return tables


def first_outside(ix: Array, shape: Sequence[int]) -> Array | None:
    """Where (position..., dim) an index is outside ``shape``, the first such; None if all are inside."""
    outside = (ix < 0) | (ix >= np.array(shape, np.int64))
    return np.argwhere(outside)[0] if outside.any() else None


def places_by_tables(
    ix: Array, shape: Sequence[int], lines: Mapping[str, Line], tables: Sequence[Sequence[Array]]
) -> Array | None:
    """int64[..., axes] for int64[..., rank] counted from 0; None if an index is outside."""
    bases = [line.base for line in lines.values()]
    if ix.size < _FEW * max(1, len(shape)) or 0 in shape:
        if first_outside(ix, shape) is not None:
            return None
        places = np.empty((*ix.shape[:-1], len(tables)), np.int64)
        for axis, (base, of_axis) in enumerate(zip(bases, tables, strict=True)):
            places[..., axis] = base
            for dim, table in enumerate(of_axis):
                if len(table) > 1:
                    places[..., axis] += table[ix[..., dim]]
        return places
    from tilewright.layout.index.table_kernels import look_up

    flat = np.ascontiguousarray(ix).reshape(-1, len(shape))
    out, starts = np.empty((len(flat), len(tables)), np.int64), np.cumsum([0, *shape])
    for axis, (base, of_axis) in enumerate(zip(bases, tables, strict=True)):
        given = (flat, np.concatenate(of_axis), starts, base, out, axis)
        parts = [partial(look_up, *given, begin, min(begin + _PART, len(flat))) for begin in range(0, len(flat), _PART)]
        if not all(run_all(parts, thread_count())):
            return None
    return out.reshape(*ix.shape[:-1], len(tables))


_LARGEST = 2**63 - 1
_LINE_BITS = 8 * 64
_BY_WEIGHT = operator.attrgetter("weight", "dim", "div")


class IndexRangeError(UsageError, IndexError):
    """An index or an address outside the array."""


@dataclass(frozen=True)
class Axis:
    """One named axis: the sum of coordinate * stride over ``terms`` (coordinate, stride), in 0..extent-1."""

    name: str
    terms: tuple[tuple[int, int], ...]
    extent: int


def row_major_axis(name: str, coordinates: Sequence[int], sizes: Sequence[int], align: int = 1) -> Axis:
    """The axis that linearises ``coordinates`` (places into ``sizes``) row-major; extent rounded up to ``align``."""
    terms, stride = [], 1
    for c in reversed(coordinates):
        terms.append((c, stride))
        stride *= sizes[c]
    return Axis(name, tuple(reversed(terms)), -(-stride // align) * align)


@dataclass(frozen=True)
class AddressMap:
    """Where every element of an array lives: the arithmetic of an :class:`IndexMap`, which adds data and pictures.

    ==============  =========================================================================
    ``dtype``       XLA's name of the element type
    ``shape``       logical sizes; a bounded dynamic dim counts as its bound
    ``steps``       the program that turns an index into coordinates
    ``axis_terms``  the linearisation of the coordinates, one :class:`Axis` per named axis
    ``origin``      the first index of each dim (zeros, but for a segment of a larger tensor)
    ``slot_bits``   bits one element takes in memory
    ==============  =========================================================================

    Offsets and axis values count elements, not bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    steps: tuple[Step, ...]
    axis_terms: tuple[Axis, ...]
    origin: tuple[int, ...] = ()
    slot_bits: int = 0

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes an element's address has."""
        return tuple(axis.name for axis in self.axis_terms)

    @cached_property
    def step_sizes(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the coordinates before the first step, and behind every step."""
        sizes = [self.shape]
        for step in self.steps:
            sizes.append(step.sizes(sizes[-1]))
        return tuple(sizes)

    @cached_property
    def physical_shape(self) -> tuple[int, ...]:
        """Sizes with all padding: tile by tile for a one-axis map, (npus, offsets) and the like for several axes."""
        self.require_static()
        if len(self.axis_terms) == 1:
            return self.step_sizes[-1]
        return tuple(axis.extent for axis in self.axis_terms)

    @property
    def num_elements(self) -> int:
        """Elements of the logical array."""
        self.require_static()
        return math.prod(self.shape)

    @cached_property
    def num_slots(self) -> int:
        """Places for elements, padding included."""
        self.require_static()
        return math.prod(axis.extent for axis in self.axis_terms) if self.num_elements else 0

    @property
    def size_bytes(self) -> int:
        """Bytes in memory with all padding (a bounded dynamic dim counts as its bound)."""
        return -(-self.num_slots * self.element_bits // 8)

    @property
    def data_bytes(self) -> int:
        """Bytes of the elements alone, all their copies."""
        copies: int = self.replicas
        return -(-self.num_elements * copies * min(self.element_bits, type_bits(self.dtype)) // 8)

    @property
    def element_bits(self) -> int:
        """Bits one element takes in memory."""
        return self.slot_bits or type_bits(self.dtype)

    @property
    def padding_ratio(self) -> float:
        """size_bytes / data_bytes; 1.0 for an empty array."""
        return self.size_bytes / self.data_bytes if self.data_bytes else 1.0

    @property
    def inner_axes(self) -> tuple[Axis, ...]:
        """The axes inside one memory: the only axis, or those behind the NPU, page or shard."""
        return self.axis_terms[-1:] if len(self.axis_terms) == 1 else self.axis_terms[1:]

    @property
    def memory_slots(self) -> int:
        """Places for elements in one memory: see :attr:`inner_axes`."""
        return math.prod(axis.extent for axis in self.inner_axes)

    @property
    def first_index(self) -> tuple[int, ...]:
        """The first index of each dim."""
        return self.origin or (0,) * self.rank

    # What only some kinds of layouts have; words and pictures ask for it.

    replicas: ClassVar[Any] = 1
    """How many places hold every element: of a mesh, devices that hold the same shard."""
    outer_coordinates: ClassVar[Any] = 0
    """How many coordinates in front of the tiles' say the device; 0 without a mesh."""
    memory_space: ClassVar[Any] = 0
    """The memory it lies in, n of S(n); 0 is the default one."""
    metadata_prefix: ClassVar[Any] = 0
    """Bytes in front of the data that offsets and sizes do not count."""
    tiles: ClassVar[Any] = ()
    """Tile levels, outermost first; only XLA's layouts have any."""
    page_elements: ClassVar[Any] = 0
    """Elements of one page, padding included; 0 without pages."""
    level_names: ClassVar[Any] = ()
    """What the levels are called that cut the array into blocks, outermost first: tiles, or pages and lines."""
    coloured_dims: ClassVar[Any] = MappingProxyType({})
    """Dims that pictures can colour by, each with its name; the first is what they show unless asked."""
    folds: ClassVar[Any] = ()
    """Steps at which pictures of a memory fold it or rule it, (name, slots), the longest first."""
    first_npu: ClassVar[Any] = None
    """The NPU of the first channel; None without NPUs."""
    step_levels: ClassVar[Any] = None
    """The tile level each step belongs to (0: before the tiles); None where the steps are not those of tiles."""
    scrambles: ClassVar[Any] = False
    """Whether offsets are no sum of coordinates and strides: CuTe's swizzles."""

    def where(self, *index: Any) -> list[tuple[int, ...]]:
        """All places that hold an element."""
        return [tuple(self.address(*index).values())]

    def first_copy(self, value: Any) -> Any:
        """The value on the first axis of the first place that holds what stands at this one."""
        return value

    def part_names(self, at: int) -> tuple[str, str] | None:
        """What the quotient and the remainder of the cut at step ``at`` are; None for the usual words."""
        return None

    def address_text(self, axis: str, arithmetic: str) -> str:
        """The arithmetic of an axis, as it is to be read."""
        return arithmetic

    @property
    def line_elements(self) -> int:
        """Elements of one cache line of 64 bytes; 0 where such lines cut elements."""
        bits = self.element_bits
        return _LINE_BITS // bits if bits and _LINE_BITS % bits == 0 else 0

    def scrambled(self, value: Any) -> Any:
        """The value on the last axis that a sum of coordinates and strides comes to."""
        return value

    def unscrambled(self, value: Any) -> Any:
        """The inverse of :meth:`scrambled`."""
        return value

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The names of the logical dims."""
        return tuple(f"d{k}" for k in range(self.rank))

    @property
    def particulars(self) -> dict[str, Any]:
        """What only this kind of layout has, as plain values."""
        facts: dict[str, Any] = {"axes": {axis.name: axis.extent for axis in self.axis_terms}}
        if len(self.axes) > 1:
            facts[f"bytes_per_{self.axes[0]}"] = -(-self.memory_slots * self.element_bits // 8)
        return facts

    @cached_property
    def strides(self) -> tuple[int, ...] | None:
        """Elements from one index to the next along every dim; None where a dim is cut, or with several axes.

        >>> from tilewright.layout import parse
        >>> parse("f32[2,2,3,2]").strides, parse("f32[8,256]{1,0:T(8,128)}").strides
        ((12, 6, 2, 1), None)
        """
        if len(self.axis_terms) != 1 or self.origin or self.scrambles or not self.is_static:
            return None
        first = self.steps[0] if self.steps else Permute(tuple(range(self.rank)))
        if isinstance(first, Permute) and len(self.steps) <= 1:  # so that dims of size 1 have theirs too
            order = first.order
            by_dim = {order[c]: stride for c, stride in self.axis_terms[0].terms}
            return tuple(by_dim.get(dim, 0) for dim in range(self.rank))
        if self.digits is None:
            return None
        strides = []
        for dim, size in enumerate(self.shape):
            digits = [digit for digit in self.digits[self.axes[0]].digits if digit.dim == dim]
            if digits and not is_chain(digits, size):
                return None
            strides.append(min((digit.weight for digit in digits), default=0))
        return tuple(strides)

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The numpy type of one element."""
        return numpy_dtype(self.dtype)

    @property
    def is_static(self) -> bool:
        """Whether it has addresses: see :meth:`require_static`."""
        try:
            self.require_static()
        except UnsupportedError:
            return False
        return True

    def require_static(self) -> None:
        """Raises :class:`UnsupportedError` where a dim has no bound."""
        if UNBOUNDED in self.shape:
            raise UnsupportedError(f"{self} has an unbounded dim '?', so it has no addresses", how="give a bound '<=n'")

    def _require_int64(self) -> None:
        self.require_static()
        if any(axis.extent > _LARGEST for axis in self.axis_terms):
            raise UnsupportedError(f"{self} has more places than 64 bits count", how="ask for one element at a time")

    def _check(self, index: Sequence[int]) -> list[int]:
        self.require_static()
        if len(index) != self.rank:
            raise IndexRangeError(f"{len(index)} indices for {self.rank} dims", where=str(self))
        shifted = []
        for dim, (value, first, size) in enumerate(zip(map(_whole, index), self.first_index, self.shape, strict=True)):
            if not first <= value < first + size:
                bounds = f"which runs from {first} to {first + size - 1}" if size else "which is empty"
                raise IndexRangeError(f"index {value} is outside dim {dim}, {bounds}", where=str(self))
            shifted.append(value - first)
        return shifted

    def _axis_values(self, coordinates: Sequence[Any]) -> list[Any]:
        values = coordinates
        for step, sizes in zip(self.steps, self.step_sizes, strict=False):
            values = step.forward(list(values), sizes)
        sums = [sum((values[c] * stride for c, stride in axis.terms), start=0) for axis in self.axis_terms]
        return [*sums[:-1], self.scrambled(sums[-1])] if self.scrambles else sums

    def address(self, *index: int) -> dict[str, int]:
        """The place of one element on every axis, exact Python integers.

        >>> from tilewright.layout import lanes
        >>> lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64, start=2).address(0, 2, 0, 0)
        {'npu': 0, 'offset': 32}
        """
        return dict(zip(self.axes, self._axis_values(self._check(index)), strict=True))

    def offset(self, *index: int) -> int:
        """The place of one element, counted in elements (maps with one axis).

        >>> from tilewright.layout import parse
        >>> parse("f32[3,5]{1,0:T(2,2)}").offset(2, 3)
        17
        """
        if len(self.axis_terms) != 1:
            raise UsageError(f"{self} has the axes {', '.join(self.axes)}", how="use .address(...)")
        return int(self._axis_values(self._check(index))[0])

    @cached_property
    def tables(self) -> list[list[np.ndarray[Any, Any]]] | None:
        """Per axis and dim, what every index adds to the place; None where the map is not such a sum, or too large."""
        return dim_tables(self.digits, self.shape)

    def addresses(self, indices: Any) -> np.ndarray[Any, Any]:
        """Places of many elements: int64[..., rank] -> int64[..., axes], in the order of ``.axes``."""
        self._require_int64()
        ix = array_of(indices, "indices")
        if ix.dtype.kind not in "iu" or ix.ndim == 0 or ix.shape[-1] != self.rank:
            raise UsageError(f"indices must be integers of shape [..., {self.rank}], got {ix.dtype}{list(ix.shape)}")
        if ix.dtype == np.uint64 and ix.size and ix.max() > _LARGEST:
            raise IndexRangeError(f"index {ix.max()} is outside every dim", where=str(self))
        ix = ix.astype(np.int64, copy=False)
        if self.origin:
            ix = ix - np.array(self.origin, np.int64)
        places = None
        if self.tables is not None and self.digits is not None:
            places = places_by_tables(ix, self.shape, self.digits, self.tables)
        if places is None and (outside := first_outside(ix, self.shape)) is not None:
            value, dim = int(ix[tuple(outside)]), int(outside[-1])
            raise IndexRangeError(f"index {value + self.first_index[dim]} is outside dim {dim}", where=str(self))
        if places is None:
            values = self._axis_values([ix[..., d] for d in range(self.rank)])
            places = np.stack([np.broadcast_to(value, ix.shape[:-1]) for value in values], axis=-1)
        return places

    def offsets(self, indices: Any) -> np.ndarray[Any, Any]:
        """Places of many elements on a one-axis map: int64[..., rank] -> int64[...]."""
        if len(self.axis_terms) != 1:
            raise UsageError(f"{self} has the axes {', '.join(self.axes)}", how="use .addresses(...)")
        places: np.ndarray[Any, Any] = self.addresses(indices)[..., 0]
        return places

    @cached_property
    def injective(self) -> bool:
        """Whether no two elements share a place (free strides may overlap)."""
        return not all_positive(self.shape) or all(is_injective(self.terms_of(axis)) for axis in self.axis_terms)

    def require_injective(self) -> None:
        """Raises :class:`UsageError` where several elements share a place."""
        if not self.injective:
            raise UsageError(f"{self} puts several elements in one place, so a place has no one index")

    def index(self, *place: int) -> tuple[int, ...] | None:
        """The element at a place (axis values in the order of ``.axes``), or None for padding.

        >>> from tilewright.layout import parse
        >>> tiled = parse("f32[3,5]{1,0:T(2,2)}")
        >>> tiled.index(17), tiled.index(9)
        ((2, 3), None)
        """
        self.require_static()
        self.require_injective()
        if len(place) != len(self.axis_terms):
            raise IndexRangeError(f"{len(place)} values for the axes {', '.join(self.axes)}", where=str(self))
        choices = []
        for axis, value in zip(self.axis_terms, map(_whole, place), strict=True):
            if not 0 <= value < axis.extent:
                memory = f"the memory, which runs from 0 to {axis.extent - 1}"
                raise IndexRangeError(f"{axis.name} {value} is outside {memory}", where=str(self))
            plain = self.unscrambled(value) if axis is self.axis_terms[-1] else self.first_copy(value)
            choices.append(solutions(plain, self.terms_of(axis)))
        for picked in product(*choices):  # one choice at most, but for free strides
            coordinates = [0] * len(self.step_sizes[-1])
            for axis, values in zip(self.axis_terms, picked, strict=True):
                for (c, _), value in zip(axis.terms, values, strict=True):
                    coordinates[c] = value
            index, inside = self._backwards(coordinates)
            if inside:
                return tuple(int(v) + first for v, first in zip(index, self.first_index, strict=True))
        return None

    def terms_of(self, axis: Axis) -> list[tuple[int, int]]:
        """(size, stride) of an axis's coordinates."""
        return [(self.step_sizes[-1][c], stride) for c, stride in axis.terms]

    def _backwards(self, coordinates: list[Any]) -> tuple[list[Any], Any]:
        inside: Any = True
        for step, sizes in zip(reversed(self.steps), reversed(self.step_sizes[:-1]), strict=True):
            coordinates, ok = step.inverse(coordinates, sizes)
            inside = inside & ok
        return coordinates, inside & all_positive(self.shape)

    def indices(self, places: Any) -> np.ndarray[Any, Any]:
        """The elements at many places: int64[..., axes] (or [...] for one axis) -> int64[..., rank], -1 for padding."""
        self._require_int64()
        self.require_injective()
        numbers = array_of(places, "places")
        if numbers.size and numbers.dtype.kind not in "iu":
            raise UsageError(f"places must be whole numbers, got {numbers.dtype}{list(numbers.shape)}")
        at = numbers.astype(np.int64)
        count = len(self.axis_terms)
        at = at[..., None] if count == 1 and (at.ndim < 2 or at.shape[-1] != 1) else at
        if at.ndim == 0 or at.shape[-1] != count:
            raise UsageError(f"places must have the shape [..., {count}], got {list(at.shape)}")
        coordinates: list[Any] = [np.zeros(at.shape[:-1], np.int64) for _ in self.step_sizes[-1]]
        inside: Any = np.ones(at.shape[:-1], bool)
        for a, axis in enumerate(self.axis_terms):
            value = at[..., a]
            inside &= (value >= 0) & (value < axis.extent)
            plain = self.unscrambled(value) if a == count - 1 else self.first_copy(value)
            decoded = decode_many(plain, self.terms_of(axis))
            if decoded is None:
                return self._indices_by_table(at)
            digits, ok = decoded
            inside &= ok
            for (c, _), digit in zip(axis.terms, digits, strict=True):
                coordinates[c] = digit
        values, ok = self._backwards(coordinates)
        return self._stack(values, inside & ok, at.shape[:-1])

    def _stack(self, values: Sequence[Any], inside: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        out = np.full((*shape, self.rank), -1, np.int64)
        for d, (value, first) in enumerate(zip(values, self.first_index, strict=True)):
            out[..., d] = np.where(inside, value + first, -1)
        return out

    def _indices_by_table(self, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The inverse by enumeration, for free strides that interleave."""
        extents = tuple(axis.extent for axis in self.axis_terms)
        if max(self.num_elements, self.num_slots) > _TABLE_ENTRIES:
            raise UnsupportedError(f"{self} interleaves free strides and is too large to invert as a whole")
        owner = np.full(self.num_slots, -1, np.int64)
        everything = np.arange(self.num_elements)
        owner[self.slots_of(everything)] = everything
        inside: Any = ((at >= 0) & (at < np.array(extents))).all(axis=-1)
        number = owner[np.ravel_multi_index(tuple(np.moveaxis(np.where(inside[..., None], at, 0), -1, 0)), extents)]
        inside &= number >= 0
        return self._stack(np.unravel_index(np.maximum(number, 0), self.shape), inside, at.shape[:-1])

    def indices_of(self, numbers: np.ndarray[Any, Any], order: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """int64[..., rank]: the elements of these numbers, counted with the dims read in ``order`` (as they are)."""
        indices = np.empty((*numbers.shape, self.rank), np.int64)
        for d in reversed(range(self.rank) if order is None else order):
            numbers, indices[..., d] = numbers // self.shape[d], numbers % self.shape[d]
        return indices + np.array(self.first_index, np.int64)

    def numbers_of(self, indices: np.ndarray[Any, Any], order: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """The inverse of :meth:`indices_of`."""
        numbers = np.zeros(indices.shape[:-1], np.int64)
        for d in range(self.rank) if order is None else order:
            numbers = numbers * self.shape[d] + indices[..., d] - self.first_index[d]
        return numbers

    def slots_of(self, numbers: np.ndarray[Any, Any], order: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
        """The slots of these elements in a packed buffer, which holds the axes row-major."""
        places = self.addresses(self.indices_of(numbers, order))
        slots: np.ndarray[Any, Any] = np.zeros(numbers.shape, np.int64)
        for a, axis in enumerate(self.axis_terms):
            slots = slots * axis.extent + places[..., a]
        return slots

    def place_text(self, place: Sequence[int]) -> str:
        """A place in words: ``npu 3, offset 64``."""
        return ", ".join(f"{name} {value}" for name, value in zip(self.axes, place, strict=True))

    @cached_property
    def digits(self) -> dict[str, Line] | None:
        """The normal form per axis, or None where none exists (a ``*`` that the tile does not divide).

        >>> from tilewright.layout import parse
        >>> [(d.dim, d.weight, d.div, d.mod) for d in parse("f32[3,5]{1,0:T(2,2)}").digits["offset"].digits]
        [(1, 1, 1, 2), (0, 2, 1, 2), (1, 4, 2, 0), (0, 12, 2, 0)]
        """
        self.require_static()
        shape = enumerate(self.shape)
        lines: list[Line | None] = [Line(0, (Digit(d, 1, 1, 0, n),) if n > 1 else ()) for d, n in shape]
        for step, sizes in zip(self.steps, self.step_sizes, strict=False):
            lines = step.digits(lines, sizes)
        forms = {}
        for axis in self.axis_terms:
            base, digits = 0, list[Digit]()
            for c, stride in axis.terms:
                line = lines[c]
                if line is None:
                    return None
                base += line.base * stride
                digits += scale_digits(line.digits, stride)
            digits.sort(key=_BY_WEIGHT)
            forms[axis.name] = Line(base, tuple(digits))
        return forms


def _whole(value: Any) -> int:
    """The value as a Python integer; a fraction is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise IndexRangeError(f"{value!r} is not a whole number") from None


def all_positive(shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape has any element."""
    return all(n > 0 for n in shape)

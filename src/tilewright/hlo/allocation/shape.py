"""One array of a message: which tile pads which dims, what that comes to, and the changes that save bytes.

All bytes are recomputed from the layouts that they name.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from msgspec import to_builtins

from tilewright.errors import UsageError
from tilewright.hlo.allocation.reading import Allocation, StatedSize
from tilewright.layout import TensorLayout, parse, preset, tiled
from tilewright.render import bytes_text, count_text
from tilewright.render.formats import ratio_text

LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class PaddedDim:
    """A dim that its tile pads: ``size`` becomes ``padded``, the next multiple of ``tile``.

    ``dim`` is its number in the shape, None for one that the tile adds to a shape of lower rank.
    """

    dim: int | None
    size: int
    padded: int
    tile: int

    def __str__(self) -> str:
        name = "a dim the shape has not" if self.dim is None else f"dim {self.dim}"
        return f"{name} from {count_text(self.size)} to {count_text(self.padded)}"


@dataclass(frozen=True)
class PaddedShape:
    """A shape with its bytes, recomputed from its layout."""

    shape: str  # its text with the layout that was used
    assumed: bool  # the layout's tiles are not in the message: they are the ones that explain its size
    copies: int  # how many of it the allocation holds (a double buffered window: 2)
    data_bytes: int  # bytes of the elements of all copies
    bytes: int  # with padding
    dims: tuple[PaddedDim, ...]  # the dims that are padded
    rest: float  # factor of the padding that no dim explains: wide elements, packing, alignment
    agrees: bool | None  # whether the message states the same bytes; None where it states none

    @property
    def padding(self) -> int:
        """Bytes that hold no data."""
        return self.bytes - self.data_bytes

    @property
    def factor(self) -> float:
        """Bytes over bytes of data."""
        return self.bytes / self.data_bytes if self.data_bytes else 1.0

    @property
    def layout(self) -> TensorLayout:
        """The layout that ``shape`` writes."""
        return array_of(self.shape)

    @property
    def words(self) -> str:
        """Why it is padded, "" where it is not."""
        if self.padding <= 0:
            return ""
        layout = self.layout
        tiles = "".join(f"({','.join('*' if t < 0 else str(t) for t in tile)})" for tile in layout.tiles)
        parts = [f"tile {tiles} pads {' and '.join(map(str, self.dims))}"] if self.dims else []
        if self.copies * layout.element_bits * layout.num_elements > 8 * self.data_bytes:
            parts.append(f"an element takes {layout.element_bits} bits")
        elif self.rest > 1:
            parts.append(f"{'the rest' if parts else f'tile {tiles}'} is padded {ratio_text(self.rest)}")
        text = ", ".join(parts)
        return f"{text}: {bytes_text(self.padding)} without data"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "shape": self.shape,
            "tiles_assumed": self.assumed,
            "copies": self.copies,
            "data_bytes": self.data_bytes,
            "bytes": self.bytes,
            "padding_bytes": self.padding,
            "factor": self.factor,
            "padded_dims": list(to_builtins(self.dims)),
            "agrees": self.agrees,
            "why": self.words,
        }


def array_of(text: str) -> TensorLayout:
    """The layout of one array.

    Raises :class:`ParseError` for a text that is none, :class:`UsageError` for a tuple or an array without a size.
    """
    layout = parse(text)
    if not isinstance(layout, TensorLayout):
        raise UsageError("it is a tuple, which is a table of pointers")
    if any(size < 0 for size in layout.shape):
        raise UsageError("a dim is unbounded")
    if not layout.element_bits:
        raise UsageError(f"a {layout.dtype} takes no memory")
    return layout


def padded_shape(text: str, stated: StatedSize | None = None, copies: int = 1) -> PaddedShape:
    """The bytes of a shape as a message writes it; ``stated`` is the size it gives for ``copies`` of it.

    Messages of vector memory, and old ones of any, leave the tiles out: then those are taken that come to the stated
    size, the registers' own first. Raises what :func:`array_of` raises.

    >>> found = padded_shape("s32[8388608,8,4]{2,1,0:T(8,128)}")
    >>> found.bytes, found.factor, str(found.dims[0])
    (34359738368, 32.0, 'dim 2 from 4 to 128')
    """
    layout = array_of(text)
    assumed = False
    if not layout.tiles and layout.shape and stated and not stated.covers(copies * layout.size_bytes):
        for candidate in _candidates(layout):
            if stated.covers(copies * candidate.size_bytes):
                layout, assumed = candidate, True
                break
    dims = tuple(_padded_dims(layout))
    padded, sizes = math.prod(dim.padded for dim in dims), math.prod(dim.size for dim in dims)
    size, data = layout.size_bytes, layout.data_bytes
    rest = size * sizes / (data * padded) if data else 1.0
    agrees = None if stated is None else stated.covers(copies * size)
    return PaddedShape(str(layout), assumed, copies, copies * data, copies * size, dims, rest, agrees)


def packing_of(layout: TensorLayout) -> int:
    """Elements that share a 32-bit word."""
    return max(1, 32 // layout.element_bits)


def _candidates(layout: TensorLayout) -> Iterator[TensorLayout]:
    """The same array in the tiles a TPU uses."""
    packing = packing_of(layout)
    inner = [(packing, 1)] if packing > 1 else []
    if len(layout.shape) == 1:
        for length in (1024, 128 * packing, 256, 512, 1024 * packing):
            yield _with_tiles(layout, [(length,), (LANES,), *inner] if packing > 1 else [(length,)])
        return
    for rows in (SUBLANES, SUBLANES * packing, 4, 2, 1):
        if rows >= packing or rows == SUBLANES:
            yield _with_tiles(layout, [(rows, LANES), *inner])


def _with_tiles(layout: TensorLayout, tiles: list[tuple[int, ...]]) -> TensorLayout:
    bits, memory = layout.text.element_bits, layout.memory_space
    return tiled(layout.shape, layout.dtype, layout.minor_to_major, tiles, element_bits=bits, memory_space=memory)


def _padded_dims(layout: TensorLayout) -> Iterator[PaddedDim]:
    """What the outermost tile pads, the most minor dim first; nothing where it merges dims."""
    if not layout.tiles or any(t < 0 for t in layout.tiles[0]):
        return
    order = layout.minor_to_major
    for place, tile in enumerate(reversed(layout.tiles[0])):
        dim = order[place] if place < len(order) else None
        size = layout.shape[dim] if dim is not None else 1
        padded = -(-size // tile) * tile
        if padded != size and size:
            yield PaddedDim(dim, size, padded, tile)


# Changes to one array that save bytes, each with its bytes recomputed from the layouts it names.

Explained: TypeAlias = tuple[Allocation, PaddedShape]
"""An allocation and its shape."""

Change: TypeAlias = tuple[str, TensorLayout | None, int, str]
"""What a fix makes of an array: its kind, the layout then, how many are left, what to do."""

KINDS = ("copy", "recompute", "checkpoint", "order", "merge", "wider", "dtype")
_MOST_DIMS = 16
_NARROWER = {"f64": "f32", "f32": "bf16", "s64": "s32", "u64": "u32", "s32": "s16", "u32": "u16", "c128": "c64"}
_SAME_WIDTH = {4: "u4", 8: "u8", 16: "u16", 32: "u32", 64: "u64", 128: "c128"}
_BUILT = ("broadcast", "iota", "one_hot", "OneHot")


@dataclass(frozen=True)
class Fix:
    """A change that saves bytes: those of its two layouts; nothing else is stored."""

    kind: str  # of KINDS: without the copy, recompute, checkpoint, order of dims, merged dims, wider minor dim, dtype
    allocations: tuple[int, ...]  # numbers of the allocations it is about, all of one shape
    before: str  # the shape as it is
    arrays_before: int  # how many there are
    after: str  # the shape afterwards, "" where none is left
    arrays_after: int
    text: str  # what to do

    @property
    def bytes_before(self) -> int:
        """Bytes of all arrays before the change."""
        return self.arrays_before * array_of(self.before).size_bytes

    @property
    def bytes_after(self) -> int:
        """Bytes of all arrays after the change."""
        return self.arrays_after * array_of(self.after).size_bytes if self.arrays_after else 0

    @property
    def saved(self) -> int:
        """Bytes that it saves where all these arrays live at once."""
        return self.bytes_before - self.bytes_after

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self),
            "allocations": list(self.allocations),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "saved_bytes": self.saved,
        }


def find_fixes(explained: Sequence[Explained], space: str = "hbm") -> tuple[Fix, ...]:
    """What saves bytes, most first. Those of one allocation are alternatives."""
    groups: dict[tuple[object, ...], list[Explained]] = defaultdict(list)
    for allocation, shape in explained:
        groups[shape.shape, shape.copies, _cause(allocation)].append((allocation, shape))
    found = [fix for group in groups.values() for fix in _of_group(group, space) if fix.saved > 0]
    return tuple(sorted(found, key=lambda fix: (-fix.saved, KINDS.index(fix.kind), fix.allocations)))


def saved_by_best(fixes: Iterable[Fix]) -> int:
    """Bytes that the best fix of every allocation saves; alternatives are counted once."""
    best: dict[tuple[int, ...], int] = {}
    for fix in fixes:
        best[fix.allocations] = max(best.get(fix.allocations, 0), fix.saved)
    return sum(best.values())


def _cause(allocation: Allocation) -> str:
    """Why it exists, as far as its label and operator tell: a copy, something built, kept for the way back.

    A scoped allocation is no array of the program but room for an instruction at work.
    """
    if allocation.type == "scoped":
        return ""
    if allocation.label.opcode in ("copy", "copy-start"):
        return "copy"
    words = (allocation.label.opcode, allocation.op_type, allocation.op_name.rpartition("/")[2])
    if any(built in word for word in words for built in _BUILT):
        return "recompute"
    return "checkpoint" if "jvp(" in allocation.op_name else ""


def _of_group(group: list[Explained], space: str) -> Iterator[Fix]:
    shape = group[0][1]
    numbers = tuple(allocation.number for allocation, _ in group)
    arrays = len(group) * shape.copies
    seen = set()
    for kind, after, left, text in (*_of_cause(group), *_of_shape(shape.layout, shape.padding > 0, arrays, space)):
        fix = Fix(kind, numbers, shape.shape, arrays, "" if after is None else str(after), left, text)
        if (fix.after, left) not in seen:  # two ways to the same array
            yield fix
        seen.add((fix.after, left))


def _of_cause(group: list[Explained]) -> Iterator[Change]:
    allocation, shape = group[0]
    cause = _cause(allocation)
    if cause == "copy":
        yield "copy", None, 0, _without_copy(allocation, shape)
    elif cause == "recompute":
        one_hot = any("hot" in word.lower() for word in (allocation.op_type, allocation.op_name))
        how = "take rows by index instead of multiplying by it" if one_hot else "let it fuse into what reads it"
        yield "recompute", None, 0, f"do not keep it: {how}"
    elif cause == "checkpoint" and len(group) > 1:
        again = "; the compiler recomputes it already" if ".remat" in allocation.label.name else ""
        text = f"jax.checkpoint: recompute one at a time on the way back instead of keeping {len(group)}{again}"
        yield "checkpoint", shape.layout, shape.copies, text


def _of_shape(layout: TensorLayout, padded: bool, arrays: int, space: str) -> Iterator[Change]:
    if not 1 <= len(layout.shape) <= _MOST_DIMS or 0 in layout.shape or any(layout.text.dynamic):
        return
    with suppress(UsageError):  # padded in another order it would have more than 2**63 - 1 bytes
        changes = [*_reshaped(layout, space)] if padded else []
        yield from ((kind, after, arrays, text) for kind, after, text in changes)
    yield from (("dtype", after, arrays, text) for after, text in _narrower(layout))


def _without_copy(allocation: Allocation, shape: PaddedShape) -> str:
    name, order = allocation.label.name, _order_text(shape.layout)
    try:
        operand = array_of(allocation.label.operand) if allocation.label.operand else None
    except UsageError:
        operand = None
    if operand is not None and _order_text(operand) != order:
        return f"do without {name}: it only turns {_order_text(operand)} into {order}; compute in the order it comes in"
    return f"do without {name}: make its operand in the layout {order}, or compute in the order it comes in"


def _order_text(layout: TensorLayout) -> str:
    return str(layout).partition("]")[2]


# -- the same data in another shape ------------------------------------------------------------------------------------


Reshaped: TypeAlias = tuple[str, TensorLayout, str]
"""The kind of a fix, the layout then, what to do."""


def _reshaped(layout: TensorLayout, space: str) -> Iterator[Reshaped]:
    if len(layout.shape) > 1:
        after, order = _best_order(layout, space)
        sizes = layout.shape
        text = f"order the dims {','.join(map(str, order))}: dim {order[-1]} ({count_text(sizes[order[-1]])}) last"
        yield "order", after, text
        yield from _best_merge(layout, space)
    yield from _lanes_filled(layout, space)


def _laid_out(like: TensorLayout, sizes: Sequence[int], space: str) -> TensorLayout:
    """A row-major array of these sizes and the element type of ``like``, in the tiles its memory has."""
    rule = preset("tpu_vmem" if space == "vmem" else "tpu", sizes, _SAME_WIDTH.get(like.element_bits, like.dtype))
    bits, memory = like.text.element_bits, like.memory_space
    return tiled(sizes, like.dtype, None, rule.tiles, element_bits=bits, memory_space=memory)


def _best_order(layout: TensorLayout, space: str) -> tuple[TensorLayout, tuple[int, ...]]:
    """The order of the dims, most major first, that takes the fewest bytes; the two most minor decide it."""
    rank = len(layout.shape)
    pairs = [(minor, second) for minor in reversed(range(rank)) for second in reversed(range(rank)) if minor != second]
    orders = [(*(d for d in range(rank) if d not in pair), pair[1], pair[0]) for pair in pairs]
    laid = [(_laid_out(layout, [layout.shape[d] for d in order], space), order) for order in orders]
    return min(laid, key=lambda each: each[0].size_bytes)


def _best_merge(layout: TensorLayout, space: str) -> Iterator[Reshaped]:
    """Neighbouring dims made one, among them the last or the last but one: the fewest bytes, then the fewest dims."""
    sizes, rank = layout.shape, len(layout.shape)

    def laid(first: int, last: int) -> TensorLayout:
        one = math.prod(sizes[first : last + 1])
        return _laid_out(layout, (*sizes[:first], one, *sizes[last + 1 :]), space)

    merged = [(laid(first, last), first, last) for last in (rank - 1, rank - 2) for first in range(last)]
    for after, first, last in sorted(merged, key=lambda each: (each[0].size_bytes, each[2] - each[1]))[:1]:
        yield "merge", after, f"merge dims {first} {'and' if last == first + 1 else 'to'} {last}"


def _lanes_filled(layout: TensorLayout, space: str) -> Iterator[Reshaped]:
    """The fewest dims at the end whose elements fill whole rows of lanes, as one reshape to rows of them."""
    sizes = layout.shape
    ends = ((first, math.prod(sizes[first:])) for first in reversed(range(len(sizes))))
    for first, elements in [(first, elements) for first, elements in ends if elements % LANES == 0][:1]:
        new = (*sizes[:first], elements // LANES, LANES)
        if new != sizes:
            yield "wider", _laid_out(layout, new, space), f"fill the lanes: reshape to [{','.join(map(str, new))}]"


# -- a narrower element ------------------------------------------------------------------------------------------------


def _narrower(layout: TensorLayout) -> Iterator[tuple[TensorLayout, str]]:
    if layout.text.element_bits * layout.num_elements > 8 * layout.data_bytes:  # wider in memory than its type
        plain = "s8" if layout.dtype == "pred" else layout.dtype
        yield _retyped(layout, plain), f"keep it as {plain}, not with {layout.element_bits} bits an element"
    elif layout.dtype in _NARROWER:
        narrow = _NARROWER[layout.dtype]
        limits = " where the values fit" if narrow[0] in "su" else ""
        yield _retyped(layout, narrow), f"as {narrow}{limits}"


def _retyped(layout: TensorLayout, dtype: str) -> TensorLayout:
    plain = tiled(layout.shape, dtype, layout.minor_to_major)
    packing = packing_of(plain)
    outer = layout.tiles[0] if layout.tiles else ()
    tiles: list[tuple[int, ...]] = []
    if len(outer) == 2 and outer[0] > 0:
        tiles = [(max(outer[0], min(packing, SUBLANES)), outer[1])]
        tiles += [(packing, 1)] if packing > 1 else []
    elif outer:
        tiles = [outer]
    return tiled(layout.shape, dtype, layout.minor_to_major, tiles, memory_space=layout.memory_space)

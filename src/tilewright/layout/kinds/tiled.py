"""XLA's tiled layouts as index maps (source: XLA's tiled layout document).

A tile cuts the most minor dims: each d becomes ceil(d/t) tiles of t; a second tile sees, and may cut, both the tiles
and the places inside them. At the end everything is linearised row-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from tilewright.errors import ParseError, UnsupportedError, UsageError
from tilewright.extras import need
from tilewright.layout.index.address_map import Axis, row_major_axis
from tilewright.layout.index.bitcast import is_bitcast
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Merge, NewDim, Permute, Split, Step, sizes_behind
from tilewright.layout.index.types import TYPE_BITS, UNBOUNDED, dtype_name, text_of, to_ints, type_bits
from tilewright.layout.text import notation


def _tile_steps(tile: tuple[int, ...], rank: int) -> list[Step]:
    """The steps of one tile level on ``rank`` coordinates."""
    steps: list[Step] = [NewDim(0)] * (len(tile) - rank)
    first = max(rank - len(tile), 0)
    while notation.COMBINE in tile:
        place = tile.index(notation.COMBINE)
        steps.append(Merge(first + place))
        tile = (*tile[:place], *tile[place + 1 :])
    count = len(tile)
    steps += [Split(first + 2 * k, t) for k, t in enumerate(tile)]
    order = (*range(first), *(first + 2 * k for k in range(count)), *(first + 2 * k + 1 for k in range(count)))
    return steps if count == 1 else [*steps, Permute(order)]


def _program(text: notation.ArrayText) -> list[list[Step]]:
    """The steps that bring the dims in order, then those of each tile level."""
    rank = len(text.dims)
    major_first = tuple(reversed(text.minor_to_major))
    levels: list[list[Step]] = [[Permute(major_first)] if major_first != tuple(range(rank)) else []]
    for tile in text.tiles:
        levels.append(_tile_steps(tile, rank))
        rank = max(rank, len(tile)) + sum(-1 if t == notation.COMBINE else 1 for t in tile)
    return levels


_MOST_BITS = 4096  # Python prints no number of more than 4300 digits

_SCALAR = notation.ArrayText("f32", (), (), ())


@dataclass(frozen=True, repr=False)
class TensorLayout(IndexMap):
    """An array in XLA's layout: an :class:`IndexMap` with one axis, ``offset``, and its text.

    >>> layout = parse("bf16[4,8]{1,0:T(2,4)(2,1)}")
    >>> layout.offset(1, 0), layout.size_bytes, str(layout)
    (1, 64, 'bf16[4,8]{1,0:T(2,4)(2,1)}')
    """

    text: notation.ArrayText = _SCALAR

    @property
    def minor_to_major(self) -> tuple[int, ...]:
        """Dims from the fastest varying to the slowest."""
        return self.text.minor_to_major

    @property
    def tiles(self) -> tuple[tuple[int, ...], ...]:
        """Tile levels, outermost first; -1 stands for ``*``."""
        return self.text.tiles

    @property
    def memory_space(self) -> int:
        """n of S(n); 0 is the default memory (see :func:`tilewright.layout.memory_name`)."""
        return self.text.memory_space

    @property
    def metadata_prefix(self) -> int:
        """n of M(n): bytes of dynamic sizes in front of the data; offsets and sizes do not count them."""
        return self.text.metadata_prefix

    @property
    def level_names(self) -> tuple[str, ...]:
        """The tiles as XLA writes them, outermost first."""
        return tuple(f"T({notation.tile_text(tile)})" for tile in self.tiles)

    @property
    def step_levels(self) -> tuple[int, ...]:
        """The tile level each step belongs to, 0 before the tiles."""
        return tuple(level for level, steps in enumerate(_program(self.text)) for _ in steps)

    @property
    def particulars(self) -> dict[str, Any]:
        """Order, tiles, memory space, and what few texts have: bounds of dynamic dims, L, #, *, SC and M, a buffer."""
        text = self.text
        rarities: dict[str, Any] = {
            "strides": list(self.strides or ()),
            "sparse_levels": list(text.sparse_levels),
            "bounds": {f"d{k}": n for k, n in enumerate(text.dims) if text.dynamic[k] and n != UNBOUNDED},
            "tail_alignment": text.tail_alignment if text.tail_alignment > 1 else None,
            "index_type": text.index_type,
            "pointer_type": text.pointer_type,
            "splits": {f"d{self.minor_to_major[-1 - place]}": list(cuts) for place, cuts in text.splits},
            "metadata_prefix": self.metadata_prefix,
            "buffer": text.buffer,
            "longest_pieces": list(self.max_split_sizes) if text.splits else None,
        }
        return {
            "minor_to_major": list(self.minor_to_major),
            "tiles": [["*" if t == notation.COMBINE else t for t in tile] for tile in self.tiles],
            "memory_space": self.memory_space,
            **{key: value for key, value in rarities.items() if value},
        }

    def require_static(self) -> None:
        """Raises :class:`UnsupportedError` where a dim has no bound, or the array is sparse."""
        super().require_static()
        if self.text.sparse_levels:
            levels = ",".join(self.text.sparse_levels)
            raise UnsupportedError(
                f"{self} is sparse, D({levels}): where its elements lie depends on the data",
                how="leave D(..) out for the layout of the dense array",
            )

    def to_jax(self, sharding: Any = None) -> Any:
        """The layout as JAX's ``Format``, for jit's ``in_shardings`` and ``device_put``, on the first device.

        ``sharding`` says which other devices. S(5) becomes JAX's ``pinned_host``; :class:`UnsupportedError` where JAX
        has no word: L, SC, M, other memory spaces.

        >>> layout = parse("bf16[16,256]{1,0:T(8,128)(2,1)}")
        >>> layout.to_jax().layout.tiling
        ((8, 128), (2, 1))
        """
        need("jax", what="to_jax")
        from tilewright.layout.exchange.inside_jit import to_jax

        return to_jax(self, self.text, sharding)

    @property
    def is_untiled(self) -> bool:
        """Whether the tiles change nothing: a bitcast of the same dims and order without tiles."""
        return not self.tiles or is_bitcast(self, tiled(self.shape, self.dtype, self.minor_to_major))

    @property
    def max_split_sizes(self) -> tuple[int, ...]:
        """Per logical dim, the longest piece that SC(..) cuts it into (the dim itself where it is not cut)."""
        longest = list(self.shape)
        for place, cuts in self.text.splits:
            dim = tuple(reversed(self.minor_to_major))[place]
            marks = [0, *cuts, self.shape[dim]]
            longest[dim] = max(b - a for a, b in pairwise(marks))
        return tuple(longest)

    @cached_property
    def _written(self) -> str:
        return notation.format_shape(self.text)  # kept: a report names a layout in thousands of rows

    def __str__(self) -> str:
        return self._written

    def __repr__(self) -> str:
        return f"parse({str(self)!r})"


@dataclass(frozen=True)
class TupleLayout:
    """A tuple of layouts; in memory one pointer (8 bytes) per element."""

    elements: tuple[TensorLayout | TupleLayout, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tuple's own table of pointers."""
        return 8 * len(self.elements)

    def __str__(self) -> str:
        return notation.format_shape(self._text())

    def _repr_html_(self) -> str:
        from tilewright.layout.explain import tuple_html

        return tuple_html(self)

    def _text(self) -> notation.TupleText:
        return notation.TupleText(tuple(e.text if isinstance(e, TensorLayout) else e._text() for e in self.elements))


def from_text(text: notation.ArrayText) -> TensorLayout:
    """The index map of a shape that was read already."""
    bits = text.element_bits or type_bits(text.dtype)
    if UNBOUNDED in text.dims:
        return TensorLayout(text.dtype, text.dims, (), (Axis("offset", (), 0),), (), bits, text)
    steps = tuple(step for level in _program(text) for step in level)
    sizes = sizes_behind(steps, text.dims)
    offset = row_major_axis("offset", range(len(sizes)), sizes, text.tail_alignment)
    if offset.extent.bit_length() > _MOST_BITS:
        raise UnsupportedError(f"an array of {text.dtype} whose tiles pad it to more than 2**{_MOST_BITS} places")
    return TensorLayout(text.dtype, text.dims, steps, (offset,), (), bits, text)


def _wrap(text: notation.ArrayText | notation.TupleText) -> TensorLayout | TupleLayout:
    if isinstance(text, notation.TupleText):
        return TupleLayout(tuple(_wrap(e) for e in text.elements))
    return from_text(text)


def parse(text: str) -> TensorLayout | TupleLayout:
    """Read XLA's shape text, ``f32[3,5]{1,0:T(2,2)}`` or a tuple of such. Raises :class:`ParseError` with the column.

    What is copied out of a dump, a log or a message is read as well: a line with its name and opcode, JAX's and MLIR's
    types, a layout without a shape (its sizes are ``?``), JAX's ``Layout(...)``. A text of several lines that hold
    shapes, as an allocator's message, is read as the tuple of them (see :func:`find_shapes`).

    Upper-case element types (``F32[3,5]``, as documents write them) are read too; ``str()`` gives canonical text.

    >>> str(parse("F32[3, 5]"))
    'f32[3,5]{1,0}'
    >>> str(parse("  ROOT %copy.5 = f32[3,5]{0,1:T(8,128)} copy(%x), metadata={}"))
    'f32[3,5]{0,1:T(8,128)}'
    >>> str(parse("memref<16x256xbf16, #tpu.tiled<(8,128)(2,1),[2,1]>, #tpu.memory_space<vmem>>"))
    'bf16[16,256]{1,0:T(8,128)(2,1)S(1)}'
    """
    return _parse(text_of(text, "a shape's text"))


@lru_cache(maxsize=16384)
def _parse(text: str) -> TensorLayout | TupleLayout:
    try:
        value, end = parse_prefix(text)
        if end == len(text):
            return value
        how = "the order of a layout's tail is D T L # * E S SC P M" if "{" in text[:end] else ""
        failure = ParseError(notation.LEFT_OVER, text=text, column=end, how=how)
    except ParseError as error:
        failure = error
    found = _found(text, failure)
    return found[0].layout if len(found) == 1 else TupleLayout(tuple(shape.layout for shape in found))


@dataclass(frozen=True)
class FoundShape:
    """A shape found in a longer text.

    =========  =====================================================================================
    ``layout``  the layout of the array or tuple
    ``start``   its place in the text (cleaned of colours and escapes), up to ``end``
    ``name``    what its line calls it: ``copy.5``, ``allocation 3``; "" if nothing
    ``bare``    it is a layout without sizes and element type: the dims are ``?``, the type assumed
    =========  =====================================================================================
    """

    layout: TensorLayout | TupleLayout
    start: int
    end: int
    name: str = ""
    bare: bool = False


def _found(text: str, failure: ParseError | None) -> tuple[FoundShape, ...]:
    from tilewright.layout.text.pastes import read_paste  # most texts are shapes and need no search

    return tuple(
        FoundShape(_wrap(one.shape), one.start, one.end, one.name, one.bare) for one in read_paste(text, failure)
    )


def find_shapes(text: str) -> tuple[FoundShape, ...]:
    """The shapes that a pasted text is about: the result of an instruction, each allocation of a message.

    Raises :class:`ParseError` where there is none, naming the command that reads such a text if there is one.

    >>> [(found.name, str(found.layout)) for found in find_shapes("%a = f32[2]{0} add(%b)\\n%d = s8[3]{0} copy(%e)")]
    [('a', 'f32[2]{0}'), ('d', 's8[3]{0}')]
    """
    try:
        value, end = parse_prefix(text_of(text, "a text"))
    except ParseError as error:
        return _found(text, error)
    if end == len(text):
        return (FoundShape(value, 0, end),)
    return _found(text, ParseError(notation.LEFT_OVER, text=text, column=end))


def parse_prefix(text: str, start: int = 0) -> tuple[TensorLayout | TupleLayout, int]:
    """Read one shape at ``start`` of a longer text; returns it and the offset behind it and its blanks."""
    shape, end = notation.read_shape(text, start)
    return _wrap(shape), end


def tiled(
    shape: Sequence[int],
    dtype: Any,
    minor_to_major: Sequence[int] | None = None,
    tiles: Sequence[Sequence[int]] = (),
    *,
    element_bits: int = 0,
    memory_space: int = 0,
) -> TensorLayout:
    """A layout from its parts; without ``minor_to_major`` the last dim is the most minor, as in numpy's C order.

    In a tile ``"*"``, -1 or XLA's and JAX's -2**63 merges its dim with the next more minor one.

    >>> str(tiled((3, 5), "f32", tiles=[(2, 2)]))
    'f32[3,5]{1,0:T(2,2)}'
    """
    name, dims = dtype_name(dtype), to_ints(shape, "a size")
    if any(n < 0 for n in dims):
        raise UsageError(f"the sizes {dims} are not all from 0 up")
    if not notation.addressable(name, dims):
        raise UsageError(f"an array {name}{list(dims)} of more than 2**63 - 1 bytes")
    order = tuple(range(len(dims) - 1, -1, -1)) if minor_to_major is None else to_ints(minor_to_major, "a dim")
    if sorted(order) != list(range(len(dims))):
        raise UsageError(f"minor_to_major {order} is not an order of the dims of {dims}")
    marked = ([notation.combine_mark(t) for t in tile] if isinstance(tile, Sequence) else tile for tile in tiles)
    levels = tuple(to_ints(tile, "a tile dim") for tile in marked)
    if any(
        not tile
        or tile[-1] == notation.COMBINE
        or any(not 1 <= t <= notation.LARGEST and t != notation.COMBINE for t in tile)
        for tile in levels
    ):
        raise UsageError(f"layout has invalid tiles: {levels}")
    if element_bits < 0 or 0 < element_bits < TYPE_BITS[name]:
        raise UsageError(f"E({element_bits}) is narrower than the {TYPE_BITS[name]} bits of {name}")
    if not 0 <= memory_space <= notation.LAST_SPACE:
        raise UsageError(f"S({memory_space}): a memory space is a number from 0 to {notation.LAST_SPACE}")
    text = notation.ArrayText(
        name, dims, (False,) * len(dims), order, levels, element_bits=element_bits, memory_space=memory_space
    )
    return from_text(text)

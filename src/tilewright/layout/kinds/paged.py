"""Segments in pages and cache lines, and embedding tables over sparse cores.

A segment (source: the accelerator patent [59-77]; axes ``page`` and ``offset``) is exactly a tiled layout with two tile
levels, ``{...:T(P_2,P_1)(l_2,l_1)}``, whose outermost part counts pages; edge pages are allocated whole. The page
table, which gives a page its place, is a machine's state.

Row r of a table (source: Google's SparseCore guide; axes ``shard``, ``row`` and ``column``) with rotation ``rot`` and
row offset ``o`` over S shards lives on shard (r mod S + rot) mod S at local row r div S + o. Widths are padded to 8
floats (one 32-byte line), vocabularies to 8 rows on every shard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import UsageError
from tilewright.layout.index.address_map import Axis, row_major_axis
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Pad, Permute, Rotate, Split, Step, sizes_behind
from tilewright.layout.index.types import dtype_name, to_int, to_ints, type_bits


@dataclass(frozen=True, repr=False)
class PagedLayout(IndexMap):
    """A segment; ``page`` and ``line`` are sizes per logical dim, ``order`` the dims from fastest to slowest."""

    page: tuple[int, ...] = ()
    line: tuple[int, ...] = ()
    order: tuple[int, ...] = ()

    @property
    def num_pages(self) -> int:
        """Pages of the segment, edge pages included."""
        return self.axis_terms[0].extent

    @property
    def page_elements(self) -> int:
        return self.axis_terms[1].extent

    @property
    def line_elements(self) -> int:
        """Elements of one of its own cache lines."""
        return math.prod(self.line)

    @property
    def level_names(self) -> tuple[str, str]:
        return f"page ({_text(self.page)})", f"line ({_text(self.line)})"

    @property
    def particulars(self) -> dict[str, Any]:
        facts = {"page": list(self.page), "line": list(self.line), "order": list(self.order)}
        return super().particulars | facts | {"start": list(self.origin)}

    def __str__(self) -> str:
        return f"{self.dtype}[{_text(self.shape)}] in pages ({_text(self.page)}) of lines ({_text(self.line)})"


def _text(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


def _sizes(name: str, values: Sequence[int], rank: int) -> tuple[int, ...]:
    sizes = to_ints(values, f"a size of {name}=")
    if len(sizes) != rank or any(n < 1 for n in sizes):
        raise UsageError(f"{name}={sizes} needs {rank} sizes from 1 up, one per dim")
    return sizes


def paged(
    shape: Sequence[int],
    dtype: Any,
    page: Sequence[int] | None = None,
    line: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
    start: Sequence[int] | None = None,
) -> PagedLayout:
    """A segment of ``shape`` (sizes per dim, in elements) in pages and cache lines.

    ``order`` lists the dims from the fastest to the slowest (default: the last dim is the fastest, d1). ``line``
    defaults to 64 bytes along the fastest dim, ``page`` to the whole segment rounded up to lines; ``line`` must divide
    ``page``. ``start`` is the segment's first index in its tensor: indices then run from there.

    >>> segment = paged((8, 8), "s8", page=(4, 4), line=(1, 4))
    >>> segment.num_pages, segment.address(5, 6)
    (4, {'page': 3, 'offset': 6})
    """
    dims = to_ints(shape, "a size")
    rank = len(dims)
    if not rank or any(n < 0 for n in dims):
        raise UsageError(f"a segment has at least one dim and no negative size, got {dims}")
    fastest_first = to_ints(order, "a dim") if order is not None else tuple(range(rank - 1, -1, -1))
    if sorted(fastest_first) != list(range(rank)):
        raise UsageError(f"order={fastest_first} is not an order of {rank} dims")
    name = dtype_name(dtype)
    bits = type_bits(name)
    if line is None:
        lines = tuple(max(1, 512 // bits) if d == fastest_first[0] else 1 for d in range(rank))
    else:
        lines = _sizes("line", line, rank)
    if page is None:
        pages = tuple(max(1, -(-n // unit)) * unit for n, unit in zip(dims, lines, strict=True))
    else:
        pages = _sizes("page", page, rank)
    for d, (p, unit) in enumerate(zip(pages, lines, strict=True)):
        if p % unit:
            raise UsageError(f"the line size {unit} does not divide the page size {p} of dim {d}")
    origin = () if start is None else to_ints(start, "an index")
    if start is not None and (len(origin) != rank or any(n < 0 for n in origin)):
        raise UsageError(f"start={origin} needs {rank} values from 0 up, one per dim")
    major_first = tuple(reversed(fastest_first))
    steps: list[Step] = [Permute(major_first)]
    for k, d in enumerate(major_first):
        # Coordinate 3k: page number; then the line inside the page; then the element inside the line.
        steps += [Split(3 * k, pages[d]), Split(3 * k + 1, lines[d])]
    steps.append(Permute(tuple(3 * k + part for part in range(3) for k in range(rank))))
    sizes = sizes_behind(steps, dims)
    axes = row_major_axis("page", range(rank), sizes), row_major_axis("offset", range(rank, 3 * rank), sizes)
    return PagedLayout(name, dims, tuple(steps), axes, origin, bits, pages, lines, fastest_first)


@dataclass(frozen=True, repr=False)
class ShardedLayout(IndexMap):
    """A mod-sharded table [vocab, width]."""

    shards: int = 1
    rotation: int = 0
    row_offset: int = 0

    @property
    def rows_per_shard(self) -> int:
        """Rows of this table on one shard, padding included (without the row offset)."""
        return self.axis_terms[1].extent - self.row_offset

    @property
    def padded_width(self) -> int:
        """Columns of one row, padding included."""
        return self.axis_terms[2].extent

    @property
    def dim_names(self) -> tuple[str, str]:
        return ("row", "column")

    @property
    def particulars(self) -> dict[str, Any]:
        facts = {"rotation": self.rotation, "row_offset": self.row_offset, "rows_per_shard": self.rows_per_shard}
        return super().particulars | facts

    def __str__(self) -> str:
        vocab, width = self.shape
        return (
            f"{self.dtype}[{vocab},{width}] over {self.shards} shards (rotation {self.rotation}, row {self.row_offset})"
        )


def mod_sharded(
    vocab: int, width: int, shards: int, rotation: int = 0, row_offset: int = 0, dtype: Any = "f32"
) -> ShardedLayout:
    """Where the rows of a table [vocab, width] live over ``shards`` sparse cores.

    >>> table = mod_sharded(100, 12, shards=4, rotation=1, row_offset=16)
    >>> table.address(6, 3), table.physical_shape
    ({'shard': 3, 'row': 17, 'column': 3}, (4, 48, 16))
    """
    arguments = {"vocab": vocab, "width": width, "shards": shards, "rotation": rotation, "row_offset": row_offset}
    vocab, width, shards, rotation, row_offset = (to_int(value, name) for name, value in arguments.items())
    if vocab < 0 or width < 0 or shards < 1 or row_offset < 0:
        raise UsageError(f"a table needs vocab, width, row_offset from 0 and shards from 1 up, got {vocab=} {width=}")
    name = dtype_name(dtype)
    rows = -(-vocab // (8 * shards)) * 8
    columns = -(-width // 8) * 8
    steps: tuple[Step, ...] = (Split(0, shards), Rotate(1, rotation % shards), Pad(0, low=row_offset))
    axes = (
        Axis("shard", ((1, 1),), shards),
        Axis("row", ((0, 1),), row_offset + rows),
        Axis("column", ((2, 1),), columns),
    )
    dims = (vocab, width)
    return ShardedLayout(name, dims, steps, axes, (), type_bits(name), shards, rotation % shards, row_offset)

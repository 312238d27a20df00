"""Embedding tables over sparse cores (source: Google's SparseCore guide): axes ``shard``, ``row`` and ``column``.

Row r of a table with rotation ``rot`` and row offset ``o`` over S shards lives on shard (r mod S + rot) mod S at local
row r div S + o. Widths are padded to 8 floats (one 32-byte line), vocabularies to 8 rows on every shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import UsageError
from tilewright.layout.index.address_map import Axis
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.steps import Pad, Rotate, Split, Step
from tilewright.layout.index.types import dtype_name, type_bits, whole


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
        """The names of the logical dims."""
        return ("row", "column")

    @property
    def particulars(self) -> dict[str, Any]:
        """Rotation, row offset, and rows a shard."""
        facts = {"rotation": self.rotation, "row_offset": self.row_offset, "rows_per_shard": self.rows_per_shard}
        return super().particulars | facts

    def __str__(self) -> str:
        vocab, width = self.shape
        return (
            f"{self.dtype}[{vocab},{width}] over {self.shards} shards (rotation {self.rotation}, row {self.row_offset})"
        )

    def __repr__(self) -> str:
        return f"<{self}>"


def mod_sharded(
    vocab: int, width: int, shards: int, rotation: int = 0, row_offset: int = 0, dtype: Any = "f32"
) -> ShardedLayout:
    """Where the rows of a table [vocab, width] live over ``shards`` sparse cores.

    >>> table = mod_sharded(100, 12, shards=4, rotation=1, row_offset=16)
    >>> table.address(6, 3), table.physical_shape
    ({'shard': 3, 'row': 17, 'column': 3}, (4, 48, 16))
    """
    arguments = {"vocab": vocab, "width": width, "shards": shards, "rotation": rotation, "row_offset": row_offset}
    vocab, width, shards, rotation, row_offset = (whole(value, name) for name, value in arguments.items())
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

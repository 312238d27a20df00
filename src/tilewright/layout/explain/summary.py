"""The facts of a layout as plain values, for tables and JSON."""

from __future__ import annotations

from typing import Any

from tilewright.layout.draw.colours import slots_apart
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.kinds.lanes import LaneLayout
from tilewright.layout.kinds.paged import PagedLayout
from tilewright.layout.kinds.sharded import ShardedLayout
from tilewright.layout.kinds.tiled import TensorLayout, TupleLayout
from tilewright.layout.text.notation import UNBOUNDED


def summary(layout: IndexMap | TupleLayout) -> dict[str, Any]:
    """Sizes in elements and bytes, order, tiles, memory space, or lanes, pages, shards; a tuple's elements below it.

    An array with an unbounded dim has no sizes. What is absent in a text (bounds, L, SC, M ...) is absent here too.

    >>> from tilewright.layout import parse
    >>> facts = summary(parse("f32[3,5]{1,0:T(2,2)}"))
    >>> facts["physical_shape"], facts["slots"], facts["size_bytes"]
    ([2, 3, 2, 2], 24, 96)
    """
    if isinstance(layout, TupleLayout):
        elements = [summary(element) for element in layout.elements]
        return {"layout": str(layout), "size_bytes": layout.size_bytes, "elements": elements}
    facts = {
        "layout": str(layout),
        "dtype": layout.dtype,
        "shape": ["?" if n == UNBOUNDED else n for n in layout.shape],
        **_particulars(layout),
        "element_bits": layout.element_bits,
    }
    return facts if UNBOUNDED in layout.shape else facts | _sizes(layout)


def _sizes(layout: IndexMap) -> dict[str, Any]:
    """What an unbounded dim leaves open."""
    return {
        "physical_shape": list(layout.physical_shape),
        "slots": layout.num_slots,
        "padding_slots": layout.num_slots - layout.num_elements,
        "size_bytes": layout.size_bytes,
        "data_bytes": layout.data_bytes,
        "padding_ratio": layout.padding_ratio,
    }


def _rarities(layout: TensorLayout) -> dict[str, Any]:
    """What few texts have: bounds of dynamic dims, L, #, *, SC and M, and being a buffer."""
    text = layout.text
    found: dict[str, Any] = {
        "bounds": {f"d{k}": n for k, n in enumerate(text.dims) if text.dynamic[k] and n != UNBOUNDED},
        "tail_alignment": text.tail_alignment if text.tail_alignment > 1 else None,
        "index_type": text.index_type,
        "pointer_type": text.pointer_type,
        "splits": {f"d{layout.minor_to_major[-1 - place]}": list(cuts) for place, cuts in text.splits},
        "metadata_prefix": layout.metadata_prefix,
        "buffer": text.buffer,
    }
    if text.splits:
        found["longest_pieces"] = list(layout.max_split_sizes)
    return {key: value for key, value in found.items() if value}


def _particulars(layout: IndexMap) -> dict[str, Any]:
    """What only this kind of layout has."""
    if isinstance(layout, TensorLayout):
        return {
            "minor_to_major": list(layout.minor_to_major),
            "tiles": [["*" if t == -1 else t for t in tile] for tile in layout.tiles],
            "memory_space": layout.memory_space,
            **_rarities(layout),
        }
    found: dict[str, Any] = {"axes": {axis.name: axis.extent for axis in layout.axis_terms}}
    if len(layout.axes) > 1:
        found[f"bytes_per_{layout.axes[0]}"] = -(-slots_apart(layout) * layout.element_bits // 8)
    if isinstance(layout, LaneLayout):
        found |= {"mode": layout.mode, "start": layout.start}
        if layout.tensor != layout.shape:
            found["tensor"] = list(layout.tensor)
        found["strides"] = list(layout.strides)
    if isinstance(layout, PagedLayout):
        found |= {"page": list(layout.page), "line": list(layout.line), "order": list(layout.order)}
        found["start"] = list(layout.origin)
    if isinstance(layout, ShardedLayout):
        found |= {"rotation": layout.rotation, "row_offset": layout.row_offset}
        found["rows_per_shard"] = layout.rows_per_shard
    return found

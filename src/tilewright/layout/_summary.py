"""The facts of a layout as plain values, for tables and JSON."""

from __future__ import annotations

from typing import Any

from tilewright.layout._tiled import TensorLayout, TupleLayout

__all__ = ["summary"]


def summary(layout: TensorLayout | TupleLayout) -> dict[str, Any]:
    """Sizes in elements and bytes, order, tiles, memory space; a tuple's elements one level down.

    >>> from tilewright.layout import parse
    >>> facts = summary(parse("f32[3,5]{1,0:T(2,2)}"))
    >>> facts["physical_shape"], facts["slots"], facts["size_bytes"]
    ([2, 3, 2, 2], 24, 96)
    """
    if isinstance(layout, TupleLayout):
        elements = [summary(element) for element in layout.elements]
        return {"layout": str(layout), "size_bytes": layout.size_bytes, "elements": elements}
    return {
        "layout": str(layout),
        "dtype": layout.dtype,
        "shape": list(layout.shape),
        "minor_to_major": list(layout.minor_to_major),
        "tiles": [["*" if t == -1 else t for t in tile] for tile in layout.tiles],
        "memory_space": layout.memory_space,
        "element_bits": layout.element_bits,
        "physical_shape": list(layout.physical_shape),
        "slots": layout.num_slots,
        "padding_slots": layout.num_slots - layout.num_elements,
        "size_bytes": layout.size_bytes,
        "data_bytes": layout.data_bytes,
        "padding_ratio": layout.padding_ratio,
    }

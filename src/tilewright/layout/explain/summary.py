"""The facts of a layout as plain values, for tables and JSON."""

from __future__ import annotations

from typing import Any

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.types import UNBOUNDED
from tilewright.layout.kinds.tiled import TupleLayout


def summary(layout: AddressMap | TupleLayout) -> dict[str, Any]:
    """Sizes in elements and bytes, order, tiles, memory space, or lanes, pages, shards; a tuple's elements below it.

    An array with an unbounded dim has no sizes, nor has a sparse one. What is absent in a text (bounds, L, SC, M ...)
    is absent here too.

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
        **layout.particulars,
        "element_bits": layout.element_bits,
    }
    return facts | _sizes(layout) if layout.is_static else facts


def _sizes(layout: AddressMap) -> dict[str, Any]:
    """What an unbounded dim leaves open."""
    return {
        "physical_shape": list(layout.physical_shape),
        "slots": layout.num_slots,
        "padding_slots": layout.num_slots - layout.num_elements,
        "size_bytes": layout.size_bytes,
        "data_bytes": layout.data_bytes,
        "padding_ratio": layout.padding_ratio,
    }

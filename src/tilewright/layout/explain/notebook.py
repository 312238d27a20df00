"""What a notebook shows of a tuple of layouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.types import UNBOUNDED
from tilewright.render import Column, bytes_text, glance
from tilewright.render.tables import glance_table

_COLUMNS = (Column("element"), Column("layout", "code"), Column("in memory", "bytes"), Column("padding", "ratio"))


def tuple_html(layout: Any) -> str:
    """A line for every array: what ``--leaf`` calls it, its layout, size and padding."""
    arrays = list(_leaves(layout))
    sized = [array for _, array in arrays if UNBOUNDED not in array.shape]
    total = f"{len(arrays)} arrays, {bytes_text(sum(array.size_bytes for array in sized))} in memory"
    rows = [(name, str(array), *_sizes(array)) for name, array in arrays]
    return glance("a tuple of layouts", total, glance_table(_COLUMNS, rows))


def _sizes(array: AddressMap) -> tuple[int | None, float | None]:
    return (None, None) if UNBOUNDED in array.shape else (array.size_bytes, array.padding_ratio)


def _leaves(layout: Any, path: str = "") -> Iterator[tuple[str, AddressMap]]:
    if isinstance(layout, AddressMap):
        yield path, layout
        return
    for k, element in enumerate(layout.elements):
        yield from _leaves(element, f"{path},{k}".lstrip(","))

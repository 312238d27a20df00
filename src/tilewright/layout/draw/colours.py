"""What a cell's colour says: the tile, the NPU, the page, the shard, the cache line, or how far down the memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.layout.explain.lineage import lineage
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.linear import decode_many

COLOURS = 8
_NAMES = {"npu": "NPU", "line": "cache line"}
_LINE_BITS = 8 * 64
_STEPS = (1, 3, 5, 7)  # per dim, so that blocks beside, below and behind each other differ

Array = np.ndarray[Any, Any]


def colour_ways(layout: AddressMap) -> tuple[str, ...]:
    """What the cells of a layout can be coloured by, the default first.

    >>> from tilewright.layout import lanes, parse
    >>> colour_ways(parse("f32[3,5]{1,0:T(2,2)}")), colour_ways(lanes((1, 2, 3, 4), "f16", "bm1684x"))
    (('tile', 'line', 'offset', 'none'), ('npu', 'line', 'offset', 'none'))
    """
    if len(layout.axes) > 1:
        return (layout.axes[0], "line", "offset", "none")
    return ("tile", "line", "offset", "none") if layout.tiles else ("none", "line", "offset")


def colour_name(way: str) -> str:
    """What has a colour of its own, in words."""
    return _NAMES.get(way, way)


def choose_colour(layout: AddressMap, colour: str) -> str:
    """A way to colour this layout: ``auto`` is its default."""
    ways = colour_ways(layout)
    if colour == "auto":
        return ways[0]
    if colour.lower() not in ways:
        raise UsageError(f"{layout} cannot be coloured by {colour!r}", how=f"choose one of {', '.join(ways)}")
    return colour.lower()


def colour_numbers(layout: AddressMap, places: Array, way: str) -> Array:
    """A number below :data:`COLOURS` for every place (int64[..., axes]); ``offset`` numbers rise with the offset."""
    if way == "none":
        return np.zeros(places.shape[:-1], np.int64)
    if way == "offset":
        return flat_offsets(layout, places) // max(1, -(-layout.memory_slots // COLOURS))
    if way in ("tile", "page"):
        return _block_colours(layout, places, 1)
    if way == "line" and layout.axes[0] == "page":
        return _block_colours(layout, places, 2)
    if way == "line":
        lines = flat_offsets(layout, places) * layout.element_bits // _LINE_BITS
        return np.asarray((lines + lines // 8 * 3 + lines // 64 * 5) % COLOURS)
    return np.asarray(places[..., 0] % COLOURS)


def flat_offsets(layout: AddressMap, places: Array) -> Array:
    """Places as slots of one memory: of the whole on one axis, else inside the NPU, page or shard."""
    flat: Array = np.zeros(places.shape[:-1], np.int64)
    for k, axis in enumerate(layout.inner_axes, start=len(layout.axes) - len(layout.inner_axes)):
        flat = flat * axis.extent + places[..., k]
    return flat


def _block_colours(layout: AddressMap, places: Array, level: int) -> Array:
    """A colour per tile (page, line) of a level, unlike those of its neighbours."""
    coordinates: dict[int, Array] = {}
    for a, axis in enumerate(layout.axis_terms):
        decoded = decode_many(places[..., a], layout.terms_of(axis))
        assert decoded is not None  # the strides of tiles and pages nest
        coordinates |= {c: digit for (c, _), digit in zip(axis.terms, decoded[0], strict=True)}
    colours: Array = np.zeros(places.shape[:-1], np.int64)
    dims = sorted((dim for dim in reversed(lineage(layout)) if dim.extent > 1), key=lambda d: d.period(level) is None)
    for k, dim in enumerate(dims):
        number: Array = np.zeros(places.shape[:-1], np.int64)
        inside = [leaf.level == level for leaf in dim.leaves]
        for leaf in dim.leaves[: inside.index(True) if any(inside) else len(inside)]:
            number = number * leaf.size + coordinates.get(leaf.place, 0)
        colours = colours + number * _STEPS[k % len(_STEPS)]
    return colours % COLOURS

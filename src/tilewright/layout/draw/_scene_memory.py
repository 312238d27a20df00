"""Layouts drawn as memory: slots by address, the index in the cell."""

from __future__ import annotations

import numpy as np

from tilewright.layout._index_map import IndexMap
from tilewright.layout.draw._colours import choose_colour, colour_numbers
from tilewright.layout.draw._panel import (
    Array,
    Bounds,
    Panel,
    Scene,
    cell_tips,
    cut_text,
    in_rows,
    padding_cells,
    shown_extents,
)

__all__ = ["memory_panel", "memory_scene", "strip_panel"]

_STRIP_SLOTS, _STRIP_WIDTH = 96, 16


def strip_panel(layout: IndexMap, colour: str) -> Panel | None:
    """All slots of a small array in the order of memory, in the colours of the array's cells."""
    slots = layout.num_slots
    width = next((w for w in range(_STRIP_WIDTH, _STRIP_WIDTH // 2 - 1, -1) if slots % w == 0), 0)
    if slots <= _STRIP_WIDTH:
        width = slots
    if slots > _STRIP_SLOTS or not width:
        return None
    places = np.arange(slots).reshape(-1, width, 1)
    return memory_panel(layout, places, "memory, in the order of offsets", colour)


def memory_scene(layout: IndexMap, facts: str, colour: str, most: Bounds) -> Scene:
    """A map of several axes: its last axis from left to right, the one before from top to bottom."""
    extents = [axis.extent for axis in layout.axis_terms]
    names = [*layout.axes]
    if len(extents) == 2:
        extents, names = [1, *extents], ["", *names]
    shown = shown_extents([1, *extents], (1, 4), most)[1:]
    panels = []
    for outer in range(shown[0]):
        grid = np.stack(np.meshgrid(*(np.arange(n) for n in shown[1:]), indexing="ij"), axis=-1)
        if len(layout.axes) == 3:
            grid = np.concatenate([np.full((*grid.shape[:-1], 1), outer), grid], axis=-1)
        panels.append(memory_panel(layout, grid, f"{names[0]} {outer}" if names[0] else "", colour))
    cut = cut_text(names, extents, shown)
    return Scene(
        str(layout),
        facts,
        in_rows(panels, shown[2], len(panels), most),
        (),
        choose_colour(layout, colour),
        "index",
        cut,
    )


def memory_panel(layout: IndexMap, places: Array, heading: str, colour: str) -> Panel:
    """Cells at the given places (int64[rows, columns, axes])."""
    indices = layout.indices(places)
    padding = padding_cells(layout, places, indices)
    labels = tuple(
        tuple("" if out else ",".join(map(str, index)) for index, out in zip(row, outs, strict=True))
        for row, outs in zip(indices.tolist(), padding.tolist(), strict=True)
    )
    single = len(layout.axes) == 1
    rows = tuple(str(row[0, -1 if single else -2]) for row in places)
    columns = () if single else tuple(map(str, range(places.shape[1])))
    names = ("", "") if single else layout.axes[-2:]
    tips = cell_tips(layout, places, indices, padding)
    colours = colour_numbers(layout, places, choose_colour(layout, colour))
    return Panel(heading, names[0], names[1], rows, columns, labels, tips, padding, colours, places, indices)

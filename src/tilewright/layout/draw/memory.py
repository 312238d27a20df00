"""Layouts drawn as memory: slots by address, the index in the cell; an NPU's memory is folded at its strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.layout.draw.panels import (
    Array,
    Bounds,
    Level,
    Panel,
    Scene,
    cell_tips,
    choose_colour,
    colour_numbers,
    cut_text,
    each_cell,
    in_rows,
    padding_cells,
    shown_extents,
)
from tilewright.layout.draw.window import Span, around, spans_of
from tilewright.layout.index.address_map import AddressMap
from tilewright.render import count_text

_STRIP_SLOTS, _STRIP_WIDTH = 96, 16
_MOST_FOLDS, _MOST_NPUS = 12, 16


def strip_panel(layout: AddressMap, colour: str) -> Panel | None:
    """All slots of a small array in the order of memory, in the colours of the array's cells."""
    slots = layout.num_slots
    width = next((w for w in range(_STRIP_WIDTH, _STRIP_WIDTH // 2 - 1, -1) if slots % w == 0), 0)
    if slots <= _STRIP_WIDTH:
        width = slots
    if slots > _STRIP_SLOTS or not width:
        return None
    places = np.arange(slots).reshape(-1, width, 1)
    return memory_panel(layout, places, "memory, in the order of offsets", colour)


def memory_scene(
    layout: AddressMap, facts: str, colour: str, most: Bounds, window: str, place: Sequence[int] | None
) -> Scene:
    """A map of several axes: its last axis from left to right, the one before from top to bottom.

    Where the layout has strides to fold at, every fold is a panel, and the next stride is ruled in it.
    """
    way = choose_colour(layout, colour)
    extents = [axis.extent for axis in layout.axis_terms]
    names = [*layout.axes]
    spans = [Span(0, extent) for extent in extents]
    if window:
        spans = spans_of(window, names, extents, str(layout))
    elif place is not None:
        wanted = (1, min(12, most.rows), min(16, most.columns))[-len(names) :]
        spans = [around(at, extent, n, None) for at, extent, n in zip(place, extents, wanted, strict=True)]
    elif layout.folds:
        return _folded_scene(layout, facts, way, most)
    outer = spans[:-2] or [Span(0, 1)]
    counts = [outer[0].count, spans[-2].count, spans[-1].count]
    shown = shown_extents([1, *counts], (1, 4), most)[1:]
    panels = []
    for step in range(shown[0]):
        grid = _grid(spans[-2]._replace(count=shown[1]), spans[-1]._replace(count=shown[2]))
        heading = ""
        if len(names) == 3:
            number = outer[0].start + step
            grid = np.concatenate([np.full((*grid.shape[:-1], 1), number), grid], axis=-1)
            heading = f"{names[0]} {number}"
        panels.append(replace(memory_panel(layout, grid, heading, colour), first=(spans[-2].start, spans[-1].start)))
    starts = [span.start for span in spans]
    cut = cut_text(names, extents, shown[-len(names) :], starts)
    rows = in_rows(panels, shown[2], len(panels), most)
    return Scene(str(layout), facts, rows, _stride_levels(layout.folds), way, "index", cut)


def _grid(rows: Span, columns: Span) -> Array:
    at = (np.arange(span.start, span.start + span.count) for span in (rows, columns))
    return np.stack(np.meshgrid(*at, indexing="ij"), axis=-1)


def _stride_levels(folds: Sequence[tuple[str, int]]) -> tuple[Level, ...]:
    return tuple(Level(f"{name}, {count_text(slots)}", None, slots) for name, slots in folds)


def _folded_scene(layout: AddressMap, facts: str, way: str, most: Bounds) -> Scene:
    """A panel per step of the longest stride that a row of cells can hold."""
    at = next((k for k, (_, slots) in enumerate(layout.folds) if slots <= most.columns), len(layout.folds) - 1)
    name, width = layout.folds[at]
    npus, extent = (axis.extent for axis in layout.axis_terms)
    folds = -(-extent // width)
    columns = width if width <= most.columns else most.columns // 2  # two folds beside each other
    shown = shown_extents([1, folds, min(npus, _MOST_NPUS), columns], (1, _MOST_FOLDS), most)[1:]
    panels = []
    for fold in range(shown[0]):
        count = min(shown[2], extent - fold * width)
        grid = _grid(Span(0, shown[1]), Span(fold * width, count))
        panel = memory_panel(layout, grid, "", way)
        panels.append(replace(panel, heading=_held(layout, panel), first=(0, fold * width)))
    cut = cut_text(("folds", *layout.axes), (folds, npus, width), shown)
    levels = _stride_levels([fold for fold in layout.folds if fold[1] < width])
    facts += f"; folded at the {name}, {count_text(width)} slots"
    return Scene(str(layout), facts, in_rows(panels, shown[2], len(panels), most), levels, way, "index", cut)


def _held(layout: AddressMap, panel: Panel) -> str:
    """Which indices along the first two dims the elements of a panel have."""
    inside = panel.indices[panel.elements]
    if not len(inside):
        return "padding"
    lows, highs = inside.min(axis=0), inside.max(axis=0)
    ranges = [f"{low}" if low == high else f"{low}..{high}" for low, high in zip(lows, highs, strict=True)]
    return ", ".join(f"{name} = {text}" for name, text in zip(layout.dim_names[:2], ranges, strict=False))


def memory_panel(layout: AddressMap, places: Array, heading: str, colour: str) -> Panel:
    """Cells at the given places (int64[rows, columns, axes])."""
    indices = layout.indices(places)
    padding = padding_cells(layout, places, indices)
    labels = each_cell(lambda index, out: "" if out else ",".join(map(str, index)), indices, padding)
    single = len(layout.axes) == 1
    rows = tuple(str(row[0, -1 if single else -2]) for row in places)
    if layout.first_npu:
        rows = tuple(f"start {row}" if row == str(layout.first_npu) else row for row in rows)
    columns = () if single else tuple(map(str, places[0, :, -1]))
    names = ("", "") if single else layout.axes[-2:]
    tips = cell_tips(layout, places, indices, padding)
    colours = colour_numbers(layout, places, choose_colour(layout, colour))
    return Panel(heading, names[0], names[1], rows, columns, labels, tips, padding, colours, places, indices)

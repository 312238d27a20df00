"""What a picture of a layout shows, before it is ink: panels of cells, their labels, tiles and padding.

Two views. An *array* view places every slot where its element stands in the array, padding around it, and writes the
offset into the cell: tiled and paged maps. A *memory* view (:mod:`tilewright.layout.draw.memory`) goes the other way:
lanes and shards, and the strip under a small tiled array.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.draw.memory import memory_scene, strip_panel
from tilewright.layout.draw.panels import (
    COLOURS,
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
    layout_facts,
    padding_cells,
    shown_extents,
)
from tilewright.layout.draw.window import Span, around, spans_of
from tilewright.layout.explain.derivation import DrawnDim, lineage, position_of
from tilewright.layout.index.address_map import AddressMap
from tilewright.render import count_text

_WRAP = 32
_FEW_PANELS, _FEW_CELLS = 24, 1024
MOST_SLOTS = 1 << 62  # offsets are drawn from int64 arrays
_WORD_BITS = 32


def make_scene(
    layout: AddressMap,
    *,
    colour: str = "auto",
    most: Bounds = Bounds(),  # noqa: B008
    window: str = "",
    at: Sequence[int] | None = None,
) -> Scene:
    """The picture of a layout, cut to one corner where it has more cells than ``most`` allows.

    ``window`` shows a part: ranges along the dims, ``0:8,120:136`` (along npu and offset where memory is drawn);
    ``at`` the surroundings of an element, which is marked.

    >>> from tilewright.layout import parse
    >>> scene = make_scene(parse("bf16[20,300]{1,0:T(8,128)(2,1)}"), window="0:2,126:130")
    >>> scene.panels[0][0].labels
    (('252', '254', '1024', '1026'), ('253', '255', '1025', '1027'))
    """
    if layout.num_slots > MOST_SLOTS:
        raise UnsupportedError(f"{layout} is larger than 2**62 elements: there is no such memory to draw")
    if not layout.num_slots:
        return Scene(str(layout), "no elements", (), (), "none", "")
    if window and at is not None:
        raise UsageError("a window and an element to show are two pictures", how="give one of them")
    facts = layout_facts(layout)
    place = None
    if at is not None:
        place = tuple(layout.address(*at).values())
        facts += f"; element ({','.join(map(str, at))}) at {layout.place_text(place)}"
    if len(layout.axes) == 1 or layout.axes[0] == "page":
        scene = _array_scene(layout, facts, colour, most, window, at)
    else:
        scene = memory_scene(layout, facts, colour, most, window, place)
    return replace(scene, marked=place)


@dataclass(frozen=True)
class _Frame:
    """The dims of an array view, the span of each that is shown; ``wrap``: a single row is folded into such rows."""

    down: tuple[DrawnDim, ...]
    across: DrawnDim
    row: DrawnDim
    column: DrawnDim
    wrap: int
    spans: Mapping[DrawnDim, Span]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Positions to show along the dims: down, across, rows, columns."""
        down = math.prod(self.spans[dim].count for dim in self.down)
        return down, self.spans[self.across].count, self.spans[self.row].count, self.spans[self.column].count

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Positions to show down, across, of rows and of columns."""
        down, across, rows, columns = self.counts
        return (down, across, -(-columns // self.wrap), self.wrap) if self.wrap else (down, across, rows, columns)

    @property
    def starts(self) -> tuple[int, int, int, int]:
        """Where each of them begins."""
        row = 0 if self.wrap else self.spans[self.row].start
        column = self.spans[self.column].start
        return 0, self.spans[self.across].start, row, column

    def positions(self, down: int, across: int, rows: int, columns: int) -> dict[DrawnDim, Any]:
        """Positions along every dim of the cells of one panel."""
        r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        row, column = self.spans[self.row], self.spans[self.column]
        positions: dict[DrawnDim, Any] = {self.across: self.spans[self.across].start + across}
        positions |= {self.row: row.start + r, self.column: column.start + c}
        if self.wrap:
            along = np.minimum(r * self.wrap + c, column.count - 1)
            positions |= {self.row: 0, self.column: column.start + along}
        for dim in reversed(self.down):
            down, position = divmod(down, self.spans[dim].count)
            positions[dim] = self.spans[dim].start + position
        return positions

    def present(self, rows: int, columns: int) -> Array:
        """Which cells of a panel are there: all, but for the end of the last row of a folded one."""
        if not self.wrap:
            return np.ones((rows, columns), bool)
        return np.asarray(np.arange(rows * columns).reshape(rows, columns) < self.spans[self.column].count)

    def level(self, name: str, number: int) -> Level:
        """The outlines of a tile level in this frame."""
        row, column = self.row.period(number), self.column.period(number)
        if self.wrap and column:
            whole = column % self.wrap == 0 and self.spans[self.column].start % column == 0
            return Level(name, column // self.wrap if whole else None, None)
        return Level(name, row, column)


_NOTHING = DrawnDim("", (), ())


def _frame(layout: AddressMap, most_columns: int) -> _Frame:
    dims = list(lineage(layout))
    *outer, row, column = [*[_NOTHING] * (2 - len(dims)), *dims]
    live = [dim for dim in outer if dim.extent > 1]
    across = live.pop() if live else DrawnDim("across", (), ())
    wrap = 1 << (min(_WRAP, most_columns).bit_length() - 1)
    spans = {dim: Span(0, dim.extent) for dim in (*live, across, row, column)}
    return _Frame(tuple(live), across, row, column, wrap if row.extent == 1 and column.extent > 2 * wrap else 0, spans)


def _looked_at(layout: AddressMap, frame: _Frame, spans: Mapping[DrawnDim, Span]) -> _Frame:
    """The frame with other spans; a row that is short enough is not folded."""
    spans = {**frame.spans, **spans}
    folded = frame.wrap and spans[frame.column].count > 2 * frame.wrap
    return replace(frame, spans=spans, wrap=frame.wrap if folded else 0)


def _window_spans(layout: AddressMap, window: str) -> dict[DrawnDim, Span]:
    """The ranges of a window, in the order of the array's dims where each of them is drawn as it is."""
    dims = [dim for dim in lineage(layout) if dim.name]
    if all(dim.logical is not None for dim in dims):
        dims.sort(key=lambda dim: dim.parts)
    spans = spans_of(window, [dim.name for dim in dims], [dim.extent for dim in dims], str(layout))
    return dict(zip(dims, spans, strict=True))


def _spans_around(layout: AddressMap, frame: _Frame, index: Sequence[int], most: Bounds) -> dict[DrawnDim, Span]:
    """The surroundings of an element: whole tiles where they are small."""
    spans = {}
    for dim in frame.spans:
        position = position_of(layout, index, dim)
        wanted = min(12, most.rows) if dim is frame.row else min(16, most.columns) if dim is frame.column else 1
        spans[dim] = around(position, dim.extent, wanted, dim.period(1) if wanted > 1 else None)
    return spans


def _panels_shown(extents: tuple[int, ...]) -> tuple[int, int]:
    """The most panels below and beside each other: all of a small array, three rows of four of a larger one."""
    small = extents[0] * extents[1] <= _FEW_PANELS and math.prod(extents) <= _FEW_CELLS
    return (extents[0], extents[1]) if small else (3, 4)


def _array_scene(
    layout: AddressMap, facts: str, colour: str, most: Bounds, window: str, at: Sequence[int] | None
) -> Scene:
    whole = frame = _frame(layout, most.columns)
    if window:
        frame = _looked_at(layout, frame, _window_spans(layout, window))
    elif at is not None and (
        math.prod(frame.extents) > _FEW_CELLS // 4
        or tuple(shown_extents(frame.extents, _panels_shown(frame.extents), most)) != frame.extents  # many panels
    ):
        frame = _looked_at(layout, frame, _spans_around(layout, frame, at, most))
    shown = shown_extents(frame.extents, _panels_shown(frame.extents), most)
    way = choose_colour(layout, colour)
    panels = [_array_panel(layout, frame, block, shown[2:], way) for block in product(range(shown[0]), range(shown[1]))]
    rows = f"rows of {frame.wrap}" if frame.wrap else frame.row.name
    names = (" ".join(dim.name for dim in frame.down), frame.across.name, rows, frame.column.name)
    tail = layout.num_slots - math.prod(whole.extents)
    if tail and layout.step_levels is not None:
        facts += f", {count_text(tail)} of it behind the last tile"
    levels = tuple(frame.level(name, number) for number, name in enumerate(layout.level_names, start=1))
    if window and frame.wrap:
        names, part = (*names[:3], frame.column.name), (*shown[:2], 1, frame.spans[frame.column].count)
    else:
        part = shown
    everything = whole.extents if frame.wrap and not window else whole.counts
    cut = cut_text(names, everything, part, frame.starts)
    strip = strip_panel(layout, way) if levels and len(layout.axes) == 1 and not cut else None
    scene = Scene(
        str(layout),
        facts,
        in_rows(panels, shown[3], shown[1], most),
        levels,
        way,
        layout.axes[-1],
        cut,
        strip,
        layout.axis_terms[-1].extent - 1,
        words=packed_words(layout),
    )
    if window or at is not None:
        return scene
    beginning, edge = _insets(layout, whole, scene, way)
    return replace(scene, beginning=beginning, edge=edge)


def packed_words(layout: AddressMap) -> str:
    """What the innermost tile packs into 32 bits, in a sentence; "" where it does not.

    >>> from tilewright.layout import parse
    >>> packed_words(parse("bf16[20,300]{1,0:T(8,128)(2,1)}"))
    'T(2,1) packs 2 elements of 16 bits, of neighbouring rows, into a word of 32 bits'
    """
    if len(layout.tiles) < 2 or len(layout.tiles[-1]) != 2 or layout.tiles[-1][1] != 1:
        return ""
    count = layout.tiles[-1][0]
    if count < 2 or count * layout.element_bits != _WORD_BITS:
        return ""
    bits = f"{layout.element_bits} bits, of neighbouring rows,"
    return f"{layout.level_names[-1]} packs {count} elements of {bits} into a word of {_WORD_BITS} bits"


def _insets(layout: AddressMap, whole: _Frame, scene: Scene, way: str) -> tuple[Panel | None, Panel | None]:
    """The first elements, and those at the far edge where it is cut off."""
    if whole.wrap or not scene.panels or whole.row.extent < 2:
        return None, None
    beginning, edge = None, None
    if scene.levels:
        rows = max(4, layout.tiles[-1][0] if scene.words else 0)
        spans = {whole.row: Span(0, rows), whole.column: Span(0, 8)}
        beginning = _inset(
            layout, whole, spans, way, f"{scene.words}; a colour per word" if scene.words else "the first elements"
        )
        if scene.words:  # a colour per word, not per tile
            words = beginning.places[..., 0] * layout.element_bits // _WORD_BITS
            beginning = replace(beginning, colours=np.asarray(words % COLOURS))
    if scene.cut:
        last = {dim: Span(dim.size - 1, 1) for dim in (*whole.down, whole.across)}
        spans = {
            **last,
            whole.row: Span(max(0, whole.row.size - 3), 6),
            whole.column: Span(max(0, whole.column.size - 5), 10),
        }
        end = ",".join(str(n - 1 + first) for n, first in zip(layout.shape, layout.first_index, strict=True))
        edge = _inset(layout, whole, spans, way, f"the far edge: the last element, ({end}), and what follows")
    return beginning, edge


def _inset(layout: AddressMap, whole: _Frame, spans: Mapping[DrawnDim, Span], way: str, heading: str) -> Panel:
    inside = {dim: Span(span.start, min(span.count, dim.extent - span.start)) for dim, span in spans.items()}
    frame = replace(whole, spans={**{dim: Span(0, 1) for dim in whole.spans}, **inside})
    panel = _array_panel(layout, frame, (0, 0), frame.extents[2:], way)
    return replace(panel, heading=f"{heading}; {panel.heading}" if panel.heading else heading)


def _array_panel(layout: AddressMap, frame: _Frame, block: tuple[int, int], size: tuple[int, ...], way: str) -> Panel:
    at = frame.positions(*block, size[0], size[1])
    places = _places(layout, at, size)
    indices = layout.indices(places)
    there = frame.present(size[0], size[1])
    padding = padding_cells(layout, places, indices) & there
    outer = [(dim, at[dim]) for dim in (*frame.down, frame.across) if dim.extent > 1]
    heading = ", ".join(f"{dim.name} = {position}" for dim, position in outer)
    return Panel(
        heading,
        frame.column.name if frame.wrap else frame.row.name,
        "" if frame.wrap else frame.column.name,
        _headings(frame.column if frame.wrap else frame.row, at, indices, padding, 0),
        () if frame.wrap else _headings(frame.column, at, indices, padding, 1),
        each_cell(lambda offset, here: str(offset) if here else "", places[..., -1], there),
        each_cell(lambda tip, here: tip if here else "", cell_tips(layout, places, indices, padding), there),
        padding,
        colour_numbers(layout, places, way),
        places,
        indices,
        first=(0, 0) if frame.wrap else (frame.starts[2], frame.starts[3]),
    )


def _places(layout: AddressMap, at: dict[DrawnDim, Any], size: tuple[int, ...]) -> Array:
    """The address of every cell: positions to coordinates by mixed radix, coordinates to axes by the map's terms."""
    coordinates: dict[int, Any] = {}
    for dim, position in at.items():
        rest = position
        for leaf in reversed(dim.leaves):
            rest, coordinates[leaf.place] = rest // leaf.size, rest % leaf.size
    sums = [sum((coordinates.get(c, 0) * stride for c, stride in axis.terms), start=0) for axis in layout.axis_terms]
    sums[-1] = layout.scrambled(np.asarray(sums[-1])) if layout.scrambles else sums[-1]
    return np.stack([np.broadcast_to(value, size) for value in sums], axis=-1)


def _headings(dim: DrawnDim, at: dict[DrawnDim, Any], indices: Array, padding: Array, axis: int) -> tuple[str, ...]:
    """The index of every row (axis 0) or column (axis 1) along its dim, blank where all is padding.

    Of a combined dim the indices of its parts; where tiles made the dim, the position along it.
    """
    if not dim.name:
        return ("",) * int(padding.shape[axis])
    positions = np.broadcast_to(at[dim], padding.shape)
    headings: list[str] = []
    for k, outside in enumerate(np.moveaxis(padding, axis, 0)):
        if outside.all():
            headings.append("")
            continue
        inside = np.argmin(outside)
        here = np.take(indices, k, axis)[inside] if dim.parts else np.take(positions, k, axis)[[inside]]
        headings.append(",".join(str(here[part]) for part in dim.parts or (0,)))
    return tuple(headings)

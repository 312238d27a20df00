"""What a picture of a layout shows, before it is ink: panels of cells, their labels, tiles and padding.

Three views. An *array* view places every slot where its element stands in the array, padding around it, and writes the
offset into the cell: tiled and paged maps. A *memory* view goes the other way, slots by address and the index in the
cell: lanes and shards (an NPU's memory folded at its strides), and the strip under a small tiled array. A *ruler* shows
memory under byte addresses:

    byte   +0   +4   +8  ...       one row per line of memory (or per NPU, page or shard where it fits in one)
       0  |0,0 |0,1 |1,0 |         a cell: one element, one line of 64 bytes or one tile; hatched is padding
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError, check_known
from tilewright.layout.draw.panels import (
    COLOURS,
    MOST_SLOTS,
    Bounds,
    Level,
    Panel,
    Scene,
    Span,
    Texts,
    around,
    cell_tips,
    choose_colour,
    colour_numbers,
    cut_text,
    each_cell,
    in_rows,
    layout_facts,
    padding_cells,
    shown_extents,
    spans_of,
)
from tilewright.layout.explain import DrawnDim, lineage, position_of
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.types import Array
from tilewright.render import bytes_text, count_text

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
        panels.append(replace(panel, heading=_index_ranges(layout, panel), first=(0, fold * width)))
    cut = cut_text(("folds", *layout.axes), (folds, npus, width), shown)
    levels = _stride_levels([fold for fold in layout.folds if fold[1] < width])
    facts += f"; folded at the {name}, {count_text(width)} slots"
    return Scene(str(layout), facts, in_rows(panels, shown[2], len(panels), most), levels, way, "index", cut)


def _index_ranges(layout: AddressMap, panel: Panel) -> str:
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


UNITS = ("element", "line", "tile")
_LINE_BITS = 512
_MOST_CELLS = 1024
_MOST_READ = 1 << 19  # slots that are looked at
_FEW, _MANY = 512, 4096  # slots up to which elements are drawn, lines up to which lines are


@dataclass(frozen=True)
class _Grid:
    """How memory is cut: ``groups`` (NPUs, pages, shards) of ``slots`` each, ``columns`` cells of ``unit`` slots to a
    row, ``rows_each`` rows to a group."""

    layout: AddressMap
    unit: int
    name: str
    columns: int

    @property
    def slots(self) -> int:
        return self.layout.memory_slots

    @property
    def groups(self) -> int:
        return 1 if len(self.layout.axes) == 1 else self.layout.axis_terms[0].extent

    @property
    def rows_each(self) -> int:
        return -(-self.slots // (self.unit * self.columns))


def ruler_scene(layout: AddressMap, *, unit: str = "auto", colour: str = "auto", most: Bounds = Bounds()) -> Scene:  # noqa: B008
    """The memory of a layout in the order of its bytes; see :func:`ruler_svg`."""
    if layout.num_slots > MOST_SLOTS:
        raise UnsupportedError(f"{layout} is larger than 2**62 elements: there is no such memory to draw")
    if not layout.element_bits:
        raise UnsupportedError(f"{layout} takes no memory: there is nothing to draw")
    layout.require_injective()
    if not layout.num_slots:
        return Scene(str(layout), "no elements", (), (), "none", "")
    grid = _ruled(layout, unit, most.columns)
    way = choose_colour(layout, colour)
    every = grid.groups * grid.rows_each
    rows = max(1, min(every, most.rows, _MOST_CELLS // grid.columns, _MOST_READ // (grid.columns * grid.unit)))
    panel = _ruled_panel(layout, grid, rows, way)
    cut = cut_text(("rows",), (every,), (rows,))
    size = grid.unit * layout.element_bits
    long = f"{count_text(size // 8)} B" if size % 8 == 0 else f"{size} bits"
    facts = f"{layout_facts(layout)}; a cell is one {grid.name}, {long}"
    labels = "index" if grid.unit == 1 else "number of elements"
    return Scene(str(layout), facts, ((panel,),), (), way, labels, cut, last=grid.slots - 1)


def _ruled(layout: AddressMap, unit: str, most_columns: int) -> _Grid:
    lines, tiles = layout.line_elements, 0
    if layout.tiles:  # elements of a tile of the first level, padding included
        tiles = math.prod(dim.period(1) or 1 for dim in lineage(layout))
    name = unit
    if unit == "auto":  # elements while they are few, then lines, then tiles
        many = lines and layout.num_slots // lines > _MANY
        name = "element" if layout.num_slots <= _FEW or not lines else "tile" if many and tiles > lines else "line"
    check_known(name, UNITS, f"no unit called {unit!r}", say="choose one of")
    if name == "element":
        slots, usual = 1, min(32, max(8, _LINE_BITS // layout.element_bits))
    else:
        slots, usual = lines if name == "line" else tiles, 16
    if not slots:
        how = "draw its elements" if name == "line" else "draw its lines"
        raise UsageError(f"{layout} has no {name}s of whole elements", how=how)
    columns = -(-layout.memory_slots // slots)  # all if they fit, else the usual number, a power of two if narrower
    if columns > min(usual, most_columns):
        columns = usual if usual <= most_columns else 1 << (max(1, most_columns).bit_length() - 1)
    return _Grid(layout, slots, name, columns)


def _ruled_panel(layout: AddressMap, grid: _Grid, rows: int, way: str) -> Panel:
    r, c = np.meshgrid(np.arange(rows), np.arange(grid.columns), indexing="ij")
    group, start = r // grid.rows_each, ((r % grid.rows_each) * grid.columns + c) * grid.unit  # and first slot of cells
    flat = start[..., None] + np.arange(grid.unit)
    there = (flat < grid.slots) & (group < grid.groups)[..., None]
    rest, places = np.minimum(flat, grid.slots - 1), list[Array]()
    for axis in reversed(layout.inner_axes):
        places.insert(0, rest % axis.extent)
        rest = rest // axis.extent
    if len(layout.axes) > 1:
        places.insert(0, np.broadcast_to(group[..., None], flat.shape))
    at_all = np.stack(places, axis=-1)
    indices = layout.indices(at_all)
    data = ~padding_cells(layout, at_all, indices) & there
    count, held = there.sum(axis=-1), data.sum(axis=-1)
    first = np.argmax(data, axis=-1)[..., None, None]
    at = np.take_along_axis(at_all, first, axis=-2)[..., 0, :]
    index = np.take_along_axis(indices, first, axis=-2)[..., 0, :]
    if grid.unit > 1:
        labels = each_cell(lambda h, n: str(h) if n else "", held, count)
    else:
        labels = each_cell(lambda i, h: ",".join(map(str, i)) if h else "", index, held)
    steps = (c * grid.unit * layout.element_bits for c in range(grid.columns))
    return Panel(
        heading="",
        row_name="byte" if grid.groups == 1 else layout.axes[0] if grid.rows_each == 1 else f"{layout.axes[0]}: byte",
        column_name="",
        rows=tuple(_row_name(grid, row) for row in range(rows)),
        columns=tuple(f"+{bits // 8}" if bits % 8 == 0 else "" for bits in steps),
        labels=labels,
        tips=_ruled_tips(grid, group, start, index, held, count),
        padding=(held == 0) & (count > 0),
        colours=colour_numbers(layout, at, way),
        places=at,
        indices=np.where((held > 0)[..., None], index, -1),
        shares=None if grid.unit == 1 else held / np.maximum(count, 1),
        ticks=True,
    )


def _byte(grid: _Grid, slot: int) -> str:
    bits = slot * grid.layout.element_bits
    return f"{bits // 8}" if bits % 8 == 0 else f"{bits // 8}.{bits % 8}"


def _row_name(grid: _Grid, row: int) -> str:
    group, part = divmod(row, grid.rows_each)
    byte = _byte(grid, part * grid.columns * grid.unit)
    return byte if grid.groups == 1 else f"{group}" if grid.rows_each == 1 else f"{group}: {byte}"


def _ruled_tips(grid: _Grid, group: Array, start: Array, index: Array, held: Array, count: Array) -> Texts:
    def tip(group: int, start: int, index: list[int], held: int, count: int) -> str:
        if not count:
            return ""
        where = "" if grid.groups == 1 else f"{grid.layout.axes[0]} {group}, "
        where += f"byte {_byte(grid, start)}, {f'{count} slots' if count > 1 else 'one slot'}: "
        first = f"({', '.join(map(str, index))})"
        if grid.unit == 1:
            return where + (first if held else "padding")
        return where + (f"{held} elements from {first} on" if held else "padding")

    return each_cell(tip, group, start, index, held, count)


_WRAP = 32
_FEW_PANELS, _FEW_CELLS = 24, 1024
_WORD_BITS = 32


def make_scene(
    layout: AddressMap,
    *,
    colour: str = "auto",
    most: Bounds = Bounds(),  # noqa: B008
    window: str = "",
    at: Sequence[int] | None = None,
    device: int | None = None,
) -> Scene:
    """The picture of a layout, cut to one corner where it has more cells than ``most`` allows.

    ``window`` shows a part: ranges along the dims, ``0:8,120:136`` (along npu and offset where memory is drawn);
    ``at`` the surroundings of an element, which is marked. Of a mesh ``device`` is opened, without it the one that
    holds the element.

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
    if layout.axes[0] == "device":
        return _mesh_scene(layout, colour, most, window, at, device)
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


def _reframed(frame: _Frame, spans: Mapping[DrawnDim, Span]) -> _Frame:
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
        frame = _reframed(frame, _window_spans(layout, window))
    elif at is not None and (
        math.prod(frame.extents) > _FEW_CELLS // 4
        or tuple(shown_extents(frame.extents, _panels_shown(frame.extents), most)) != frame.extents  # many panels
    ):
        frame = _reframed(frame, _spans_around(layout, frame, at, most))
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


# Meshes: what every device holds, and one device's shard opened.

_MESH_ROWS, _MESH_COLUMNS, _ROOMY = 16, 16, 4


def _mesh_scene(
    layout: Any, colour: str, most: Bounds, window: str, at: Sequence[int] | None, device: int | None
) -> Scene:
    """The devices of a mesh, its last axis from left to right, and below them the shard of one."""
    if device is None or at is not None:
        device = layout.sharding.holders(0)[0] if at is None else int(layout.where(*at)[0][0])
    start = layout.starts(device) or ()
    inside = None if at is None else [i - low for i, low in zip(at, start, strict=True)]
    scene = make_scene(layout.shard_layout, colour=colour, most=most, window=window, at=inside)
    copies = f", every element on {count_text(layout.replicas)} of them" if layout.replicas > 1 else ""
    facts = f"{count_text(layout.mesh.size)} devices with {bytes_text(layout.bytes_per_device)} each{copies}"
    opened = f"; device {device} opened: {_held(layout, device)}, indices counted in its shard"
    return replace(scene, title=str(layout), facts=facts + opened, devices=_devices(layout), opened=device)


def _held(layout: Any, device: int) -> str:
    box = layout.box(device)
    return "nothing" if box is None else ",".join(f"{side.start}:{side.stop}" for side in box) or "the element"


def _devices(layout: Any) -> Panel:
    mesh = layout.mesh
    across = mesh.shape[-1] if mesh.shape else 1
    numbers = np.arange(mesh.size).reshape(-1, across)[:_MESH_ROWS, :_MESH_COLUMNS]
    homes = layout.sharding.homes[numbers]
    shards = {home: k for k, home in enumerate(sorted(set(layout.sharding.homes.tolist())))}

    def short(device: int) -> str:
        starts = layout.starts(device)
        numbered = zip(starts or (), layout.shard_shape, strict=False)
        return "" if starts is None else ",".join(str(low // max(1, size)) for low, size in numbered) or "0"

    roomy = across <= _ROOMY
    labels = each_cell(lambda device: f"{device}: {_held(layout, device)}" if roomy else short(device), numbers)
    rows = [mesh.coordinates(int(device)) for device in numbers[:, 0]]
    last = mesh.names[-1] if mesh.names else ""
    cut = "" if numbers.size == mesh.size else f", the first {numbers.size} of {count_text(mesh.size)}"
    return Panel(
        f"the {'indices that every device holds' if roomy else 'shard of every device'}{cut}; a colour per shard",
        "",
        last,
        tuple(", ".join(f"{name}={n}" for name, n in row.items() if name != last) or "device" for row in rows),
        tuple(map(str, range(numbers.shape[1]))),
        labels,
        each_cell(lambda device: f"device {device}: {_held(layout, device)}", numbers),
        homes < 0,
        np.vectorize(lambda home: shards[home] % COLOURS, otypes=[np.int64])(homes),
        numbers[..., None],
        numbers[..., None],
    )

"""What a picture of a layout shows, before it is ink: panels of cells, their labels, tiles and padding.

Two views. An *array* view places every slot where its element stands in the array, padding around it, and writes the
offset into the cell: tiled and paged maps. A *memory* view goes the other way: it places slots by address and writes
the index into the cell: lanes and shards, and the strip under a small tiled array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.explain.derivation import DrawnDim, lineage
from tilewright.layout.index.address_map import AddressMap, decode_many
from tilewright.render import bytes_text, count_text, ratio_text

# What pictures of layouts are made of: cells in panels, panels in a scene, and how much of a large layout is shown.

MAX_CELLS = 4096

Array = np.ndarray[Any, Any]
Texts = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Level:
    """The outlines of one tile level: a line every so many rows and columns (None: no line that way)."""

    name: str
    row_period: int | None
    column_period: int | None


@dataclass(frozen=True)
class Panel:
    """A grid of cells.

    ====================  ==================================================================================
    ``labels, tips``      texts per cell; a cell without a tip is not there (behind the end of a folded row)
    ``padding``           which cells hold no element
    ``colours``           a number per cell (see :func:`tilewright.layout.draw.scene.colour_numbers`)
    ``places, indices``   address and index per cell (-1 for padding), or of its first slot
    ``shares``            the part of the cell that is data, where a cell is more than one slot
    ``moved``             which cells hold an element that another layout puts elsewhere
    ``ticks``             whether the columns are marks on a ruler, so that their names stand at left edges
    ====================  ==================================================================================
    """

    heading: str
    row_name: str
    column_name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    labels: Texts
    tips: Texts
    padding: Array
    colours: Array
    places: Array
    indices: Array
    shares: Array | None = None
    moved: Array | None = None
    ticks: bool = False

    @property
    def elements(self) -> Array:
        """Which cells hold an element: they are there, and they are not padding."""
        there = np.array([[bool(tip) for tip in row] for row in self.tips], bool).reshape(self.padding.shape)
        return there & ~self.padding


@dataclass(frozen=True)
class Scene:
    """A whole picture. ``panels`` is a grid; ``cut`` says which corner is shown ("" for everything)."""

    title: str
    facts: str
    panels: tuple[tuple[Panel, ...], ...]
    levels: tuple[Level, ...]
    colour_by: str
    label_is: str
    cut: str = ""
    strip: Panel | None = None
    last: int = 0  # the last offset, for the legend of colours by offset

    @property
    def everything(self) -> tuple[Panel, ...]:
        """All panels, the strip included."""
        return (*(panel for row in self.panels for panel in row), *((self.strip,) if self.strip else ()))


@dataclass(frozen=True)
class Bounds:
    """How much is drawn: rows and columns of a panel, columns of panels beside each other, cells in all."""

    rows: int = 64
    columns: int = 128
    wide: int = 160
    cells: int = MAX_CELLS


def shown_extents(extents: Sequence[int], outer: Sequence[int], most: Bounds) -> tuple[int, ...]:
    """How much of every extent is drawn: ``outer`` bounds all but rows and columns, ``most.cells`` them together."""
    shown = [min(n, bound) for n, bound in zip(extents, (*outer, most.rows, most.columns), strict=True)]
    for k in range(len(shown)):
        while shown[k] > 1 and math.prod(shown) > most.cells:
            shown[k] = -(-shown[k] // 2)
    return tuple(shown)


def in_rows(panels: Sequence[Panel], columns: int, group: int, most: Bounds) -> tuple[tuple[Panel, ...], ...]:
    """Panels of ``columns`` columns in rows of at most ``most.wide`` columns; every ``group`` of them begins a row."""
    beside = max(1, min(group, most.wide // max(1, columns)))
    groups = (panels[k : k + group] for k in range(0, len(panels), group))
    return tuple(tuple(g[k : k + beside]) for g in groups for k in range(0, len(g), beside))


def cut_text(names: Sequence[str], extents: Sequence[int], shown: Sequence[int]) -> str:
    """Which corner is shown, or nothing where all is."""
    parts = [
        f"{name or 'positions'} 0..{some - 1} of {count_text(every)}"
        for name, every, some in zip(names, extents, shown, strict=True)
        if some < every
    ]
    return f"one corner: {', '.join(parts)} (padding included)" if parts else ""


def each_cell(text: Callable[..., str], *values: Array | Texts) -> Texts:
    """The text of every cell's values, row by row."""
    grids = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    return tuple(tuple(text(*cell) for cell in zip(*row, strict=True)) for row in zip(*grids, strict=True))


def padding_cells(layout: AddressMap, places: Array, indices: Array) -> Array:
    """Which places hold no element."""
    return np.asarray((indices < 0).any(axis=-1) if layout.rank else (places != 0).any(axis=-1))


def cell_tips(layout: AddressMap, places: Array, indices: Array, padding: Array) -> Texts:
    """Address and index of every cell, in words."""

    def tip(place: list[int], index: list[int], out: bool) -> str:
        return f"{layout.place_text(place)}: {'padding' if out else '(' + ', '.join(map(str, index)) + ')'}"

    return each_cell(tip, places, indices, padding)


# What a cell's colour says: the tile, the NPU, the page, the shard, the cache line, or how far down the memory.

COLOURS = 8
_NAMES = {"npu": "NPU", "line": "cache line"}
_LINE_BITS = 8 * 64
_STEPS = (1, 3, 5, 7)  # per dim, so that blocks beside, below and behind each other differ


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


# Layouts drawn as memory: slots by address, the index in the cell.

_STRIP_SLOTS, _STRIP_WIDTH = 96, 16


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


def memory_scene(layout: AddressMap, facts: str, colour: str, most: Bounds) -> Scene:
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


def memory_panel(layout: AddressMap, places: Array, heading: str, colour: str) -> Panel:
    """Cells at the given places (int64[rows, columns, axes])."""
    indices = layout.indices(places)
    padding = padding_cells(layout, places, indices)
    labels = each_cell(lambda index, out: "" if out else ",".join(map(str, index)), indices, padding)
    single = len(layout.axes) == 1
    rows = tuple(str(row[0, -1 if single else -2]) for row in places)
    columns = () if single else tuple(map(str, range(places.shape[1])))
    names = ("", "") if single else layout.axes[-2:]
    tips = cell_tips(layout, places, indices, padding)
    colours = colour_numbers(layout, places, choose_colour(layout, colour))
    return Panel(heading, names[0], names[1], rows, columns, labels, tips, padding, colours, places, indices)


_WRAP = 32
_FEW_PANELS, _FEW_CELLS = 24, 1024
MOST_SLOTS = 1 << 62  # offsets are drawn from int64 arrays


def make_scene(layout: AddressMap, *, colour: str = "auto", most: Bounds = Bounds()) -> Scene:
    """The picture of a layout, cut to one corner where it has more cells than ``most`` allows."""
    if layout.num_slots > MOST_SLOTS:
        raise UnsupportedError(f"{layout} is larger than 2**62 elements: there is no such memory to draw")
    if not layout.num_slots:
        return Scene(str(layout), "no elements", (), (), "none", "")
    facts = layout_facts(layout)
    if len(layout.axes) == 1 or layout.axes[0] == "page":
        return _array_scene(layout, facts, colour, most)
    return memory_scene(layout, facts, colour, most)


def layout_facts(layout: AddressMap) -> str:
    """Size and padding in one line."""
    padding = layout.num_slots - layout.num_elements
    slots = f"{count_text(layout.num_slots)} slots, {f'{count_text(padding)} of them' if padding else 'no'} padding"
    return f"{bytes_text(layout.size_bytes)} in memory, {ratio_text(layout.padding_ratio)} the data; {slots}"


@dataclass(frozen=True)
class _Frame:
    """The dims of an array view; ``wrap``: a single row is folded into rows of that many positions."""

    down: tuple[DrawnDim, ...]
    across: DrawnDim
    row: DrawnDim
    column: DrawnDim
    wrap: int

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Positions down, across, of rows and of columns."""
        down = math.prod(dim.extent for dim in self.down)
        if self.wrap:
            return down, self.across.extent, -(-self.column.extent // self.wrap), self.wrap
        return down, self.across.extent, self.row.extent, self.column.extent

    def positions(self, down: int, across: int, rows: int, columns: int) -> dict[DrawnDim, Any]:
        """Positions along every dim of the cells of one panel."""
        r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        positions: dict[DrawnDim, Any] = {self.across: across, self.row: r, self.column: c}
        if self.wrap:
            positions |= {self.row: 0, self.column: np.minimum(r * self.wrap + c, self.column.extent - 1)}
        for dim in reversed(self.down):
            down, positions[dim] = divmod(down, dim.extent)
        return positions

    def present(self, rows: int, columns: int) -> Array:
        """Which cells of a panel are there: all, but for the end of the last row of a folded one."""
        if not self.wrap:
            return np.ones((rows, columns), bool)
        return np.asarray(np.arange(rows * columns).reshape(rows, columns) < self.column.extent)

    def level(self, name: str, number: int) -> Level:
        """The outlines of a tile level in this frame."""
        row, column = self.row.period(number), self.column.period(number)
        if self.wrap and column:
            return Level(name, column // self.wrap if column % self.wrap == 0 else None, None)
        return Level(name, row, column)


_NOTHING = DrawnDim("", None, ())


def _frame(layout: AddressMap, most_columns: int) -> _Frame:
    dims = list(lineage(layout))
    *outer, row, column = [*[_NOTHING] * (2 - len(dims)), *dims]
    live = [dim for dim in outer if dim.extent > 1]
    across = live.pop() if live else DrawnDim("across", None, ())
    wrap = 1 << (min(_WRAP, most_columns).bit_length() - 1)
    return _Frame(tuple(live), across, row, column, wrap if row.extent == 1 and column.extent > 2 * wrap else 0)


def _panels_shown(extents: tuple[int, ...]) -> tuple[int, int]:
    """The most panels below and beside each other: all of a small array, three rows of four of a larger one."""
    small = extents[0] * extents[1] <= _FEW_PANELS and math.prod(extents) <= _FEW_CELLS
    return (extents[0], extents[1]) if small else (3, 4)


def _array_scene(layout: AddressMap, facts: str, colour: str, most: Bounds) -> Scene:
    frame = _frame(layout, most.columns)
    shown = shown_extents(frame.extents, _panels_shown(frame.extents), most)
    way = choose_colour(layout, colour)
    panels = [_array_panel(layout, frame, block, shown[2:], way) for block in product(range(shown[0]), range(shown[1]))]
    rows = f"rows of {frame.wrap}" if frame.wrap else frame.row.name
    names = (" ".join(dim.name for dim in frame.down), frame.across.name, rows, frame.column.name)
    tail = layout.num_slots - math.prod(frame.extents)
    if tail and layout.step_levels is not None:
        facts += f", {count_text(tail)} of it behind the last tile"
    levels = tuple(frame.level(name, number) for number, name in enumerate(layout.level_names, start=1))
    strip = strip_panel(layout, way) if levels and len(layout.axes) == 1 else None
    cut = cut_text(names, frame.extents, shown)
    return Scene(
        str(layout),
        facts,
        in_rows(panels, shown[3], shown[1], most),
        levels,
        way,
        layout.axes[-1],
        cut,
        strip,
        layout.axis_terms[-1].extent - 1,
    )


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
        _headings(frame.column if frame.wrap else frame.row, indices, padding, 0),
        () if frame.wrap else _headings(frame.column, indices, padding, 1),
        each_cell(lambda offset, here: str(offset) if here else "", places[..., -1], there),
        each_cell(lambda tip, here: tip if here else "", cell_tips(layout, places, indices, padding), there),
        padding,
        colour_numbers(layout, places, way),
        places,
        indices,
    )


def _places(layout: AddressMap, at: dict[DrawnDim, Any], size: tuple[int, ...]) -> Array:
    """The address of every cell: positions to coordinates by mixed radix, coordinates to axes by the map's terms."""
    coordinates: dict[int, Any] = {}
    for dim, position in at.items():
        rest = position
        for leaf in reversed(dim.leaves):
            rest, coordinates[leaf.place] = rest // leaf.size, rest % leaf.size
    sums = [sum((coordinates.get(c, 0) * stride for c, stride in axis.terms), start=0) for axis in layout.axis_terms]
    return np.stack([np.broadcast_to(value, size) for value in sums], axis=-1)


def _headings(dim: DrawnDim, indices: Array, padding: Array, axis: int) -> tuple[str, ...]:
    """The index of every row (axis 0) or column (axis 1) along its dim, blank where all is padding."""
    if not dim.name:
        return ("",) * int(padding.shape[axis])
    headings: list[str] = []
    for k, outside in enumerate(np.moveaxis(padding, axis, 0)):
        here: Array = np.full(len(outside), k) if dim.logical is None else np.take(indices[..., dim.logical], k, axis)
        headings.append("" if outside.all() else str(here[~outside][0]))
    return tuple(headings)

"""What a picture of a layout shows, before it is ink: panels of cells, their labels, tiles and padding.

Two views. An *array* view places every slot where its element stands in the array, padding around it, and writes the
offset into the cell: tiled and paged maps. A *memory* view goes the other way: it places slots by address and writes
the index into the cell: lanes and shards, and the strip under a small tiled array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from tilewright.layout._index_map import IndexMap
from tilewright.layout._lineage import Dim, lineage
from tilewright.layout._paged import PagedLayout
from tilewright.layout._tiled import TensorLayout
from tilewright.render import bytes_text, count_text, ratio_text

__all__ = ["COLOURS", "MAX_CELLS", "Level", "Panel", "Scene", "make_scene"]

MAX_CELLS = 4096
COLOURS = 8
_WRAP = 32
_STRIP_SLOTS, _STRIP_WIDTH = 96, 16

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Level:
    """The outlines of one tile level: a line every so many rows and columns (None: no line that way)."""

    name: str
    row_period: int | None
    column_period: int | None


@dataclass(frozen=True)
class Panel:
    """A grid of cells; ``padding`` and ``colours`` are arrays of the shape of ``labels`` and ``tips``.

    A cell without a tip is not there (behind the end of a row that was folded).
    """

    heading: str
    row_name: str
    column_name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    tips: tuple[tuple[str, ...], ...]
    padding: Array
    colours: Array


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


def make_scene(layout: IndexMap, *, most_columns: int = 128, most_rows: int = 64) -> Scene:
    """The picture of a layout, cut to one corner where it has more than :data:`MAX_CELLS` cells."""
    slots, padding = layout.num_slots, layout.num_slots - layout.num_elements
    facts = f"{bytes_text(layout.size_bytes)} in memory, {ratio_text(layout.padding_ratio)} the data; "
    facts += f"{count_text(slots)} slots, {f'{count_text(padding)} of them padding' if padding else 'no padding'}"
    if not slots:
        return Scene(str(layout), "no elements", (), (), "", "")
    if isinstance(layout, (TensorLayout, PagedLayout)):
        return _array_scene(layout, facts, most_rows, most_columns)
    return _memory_scene(layout, facts, most_rows, most_columns)


# -- by position in the array ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """The dims of an array view; ``wrap``: a single row is folded into rows of that many positions."""

    down: tuple[Dim, ...]
    across: Dim
    row: Dim
    column: Dim
    wrap: int

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Positions down, across, of rows and of columns."""
        down = math.prod(dim.extent for dim in self.down)
        if self.wrap:
            return down, self.across.extent, -(-self.column.extent // self.wrap), self.wrap
        return down, self.across.extent, self.row.extent, self.column.extent

    def positions(self, down: int, across: int, rows: int, columns: int) -> dict[Dim, Any]:
        """Positions along every dim of the cells of one panel."""
        r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
        found: dict[Dim, Any] = {self.across: across, self.row: r, self.column: c}
        if self.wrap:
            found |= {self.row: 0, self.column: np.minimum(r * self.wrap + c, self.column.extent - 1)}
        for dim in reversed(self.down):
            down, found[dim] = divmod(down, dim.extent)
        return found

    def present(self, rows: int, columns: int) -> Array:
        """Which cells of a panel are there: all, but for the end of the last row of a folded one."""
        there = np.ones((rows, columns), bool)
        if self.wrap:
            there = np.arange(rows * columns).reshape(rows, columns) < self.column.extent
        return there

    def level(self, name: str, number: int) -> Level:
        """The outlines of a tile level in this frame."""
        row, column = self.row.period(number), self.column.period(number)
        if self.wrap and column:
            return Level(name, column // self.wrap if column % self.wrap == 0 else None, None)
        return Level(name, row, column)


_NOTHING = Dim("", None, ())


def _frame(layout: IndexMap, most_columns: int) -> _Frame:
    dims = list(lineage(layout))
    *outer, row, column = [*[_NOTHING] * (2 - len(dims)), *dims]
    live = [dim for dim in outer if dim.extent > 1]
    across = live.pop() if live else Dim("across", None, ())
    wrap = 1 << (min(_WRAP, most_columns).bit_length() - 1)
    return _Frame(tuple(live), across, row, column, wrap if row.extent == 1 and column.extent > 2 * wrap else 0)


def _shown(extents: Sequence[int], most: Sequence[int]) -> tuple[int, ...]:
    """How much of every extent is drawn: each under its own bound, all together under MAX_CELLS."""
    shown = [min(n, bound) for n, bound in zip(extents, most, strict=True)]
    for k in range(len(shown)):
        while shown[k] > 1 and math.prod(shown) > MAX_CELLS:
            shown[k] = -(-shown[k] // 2)
    return tuple(shown)


def _array_scene(layout: IndexMap, facts: str, most_rows: int, most_columns: int) -> Scene:
    frame = _frame(layout, most_columns)
    shown = _shown(frame.extents, (3, 4, most_rows, most_columns))
    panels = tuple(
        tuple(_array_panel(layout, frame, down, across, shown[2:]) for across in range(shown[1]))
        for down in range(shown[0])
    )
    rows = f"rows of {frame.wrap}" if frame.wrap else frame.row.name
    names = (" ".join(dim.name for dim in frame.down), frame.across.name, rows, frame.column.name)
    tail = layout.num_slots - math.prod(frame.extents)
    if tail and len(layout.axes) == 1:
        facts += f", {count_text(tail)} of it behind the last tile"
    levels = tuple(frame.level(name, number) for number, name in enumerate(_level_names(layout), start=1))
    colour_by = "page" if isinstance(layout, PagedLayout) else "tile" if levels else ""
    strip = _strip(layout, frame) if levels and len(layout.axes) == 1 else None
    cut = _cut(names, frame.extents, shown)
    return Scene(str(layout), facts, panels, levels, colour_by, layout.axes[-1], cut, strip)


def _level_names(layout: IndexMap) -> list[str]:
    if isinstance(layout, TensorLayout):
        return [f"T({','.join('*' if t == -1 else str(t) for t in tile)})" for tile in layout.tiles]
    assert isinstance(layout, PagedLayout)
    return [f"{name} ({','.join(map(str, sizes))})" for name, sizes in (("page", layout.page), ("line", layout.line))]


def _array_panel(layout: IndexMap, frame: _Frame, down: int, across: int, size: tuple[int, ...]) -> Panel:
    at = frame.positions(down, across, size[0], size[1])
    places = _places(layout, at, size)
    indices = layout.indices(places)
    there = frame.present(size[0], size[1])
    padding = _is_padding(layout, places, indices) & there
    outer = [(dim, at[dim]) for dim in (*frame.down, frame.across) if dim.extent > 1]
    heading = ", ".join(f"{dim.name} = {position}" for dim, position in outer)
    colours: Array = np.broadcast_to(_tile_colours(at), (size[0], size[1]))
    return Panel(
        heading,
        frame.column.name if frame.wrap else frame.row.name,
        "" if frame.wrap else frame.column.name,
        _headings(frame.column if frame.wrap else frame.row, indices, padding, 0),
        () if frame.wrap else _headings(frame.column, indices, padding, 1),
        _where(there, tuple(tuple(str(v) for v in row) for row in places[..., -1].tolist())),
        _where(there, _tips(layout, places, indices, padding)),
        padding,
        colours,
    )


def _places(layout: IndexMap, at: dict[Dim, Any], size: tuple[int, ...]) -> Array:
    """The address of every cell: positions to coordinates by mixed radix, coordinates to axes by the map's terms."""
    coordinates: dict[int, Any] = {}
    for dim, position in at.items():
        rest = position
        for leaf in reversed(dim.leaves):
            rest, coordinates[leaf.place] = rest // leaf.size, rest % leaf.size
    sums = [sum((coordinates.get(c, 0) * stride for c, stride in axis.terms), start=0) for axis in layout.axis_terms]
    return np.stack([np.broadcast_to(value, size) for value in sums], axis=-1)


def _where(there: Array, texts: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """The texts of the cells that are there."""
    rows = zip(there.tolist(), texts, strict=True)
    return tuple(tuple(text if here else "" for here, text in zip(*row, strict=True)) for row in rows)


def _is_padding(layout: IndexMap, places: Array, indices: Array) -> Array:
    return np.asarray((indices < 0).any(axis=-1) if layout.rank else places[..., 0] != 0)


def _tile_colours(at: dict[Dim, Any]) -> Any:
    """A colour per tile of the first level, unlike those of its neighbours."""
    steps = (1, 3, 5, 7)
    numbers = [position // period for dim, position in reversed(at.items()) if (period := dim.period(1))]
    return sum((n * steps[k % 4] for k, n in enumerate(numbers)), start=0) % COLOURS


def _headings(dim: Dim, indices: Array, padding: Array, axis: int) -> tuple[str, ...]:
    """The index of every row (axis 0) or column (axis 1) along its dim, blank where all is padding."""
    if not dim.name:
        return ("",) * int(padding.shape[axis])
    found: list[str] = []
    for k, outside in enumerate(np.moveaxis(padding, axis, 0)):
        here: Array = np.full(len(outside), k) if dim.logical is None else np.take(indices[..., dim.logical], k, axis)
        found.append("" if outside.all() else str(here[~outside][0]))
    return tuple(found)


def _cut(names: Sequence[str], extents: Sequence[int], shown: Sequence[int]) -> str:
    parts = [
        f"{name or 'positions'} 0..{some - 1} of {count_text(every)}"
        for name, every, some in zip(names, extents, shown, strict=True)
        if some < every
    ]
    return f"one corner: {', '.join(parts)} (padding included)" if parts else ""


# -- by place in memory ---------------------------------------------------------------------------------------------


def _strip(layout: IndexMap, frame: _Frame) -> Panel | None:
    """All slots of a small array in the order of memory, in the colours of the array's cells."""
    slots = layout.num_slots
    width = next((w for w in range(_STRIP_WIDTH, _STRIP_WIDTH // 2 - 1, -1) if slots % w == 0), 0)
    if slots <= _STRIP_WIDTH:
        width = slots
    if slots > _STRIP_SLOTS or not width:
        return None
    down, across, *size = frame.extents
    colours = np.zeros(slots, int)
    for each in product(range(down), range(across)):
        at = frame.positions(*each, size[0], size[1])
        colours[_places(layout, at, tuple(size))[..., 0]] = np.broadcast_to(_tile_colours(at), size)
    places = np.arange(slots).reshape(-1, width, 1)
    return _memory_panel(layout, places, "memory, in the order of offsets", colours[places[..., 0]])


def _memory_scene(layout: IndexMap, facts: str, most_rows: int, most_columns: int) -> Scene:
    extents = [axis.extent for axis in layout.axis_terms]
    names = [*layout.axes]
    if len(extents) == 2:
        extents, names = [1, *extents], ["", *names]
    shown = _shown([1, *extents], (1, 4, most_rows, most_columns))[1:]
    panels = []
    for outer in range(shown[0]):
        grid = np.stack(np.meshgrid(*(np.arange(n) for n in shown[1:]), indexing="ij"), axis=-1)
        if len(layout.axes) == 3:
            grid = np.concatenate([np.full((*grid.shape[:-1], 1), outer), grid], axis=-1)
        heading = f"{names[0]} {outer}" if names[0] else ""
        panels.append(_memory_panel(layout, grid, heading, grid[..., 0] % COLOURS))
    cut = _cut(names, extents, shown)
    what = {"npu": "NPU"}.get(layout.axes[0], layout.axes[0])
    return Scene(str(layout), facts, (tuple(panels),), (), what, "index", cut)


def _memory_panel(layout: IndexMap, places: Array, heading: str, colours: Array) -> Panel:
    indices = layout.indices(places)
    padding = _is_padding(layout, places, indices)
    labels = tuple(
        tuple("" if out else ",".join(map(str, index)) for index, out in zip(row, outs, strict=True))
        for row, outs in zip(indices.tolist(), padding.tolist(), strict=True)
    )
    single = len(layout.axes) == 1
    rows = tuple(str(row[0, -1 if single else -2]) for row in places)
    columns = () if single else tuple(map(str, range(places.shape[1])))
    names = ("", "") if single else layout.axes[-2:]
    tips = _tips(layout, places, indices, padding)
    return Panel(heading, names[0], names[1], rows, columns, labels, tips, padding, colours)


def _tips(layout: IndexMap, places: Array, indices: Array, padding: Array) -> tuple[tuple[str, ...], ...]:
    def tip(place: list[int], index: list[int], out: bool) -> str:
        where = ", ".join(f"{name} {value}" for name, value in zip(layout.axes, place, strict=True))
        return f"{where}: {'padding' if out else '(' + ', '.join(map(str, index)) + ')'}"

    rows = zip(places.tolist(), indices.tolist(), padding.tolist(), strict=True)
    return tuple(tuple(tip(*cell) for cell in zip(*row, strict=True)) for row in rows)

"""Memory as a strip under a ruler of bytes: elements, cache lines or tiles in the order of their addresses.

byte   +0   +4   +8  ...       one row per line of memory (or per NPU, page or shard where it fits in one)
   0  |0,0 |0,1 |1,0 |         a cell: one element, one line of 64 bytes or one tile; the hatched part is padding
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.draw.panels import (
    Array,
    Bounds,
    Panel,
    Scene,
    Texts,
    choose_colour,
    colour_numbers,
    cut_text,
    each_cell,
    layout_facts,
    padding_cells,
)
from tilewright.layout.draw.picture import draw_picture
from tilewright.layout.draw.scene import MOST_SLOTS
from tilewright.layout.explain.derivation import lineage
from tilewright.layout.index.address_map import AddressMap
from tilewright.render import count_text

UNITS = ("element", "line", "tile")
_LINE_BITS = 512
_MOST_CELLS = 1024
_MOST_READ = 1 << 19  # slots that are looked at
_FEW, _MANY = 512, 4096  # slots up to which elements are drawn, lines up to which lines are


@dataclass(frozen=True)
class _Grid:
    """How a memory is cut: ``groups`` memories of ``slots`` each, ``columns`` cells of ``unit`` slots to a row."""

    layout: AddressMap
    unit: int
    name: str
    columns: int

    @property
    def slots(self) -> int:
        """Slots of one NPU, page or shard, or of the whole."""
        return self.layout.memory_slots

    @property
    def groups(self) -> int:
        """NPUs, pages or shards."""
        return 1 if len(self.layout.axes) == 1 else self.layout.axis_terms[0].extent

    @property
    def rows_each(self) -> int:
        """Rows of one group."""
        return -(-self.slots // (self.unit * self.columns))


def ruler_svg(layout: AddressMap, *, unit: str = "auto", colour: str = "auto") -> str:
    """The memory of a layout as a strip under a ruler of byte addresses, as an SVG.

    A cell is an ``element``, a cache ``line`` (64 bytes, or a segment's own) or a ``tile``; ``auto`` takes elements up
    to 512 of them, then lines, then tiles. What is padding is hatched: the whole cell, or the part of a line or tile.
    Maps of several axes show NPU by NPU (page by page, shard by shard). ``colour`` as in ``to_svg``. Large memories
    show their beginning and say so. Raises :class:`UsageError` for a unit that the layout does not have.

    >>> from tilewright.layout import parse
    >>> "byte 68, one slot: (2, 3)" in ruler_svg(parse("f32[3,5]{1,0:T(2,2)}"))
    True
    """
    return str(draw_picture(ruler_scene(layout, unit=unit, colour=colour)).svg())


def ruler_scene(layout: AddressMap, *, unit: str = "auto", colour: str = "auto", most: Bounds = Bounds()) -> Scene:  # noqa: B008
    """The memory of a layout in the order of its bytes; see :func:`ruler_svg`."""
    if layout.num_slots > MOST_SLOTS:
        raise UnsupportedError(f"{layout} is larger than 2**62 elements: there is no such memory to draw")
    if not layout.element_bits:
        raise UnsupportedError(f"{layout} takes no memory: there is nothing to draw")
    layout.require_injective()
    if not layout.num_slots:
        return Scene(str(layout), "no elements", (), (), "none", "")
    grid = _grid(layout, unit, most.columns)
    way = choose_colour(layout, colour)
    every = grid.groups * grid.rows_each
    rows = max(1, min(every, most.rows, _MOST_CELLS // grid.columns, _MOST_READ // (grid.columns * grid.unit)))
    panel = _panel(layout, grid, rows, way)
    cut = cut_text(("rows",), (every,), (rows,))
    facts = f"{layout_facts(layout)}; {_cells(grid)}"
    labels = "index" if grid.unit == 1 else "number of elements"
    return Scene(str(layout), facts, ((panel,),), (), way, labels, cut, last=grid.slots - 1)


def _cells(grid: _Grid) -> str:
    size = grid.unit * grid.layout.element_bits
    long = f"{count_text(size // 8)} B" if size % 8 == 0 else f"{size} bits"
    return f"a cell is one {grid.name}, {long}"


# -- how much a cell and a row hold ---------------------------------------------------------------------------------


def _grid(layout: AddressMap, unit: str, most_columns: int) -> _Grid:
    name = _unit_for(layout) if unit == "auto" else unit
    if name not in UNITS:
        raise UsageError(f"no unit called {unit!r}", how=f"choose one of {', '.join(UNITS)}")
    if name == "element":
        per_line = _LINE_BITS // layout.element_bits
        return _Grid(layout, 1, name, _columns(layout, 1, min(32, max(8, per_line)), most_columns))
    slots = layout.line_elements if name == "line" else _tile_slots(layout)
    if not slots:
        raise UsageError(
            f"{layout} has no {name}s of whole elements",
            how="draw its elements" if name == "line" else "draw its lines",
        )
    return _Grid(layout, slots, name, _columns(layout, slots, 16, most_columns))


def _columns(layout: AddressMap, unit: int, usual: int, most: int) -> int:
    """Cells to a row: all if they fit, else the usual number, a power of two where a terminal is narrower."""
    cells = -(-layout.memory_slots // unit)
    if cells <= min(usual, most):
        return cells
    return usual if usual <= most else 1 << (max(1, most).bit_length() - 1)


def _unit_for(layout: AddressMap) -> str:
    """Elements while they are few, then lines, then tiles."""
    lines = layout.line_elements
    if layout.num_slots <= _FEW or not lines:
        return "element"
    many = layout.num_slots // lines > _MANY
    return "tile" if many and _tile_slots(layout) > lines else "line"


def _tile_slots(layout: AddressMap) -> int:
    """Elements of a tile of the first level, padding included; 0 without tiles."""
    if not layout.tiles:
        return 0
    return math.prod(dim.period(1) or 1 for dim in lineage(layout))


# -- the cells ------------------------------------------------------------------------------------------------------


def _panel(layout: AddressMap, grid: _Grid, rows: int, way: str) -> Panel:
    group, start = _starts(grid, rows)  # int64[rows, columns]: group and first slot of every cell
    flat = start[..., None] + np.arange(grid.unit)
    there = (flat < grid.slots) & (group < grid.groups)[..., None]
    places = _places(layout, np.broadcast_to(group[..., None], flat.shape), np.minimum(flat, grid.slots - 1))
    indices = layout.indices(places)
    data = ~padding_cells(layout, places, indices) & there
    count, held = there.sum(axis=-1), data.sum(axis=-1)
    first = np.argmax(data, axis=-1)[..., None, None]
    at = np.take_along_axis(places, first, axis=-2)[..., 0, :]
    index = np.take_along_axis(indices, first, axis=-2)[..., 0, :]
    return Panel(
        heading="",
        row_name="byte" if grid.groups == 1 else layout.axes[0] if grid.rows_each == 1 else f"{layout.axes[0]}: byte",
        column_name="",
        rows=_row_names(grid, rows),
        columns=_marks(grid),
        labels=_labels(grid, index, held, count),
        tips=_tips(grid, group, start, index, held, count),
        padding=(held == 0) & (count > 0),
        colours=colour_numbers(layout, at, way),
        places=at,
        indices=np.where((held > 0)[..., None], index, -1),
        shares=None if grid.unit == 1 else held / np.maximum(count, 1),
        ticks=True,
    )


def _starts(grid: _Grid, rows: int) -> tuple[Array, Array]:
    r, c = np.meshgrid(np.arange(rows), np.arange(grid.columns), indexing="ij")
    return r // grid.rows_each, ((r % grid.rows_each) * grid.columns + c) * grid.unit


def _places(layout: AddressMap, group: Array, flat: Array) -> Array:
    """Axis values of slots ``flat`` of the memories ``group``."""
    values: list[Any] = []
    for axis in reversed(layout.inner_axes):
        values.insert(0, flat % axis.extent)
        flat = flat // axis.extent
    return np.stack([*([] if len(layout.axes) == 1 else [group]), *values], axis=-1)


def _byte(grid: _Grid, slot: int) -> str:
    bits = slot * grid.layout.element_bits
    return f"{bits // 8}" if bits % 8 == 0 else f"{bits // 8}.{bits % 8}"


def _row_names(grid: _Grid, rows: int) -> tuple[str, ...]:
    names = []
    for row in range(rows):
        group, part = divmod(row, grid.rows_each)
        byte = _byte(grid, part * grid.columns * grid.unit)
        names.append(byte if grid.groups == 1 else f"{group}" if grid.rows_each == 1 else f"{group}: {byte}")
    return tuple(names)


def _marks(grid: _Grid) -> tuple[str, ...]:
    """What stands over the columns: how many bytes they are from the row's start, where that is a whole number."""
    steps = (c * grid.unit * grid.layout.element_bits for c in range(grid.columns))
    return tuple(f"+{bits // 8}" if bits % 8 == 0 else "" for bits in steps)


def _labels(grid: _Grid, index: Array, held: Array, count: Array) -> Texts:
    """The index of an element; how many elements a line or tile holds."""
    if grid.unit > 1:
        return each_cell(lambda h, n: str(h) if n else "", held, count)
    return each_cell(lambda i, h: ",".join(map(str, i)) if h else "", index, held)


def _tips(grid: _Grid, group: Array, start: Array, index: Array, held: Array, count: Array) -> Texts:
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

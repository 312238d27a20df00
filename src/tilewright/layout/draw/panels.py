"""What pictures of layouts are made of: cells in panels, panels in a scene, and how much of a large layout is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.layout.index.address_map import AddressMap
from tilewright.render import count_text

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

"""How often each line of a tensor was touched, missed, loaded and stored: a profile's map of memory, drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.segments import Storage
from tilewright.isa.kernels.records import LINE_ACCESSES
from tilewright.layout.draw.panels import Bounds, Level, Panel, Scene
from tilewright.layout.draw.picture import draw_picture
from tilewright.layout.draw.terminal import scene_text
from tilewright.layout.kinds.paged import PagedLayout
from tilewright.render import count_text
from tilewright.render.drawing import Drawing

if TYPE_CHECKING:
    from rich.text import Text

Array = np.ndarray[Any, Any]


def new_heat(storages: dict[str, Storage]) -> dict[str, Array]:
    """Counters at zero: int64[lines, kinds of access] for every tensor."""
    return {
        name: np.zeros((s.map.num_pages * s.map.page_elements // s.map.line_elements, len(LINE_ACCESSES)), np.int64)
        for name, s in storages.items()
    }


def _kind(name: str, doc: str) -> property:
    return property(lambda heat: heat.of(name), doc=doc)


@dataclass(frozen=True, eq=False)
class Heat:
    """Accesses to the lines of one tensor during a run.

    ==============  =======================================================================================
    ``lines``       int64[lines, 5], lines counted through all pages, padding included; columns as below
    ``touches``     by the columns of B of ``mm``; ``misses`` of them in L1, ``l2_misses`` of those in L2
    ``loads``       by ``ld``; ``stores`` by ``st``: requests of a thread for a line
    ==============  =======================================================================================

    The five are also arrays of the tensor's shape: each element has its line's count. Sums over ``lines``, taken over
    all tensors, are the run's ``l1_touches``, ``l1_misses``, ``l2_misses``, ``load_lines`` and ``store_lines``.

    >>> from tilewright.isa import MatrixUnitConfig, profile
    >>> program = "segment ur1, $A\\ntid r1\\nmov r0, 0\\nld r2, ur1:rf0:0x00\\nhalt"
    >>> found = profile(program, {"A": np.arange(8, dtype=np.int32).reshape(4, 2)}, MatrixUnitConfig(threads=4))
    >>> found.heat("A").loads.tolist()
    [[1, 1], [1, 1], [1, 1], [1, 1]]
    """

    name: str
    storage: Storage
    lines: Array

    @property
    def layout(self) -> PagedLayout:
        """The pages of lines that hold the elements."""
        return self.storage.map

    @property
    def totals(self) -> dict[str, int]:
        """Accesses to the whole tensor, by kind."""
        return dict(zip(LINE_ACCESSES, self.lines.sum(axis=0).tolist(), strict=True))

    @cached_property
    def line_of(self) -> Array:
        """int64, of the tensor's shape: the row of ``lines`` that each element's line has."""
        return self.storage.line_numbers(*(np.arange(n) for n in self.layout.shape))

    touches = _kind("touches", "Touches by mm, of the tensor's shape.")
    misses = _kind("misses", "Of the touches, those that L1 did not have.")
    l2_misses = _kind("l2_misses", "Of the misses, those that L2 did not have either.")
    loads = _kind("loads", "Requests by ld for a line.")
    stores = _kind("stores", "Requests by st for a line.")

    def of(self, kind: str) -> Array:
        """One kind, of the tensor's shape; ``accesses`` is touches, loads and stores together."""
        return self.per_line(kind)[self.line_of]

    def per_line(self, kind: str) -> Array:
        """Accesses of one kind to every line: int64[lines]."""
        if kind == "accesses":
            return np.asarray(self.lines[:, [0, 3, 4]].sum(axis=1))
        if kind not in LINE_ACCESSES:
            raise UsageError(f"no kind of access called {kind!r}", how=f"one of accesses, {', '.join(LINE_ACCESSES)}")
        return self.lines[:, LINE_ACCESSES.index(kind)]

    def drawing(self, kind: str = "accesses") -> Drawing:
        """A picture: the tensor's elements, lines or blocks, the deeper the colour the more accesses."""
        scene, top = _scene(self, kind)
        rows, columns = scene.panels[0][0].padding.shape
        if rows > 32 and columns < 16:  # a tower of few columns
            scene, top = _scene(self, kind, 32)
        legend = [("ramp", f"0 to {_number(top)} {_NAMES[kind]}")] if top else []
        legend += [("padding", f"no {_NAMES[kind]}")] if any(p.padding.any() for p in scene.everything) else []
        legend += [(f"edge l{min(k, 3)}", level.name) for k, level in enumerate(scene.levels)]
        return draw_picture(scene, legend)

    def to_svg(self, kind: str = "accesses") -> str:
        return str(self.drawing(kind).svg())

    def to_text(self, kind: str = "accesses", width: int = 100) -> Text:
        """The map for a terminal of ``width`` columns: a number per cell, ``·`` where nothing came."""

        def scene(most: Bounds) -> Scene:
            return replace(_scene(self, kind, most.rows, most.columns)[0], levels=())  # a line is often one row

        return scene_text(scene, width, legend=False)

    def __str__(self) -> str:
        return self.to_text().plain


# A tensor's accesses as a picture, with the cells, outlines and legend of the layout pictures; and in a terminal.

_NAMES = {
    "accesses": "accesses",
    "touches": "touches by mm",
    "misses": "L1 misses",
    "l2_misses": "L2 misses",
    "loads": "requests by ld",
    "stores": "requests by st",
}
_COLOURS, _FOLD, _BESIDE = 8, 32, 4
_ROWS, _COLUMNS, _BLOCKS = 64, 64, 8


@dataclass(frozen=True)
class _Frame:
    """How a tensor is cut into cells: ``block`` elements (rows, columns) a cell.

    A single row or column of cells is folded into rows of ``fold`` (0: it is not); it runs along ``axis``.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    line: tuple[int, int]
    outer: tuple[int, ...]
    fold: int = 0
    axis: int = 0

    @property
    def words(self) -> str:
        if self.block == (1, 1):
            return "a cell is an element, its number that of its line"
        size = " x ".join(str(n) for n in (self.block if self.shape[0] > 1 else self.block[1:]))
        lines = math.prod(-(-b // n) for b, n in zip(self.block, self.line, strict=True))
        return f"a cell is {size} elements" + (": one line" if lines == 1 else f", the mean over its {lines} lines")


def _frame(heat: Heat, rows: int, columns: int) -> _Frame:
    """How to cut a tensor into cells: elements where they fit, else lines, else blocks of lines."""
    layout = heat.layout
    *outer, r, c = (1, *layout.shape) if len(layout.shape) == 1 else layout.shape
    *_, line_r, line_c = (1, *layout.line)
    fits, fold, axis = r <= rows and c <= columns, min(_FOLD, columns), 1 if r == 1 else 0
    if fits:
        return _Frame((r, c), (1, 1), (line_r, line_c), tuple(outer))
    folded = r == 1 or line_c >= c
    most = [fold * rows] * 2 if folded else [rows, columns]
    block = [1, 1] if r == 1 and c <= most[1] else [min(line_r, r), min(line_c, c)]
    for d, size in enumerate((r, c)):
        while -(-size // block[d]) > most[d]:
            block[d] *= 2
    return _Frame((r, c), (block[0], block[1]), (line_r, line_c), tuple(outer), fold if folded else 0, axis)


def _means(heat: Heat, frame: _Frame, at: tuple[int, ...]) -> Array:
    """float64[kinds + 1, rows of cells, columns of cells]: the mean over a cell's elements; the last are accesses."""
    (rows, columns), (tall, wide) = frame.shape, frame.block
    counted = np.concatenate([heat.lines, heat.per_line("accesses")[:, None]], axis=1).T
    starts, means = np.arange(0, columns, wide), []
    lengths = np.diff([*starts, columns])
    outer = [np.array([x]) for x in at]
    for r in range(0, rows, tall):
        down = np.arange(r, min(r + tall, rows))
        along = [*outer, down, np.arange(columns)][-len(heat.layout.shape) :]
        lines = heat.storage.line_numbers(*along).reshape(len(down), columns)
        sums = np.add.reduceat(counted[:, lines].sum(axis=1), starts, axis=1)
        means.append(sums / (lengths * len(down)))
    return np.stack(means, axis=1)


def _number(value: float) -> str:
    """A count as text; a mean below 100 with one decimal."""
    return f"{value:.1f}" if value < 100 and value != int(value) else count_text(round(value))


def _span(start: int, size: int, end: int) -> str:
    last = min(start + size, end) - 1
    return str(start) if last == start else f"{start}..{last}"


def _panel(frame: _Frame, at: tuple[int, ...], means: Array, kind: str, top: float) -> Panel:
    (tall, wide), (rows, columns) = frame.block, frame.shape
    values = means[_index(kind)]
    across = values.shape[1]
    tips = [
        [_tip(at, _span(r * tall, tall, rows), _span(c * wide, wide, columns), means[:, r, c]) for c in range(across)]
        for r in range(len(values))
    ]
    row_names = [_span(r * tall, tall, rows) for r in range(len(values))]
    column_names = [str(c * wide) for c in range(across)]
    if frame.fold:
        size = values.size
        padded = np.pad(values.reshape(-1), (0, -size % frame.fold), constant_values=np.nan)  # NaN: no cell
        values = padded.reshape(-1, frame.fold)
        flat = [tip for row in tips for tip in row] + [""] * (values.size - size)
        tips = [flat[r : r + frame.fold] for r in range(0, len(flat), frame.fold)]
        row_names = [str(r * frame.fold * frame.block[frame.axis]) for r in range(len(values))]
        column_names = [f"+{c * frame.block[frame.axis]}" for c in range(values.shape[1])]
    here: Array = ~np.isnan(values)
    values = np.where(here, values, 0.0)
    never: Array = here & (values == 0)
    labels = tuple(tuple(_number(v) if v else "" for v in row) for row in values.tolist())
    colours = np.clip(np.ceil(values * _COLOURS / max(top, 1e-9)).astype(np.int64) - 1, 0, _COLOURS - 1)
    heading = f"[{', '.join(map(str, at))}]" if at else ""
    names, places = (tuple(row_names), tuple(column_names)), np.zeros((*values.shape, 1), np.int64)
    return Panel(heading, "", "", *names, labels, tuple(map(tuple, tips)), never, colours, places, places)


def _index(kind: str) -> int:
    return len(LINE_ACCESSES) if kind == "accesses" else LINE_ACCESSES.index(kind)


def _tip(at: tuple[int, ...], row: str, column: str, means: Array) -> str:
    parts = [f"{_number(v)} {_NAMES[kind]}" for kind, v in zip(LINE_ACCESSES, means.tolist(), strict=False) if v]
    return f"({', '.join([*map(str, at), row, column])}): {', '.join(parts) or 'never accessed'}"


def _levels(heat: Heat, frame: _Frame) -> tuple[Level, ...]:
    """Pages, where there are several and cells do not cross them, and lines where a cell is an element."""
    levels = []
    page = (1, *heat.layout.page)[-2:]
    several = any(p < n for p, n in zip(page, frame.shape, strict=True)) and not frame.fold
    if several and all(p % b == 0 for p, b in zip(page, frame.block, strict=True)):
        periods = [p // b for p, b in zip(page, frame.block, strict=True)]
        levels.append(Level(f"page ({', '.join(map(str, heat.layout.page))})", periods[0], periods[1]))
    if frame.block == (1, 1) and not frame.fold:
        levels.append(Level(f"line ({', '.join(map(str, heat.layout.line))})", frame.line[0], frame.line[1]))
    return tuple(levels)


def _facts(heat: Heat) -> str:
    """What happened to the tensor, in a line."""
    t, layout = heat.totals, heat.layout
    firsts = (np.arange(0, n, size) for n, size in zip(layout.shape, layout.line, strict=True))
    lines = np.unique(heat.storage.line_numbers(*firsts))  # those that hold an element
    never = int((heat.per_line("accesses")[lines] == 0).sum())
    parts = [f"{count_text(t[kind])} by {name}" for kind, name in (("loads", "ld"), ("stores", "st")) if t[kind]]
    if t["touches"]:
        missed = f"{count_text(t['misses'])} missed L1, {count_text(t['l2_misses'])} L2"
        parts = [f"{count_text(t['touches'])} by mm ({missed})", *parts]
    text = f"accesses to its lines: {', '.join(parts) or 'none'}"
    return text + (f"; {count_text(never)} lines had none" if never and parts else "")


def _scene(heat: Heat, kind: str, rows: int = _ROWS, columns: int = _COLUMNS) -> tuple[Scene, float]:
    """The picture, and the number of its deepest colour."""
    heat.per_line(kind)  # a kind there is none of is an error
    frame = _frame(heat, rows, columns)
    shown, every = list(islice(product(*map(range, frame.outer)), _BLOCKS)), math.prod(frame.outer)
    means = [_means(heat, frame, at) for at in shown]
    top = max(float(m[_index(kind)].max()) for m in means)
    panels = [_panel(frame, at, m, kind, top) for at, m in zip(shown, means, strict=True)]
    beside = max(1, min(_BESIDE, 2 * _COLUMNS // max(1, panels[0].padding.shape[1])))
    grid = tuple(tuple(panels[k : k + beside]) for k in range(0, len(panels), beside))
    cut = f"the first {len(shown)} of {count_text(every)} blocks of rows and columns" if len(shown) < every else ""
    shape = ",".join(map(str, heat.layout.shape))
    title = f"{heat.name} {heat.storage.dtype}[{shape}]: {_NAMES[kind]} by line"
    words = "; ".join(part for part in (frame.words, cut) if part)
    return Scene(title, _facts(heat), grid, _levels(heat, frame), "offset", "", words), top

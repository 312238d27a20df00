"""What scenes are made of: cells in panels, how much of a large layout is shown, and what a cell's colour says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.errors import UsageError, check_known
from tilewright.layout.explain import lineage
from tilewright.layout.index.address_map import AddressMap, decode_many
from tilewright.layout.index.types import Array, memory_name
from tilewright.render import bytes_text, count_text
from tilewright.render.formats import ratio_text

MAX_CELLS = 4096
MOST_SLOTS = 1 << 62  # offsets are drawn from int64 arrays

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
    ``first``             how many rows and columns lie before the first that is shown: outlines count from there
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
    first: tuple[int, int] = (0, 0)

    @property
    def elements(self) -> Array:
        """Which cells hold an element: they are there, and they are not padding."""
        there = np.array([[bool(tip) for tip in row] for row in self.tips], bool).reshape(self.padding.shape)
        return there & ~self.padding


@dataclass(frozen=True)
class Scene:
    """A whole picture.

    =============  ==========================================================================================
    ``panels``     the cells, in a grid
    ``cut``        which part is shown ("" for everything)
    ``strip``      the slots of a small array in the order of memory
    ``beginning``  the first elements, for pictures whose cells are too small for numbers
    ``edge``       the last elements and the padding behind them, where the panels do not reach so far
    ``words``      what the innermost tile packs into a word, in a sentence
    ``marked``     the place of an element to be pointed out
    ``devices``    of a mesh what every device holds, above the panels, which are of the device ``opened``
    =============  ==========================================================================================
    """

    title: str
    facts: str
    panels: tuple[tuple[Panel, ...], ...]
    levels: tuple[Level, ...]
    colour_by: str
    label_is: str
    cut: str = ""
    strip: Panel | None = None
    last: int = 0  # the last offset, for the legend of colours by offset
    beginning: Panel | None = None
    edge: Panel | None = None
    words: str = ""
    marked: tuple[int, ...] | None = None
    devices: Panel | None = None
    opened: int | None = None

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


def between_lines(count: int, period: int | None, first: int) -> list[range]:
    """Rows or columns between outlines that stand every ``period`` of them; ``first`` lie before those shown.

    >>> between_lines(5, 4, 2)
    [range(0, 2), range(2, 5)]
    """
    step = period or first + count
    starts = [0, *range(step - first % step, count, step)]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], count], strict=True)]


def cut_text(
    names: Sequence[str], extents: Sequence[int], shown: Sequence[int], starts: Sequence[int] | None = None
) -> str:
    """Which part is shown, or nothing where all is; without ``starts`` it is the first corner."""
    parts = [
        f"{name or 'positions'} {start}..{start + some - 1} of {count_text(every)}"
        for name, every, some, start in zip(names, extents, shown, starts or [0] * len(names), strict=True)
        if some < every
    ]
    what = "one corner" if starts is None or not any(starts) else "in view"
    return f"{what}: {', '.join(parts)} (padding included)" if parts else ""


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
    (('tile', 'line', 'offset', 'none'), ('channel', 'batch', 'npu', 'line', 'offset', 'none'))
    """
    if len(layout.axes) > 1:
        return (*layout.coloured_dims, layout.axes[0], "line", "offset", "none")
    return ("tile", "line", "offset", "none") if layout.tiles else ("none", "line", "offset")


def colour_name(way: str) -> str:
    """What has a colour of its own, in words."""
    return _NAMES.get(way, way)


def choose_colour(layout: AddressMap, colour: str) -> str:
    """A way to colour this layout: ``auto`` is its default."""
    ways = colour_ways(layout)
    if colour == "auto":
        return ways[0]
    check_known(colour.lower(), ways, f"{layout} cannot be coloured by {colour!r}", say="choose one of")
    return colour.lower()


def colour_numbers(layout: AddressMap, places: Array, way: str) -> Array:
    """A number below :data:`COLOURS` for every place (int64[..., axes]); ``offset`` numbers rise with the offset."""
    if way == "none":
        return np.zeros(places.shape[:-1], np.int64)
    if way == "offset":
        return flat_offsets(layout, places) // max(1, -(-layout.memory_slots // COLOURS))
    if way in layout.coloured_dims:  # per index; unlike those of the indices before and behind on the same NPU
        index = np.maximum(layout.indices(places)[..., layout.coloured_dims[way]], 0)
        return np.asarray((index + index // COLOURS + index // layout.axis_terms[0].extent * 2) % COLOURS)
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


def layout_facts(layout: AddressMap) -> str:
    """Size and padding in one line."""
    padding = layout.num_slots - layout.num_elements
    slots = f"{count_text(layout.num_slots)} slots, {f'{count_text(padding)} of them' if padding else 'no'} padding"
    space = layout.memory_space
    where = f"S({space}), {memory_name(space)}" if space else "memory"
    return f"{bytes_text(layout.size_bytes)} in {where}, {ratio_text(layout.padding_ratio)} the data; {slots}"


# Which part is shown: ranges along the dims, or the surroundings of one position.

_RANGE = re.compile(r"\s*(?:(\d*)\s*:\s*(\d*)|(\d+))\s*", re.ASCII)


class Span(NamedTuple):
    """The positions from ``start`` on, ``count`` of them."""

    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count


def spans_of(window: str, names: Sequence[str], extents: Sequence[int], layout: str) -> list[Span]:
    """One span per dim (padding included) out of ``0:8,5,:``; a number alone is one position.

    >>> spans_of("0:8,5,:", ["d0", "d1", "d2"], [16, 8, 4], "...")
    [Span(start=0, count=8), Span(start=5, count=1), Span(start=0, count=4)]
    """
    parts = window.split(",")
    how = f"a range each along {', '.join(names)}, as {','.join(f'0:{min(8, n)}' for n in extents)}"
    if len(parts) != len(names):
        raise UsageError(f"the window {window!r} has {len(parts)} of {len(names)} ranges for {layout}", how=how)
    spans = []
    for part, name, extent in zip(parts, names, extents, strict=True):
        found = _RANGE.fullmatch(part)
        if not found or max(map(len, part.split(":"))) > 20:
            raise UsageError(f"{part!r} is no range in the window {window!r}", how=how)
        start = int(found[3] or found[1] or 0)
        stop = min(start + 1 if found[3] else int(found[2] or extent), extent)
        if start >= stop:
            raise UsageError(f"the window {window!r} is empty along {name}, which has {extent} positions", how=how)
        spans.append(Span(start, stop - start))
    return spans


def around(position: int, extent: int, wanted: int, period: int | None) -> Span:
    """About ``wanted`` positions around one: whole periods where they are small.

    >>> around(130, 384, 16, 128), around(7, 24, 12, 8)
    (Span(start=122, count=16), Span(start=0, count=8))
    """
    if period and 1 < period <= wanted:
        count = wanted // period * period
        start = position // period * period
        return Span(min(start, max(0, extent - count)), min(count, extent))
    count = min(wanted, extent)
    return Span(max(0, min(position - count // 2, extent - count)), count)

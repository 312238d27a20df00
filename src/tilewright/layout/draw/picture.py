"""A scene as an SVG: tiles outlined level by level, offsets as numbers, padding hatched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, product

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.layout.draw.panels import COLOURS, MAX_CELLS, Bounds, Level, Panel, Scene, between_lines, colour_name
from tilewright.layout.draw.scene import make_scene, ruler_scene
from tilewright.layout.index.address_map import AddressMap
from tilewright.render import count_text
from tilewright.render.drawing import Drawing, text_width

MARGIN = 16.0
_GAP, _HEAD, _SIDE = 26.0, 18.0, 36.0
_CELL_HEIGHT, _LEAST, _MOST = 25.0, 8.0, 16.0  # cells with labels; the smallest and largest without
_WIDEST = 1500.0
_NOTEBOOK_BYTES, _NOTEBOOK_WIDE = 60_000, 860.0


def to_svg(layout: AddressMap, *, colour: str = "auto", window: str = "", at: Sequence[int] | None = None) -> str:
    """A picture of a layout, for files, pages and notebooks, in light and dark.

    Tiled and paged maps are drawn as the array with the offset in every cell, padding cells hatched with their own
    offsets; a small array also as memory, in the order of offsets. Lanes and shards are drawn as memory with the index
    in every cell, an NPU's memory folded at its strides. Large arrays show one corner (4,096 cells at most) and say so,
    with the first packed words and the far edge beside it.

    ``colour`` says what the colours mean: ``tile``, ``channel``, ``page``, ``shard`` (by default whichever the layout
    has), ``batch``, ``npu``, ``line`` (cache lines of 64 bytes, or a segment's own), ``offset`` (light at the beginning
    of memory, deep at its end) or ``none``. ``window="0:8,120:136"`` shows those ranges of the dims, ``at=(7, 130)``
    the surroundings of an element, which is marked. Raises :class:`UsageError` for what the layout does not have.

    >>> from tilewright.layout import parse
    >>> parse("f32[3,5]{1,0:T(2,2)}").to_svg(colour="offset").startswith("<svg")
    True
    """
    return str(draw_picture(make_scene(layout, colour=colour, window=window, at=at)).svg())


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


def mimebundle(layout: AddressMap) -> dict[str, str]:
    """What a notebook shows: text always, the picture where there is one, of 60 KB at most for ordinary arrays."""

    def draw(most: Bounds) -> Drawing:
        return draw_picture(make_scene(layout, most=most), fine=False, widest=_NOTEBOOK_WIDE)

    return shown_in_notebook(repr(layout), draw)


def shown_in_notebook(text: str, draw: Callable[[Bounds], Drawing]) -> dict[str, str]:
    """The text, and where there is a picture the largest that a notebook should hold: fewer cells where more would be
    too many bytes."""
    shown = {"text/plain": text}
    with suppress(TilewrightError):  # no static addresses, or several elements in one place
        for cells in (MAX_CELLS, 1024, 384, 160, 96):
            svg = shown["image/svg+xml"] = str(draw(Bounds(rows=32, columns=64, wide=64, cells=cells)).svg())
            if len(svg) <= _NOTEBOOK_BYTES:
                break
    return shown


def draw_picture(
    scene: Scene, legend: Sequence[tuple[str, str]] | None = None, *, fine: bool = True, widest: float = _WIDEST
) -> Drawing:
    """One scene with its title, its facts and a legend: (mark, meaning) pairs, by default those of a layout.

    Unless ``fine``, neighbours of one colour become one shape where cells are too small for numbers: far fewer bytes.
    Cells are small where numbers would make the picture wider than ``widest``.
    """
    cell = cell_size(scene, widest)
    if legend is None:
        legend = legend_parts(scene, cell)
    insets = _insets(scene, cell)
    wide, tall = scene_size(scene, cell)
    beside, inset_wide, low = _inset_sizes(insets, max(wide, min(900.0, widest)))
    wide = max(wide, inset_wide)
    notes = (title_width(scene.title, 15), text_width(scene.facts) * 0.98, text_width(scene.cut) * 0.98)
    width = max(*notes, wide, legend_width(legend), 120) + 2 * MARGIN
    height = 62 + tall + low + 30 + (16 if scene.cut else 0)
    drawing = Drawing(width, height, title=scene.title, description=scene.facts, ground=True)
    drawing.text(MARGIN, 26, scene.title, "strong mono large")
    drawing.text(MARGIN, 46, scene.facts, "soft")
    draw_scene(drawing, scene, MARGIN, 62.0, cell, fine)
    x, y = MARGIN, 62.0 + tall
    for panel in insets:
        _panel(drawing, panel, x, y, _strip_cell(panel), scene)
        w, h = _panel_size(panel, _strip_cell(panel))
        x, y = (x + w + _GAP, y) if beside else (x, y + h + _GAP)
    tall += low
    draw_legend(drawing, legend, 62.0 + tall)
    if scene.cut:
        drawing.text(MARGIN, 62.0 + tall + 34, scene.cut, "soft")
    return drawing


def title_width(text: str, size: float) -> float:
    """A title's width: its typeface has letters of one width, 0.62 of their size at most."""
    return max(text_width(text, size) * 1.04, len(text) * size * 0.62)


def _insets(scene: Scene, cell: Cell) -> list[Panel]:
    """The first elements where cells have no numbers, and the far edge."""
    return [panel for panel in (None if cell.labelled else scene.beginning, scene.edge) if panel]


def _inset_sizes(insets: Sequence[Panel], widest: float) -> tuple[bool, float, float]:
    """Whether they stand beside each other, and the width and height of all."""
    sizes = [_panel_size(panel, _strip_cell(panel)) for panel in insets]
    wide = sum(w + _GAP for w, _ in sizes) - _GAP
    if wide <= widest:
        return True, wide, max((h for _, h in sizes), default=-_GAP) + _GAP
    return False, max(w for w, _ in sizes), sum(h + _GAP for _, h in sizes)


def legend_parts(scene: Scene, cell: Cell) -> list[tuple[str, str]]:
    """The (mark, meaning) pairs of a scene's legend."""
    panels = [panel for row in scene.panels for panel in row]
    parts = []
    if scene.colour_by == "offset":
        parts.append(("ramp", f"offset 0 to {count_text(scene.last)}"))
    elif scene.colour_by not in ("none", ""):
        parts.append(("colour", f"a colour per {colour_name(scene.colour_by)}"))
    parts += [(f"edge l{min(k, 3)}", level.name) for k, level in outlined_levels(scene, cell)]
    if any(panel.padding.any() for panel in panels):
        parts.append(("padding", "padding"))
    elif any(panel.shares is not None and (panel.shares < 1).any() for panel in panels):
        parts.append(("padding", "the part that is padding"))
    if panels and cell.labelled:
        parts.append(("text", f"in a cell: its {scene.label_is}"))
    elif panels and not panels[0].ticks and block_texts(panels[0], _blocks_of(scene, scene.levels), cell):
        what = "tile" if _blocks_of(scene, scene.levels) else "run"
        parts.append(("text", f"the first {scene.label_is} of a {what}"))
    if scene.marked is not None:
        parts.append(("mark", "the element asked for"))
    if any(panel.moved is not None and panel.moved.any() for panel in panels):
        parts.append(("moved", "an element that moves"))
    return parts


def legend_width(parts: Sequence[tuple[str, str]]) -> float:
    """The width of a legend in one line."""
    return sum(30 + text_width(text) * 0.9 + 18 for _, text in parts)


def draw_legend(drawing: Drawing, parts: Sequence[tuple[str, str]], y: float) -> None:
    """The marks and what they mean, in one line."""
    x = MARGIN
    for mark, text in parts:
        if mark == "colour":
            for k in range(3):
                drawing.rect(x + 8 * k, y + 4, 8, 12, f"c{k}")
        elif mark == "ramp":
            for k in range(COLOURS):
                drawing.rect(x + 3 * k, y + 4, 3, 12, f"r{k}")
        elif mark == "padding":
            drawing.padding(x, y + 4, 24, 12)
        elif mark == "moved":
            drawing.polygon(((x + 12, y + 5), (x + 22, y + 5), (x + 22, y + 15)), "moved")
        elif mark == "text":
            drawing.text(x + 12, y + 14, "2,3" if "index" in text else "17", "label", anchor="middle")
        else:
            drawing.line(x, y + 10, x + 24, y + 10, mark)
        drawing.text(x + 30, y + 14, text, "soft")
        x += 30 + text_width(text) * 0.9 + 18


@dataclass(frozen=True)
class Cell:
    """The size of a cell, and whether its label fits."""

    wide: float
    tall: float
    labelled: bool


def _label_width(panel: Panel) -> float:
    longest = max((text_width(label, 11) for row in panel.labels for label in row), default=0)
    return max(30.0, longest + 9)


def cell_size(scene: Scene, widest: float = _WIDEST) -> Cell:
    """A cell with its label, or a small one where the labels would make the picture too wide."""
    panels = [panel for row in scene.panels for panel in row]
    if not panels:
        return Cell(_LEAST, _LEAST, labelled=False)
    wide = max(map(_label_width, panels))
    columns = panels[0].padding.shape[1] * len(scene.panels[0])
    if wide * columns <= widest:
        return Cell(wide, _CELL_HEIGHT, labelled=True)
    small = max(_LEAST, min(_MOST, widest * 0.8 // columns))
    by_address = scene.label_is == "index"
    tall = small if (scene.levels and not by_address) or panels[0].padding.shape[0] > 16 else max(small, _MOST)
    return Cell(small, tall, labelled=False)


def _side(panel: Panel) -> float:
    """The room left of a panel's cells: row headings and the rows' name."""
    longest = max((text_width(name, 10.5) for name in panel.rows), default=0)
    return max(_SIDE, 8 + 6.6 * len(panel.row_name), 10 + longest)


def _panel_size(panel: Panel, cell: Cell) -> tuple[float, float]:
    rows, columns = panel.padding.shape
    heading = text_width(panel.heading) * 0.9
    named = 10 + text_width(panel.column_name) if panel.columns else 0
    return max(_side(panel) + columns * cell.wide + named, heading), _top(panel) + rows * cell.tall + 4


def _top(panel: Panel) -> float:
    """The room above a panel's cells: its heading, its columns' names."""
    return _HEAD * (bool(panel.heading) + bool(panel.row_name or panel.column_name or any(panel.columns)))


def _strip_cell(panel: Panel) -> Cell:
    return Cell(_label_width(panel), _CELL_HEIGHT, labelled=True)


def scene_size(scene: Scene, cell: Cell) -> tuple[float, float]:
    """Width and height of a scene's panels and strip."""
    sizes = [[_panel_size(panel, cell) for panel in row] for row in scene.panels]
    wide = max((sum(w for w, _ in row) + _GAP * (len(row) - 1) for row in sizes), default=0.0)
    tall = sum(max(h for _, h in row) + _GAP * 0.7 for row in sizes)
    for panel in filter(None, (scene.strip, scene.devices)):
        size = _panel_size(panel, _strip_cell(panel))
        wide, tall = max(wide, size[0]), tall + size[1] + _GAP * 0.7
    return wide, tall


def draw_scene(drawing: Drawing, scene: Scene, left: float, y: float, cell: Cell, fine: bool = True) -> None:
    """All panels of a scene from ``left`` and ``y`` on, the devices of a mesh above them, the strip below."""
    if scene.devices:
        _panel(drawing, scene.devices, left, y, _strip_cell(scene.devices), replace(scene, marked=None), levels=())
        y += _panel_size(scene.devices, _strip_cell(scene.devices))[1] + _GAP * 0.7
    for panels in scene.panels:
        x, tall = left, 0.0
        for panel in panels:
            _panel(drawing, panel, x, y, cell, scene, fine=fine)
            w, h = _panel_size(panel, cell)
            x, tall = x + w + _GAP, max(tall, h)
        y += tall + _GAP * 0.7
    if scene.strip:
        _panel(drawing, scene.strip, left, y, _strip_cell(scene.strip), scene, levels=())


def _panel(
    drawing: Drawing,
    panel: Panel,
    x: float,
    y: float,
    cell: Cell,
    scene: Scene,
    *,
    levels: Sequence[Level] | None = None,
    fine: bool = True,
) -> None:
    levels = scene.levels if levels is None else levels
    if panel.heading:
        drawing.text(x, y + 12, panel.heading)
    y += _top(panel)
    _headings(drawing, panel, x, y, cell)
    x += _side(panel)
    palette = "r" if scene.colour_by == "offset" else "c"
    rows, columns = panel.padding.shape
    if fine or cell.labelled or panel.moved is not None or panel.shares is not None:
        _cells(drawing, panel, x, y, cell, palette)
    else:
        _runs(drawing, panel, x, y, cell, palette)
    for number, level in reversed(list(enumerate(levels))):
        _outlines(drawing, level, number, x, y, panel, cell)
    if not cell.labelled:
        blocks = _blocks_of(scene, levels)
        for text, (r, c, tall, _) in zip(block_texts(panel, blocks, cell), _blocks(panel, blocks), strict=False):
            left, top, high = x + c * cell.wide + 3, y + r * cell.tall, min(15.0, tall * cell.tall - 1)
            drawing.rect(left, top + 1, text_width(text, 11) + 5, high - 1, "chip", radius=3)
            drawing.text(left + 3, top + high - 3, text, "label")
    if scene.marked is not None:
        asked = (panel.places == list(scene.marked)).all(axis=-1) & panel.elements
        for r, c in np.argwhere(asked).tolist():
            drawing.rect(x + c * cell.wide + 1, y + r * cell.tall + 1, cell.wide - 2, cell.tall - 2, "mark")
    drawing.rect(x, y, columns * cell.wide, rows * cell.tall, "edge l0" if levels else "edge l2 plain")


def _headings(drawing: Drawing, panel: Panel, x: float, y: float, cell: Cell) -> None:
    drawing.text(x, y - 5, panel.row_name, "soft small mono")
    side = _side(panel)
    right = x + side + panel.padding.shape[1] * cell.wide
    drawing.text(right + 6, y - 5, panel.column_name, "soft small mono")
    widest = max((text_width(name, 10.5) for name in panel.columns), default=0) + 4
    steps = (1, 2, 4, 8, 16) if cell.labelled else (8, 16, 32)  # every how many columns there is room for a name
    every_row, every_column = 1 if cell.tall >= 12 else 8, next((n for n in steps if n * cell.wide >= widest), 32)
    for r, text in list(enumerate(panel.rows))[::every_row]:
        drawing.text(x + side - 6, y + r * cell.tall + min(cell.tall / 2 + 4, 16), text, "soft small", anchor="end")
    for c, text in list(enumerate(panel.columns))[::every_column]:
        at = x + side + (c if panel.ticks else c + 0.5) * cell.wide
        drawing.text(at, y - 6 if panel.ticks else y - 5, text, "soft small", anchor="middle")
        if panel.ticks:
            drawing.line(at, y - 4, at, y, "axis")


def _cells(drawing: Drawing, panel: Panel, x: float, y: float, cell: Cell, palette: str) -> None:
    for (r, row), c in product(enumerate(panel.labels), range(panel.padding.shape[1])):
        label, tip = row[c], panel.tips[r][c]
        if not tip:
            continue
        left, top = x + c * cell.wide, y + r * cell.tall
        if panel.padding[r, c]:
            drawing.padding(left, top, cell.wide, cell.tall, tip=tip)
        else:
            drawing.rect(left, top, cell.wide, cell.tall, f"cell {palette}{int(panel.colours[r, c])}", tip=tip)
            if panel.shares is not None and panel.shares[r, c] < 1:
                data = cell.wide * float(panel.shares[r, c])
                drawing.padding(left + data, top, cell.wide - data, cell.tall, tip=tip)
        if cell.labelled and label:
            style = "label soft" if panel.padding[r, c] else "label"
            drawing.text(left + cell.wide / 2, top + cell.tall / 2 + 4, label, style, anchor="middle")
        if panel.moved is not None and panel.moved[r, c]:
            right, size = left + cell.wide, 8.0 if cell.labelled else 5.0
            corner = ((right - size, top + 0.5), (right - 0.5, top + 0.5), (right - 0.5, top + size))
            drawing.polygon(corner, "moved")


def _runs(drawing: Drawing, panel: Panel, x: float, y: float, cell: Cell, palette: str) -> None:
    """Cells too small for numbers, neighbours of one colour in one shape, and the lines between them."""
    rows, columns = panel.padding.shape
    for r in range(rows):
        looks = [
            ("pad" if out else f"{palette}{colour}") if tip else ""
            for out, colour, tip in zip(
                panel.padding[r].tolist(), panel.colours[r].tolist(), panel.tips[r], strict=True
            )
        ]
        c = 0
        for look, run in groupby(looks):
            count = len(list(run))
            if look:
                left, top, tips = x + c * cell.wide, y + r * cell.tall, panel.tips[r]
                tip = tips[c] if count == 1 else f"{tips[c]} to {tips[c + count - 1]}"
                if look == "pad":
                    drawing.padding(left, top, count * cell.wide, cell.tall, tip=tip)
                else:
                    drawing.rect(left, top, count * cell.wide, cell.tall, f"cell {look}", tip=tip)
            c += count
    for c in range(1, columns):
        drawing.line(x + c * cell.wide, y, x + c * cell.wide, y + rows * cell.tall, "between")


def _outlines(drawing: Drawing, level: Level, number: int, x: float, y: float, panel: Panel, cell: Cell) -> None:
    rows, columns = panel.padding.shape
    style = f"edge l{min(number, 3)}"
    for r in _lines(level.row_period, rows, panel.first[0], cell):
        drawing.line(x, y + r * cell.tall, x + columns * cell.wide, y + r * cell.tall, style)
    for c in _lines(level.column_period, columns, panel.first[1], cell):
        drawing.line(x + c * cell.wide, y, x + c * cell.wide, y + rows * cell.tall, style)


def _lines(period: int | None, count: int, first: int, cell: Cell) -> range:
    """Before which of ``count`` rows or columns a level's lines stand; none where they would be too close to see.

    ``first`` rows or columns lie before them.
    """
    least = 1 if cell.labelled else 4
    return range(period - first % period, count, period) if period and period >= least else range(0)


def outlined_levels(scene: Scene, cell: Cell) -> list[tuple[int, Level]]:
    """(number, level) of those whose outlines are drawn; the first tile's are the edges of the panels too."""
    drawn = [(panel, cell) for row in scene.panels for panel in row]
    drawn += [(panel, _strip_cell(panel)) for panel in _insets(scene, cell)]

    def seen(level: Level, panel: Panel, its_cell: Cell) -> bool:
        (rows, columns), (top, left) = panel.padding.shape, panel.first
        across = _lines(level.row_period, rows, top, its_cell)
        return bool(across or _lines(level.column_period, columns, left, its_cell))

    return [
        (k, level)
        for k, level in enumerate(scene.levels)
        if (not k and scene.label_is != "index") or any(seen(level, panel, its) for panel, its in drawn)
    ]


def _blocks_of(scene: Scene, levels: Sequence[Level]) -> Sequence[Level]:
    """The levels whose blocks are labelled; none where cells stand in the order of memory."""
    return () if scene.label_is == "index" else levels


def _blocks(panel: Panel, levels: Sequence[Level]) -> list[tuple[int, int, int, int]]:
    """(row, column, rows, columns) of what is labelled where cells are too small: tiles, or even runs of data."""
    rows, columns = panel.padding.shape
    if levels:
        down = between_lines(rows, levels[0].row_period, panel.first[0])
        across = between_lines(columns, levels[0].column_period, panel.first[1])
        return [(r.start, c.start, len(r), len(c)) for r, c in product(down, across)]
    runs = []
    places = panel.places[..., -1]
    for r, row in enumerate(panel.padding.tolist()):
        steps = np.diff(places[r]).tolist()
        begin = 0
        for c in range(1, columns + 1):
            even = c < columns and row[c] == row[begin] and (row[c] or steps[c - 1] == steps[begin])
            if not even:
                runs += [] if row[begin] else [(r, begin, 1, c - begin)]
                begin = c
    return runs


def block_texts(panel: Panel, levels: Sequence[Level], cell: Cell) -> list[str]:
    """What the first cell of every block holds; nothing at all unless there is room for it in each of them."""
    blocks = _blocks(panel, levels)
    texts = [panel.labels[r][c] for r, c, _, _ in blocks]
    for text, (_, _, tall, wide) in zip(texts, blocks, strict=True):
        if text_width(text, 11) + 10 > wide * cell.wide or tall * cell.tall < 12:
            return []
    return texts

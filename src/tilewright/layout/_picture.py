"""A layout as an SVG: tiles outlined level by level, offsets as numbers, padding hatched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product

from tilewright.errors import TilewrightError
from tilewright.layout._index_map import IndexMap
from tilewright.layout._scene import Level, Panel, Scene, make_scene
from tilewright.render import Drawing, text_width

__all__ = ["mimebundle", "to_svg"]

_MARGIN, _GAP, _HEAD, _SIDE = 16.0, 26.0, 18.0, 36.0
_CELL_HEIGHT, _LEAST, _MOST = 25.0, 8.0, 16.0  # cells with labels; the smallest and largest without
_WIDEST = 1500.0


@dataclass(frozen=True)
class Cell:
    """The size of a cell, and whether its label fits."""

    wide: float
    tall: float
    labelled: bool


def to_svg(layout: IndexMap) -> str:
    """A picture of a layout, for files, pages and notebooks, in light and dark.

    Tiled and paged maps are drawn as the array with the offset in every cell, one colour to a tile (or page), padding
    cells hatched with their own offsets; a small array also as memory, in the order of offsets. Lanes and shards are
    drawn as memory with the index in every cell. Large arrays show one corner (4,096 cells at most) and say so.

    >>> from tilewright.layout import parse
    >>> parse("f32[3,5]{1,0:T(2,2)}").to_svg().startswith("<svg")
    True
    """
    return str(_draw(make_scene(layout)).svg())


def mimebundle(layout: IndexMap) -> dict[str, str]:
    """What a notebook shows: text always, the picture where there is one."""
    shown = {"text/plain": repr(layout)}
    with suppress(TilewrightError):  # no static addresses, or several elements in one place
        shown["image/svg+xml"] = to_svg(layout)
    return shown


def _draw(scene: Scene) -> Drawing:
    cell = _cell(scene)
    sizes = [[_panel_size(panel, cell) for panel in row] for row in scene.panels]
    strip_cell = Cell(_label_width(scene.strip), _CELL_HEIGHT, labelled=True) if scene.strip else cell
    strip = _panel_size(scene.strip, strip_cell) if scene.strip else (0.0, 0.0)
    notes = (text_width(scene.title, 15) * 1.04, text_width(scene.facts) * 0.9, text_width(scene.cut) * 0.9)
    row_widths = (sum(w for w, _ in row) + _GAP * (len(row) - 1) for row in sizes)
    legend = _legend_parts(scene, cell)
    width = max(*notes, strip[0], *row_widths, _legend_width(legend), 120) + 2 * _MARGIN
    row_heights = [max(h for _, h in row) + _GAP * 0.7 for row in sizes]
    height = 62 + sum(row_heights) + (strip[1] + _GAP * 0.7 if scene.strip else 0) + 30
    height += 16 if scene.cut else 0
    drawing = Drawing(width, height, title=scene.title, description=scene.facts, ground=True)
    drawing.text(_MARGIN, 26, scene.title, "strong mono large")
    drawing.text(_MARGIN, 46, scene.facts, "soft")
    y = 62.0
    for panels, places, tall in zip(scene.panels, sizes, row_heights, strict=True):
        x = _MARGIN
        for panel, (w, _) in zip(panels, places, strict=True):
            _panel(drawing, panel, x, y, cell, scene.levels)
            x += w + _GAP
        y += tall
    if scene.strip:
        _panel(drawing, scene.strip, _MARGIN, y, strip_cell, ())
        y += strip[1] + _GAP * 0.7
    _legend(drawing, legend, y)
    if scene.cut:
        drawing.text(_MARGIN, y + 34, scene.cut, "soft")
    return drawing


# -- sizes --------------------------------------------------------------------------------------------------------


def _label_width(panel: Panel | None) -> float:
    longest = max((text_width(label, 11) for row in panel.labels for label in row), default=0) if panel else 0
    return max(30.0, longest + 9)


def _cell(scene: Scene) -> Cell:
    """A cell with its label, or a small one where the labels would make the picture too wide."""
    panels = [panel for row in scene.panels for panel in row]
    if not panels:
        return Cell(_LEAST, _LEAST, labelled=False)
    wide = max(map(_label_width, panels))
    columns = panels[0].padding.shape[1] * len(scene.panels[0])
    if wide * columns <= _WIDEST:
        return Cell(wide, _CELL_HEIGHT, labelled=True)
    small = max(_LEAST, min(_MOST, _WIDEST * 0.8 // columns))
    tall = small if scene.levels or panels[0].padding.shape[0] > 16 else max(small, _MOST)
    return Cell(small, tall, labelled=False)


def _side(panel: Panel) -> float:
    """The room left of a panel's cells: row headings and the rows' name."""
    return max(_SIDE, 8 + 6.6 * len(panel.row_name))


def _panel_size(panel: Panel, cell: Cell) -> tuple[float, float]:
    rows, columns = panel.padding.shape
    heading = text_width(panel.heading) * 0.9
    named = 10 + text_width(panel.column_name) if panel.columns else 0
    return max(_side(panel) + columns * cell.wide + named, heading), _top(panel) + rows * cell.tall + 4


def _top(panel: Panel) -> float:
    """The room above a panel's cells: its heading, its columns' names."""
    return _HEAD * (bool(panel.heading) + bool(panel.row_name or panel.column_name))


# -- one panel ----------------------------------------------------------------------------------------------------


def _panel(drawing: Drawing, panel: Panel, x: float, y: float, cell: Cell, levels: tuple[Level, ...]) -> None:
    if panel.heading:
        drawing.text(x, y + 12, panel.heading)
    y += _top(panel)
    _headings(drawing, panel, x, y, cell)
    x += _side(panel)
    _cells(drawing, panel, x, y, cell)
    rows, columns = panel.padding.shape
    for number, level in reversed(list(enumerate(levels))):
        _outlines(drawing, level, number, x, y, (rows, columns), cell)
    if not cell.labelled:
        _block_labels(drawing, panel, _blocks(panel, levels), x, y, cell)
    drawing.rect(x, y, columns * cell.wide, rows * cell.tall, "edge l0" if levels else "edge l2 plain")


def _headings(drawing: Drawing, panel: Panel, x: float, y: float, cell: Cell) -> None:
    drawing.text(x, y - 5, panel.row_name, "soft small mono")
    side = _side(panel)
    right = x + side + panel.padding.shape[1] * cell.wide
    drawing.text(right + 6, y - 5, panel.column_name, "soft small mono")
    every_row, every_column = 1 if cell.tall >= 12 else 8, 1 if cell.labelled else 8
    for r, text in list(enumerate(panel.rows))[::every_row]:
        drawing.text(x + side - 6, y + r * cell.tall + min(cell.tall / 2 + 4, 16), text, "soft small", anchor="end")
    for c, text in list(enumerate(panel.columns))[::every_column]:
        drawing.text(x + side + (c + 0.5) * cell.wide, y - 5, text, "soft small", anchor="middle")


def _cells(drawing: Drawing, panel: Panel, x: float, y: float, cell: Cell) -> None:
    for r, c, label, tip, padding, colour in _each(panel):
        left, top = x + c * cell.wide, y + r * cell.tall
        if padding:
            drawing.padding(left, top, cell.wide, cell.tall, tip=tip)
        else:
            drawing.rect(left, top, cell.wide, cell.tall, f"cell c{colour}", tip=tip)
        if cell.labelled and label:
            style = "label soft" if padding else "label"
            drawing.text(left + cell.wide / 2, top + cell.tall / 2 + 4, label, style, anchor="middle")


def _each(panel: Panel) -> Iterator[tuple[int, int, str, str, bool, int]]:
    for r, row in enumerate(panel.labels):
        for c, label in enumerate(row):
            if panel.tips[r][c]:
                yield r, c, label, panel.tips[r][c], bool(panel.padding[r, c]), int(panel.colours[r, c])


def _outlines(
    drawing: Drawing, level: Level, number: int, x: float, y: float, size: tuple[int, int], cell: Cell
) -> None:
    rows, columns = size
    style = f"edge l{min(number, 3)}"
    least = 1 if cell.labelled else 4
    if level.row_period and level.row_period >= least:
        for r in range(level.row_period, rows, level.row_period):
            drawing.line(x, y + r * cell.tall, x + columns * cell.wide, y + r * cell.tall, style)
    if level.column_period and level.column_period >= least:
        for c in range(level.column_period, columns, level.column_period):
            drawing.line(x + c * cell.wide, y, x + c * cell.wide, y + rows * cell.tall, style)


def _blocks(panel: Panel, levels: tuple[Level, ...]) -> list[tuple[int, int, int, int]]:
    """(row, column, rows, columns) of what is labelled where cells are too small: tiles, or runs of data in memory."""
    rows, columns = panel.padding.shape
    if levels:
        tall, wide = levels[0].row_period or rows, levels[0].column_period or columns
        corners = product(range(0, rows, tall), range(0, columns, wide))
        return [(r, c, min(tall, rows - r), min(wide, columns - c)) for r, c in corners]
    runs = []
    for r, row in enumerate(panel.padding.tolist()):
        c = 0
        for outside, run in groupby(row):
            length = len(list(run))
            runs += [] if outside else [(r, c, 1, length)]
            c += length
    return runs


def _block_texts(panel: Panel, blocks: list[tuple[int, int, int, int]], cell: Cell) -> list[str]:
    """What the first cell of every block holds; nothing at all unless there is room for it in each of them."""
    texts = [panel.labels[r][c] for r, c, _, _ in blocks]
    for text, (_, _, tall, wide) in zip(texts, blocks, strict=True):
        if text_width(text, 11) + 10 > wide * cell.wide or tall * cell.tall < 12:
            return []
    return texts


def _block_labels(
    drawing: Drawing, panel: Panel, blocks: list[tuple[int, int, int, int]], x: float, y: float, cell: Cell
) -> None:
    for text, (r, c, tall, _) in zip(_block_texts(panel, blocks, cell), blocks, strict=False):
        left, top, high = x + c * cell.wide + 3, y + r * cell.tall, min(15.0, tall * cell.tall - 1)
        drawing.rect(left, top + 1, text_width(text, 11) + 5, high - 1, "chip", radius=3)
        drawing.text(left + 3, top + high - 3, text, "label")


# -- legend -------------------------------------------------------------------------------------------------------


def _legend_parts(scene: Scene, cell: Cell) -> list[tuple[str, str]]:
    """(what to draw, what it means)."""
    panels = [panel for row in scene.panels for panel in row]
    parts = [("colour", f"a colour per {scene.colour_by}")] if scene.colour_by else []
    parts += [(f"edge l{min(k, 3)}", level.name) for k, level in enumerate(scene.levels)]
    if any(panel.padding.any() for panel in panels):
        parts.append(("padding", "padding"))
    if panels and cell.labelled:
        parts.append(("text", f"in a cell: its {scene.label_is}"))
    elif panels and _block_texts(panels[0], _blocks(panels[0], scene.levels), cell):
        parts.append(("text", f"the first {scene.label_is} of a {'tile' if scene.levels else 'run'}"))
    return parts


def _legend_width(parts: list[tuple[str, str]]) -> float:
    return sum(30 + text_width(text) * 0.9 + 18 for _, text in parts)


def _legend(drawing: Drawing, parts: list[tuple[str, str]], y: float) -> None:
    x = _MARGIN
    for mark, text in parts:
        if mark == "colour":
            drawing.rect(x, y + 4, 8, 12, "c0")
            drawing.rect(x + 8, y + 4, 8, 12, "c1")
            drawing.rect(x + 16, y + 4, 8, 12, "c2")
        elif mark == "padding":
            drawing.padding(x, y + 4, 24, 12)
        elif mark == "text":
            drawing.text(x + 12, y + 14, "2,3" if "index" in text else "17", "label", anchor="middle")
        else:
            drawing.line(x, y + 10, x + 24, y + 10, mark)
        drawing.text(x + 30, y + 14, text, "soft")
        x += 30 + text_width(text) * 0.9 + 18

"""A layout in a terminal: the same scene as the picture, in text with background colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rich.text import Text

from tilewright.layout.draw.panels import Bounds, Panel, Scene, between_lines, colour_name
from tilewright.layout.draw.scene import make_scene, ruler_scene
from tilewright.layout.index.address_map import AddressMap

_BACKGROUNDS = (24, 94, 22, 54, 88, 18, 58, 23)  # xterm colours, dark, one for each colour of the scene
_RAMP = (58, 64, 22, 29, 23, 24, 25, 54)  # the same for colours that rise with the offset
_FOREGROUND = 255
_PAD = "·"


def terminal_drawing(
    layout: AddressMap, width: int = 100, *, colour: str = "auto", window: str = "", at: Sequence[int] | None = None
) -> Text:
    r"""Lines of at most ``width`` columns: offsets (or indices) in cells, tiles coloured and ruled, padding marked.

    A cell of padding shows ``·`` and its offset, so that the drawing reads without colours too. ``window`` and ``at``
    are those of ``to_svg``; brackets mark the element asked for.

    >>> from tilewright.layout import parse
    >>> print(terminal_drawing(parse("f32[3,3]{1,0:T(2,2)}")).plain)
    f32[3,3]{1,0:T(2,2)}
    64 B in memory, 1.78× the data; 16 slots, 7 of them padding
    <BLANKLINE>
    d0\d1     0   1    2
          +---------+---------+
        0 |   0   1 |   4  ·5 |
        1 |   2   3 |   6  ·7 |
          +---------+---------+
        2 |   8   9 |  12 ·13 |
          | ·10 ·11 | ·14 ·15 |
          +---------+---------+
    <BLANKLINE>
    one colour per tile; outlined: T(2,2); · marks padding; in a cell: its offset
    """
    return scene_text(lambda most: make_scene(layout, colour=colour, most=most, window=window, at=at), width)


def terminal_ruler(layout: AddressMap, width: int = 100, *, unit: str = "auto", colour: str = "auto") -> Text:
    r"""The memory of a layout under a ruler of bytes, as :func:`tilewright.layout.ruler_svg` draws it.

    >>> from tilewright.layout import parse
    >>> print(terminal_ruler(parse("f32[3,3]{1,0:T(2,2)}"), 60).plain)
    f32[3,3]{1,0:T(2,2)}
    64 B in memory, 1.78× the data; 16 slots, 7 of them padding; a cell is one element, 4 B
    <BLANKLINE>
    byte    +0  +4  +8 +12 +16 +20 +24 +28
         +---------------------------------+
       0 | 0,0 0,1 1,0 1,1 0,2   · 1,2   · |
      32 | 2,0 2,1   ·   · 2,2   ·   ·   · |
         +---------------------------------+
    <BLANKLINE>
    one colour per tile; · marks padding; in a cell: its index
    """
    return scene_text(lambda most: ruler_scene(layout, unit=unit, colour=colour, most=most), width)


def scene_text(make: Callable[[Bounds], Scene], width: int, legend: bool = True) -> Text:
    """The scene that ``make`` gives for so many rows and columns, as many of these as fit in ``width`` characters.

    ``legend``: what marks and colours mean stands below it, else only which part it is.
    """
    columns, fits = Bounds().columns + 1, Bounds().columns
    while fits < columns:  # fewer columns may need longer headings, and so fewer columns again
        columns = fits
        scene = make(Bounds(32, columns))
        panels = [panel for row in scene.panels for panel in row]
        fits = min((_columns_that_fit(panel, scene, width, columns) for panel in panels), default=columns)
    text = Text(f"{scene.title}\n", style="bold")
    text.append(f"{scene.facts}\n", style="dim")
    drawn = [panel for row in scene.panels for panel in row]
    if scene.edge and _columns_that_fit(scene.edge, scene, width, scene.edge.padding.shape[1]) == len(
        scene.edge.columns
    ):
        drawn.append(scene.edge)
    if scene.devices:
        text.append("\n")
        text.append_text(_panel(scene.devices, replace(scene, levels=(), marked=None)))
    for panel in drawn:
        text.append("\n")
        text.append_text(_panel(panel, scene))
    said = "; ".join(_legend(scene)) if legend else scene.cut
    text.append(f"\n{said}" if said else "", style="dim")
    text.append(f"\n{scene.words}" if scene.words else "", style="dim")
    text.rstrip()
    return text


def _columns_that_fit(panel: Panel, scene: Scene, width: int, columns: int) -> int:
    """How many columns a line holds, whole tiles where it holds any; ``columns`` if it holds all of the panel's."""
    period = scene.levels[0].column_period if scene.levels else None
    across = int(panel.padding.shape[1])
    room, cell = width - _side(panel) - 3, _cell(panel, scene.marked) + 1
    whole = period and room >= period * cell + 2
    fit = room // (period * cell + 2) * period if period and whole else (room - 2) // cell
    return columns if fit >= across else max(1, fit)


def _side(panel: Panel) -> int:
    return max(4, len(_corner(panel)), *(len(name) for name in panel.rows))


def _corner(panel: Panel) -> str:
    return "\\".join(name for name in (panel.row_name, panel.column_name) if name)


def _shown(panel: Panel, row: int, column: int, marked: tuple[int, ...] | None = None) -> str:
    label = (_PAD if panel.padding[row, column] else "") + panel.labels[row][column]
    return f"[{label}]" if marked is not None and tuple(panel.places[row, column].tolist()) == marked else label


def _cell(panel: Panel, marked: tuple[int, ...] | None = None) -> int:
    rows, columns = panel.padding.shape
    longest = max(len(_shown(panel, r, c, marked)) for r in range(rows) for c in range(columns))
    return max(3, longest, *(len(name) for name in panel.columns or ("",)))


def _panel(panel: Panel, scene: Scene) -> Text:
    row_period = scene.levels[0].row_period if scene.levels else None
    column_period = scene.levels[0].column_period if scene.levels else None
    rows, columns = panel.padding.shape
    side, cell = _side(panel), _cell(panel, scene.marked)
    blocks = between_lines(columns, column_period, panel.first[1])
    text = Text(f"{panel.heading}\n" if panel.heading else "")
    if any(panel.columns) or _corner(panel):
        heads = "  ".join(" ".join(f"{panel.columns[c] if panel.columns else '':>{cell}}" for c in b) for b in blocks)
        text.append(f"{_corner(panel):<{side}}   {heads}".rstrip() + "\n", style="dim")
    rule = " " * (side + 1) + "+" + "+".join("-" * (len(b) * (cell + 1) + 1) for b in blocks) + "+\n"
    for group in between_lines(rows, row_period, panel.first[0]):
        text.append(rule, style="dim")
        for r in group:
            text.append(f"{panel.rows[r]:>{side}} ", style="dim")
            text.append_text(_line(panel, r, blocks, cell, scene))
    text.append(rule, style="dim")
    return text


def _line(panel: Panel, row: int, blocks: list[range], cell: int, scene: Scene) -> Text:
    line = Text()
    backgrounds = _RAMP if scene.colour_by == "offset" else _BACKGROUNDS
    for block in blocks:
        line.append("|", style="dim")
        for c in block:
            colour = backgrounds[int(panel.colours[row, c])]
            plain = panel.padding[row, c] or not panel.tips[row][c]
            style = "dim" if plain else f"color({_FOREGROUND}) on color({colour})"
            line.append(f" {_shown(panel, row, c, scene.marked):>{cell}}", style=style)
        line.append(" ")
    line.append("|\n", style="dim")
    return line


def _legend(scene: Scene) -> Iterator[str]:
    if scene.colour_by == "offset":
        yield f"colours from offset 0 to {scene.last}"
    elif scene.colour_by not in ("none", ""):
        yield f"one colour per {colour_name(scene.colour_by)}"
    if scene.levels:
        yield f"outlined: {scene.levels[0].name}"
    if scene.marked is not None:
        yield "[] marks the element asked for"
    if any(panel.padding.any() for row in scene.panels for panel in row):
        yield f"{_PAD} marks padding"
    if scene.panels:
        yield f"in a cell: its {scene.label_is}"
    if scene.cut:
        yield scene.cut

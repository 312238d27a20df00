"""Two layouts side by side as an SVG, the elements that move marked."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.layout.draw._compare import Comparison, colour_key, compare_scenes
from tilewright.layout.draw._panel import Scene
from tilewright.layout.draw._panels import Cell, cell_size, draw_scene, scene_size
from tilewright.layout.draw._picture import MARGIN, draw_legend, legend_parts, legend_width
from tilewright.render import Drawing, text_width

__all__ = ["draw_comparison"]

_BESIDE, _WIDEST, _GAP = 680.0, 1400.0, 48.0
_TITLE = 44.0  # the room of a layout's text and facts over its panels


@dataclass(frozen=True)
class _Block:
    """One side: its scene and where it stands."""

    scene: Scene
    cell: Cell
    wide: float
    tall: float


def draw_comparison(found: Comparison, colour: str = "auto", cells: int = 2048) -> Drawing:
    """Both layouts, beside each other where they fit, else one below the other."""
    scenes = compare_scenes(found, colour, cells)
    beside = [_block(scene, _BESIDE) for scene in scenes]
    stacked = [_block(scene, _WIDEST) for scene in scenes]
    side_by_side = all(a.cell.labelled == b.cell.labelled for a, b in zip(beside, stacked, strict=True))
    blocks = beside if side_by_side else stacked
    legend = _legend(found, blocks, colour)
    wide = sum(b.wide for b in blocks) + _GAP if side_by_side else max(b.wide for b in blocks)
    tall = max(b.tall for b in blocks) if side_by_side else sum(b.tall for b in blocks)
    width = max(wide, text_width(found.verdict, 15) * 1.04, text_width(found.costs), legend_width(legend)) + 2 * MARGIN
    drawing = Drawing(width, 62 + tall + 32, title=f"{found.a} and {found.b}", description=found.verdict, ground=True)
    drawing.text(MARGIN, 26, found.verdict, "strong large")
    drawing.text(MARGIN, 46, found.costs, "soft")
    x, y = MARGIN, 66.0
    for block in blocks:
        _draw(drawing, block, x, y)
        x, y = (x + block.wide + _GAP, y) if side_by_side else (x, y + block.tall)
    draw_legend(drawing, legend, 62 + tall)
    return drawing


def _block(scene: Scene, widest: float) -> _Block:
    cell = cell_size(scene, widest)
    wide, tall = scene_size(scene, cell)
    texts = (text_width(scene.title) * 1.06, text_width(scene.facts) * 0.98, text_width(scene.cut) * 0.98)
    return _Block(scene, cell, max(wide, *texts), _TITLE + tall + (18 if scene.cut else 0))


def _draw(drawing: Drawing, block: _Block, x: float, y: float) -> None:
    drawing.text(x, y + 10, block.scene.title, "strong mono")
    drawing.text(x, y + 28, block.scene.facts, "soft")
    draw_scene(drawing, block.scene, x, y + _TITLE, block.cell)
    if block.scene.cut:
        drawing.text(x, y + block.tall - 10, block.scene.cut, "soft")


def _legend(found: Comparison, blocks: list[_Block], colour: str) -> list[tuple[str, str]]:
    """The marks of both sides, each once; colours say whose they are."""
    parts = dict.fromkeys(part for block in blocks for part in legend_parts(block.scene, block.cell))
    whose = "first" if colour_key(found, colour)[0] is found.a else "second"
    named = [(mark, f"{text} of the {whose} layout" if mark == "colour" else text) for mark, text in parts]
    return [part for part in named if part[0] != "moved"] + [part for part in named if part[0] == "moved"]

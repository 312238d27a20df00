"""A layout as an SVG: tiles outlined level by level, offsets as numbers, padding hatched."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from tilewright.errors import TilewrightError
from tilewright.layout.draw.colours import COLOURS, colour_name
from tilewright.layout.draw.panels import Cell, Scene, block_texts, cell_size, draw_scene, outlined_levels, scene_size
from tilewright.layout.draw.scene import make_scene
from tilewright.layout.index.address_map import AddressMap
from tilewright.render import Drawing, count_text, text_width

MARGIN = 16.0


def to_svg(layout: AddressMap, *, colour: str = "auto") -> str:
    """A picture of a layout, for files, pages and notebooks, in light and dark.

    Tiled and paged maps are drawn as the array with the offset in every cell, padding cells hatched with their own
    offsets; a small array also as memory, in the order of offsets. Lanes and shards are drawn as memory with the index
    in every cell. Large arrays show one corner (4,096 cells at most) and say so.

    ``colour`` says what the colours mean: ``tile``, ``npu``, ``page``, ``shard`` (by default whichever the layout has),
    ``line`` (cache lines of 64 bytes, or a segment's own), ``offset`` (light at the beginning of memory, deep at its
    end) or ``none``. Raises :class:`UsageError` for one that the layout does not have.

    >>> from tilewright.layout import parse
    >>> parse("f32[3,5]{1,0:T(2,2)}").to_svg(colour="offset").startswith("<svg")
    True
    """
    return str(draw_picture(make_scene(layout, colour=colour)).svg())


def mimebundle(layout: AddressMap) -> dict[str, str]:
    """What a notebook shows: text always, the picture where there is one."""
    shown = {"text/plain": repr(layout)}
    with suppress(TilewrightError):  # no static addresses, or several elements in one place
        shown["image/svg+xml"] = to_svg(layout)
    return shown


def draw_picture(scene: Scene) -> Drawing:
    """One scene with its title, facts and legend."""
    cell = cell_size(scene)
    legend = legend_parts(scene, cell)
    wide, tall = scene_size(scene, cell)
    notes = (text_width(scene.title, 15) * 1.04, text_width(scene.facts) * 0.98, text_width(scene.cut) * 0.98)
    width = max(*notes, wide, legend_width(legend), 120) + 2 * MARGIN
    height = 62 + tall + 30 + (16 if scene.cut else 0)
    drawing = Drawing(width, height, title=scene.title, description=scene.facts, ground=True)
    drawing.text(MARGIN, 26, scene.title, "strong mono large")
    drawing.text(MARGIN, 46, scene.facts, "soft")
    draw_scene(drawing, scene, MARGIN, 62.0, cell)
    draw_legend(drawing, legend, 62.0 + tall)
    if scene.cut:
        drawing.text(MARGIN, 62.0 + tall + 34, scene.cut, "soft")
    return drawing


# -- legend -------------------------------------------------------------------------------------------------------


def legend_parts(scene: Scene, cell: Cell) -> list[tuple[str, str]]:
    """(what to draw, what it means)."""
    panels = [panel for row in scene.panels for panel in row]
    parts = _colour_parts(scene)
    parts += [(f"edge l{min(k, 3)}", level.name) for k, level in outlined_levels(scene, cell)]
    if any(panel.padding.any() for panel in panels):
        parts.append(("padding", "padding"))
    elif any(panel.shares is not None and (panel.shares < 1).any() for panel in panels):
        parts.append(("padding", "the part that is padding"))
    if panels and cell.labelled:
        parts.append(("text", f"in a cell: its {scene.label_is}"))
    elif panels and not panels[0].ticks and block_texts(panels[0], scene.levels, cell):
        parts.append(("text", f"the first {scene.label_is} of a {'tile' if scene.levels else 'run'}"))
    if any(panel.moved is not None and panel.moved.any() for panel in panels):
        parts.append(("moved", "an element that moves"))
    return parts


def _colour_parts(scene: Scene) -> list[tuple[str, str]]:
    if scene.colour_by in ("none", ""):
        return []
    if scene.colour_by == "offset":
        return [("ramp", f"offset 0 to {count_text(scene.last)}")]
    return [("colour", f"a colour per {colour_name(scene.colour_by)}")]


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

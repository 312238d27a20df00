"""`tilewright layout draw`, and the pictures of the other commands: terminal, SVG or JSON."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tilewright.cli.layout.show import Index, Json, Leaf, Out, Text, answer, leaves, one_array, read_layout
from tilewright.cli.streams import emit_json, emit_text, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from rich.text import Text as RichText

    from tilewright.layout import IndexMap, Panel, Scene

Colour = Annotated[
    str,
    typer.Option("--colour", metavar="WAY", help="What a colour means: tile, npu, page, shard, line, offset or none."),
]
Ruler = Annotated[bool, typer.Option("--ruler", help="Draw the memory under a ruler of bytes.")]
Unit = Annotated[
    str, typer.Option("--unit", metavar="UNIT", help="A cell of the ruler: element, line, tile, or auto by size.")
]
Draw = Annotated[bool, typer.Option("--draw", help="Draw it in the terminal.")]


def draw(
    text: Text,
    out: Out = None,
    colour: Colour = "auto",
    ruler: Ruler = False,
    unit: Unit = "auto",
    leaf: Leaf = None,
    as_json: Json = False,
) -> None:
    """Draw a layout: tiles outlined, offsets as numbers, padding marked; in the terminal, or as an SVG with -o.

    The arrays of a tuple are drawn one below the other in the terminal; a file holds one of them, see --leaf.
    """
    from tilewright.layout import TupleLayout

    check_picture(out, as_json)
    asked = unit if ruler or unit != "auto" else None
    layout = read_layout(text) if leaf is None and out is None and not as_json else one_array(text, leaf)
    if not isinstance(layout, TupleLayout):
        draw_layout(layout, out, colour, asked, as_json)
        return
    for k, (name, array) in enumerate(leaves(layout)):
        emit_text(("\n" if k else "") + f"element {name}")
        draw_layout(array, None, colour, asked, as_json=False)


def check_picture(out: str | None, as_json: bool) -> None:
    """Refuse a picture's target that no writer knows."""
    if out is not None and out != "-" and not out.endswith(".svg"):
        raise UsageError(f"no writer for {out!r}", where="-o", how="pictures are written as .svg")
    if as_json and out == "-":
        raise UsageError("-o - and --json both want stdout", how="write the picture to a file")


def write_picture(out: str, svg: str) -> None:
    """A picture to its file, with a remark."""
    write_file(out, svg + "\n")
    if out != "-":
        remark(f"wrote {out}")


def draw_layout(layout: IndexMap, out: str | None, colour: str, unit: str | None, as_json: bool) -> None:
    """The array, or with a ``unit`` the ruler: to a file, as JSON, in the terminal."""
    from tilewright.layout import make_scene, ruler_scene

    if out is not None or as_json:
        scene = make_scene(layout, colour=colour) if unit is None else ruler_scene(layout, unit=unit, colour=colour)
        if out is not None:
            from tilewright.layout import draw_picture

            write_picture(out, str(draw_picture(scene).svg()))
        if as_json:
            emit_json(_scene_value(scene))
        return
    from tilewright.layout import terminal_drawing, terminal_ruler

    console_width = _width()
    if unit is None:
        _print(terminal_drawing(layout, console_width, colour=colour))
    else:
        _print(terminal_ruler(layout, console_width, unit=unit, colour=colour))


def _scene_value(scene: Scene) -> dict[str, Any]:
    levels = [{"name": v.name, "rows": v.row_period, "columns": v.column_period} for v in scene.levels]
    panels = [_panel_value(panel) for row in scene.panels for panel in row]
    return {"layout": scene.title, "cut": scene.cut, "colour": scene.colour_by, "levels": levels, "panels": panels}


def _panel_value(panel: Panel) -> dict[str, Any]:
    value: dict[str, Any] = {"heading": panel.heading, "rows": list(panel.rows), "columns": list(panel.columns)}
    value |= {"cells": [list(row) for row in panel.labels], "padding": panel.padding.tolist()}
    return value | {"colours": panel.colours.tolist()}


def _width() -> int:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120).width


def _print(text: RichText) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(text, soft_wrap=True)


# What the commands that make a layout have in common: an element, a place, a picture, or the facts.

Made = tuple["IndexMap", tuple[int, ...] | None]


def viewed(make: Callable[..., Made]) -> Callable[..., None]:
    """A command out of a function that makes a layout (and the place that is asked about): the options of a view added.

    The option parser reads a signature, so the command is given the one that ``make`` and :func:`_view` have together.
    """
    own = set(inspect.signature(make).parameters)

    def command(**options: Any) -> None:
        layout, place = make(**{name: value for name, value in options.items() if name in own})
        _view(layout, place, **{name: value for name, value in options.items() if name not in own})

    _, _, *shared = inspect.signature(_view).parameters.values()
    hints = get_type_hints(make, globals() | make.__globals__ | {"IndexMap": Any}, include_extras=True)
    hints |= get_type_hints(_view, globals() | {"IndexMap": Any}, include_extras=True)
    both = [*inspect.signature(make).parameters.values(), *shared]
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[each.name]) for each in both]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in named}
    command.__name__, command.__doc__ = make.__name__, make.__doc__
    return command


def _view(
    layout: IndexMap,
    place: tuple[int, ...] | None,
    index: Index = None,
    draw: Draw = False,
    out: Out = None,
    colour: Colour = "auto",
    ruler: Ruler = False,
    unit: Unit = "auto",
    as_json: Json = False,
) -> None:
    """Answer a question, draw, or print the facts."""
    check_picture(out, as_json)
    asked = unit if ruler or unit != "auto" else None
    if out is not None:
        draw_layout(layout, out, colour, asked, as_json=False)
    if index is not None or place is not None:
        answer(layout, index, place, as_json)
    elif out is None and (draw or asked):
        draw_layout(layout, None, colour, asked, as_json)
    elif out is None or as_json:
        answer(layout, None, None, as_json)

"""`tilewright layout draw` and `compare`, and the pictures of the other commands: terminal, SVG or JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from tilewright.cli.layout.show import (
    Index,
    Leaf,
    Out,
    Text,
    answer,
    exact_bytes,
    leaves,
    one_array,
    read_layout,
    whole_numbers,
)
from tilewright.cli.streams import Json, emit_json, emit_text, remark, show_drawing, show_table, write_file, writer_of
from tilewright.errors import CheckFailed, UnsupportedError, UsageError

if TYPE_CHECKING:
    from tilewright.layout import Comparison, IndexMap, MovedElement, Panel, Relayout, Scene

Colour = Annotated[
    str,
    typer.Option(
        "--colour",
        metavar="WAY",
        help="What a colour means: tile, channel, batch, npu, page, shard, line, offset or none.",
    ),
]
Window = Annotated[
    str,
    typer.Option("--window", metavar="A:B,..", help="Draw these ranges of the dims (of npu and offset), as 0:8,0:16."),
]
At = Annotated[
    str | None, typer.Option("--at", metavar="I,J,..", help="Draw the surroundings of this element, marked.")
]
Ruler = Annotated[bool, typer.Option("--ruler", help="Draw the memory under a ruler of bytes.")]
Unit = Annotated[
    str, typer.Option("--unit", metavar="UNIT", help="A cell of the ruler: element, line, tile, or auto by size.")
]
Draw = Annotated[bool, typer.Option("--draw", help="Draw it in the terminal.")]


class Look(NamedTuple):
    """How a layout is drawn; ``unit``: a cell of the ruler, None for the array."""

    colour: str
    unit: str | None
    window: str
    at: tuple[int, ...] | None


def _look(colour: str, ruler: bool, unit: str, window: str, at: str | None) -> Look:
    cell = unit if ruler or unit != "auto" else None
    if cell is not None and (window or at is not None):
        raise UsageError(
            "the ruler shows memory from its beginning", how="drop --window and --at, or --ruler and --unit"
        )
    return Look(colour, cell, window, None if at is None else whole_numbers(at, "--at"))


def draw(
    text: Text,
    out: Out = None,
    colour: Colour = "auto",
    window: Window = "",
    at: At = None,
    ruler: Ruler = False,
    unit: Unit = "auto",
    leaf: Leaf = None,
    as_json: Json = False,
) -> None:
    """Draw a layout: tiles outlined, offsets as numbers, padding marked; in the terminal, or as an SVG with -o.

    The arrays of a tuple are drawn one below the other in the terminal; a file holds one of them, see --leaf.
    """
    from tilewright.layout import TupleLayout

    writer_of(out, ".svg", as_json=as_json)
    look = _look(colour, ruler, unit, window, at)
    layout = read_layout(text) if leaf is None and out is None and not as_json else one_array(text, leaf)
    if not isinstance(layout, TupleLayout):
        draw_layout(layout, out, look, as_json)
        return
    for k, (name, array) in enumerate(leaves(layout)):
        emit_text(("\n" if k else "") + f"element {name}")
        draw_layout(array, None, look, as_json=False)


def write_picture(out: str, svg: str) -> None:
    """A picture to its file, with a remark."""
    write_file(out, svg + "\n")
    if out != "-":
        remark(f"wrote {out}")


def draw_layout(layout: IndexMap, out: str | None, look: Look, as_json: bool) -> None:
    """The array, or with a ``unit`` the ruler: to a file, as JSON, in the terminal."""
    from tilewright.layout import make_scene, ruler_scene

    colour, unit, window, at = look
    if out is not None or as_json:
        if unit is None:
            scene = make_scene(layout, colour=colour, window=window, at=at)
        else:
            scene = ruler_scene(layout, unit=unit, colour=colour)
        if out is not None:
            from tilewright.layout import draw_picture

            write_picture(out, str(draw_picture(scene).svg()))
        if as_json:
            emit_json(_scene_value(scene))
        return
    from tilewright.layout import terminal_drawing, terminal_ruler

    if unit is None:
        show_drawing(lambda width: terminal_drawing(layout, width, colour=colour, window=window, at=at))
    else:
        show_drawing(lambda width: terminal_ruler(layout, width, unit=unit, colour=colour))


def _scene_value(scene: Scene) -> dict[str, Any]:
    levels = [{"name": v.name, "rows": v.row_period, "columns": v.column_period} for v in scene.levels]
    panels = [_panel_value(panel) for row in scene.panels for panel in row]
    return {"layout": scene.title, "cut": scene.cut, "colour": scene.colour_by, "levels": levels, "panels": panels}


def _panel_value(panel: Panel) -> dict[str, Any]:
    value: dict[str, Any] = {"heading": panel.heading, "rows": list(panel.rows), "columns": list(panel.columns)}
    value |= {"cells": [list(row) for row in panel.labels], "padding": panel.padding.tolist()}
    return value | {"colours": panel.colours.tolist()}


Viewed = tuple["IndexMap", tuple[int, ...] | None]
"""What a command that makes a layout returns: the layout, and the place that is asked about."""


def viewed(make: Callable[..., Viewed]) -> Callable[..., None]:
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
    named = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[option.name]) for option in both]
    command.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in named}
    command.__name__, command.__doc__ = make.__name__, make.__doc__
    return command


def _view(
    layout: IndexMap,
    place: tuple[int, ...] | None,
    index: Index = None,
    draw: Draw = False,
    out: Out = None,
    colour: Colour = "auto",
    window: Window = "",
    ruler: Ruler = False,
    unit: Unit = "auto",
    as_json: Json = False,
) -> None:
    """Answer a question, draw, or print the facts."""
    writer_of(out, ".svg", as_json=as_json)
    look = _look(colour, ruler, unit, window, None if ruler or window else index)
    if out is not None:
        draw_layout(layout, out, look, as_json=False)
    if index is not None or place is not None:
        if draw and not as_json:
            draw_layout(layout, None, look, as_json=False)
            emit_text("")
        answer(layout, index, place, as_json)
    elif out is None and (draw or look.unit or window):
        draw_layout(layout, None, look, as_json)
    elif out is None or as_json:
        answer(layout, None, None, as_json)


_FIGURES = ("longest_run", "lines_read", "lines_written", "tiles_read", "tiles_written")

_A = Annotated[str, typer.Argument(metavar="A", help="The layout before, as f32[3,5]{1,0:T(2,2)}; - is stdin.")]
_B = Annotated[str, typer.Argument(metavar="B", help="The layout after: the same elements, perhaps in another shape.")]
_Permutation = Annotated[
    str | None,
    typer.Option("--permutation", metavar="P,..", help="B is reshape(transpose(A, P)), P as numpy.transpose reads it."),
]
_Fail = Annotated[bool, typer.Option("--fail-if-moved", help="Exit with 1 unless it is a bitcast.")]


def compare(
    a: _A,
    b: _B,
    permutation: _Permutation = None,
    out: Out = None,
    colour: Colour = "auto",
    fail_if_moved: _Fail = False,
    as_json: Json = False,
) -> None:
    """Compare two layouts of the same elements: a bitcast or not, why, what moves; side by side as an SVG with -o."""
    from tilewright.layout import compare as compare_layouts

    writer_of(out, ".svg", as_json=as_json)
    if a == b == "-":
        raise UsageError("both layouts cannot come from stdin", how="give one of them as an argument")
    order = None if permutation is None else whole_numbers(permutation, "--permutation")
    comparison = compare_layouts(one_array(a), one_array(b), order)
    if out is not None:
        from tilewright.layout import draw_comparison

        write_picture(out, str(draw_comparison(comparison, colour).svg()))
    if as_json:
        emit_json(_comparison_value(comparison))
    elif out != "-":
        _print_comparison(comparison)
    if fail_if_moved and not comparison.move.bitcast:
        raise CheckFailed(comparison.verdict)


def _comparison_value(comparison: Comparison) -> dict[str, Any]:
    move = comparison.move
    value = {
        "from": str(comparison.a),
        "to": str(comparison.b),
        "permutation": list(move.permutation),
        "bitcast": move.bitcast,
    }
    value |= {"reason": move.reason, "elements": comparison.b.num_elements, "moved_elements": comparison.moved_elements}
    value |= {"bytes_read": move.bytes_read, "bytes_written": move.bytes_written}
    value |= {name: _figure(move, name) for name in _FIGURES}
    return value | {"first_moves": [_move_value(comparison, moved) for moved in comparison.first_moves]}


def _move_value(comparison: Comparison, moved: MovedElement) -> dict[str, Any]:
    return {
        "from_index": list(moved.from_index),
        "from": dict(zip(comparison.a.axes, moved.from_place, strict=True)),
        "to_index": list(moved.to_index),
        "to": dict(zip(comparison.b.axes, moved.to_place, strict=True)),
    }


def _print_comparison(comparison: Comparison) -> None:
    from tilewright.render import count_text

    move = comparison.move
    rows = [("to", str(comparison.b))]
    if move.permutation != tuple(range(comparison.a.rank)):
        rows.append(("transposed by", f"({','.join(map(str, move.permutation))})"))
    rows.append(("bitcast", "yes: every element keeps its byte" if move.bitcast else f"no: {move.reason}"))
    if not move.bitcast:
        moved, every = comparison.moved_elements, count_text(comparison.b.num_elements)
        share = f"some of {every}, too many to look at each" if moved is None else f"{count_text(moved)} of {every}"
        rows.append(("elements that move", share))
    rows += [("bytes read", exact_bytes(move.bytes_read)), ("bytes written", exact_bytes(move.bytes_written))]
    if not move.bitcast:
        rows += _figure_rows(move)
    moves = [_sentence(comparison, moved) for moved in comparison.first_moves]
    rows += [("for instance" if not k else "", move_text) for k, move_text in enumerate(moves)]
    show_table(("from", str(comparison.a)), rows)


def _figure(move: Relayout, name: str) -> int | None:
    """A figure of a move, or None where the arrays lie in too many pieces to count them."""
    try:
        return int(getattr(move, name))
    except UnsupportedError:
        return None


def _figure_rows(move: Relayout) -> list[tuple[str, str]]:
    from tilewright.render import count_text

    run, *counts = (_figure(move, name) for name in _FIGURES)
    shown = ["many" if count is None else count_text(count) for count in counts]
    rows = [] if run is None else [("longest run", f"{exact_bytes(run)} that stay together")]
    rows.append(("lines of 64 bytes", f"{shown[0]} read, {shown[1]} written"))
    return [*rows, ("tiles, else lines", f"{shown[2]} read, {shown[3]} written")]


def _place_text(layout: IndexMap, place: tuple[int, ...], in_bytes: bool) -> str:
    if in_bytes and len(place) == 1:
        return f"byte {place[0] * layout.element_bits // 8}"
    return ", ".join(f"{name} {value}" for name, value in zip(layout.axes, place, strict=True))


def _sentence(comparison: Comparison, moved: MovedElement) -> str:
    """Where an element goes: an offset counts elements, so where these differ in width it is given in bytes."""
    old, new = ("(" + ",".join(map(str, index)) + ")" for index in (moved.from_index, moved.to_index))
    wider = comparison.a.element_bits != comparison.b.element_bits
    before, after = _place_text(comparison.a, moved.from_place, wider), _place_text(comparison.b, moved.to_place, wider)
    return (
        f"element {old} at {before} becomes {new} at {after}" if old != new else f"element {old}: {before} to {after}"
    )

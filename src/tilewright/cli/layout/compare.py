"""`tilewright layout compare`: is the one a bitcast of the other, and what moves if it is not?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.layout.draw import Colour, check_picture, write_picture
from tilewright.cli.layout.show import Json, Out, exact_bytes, one_array, whole_numbers
from tilewright.cli.streams import emit_json
from tilewright.errors import CheckFailed, UnsupportedError, UsageError

if TYPE_CHECKING:
    from tilewright.layout import Comparison, IndexMap, MovedElement, Relayout

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

    check_picture(out, as_json)
    if a == b == "-":
        raise UsageError("both layouts cannot come from stdin", how="give one of them as an argument")
    order = None if permutation is None else whole_numbers(permutation, "--permutation")
    found = compare_layouts(one_array(a), one_array(b), order)
    if out is not None:
        from tilewright.layout import draw_comparison

        write_picture(out, str(draw_comparison(found, colour).svg()))
    if as_json:
        emit_json(_value(found))
    elif out != "-":
        _print(found)
    if fail_if_moved and not found.move.bitcast:
        raise CheckFailed(found.verdict)


def _value(found: Comparison) -> dict[str, Any]:
    move = found.move
    value = {"from": str(found.a), "to": str(found.b), "permutation": list(move.permutation), "bitcast": move.bitcast}
    value |= {"reason": move.reason, "elements": found.b.num_elements, "moved_elements": found.moved_elements}
    value |= {"bytes_read": move.bytes_read, "bytes_written": move.bytes_written}
    value |= {name: _figure(move, name) for name in _FIGURES}
    return value | {"first_moves": [_move_value(found, each) for each in found.first_moves]}


def _move_value(found: Comparison, each: MovedElement) -> dict[str, Any]:
    return {
        "from_index": list(each.from_index),
        "from": dict(zip(found.a.axes, each.from_place, strict=True)),
        "to_index": list(each.to_index),
        "to": dict(zip(found.b.axes, each.to_place, strict=True)),
    }


def _print(found: Comparison) -> None:
    from tilewright.render import Column, count_text, print_table

    move = found.move
    rows = [("to", str(found.b))]
    if move.permutation != tuple(range(found.a.rank)):
        rows.append(("transposed by", f"({','.join(map(str, move.permutation))})"))
    rows.append(("bitcast", "yes: every element keeps its byte" if move.bitcast else f"no: {move.reason}"))
    if not move.bitcast:
        moved, every = found.moved_elements, count_text(found.b.num_elements)
        said = f"some of {every}, too many to look at each" if moved is None else f"{count_text(moved)} of {every}"
        rows.append(("elements that move", said))
    rows += [("bytes read", exact_bytes(move.bytes_read)), ("bytes written", exact_bytes(move.bytes_written))]
    if not move.bitcast:
        rows += _figure_rows(move)
    rows += [("for instance" if not k else "", _sentence(found, each)) for k, each in enumerate(found.first_moves)]
    print_table([Column("from"), Column(str(found.a))], rows)


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


def _place(layout: IndexMap, place: tuple[int, ...], in_bytes: bool) -> str:
    if in_bytes and len(place) == 1:
        return f"byte {place[0] * layout.element_bits // 8}"
    return ", ".join(f"{name} {value}" for name, value in zip(layout.axes, place, strict=True))


def _sentence(found: Comparison, each: MovedElement) -> str:
    """Where an element goes: offsets count elements, so bytes are told where these differ in width."""
    old, new = ("(" + ",".join(map(str, index)) + ")" for index in (each.from_index, each.to_index))
    wider = found.a.element_bits != found.b.element_bits
    before, after = _place(found.a, each.from_place, wider), _place(found.b, each.to_place, wider)
    return (
        f"element {old} at {before} becomes {new} at {after}" if old != new else f"element {old}: {before} to {after}"
    )

"""`tilewright layout draw` and `compare`, and the pictures of the other commands: terminal, SVG or JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tilewright import layout as layouts
from tilewright.cli.layout.show import (
    Index,
    Leaf,
    MeshSizes,
    Out,
    Shard,
    Text,
    answer,
    exact_bytes,
    one_array,
    over_mesh,
    read_layout,
    whole_numbers,
)
from tilewright.cli.streams import Json
from tilewright.errors import CheckFailed, UnsupportedError, UsageError
from tilewright.render.delivery import Answer, Line, Output, deliver, show
from tilewright.render.formats import count_text
from tilewright.render.tables import Table

if TYPE_CHECKING:
    from tilewright.layout.draw.comparison import Comparison, MovedElement
    from tilewright.layout.draw.panels import Scene
    from tilewright.layout.meshes.shards import MeshLayout

Colour = Annotated[
    str, "--colour WAY", "What a colour means: tile, channel, batch, npu, page, shard, line, offset or none."
]
Window = Annotated[str, "--window A:B,..", "Draw these ranges of the dims (of npu and offset), as 0:8,0:16."]
At = Annotated[str | None, "--at I,J,..", "Draw the surroundings of this element, marked."]
Ruler = Annotated[bool, "Draw the memory under a ruler of bytes."]
Unit = Annotated[str, "--unit UNIT", "A cell of the ruler: element, line, tile, or auto by size."]
Draw = Annotated[bool, "Draw it in the terminal."]


@dataclass(frozen=True)
class Picture:
    """A layout as it is drawn; ``unit``: what a cell of the ruler is, None for a picture of the array."""

    layout: layouts.IndexMap
    colour: str
    unit: str | None
    window: str
    at: tuple[int, ...] | None

    @property
    def _scene(self) -> Scene:
        from tilewright.layout.draw.scene import make_scene, ruler_scene

        if self.unit is None:
            return make_scene(self.layout, colour=self.colour, window=self.window, at=self.at)
        return ruler_scene(self.layout, unit=self.unit, colour=self.colour)

    def to_svg(self) -> str:
        from tilewright.layout.draw.picture import draw_picture

        return f"{draw_picture(self._scene).svg()}\n"

    def to_json(self) -> dict[str, Any]:
        """The cells with their labels and colours."""
        scene = self._scene
        levels = [{"name": v.name, "rows": v.row_period, "columns": v.column_period} for v in scene.levels]
        panels = [
            {"heading": panel.heading, "rows": list(panel.rows), "columns": list(panel.columns)}
            | {"cells": [list(row) for row in panel.labels], "padding": panel.padding.tolist()}
            | {"colours": panel.colours.tolist()}
            for panel in (*filter(None, (scene.devices,)), *(panel for row in scene.panels for panel in row))
        ]
        head = {"layout": scene.title, "cut": scene.cut, "colour": scene.colour_by}
        return head | {"levels": levels, "panels": panels}

    def lines(self) -> list[Line]:
        from tilewright.layout.draw.terminal import terminal_drawing, terminal_ruler

        layout, colour, unit = self.layout, self.colour, self.unit
        if unit is None:
            return [lambda width: terminal_drawing(layout, width, colour=colour, window=self.window, at=self.at)]
        return [lambda width: terminal_ruler(layout, width, unit=unit, colour=colour)]


def _picture(layout: layouts.IndexMap, colour: str, ruler: bool, unit: str, window: str, at: str | None) -> Picture:
    cell = unit if ruler or unit != "auto" else None
    if cell is not None and (window or at is not None):
        problem = "the ruler shows memory from its beginning"
        raise UsageError(problem, how="drop --window and --at, or --ruler and --unit")
    return Picture(layout, colour, cell, window, None if at is None else whole_numbers(at, "--at"))


def draw(
    text: Text,
    out: Out = None,
    colour: Colour = "auto",
    window: Window = "",
    at: At = None,
    ruler: Ruler = False,
    unit: Unit = "auto",
    leaf: Leaf = None,
    mesh: MeshSizes = None,
    shard: Shard = None,
    as_json: Json = False,
) -> None:
    """Draw a layout: tiles outlined, offsets as numbers, padding marked; in the terminal, or as an SVG with -o.

    With --shard the devices of a mesh are drawn with what each holds, and the shard of one of them.

    The arrays of a tuple are drawn one below the other in the terminal; a file holds one of them, see --leaf.
    """
    where = Output(out, as_json, ".svg")
    if shard is not None or mesh is not None:
        layout = over_mesh(one_array(text, leaf), mesh, shard)
        deliver(_picture(layout, colour, ruler, unit, window, at), where, said=())
        return
    from tilewright.layout.explain import leaves

    whole = leaf is None and out is None and not as_json
    arrays = list(leaves(read_layout(text) if whole else one_array(text, leaf)))
    pictures = [(name, _picture(array, colour, ruler, unit, window, at)) for name, array in arrays]
    for k, (name, picture) in enumerate(pictures):
        if name:
            show([("\n" if k else "") + f"element {name}"])
        deliver(picture, where, said=())


@dataclass(frozen=True)
class View:
    """The options of a command that makes a layout: the element that is asked about, and how it is drawn."""

    index: Index = None
    draw: Draw = False
    out: Out = None
    colour: Colour = "auto"
    window: Window = ""
    ruler: Ruler = False
    unit: Unit = "auto"
    as_json: Json = False

    def show(self, layout: layouts.IndexMap, place: int | tuple[int, ...] | None) -> None:
        """Answer a question, draw, or print the facts; ``place``: what is asked about, an offset or one by axis."""
        index, out, json = self.index, self.out, Output(as_json=self.as_json)
        Output(out, self.as_json, ".svg")  # refuses a wrong name before anything is drawn
        at = None if self.ruler or self.window else index
        picture = _picture(layout, self.colour, self.ruler, self.unit, self.window, at)
        asked, drawn = index is not None or place is not None, bool(self.draw or picture.unit or self.window)
        if out is not None:
            deliver(picture, Output(out, False, ".svg"), said=())
        if asked and self.draw and not self.as_json:
            show([*picture.lines(), ""])
        if asked or (out is None and not drawn) or (out is not None and self.as_json):
            deliver(answer(layout, index, place), json)
        elif out is None:
            deliver(picture, json)


_FIGURES = ("longest_run", "lines_read", "lines_written", "tiles_read", "tiles_written")

_A = Annotated[str, Argument(metavar="A", help="The layout before, as f32[3,5]{1,0:T(2,2)}; - is stdin.")]
_B = Annotated[str, Argument(metavar="B", help="The layout after: the same elements, perhaps in another shape.")]
_Permutation = Annotated[
    str | None, "--permutation P,..", "B is reshape(transpose(A, P)), P as numpy.transpose reads it."
]
_Fail = Annotated[bool, "Exit with 1 unless it is a bitcast."]


def compare(
    a: _A,
    b: _B,
    permutation: _Permutation = None,
    out: Out = None,
    colour: Colour = "auto",
    fail_if_moved: _Fail = False,
    mesh: MeshSizes = None,
    shard: Shard = None,
    to: Annotated[str | None, "--to AXES,..", "With --shard: the sharding of B."] = None,
    as_json: Json = False,
) -> None:
    """Compare two layouts of the same elements: a bitcast or not, why, what moves; side by side as an SVG with -o.

    With --shard and --to both are over a mesh: the steps from one to the other, and the bytes of each.
    """
    from tilewright.layout.draw.comparison import draw_comparison

    where = Output(out, as_json, ".svg")
    if a == b == "-":
        raise UsageError("both layouts cannot come from stdin", how="give one of them as an argument")
    if shard is not None or to is not None or mesh is not None:
        if to is None or permutation is not None or out is not None:
            raise UsageError("over a mesh two shardings are compared", how="give --shard and --to, no -o")
        _compare_shardings(over_mesh(one_array(a), mesh, shard), over_mesh(one_array(b), mesh, to), where)
        return
    order = None if permutation is None else whole_numbers(permutation, "--permutation")
    comparison = layouts.compare(one_array(a), one_array(b), order)
    result = Answer(lambda: _comparison_value(comparison), lambda: [_comparison_table(comparison)])
    deliver(result, where, {".svg": lambda: f"{draw_comparison(comparison, colour).svg()}\n"})
    if fail_if_moved and not comparison.move.bitcast:
        raise CheckFailed(comparison.verdict)


def _compare_shardings(a: MeshLayout, b: MeshLayout, where: Output) -> None:
    found = layouts.reshard(a, b)
    rows = [("to", str(b)), *((f"step {k}", str(step)) for k, step in enumerate(found.steps, 1))]
    rows.append(("received", f"{exact_bytes(found.bytes_per_device)} by the slowest device, counted"))
    rows.append(("least possible", f"{exact_bytes(found.least_bytes)}: what its new shard has and its old one has not"))
    steps = [{"op": s.op, "to": str(s.after.sharding), "bytes": s.bytes, "groups": s.groups} for s in found.steps]
    value = {"from": str(a), "to": str(b), "steps": steps, "bytes_per_device": found.bytes_per_device}
    table = Table(("from", str(a)), rows)
    deliver(Answer(lambda: value | {"least_bytes": found.least_bytes}, lambda: [table]), where)


def _comparison_value(comparison: Comparison) -> dict[str, Any]:
    move, a, b = comparison.move, comparison.a, comparison.b
    value = {"from": str(a), "to": str(b), "permutation": list(move.permutation), "bitcast": move.bitcast}
    value |= {"reason": move.reason, "elements": b.num_elements, "moved_elements": comparison.moved_elements}
    value |= {"bytes_read": move.bytes_read, "bytes_written": move.bytes_written}
    value |= {name: _figure(move, name) for name in _FIGURES}
    first_moves = [
        {"from_index": list(moved.from_index), "from": dict(zip(a.axes, moved.from_place, strict=True))}
        | {"to_index": list(moved.to_index), "to": dict(zip(b.axes, moved.to_place, strict=True))}
        for moved in comparison.first_moves
    ]
    return value | {"first_moves": first_moves}


def _comparison_table(comparison: Comparison) -> Table:
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
        run, *counts = (_figure(move, name) for name in _FIGURES)
        shown = ["many" if count is None else count_text(count) for count in counts]
        rows += [] if run is None else [("longest run", f"{exact_bytes(run)} that stay together")]
        rows += [("lines of 64 bytes", f"{shown[0]} read, {shown[1]} written")]
        rows += [("tiles, else lines", f"{shown[2]} read, {shown[3]} written")]
    moves = [_sentence(comparison, moved) for moved in comparison.first_moves]
    rows += [("for instance" if not k else "", move_text) for k, move_text in enumerate(moves)]
    return Table(("from", str(comparison.a)), rows)


def _figure(move: layouts.Relayout, name: str) -> int | None:
    """A figure of a move, or None where the arrays lie in too many pieces to count them."""
    try:
        return int(getattr(move, name))
    except UnsupportedError:
        return None


def _place_text(layout: layouts.IndexMap, place: tuple[int, ...], in_bytes: bool) -> str:
    if in_bytes and len(place) == 1:
        return f"byte {place[0] * layout.element_bits // 8}"
    return layout.place_text(place)


def _sentence(comparison: Comparison, moved: MovedElement) -> str:
    """Where an element goes: an offset counts elements, so where these differ in width it is given in bytes."""
    old, new = ("(" + ",".join(map(str, index)) + ")" for index in (moved.from_index, moved.to_index))
    wider = comparison.a.element_bits != comparison.b.element_bits
    before, after = _place_text(comparison.a, moved.from_place, wider), _place_text(comparison.b, moved.to_place, wider)
    return (
        f"element {old} at {before} becomes {new} at {after}" if old != new else f"element {old}: {before} to {after}"
    )

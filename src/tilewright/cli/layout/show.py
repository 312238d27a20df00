"""`tilewright layout explain`, `draw` and `compare`; and what all commands of `layout` share.

That is reading a layout out of a text, an element or a place that is asked about, facts, and pictures.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tilewright import layout as layouts
from tilewright.cli.options import Files, Json, whole_numbers
from tilewright.cli.streams import read_text
from tilewright.errors import CheckFailed, ParseError, UnsupportedError, UsageError
from tilewright.render.delivery import Answer, Line, Output, deliver, remark, show
from tilewright.render.formats import bytes_text, count_text, ratio_text
from tilewright.render.tables import Table

if TYPE_CHECKING:
    from tilewright.layout.draw.comparison import Comparison, MovedElement
    from tilewright.layout.draw.panels import Scene
    from tilewright.layout.kinds.tiled import FoundShape
    from tilewright.layout.meshes.shards import MeshLayout

Text = Annotated[str, Argument(help="A shape, as f32[3,5]{1,0:T(2,2)}, or any text with shapes in it; - is stdin.")]
Index = Annotated[str | None, "--index I,J,..", "Derive this element's address."]
Offset = Annotated[int | None, "--offset O", "Say what lies at this offset."]
Leaf = Annotated[str | None, "--leaf I,J,..", "Of a tuple this element (of that element, ...)."]
ToSvg = Annotated[Output, Files(".svg")]
_Colour = Annotated[str, "--colour WAY", "Coloured by tile, channel, batch, npu, page, shard, line, offset or none."]


@dataclass(frozen=True)
class OverMesh:
    """The options that cut an array over a mesh."""

    mesh: Annotated[str | None, "--mesh AXIS=N,..", "Devices along axes, the last one fastest, as d=4,m=4."] = None
    shard: Annotated[str | None, "--shard AXES,..", "Axes per dim, as d+m,-; or XLA's, Shardy's or JAX's text."] = None

    def __bool__(self) -> bool:
        return self.mesh is not None or self.shard is not None

    def cut(self, array: layouts.TensorLayout, shard: str | None) -> MeshLayout:
        """The array cut over the mesh; UsageError where nothing says how."""
        if shard is None:
            raise UsageError("--mesh says the devices, not what cuts the array", how="add --shard, as --shard d,-")
        return layouts.shard(array, self.mesh, shard)


def explain(
    text: Text,
    index: Index = None,
    offset: Offset = None,
    leaf: Leaf = None,
    device: Annotated[int | None, "--device D", "With --shard and --offset: what lies there."] = None,
    *,
    over: OverMesh,
    to: Json,
) -> None:
    """Say what a layout's text means: its sizes, how one element gets its offset, or what lies at an offset.

    With --shard the array is cut over a mesh: an element's devices, what a device holds, its bytes.
    """
    if over:
        if (device is None) != (offset is None):
            raise UsageError("a place is a device and an offset", how="give both --device and --offset")
        place = None if device is None or offset is None else (device, offset)
        deliver(answer(over.cut(one_array(text, leaf), over.shard), index, place), to)
        return
    if device is not None:
        raise UsageError("--device goes with --shard")
    whole = leaf is None and index is None and offset is None
    found = read_shapes(text) if whole else ()
    if any(shape.bare for shape in found):
        remark("the text gives no sizes and no element type: ? stands for the sizes, the type follows from the tiles")
    if len(found) > 1:
        deliver(_shapes(found), to)
        if not to.as_json and any(shape.name.startswith("allocation") for shape in found):
            remark("`tilewright explain-error` ranks the allocations of such a message and says what to change")
        return
    layout = found[0].layout if whole else one_array(text, leaf)
    result = facts(layout) if isinstance(layout, layouts.TupleLayout) else answer(layout, index, offset)
    deliver(result, to)


def _shapes(found: Sequence[FoundShape]) -> Answer:
    """The shapes of a text that has several, a line each."""
    values = [{"name": shape.name, **layouts.summary(shape.layout)} for shape in found]
    table = sizes_table("of the text", ((s.name or f"shape {number}", s.layout) for number, s in enumerate(found, 1)))
    return Answer(lambda: {"shapes": values}, lambda: [table])


def read_shapes(text: str) -> tuple[FoundShape, ...]:
    """The shapes of a text, as it may be pasted out of a dump; ``-`` reads stdin."""
    try:
        return layouts.find_shapes(read_text("-").strip() if text == "-" else text)
    except ParseError:
        if os.path.isfile(text):
            how = "give a shape's text, or - to read it from stdin; `tilewright report` reads whole programs"
            raise UsageError("this is a file, not a shape", where=text, how=how) from None
        raise


def read_layout(text: str) -> layouts.TensorLayout | layouts.TupleLayout:
    """The layout of a text; the tuple of all where it has several."""
    found = read_shapes(text)
    return found[0].layout if len(found) == 1 else layouts.TupleLayout(tuple(shape.layout for shape in found))


def one_array(text: str, leaf: str | None = None) -> layouts.TensorLayout:
    """A single array, as an index, an offset and a picture need it; of a tuple the one that ``leaf`` names."""
    layout = read_layout(text)
    for number in whole_numbers(leaf, "--leaf") if leaf is not None else ():
        if not isinstance(layout, layouts.TupleLayout):
            raise UsageError(f"{layout} is not a tuple", where=f"--leaf {leaf}")
        if not 0 <= number < len(layout.elements):
            raise UsageError(f"the tuple has {len(layout.elements)} elements, from 0 on", where=f"--leaf {leaf}")
        layout = layout.elements[number]
    if isinstance(layout, layouts.TupleLayout):
        what = f"{layout} is a tuple"
        raise UsageError(what, how="give the text of one of its elements, or --leaf to draw and explain")
    return layout


def sized_array(text: str) -> layouts.TensorLayout:
    """A single array whose dims all have sizes: no ``?``."""
    layout = one_array(text)
    layout.require_static()
    return layout


def answer(layout: layouts.IndexMap, index: str | None, place: int | Sequence[int] | None) -> Answer:
    """How an element gets its address, what lies at a place (an offset, or one number per axis), or the facts."""
    from tilewright.layout.explain import derive, explain_place

    if index is not None and place is not None:
        raise UsageError("an index and a place are two questions", how="ask one at a time")
    if index is not None:
        numbers = whole_numbers(index, "--index")
        derivation = derive(layout, numbers)
        return Answer(lambda: _derivation_value(layout, derivation, numbers), lambda: [str(derivation)])
    if place is None:
        return facts(layout)
    at = (place,) if isinstance(place, int) else tuple(place)

    def element() -> dict[str, Any]:
        found = layout.index(*at)
        address = dict(zip(layout.axes, at, strict=True))
        return {"layout": str(layout), **address, "index": None if found is None else list(found)}

    return Answer(element, lambda: [explain_place(layout, *at)])


def _derivation_value(layout: layouts.IndexMap, derivation: Any, index: Sequence[int]) -> dict[str, Any]:
    address = derivation.address
    value: dict[str, Any] = {"layout": derivation.layout, "index": list(index), **address, "address": address}
    value["expressions"] = derivation.expressions
    if layout.replicas > 1:
        value["copies"] = [dict(zip(layout.axes, place, strict=True)) for place in layout.where(*index)]
    if "offset" in address:
        value["expression"] = derivation.expressions["offset"]
        value["bit"] = address["offset"] * layout.element_bits
    return value | {
        "coordinates": [{"name": c.label, "value": c.value, "size": c.size} for c in derivation.coordinates]
    }


def facts(layout: layouts.IndexMap | layouts.TupleLayout) -> Answer:
    """A layout's facts (``tilewright.layout.summary``) as a table or JSON; a tuple's arrays a line each.

    An array is called as ``--leaf`` calls it; the tuple's pointers stand below, and what all take together.
    """
    from tilewright.layout.explain import leaves

    known = layouts.summary(layout)
    if isinstance(layout, layouts.TupleLayout):
        pointers = _pointer_bytes(layout)
        below = ("pointers", "", exact_bytes(pointers), ""), ("together", "", *_sizes(layout, pointers))
        table = sizes_table("element", leaves(layout), *below)
    else:
        table = Table(("layout", known["layout"]), _facts_rows(known))
    return Answer(lambda: known, lambda: [table])


def sizes_table(heading: str, named: Iterable[tuple[str, Any]], *below: tuple[str, ...]) -> Table:
    """A line for every layout: its name, text, size and padding ratio."""
    rows = [(name, str(layout), *_sizes(layout)) for name, layout in named]
    return Table((heading, "layout", "size in memory", "padding ratio"), [*rows, *below])


def _pointer_bytes(layout: Any) -> int:
    tables = getattr(layout, "elements", ())
    return 8 * len(tables) + sum(map(_pointer_bytes, tables))


def _sizes(layout: Any, beside: int = 0) -> tuple[str, str]:
    """The size in memory, with bytes ``beside`` it, and the padding ratio of an array or of all arrays of a tuple."""
    from tilewright.layout.explain import leaves

    arrays = [layouts.summary(array) for _, array in leaves(layout)]
    if any("slots" not in array for array in arrays):
        return "not known", ""
    size, data = (sum(array[key] for array in arrays) for key in ("size_bytes", "data_bytes"))
    return exact_bytes(size + beside), ratio_text(size / data if data else 1.0) if arrays else ""


def _facts_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of one array, a row each."""
    rows = [
        ("element type", f"{facts['dtype']}, {facts['element_bits']} bits each in memory"),
        ("shape", _tuple(facts["shape"])),
    ]
    for key, (heading, *say) in _ROWS.items():
        if key in facts and (say or facts[key] != []):
            value = facts[key]
            rows.append((heading, say[0](facts) if say else _tuple(value) if isinstance(value, list) else str(value)))
    each = [(key.replace("_", " ").replace("npu", "NPU"), n) for key, n in facts.items() if key.startswith("bytes_per")]
    rows += [(heading, exact_bytes(count)) for heading, count in each]
    if "slots" not in facts:
        why = "a sparse array's depends on the data" if "sparse_levels" in facts else "a dim marked ? has no bound"
        return [*rows, ("size in memory", f"not known: {why}")]
    return [
        *rows,
        ("physical shape", _tuple(facts["physical_shape"])),
        ("slots", f"{count_text(facts['slots'])}, of which {count_text(facts['padding_slots'])} are padding"),
        ("size on all devices" if "replicas" in facts else "size in memory", exact_bytes(facts["size_bytes"])),
        ("data alone", exact_bytes(facts["data_bytes"])),
        ("padding ratio", ratio_text(facts["padding_ratio"])),
    ]


def _tuple(values: Sequence[object]) -> str:
    return f"({','.join(map(str, values))})"


def _order(facts: dict[str, Any]) -> str:
    dims = ", ".join(f"d{d}" for d in reversed(facts["minor_to_major"]))
    return f"{dims}: major to minor" if dims else "a single element"


def _space(facts: dict[str, Any]) -> str:
    from tilewright.layout.index.types import memory_name

    return f"{facts['memory_space']}, {memory_name(facts['memory_space'])}"


def _bounds(facts: dict[str, Any]) -> str:
    return ", ".join(f"{dim} up to {n}" for dim, n in facts["bounds"].items())


def _cuts(facts: dict[str, Any]) -> str:
    cuts = "; ".join(f"{dim} cut at {', '.join(map(str, at))}" for dim, at in facts["splits"].items())
    return f"{cuts}: pieces of at most {_tuple(facts['longest_pieces'])}"


_STAYS = "; it moves no element"
_ROWS: dict[str, tuple[Any, ...]] = {
    "axes": ("axes", lambda of: ", ".join(f"{name} 0..{extent - 1}" for name, extent in of["axes"].items())),
    "sharding": ("sharding",),
    "shard_layout": ("a device's shard",),
    "replicas": ("devices that hold an element",),
    "start": ("start",),
    "mode": ("mode",),
    "tensor": ("stored as (N,C,H,W)",),
    "page": ("page",),
    "line": ("line",),
    "order": ("order, fastest first",),
    "minor_to_major": ("order", _order),
    "tiles": ("tiles", lambda of: " then ".join(map(_tuple, of["tiles"])) or "none"),
    "strides": ("strides", lambda of: _tuple(of["strides"]) + ", in elements" * ("tiles" in of)),
    "rotation": ("rotation",),
    "row_offset": ("row offset",),
    "rows_per_shard": ("rows a shard",),
    "memory_space": ("memory space", _space),
    "sparse_levels": (
        "D(..)",
        lambda of: f"{', '.join(of['sparse_levels'])}: a sparse array; D is dense, C compressed, S singleton",
    ),
    "buffer": ("b(..)", lambda of: "a buffer: memory that operations write in place"),
    "bounds": ("dynamic dims", lambda of: f"{_bounds(of)}; memory is laid out for the bound"),
    "tail_alignment": ("L(n)", lambda of: f"slots rounded up to a multiple of {of['tail_alignment']}"),
    "index_type": ("#(..)", lambda of: f"{of['index_type']}, the type of a sparse array's indices{_STAYS}"),
    "pointer_type": ("*(..)", lambda of: f"{of['pointer_type']}, the type of a sparse array's pointers{_STAYS}"),
    "splits": ("SC(..)", lambda of: f"{_cuts(of)}{_STAYS}"),
    "metadata_prefix": (
        "M(n)",
        lambda of: f"{of['metadata_prefix']} bytes of dynamic sizes in front of the data, not counted here",
    ),
}
"""Of each fact that only some layouts have its heading and, where its value alone says little, what is said of it."""


def exact_bytes(count: int) -> str:
    """A byte count to the byte, and in a larger unit where that helps."""
    return f"{count_text(count)} bytes" + (f" ({bytes_text(count)})" if count >= 1024 else "")


# Pictures.


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


@dataclass(frozen=True)
class Look:
    """The options that say how a layout is drawn."""

    colour: _Colour = "auto"
    window: Annotated[str, "--window A:B,..", "Draw these ranges of the dims (of npu and offset), as 0:8,0:16."] = ""
    ruler: Annotated[bool, "Draw the memory under a ruler of bytes."] = False
    unit: Annotated[str, "--unit UNIT", "A cell of the ruler: element, line, tile, or auto by size."] = "auto"

    def picture(self, layout: layouts.IndexMap, at: str | None) -> Picture:
        """The layout as it is drawn, the element ``at`` marked."""
        cell = self.unit if self.ruler or self.unit != "auto" else None
        if cell is not None and (self.window or at is not None):
            problem = "the ruler shows memory from its beginning"
            raise UsageError(problem, how="drop --window and --at, or --ruler and --unit")
        return Picture(layout, self.colour, cell, self.window, None if at is None else whole_numbers(at, "--at"))


def draw(
    text: Text,
    at: Annotated[str | None, "--at I,J,..", "Draw the surroundings of this element, marked."] = None,
    leaf: Leaf = None,
    *,
    look: Look,
    over: OverMesh,
    to: ToSvg,
) -> None:
    """Draw a layout: tiles outlined, offsets as numbers, padding marked; in the terminal, or as an SVG with -o.

    With --shard the devices of a mesh are drawn with what each holds, and the shard of one of them.

    The arrays of a tuple are drawn one below the other in the terminal; a file holds one of them, see --leaf.
    """
    from tilewright.layout.explain import leaves

    if leaf is None and to.path is None and not to.as_json and not over:
        layout: layouts.IndexMap | layouts.TupleLayout = read_layout(text)
    else:
        layout = over.cut(one_array(text, leaf), over.shard) if over else one_array(text, leaf)
    pictures = [(name, look.picture(array, at)) for name, array in leaves(layout)]
    for k, (name, picture) in enumerate(pictures):
        if name:
            show([("\n" if k else "") + f"element {name}"])
        deliver(picture, to, said=())


@dataclass(frozen=True, kw_only=True)
class View(Look):
    """The options of a command that makes a layout: the element that is asked about, and how it is drawn."""

    index: Index = None
    draw: Annotated[bool, "Draw it in the terminal."] = False
    to: ToSvg

    def show(self, layout: layouts.IndexMap, place: int | tuple[int, ...] | None) -> None:
        """Answer a question, draw, or print the facts; ``place``: what is asked about, an offset or one by axis."""
        index, path, printed = self.index, self.to.path, Output(as_json=self.to.as_json)
        picture = self.picture(layout, None if self.ruler or self.window else index)
        asked, drawn = index is not None or place is not None, bool(self.draw or picture.unit or self.window)
        if path is not None:
            deliver(picture, Output(path, False, ".svg"), said=())
        if asked and self.draw and not printed.as_json:
            show([*picture.lines(), ""])
        if asked or (path is None and not drawn) or (path is not None and printed.as_json):
            deliver(answer(layout, index, place), printed)
        elif path is None:
            deliver(picture, printed)


_FIGURES = ("longest_run", "lines_read", "lines_written", "tiles_read", "tiles_written")


def compare(
    a: Annotated[str, Argument(help="The layout before, as f32[3,5]{1,0:T(2,2)}; - is stdin.")],
    b: Annotated[str, Argument(help="The layout after: the same elements, perhaps in another shape.")],
    permutation: Annotated[str | None, "--permutation P,..", "B is reshape(transpose(A, P)), as in numpy."] = None,
    colour: _Colour = "auto",
    fail_if_moved: Annotated[bool, "Exit with 1 unless it is a bitcast."] = False,
    *,
    over: OverMesh,
    onto: Annotated[str | None, "--to AXES,..", "With --shard: the sharding of B."] = None,
    to: ToSvg,
) -> None:
    """Compare two layouts of the same elements: a bitcast or not, why, what moves; side by side as an SVG with -o.

    With --shard and --to both are over a mesh: the steps from one to the other, and the bytes of each.
    """
    from tilewright.layout.draw.comparison import draw_comparison

    if a == b == "-":
        raise UsageError("both layouts cannot come from stdin", how="give one of them as an argument")
    if over or onto is not None:
        if onto is None or permutation is not None or to.path is not None:
            raise UsageError("over a mesh two shardings are compared", how="give --shard and --to, no -o")
        deliver(_resharding(over.cut(one_array(a), over.shard), over.cut(one_array(b), onto)), to)
        return
    order = None if permutation is None else whole_numbers(permutation, "--permutation")
    comparison = layouts.compare(one_array(a), one_array(b), order)
    result = Answer(lambda: _comparison_value(comparison), lambda: [_comparison_table(comparison)])
    deliver(result, to, {".svg": lambda: f"{draw_comparison(comparison, colour).svg()}\n"})
    if fail_if_moved and not comparison.move.bitcast:
        raise CheckFailed(comparison.verdict)


def _resharding(a: MeshLayout, b: MeshLayout) -> Answer:
    """The steps from one sharding to another."""
    found = layouts.reshard(a, b)
    rows = [("to", str(b)), *((f"step {k}", str(step)) for k, step in enumerate(found.steps, 1))]
    rows.append(("received", f"{exact_bytes(found.bytes_per_device)} by the slowest device, counted"))
    rows.append(("least possible", f"{exact_bytes(found.least_bytes)}: what its new shard has and its old one has not"))
    steps = [{"op": s.op, "to": str(s.after.sharding), "bytes": s.bytes, "groups": s.groups} for s in found.steps]
    value = {"from": str(a), "to": str(b), "steps": steps, "bytes_per_device": found.bytes_per_device}
    return Answer(lambda: value | {"least_bytes": found.least_bytes}, lambda: [Table(("from", str(a)), rows)])


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
        rows.append(("transposed by", _tuple(move.permutation)))
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


def _sentence(comparison: Comparison, moved: MovedElement) -> str:
    """Where an element goes: an offset counts elements, so where these differ in width it is given in bytes."""
    a, b = comparison.a, comparison.b
    old, new = map(_tuple, (moved.from_index, moved.to_index))
    before, after = (
        f"byte {place[0] * layout.element_bits // 8}"
        if len(place) == 1 and a.element_bits != b.element_bits
        else layout.place_text(place)
        for layout, place in ((a, moved.from_place), (b, moved.to_place))
    )
    return (
        f"element {old}: {before} to {after}" if old == new else f"element {old} at {before} becomes {new} at {after}"
    )

"""`tilewright layout explain`, and what the others share: reading a layout, an element, a place, facts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tilewright import layout as layouts
from tilewright.cli.streams import Json, read_text
from tilewright.errors import ParseError, UsageError
from tilewright.render.delivery import Answer, Output, deliver, remark
from tilewright.render.formats import bytes_text, count_text, ratio_text
from tilewright.render.tables import Table

if TYPE_CHECKING:
    from tilewright.layout.kinds.tiled import FoundShape
    from tilewright.layout.meshes.shards import MeshLayout

_LAYOUT = re.compile(r"\]\s*\{\s*[0-9:]|Layout\(|#tpu\.tiled|minor_to_major|layout_mode")


def names_layout(text: str) -> bool:
    """Whether the text gives a layout, not only sizes."""
    return bool(_LAYOUT.search(text))


Text = Annotated[
    str, Argument(metavar="TEXT", help="A shape, as f32[3,5]{1,0:T(2,2)}, or any text with shapes in it; - is stdin.")
]
Index = Annotated[str | None, "--index I,J,..", "Derive this element's address."]
Offset = Annotated[int | None, "--offset O", "Say what lies at this offset."]
Leaf = Annotated[str | None, "--leaf I,J,..", "Of a tuple this element (of that element, ...)."]
MeshSizes = Annotated[str | None, "--mesh AXIS=N,..", "Devices along named axes, the last one fastest, as d=4,m=4."]
Shard = Annotated[
    str | None, "--shard AXES,..", "Per dim the mesh axes that cut it, as d+m,-; or XLA's, Shardy's or JAX's text."
]
Out = Annotated[str | None, "-o", "--out FILE", "Write an SVG: FILE.svg, or - for stdout."]


def explain(
    text: Text,
    index: Index = None,
    offset: Offset = None,
    leaf: Leaf = None,
    mesh: MeshSizes = None,
    shard: Shard = None,
    device: Annotated[int | None, "--device D", "With --shard and --offset: what lies there."] = None,
    as_json: Json = False,
) -> None:
    """Say what a layout's text means: its sizes, how one element gets its offset, or what lies at an offset.

    With --shard the array is cut over a mesh: an element's devices, what a device holds, its bytes.
    """
    if shard is not None or mesh is not None:
        if (device is None) != (offset is None):
            raise UsageError("a place is a device and an offset", how="give both --device and --offset")
        place = None if device is None or offset is None else (device, offset)
        deliver(answer(over_mesh(one_array(text, leaf), mesh, shard), index, place), Output(as_json=as_json))
        return
    if device is not None:
        raise UsageError("--device goes with --shard")
    whole = leaf is None and index is None and offset is None
    found = read_shapes(text) if whole else ()
    if any(shape.bare for shape in found):
        remark("the text gives no sizes and no element type: ? stands for the sizes, the type follows from the tiles")
    if len(found) > 1:
        deliver(_shapes(found), Output(as_json=as_json))
        if not as_json and any(shape.name.startswith("allocation") for shape in found):
            remark("`tilewright explain-error` ranks the allocations of such a message and says what to change")
        return
    layout = found[0].layout if whole else one_array(text, leaf)
    result = facts(layout) if isinstance(layout, layouts.TupleLayout) else answer(layout, index, offset)
    deliver(result, Output(as_json=as_json))


def _shapes(found: Sequence[FoundShape]) -> Answer:
    """The shapes of a text that has several, a line each."""
    from tilewright.layout.explain import leaves

    summaries = [layouts.summary(shape.layout) for shape in found]
    rows = []
    for number, (shape, sizes) in enumerate(zip(found, summaries, strict=True), start=1):
        if isinstance(shape.layout, layouts.TupleLayout):
            arrays = [layouts.summary(array) for _, array in leaves(shape.layout)]
            known = all("slots" in array for array in arrays)
            size, data = (sum(array.get(key, 0) for array in arrays) for key in ("size_bytes", "data_bytes"))
            sizes = {"slots": 0, "size_bytes": size, "padding_ratio": size / data if data else 1.0} if known else {}
        rows.append((shape.name or f"shape {number}", str(shape.layout), *_sizes(sizes)))
    values = [{"name": shape.name, **each} for shape, each in zip(found, summaries, strict=True)]
    table = Table(("of the text", "layout", "size in memory", "padding ratio"), rows)
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
        raise UsageError(
            f"{layout} is a tuple", how="give the text of one of its elements, or --leaf to draw and explain"
        )
    return layout


def over_mesh(array: layouts.TensorLayout, mesh: str | None, sharding: str | None) -> MeshLayout:
    """The array cut over a mesh, as the options say."""
    if sharding is None:
        raise UsageError("--mesh says the devices, not what cuts the array", how="add --shard, as --shard d,-")
    return layouts.shard(array, mesh, sharding)


def sized_array(text: str) -> layouts.TensorLayout:
    """A single array whose dims all have sizes: no ``?``."""
    layout = one_array(text)
    layout.require_static()
    return layout


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers between commas, in parentheses or not, as explanations print them."""
    inside = re.sub(r"^\s*[(\[](.*)[)\]]\s*$", r"\1", text).removesuffix(",")
    try:
        return tuple(int(part) for part in inside.split(",")) if inside.strip() else ()
    except ValueError:
        raise UsageError(f"{text!r} is not a list of whole numbers such as 2,3", where=option) from None


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
    """A layout's facts (``tilewright.layout.summary``) as a table or JSON; a tuple's elements a line each."""
    known = layouts.summary(layout)
    if isinstance(layout, layouts.TupleLayout):
        table = Table(("element", "layout", "size in memory", "padding ratio"), _tuple_rows(layout))
    else:
        table = Table(("layout", known["layout"]), _facts_rows(known))
    return Answer(lambda: known, lambda: [table])


def _tuple_rows(layout: layouts.TupleLayout) -> list[tuple[str, str, str, str]]:
    """A line for every array of a tuple, called as ``--leaf`` calls it; its pointers; what all take together."""
    from tilewright.layout.explain import leaves

    arrays = [(name, layouts.summary(array)) for name, array in leaves(layout)]
    pointers = _pointer_bytes(layout)
    rows = [(name, array["layout"], *_sizes(array)) for name, array in arrays]
    rows.append(("pointers", "", exact_bytes(pointers), ""))
    if any("slots" not in array for _, array in arrays):
        return [*rows, ("together", "", "not known", "")]
    size, data = (sum(array[key] for _, array in arrays) for key in ("size_bytes", "data_bytes"))
    return [*rows, ("together", "", exact_bytes(size + pointers), ratio_text(size / data) if data else "")]


def _pointer_bytes(layout: layouts.IndexMap | layouts.TupleLayout) -> int:
    tables = getattr(layout, "elements", ())
    return 8 * len(tables) + sum(map(_pointer_bytes, tables))


def _sizes(facts: dict[str, Any]) -> tuple[str, str]:
    if "slots" not in facts:
        return "not known", ""
    return exact_bytes(facts["size_bytes"]), ratio_text(facts["padding_ratio"])


def _facts_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of one array, a row each."""
    rows = [
        ("element type", f"{facts['dtype']}, {facts['element_bits']} bits each in memory"),
        ("shape", _tuple(facts["shape"])),
        *(_tiled_rows(facts) if "minor_to_major" in facts else _memory_rows(facts)),
    ]
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


def _tiled_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    from tilewright.layout.index.types import memory_name

    order = ", ".join(f"d{d}" for d in reversed(facts["minor_to_major"]))
    return [
        ("order", f"{order}: major to minor" if order else "a single element"),
        ("tiles", " then ".join(_tuple(tile) for tile in facts["tiles"]) or "none"),
        *([("strides", f"{_tuple(facts['strides'])}, in elements")] if "strides" in facts else []),
        ("memory space", f"{facts['memory_space']}, {memory_name(facts['memory_space'])}"),
        *_rare_rows(facts),
    ]


def _rare_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What few texts have, each in a line that says what it means."""
    rows = []
    if "sparse_levels" in facts:
        levels = ", ".join(facts["sparse_levels"])
        rows.append(("D(..)", f"{levels}: a sparse array; D is dense, C compressed, S singleton"))
    if facts.get("buffer"):
        rows.append(("b(..)", "a buffer: memory that operations write in place"))
    if "bounds" in facts:
        bounds = ", ".join(f"{dim} up to {n}" for dim, n in facts["bounds"].items())
        rows.append(("dynamic dims", f"{bounds}; memory is laid out for the bound"))
    if "tail_alignment" in facts:
        rows.append(("L(n)", f"slots rounded up to a multiple of {facts['tail_alignment']}"))
    rows += [
        (sign, f"{facts[key]}, the type of a sparse array's {role}; it moves no element")
        for sign, key, role in (("#(..)", "index_type", "indices"), ("*(..)", "pointer_type", "pointers"))
        if key in facts
    ]
    if "splits" in facts:
        cuts = "; ".join(f"{dim} cut at {', '.join(map(str, at))}" for dim, at in facts["splits"].items())
        rows.append(("SC(..)", f"{cuts}: pieces of at most {_tuple(facts['longest_pieces'])}; it moves no element"))
    if "metadata_prefix" in facts:
        rows.append(
            ("M(n)", f"{facts['metadata_prefix']} bytes of dynamic sizes in front of the data, not counted here")
        )
    return rows


_MEMORY_ROWS = {
    "sharding": "sharding",
    "shard_layout": "a device's shard",
    "replicas": "devices that hold an element",
    "start": "start",
    "mode": "mode",
    "tensor": "stored as (N,C,H,W)",
    "page": "page",
    "line": "line",
    "order": "order, fastest first",
    "strides": "strides",
    "rotation": "rotation",
    "row_offset": "row offset",
    "rows_per_shard": "rows a shard",
}


def _memory_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [("axes", ", ".join(f"{name} 0..{extent - 1}" for name, extent in facts["axes"].items()))]
    for key, name in _MEMORY_ROWS.items():
        if key in facts and facts[key] != []:
            value = facts[key]
            rows.append((name, _tuple(value) if isinstance(value, list) else str(value)))
    first = next(iter(facts["axes"]))
    if f"bytes_per_{first}" in facts:
        rows.append((f"bytes per {'NPU' if first == 'npu' else first}", exact_bytes(facts[f"bytes_per_{first}"])))
    return rows


def exact_bytes(count: int) -> str:
    """A byte count to the byte, and in a larger unit where that helps."""
    return f"{count_text(count)} bytes" + (f" ({bytes_text(count)})" if count >= 1024 else "")

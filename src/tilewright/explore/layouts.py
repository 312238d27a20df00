"""What the page asks about layouts: the picture as cells, an element's derivation, a place's element, two compared."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import layout as layouts
from tilewright.errors import ParseError, UsageError
from tilewright.explore.worker import Question, known_target
from tilewright.layout.draw.comparison import compare_scenes
from tilewright.layout.draw.panels import Bounds, Panel, Scene, cell_tips, each_cell
from tilewright.layout.draw.scene import make_scene
from tilewright.layout.explain import derive, explain_place, leaves
from tilewright.layout.meshes.shards import MeshLayout
from tilewright.render import bytes_text, count_text, percent_text
from tilewright.render.formats import ratio_text

if TYPE_CHECKING:
    from tilewright.layout.draw.comparison import Comparison

_CELLS = 16384
_MOST = Bounds(rows=64, columns=256, wide=256, cells=_CELLS)
_MOST_LEAVES = 200


def layout(asked: Question) -> dict[str, Any]:
    """The layout of ``text`` (of a tuple the array ``leaf``): its facts, its cells, and a text that says it again.

    Of a large one those in ``window``, or about the element ``around``, else the first; of a mesh those of ``device``.
    """
    whole, one, arrays = _leaf(asked, "text")
    colour, around = asked.text("colour") or "auto", asked.numbers("around")
    window = asked.text("window", 1000).strip()
    if around and not window and isinstance(one, layouts.TensorLayout):
        window = _window_around(one, around)
    try:
        if around and isinstance(one, MeshLayout) and not window:
            scene = make_scene(one, colour=colour, at=around)
        else:
            device = next(iter(asked.numbers("device") or ()), None)
            scene = make_scene(one, colour=colour, most=_MOST, window=window, device=device)
    except UsageError:
        if not around:
            raise
        scene = make_scene(one, colour=colour, at=around)  # dims that a tile combines have no ranges of their own
    scene = _counted_in_all(one, scene) if isinstance(one, MeshLayout) else scene
    return {
        "layout": str(whole),
        "again": str(one) if isinstance(one, layouts.TensorLayout) else asked.text("text"),
        "leaves": arrays,
        "facts": _facts(one),
        "axes": list(one.axes),
        "scene": _cells(scene),
    }


def _counted_in_all(layout: MeshLayout, scene: Scene) -> Scene:
    """The picture of a mesh with places on a device, and indices in the whole array instead of in a shard."""

    def panel_of(panel: Panel, device: int) -> Panel:
        indices = panel.indices + np.array(layout.starts(device) or [0] * layout.rank, np.int64)
        out = panel.padding | (indices >= layout.shape).any(-1)  # the last shards may be padded
        places = np.concatenate([np.full_like(panel.places[..., :1], device), panel.places], -1)
        indices = np.where(out[..., None], -1, indices)
        heading = panel.heading or f"device {device}: rows and columns are counted in its shard"
        panel = replace(panel, heading=heading, padding=out, indices=indices, places=places)
        return replace(panel, tips=cell_tips(layout, places, indices, out))

    def all_of(panel: Panel) -> Panel:
        starts = [[layout.starts(device) or (-1,) * layout.rank for device in row] for row in panel.places[..., 0]]
        places, indices = np.concatenate([panel.places, np.zeros_like(panel.places)], -1), np.array(starts, np.int64)
        heading = f"devices, choose one to open it{panel.heading.partition('device')[2].removeprefix(' holds')}"
        return replace(
            panel, heading=heading, labels=each_cell(str, panel.places[..., 0]), indices=indices, places=places
        )

    opened = scene.opened or 0
    scene = _each_panel(scene, lambda panel: panel_of(panel, opened))
    return replace(scene, devices=all_of(scene.devices) if scene.devices else None)


def _each_panel(scene: Scene, changed: Callable[[Panel], Panel]) -> Scene:
    panels = tuple(tuple(map(changed, row)) for row in scene.panels)
    return replace(scene, panels=panels, strip=changed(scene.strip) if scene.strip else None)


def _window_around(layout: layouts.TensorLayout, index: Sequence[int]) -> str:
    """As many cells around an element as are shown of a corner: rows and columns along the fastest dims."""
    layout.address(*index)  # checks the index
    ranges = [f"{at}:{at + 1}" for at in index]
    for dim, count, step in zip(layout.minor_to_major, (_MOST.columns, _MOST.rows), (_MOST.columns // 2, 8)):
        first = max(0, min(index[dim] - count // 2, layout.shape[dim] - count)) // step * step
        ranges[dim] = f"{first}:{first + count}"
    return ",".join(ranges)


def element(asked: Question) -> dict[str, Any]:
    """How the element ``index`` gets its address."""
    one = _leaf(asked, "text")[1]
    derivation = derive(one, asked.numbers("index") or ())
    return {
        "title": f"element ({', '.join(map(str, derivation.index))})",
        "lines": derivation.lines,
        "index": list(derivation.index),
        "place": list(derivation.address.values()),
    }


def place(asked: Question) -> dict[str, Any]:
    """What lies at ``place``: an element and its derivation, or padding and why."""
    one = _leaf(asked, "text")[1]
    at = asked.numbers("place") or ()
    if (index := one.index(*at)) is not None:
        asked.values = {**asked.values, "index": list(index)}
        return element(asked)
    why = explain_place(one, *at).split("\n\n", 1)[-1]
    return {"title": f"{one.place_text(at)}: padding", "lines": [("why", why)], "index": None, "place": list(at)}


def compare(asked: Question) -> dict[str, Any]:
    """Layouts ``a`` and ``b`` of the same elements: what moves, and the cells of both with those marked."""
    a, b = (_leaf(asked, name)[1] for name in ("a", "b"))
    if isinstance(a, MeshLayout) or isinstance(b, MeshLayout):
        return _compare_shardings(a, b, next(iter(asked.numbers("device") or ()), 0))
    pair = layouts.compare(a, b, asked.numbers("permutation"))
    sides = compare_scenes(pair, "auto", _CELLS // 2)
    return {
        "verdict": pair.verdict,
        "bitcast": pair.move.bitcast,
        "costs": pair.costs,
        "sides": [_side(pair, pair.a, sides[0]), _side(pair, pair.b, sides[1])],
        "steps": [],
        "moves": [
            {
                "from": list(moved.from_index), "at": a.place_text(moved.from_place),
                "to": list(moved.to_index), "goes": b.place_text(moved.to_place),
            }
            for moved in pair.first_moves
        ],
    }  # fmt: skip


def _compare_shardings(a: layouts.IndexMap, b: layouts.IndexMap, device: int) -> dict[str, Any]:
    """The steps from one sharding to the other; the shard of a device in both, what the other has not marked."""
    if not (isinstance(a, MeshLayout) and isinstance(b, MeshLayout)):
        raise UsageError("one of them is over a mesh, the other is not", how="write --mesh and --shard behind both")
    found = layouts.reshard(a, b)
    moved, least = bytes_text(found.bytes_per_device), bytes_text(found.least_bytes)
    sides = []
    for one, other in ((a, b), (b, a)):
        scene = _counted_in_all(one, make_scene(one, most=replace(_MOST, cells=_CELLS // 2), device=device))
        box = other.box(scene.opened or 0) or (slice(0),) * other.rank
        low, high = ([getattr(held, end) for held in box] for end in ("start", "stop"))

        def marked(panel: Panel, low: list[int] = low, high: list[int] = high) -> Panel:
            inside = ((panel.indices >= low) & (panel.indices < high)).all(-1)
            return replace(panel, moved=panel.elements & ~inside)

        cells = _cells(_each_panel(scene, marked))
        for plain in cells["panels"][bool(scene.devices) :] + cells["strip"]:
            plain["others"] = [[-1] if gone else index for gone, index in zip(plain["moved"], plain["indices"])]
        sides.append({"layout": str(one), "facts": _facts(one), "scene": cells})
    return {
        "verdict": f"the slowest device receives {moved}"
        if found.steps
        else "nothing travels: it is the same sharding",
        "bitcast": not found.bytes_per_device,
        "costs": f"the least possible is {least}: what its new shard has and its old one has not",
        "sides": sides,
        "moves": [],
        "steps": list(map(str, found.steps)),
    }


def _side(pair: Comparison, layout: layouts.IndexMap, scene: Scene) -> dict[str, Any]:
    """One side's cells, each with the index its element has on the other side."""
    cells, onto = _cells(scene), pair.onward if layout is pair.a else pair.back
    for panel, plain in zip(scene.everything, cells["panels"] + cells["strip"], strict=True):
        where = panel.elements[..., None]
        other = np.where(where, onto(np.where(where, panel.indices, layout.first_index)), -1)
        plain["others"] = other.reshape(-1, other.shape[-1]).tolist()
    return {"layout": str(layout), "facts": _facts(layout), "scene": cells}


def _leaf(
    asked: Question, name: str
) -> tuple[layouts.IndexMap | layouts.TupleLayout, layouts.IndexMap, list[dict[str, str]]]:
    """What a text says, the array to look at, and the arrays to choose from (of a tuple)."""
    text = asked.text(name).strip()
    if not text:
        raise UsageError("type a layout, such as f32[3,5]{1,0:T(2,2)}")
    whole = read_notation(text)
    if not isinstance(whole, layouts.TupleLayout):
        if text.startswith("{") and not whole.is_static:
            raise UsageError("a layout alone has no sizes", how=f"write them before it, as in f32[20,300]{text[:60]}")
        whole.require_static()
        return whole, whole, []
    arrays = list(islice(leaves(whole), _MOST_LEAVES))
    wanted = asked.text("leaf") if name == "text" else ""
    chosen = next((array for path, array in arrays if path == wanted), arrays[0][1] if arrays else None)
    if chosen is None:
        raise UsageError(f"{whole} is a tuple without arrays")
    chosen.require_static()
    return whole, chosen, [{"path": path, "layout": str(array)} for path, array in arrays]


def _facts(layout: layouts.IndexMap) -> list[tuple[str, str]]:
    facts = layouts.summary(layout)
    size, data, slots, padding = (facts[key] for key in ("size_bytes", "data_bytes", "slots", "padding_slots"))
    share = f", {percent_text(padding / slots)} of them padding" if padding > 0 else ", no padding"
    rows = [
        ("in memory", bytes_text(size)),
        ("data alone", bytes_text(data)),
        ("memory over data", ratio_text(facts["padding_ratio"])),
        ("slots", f"{count_text(slots)}{share}"),
        ("physical shape", f"({', '.join(map(str, facts['physical_shape']))})"),
    ]
    if tiles := facts.get("tiles"):
        rows.append(("tiles", " then ".join(f"({', '.join(map(str, tile))})" for tile in tiles)))
    if isinstance(layout, MeshLayout):
        shard = f"{layout.shard_layout}, {bytes_text(layout.bytes_per_device)}"
        rows += [("a device's shard", shard), ("devices that hold an element", count_text(layout.replicas))]
    return rows


def _cells(scene: Scene) -> dict[str, Any]:
    """The scene's panels as flat lists, row by row; the page decides sizes in pixels and nothing else."""
    return {
        **{name: getattr(scene, name) for name in ("title", "facts", "cut", "opened")},
        "label": scene.label_is,
        "colour": scene.colour_by,
        "levels": [{"name": v.name, "rows": v.row_period, "columns": v.column_period} for v in scene.levels],
        "rows": [1] * bool(scene.devices) + [len(row) for row in scene.panels],
        "panels": [
            *map(_panel, filter(None, [scene.devices])),
            *(_panel(each) for row in scene.panels for each in row),
        ],
        "strip": [_panel(scene.strip)] if scene.strip else [],
    }


def _panel(panel: Panel) -> dict[str, Any]:
    height, width = panel.padding.shape
    own = ("heading", "first", "row_name", "column_name", "rows", "columns")
    plain: dict[str, Any] = {name: getattr(panel, name) for name in own} | {"height": height, "width": width}
    plain |= {name: [text for row in getattr(panel, name) for text in row] for name in ("labels", "tips")}
    plain |= {name: getattr(panel, name).reshape(height * width, -1).tolist() for name in ("indices", "places")}
    flat = {"padding": panel.padding, "colours": panel.colours, "moved": panel.moved}
    return plain | {name: each.reshape(-1).astype(int).tolist() for name, each in flat.items() if each is not None}


# -- a layout by its text: what `layout.parse` reads, CuTe's notation, and the words of commands of `layout` ---------


def read_notation(text: str) -> layouts.IndexMap | layouts.TupleLayout:
    """The layout a text is about. What ``tilewright layout`` would be told to show may stand there as it is typed.

    >>> str(read_notation("(4,8):(8,1)")), str(read_notation("lanes f16[1,3,2,2] --chip mars3"))
    ('f32[4,8] as (4,8):(8,1)', 'f16[1,3,2,2] over 8 NPUs (aligned, start 0)')
    """
    words = text.removeprefix("tilewright ").strip().removeprefix("layout ").split(maxsplit=1)
    if len(words) == 2 and words[0] in _COMMANDS:
        return _by_command(words[0], words[1])
    if " --shard" in text:
        return _by_command("draw", text)
    try:
        return layouts.parse(text)
    except ParseError as refused:
        if "layout of CuTe" not in refused.what:
            raise
        return layouts.from_cute(text)


def _by_command(name: str, rest: str) -> layouts.IndexMap:
    make, count, options = _COMMANDS[name]
    try:
        words = iter(shlex.split(rest))
    except ValueError:
        raise UsageError("a quotation mark is missing", where=name) from None
    given, chosen = list[str](), dict[str, Any]()
    for word in words:
        option, equals, value = word.partition("=")
        if option not in options:
            given.append(word)
            continue
        value = value if equals else next(words, "")
        if option in _NUMBERS and not (value.isdecimal() and len(value) <= 18):
            raise UsageError(f"{value[:60]!r} is no whole number", where=option)
        chosen[option[2:].replace("-", "_")] = int(value) if option in _NUMBERS else value
    if len(given) != count:
        raise UsageError(f"{name} takes {count} word{'s' * (count > 1)} and {' '.join(options) or 'no options'} here")
    return make(*given, **chosen)


def _array(text: str) -> layouts.TensorLayout:
    array = layouts.parse(text)
    if isinstance(array, layouts.TupleLayout):
        raise UsageError(f"one array is wanted, {text[:60]} is a tuple")
    return array


def _shape_and_type(text: str) -> tuple[tuple[int, ...], str]:
    array = _array(text)
    array.require_static()
    return array.shape, array.dtype


def _drawn(text: str, mesh: str | None = None, shard: str | None = None) -> layouts.IndexMap:
    return _array(text) if shard is None else layouts.shard(_array(text), mesh, shard)


def _lanes(text: str, chip: str = "", **how: Any) -> layouts.IndexMap:
    return layouts.lanes(*_shape_and_type(text), chip=known_target(chip) or None, **how)


_COMMANDS: dict[str, tuple[Callable[..., layouts.IndexMap], int, tuple[str, ...]]] = {
    "draw": (_drawn, 1, ("--mesh", "--shard")),
    "explain": (_drawn, 1, ("--mesh", "--shard")),
    "cute": (layouts.from_cute, 1, ("--dtype",)),
    "lanes": (_lanes, 1, ("--chip", "--lanes", "--eu-bytes", "--start", "--mode")),
    "onednn": (lambda tag, shape: layouts.from_onednn_tag(tag, *_shape_and_type(shape)), 2, ()),
    "preset": (lambda name, shape: layouts.preset(name, *_shape_and_type(shape)), 2, ()),
}
"""Of each command: what makes its layout, how many words it takes, and the options that are read here."""
_NUMBERS = ("--lanes", "--eu-bytes", "--start")

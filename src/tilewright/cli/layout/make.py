"""Layouts by other names, in other memories, and data: the commands of `layout` that make a layout from something else.

`convert`, `cute`, `linalg`, `onednn`, `preset` and `predict` name layouts as other tools do; `pack` and `unpack` take a
numpy file into a layout's raw bytes, and back; `lanes`, `paged`, `sharded` and `plan` place tensors in memories whose
addresses have several axes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from tilewright import layout as layouts
from tilewright import targets
from tilewright.cli.layout import show
from tilewright.cli.options import Files, Json, whole_numbers
from tilewright.cli.streams import MOST_DATA, npy_bytes, read_array, read_bytes, read_text
from tilewright.errors import CheckFailed, ParseError, TilewrightError, UnsupportedError, UsageError, placed_at
from tilewright.reading import parse, typed
from tilewright.render.delivery import Answer, Line, Output, deliver, remark
from tilewright.render.formats import ratio_text
from tilewright.render.tables import Heading, Table

if TYPE_CHECKING:
    import numpy as np

    from tilewright.layout.convert.linalg import LinalgPack
    from tilewright.layout.convert.tpu_mlir import LayerGroup


def convert(text: show.Text, leaf: show.Leaf = None, *, to: Json) -> None:
    """Write a layout as CuTe's shape:stride, MLIR's linalg.pack, a oneDNN tag and as numpy, JAX and torch pack it.

    The last three are expressions of pads, reshapes and transposes. What cannot be written says why.
    """
    layout = show.one_array(text, leaf)
    writers: dict[str, Callable[[layouts.TensorLayout], str]] = {
        "CuTe": layouts.to_cute,
        "CuTe, padded": lambda layout: layouts.to_cute(layout, padded=True),
        "linalg.pack": lambda layout: "; ".join(map(_pack_text, layouts.to_linalg_pack(layout))),
        "oneDNN": layouts.to_onednn_tag,
        "numpy": layouts.to_recipe,
        "JAX": lambda layout: layouts.to_recipe(layout, "jax"),
        "torch": lambda layout: layouts.to_recipe(layout, "torch"),
    }
    forms: dict[str, dict[str, str | None]] = {}
    for name, write in writers.items():
        try:
            forms[name] = {"text": write(layout), "refusal": ""}
        except TilewrightError as error:
            forms[name] = {"text": None, "refusal": error.what}
    rows = [(name, form["text"] or f"none: {form['refusal']}") for name, form in forms.items()]
    table = Table(("layout", str(layout)), rows)
    deliver(Answer(lambda: {"layout": str(layout), "forms": forms}, lambda: [table]), to)


def _pack_text(pack: LinalgPack) -> str:
    if not pack.inner_tiles and pack.outer_dims_perm == tuple(sorted(pack.outer_dims_perm)):
        return "no pack: the array as it is"
    return pack.attributes


def cute(
    text: Annotated[str, Argument(metavar="LAYOUT", help="As '((2,2),8):((1,16),2)'.")],
    offset: show.Offset = None,
    dtype: Annotated[str | None, "--dtype TYPE", "Element type, as bf16; the pointer's, or f32."] = None,
    threads: Annotated[str | None, "--threads LAYOUT", "Of (threads, values): its bank conflicts, on stderr."] = None,
    *,
    view: show.View,
) -> None:
    """Read a CuTe layout (CUTLASS's shape:stride), swizzled or not: facts, an element, an offset, a picture."""
    layout = layouts.from_cute(text, dtype)
    if threads is not None:
        found = layouts.bank_conflicts(layout, layouts.from_cute(threads, layout.dtype))
        passes = f"{found.wavefronts} passes over the banks where {found.least} would do"
        remark(f"bank conflicts: {found.conflicts}: {passes}, {found.width} bytes at once, {found.ways}-way at most")
    view.show(layout, offset)


def linalg(
    text: Annotated[str, Argument(help="MLIR with linalg.pack or tensor.pack in it; - is stdin.")],
    offset: show.Offset = None,
    *,
    view: show.View,
) -> None:
    """Read MLIR's linalg.pack operations, each packing what the one before made: facts, an element, a picture."""
    first, *more = layouts.parse_linalg_pack(read_text("-") if text == "-" else text)
    attributes = first.inner_dims_pos, first.inner_tiles, first.outer_dims_perm
    layout = layouts.from_linalg_pack(first.source_shape, first.dtype, *attributes, *more)
    view.show(layout, offset)


def onednn(
    tag: Annotated[str, Argument(help="As nChw16c or aBcd16b.")],
    shape: Annotated[str, Argument(help="Type and dims in oneDNN's order, as f32[2,40,3,5]; - is stdin.")],
    offset: show.Offset = None,
    *,
    view: show.View,
) -> None:
    """Read a oneDNN format tag: facts, an element, an offset, a picture."""
    array = show.sized_array(shape)
    view.show(layouts.from_onednn_tag(tag, array.shape, array.dtype), offset)


def preset(
    name: Annotated[
        str, Argument(help="tpu, tpu_vmem, ascend_nz, ascend_zz, nc1hwc0, nchw16c, tenstorrent or hexagon_crouton.")
    ],
    shape: Annotated[str, Argument(help="Element type and dims, as f16[100,64]; - is stdin.")],
    offset: show.Offset = None,
    transpose_within_face: Annotated[bool, "Of tenstorrent: the elements of every face transposed."] = False,
    transpose_of_faces: Annotated[bool, "Of tenstorrent: the four faces of every tile transposed."] = False,
    *,
    view: show.View,
) -> None:
    """Lay a shape out by a layout's usual name: its text and facts, an element, an offset, a picture."""
    array = show.sized_array(shape)
    flags = {"transpose_within_face": transpose_within_face, "transpose_of_faces": transpose_of_faces}
    chosen = {option: True for option, value in flags.items() if value}
    view.show(layouts.preset(name, array.shape, array.dtype, **chosen), offset)


_LAYOUT = re.compile(r"\]\s*\{\s*[0-9:]|Layout\(|#tpu\.tiled|minor_to_major|layout_mode")
"""In a text that gives a layout, not only sizes."""
_NAMES = {"default": "default order", "predicted": "predicted", "given": "as given"}


def predict(
    shape: Annotated[list[str], Argument(help="Types and dims, as bf16[32,224,224,3]; - is stdin, one a line.")],
    target: Annotated[str, "--target NAME", "-t", "The chip; see `tilewright targets`."] = "tpu-v5e",
    boundary: Annotated[bool, "An argument or a result of the program: 8 and 4 bits get larger tiles."] = False,
    *,
    to: Json,
) -> None:
    """Predict the layout a TPU's compiler chooses for a shape, beside the default order of the dims.

    Of several shapes, or a tuple's arrays, one line each.
    """
    chip = targets.target(target).name
    arrays = [sides for where, text in _texts(shape) for sides in _all_sides(text, where, chip, boundary)]
    values = [
        {"dtype": sides["predicted"].dtype, "shape": list(sides["predicted"].shape)}
        | {name: layouts.summary(side) for name, side in sides.items()}
        for sides in arrays
    ]
    value = {"target": target, **(values[0] if len(values) == 1 else {"shapes": values})}
    one = ((_NAMES[name], layout) for name, layout in arrays[0].items())
    table = show.sizes_table(target, one) if len(arrays) == 1 else _many_shapes(target, arrays)
    deliver(Answer(lambda: value, lambda: [table]), to)


def _texts(shapes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every shape's text and where it stands ("" for an argument)."""
    for text in shapes:
        if text != "-":
            yield "", text
            continue
        lines = [(number, line) for number, line in enumerate(read_text("-").splitlines(), 1) if line.strip()]
        if not lines:
            raise UsageError("no shape is given", where="stdin")
        yield from ((f"stdin, line {number}", line) for number, line in lines)


def _all_sides(text: str, where: str, chip: str, boundary: bool) -> Iterator[Mapping[str, layouts.TensorLayout]]:
    """Of a shape, or of every array of a tuple: its layout by default, as predicted and, where it has one, as given."""
    from tilewright.layout.explain import leaves

    try:
        layout = show.read_layout(text)
    except ParseError as error:
        if not where:
            raise
        raise ParseError(error.what, text=text, column=error.column, where=where, how=error.how) from None
    for name, array in leaves(layout):
        if array.element_bits or not name:  # a tuple's tokens lie nowhere
            array.require_static()
            sides = {"default": layouts.preset("tpu", array.shape, array.dtype)}
            sides["predicted"] = layouts.predict(chip, array.shape, array.dtype, boundary=boundary)
            yield sides | ({"given": array} if _LAYOUT.search(text) else {})


def _many_shapes(target: str, arrays: Sequence[Mapping[str, layouts.TensorLayout]]) -> Table:
    """A line for every shape: the predicted layout, and the padding ratios of all there are."""
    shown = [name for name in ("predicted", "default", "given") if any(name in sides for sides in arrays)]
    columns = [target, "size in memory", "padding ratio"]
    columns += [f"in {_NAMES[name]}" if name == "default" else _NAMES[name] for name in shown[1:]]
    rows = []
    for sides in arrays:
        ratios = (ratio_text(sides[name].padding_ratio) if name in sides else "" for name in shown)
        rows.append((str(sides["predicted"]), show.exact_bytes(sides["predicted"].size_bytes), *ratios))
    return Table(columns, rows)


# Data: a numpy file into a layout's raw bytes, and back.

_TiledText = Annotated[str, Argument(help="The layout, as bf16[20,300]{1,0:T(8,128)(2,1)}.")]


def pack(
    source: Annotated[str, Argument(metavar="IN.npy", help="The array, as numpy.save writes it; - is stdin.")],
    text: _TiledText,
    *,
    to: Annotated[Output, Files(" the bytes", needed=True)],
) -> None:
    """Pack a numpy array into a layout: the raw bytes as they lie in memory, padding zero."""
    if to.path is not None and to.path.endswith(".npy"):
        raise UsageError("packed bytes are no .npy file", where="-o", how="name it .bin, say")
    layout = show.sized_array(text)
    array = _as_layout_type(read_array(source), layout, source)
    with placed_at(source):
        image = _memory_image(layout, layout.pack(array))
    _deliver_data(image, layout, source, to)


def unpack(
    source: Annotated[str, Argument(metavar="IN.bin", help="The raw bytes of the packed buffer; - is stdin.")],
    text: _TiledText,
    *,
    to: Annotated[Output, Files(".npy the array", needed=True)],
) -> None:
    """Unpack raw bytes that lie in a layout into a numpy array; padding is left out."""
    layout, raw = show.sized_array(text), read_bytes(source, MOST_DATA)
    if len(raw) != layout.size_bytes:
        how = "is it cut off?" if len(raw) < layout.size_bytes else "is it in another layout?"
        if raw.startswith(b"\x93NUMPY"):
            how = "it is an .npy file, which `pack` reads; unpack reads the bare bytes"
        raise UsageError(f"{len(raw)} bytes, but {layout} takes {layout.size_bytes}", where=source, how=how)
    array = layout.unpack(_packed_buffer(layout, raw))
    _deliver_data(npy_bytes(array), layout, source, to)
    if array.dtype.isbuiltin != 1 and to.is_file:
        remark(f"numpy itself has no {layout.dtype}: read the file with np.load(...).view(ml_dtypes.{array.dtype})")


def _deliver_data(data: bytes, layout: layouts.TensorLayout, source: str, to: Output) -> None:
    value: dict[str, Any] = {"layout": str(layout), "from": source, "to": to.path, "dtype": layout.dtype}
    value |= {"shape": list(layout.shape), "data_bytes": layout.data_bytes, "size_bytes": layout.size_bytes}
    size = f"{layout}, {show.exact_bytes(layout.size_bytes)} with padding"
    deliver(Answer(lambda: value, list), to, {to.suffix: lambda: data}, said=(), wrote=size)


def _widths(layout: layouts.TensorLayout) -> tuple[int, int]:
    """Bytes of an element, and from one to the next, which E(n) may set further apart; below a byte those of a byte."""
    bits, own = layout.element_bits, layout.numpy_dtype.itemsize
    if bits < 8:
        return 1, 1
    if bits % 8:
        raise UnsupportedError(f"{layout}: elements of {bits} bits, no whole bytes", how=f"E({bits // 8 * 8 + 8})")
    return own, bits // 8


def _memory_image(layout: layouts.TensorLayout, buffer: np.ndarray[Any, Any]) -> bytes:
    """A packed buffer as the bytes in memory: zeros follow an element that E(n) gives more room than it needs."""
    import numpy as np

    own, wide = _widths(layout)
    return np.pad(buffer.view(np.uint8).reshape(-1, own), ((0, 0), (0, wide - own))).tobytes()


def _packed_buffer(layout: layouts.TensorLayout, raw: bytes) -> np.ndarray[Any, Any]:
    """The inverse of :func:`_memory_image`."""
    import numpy as np

    own, wide = _widths(layout)
    values = np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(-1, wide)[:, :own]).reshape(-1)
    return values if layout.element_bits < 8 else values.view(layout.numpy_dtype)


def _as_layout_type(array: np.ndarray[Any, Any], layout: layouts.TensorLayout, source: str) -> np.ndarray[Any, Any]:
    """The array in the layout's type; raw bytes of its width are what numpy.save makes of bf16 and its like."""
    expected = layout.numpy_dtype
    if array.dtype != expected and array.dtype.kind == "V" and expected.isbuiltin != 1:
        if array.dtype.itemsize != expected.itemsize or array.dtype.names:
            raise UsageError(f"an array of {array.dtype} for the layout {layout}", where=source)
        return array.view(expected)
    return array if array.dtype != expected.newbyteorder() else array.astype(expected)


# Tensors in memories whose addresses have several axes.

_Shape = Annotated[str, Argument(help="Element type and sizes, as f16[2,3,4,5]; - is stdin.")]
_At = Annotated[str | None, "--at X,Y,..", "Say what lies at this place on the axes."]


def _numbers(text: str | None, option: str) -> tuple[int, ...] | None:
    return None if text is None else whole_numbers(text, option)


def lanes(
    shape: _Shape,
    chip: Annotated[str | None, "--chip NAME", "A target with lanes, as bm1684x."] = None,
    lanes: Annotated[int | None, "--lanes X", "NPUs, without a chip."] = None,
    eu_bytes: Annotated[int | None, "--eu-bytes B", "Bytes of an execution unit."] = None,
    start: Annotated[int, "--start N", "The NPU of channel 0."] = 0,
    mode: Annotated[
        str,
        "--mode MODE",
        "aligned, compact, row_aligned, strides N,C,H,W; matrix, matrix2 (two dims); weights (oc,ic,kh,kw); "
        "global: the one memory that all NPUs share.",
    ] = "aligned",
    columns_per_npu: Annotated[int | None, "--columns-per-npu W", "Of a matrix: neighbours on one NPU."] = None,
    ic_parallel: Annotated[int | None, "--ic-parallel IC", "Of weights: input channels of a byte together."] = None,
    npu: Annotated[int | None, "--npu N", "With --offset: what lies there."] = None,
    offset: Annotated[int | None, "--offset O", "In elements, in that NPU."] = None,
    *,
    view: show.View,
) -> None:
    """Place a tensor (N, C, H, W) in an NPU's memories, local or global: facts, an element, a place, a picture."""
    memory = {"chip": chip, "lanes": lanes, "eu_bytes": eu_bytes}
    layout = _lane_layout(show.sized_array(shape), memory, start, mode, columns_per_npu, ic_parallel)
    if mode == "global" and npu is not None:
        raise UsageError("the global memory belongs to no NPU", where="--npu")
    if mode != "global" and (npu is None) != (offset is None):
        raise UsageError("a place is an NPU and an offset", how="give both --npu and --offset")
    view.show(layout, offset if npu is None or offset is None else (npu, offset))


def _lane_layout(
    array: layouts.TensorLayout,
    memory: dict[str, Any],
    start: int,
    mode: str,
    columns: int | None,
    ic_parallel: int | None = None,
) -> layouts.IndexMap:
    """The layout of an array by the name of its mode, as the command line and plan files have it."""
    if ic_parallel is not None and mode != "weights":
        raise UsageError("--ic-parallel goes with --mode weights")
    if mode in ("matrix", "matrix2") and array.rank != 2:
        raise UsageError(f"a matrix has two sizes, {array} has {array.rank}")
    sides = (array.shape[0], array.shape[-1])
    if (mode == "matrix") != (columns is not None):
        raise UsageError("--columns-per-npu goes with --mode matrix, and that mode needs it")
    if start and mode in ("weights", "global"):
        problem = "weights begin at NPU 0" if mode == "weights" else "the global memory has no start NPU"
        raise UsageError(problem, where="--start")
    if mode == "matrix" and columns is not None:
        return layouts.lane_matrix(*sides, array.dtype, **memory, start=start, columns_per_npu=columns)
    if mode == "matrix2":
        return layouts.lane_matrix2(*sides, array.dtype, **memory, start=start)
    if mode == "weights":
        return layouts.lane_weights(array.shape, array.dtype, **memory, ic_parallel=ic_parallel)
    if mode == "global":
        return layouts.global_memory(array.shape, array.dtype)
    strides = whole_numbers(mode, "--mode") if mode[:1].isdigit() or "," in mode else mode
    return layouts.lanes(array.shape, array.dtype, **memory, start=start, mode=strides)


def paged(
    shape: _Shape,
    page: Annotated[str | None, "--page P,..", "Page sizes, one per dim."] = None,
    line: Annotated[str | None, "--line L,..", "Cache line sizes, one per dim."] = None,
    order: Annotated[str | None, "--order D,..", "Dims, the fastest first."] = None,
    start: Annotated[str | None, "--start I,..", "The segment's first index."] = None,
    at: _At = None,
    *,
    view: show.View,
) -> None:
    """Cut a segment of a tensor into pages and cache lines: facts, an element, a place (PAGE,OFFSET), a picture."""
    array = show.sized_array(shape)
    sizes = (_numbers(page, "--page"), _numbers(line, "--line"), _numbers(order, "--order"), _numbers(start, "--start"))
    layout = layouts.paged(array.shape, array.dtype, *sizes)
    view.show(layout, _numbers(at, "--at"))


def sharded(
    shape: Annotated[str, Argument(help="The table, as f32[vocab,width]; - is stdin.")],
    shards: Annotated[int, "--shards S", "Shards (SparseCores)."],
    rotation: Annotated[int, "--rotation R", "Shards the table is turned by."] = 0,
    row_offset: Annotated[int, "--row-offset O", "Rows before it on every shard."] = 0,
    at: _At = None,
    *,
    view: show.View,
) -> None:
    """Shard an embedding table row by row: facts, an element, a place (SHARD,ROW,COLUMN), a picture."""
    array = show.sized_array(shape)
    if array.rank != 2:
        raise UsageError(f"a table has two sizes, [vocab, width]; {array} has {array.rank}")
    vocab, width = array.shape
    layout = layouts.mod_sharded(vocab, width, shards, rotation, row_offset, dtype=array.dtype)
    view.show(layout, _numbers(at, "--at"))


_HINTS = {
    "tensor": "write [[tensor]] with a name and a shape",
    "instructions": 'write lists of names, as [["x", "w", "y"]]',
}


def plan(
    file: Annotated[str, Argument(help="Tensors and instructions as TOML, or tpu-mlir's final.mlir; - is stdin.")],
    chip: Annotated[str | None, "--chip NAME", "Instead of the file's chip."] = None,
    group: Annotated[str | None, "--group NAME", "Of a final.mlir this layer group only, as %9."] = None,
    fail_on_conflict: Annotated[bool, "Exit with 1 where operands share a bank."] = False,
    *,
    to: show.ToSvg,
) -> None:
    """Place tensors in an NPU's local memories, or read where a compiler did: bases, holes, bank conflicts.

    The file says `chip = "bm1684x"`, `instructions = [["x", "w", "y"]]`, and for every tensor `[[tensor]]` with `name`,
    `shape = "f16[1,64,28,28]"` and, as wanted, `start`, `mode`, `columns_per_npu` and `base`. Of the `final.mlir` of
    tpu-mlir every layer group is shown as it was placed. What overflows is an error.
    """
    from tilewright.layout.convert.tpu_mlir import is_tpu_mlir

    text = read_text(file)
    if is_tpu_mlir(text):
        every = layouts.read_tpu_mlir(text, chip, file)
        groups = [each for each in every if group in (None, each.name)]
        if not groups:
            names = ", ".join(each.name for each in every[:10]) + (", ..." if len(every) > 10 else "")
            raise UsageError(f"no layer group is called {group!r}", where=file, how=f"there are {names}")
        shown = max(groups, key=lambda each: each.plan.bytes_used).plan
        conflicts = [conflict for each in groups for conflict in each.plan.conflicts]
        result = Answer(lambda: {"groups": [_group_value(each) for each in groups]}, lambda: _groups_lines(groups))
        notes = []
        for each in groups:
            sizes = "takes other bytes than the sizes of its slices do; its region is shown as bytes"
            notes += [f"{name} {sizes}" for name in each.open]
            notes += [f"{second} is written over {one}, which is still read behind it" for one, second in each.shared]
    else:
        if group is not None:
            raise UsageError("--group goes with a final.mlir of tpu-mlir", where=file)
        shown, name = _planned(text, chip, file)
        conflicts, notes = list(shown.conflicts), []
        result = Answer(lambda: {"chip": name, **shown.to_dict()}, lambda: _plan_lines(shown, name))
    deliver(result, to, {".svg": lambda: f"{layouts.plan_svg(shown)}\n"}, notes=notes)
    if fail_on_conflict and conflicts:
        raise CheckFailed(f"{len(conflicts)} pairs of operands share a bank", where=file)


def _planned(text: str, chip: str | None, file: str) -> tuple[layouts.LocalPlan, str]:
    """The plan of a TOML file, and the chip's name."""
    value = typed(parse(text, "TOML", file), _PlanFile, file, _HINTS)
    name = chip or value.chip
    if not name:
        raise UsageError("no chip is named", where=file, how='write chip = "bm1684x" or pass --chip')
    if not value.tensor:
        raise UsageError("no tensors are given", where=file, how=_HINTS["tensor"])
    tensors = [_tensor(entry, name, file) for entry in value.tensor]
    return layouts.plan_local_memory(tensors, name, value.instructions), name


def _group_value(group: LayerGroup) -> dict[str, Any]:
    own = {"group": group.name, "line": group.line, **group.plan.to_dict(), "operations": dict(group.operations)}
    return own | {"steps": list(group.steps), "open": list(group.open), "shared": list(map(list, group.shared))}


def _groups_lines(groups: Sequence[LayerGroup]) -> Iterator[Line]:
    for number, group in enumerate(groups):
        yield "\n" * bool(number) + f"layer group {group.name or '(none)'}, line {group.line}"
        yield from _plan_lines(group.plan, "tensor", group)


@dataclass(frozen=True)
class _PlanFile:
    """The keys of a plan file."""

    chip: str = ""
    instructions: list[list[str]] = field(default_factory=list)
    tensor: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    """The keys of a tensor in it."""

    name: str
    shape: str
    base: int | None = None
    start: int = 0
    mode: str | list[int | str] = "aligned"
    columns_per_npu: int | None = None


def _tensor(value: dict[str, Any], chip: str, file: str) -> layouts.LocalTensor:
    from tilewright.layout.kinds.lanes import LaneLayout

    entry = typed(value, _Entry, f"{file}: tensor {value.get('name', '?')}")
    mode = entry.mode if isinstance(entry.mode, str) else ",".join(map(str, entry.mode))
    memory = {"chip": chip, "lanes": None, "eu_bytes": None}
    layout = _lane_layout(show.sized_array(entry.shape), memory, entry.start, mode, entry.columns_per_npu)
    if not isinstance(layout, LaneLayout):
        raise UsageError(f"{entry.name} lies in global memory, which is not planned", where=file)
    return layouts.LocalTensor(entry.name, layout, entry.base)


def _plan_lines(plan: layouts.LocalPlan, heading: str, group: LayerGroup | None = None) -> Iterator[Line]:
    """Where every tensor is placed, and what is left; ``group``: the layer group that the plan is of."""
    columns: list[Heading] = [heading, *(["made by"] if group else []), "layout", ("bytes per NPU", "count")]
    columns += [("base", "count"), ("end", "count"), "banks"]
    columns += [("start hole", "count"), ("tail hole", "count"), ("inside hole", "count")]
    rows = []
    for t in plan.tensors:
        holes = (t.start_hole, t.tail_hole, t.inside_hole)
        made_by = (group.operations.get(t.name, ""),) if group else ()
        rows.append((t.name, *made_by, str(t.layout), t.layout.bytes_per_npu, t.base, t.end, _span(t.banks), *holes))
    yield from (Table(columns, rows), "")
    facts = [("used", show.exact_bytes(plan.bytes_used)), ("free", show.exact_bytes(plan.bytes_free))]
    facts += [("gap", f"bytes {low} to {high - 1}") for low, high in plan.gaps]
    for c in plan.conflicts:
        step = group.steps[c.instruction] if group else f"instruction {c.instruction}"
        facts.append((step, f"{c.first} and {c.second} share bank {_span(c.banks)}"))
    if not plan.conflicts:
        facts.append(("conflicts", "no operands of one instruction share a bank"))
    yield Table(("on every NPU", f"of {show.exact_bytes(plan.memory.local_bytes)}"), facts)


def _span(banks: tuple[int, ...]) -> str:
    """Bank numbers, neighbours joined: 0-3, 7."""
    runs = [[bank for _, bank in run] for _, run in groupby(enumerate(banks), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

"""`tilewright layout convert`, `cute`, `linalg`, `onednn`, `preset`, `predict`: layouts by other names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.layout.draw import Viewed, viewed
from tilewright.cli.layout.show import (
    Leaf,
    Offset,
    Text,
    exact_bytes,
    leaves,
    names_layout,
    one_array,
    read_layout,
    sized_array,
)
from tilewright.cli.streams import Json, emit_json, read_text, remark, show_table
from tilewright.errors import ParseError, TilewrightError, UsageError

if TYPE_CHECKING:
    from tilewright.layout import LinalgPack, TensorLayout


def convert(text: Text, leaf: Leaf = None, as_json: Json = False) -> None:
    """Write a layout as CuTe's shape:stride, MLIR's linalg.pack, a oneDNN tag and as numpy, JAX and torch pack it.

    The last three are expressions of pads, reshapes and transposes. What cannot be written says why.
    """
    layout = one_array(text, leaf)
    forms = {name: _attempt(layout, write) for name, write in _writers().items()}
    if as_json:
        values = {name: {"text": text, "refusal": refusal} for name, (text, refusal) in forms.items()}
        emit_json({"layout": str(layout), "forms": values})
        return
    rows = [(name, text if text is not None else f"none: {refusal}") for name, (text, refusal) in forms.items()]
    show_table(("layout", str(layout)), rows)


def _attempt(layout: TensorLayout, write: Callable[[TensorLayout], str]) -> tuple[str | None, str]:
    try:
        return write(layout), ""
    except TilewrightError as error:
        return None, error.what


def _writers() -> dict[str, Callable[[TensorLayout], str]]:
    from tilewright.layout import to_cute, to_linalg_pack, to_onednn_tag, to_recipe

    return {
        "CuTe": to_cute,
        "CuTe, padded": lambda layout: to_cute(layout, padded=True),
        "linalg.pack": lambda layout: "; ".join(map(_pack_text, to_linalg_pack(layout))),
        "oneDNN": to_onednn_tag,
        "numpy": to_recipe,
        "JAX": lambda layout: to_recipe(layout, "jax"),
        "torch": lambda layout: to_recipe(layout, "torch"),
    }


def _pack_text(pack: LinalgPack) -> str:
    if not pack.inner_tiles and pack.outer_dims_perm == tuple(sorted(pack.outer_dims_perm)):
        return "no pack: the array as it is"
    parts = {"outer_dims_perm": pack.outer_dims_perm, "inner_dims_pos": pack.inner_dims_pos}
    parts["inner_tiles"] = pack.inner_tiles
    return " ".join(f"{name} = [{', '.join(map(str, values))}]" for name, values in parts.items())


_Cute = Annotated[str, typer.Argument(metavar="LAYOUT", help="As '((2,2),8):((1,16),2)'.")]
_Dtype = Annotated[
    str | None, typer.Option("--dtype", metavar="TYPE", help="Element type, as bf16; the pointer's, or f32.")
]
_Threads = Annotated[
    str | None,
    typer.Option("--threads", metavar="LAYOUT", help="A layout of (threads, values): its bank conflicts, on stderr."),
]
_Linalg = Annotated[str, typer.Argument(metavar="TEXT", help="MLIR with linalg.pack or tensor.pack in it; - is stdin.")]
_Tag = Annotated[str, typer.Argument(metavar="TAG", help="As nChw16c or aBcd16b.")]
_Shape = Annotated[
    str, typer.Argument(metavar="SHAPE", help="Element type and dims in oneDNN's order, as f32[2,40,3,5]; - is stdin.")
]


@viewed
def cute(text: _Cute, offset: Offset = None, dtype: _Dtype = None, threads: _Threads = None) -> Viewed:
    """Read a CuTe layout (CUTLASS's shape:stride), swizzled or not: facts, an element, an offset, a picture."""
    from tilewright.layout import bank_conflicts, from_cute

    layout = from_cute(text, dtype)
    if threads is not None:
        found = bank_conflicts(layout, from_cute(threads, layout.dtype))
        passes = f"{found.wavefronts} passes over the banks where {found.least} would do"
        remark(f"bank conflicts: {found.conflicts}: {passes}, {found.width} bytes at once, {found.ways}-way at most")
    return layout, None if offset is None else (offset,)


@viewed
def linalg(text: _Linalg, offset: Offset = None) -> Viewed:
    """Read MLIR's linalg.pack operations, each packing what the one before made: facts, an element, a picture."""
    from tilewright.layout import from_linalg_pack, parse_linalg_pack

    first, *more = parse_linalg_pack(read_text("-") if text == "-" else text)
    attributes = first.inner_dims_pos, first.inner_tiles, first.outer_dims_perm
    layout = from_linalg_pack(first.source_shape, first.dtype, *attributes, *more)
    return layout, None if offset is None else (offset,)


@viewed
def onednn(tag: _Tag, shape: _Shape, offset: Offset = None) -> Viewed:
    """Read a oneDNN format tag: facts, an element, an offset, a picture."""
    from tilewright.layout import from_onednn_tag

    array = sized_array(shape)
    return from_onednn_tag(tag, array.shape, array.dtype), None if offset is None else (offset,)


_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="tpu, tpu_vmem, ascend_nz, ascend_zz, nc1hwc0, nchw16c, tenstorrent or hexagon_crouton.",
    ),
]
_Dims = Annotated[str, typer.Argument(metavar="SHAPE", help="Element type and dims, as f16[100,64]; - is stdin.")]
_WithinFace = Annotated[
    bool, typer.Option("--transpose-within-face", help="Of tenstorrent: the elements of every face transposed.")
]
_OfFaces = Annotated[
    bool, typer.Option("--transpose-of-faces", help="Of tenstorrent: the four faces of every tile transposed.")
]


@viewed
def preset(
    name: _Name,
    shape: _Dims,
    offset: Offset = None,
    transpose_within_face: _WithinFace = False,
    transpose_of_faces: _OfFaces = False,
) -> Viewed:
    """Lay a shape out by a layout's usual name: its text and facts, an element, an offset, a picture."""
    from tilewright.layout import preset as make

    array = sized_array(shape)
    flags = {"transpose_within_face": transpose_within_face, "transpose_of_faces": transpose_of_faces}
    chosen = {option: True for option, value in flags.items() if value}
    return make(name, array.shape, array.dtype, **chosen), None if offset is None else (offset,)


_Shapes = Annotated[
    list[str],
    typer.Argument(metavar="SHAPE...", help="Element types and dims, as bf16[32,224,224,3]; - is stdin, one a line."),
]
_Target = Annotated[str, typer.Option("--target", metavar="NAME", help="The chip; see `tilewright targets`.")]
_Boundary = Annotated[
    bool, typer.Option("--boundary", help="An argument or a result of the program: 8 and 4 bits get larger tiles.")
]
_NAMES = {"default": "default order", "predicted": "predicted", "given": "as given"}

Sides = Mapping[str, "TensorLayout"]


def predict(shape: _Shapes, target: _Target = "tpu-v5e", boundary: _Boundary = False, as_json: Json = False) -> None:
    """Predict the layout a TPU's compiler chooses for a shape, beside the default order of the dims.

    Of several shapes, or a tuple's arrays, one line each.
    """
    from tilewright.layout import summary
    from tilewright.targets import target as find_target

    chip = find_target(target).name
    arrays = [sides for where, text in _texts(shape) for sides in _all_sides(text, where, chip, boundary)]
    if as_json:
        values = [
            {"dtype": sides["predicted"].dtype, "shape": list(sides["predicted"].shape)}
            | {name: summary(side) for name, side in sides.items()}
            for sides in arrays
        ]
        emit_json({"target": target, **(values[0] if len(values) == 1 else {"shapes": values})})
    elif len(arrays) == 1:
        _print_one(target, arrays[0])
    else:
        _print_many(target, arrays)


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


def _all_sides(text: str, where: str, chip: str, boundary: bool) -> Iterator[Sides]:
    """The layouts of a shape, or of every array of a tuple."""
    try:
        layout = read_layout(text)
    except ParseError as error:
        if not where:
            raise
        raise ParseError(error.what, text=text, column=error.column, where=where, how=error.how) from None
    for name, array in leaves(layout):
        if array.element_bits or not name:  # a tuple's tokens lie nowhere
            yield _sides(array, names_layout(text), chip, boundary)


def _sides(layout: TensorLayout, with_given: bool, chip: str, boundary: bool) -> Sides:
    """The layouts of one array: by default, as predicted and, where it has one, as given."""
    from tilewright.layout import predict as predict_layout
    from tilewright.layout import preset as preset_layout

    layout.require_static()
    predicted = predict_layout(chip, layout.shape, layout.dtype, boundary=boundary)
    sides = {"default": preset_layout("tpu", layout.shape, layout.dtype), "predicted": predicted}
    return sides | {"given": layout} if with_given else sides


def _print_one(target: str, sides: Sides) -> None:
    from tilewright.render import ratio_text

    rows = [
        (_NAMES[name], str(layout), exact_bytes(layout.size_bytes), ratio_text(layout.padding_ratio))
        for name, layout in sides.items()
    ]
    show_table((target, "layout", "size in memory", "padding ratio"), rows)


def _print_many(target: str, arrays: Sequence[Sides]) -> None:
    """A line for every shape: the predicted layout, and the padding ratios of all there are."""
    from tilewright.render import ratio_text

    shown = [name for name in ("predicted", "default", "given") if any(name in sides for sides in arrays)]
    columns = [target, "size in memory", "padding ratio"]
    columns += [f"in {_NAMES[name]}" if name == "default" else _NAMES[name] for name in shown[1:]]
    rows = []
    for sides in arrays:
        ratios = (ratio_text(sides[name].padding_ratio) if name in sides else "" for name in shown)
        rows.append((str(sides["predicted"]), exact_bytes(sides["predicted"].size_bytes), *ratios))
    show_table(columns, rows)

"""`tilewright layout convert`: a layout in the words of other tools, or why they have none for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.layout.draw import Made, viewed
from tilewright.cli.layout.show import Json, Offset, Text, one_array, sized_array
from tilewright.cli.streams import emit_json, read_text
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.layout import LinalgPack, TensorLayout


def convert(text: Text, as_json: Json = False) -> None:
    """Write a layout as CuTe's shape:stride, as MLIR's linalg.pack and as a oneDNN tag, or say why that cannot be."""
    from tilewright.render import Column, print_table

    layout = one_array(text)
    found = {name: _attempt(layout, write) for name, write in _writers().items()}
    if as_json:
        forms = {name: {"text": text, "refusal": refusal} for name, (text, refusal) in found.items()}
        emit_json({"layout": str(layout), "forms": forms})
        return
    rows = [(name, text if text is not None else f"none: {refusal}") for name, (text, refusal) in found.items()]
    print_table([Column("layout"), Column(str(layout))], rows)


def _attempt(layout: TensorLayout, write: Callable[[TensorLayout], str]) -> tuple[str | None, str]:
    try:
        return write(layout), ""
    except TilewrightError as error:
        return None, error.what


def _writers() -> dict[str, Callable[[TensorLayout], str]]:
    from tilewright.layout import to_cute, to_linalg_pack, to_onednn_tag

    return {
        "CuTe": to_cute,
        "CuTe, padded": lambda layout: to_cute(layout, padded=True),
        "linalg.pack": lambda layout: "; ".join(map(_pack_text, to_linalg_pack(layout))),
        "oneDNN": to_onednn_tag,
    }


def _pack_text(pack: LinalgPack) -> str:
    if not pack.inner_tiles and pack.outer_dims_perm == tuple(sorted(pack.outer_dims_perm)):
        return "no pack: the array as it is"
    parts = {"outer_dims_perm": pack.outer_dims_perm, "inner_dims_pos": pack.inner_dims_pos}
    parts["inner_tiles"] = pack.inner_tiles
    return " ".join(f"{name} = [{', '.join(map(str, values))}]" for name, values in parts.items())


# `tilewright layout cute`, `linalg` and `onednn`: layouts in the words of other tools, read.

_Cute = Annotated[str, typer.Argument(metavar="LAYOUT", help="As '((2,2),8):((1,16),2)'.")]
_Dtype = Annotated[str, typer.Option("--dtype", metavar="TYPE", help="Element type, as bf16.")]
_Linalg = Annotated[str, typer.Argument(metavar="TEXT", help="MLIR with linalg.pack or tensor.pack in it; - is stdin.")]
_Tag = Annotated[str, typer.Argument(metavar="TAG", help="As nChw16c or aBcd16b.")]
_Shape = Annotated[
    str, typer.Argument(metavar="SHAPE", help="Element type and dims in oneDNN's order, as f32[2,40,3,5]; - is stdin.")
]


@viewed
def cute(text: _Cute, offset: Offset = None, dtype: _Dtype = "f32") -> Made:
    """Read a CuTe layout (CUTLASS's shape:stride): facts, an element, an offset, a picture."""
    from tilewright.layout import from_cute

    return from_cute(text, dtype), None if offset is None else (offset,)


@viewed
def linalg(text: _Linalg, offset: Offset = None) -> Made:
    """Read MLIR's linalg.pack operations, each packing what the one before made: facts, an element, a picture."""
    from tilewright.layout import from_linalg_pack, parse_linalg_pack

    first, *more = parse_linalg_pack(read_text("-") if text == "-" else text)
    attributes = first.inner_dims_pos, first.inner_tiles, first.outer_dims_perm
    layout = from_linalg_pack(first.source_shape, first.dtype, *attributes, *more)
    return layout, None if offset is None else (offset,)


@viewed
def onednn(tag: _Tag, shape: _Shape, offset: Offset = None) -> Made:
    """Read a oneDNN format tag: facts, an element, an offset, a picture."""
    from tilewright.layout import from_onednn_tag

    array = sized_array(shape)
    return from_onednn_tag(tag, array.shape, array.dtype), None if offset is None else (offset,)

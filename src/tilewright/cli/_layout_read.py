"""`tilewright layout cute`, `linalg` and `onednn`: layouts in the words of other tools, read."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._io import read_text
from tilewright.cli._layout_show import Offset, sized_array
from tilewright.cli._layout_view import Made, viewed

__all__ = ["cute", "linalg", "onednn"]

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

"""`tilewright layout preset`: a layout by its usual name."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.layout.draw import Made, viewed
from tilewright.cli.layout.show import Offset, sized_array

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="tpu, tpu_vmem, ascend_nz, ascend_zz, nc1hwc0, nchw16c, tenstorrent or hexagon_crouton.",
    ),
]
_Shape = Annotated[str, typer.Argument(metavar="SHAPE", help="Element type and dims, as f16[100,64]; - is stdin.")]
_WithinFace = Annotated[
    bool, typer.Option("--transpose-within-face", help="Of tenstorrent: the elements of every face transposed.")
]
_OfFaces = Annotated[
    bool, typer.Option("--transpose-of-faces", help="Of tenstorrent: the four faces of every tile transposed.")
]


@viewed
def preset(
    name: _Name,
    shape: _Shape,
    offset: Offset = None,
    transpose_within_face: _WithinFace = False,
    transpose_of_faces: _OfFaces = False,
) -> Made:
    """Lay a shape out by a layout's usual name: its text and facts, an element, an offset, a picture."""
    from tilewright.layout import preset as make

    array = sized_array(shape)
    flags = {"transpose_within_face": transpose_within_face, "transpose_of_faces": transpose_of_faces}
    asked = {option: True for option, given in flags.items() if given}
    return make(name, array.shape, array.dtype, **asked), None if offset is None else (offset,)

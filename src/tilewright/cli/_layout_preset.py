"""`tilewright layout preset`: a layout by its usual name."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._layout_show import Offset, sized_array
from tilewright.cli._layout_view import Made, viewed

__all__ = ["preset"]

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="tpu, tpu_vmem, ascend_nz, ascend_zz, nc1hwc0, nchw16c, tenstorrent or hexagon_crouton.",
    ),
]
_Shape = Annotated[str, typer.Argument(metavar="SHAPE", help="Element type and dims, as f16[100,64]; - is stdin.")]


@viewed
def preset(
    name: _Name,
    shape: _Shape,
    offset: Offset = None,
) -> Made:
    """Lay a shape out by a layout's usual name: its text and facts, an element, an offset, a picture."""
    from tilewright.layout import preset as make

    array = sized_array(shape)
    return make(name, array.shape, array.dtype), None if offset is None else (offset,)

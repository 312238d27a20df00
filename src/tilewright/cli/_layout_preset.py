"""`tilewright layout preset`: a layout by its usual name."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._layout_draw import Colour, Draw, Ruler, Unit
from tilewright.cli._layout_memories import show
from tilewright.cli._layout_show import Index, Json, Offset, Out, one_array

__all__ = ["preset"]

_Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="tpu, tpu_vmem, ascend_nz, ascend_zz, nc1hwc0, nchw16c, tenstorrent or hexagon_crouton.",
    ),
]
_Shape = Annotated[str, typer.Argument(metavar="SHAPE", help="Element type and dims, as f16[100,64]; - is stdin.")]


def preset(
    name: _Name,
    shape: _Shape,
    index: Index = None,
    offset: Offset = None,
    draw: Draw = False,
    out: Out = None,
    colour: Colour = "auto",
    ruler: Ruler = False,
    unit: Unit = "auto",
    as_json: Json = False,
) -> None:
    """Lay a shape out by a layout's usual name: its text and facts, an element, an offset, a picture."""
    from tilewright.layout import preset as make

    array = one_array(shape)
    layout = make(name, array.shape, array.dtype)
    show(layout, index, None if offset is None else (offset,), (out, draw, colour, ruler, unit), as_json)

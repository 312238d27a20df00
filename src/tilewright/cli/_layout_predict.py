"""`tilewright layout predict`: the layout a TPU's compiler will choose for a shape."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._io import emit_json
from tilewright.cli._layout_show import Json, exact_bytes, sized_array

__all__ = ["predict"]

_Shape = Annotated[
    str, typer.Argument(metavar="SHAPE", help="Element type and dims, as bf16[32,224,224,3]; - is stdin.")
]
_Target = Annotated[str, typer.Option("--target", metavar="NAME", help="The chip; see `tilewright targets`.")]


def predict(shape: _Shape, target: _Target = "tpu-v5e", as_json: Json = False) -> None:
    """Predict the layout a TPU's compiler chooses for a shape, beside the default order of the dims."""
    from tilewright.layout import predict as predict_layout
    from tilewright.layout import preset
    from tilewright.layout.explain._summary import summary
    from tilewright.render import Column, print_table, ratio_text
    from tilewright.targets import target as find_target

    layout = sized_array(shape)
    predicted = predict_layout(find_target(target).name, layout.shape, layout.dtype)
    found = {"default": preset("tpu", layout.shape, layout.dtype), "predicted": predicted}
    if "{" in shape:
        found["given"] = layout
    if as_json:
        sides = {name: summary(each) for name, each in found.items()}
        emit_json({"target": target, "dtype": layout.dtype, "shape": list(layout.shape), **sides})
        return
    columns = [Column(target), Column("layout"), Column("size in memory"), Column("padding ratio")]
    names = {"default": "default order", "predicted": "predicted", "given": "as given"}
    sizes = {name: (exact_bytes(each.size_bytes), ratio_text(each.padding_ratio)) for name, each in found.items()}
    print_table(columns, [(names[name], str(each), *sizes[name]) for name, each in found.items()])

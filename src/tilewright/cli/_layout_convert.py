"""`tilewright layout convert`: a layout in the words of other tools, or why they have none for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.cli._io import emit_json
from tilewright.cli._layout_show import Json, Text, one_array
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from tilewright.layout import LinalgPack, TensorLayout

__all__ = ["convert"]


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

"""`tilewright layout predict`: the layouts a TPU's compiler will choose for shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.layout.show import Json, exact_bytes, leaves, names_layout, read_layout
from tilewright.cli.streams import emit_json, read_text
from tilewright.errors import ParseError, UsageError

if TYPE_CHECKING:
    from tilewright.layout import TensorLayout

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
    found = [sides for where, text in _texts(shape) for sides in _all_sides(text, where, chip, boundary)]
    if as_json:
        values = [
            {"dtype": each["predicted"].dtype, "shape": list(each["predicted"].shape)}
            | {name: summary(side) for name, side in each.items()}
            for each in found
        ]
        emit_json({"target": target, **(values[0] if len(values) == 1 else {"shapes": values})})
    elif len(found) == 1:
        _print_one(target, found[0])
    else:
        _print_many(target, found)


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


def _sides(layout: TensorLayout, given: bool, chip: str, boundary: bool) -> Sides:
    """The layouts of one array: by default, as predicted and, where it has one, as given."""
    from tilewright.layout import predict as predict_layout
    from tilewright.layout import preset

    layout.require_static()
    predicted = predict_layout(chip, layout.shape, layout.dtype, boundary=boundary)
    found = {"default": preset("tpu", layout.shape, layout.dtype), "predicted": predicted}
    return found | {"given": layout} if given else found


def _print_one(target: str, sides: Sides) -> None:
    from tilewright.render import Column, print_table, ratio_text

    columns = [Column(target), Column("layout"), Column("size in memory"), Column("padding ratio")]
    sizes = {name: (exact_bytes(each.size_bytes), ratio_text(each.padding_ratio)) for name, each in sides.items()}
    print_table(columns, [(_NAMES[name], str(each), *sizes[name]) for name, each in sides.items()])


def _print_many(target: str, found: Sequence[Sides]) -> None:
    """A line for every shape: the predicted layout, and the padding ratios of all there are."""
    from tilewright.render import Column, print_table, ratio_text

    shown = [name for name in ("predicted", "default", "given") if any(name in each for each in found)]
    columns = [Column(target), Column("size in memory"), Column("padding ratio")]
    columns += [Column(f"in {_NAMES[name]}" if name == "default" else _NAMES[name]) for name in shown[1:]]
    rows = []
    for sides in found:
        ratios = (ratio_text(sides[name].padding_ratio) if name in sides else "" for name in shown)
        rows.append((str(sides["predicted"]), exact_bytes(sides["predicted"].size_bytes), *ratios))
    print_table(columns, rows)

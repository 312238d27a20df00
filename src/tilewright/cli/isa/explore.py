"""`tilewright isa roofline` and `explore`: what limits one product, and which machine suits a whole network."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tilewright.cli.isa import machine
from tilewright.cli.isa.products import how_of, shape_of
from tilewright.cli.isa.tune import values_of
from tilewright.cli.streams import Json, progress, read_text
from tilewright.errors import UsageError
from tilewright.render.deliver import Answer, Line, Output, deliver
from tilewright.render.tables import Heading, Table

if TYPE_CHECKING:
    from tilewright.isa import Exploration, MatrixUnitConfig, Roofline

_Size = Annotated[int | None, Option(min=1, help="Rows of A (m), columns of B (n), depth (k) of a product.")]


def roofline(
    m: _Size = None,
    n: _Size = None,
    k: _Size = None,
    x: Annotated[str | None, Option(metavar="NxHxWxC", help="Or images of a convolution, as 1x7x7x512.")] = None,
    w: Annotated[str | None, Option(metavar="KHxKWxCxO", help="And its weights, as 3x3x512x512.")] = None,
    stride: Annotated[int, Option(min=1, help="Of a convolution.")] = 1,
    padding: Annotated[str, Option(help="Of a convolution: valid, same, or a number.")] = "0",
    dtype: machine.Elements = "s8",
    tuned: Annotated[bool, Option("--tuned", help="By its fastest choice, not by default options.")] = False,
    what_if: Annotated[
        bool, Option("--what-if/--no-what-if", help="Run it on machines that differ in one field, too.")
    ] = True,
    settings: machine.Settings = None,
    out: machine.PageOut = None,
    as_json: Json = False,
) -> None:
    """Say what a product could not be faster than at each level of memory, what it takes, and what to change."""
    from tilewright.isa import roofline_page

    where = Output(out, as_json, ".json", ".html")
    config, how = machine.configured(settings), how_of(stride, padding, 1, 1)
    sizes = _sizes((m, n, k), (x, w))
    with progress("running") as bar:
        found, choice = _roofline(sizes, how if x else {}, dtype, config, tuned, bar if what_if else None)
    words = f"--x {x} --w {w} --stride {stride} --padding {padding}" if x else f"--m {m} --n {n} --k {k}"
    more = " ".join(["--tuned"] * tuned + [f"--set {assignment}" for assignment in settings or ()])
    command = f"tilewright isa roofline {words} --dtype {dtype} {more}".rstrip()
    answer = Answer(lambda: found.to_dict() | {"choice": choice}, lambda: _roofline_lines(found, choice))
    deliver(answer, where, {".html": lambda: roofline_page(found, command), ".json": found.to_dict})


def _sizes(product: tuple[int | None, ...], sides: tuple[str | None, str | None]) -> tuple[Any, ...]:
    """(m, n, k), or shapes (x, w)."""
    if all(sides) and not any(product):
        return tuple(shape_of(side) for side in sides if side)
    if all(product) and not any(sides):
        return product
    raise UsageError("no product", how="give --m, --n and --k, or --x and --w")


def _roofline(
    sizes: tuple[Any, ...], how: dict[str, Any], dtype: str, config: MatrixUnitConfig, tuned: bool, bar: Any
) -> tuple[Roofline, str]:
    """The roofline, and the choice it is of."""
    import numpy as np

    from tilewright.isa import Choice, ConvChoice, autotune, autotune_conv2d, conv2d, matmul
    from tilewright.isa import roofline as roofline_of
    from tilewright.isa import what_if as each_change
    from tilewright.layout import paged

    conv = len(sizes) == 2
    choice: Any = ConvChoice() if conv else Choice()
    if tuned:
        tune: Any = autotune_conv2d if conv else autotune
        choice = tune(*sizes, dtype, config, **how).best.choice
    kind = paged((1,), dtype).numpy_dtype
    shapes = sizes if conv else ((sizes[0], sizes[2]), (sizes[2], sizes[1]))
    a, b = (np.zeros(shape, kind) for shape in shapes)
    title = f"a convolution of {'x'.join(map(str, shapes[0]))} by {'x'.join(map(str, shapes[1]))}"
    title = title if conv else f"a product of {' x '.join(map(str, sizes))}"

    def run(other: MatrixUnitConfig) -> Any:
        other = replace(other, values=False)
        return conv2d(a, b, config=other, **how, **choice.options) if conv else matmul(a, b, other, **choice.options)

    found = roofline_of(run(config), config, title)
    if bar is not None:
        found = replace(found, changes=each_change(config, lambda other: int(run(other).cycles), bar))
    return found, str(choice)


def _roofline_lines(found: Roofline, choice: str) -> Iterator[Line]:
    yield f"{found.title}, by {choice}"
    yield f"{found.macs:,} products in {found.cycles:,} cycles: {found.rate:,.0f} of {found.peak:,.0f} a cycle\n"
    columns: list[Heading] = [("unit", "text"), ("busy at least", "count"), ("of all", "percent"), ("amount", "count")]
    columns += [("of", "text"), ("a cycle", "number"), ("products each", "number")]
    rows = []
    for bound in found.bounds:
        share = bound.cycles / max(1, found.cycles)
        head = (bound.name, round(bound.cycles), share, round(bound.amount))
        rows.append((*head, bound.what, round(bound.rate, 3), round(bound.intensity, 2)))
    yield Table(columns, rows)
    yield from ("", *(f"* {text}" for text in found.advice))


def explore(
    network: Annotated[str, Argument(metavar="NETWORK", help="resnet50, or a name for --shapes.")] = "resnet50",
    shapes: Annotated[
        str | None,
        Option(metavar="FILE", help="Layers, one a line: fc 1 gemm 1x1000x2048; c 2 conv 1x7x7x8 3x3x8x8 padding=1."),
    ] = None,
    over: Annotated[
        list[str] | None,
        Option("--over", metavar="FIELD=A,B,..", help="Values of a field of the machine; all combinations."),
    ] = None,
    dtype: machine.Elements = "s8",
    most: Annotated[int, Option(min=1, help="Ways timed for each layer and machine.")] = 4,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="FIELD=VALUE", help="A field all these machines share.")
    ] = None,
    out: machine.PageOut = None,
    as_json: Json = False,
) -> None:
    """Run a whole network on many machines: which cost least in cycles, energy (modelled) and area (a proxy)."""
    from tilewright.isa import exploration_page, read_network
    from tilewright.isa import explore as explore_machines

    where = Output(out, as_json, ".json", ".html")
    layers: Any = read_network(read_text(shapes), shapes) if shapes else network
    family = values_of(over) if over else None
    with progress("layers") as bar:
        found = explore_machines(layers, family, dtype, machine.configured(settings), most, bar)
    found = replace(found, network=network) if shapes and network != "resnet50" else found
    answer = Answer(found.to_dict, lambda: _exploration_lines(found))
    deliver(answer, where, {".html": lambda: exploration_page(found)})


def _exploration_lines(found: Exploration) -> Iterator[Line]:
    columns: list[Heading] = [(name, "code") for name in found.points[0].settings]
    columns += [("cycles", "count"), ("energy, uJ", "count"), ("area, mm2", "number"), ("utilisation", "percent"), ""]
    front, rows = {id(point) for point in found.front}, list[tuple[object, ...]]()
    for point in found.points:
        head = [str(value) for value in point.settings.values()]
        if point.refused:
            rows.append((*head, None, None, None, None, point.refused))
            continue
        figures = (point.cycles, round(point.energy_pj / 1e6), round(point.area_mm2, 2), point.utilisation)
        rows.append((*head, *figures, "front" if id(point) in front else ""))
    yield Table(columns, rows)
    fast, even = found.fastest, found.balanced
    yield f"\nfastest: {fast.name}; least product of cycles, energy and area: {even.name}"
    worst = max(fast.layers, key=lambda cost: cost.cycles)
    share = worst.cycles / max(1, fast.cycles)
    yield f"{worst.layer.name} takes {share:.0%} of the fastest one's cycles, for its {worst.best.limit}"
    yield "energy is modelled (ISSCC 2014, 45 nm); area is a proxy: memory cells and multipliers only"

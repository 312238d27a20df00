"""`tilewright isa roofline` and `explore`: what limits one product, and which machine suits a whole network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa import machine
from tilewright.cli.isa.conv import how_of, shape_of
from tilewright.cli.isa.tune import values_of
from tilewright.cli.streams import (
    Heading,
    Json,
    emit_json,
    emit_text,
    progress,
    read_text,
    remark,
    show_table,
    write_file,
    writer_of,
)
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.isa import Exploration, Roofline

_Size = Annotated[int | None, typer.Option(min=1, help="Rows of A (m), columns of B (n), depth (k) of a product.")]
_Page = Annotated[
    str | None, typer.Option("-o", "--out", metavar="FILE", help="FILE.html: a page; FILE.json: all numbers.")
]


def roofline(
    m: _Size = None,
    n: _Size = None,
    k: _Size = None,
    x: Annotated[str | None, typer.Option(metavar="NxHxWxC", help="Or images of a convolution, as 1x7x7x512.")] = None,
    w: Annotated[str | None, typer.Option(metavar="KHxKWxCxO", help="And its weights, as 3x3x512x512.")] = None,
    stride: Annotated[int, typer.Option(min=1, help="Of a convolution.")] = 1,
    padding: Annotated[str, typer.Option(help="Of a convolution: valid, same, or a number.")] = "0",
    dtype: machine.Elements = "s8",
    tuned: Annotated[bool, typer.Option("--tuned", help="By its fastest choice, not by default options.")] = False,
    what_if: Annotated[
        bool, typer.Option("--what-if/--no-what-if", help="Run it on machines that differ in one field, too.")
    ] = True,
    settings: machine.Settings = None,
    out: _Page = None,
    as_json: Json = False,
) -> None:
    """Say what a product could not be faster than at each level of memory, what it takes, and what to change."""
    from tilewright.isa import measured_roofline

    suffix = writer_of(out, ".json", ".html")
    config, how = machine.configured(settings), how_of(stride, padding, 1, 1)
    sizes = _sizes((m, n, k), (x, w))
    with progress("running") as bar:
        found, choice = measured_roofline(sizes, dtype, config, tuned, what_if, bar, **(how if x else {}))
    words = " ".join(f"--{name} {value}" for name, value in zip("mnk", (m, n, k), strict=True) if value)
    words = f"--x {x} --w {w} --stride {stride} --padding {padding}" if x else words
    more = " ".join(["--tuned"] * tuned + [f"--set {assignment}" for assignment in settings or ()])
    command = f"tilewright isa roofline {words} --dtype {dtype} {more}".rstrip()
    if out is not None and suffix == ".html":
        write_file(out, found.to_html(command))
        remark(f"wrote {out}")
    elif out is not None:
        emit_json(found.to_dict(), out)
    if as_json:
        emit_json({**found.to_dict(), "choice": choice})
    elif out != "-":
        _print_roofline(found, choice)


def _sizes(product: tuple[int | None, ...], sides: tuple[str | None, str | None]) -> tuple[Any, ...]:
    """(m, n, k), or shapes (x, w)."""
    if all(sides) and not any(product):
        return tuple(shape_of(side) for side in sides if side)
    if all(product) and not any(sides):
        return product
    raise UsageError("no product", how="give --m, --n and --k, or --x and --w")


def _print_roofline(found: Roofline, choice: str) -> None:
    emit_text(f"{found.title}, by {choice}")
    emit_text(f"{found.macs:,} products in {found.cycles:,} cycles: {found.rate:,.0f} of {found.peak:,.0f} a cycle\n")
    columns: list[Heading] = [("unit", "text"), ("busy at least", "count"), ("of all", "percent"), ("amount", "count")]
    columns += [("of", "text"), ("a cycle", "number"), ("products each", "number")]
    rows = []
    for bound in found.bounds:
        share = bound.cycles / max(1, found.cycles)
        head = (bound.name, round(bound.cycles), share, round(bound.amount))
        rows.append((*head, bound.what, round(bound.rate, 3), round(bound.intensity, 2)))
    show_table(columns, rows)
    emit_text("")
    for text in found.advice:
        emit_text(f"* {text}")


def explore(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="resnet50, or a name for --shapes.")] = "resnet50",
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Layers, one a line: fc 1 gemm 1x1000x2048; c 2 conv 1x7x7x8 3x3x8x8 padding=1."
        ),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", metavar="FIELD=A,B,..", help="Values of a field of the machine; all combinations."),
    ] = None,
    dtype: machine.Elements = "s8",
    most: Annotated[int, typer.Option(min=1, help="Ways timed for each layer and machine.")] = 4,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="A field all these machines share.")
    ] = None,
    out: _Page = None,
    as_json: Json = False,
) -> None:
    """Run a whole network on many machines: which cost least in cycles, energy (modelled) and area (a proxy)."""
    from tilewright.isa import explore as explore_machines
    from tilewright.isa import read_network

    suffix = writer_of(out, ".json", ".html")
    layers: Any = read_network(read_text(shapes), shapes) if shapes else network
    family = values_of(over) if over else None
    with progress("layers") as bar:
        found = explore_machines(layers, family, dtype, machine.configured(settings), most, bar)
    found = replace(found, network=network) if shapes and network != "resnet50" else found
    if out is not None and suffix == ".html":
        write_file(out, found.to_html())
        remark(f"wrote {out}")
    elif out is not None:
        emit_json(found.to_dict(), out)
    if as_json:
        emit_json(found.to_dict())
    elif out != "-":
        _print_exploration(found)


def _print_exploration(found: Exploration) -> None:
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
    show_table(columns, rows)
    fast, even = found.fastest, found.balanced
    emit_text(f"\nfastest: {fast.name}; least product of cycles, energy and area: {even.name}")
    worst = max(fast.layers, key=lambda cost: cost.cycles)
    share = worst.cycles / max(1, fast.cycles)
    emit_text(f"{worst.layer.name} takes {share:.0%} of the fastest one's cycles, for its {worst.best.limit}")
    emit_text("energy is modelled (ISSCC 2014, 45 nm); area is a proxy: memory cells and multipliers only")

"""`tilewright isa tune`, `tune-conv2d`, `sweep`, `roofline` and `explore`: the fastest way, and the machine for it.

A product on one machine or on many, what limits it, and which machine suits a whole network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any

from typer import Argument, Option

from tilewright import isa
from tilewright.cli.isa import machine
from tilewright.cli.isa.products import Convolution, difference, random_array
from tilewright.cli.options import Json, swept, this_command
from tilewright.cli.streams import progress, read_text
from tilewright.errors import UsageError
from tilewright.render import Bar, Card, Page, Step, bar_chart, cards, steps
from tilewright.render.delivery import Answer, Line, Output, deliver
from tilewright.render.formats import Kind
from tilewright.render.tables import Heading, Table, table

_HEADINGS: tuple[tuple[str, Kind, str], ...] = (
    ("choice", "code", "Options of isa matmul."),
    ("cycles", "count", "By the model; none where the bound was enough."),
    ("energy, pJ", "count", "Modelled: published figures (ISSCC 2014, 45 nm) times what was counted."),
    ("of the default", "ratio", "Cycles beside those of the default."),
    ("utilisation", "percent", "Multiplications made, of those all threads could make in these cycles."),
    ("math", "count", "Cycles the math unit multiplied."),
    ("waits for", "text", "What the math unit waited for most."),
    ("waiting", "count", "Cycles it did."),
    ("busiest", "text", "The unit that is busy for longest, by closed forms."),
    ("busy", "count", "Its cycles: no run can take fewer."),
    ("lines of B", "count", "Line touches in L1."),
    ("from memory", "bytes", "Bytes of B's lines from device memory."),
    ("A loaded", "bytes", "Bytes of A loaded into registers."),
)
_Top = Annotated[int, Option(min=1, help="Rows of the ranking printed.")]
_Shared = Annotated[list[str] | None, "--set FIELD=VALUE", "A field all these machines share."]
_OVER = Option("--over", metavar="FIELD=A,B,..", help="Values of a field of the machine; all combinations.")
_SHORT = (0, 1, 2, 3, 4, 6, 8, 9, 12)
"""Columns a terminal has room for."""


def tune(
    m: Annotated[int, machine.Depth],
    n: Annotated[int, machine.Depth],
    k: Annotated[int, machine.Depth],
    dtype: machine.Elements = "s8",
    ka: Annotated[int | None, "Keep to this ka."] = None,
    kb: Annotated[int | None, "Keep to this kb."] = None,
    transpose_b: Annotated[bool | None, "--transpose-b/--no-transpose-b", "Keep to B by rows, or by columns."] = None,
    order: Annotated[str | None, "Keep to k_outer or column_outer."] = None,
    columns: Annotated[int | None, "Keep to so many columns per instruction."] = None,
    split: Annotated[str | None, "Keep to C divided by rows or columns (several PEs)."] = None,
    segments: Annotated[int | None, "Keep to B in so many segments, brought in by DMA."] = None,
    plain: Annotated[bool, "Keep B's lines and pages as matmul lays them."] = False,
    most: machine.MostChoices = 96,
    within: machine.Within = 0.0,
    top: _Top = 8,
    check: Annotated[bool, "Run the choice with random values too; exit 1 where anything differs."] = False,
    settings: machine.Settings = None,
    *,
    to: machine.ToPage,
) -> int:
    """Rank the ways to make a matrix product by modelled cycles, and say why the first is the fastest."""
    fixed: dict[str, Any] = {"ka": ka, "kb": kb, "transpose_b": transpose_b, "order": order, "columns": columns}
    fixed |= {"split": split, "segments": segments}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    fixed |= {"line": None, "page": None} if plain else {}
    with progress("timing") as bar:
        config = machine.configured(settings)
        tuning = isa.autotune(m, n, k, dtype, config, most=most, within=within, watch=bar, **fixed)
    call = _call(f"isa matmul --m {m} --n {n} --k {k}", tuning, {}, settings)
    return _deliver(tuning, call, top, to, _checked(tuning) if check else None)


def _deliver(tuning: Any, call: str, top: int, to: Output, checked: dict[str, Any] | None = None) -> int:
    """The ranking, and the exit code; ``call``: the best choice as a command; ``checked``: of a run with values."""

    def lines() -> Iterator[Line]:
        rows = [_row(tuning, tuned) for tuned in _shown(tuning, top)]
        yield Table([_HEADINGS[i] for i in _SHORT], [[row[i] for i in _SHORT] for row in rows])
        yield from (f"\n{tuning.why}\n{tuning.certainty}", f"\n{call}")
        if checked:
            same = "within 2 percent" if checked["scaled"] else "as modelled"
            same = same if checked["same_cycles"] else "NOT as modelled"
            value = "equals numpy's" if checked["value_equals_numpy"] else "DIFFERS from numpy's"
            yield f"checked with values: {checked['cycles']:,} cycles {same}, the value {value}"

    answer = Answer(lambda: tuning.to_dict() | ({"check": checked} if checked else {}), lines)
    deliver(answer, to, {".html": lambda: _page(tuning, call), ".json": tuning.to_dict})
    return 0 if checked is None or (checked["same_cycles"] and checked["value_equals_numpy"]) else 1


def _checked(tuning: Any) -> dict[str, Any]:
    """The choice on the machine, values and all."""
    p = tuning.problem
    a, b = random_array((p.m, p.k), tuning.dtype, 0), random_array((p.k, p.n), tuning.dtype, 1)
    result = isa.matmul(a, b, p.config, **tuning.options)
    near = abs(result.cycles - (tuning.best.cycles or 0)) <= (0.02 * result.cycles if tuning.best.scaled else 0)
    cycles = {"cycles": result.cycles, "same_cycles": near, "scaled": tuning.best.scaled}
    return {**cycles, "value_equals_numpy": difference(result.value, a, b, p.k)[0]}


def _name(tuning: Any, tuned: Any) -> str:
    return f"{tuned.choice}  (default)" if tuned is tuning.default else str(tuned.choice)


def _row(tuning: Any, tuned: Any) -> tuple[object, ...]:
    cycles, default, counts, name = tuned.cycles, tuning.default.cycles, tuned.counts, _name(tuning, tuned)
    if counts is None or tuned.stalls is None:
        words = "cannot run" if tuned.refused else "left out"
        return (name, None, None, None, None, None, words, None, tuned.limit, tuned.bound, None, None, None)
    beside, waiting = cycles / default if cycles and default else None, tuned.stalls.get(tuned.stall, 0)
    numbers = (name, cycles, round(tuned.energy_pj), beside, tuned.utilisation, tuned.math_cycles)
    waits = (tuned.stall or "nothing", waiting, tuned.limit, tuned.bound)
    return (*numbers, *waits, counts.l1_touches, counts.dram_bytes, counts.a_bytes_loaded)


def _shown(tuning: Any, top: int) -> list[Any]:
    """The first of those that were timed, and the default wherever it stands."""
    first = list(tuning.timed[:top])
    return first if tuning.default in first else [*first, tuning.default]


def _call(command: str, tuning: Any, how: dict[str, Any], settings: Sequence[str] | None) -> str:
    """The best choice as a command: those of its options that are not as usual."""
    usual = {field.name: field.default for field in fields(tuning.best.choice)}
    usual |= {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    words = [f"{command} --dtype {tuning.dtype}"]
    for name, value in {**how, **tuning.options}.items():
        if value != usual[name]:
            shown = "x".join(map(str, value)) if isinstance(value, tuple) else value
            words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {shown}"))
    return " ".join([*words, *(f"--set {assignment}" for assignment in settings or ())])


def _page(tuning: Any, call: str) -> str:
    p, best = tuning.problem, tuning.best
    facts = [("machine", f"{p.config.pes} x {p.config.threads} threads"), ("elements", tuning.dtype)]
    page = Page(p.title[0].upper() + p.title[1:], "by the matrix unit", facts=facts, wide=True)
    figures = [
        Card("cycles", f"{best.cycles:,}", str(best.choice), "good"),
        Card("beside the default", f"{tuning.speedup:.3g} times fewer", f"{tuning.default.cycles or 0:,} cycles"),
        Card("utilisation", f"{100 * best.utilisation:.1f}%", "of all threads' multiplications"),
    ]
    todo = [
        Step("Run it this way.", f"tilewright {call}", "", f"{tuning.speedup:.3g}× as fast as the default", "good"),
        Step("Write it as a program, to profile it and to step through it.", f"tilewright {call} -o product.tasm"),
    ]
    page.section("choice", "What to do", steps(todo), cards(figures))
    page.section("why", "Why it is the fastest", tuning.why, tuning.certainty + ".")
    parts = tuple(best.account)
    bars = [Bar(_name(tuning, tuned), tuple(tuned.account.values())) for tuned in _shown(tuning, 12) if tuned.cycles]
    page.section("account", "What the math unit did", bar_chart(bars, title="Cycles", parts=parts, width=900))
    caption = "Timed choices first. No run takes fewer cycles than its busiest unit is busy: the others are left out."
    rows = [_row(tuning, tuned) for tuned in tuning.ranking]
    page.section("ranking", "Every choice", table(_HEADINGS, rows, caption=caption))
    page.data("tuning", {"schema_version": 1, **tuning.to_dict()})
    return page.html()


def tune_conv2d(
    of: Convolution,
    most: machine.MostChoices = 48,
    within: machine.Within = 0.0,
    top: _Top = 8,
    settings: machine.Settings = None,
    *,
    to: machine.ToPage,
) -> int:
    """Rank the ways to make a convolution by modelled cycles, and say why the first is the fastest."""
    with progress("timing") as bar:
        config = machine.configured(settings)
        tuning = isa.autotune_conv2d(*of.shapes, of.dtype, config, most=most, within=within, watch=bar, **of.how)
    call = _call(f"isa conv2d {of.x} {of.w}", tuning, of.how, settings)
    return _deliver(tuning, call, top, to)


def sweep(
    m: Annotated[int, machine.Depth],
    n: Annotated[int, machine.Depth],
    k: Annotated[int, machine.Depth],
    over: Annotated[list[str], _OVER],
    dtype: machine.Elements = "s8",
    most: machine.MostChoices = 96,
    within: machine.Within = 0.0,
    settings: _Shared = None,
    *,
    to: Json,
) -> None:
    """Tune one product for many machines: cycles of each at its best, and the unit that limits it."""
    config, family = machine.configured(settings), values_of(over)
    with progress("machines") as bar:
        designs = isa.sweep(m, n, k, family, dtype, config, watch=bar, most=most, within=within)
    value = {"m": m, "n": n, "k": k, "dtype": dtype, "machines": [_design_value(design) for design in designs]}
    deliver(Answer(lambda: value, lambda: _design_lines(designs)), to)


def values_of(over: Sequence[str]) -> dict[str, list[Any]]:
    """The values of each field that ``--over`` names."""
    texts = swept(over, "--over", "l1_ports=1,2,4")
    return {name: [isa.MatrixUnitConfig.read_value(value) for value in values] for name, values in texts.items()}


def _design_value(design: Any) -> dict[str, Any]:
    """A machine with its best choice, or why it cannot be, as JSON."""
    if design.tuning is None:
        return {"settings": design.settings, "refused": design.refused}
    more = {"default_cycles": design.tuning.default.cycles, "proved": design.tuning.proved}
    return {"settings": design.settings, **design.tuning.best.to_dict(), **more}


def _design_lines(designs: Sequence[Any]) -> Iterator[Line]:
    columns: list[Heading] = [(name, "code") for name in (*designs[0].settings, "best choice")]
    columns += [("cycles", "count"), ("default's", "count"), ("utilisation", "percent"), "busiest", ("busy", "count")]
    rows: list[tuple[object, ...]] = []
    for design in designs:
        shown: tuple[object, ...] = (design.refused, None, None, None, "", None)
        if design.tuning is not None:
            best, default = design.tuning.best, design.tuning.default
            shown = (str(best.choice), best.cycles, default.cycles, best.utilisation, best.limit, best.bound)
        rows.append((*map(str, design.settings.values()), *shown))
    yield Table(columns, rows)
    if not all(design.tuning.proved for design in designs if design.tuning):
        yield "\nnot every choice is proved the best: raise --most"


_Size = Annotated[int | None, Option(min=1, help="Rows of A (m), columns of B (n), depth (k) of a product.")]


def roofline(
    m: _Size = None,
    n: _Size = None,
    k: _Size = None,
    x: Annotated[str | None, "--x NxHxWxC", "Or images of a convolution, as 1x7x7x512."] = None,
    w: Annotated[str | None, "--w KHxKWxCxO", "And its weights, as 3x3x512x512."] = None,
    stride: Annotated[int, Option(min=1, help="Of a convolution.")] = 1,
    padding: Annotated[str, "Of a convolution: valid, same, or a number."] = "0",
    dtype: machine.Elements = "s8",
    tuned: Annotated[bool, "By its fastest choice, not by default options."] = False,
    what_if: Annotated[bool, "--what-if/--no-what-if", "Run it on machines that differ in one field, too."] = True,
    settings: machine.Settings = None,
    *,
    to: machine.ToPage,
) -> None:
    """Say what a product could not be faster than at each level of memory, what it takes, and what to change."""
    config = machine.configured(settings)
    sizes: Any = (m, n, k)
    how: dict[str, Any] = {}
    if x and w and not any(sizes):
        of = Convolution(x, w, dtype, stride, padding)
        sizes, how = of.shapes, of.how
    elif not all(sizes) or x or w:
        raise UsageError("no product", how="give --m, --n and --k, or --x and --w")
    with progress("running") as bar:
        found, choice = isa.Roofline.measured(sizes, dtype, config, tuned, what_if, bar, **how)
    lines = [f"{found.title}, by {choice}", *found.lines()]
    answer = Answer(lambda: found.to_dict() | {"choice": choice}, lambda: lines)
    deliver(answer, to, {".html": lambda: found.to_html(this_command()), ".json": found.to_dict})


def explore(
    network: Annotated[str, Argument(help="resnet50, or a name for --shapes.")] = "resnet50",
    shapes: Annotated[
        str | None, "--shapes FILE", "Lines as: fc 1 gemm 1x1000x64; c 2 conv 1x7x7x8 3x3x8x8 padding=1."
    ] = None,
    over: Annotated[list[str] | None, _OVER] = None,
    dtype: machine.Elements = "s8",
    most: Annotated[int, Option(min=1, help="Ways timed for each layer and machine.")] = 4,
    settings: _Shared = None,
    *,
    to: machine.ToPage,
) -> None:
    """Run a whole network on many machines: which cost least in cycles, energy (modelled) and area (a proxy)."""
    family = values_of(over) if over else None
    with progress("layers") as bar:
        layers = read_text(shapes) if shapes else network
        found = isa.explore(layers, family, dtype, machine.configured(settings), most, bar, where=shapes)
    if shapes:
        found = replace(found, network=network if network != "resnet50" else "layers")

    def lines() -> Iterator[Line]:
        yield Table(*found.table())
        fast, even = found.fastest, found.balanced
        yield f"\nfastest: {fast.name}; least product of cycles, energy and area: {even.name}"
        worst = max(fast.layers, key=lambda cost: cost.cycles)
        share = worst.cycles / max(1, fast.cycles)
        yield f"{worst.layer.name} takes {share:.0%} of the fastest one's cycles, for its {worst.best.limit}"
        yield "energy is modelled (ISSCC 2014, 45 nm); area is a proxy: memory cells and multipliers only"

    deliver(Answer(found.to_dict, lines), to, {".html": found.to_html})

"""`tilewright isa tune`: the fastest way to make a matrix product, ranked, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa.matmul import difference_of, random_matrix
from tilewright.cli.isa.tensors import machine
from tilewright.cli.streams import emit_json, emit_text, progress, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.isa import Tuned, Tuning
    from tilewright.render import Kind

_Size = typer.Option(min=1, help="Rows of A (m), columns of B (n), depth (k).")
_HEADINGS: tuple[tuple[str, Kind, str], ...] = (
    ("choice", "code", "Options of isa matmul."),
    ("cycles", "count", "By the model; none where the bound was enough."),
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
_SHORT = (0, 1, 2, 3, 5, 7, 8, 9, 11)
"""Columns a terminal has room for."""


def _tune(
    m: Annotated[int, _Size],
    n: Annotated[int, _Size],
    k: Annotated[int, _Size],
    dtype: Annotated[str, typer.Option(help="Elements: s8, u8, s16, u16, s32, u32, f16, bf16, f32.")] = "s8",
    ka: Annotated[int | None, typer.Option(help="Keep to this ka.")] = None,
    kb: Annotated[int | None, typer.Option(help="Keep to this kb.")] = None,
    transpose_b: Annotated[
        bool | None, typer.Option("--transpose-b/--no-transpose-b", help="Keep to B by rows (t1), or by columns (t0).")
    ] = None,
    order: Annotated[str | None, typer.Option(help="Keep to k_outer or column_outer.")] = None,
    columns: Annotated[int | None, typer.Option(help="Keep to so many columns per instruction.")] = None,
    split: Annotated[str | None, typer.Option(help="Keep to C divided by rows or columns (several PEs).")] = None,
    segments: Annotated[int | None, typer.Option(help="Keep to B in so many segments, brought in by DMA.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Keep B's lines and pages as matmul lays them.")] = False,
    most: Annotated[int, typer.Option(min=1, help="Choices timed at most.")] = 96,
    within: Annotated[float, typer.Option(help="A gain not worth looking for: 0.02 is 2 percent.")] = 0.0,
    top: Annotated[int, typer.Option(min=1, help="Rows of the ranking printed.")] = 8,
    check: Annotated[
        bool, typer.Option("--check", help="Run the choice with random values too; exit 1 where anything differs.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the machine, as threads=64 or pes=4."),
    ] = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE", help="FILE.html: a page; FILE.json: all numbers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Rank the ways to make a matrix product by modelled cycles, and say why the first is the fastest."""
    from tilewright.isa import autotune

    if out is not None and out != "-" and not out.endswith((".html", ".json")):
        raise UsageError(f"no writer for {out}", how="FILE.html, FILE.json, or - for JSON")
    given = {"ka": ka, "kb": kb, "transpose_b": transpose_b, "order": order, "columns": columns}
    given |= {"split": split, "segments": segments}
    fixed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    fixed |= {"line": None, "page": None} if plain else {}
    with progress("timing") as bar:
        tuning = autotune(m, n, k, dtype, machine(settings), most=most, within=within, watch=bar, **fixed)
    if out is not None and out.endswith(".html"):
        write_file(out, _page(tuning))
        remark(f"wrote {out}")
    elif out is not None:
        emit_json(tuning.to_dict(), out)
    checked = _checked(tuning) if check else None
    if as_json:
        emit_json({**tuning.to_dict(), "check": checked} if checked else tuning.to_dict())
    elif out != "-":
        _print(tuning, top, settings or [])
        if checked:
            emit_text("checked with values: {cycles:,} cycles {same}, the value {equal}".format(**_said(checked)))
    return 0 if checked is None or (checked["same_cycles"] and checked["value_equals_numpy"]) else 1


def _checked(tuning: Tuning) -> dict[str, Any]:
    """The choice on the machine, values and all."""
    from tilewright.isa import matmul

    p = tuning.problem
    a, b = random_matrix((p.m, p.k), tuning.dtype, 0), random_matrix((p.k, p.n), tuning.dtype, 1)
    result = matmul(a, b, p.config, **tuning.options)
    near = abs(result.cycles - (tuning.best.cycles or 0)) <= (0.02 * result.cycles if tuning.best.scaled else 0)
    found = {"cycles": result.cycles, "same_cycles": near, "scaled": tuning.best.scaled}
    return {**found, "value_equals_numpy": difference_of(result.value, a, b)[0]}


def _said(checked: dict[str, Any]) -> dict[str, Any]:
    same = "within 2 percent" if checked["scaled"] else "as modelled"
    value = "equals numpy's" if checked["value_equals_numpy"] else "DIFFERS from numpy's"
    return {"cycles": checked["cycles"], "same": same if checked["same_cycles"] else "NOT as modelled", "equal": value}


def _name(tuning: Tuning, each: Tuned) -> str:
    return f"{each.choice}  (default)" if each is tuning.default else str(each.choice)


def _row(tuning: Tuning, each: Tuned) -> tuple[object, ...]:
    cycles, default, counts = each.cycles, tuning.default.cycles, each.counts
    beside = cycles / default if cycles and default else None
    name = _name(tuning, each)
    if counts is None or each.stalls is None:
        words = "cannot run" if each.refused else "left out"
        return (name, None, None, None, None, words, None, each.limit, each.bound, None, None, None)
    waiting = each.stalls[each.stall] if each.stall else 0
    found = (name, cycles, beside, each.utilisation, each.math_cycles, each.stall or "nothing", waiting)
    return (*found, each.limit, each.bound, counts.l1_touches, counts.dram_bytes, counts.a_bytes_loaded)


def _shown(tuning: Tuning, top: int) -> list[Tuned]:
    """The first of those that were timed, and the default wherever it stands."""
    first = list(tuning.timed[:top])
    return first if tuning.default in first else [*first, tuning.default]


def _print(tuning: Tuning, top: int, settings: Sequence[str]) -> None:
    from tilewright.render import Column, print_table

    rows = [_row(tuning, each) for each in _shown(tuning, top)]
    columns = [Column(*_HEADINGS[i]) for i in _SHORT]
    print_table(columns, [[row[i] for i in _SHORT] for row in rows])
    emit_text(f"\n{tuning.why}\n{tuning.certainty}")
    emit_text(f"\n{_call(tuning, settings)}")


def _call(tuning: Tuning, settings: Sequence[str]) -> str:
    """The choice as a command."""
    choice, p = tuning.best.choice, tuning.problem
    words = [f"isa matmul --m {p.m} --n {p.n} --k {p.k} --dtype {tuning.dtype} --ka {choice.ka} --kb {choice.kb}"]
    words += ["--transpose-b"] * choice.transpose_b
    words += [f"--order {choice.order}"] * (choice.order != "k_outer")
    shapes = (("line", choice.line), ("page", choice.page))
    words += [f"--{name} {'x'.join(map(str, shape))}" for name, shape in shapes if shape]
    others = (("columns", choice.columns), ("split", choice.split), ("segments", choice.segments))
    words += [f"--{name} {value}" for name, value in others if value]
    return " ".join([*words, *(f"--set {each}" for each in settings)])


def _account(each: Tuned) -> tuple[int, ...]:
    """Every cycle, by what the math unit did."""
    stalls = each.stalls or {}
    waits = stalls["columns of B"], stalls["A"]
    return each.math_cycles, *waits, sum(stalls.values()) - sum(waits)


def _page(tuning: Tuning) -> str:
    from tilewright.render import Bar, Card, Column, Page, bar_chart, cards, paragraph, table

    p, best = tuning.problem, tuning.best
    facts = [("machine", f"{p.config.pes} x {p.config.threads} threads"), ("elements", tuning.dtype)]
    page = Page(f"A matrix product of {p.m} x {p.n} x {p.k}", "by the matrix unit", facts=facts, wide=True)
    figures = [Card("cycles", f"{best.cycles:,}", str(best.choice), "good")]
    figures += [
        Card("beside the default", f"{tuning.speedup:.3g} times fewer", f"{tuning.default.cycles or 0:,} cycles")
    ]
    figures += [Card("utilisation", f"{100 * best.utilisation:.1f}%", "of all threads' multiplications")]
    page.section("choice", "The choice", cards(figures), paragraph(tuning.why), paragraph(tuning.certainty + "."))
    parts = ("multiplying", "waiting for columns of B", "waiting for A", "nothing to do")
    bars = [Bar(_name(tuning, each), _account(each)) for each in _shown(tuning, 12) if each.cycles]
    page.section("account", "What the math unit did", bar_chart(bars, title="Cycles", parts=parts, width=900))
    columns = [Column(*heading) for heading in _HEADINGS]
    caption = (
        "Timed choices first. No run takes fewer cycles than its busiest unit is busy, and so the others are left out."
    )
    page.section(
        "ranking", "Every choice", table(columns, [_row(tuning, each) for each in tuning.ranking], caption=caption)
    )
    page.data("tuning", {"schema_version": 1, **tuning.to_dict()})
    return page.html()


def add_to(group: typer.Typer) -> None:
    """Register the command with its group."""
    group.command("tune")(_tune)

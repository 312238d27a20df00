"""`tilewright isa profile`: which line of a program costs what, and which lines of memory it touches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa.tensors import (
    File,
    Iota,
    Json,
    Settings,
    Tensor,
    Zeros,
    machine,
    print_account,
    remark_errors,
    started,
    tensors,
    watch,
)
from tilewright.cli.streams import emit_json, emit_text, progress, read_text, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.isa import Counts, Heat, MatrixUnitConfig, Profile, ProfileLine, Program
    from tilewright.render import Html, Kind

_HEADINGS: tuple[tuple[str, Kind, str], ...] = (
    ("pc", "number", "Address."),
    ("instruction", "code", "Canonical text, behind its labels."),
    ("times", "count", "Times executed."),
    ("cycles", "count", "Cycles it held the issue queue, by the model: its turn, and what it waited for."),
    ("share", "percent", "Of all cycles."),
    ("steps", "count", "Math issues of mm."),
    ("macs", "count", "Multiplications of an element of A by one of B."),
    ("lines", "count", "Cache lines that mm touched, and ld and st asked for."),
    ("L1 misses", "count", "Lines of mm that were not in L1."),
    ("L2 misses", "count", "Of these, not in L2 either."),
    ("waits for", "text", "Why it held the queue longer than its turn, the longest first."),
)
_PES: tuple[tuple[str, Kind, str], ...] = (
    ("PE", "number", "Processing element."),
    ("executed", "count", "Instructions."),
    ("cycles", "count", "By the model, until it was done."),
    ("multiplying", "count", "Cycles of the math unit."),
    ("macs", "count", "Multiplications."),
    ("lines", "count", "Cache lines that mm touched, and ld and st asked for."),
    ("L1 misses", "count", "Lines of mm that were not in its L1."),
    ("L2 misses", "count", "Of these, not in L2 either: the element that asks first brings a line for all."),
    ("waits for", "text", "What its issue queue waited for, the longest first."),
)
_SUFFIXES = (".svg", ".html", ".json", ".csv")


def _profile(
    file: File,
    tensor: Tensor = None,
    iota: Iota = None,
    zeros: Zeros = None,
    heat: Annotated[
        str | None, typer.Option("--heat", metavar="NAME", help="Draw how often each line of this tensor was accessed.")
    ] = None,
    misses: Annotated[bool, typer.Option("--misses", help="Draw the L1 misses of mm instead of all accesses.")] = False,
    top: Annotated[int, typer.Option(min=0, help="Only so many instructions, the most cycles first; 0: all.")] = 0,
    every_pe: Annotated[
        bool, typer.Option("--every-pe", help="Every processing element (--set pes=N) runs it, not the first alone.")
    ] = False,
    pe: Annotated[
        int | None,
        typer.Option("--pe", min=0, help="With --every-pe: this element's lines and heat, not all together."),
    ] = None,
    settings: Settings = None,
    out: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="FILE.svg: the picture of --heat; FILE.html: all on a page; FILE.json, FILE.csv: all numbers.",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Count a run instruction by instruction: times, cycles and why, lines, misses; draw a tensor's lines."""
    from tilewright.isa import assemble

    _check(out, heat, as_json)
    config = machine(settings)
    if pe is not None and (not every_pe or pe >= config.pes):
        raise UsageError(f"--pe {pe} of {config.pes if every_pe else 1}", how="--every-pe, --set pes=N; count from 0")
    program = assemble(read_text(file), config)
    memory = tensors(tensor or (), iota or (), zeros or ())
    if heat is not None and heat not in memory:
        raise UsageError(f"--heat {heat}: no such tensor", how=f"there are {', '.join(memory) or 'none'}")
    with progress(file) as bar:
        every = _profiled(program, memory, config, every_pe, watch(bar, 0))
    found = every if pe is None or not every.pes else every.pes[pe]
    kind = "misses" if misses else "accesses"
    if out is not None:
        _write(found, out, file, heat, kind)
    if as_json:
        emit_json(found.to_dict() | ({"heat": _heat_value(found.heat(heat))} if heat else {}))
    elif out != "-":
        _print(found, top)
        if heat is not None and out is None:
            _draw(found.heat(heat), kind)
    errors = [error for part in every.pes or (every,) for error in part.result.errors]
    remark_errors(errors)
    return 1 if errors else 0


def _profiled(
    program: Program, memory: dict[str, Any], config: MatrixUnitConfig, every_pe: bool, told: Callable[[Counts], None]
) -> Profile:
    """The run of the first processing element, or of all of them on the same tensors."""
    from tilewright.isa import profile

    if every_pe:
        return profile(started(program, memory, config), watch=told)
    if config.pes > 1:
        remark(f"PE 0 of {config.pes} runs the program, as in isa run; --every-pe starts it on all")
    return profile(program, memory, config, told)


def _check(out: str | None, heat: str | None, as_json: bool) -> None:
    """Refuse what no writer knows before anything runs."""
    if out is not None and out != "-" and not out.endswith(_SUFFIXES):
        raise UsageError(f"no writer for {out}", how="FILE.svg, FILE.html, FILE.json, FILE.csv, or - for CSV")
    if out is not None and out.endswith(".svg") and heat is None:
        raise UsageError("a picture of which tensor?", where="-o", how="--heat NAME")
    if as_json and out == "-":
        raise UsageError("-o - and --json both want stdout", how="write to a file")


def _write(found: Profile, out: str, file: str, heat: str | None, kind: str) -> None:
    if out.endswith(".json"):
        emit_json(found.to_dict() | ({"heat": _heat_value(found.heat(heat))} if heat else {}), out)
    elif out.endswith(".svg"):
        assert heat is not None
        write_file(out, found.heat(heat).to_svg(kind) + "\n")
    elif out.endswith(".html"):
        write_file(out, _page(found, file, (heat,) if heat else found.tensors))
    else:
        write_file(out, found.to_csv())
    if out != "-":
        remark(f"wrote {out}")


def _heat_value(heat: Heat) -> dict[str, Any]:
    """A tensor's lines as JSON has them: those that were accessed, by number."""
    rows = [[n, *row] for n, row in enumerate(heat.lines.tolist()) if any(row)]
    columns = ["line", "touches", "misses", "l2_misses", "loads", "stores"]
    return {"tensor": heat.name, "line": list(heat.layout.line), "columns": columns, "lines": rows}


def _row(found: Profile, line: ProfileLine) -> tuple[object, ...]:
    label = "".join(f"{name}: " for name in line.labels)
    lines = line.counts.l1_touches + line.traffic.load_lines + line.traffic.store_lines
    waits = ", ".join(f"{reason} {n:,}" for reason, n in line.waits.items())
    cycles = found.totals.cycles
    share = line.cycles / cycles if cycles else None
    shown = (line.counts.steps, line.counts.macs, lines, line.counts.l1_misses, line.counts.l2_misses)
    return (line.pc, f"{label}{line.text}", line.executed, line.cycles, share, *(n or None for n in shown), waits)


def _print(found: Profile, top: int) -> None:
    from tilewright.render import Column, print_table

    lines = found.hottest[:top] if top else found.lines
    rows = [_row(found, line) for line in lines]
    print_table([Column(*heading) for heading in _HEADINGS], [*rows, _totals(found)])
    emit_text("")
    if found.pes:
        print_table([Column(*heading) for heading in _PES], [_pe_row(part) for part in found.pes])
        emit_text(f"\n{found.result.cycles:,} cycles until the last of them was done (PE {found.number})")
    of = f" of {len(found.pes)} elements" if found.pes else ""
    print_account(f"the issue queue{of}", found.totals.queue)
    print_account(f"the math unit{of} was idle", found.totals.stalls)


def _pe_row(part: Profile) -> tuple[object, ...]:
    """One processing element's own totals."""
    sums = part.totals
    waits = {reason: n for reason, n in sums.queue.items() if n and reason != "issued"}
    said = ", ".join(f"{reason} {n:,}" for reason, n in sorted(waits.items(), key=lambda row: -row[1]))
    lines = sums.counts.l1_touches + sums.traffic.load_lines + sums.traffic.store_lines
    head = (part.number, sums.executed, part.result.cycles, sums.math_cycles)
    return (*head, sums.counts.macs, lines, sums.counts.l1_misses, sums.counts.l2_misses, said)


def _totals(found: Profile) -> tuple[object, ...]:
    r = found.totals
    lines = r.counts.l1_touches + r.traffic.load_lines + r.traffic.store_lines
    share = 1.0 if r.cycles else None
    head = (None, "the whole run", r.executed, r.cycles, share)
    return (*head, r.counts.steps, r.counts.macs, lines, r.counts.l1_misses, r.counts.l2_misses, "")


def _draw(heat: Heat, kind: str) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    emit_text("")
    console.print(heat.to_text(kind, console.width), soft_wrap=True)


def _unbroken(waits: object) -> str:
    """For the page: a reason and its cycles in one piece."""
    return ", ".join(part.replace(" ", "\u00a0") for part in str(waits).split(", "))


def _narrow(row: tuple[object, ...]) -> tuple[object, ...]:
    """A row for the page: without its share."""
    return (*row[:4], *row[5:-1], _unbroken(row[-1]))


def _narrow_pe(part: Profile) -> tuple[object, ...]:
    *row, waits = _pe_row(part)
    return (*row, _unbroken(waits))


def _chart(found: Profile) -> Html:
    """The longest lines, by what the queue did: the run's two longest waits and the others together."""
    from tilewright.render import Bar, bar_chart

    sums = found.totals
    queue = sums.queue
    first = sorted((reason for reason in queue if reason != "issued"), key=lambda reason: -queue[reason])[:2]
    hot = [line for line in found.hottest if 200 * line.cycles >= sums.cycles][:10]
    bars = []
    for line in hot:
        shown = [line.queue[reason] for reason in ("issued", *first)]
        bars.append(Bar(f"{line.pc}: {line.text}", (*shown, line.cycles - sum(shown))))
    parts = ("issued", *(f"waiting: {reason}" for reason in first), "other waits")
    return bar_chart(bars, title="Cycles of the issue queue", parts=parts, width=900)


def _page(found: Profile, file: str, names: tuple[str, ...]) -> str:
    from tilewright.render import Card, Column, Page, cards, paragraph, table

    r, config = found.totals, found.result.state.config
    facts = [("program", file), ("threads", str(config.threads)), ("instructions", f"{len(found.lines):,}")]
    facts += [("processing elements", str(len(found.pes)))] if found.pes else []
    page = Page("Which line costs what", "a run of the matrix unit, counted", facts=facts, wide=True)
    of = f"cycles of {len(found.pes)} elements" if found.pes else "cycles"
    figures = [Card("cycles", f"{found.result.cycles:,}", "by the model" + ", the last element" * bool(found.pes))]
    figures += [Card("multiplying", f"{r.math_cycles:,}", of)]
    figures += [Card("executed", f"{r.executed:,}", "instructions")]
    missed = f"{r.counts.l1_misses:,} missed L1, {r.counts.l2_misses:,} L2"
    figures += [Card("lines of B", f"{r.counts.l1_touches:,}", missed)]
    page.section("run", "The run", cards(figures), _chart(found))
    if found.pes:
        rows = [_narrow_pe(part) for part in found.pes]
        page.section("pes", "Every processing element", table([Column(*heading) for heading in _PES], rows))
    columns = [Column(*heading) for heading in _HEADINGS if heading[0] != "share"]
    rows = [_narrow(_row(found, line)) for line in found.hottest]
    caption = "The most cycles first; by pc it is the program. Every column adds up to the whole run."
    page.section("lines", "Every instruction", table(columns, rows, caption=caption))
    for number, name in enumerate(names):
        heat = found.heat(name)
        pictures = [heat.drawing().svg()]
        pictures += [heat.drawing("misses").svg()] if heat.totals["misses"] else []
        page.section(f"heat-{number}", f"Lines of {name}", *pictures)
    if not names:
        page.section("heat", "Lines of memory", paragraph("No line of any tensor was accessed."))
    page.data("profile", {"schema_version": 1, **found.to_dict()})
    return page.html()


def add_to(group: typer.Typer) -> None:
    """Register the command with its group."""
    group.command("profile")(_profile)

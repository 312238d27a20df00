"""`tilewright isa step`, `explain` and `profile`: a program one instruction at a time, and which costs what."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

from typer import Argument, Option

from tilewright import isa
from tilewright.cli.isa import machine
from tilewright.cli.options import Files, Json
from tilewright.cli.streams import progress, read_text
from tilewright.errors import UsageError
from tilewright.render import Bar, Card, Html, Page, Step, Table, bar_chart, cards, steps, table
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, remark, show
from tilewright.render.formats import Kind, count_text, percent_text

_LEAVE = ("quit", "q", "exit")


def step(
    file: machine.File,
    tensors: machine.Tensors,
    execute: Annotated[str | None, "-x", "--execute COMMANDS", "Do these, separated by ;, and end."] = None,
    every_pe: machine.EveryPe = False,
    settings: machine.Settings = None,
    as_json: Annotated[bool, "--json", "Print a JSON object a line for every command (-x, or standard input)."] = False,
) -> int:
    """Step through a program: run to a place or a change, set breakpoints, print registers, tokens, pages, tensors.

    Commands come from the terminal, from standard input, or from -x; help lists them. Ctrl-D ends, Ctrl-C interrupts a
    run. From -x and standard input the exit code is 1 if the program was stopped by an error or left error records,
    2 if a command was not understood.
    """
    if file == "-" and execute is None:
        raise UsageError("standard input cannot be the program and the commands", how="give the commands with -x")
    typed = execute is None and sys.stdin.isatty()
    if as_json and typed:
        raise UsageError("--json answers -x or commands on standard input, not a terminal")
    debugger = isa.Debugger(*machine.work(read_text(file), tensors.arrays(), machine.configured(settings), every_pe))
    if typed:
        _read_commands(debugger)
        return 0
    lines, understood = execute.split(";") if execute is not None else sys.stdin, True
    if not as_json:
        show([debugger.where()])
    for line in filter(None, map(str.strip, lines)):
        leaving = line in _LEAVE
        said: dict[str, Any] = {"ok": True, "text": "", "value": None}
        said |= {} if leaving else vars(debugger.answer(line))
        understood &= said["ok"]
        if as_json:
            pe, done = debugger.pe, debugger.done
            at = None if done or pe.halted or pe.barrier is not None else pe.pc
            value = {"schema_version": 1, "command": line, **said, "pe": pe.number, "pc": at}
            value |= {"executed": pe.executed, "cycles": pe.clock.cycles, "done": done, "stopped": debugger.stopped}
            show([json.dumps(value, allow_nan=False)])
        else:
            show([f"> {line}" if leaving else f"> {line}\n{said['text']}"])
        if leaving:
            break
        sys.stdout.flush()  # a program may read the answer before it gives the next command
    records = [record for pe in debugger.runner.pes for record in pe.errors]
    machine.remark_errors(records)
    return 1 if debugger.stopped or records else 0 if understood else 2


def _read_commands(debugger: isa.Debugger) -> None:
    """Read commands from a terminal until it ends, with line editing, history and completion where there is a readline.

    An empty line is a command too. Ctrl-C stops a run between two instructions, never within one; at the prompt the
    line goes.
    """
    from cmd import Cmd

    class Prompt(Cmd):
        prompt = "(isa) "
        asking = True

        def precmd(self, line: str) -> str:
            self.asking = False
            return line.strip()

        def onecmd(self, line: str) -> bool:
            if line not in _LEAVE:
                show(["" if line == "EOF" else debugger.command(line)])
            self.asking = True
            return line in (*_LEAVE, "EOF")

        def completenames(self, text: str, *_: Any) -> list[str]:
            return [word for word in debugger.words if word.startswith(text)]

        completedefault = completenames

    def interrupted(number: int, frame: object) -> None:
        if reader.asking:
            raise KeyboardInterrupt
        debugger.interrupt()

    reader, before = Prompt(), signal.signal(signal.SIGINT, interrupted)
    show([debugger.where()])
    try:
        while True:
            with suppress(KeyboardInterrupt):
                reader.cmdloop()
                return
            show([""])
    finally:
        signal.signal(signal.SIGINT, before)


def explain(
    source: Annotated[str, Argument(metavar="TEXT|FILE[:LINE]", help="An instruction, a program, or a line of one.")],
    segment: Annotated[str | None, "--segment s8[24,200]", "What B of an mm is like, as it is stored."] = None,
    columns: Annotated[int | None, Option(min=1, help="Columns of an mm, as setmm would say.")] = None,
    rows: Annotated[int | None, Option(min=1, help="Rows of an mm, as setmm would say.")] = None,
    *,
    tensors: machine.Tensors,
    settings: machine.Settings = None,
    to: Json,
) -> int:
    """Say what an instruction does: who loads, who multiplies, which registers and lines, what it costs.

    With tensors the program is run, and each instruction is explained as it stands when it is first come to: the
    columns that are on, the lines it touches and misses, what it waits for.
    """
    config = machine.configured(settings)
    text, line = _source(source)
    program = isa.assemble(text, config)
    addresses = _addresses(program, line, source)
    like = None if segment is None else machine.array(segment, "--segment")
    runs = tensors != machine.Tensors()
    if runs and any(option is not None for option in (segment, columns, rows)):
        how = "they say where each instruction stands; leave --segment, --columns and --rows out"
        raise UsageError("tensors, and a place to explain at", how=how)
    reached: dict[int, Any] = {}
    stopped = ""
    if runs:
        debugger = isa.Debugger(program, tensors.arrays(), config)
        with progress("running") as bar:
            reached = debugger.explain_first(addresses, lambda done: bar(done, len(addresses)))
        stopped = debugger.stopped
    values, shown = list[dict[str, Any]](), list[str]()
    for pc in addresses:
        instruction = program.instructions[pc]
        found = reached.get(pc) or isa.explain(instruction, config, like, columns, rows)
        values.append({"pc": pc, "line": instruction.line, "in_a_run": pc in reached, **found.to_dict()})
        address = f"{pc:04d}  " if len(program) > 1 else ""
        never = ["this run never comes to it; in general:"] if runs and pc not in reached else []
        shown.append("\n".join([f"{address}{found.text}", *never, *found.says]))
    deliver(Answer(lambda: {"instructions": values}, lambda: ["\n\n".join(shown)]), to)
    if stopped:
        remark(stopped)
    return 1 if stopped else 0


def _addresses(program: isa.Program, line: int | None, source: str) -> list[int]:
    """The addresses of all instructions, or of those on a line."""
    addresses = [pc for pc, it in enumerate(program.instructions) if line is None or it.line == line]
    if addresses:
        return addresses
    if line is None:
        raise UsageError("no instruction")
    after = next((f"the next is on line {it.line}" for it in program.instructions if it.line > line), "")
    raise UsageError(f"no instruction on line {line}", where=source, how=after)


def _source(source: str) -> tuple[str, int | None]:
    """The program's text and the line asked for: a file, a file and a line, or the text itself."""
    path, _, number = source.rpartition(":")
    line = int(number) if path and re.fullmatch("[0-9]{1,9}", number) else None
    name = source if line is None else path
    if name == "-" or os.path.isfile(name) or name.endswith(".tasm"):
        return read_text(name), line
    return source, None


# Which line of a program costs what, and which lines of memory it touches.


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


def profile(
    file: machine.File,
    tensors: machine.Tensors,
    heat: Annotated[str | None, "--heat NAME", "Draw how often each line of this tensor was accessed."] = None,
    misses: Annotated[bool, "Draw the L1 misses of mm instead of all accesses."] = False,
    top: Annotated[int, Option(min=0, help="Only so many instructions, the most cycles first; 0: all.")] = 0,
    every_pe: machine.EveryPe = False,
    pe: Annotated[int | None, Option(min=0, help="With --every-pe: lines and heat of this one, not of all.")] = None,
    settings: machine.Settings = None,
    *,
    to: Annotated[Output, Files(".csv a line each", ".svg the picture of --heat", ".html", ".json")],
) -> int:
    """Count a run instruction by instruction: times, cycles and why, lines, misses; draw a tensor's lines."""
    if to.suffix == ".svg" and heat is None:
        raise UsageError("a picture of which tensor?", where="-o", how="--heat NAME")
    config = machine.configured(settings)
    if pe is not None and (not every_pe or pe >= config.pes):
        raise UsageError(f"--pe {pe} of {config.pes if every_pe else 1}", how="--every-pe, --set pes=N; count from 0")
    program = isa.assemble(read_text(file), config)
    memory = tensors.arrays(program)
    if heat is not None and heat not in memory:
        raise UsageError(f"unknown tensor {heat!r}", where="--heat", how=f"known: {', '.join(memory) or 'none'}")
    with progress(file) as bar:
        every = isa.profile(*machine.work(program, memory, config, every_pe), watch=machine.watch(bar, 0))
    chosen = every if pe is None or not every.pes else every.pes[pe]
    kind = "misses" if misses else "accesses"
    drawn = heat is not None and to.path is None
    forms: dict[str, Form] = {
        ".csv": chosen.to_csv,
        ".svg": lambda: chosen.heat(heat or "").to_svg(kind) + "\n",
        ".html": lambda: _page(chosen, file, (heat,) if heat else chosen.tensors),
    }

    def lines() -> Iterator[Line]:
        yield from _lines(chosen, top)
        if drawn:
            yield from ("", lambda width: chosen.heat(heat or "").to_text(kind, width))

    deliver(Answer(lambda: _value(chosen, heat), lines), to, forms)
    errors = [error for part in every.pes or (every,) for error in part.result.errors]
    machine.remark_errors(errors)
    return 1 if errors else 0


def _value(profile: Any, tensor: str | None) -> dict[str, Any]:
    """All numbers; of the tensor those lines that were accessed, by number."""
    value: dict[str, Any] = profile.to_dict()
    if tensor is None:
        return value
    heat = profile.heat(tensor)
    rows = [[n, *row] for n, row in enumerate(heat.lines.tolist()) if any(row)]
    columns = ["line", "touches", "misses", "l2_misses", "loads", "stores"]
    lines = {"tensor": heat.name, "line": list(heat.layout.line), "columns": columns, "lines": rows}
    return value | {"heat": lines}


def _lines(profile: Any, top: int) -> Iterator[Line]:
    """The ``top`` instructions (0: all), the processing elements, and what they waited for."""
    shown = profile.hottest[:top] if top else profile.lines
    yield from (Table(_HEADINGS, [_row(profile, each) for each in (*shown, profile.totals)]), "")
    if profile.pes:
        yield machine.pes_table(part.result for part in profile.pes)
        yield f"\n{profile.result.cycles:,} cycles until the last of them was done (PE {profile.number})"
    of = f" of {len(profile.pes)} elements" if profile.pes else ""
    yield f"the issue queue{of}: {machine.longest(profile.totals.queue) or 'never'}"
    yield f"the math unit{of} was idle: {machine.longest(profile.totals.stalls) or 'never'}"


def _row(profile: Any, of: Any) -> tuple[object, ...]:
    """The row of a line, or of the totals."""
    label, text = "".join(f"{name}: " for name in getattr(of, "labels", ())), getattr(of, "text", "the whole run")
    waits = machine.longest(getattr(of, "waits", {}))
    share = of.cycles / profile.totals.cycles if profile.totals.cycles else None
    shown = (of.counts.steps, of.counts.macs, machine.lines_of(of), of.counts.l1_misses, of.counts.l2_misses)
    head = (pc := getattr(of, "pc", None), f"{label}{text}", of.executed, of.cycles, share)
    return (*head, *(n or (0 if pc is None else None) for n in shown), waits)


def _on_page(row: Sequence[object]) -> tuple[object, ...]:
    """A row for the page: every reason to wait stays in one piece with its cycles."""
    return (*row[:-1], ", ".join(part.replace(" ", "\u00a0") for part in str(row[-1]).split(", ")))


def _chart(profile: Any) -> Html:
    """The longest lines, by what the queue did: the run's two longest waits and the others together."""
    sums = profile.totals
    queue = sums.queue
    first = sorted((reason for reason in queue if reason != "issued"), key=lambda reason: -queue[reason])[:2]
    hot = [line for line in profile.hottest if 200 * line.cycles >= sums.cycles][:10]
    bars = []
    for line in hot:
        shown = [line.queue[reason] for reason in ("issued", *first)]
        bars.append(Bar(f"{line.pc}: {line.text}", (*shown, line.cycles - sum(shown))))
    parts = ("issued", *(f"waiting: {reason}" for reason in first), "other waits")
    return bar_chart(bars, title="Cycles of the issue queue", parts=parts, width=900)


def _hottest(profile: Any) -> Iterator[Step]:
    """The lines that take most cycles, each with what it waits for."""
    for line in profile.hottest[:3]:
        waits = machine.longest(line.waits, 3)
        worth = f"{count_text(line.cycles)} cycles ({percent_text(line.cycles / (profile.totals.cycles or 1))})"
        yield Step(f"Line {line.pc}: {line.text}", why=f"waits: {waits}" if waits else "", worth=worth)


def _page(profile: Any, file: str, names: tuple[str, ...]) -> str:
    r, config = profile.totals, profile.result.state.config
    facts = [("program", file), ("threads", str(config.threads)), ("instructions", f"{len(profile.lines):,}")]
    facts += [("processing elements", str(len(profile.pes)))] if profile.pes else []
    page = Page("Which line costs what", "a run of the matrix unit, counted", facts=facts, wide=True)
    of = f"cycles of {len(profile.pes)} elements" if profile.pes else "cycles"
    missed = f"{r.counts.l1_misses:,} missed L1, {r.counts.l2_misses:,} L2"
    figures = [
        Card("cycles", f"{profile.result.cycles:,}", "by the model" + ", the last element" * bool(profile.pes)),
        Card("multiplying", f"{r.math_cycles:,}", of),
        Card("executed", f"{r.executed:,}", "instructions"),
        Card("lines of B", f"{r.counts.l1_touches:,}", missed),
    ]
    page.section("look", "What to look at", steps(_hottest(profile)))
    page.section("run", "The run", cards(figures), _chart(profile))
    if profile.pes:
        pes = machine.pes_table(part.result for part in profile.pes)
        page.section("pes", "Every processing element", table(pes.columns, map(_on_page, pes.rows)))
    columns = [heading for heading in _HEADINGS if heading[0] != "share"]
    rows = [_on_page((*row[:4], *row[5:])) for row in (_row(profile, line) for line in profile.hottest)]
    caption = "The most cycles first; by pc it is the program. Every column adds up to the whole run."
    page.section("lines", "Every instruction", table(columns, rows, caption=caption))
    for number, name in enumerate(names):
        heat = profile.heat(name)
        pictures = [heat.drawing(kind).svg() for kind in ("accesses", *["misses"] * bool(heat.totals["misses"]))]
        page.section(f"heat-{number}", f"Lines of {name}", *pictures)
    if not names:
        page.section("heat", "Lines of memory", "No line of any tensor was accessed.")
    page.data("profile", {"schema_version": 1, **profile.to_dict()})
    return page.html()

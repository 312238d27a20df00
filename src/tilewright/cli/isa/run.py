"""`tilewright isa asm`, `run`, `compile`, `reference` and `claims`: programs assembled, compiled, run, looked up."""

from __future__ import annotations

import shlex
import zipfile
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from typer import Argument

from tilewright import isa, trace
from tilewright.cli.isa import machine
from tilewright.cli.programs.program import ArgOption, load_program
from tilewright.cli.streams import Json, npy_bytes, progress, read_text
from tilewright.errors import UsageError
from tilewright.render.delivery import Answer, Line, Output, deliver, remark, show, write_file
from tilewright.render.formats import finite
from tilewright.render.tables import Table


def asm(
    file: machine.File,
    settings: machine.Settings = None,
    out: Annotated[str | None, "-o", "--out FILE.tasm", "Write the canonical text; - is stdout."] = None,
    as_json: Json = False,
) -> None:
    """Assemble a program and print it in canonical form, each instruction with its address."""
    where = Output(out, as_json, ".tasm")
    program = isa.assemble(read_text(file), machine.configured(settings))
    rows = [
        {"pc": pc, "text": str(it), "name": it.name, "unit": it.spec.unit, "line": it.line}
        for pc, it in enumerate(program.instructions)
    ]
    value = {"instructions": rows, "labels": dict(program.labels)}
    deliver(Answer(lambda: value, lambda: [program.listing()]), where, {".tasm": lambda: f"{program}\n"}, said=())


def run(
    file: machine.File,
    tensors: machine.Tensors,
    save: Annotated[list[str] | None, "--save NAME=FILE.npy", "Write a tensor after the run."] = None,
    every_pe: machine.EveryPe = False,
    settings: machine.Settings = None,
    out: Annotated[str | None, "-o", "--out FILE.pftrace", "Write a timeline for Perfetto."] = None,
    as_json: Json = False,
) -> int:
    """Run a program; print counts, cycles, errors, and the tensors that began as zeros.

    FILE may be a model that `isa compile -o FILE.bundle` wrote: --tensor 0=FILE.npy gives its first argument.
    """
    if file != "-" and zipfile.is_zipfile(file):
        return _run_bundle(file, tensors.tensor, save, as_json)
    where = Output(out, as_json, ".pftrace", stdout=False)
    config = machine.configured(settings)
    program = isa.assemble(read_text(file), config)
    memory = tensors.arrays(program)
    if config.pes > 1 and not every_pe:
        remark(f"PE 0 of {config.pes} runs the program; --every-pe starts it on all")
    traced = out is not None
    with progress(file) as bar:
        if every_pe:
            runs = machine.started(program, memory, config, trace=traced).run(machine.watch(bar, 0))
        else:
            runs = [isa.MatrixUnit(config).run(program, memory, trace=traced, watch=machine.watch(bar, 0))]
    for assignment in save or ():
        name, path = machine.pair(assignment, "--save", "FILE.npy")
        write_file(path, npy_bytes(runs[0].tensor(name)), note=None)
    shown = [machine.pair(shape, "--zeros", "")[0] for shape in tensors.zeros or ()]
    events = isa.timeline(runs) if traced else ()
    forms = {".pftrace": lambda: trace.perfetto_bytes(events)}
    deliver(_run_answer(runs, shown), where, forms, wrote=machine.timeline_text(events))
    errors = [error for run in runs for error in run.errors]
    machine.remark_errors(errors)
    return 1 if errors else 0


def _run_bundle(file: str, tensor: list[str] | None, save: Sequence[str] | None, as_json: bool) -> int:
    """A compiled model, with the arguments it was written with or others."""
    given = machine.Tensors(tensor).arrays()
    if unknown := next((name for name in given if not name.isdecimal()), None):
        raise UsageError(f"no argument called {unknown}", how="--tensor 0=FILE.npy is the first, 1 the second")
    results, report = isa.load_bundle(file).run({int(name): array for name, array in given.items()})
    for assignment in save or ():
        name, path = machine.pair(assignment, "--save", "FILE.npy")
        if not name.isdecimal() or int(name) >= len(results):
            raise UsageError(f"no result {name}", how=f"0 to {len(results) - 1}")
        write_file(path, npy_bytes(results[int(name)]), note=None)
    deliver(Answer(report.to_json, lambda: _layers_lines(report)), Output(as_json=as_json))
    return 0


def _layers_lines(report: isa.MachineReport) -> Iterator[Line]:
    yield from (Table(*report.table()), f"\n{report}")


def _run_answer(runs: Sequence[isa.RunResult], shown: Sequence[str]) -> Answer:
    """Counts of all processing elements together, cycles and accounts of the one done last."""
    last = max(runs, key=lambda run: run.cycles)
    moved, energy_pj = last.moved.together(run.moved for run in runs).bytes, sum(run.energy_pj for run in runs)
    utilisation = sum(run.math_utilisation * run.cycles for run in runs) / max(1, last.cycles * len(runs))
    counts, executed = last.counts.together(run.counts for run in runs).to_dict(), sum(run.executed for run in runs)

    def to_json() -> dict[str, Any]:
        value: dict[str, Any] = {"counts": counts, "cycles": last.cycles, "math_cycles": last.math_cycles}
        value |= {"bytes": moved, "energy_pj": energy_pj, "math_utilisation": utilisation, "executed": executed}
        value |= {"stalls": last.stalls, "queue": last.queue}
        value |= {"traffic": last.traffic.together(run.traffic for run in runs).to_dict()}
        keys = ("pc", "kind", "column", "register", "pe")
        value |= {"errors": [{key: getattr(e, key) for key in keys} for run in runs for e in run.errors]}
        tensors = {name: finite(last.tensor(name)) for name in shown}
        return value | {"tensors": tensors, "pes": machine.pes_value(runs) if len(runs) > 1 else []}

    def lines() -> Iterator[Line]:
        yield from (f"{name} =\n{last.tensor(name)}\n" for name in shown)
        if len(runs) > 1:
            yield from (Table(machine.PES, map(machine.pe_row, runs)), "")
        yield f"{executed:,} instructions executed, {last.cycles:,} cycles by the model"
        yield from (f"{key:20} {count:,}" for key, count in counts.items() if count)
        yield machine.account_text("the math unit was idle", last.stalls)
        yield machine.account_text("the issue queue", last.queue)
        yield from machine.moved_lines(moved, energy_pj, utilisation)

    return Answer(to_json, lines)


def reference() -> None:
    """Print the instruction reference (Markdown)."""
    show([isa.reference()])


def claims(as_json: Json = False) -> None:
    """Count what the instruction's source claims, where it holds and where it does not."""
    rows = isa.claims()
    keys = ["claim", "case", "counted", "without", "with", "factor", "holds", "remark"]
    keys += ["cycles", "times_faster", "confirmed", "why"]
    values = [{key: getattr(row, "with_it" if key == "with" else key) for key in keys} for row in rows]

    def lines() -> Iterator[Line]:
        title = ""
        for row in rows:
            if row.claim != title:
                yield "\n" * bool(title) + row.claim
                title = row.claim
            yield f"  {row.case}"
            numbers = f"{row.without:,} -> {row.with_it:,} {row.counted}, {row.factor:.4g} times"
            yield f"    {numbers}: {row.remark}"
            if row.cycles:
                why = f": {row.why}" * bool(row.why)
                word = " (not confirmed)" * (row.holds and not row.confirmed)
                yield f"    {row.cycles[0]:,} -> {row.cycles[1]:,} cycles, {row.times_faster:.4g} times{word}{why}"

    deliver(Answer(lambda: {"claims": values}, lines), Output(as_json=as_json))


def compile(
    program: Annotated[
        str, Argument(metavar="PROGRAM", help="model.py:function, or StableHLO in any form; - is stdin.")
    ],
    arg: ArgOption = None,
    run: Annotated[bool, "Run it with its example arguments and hold every layer against XLA."] = False,
    listing: Annotated[bool, "Print every layer's tables and programs."] = False,
    settings: machine.Settings = None,
    out: Annotated[
        str | None,
        "-o",
        "--out FILE",
        "FILE.html: a page; FILE.json; FILE.tasm: the listing; FILE.bundle: for `isa run`.",
    ] = None,
    as_json: Json = False,
) -> int:
    """Compile a model for the matrix unit: every layer with its cycles, bytes, and why it is not on the machine."""
    where = Output(out, as_json, ".html", ".json", ".tasm", ".bundle")
    compiled = isa.compile(load_program(program, arg), config=machine.configured(settings, kb_mode="chunk"))
    if where.path is not None and where.suffix == ".bundle":
        compiled.save(where.path)
        remark(f"wrote {out}")
        where = Output(as_json=as_json)
    with progress(program) as bar:
        report = compiled.check(watch=bar) if run else compiled.estimate(bar)

    def lines() -> Iterator[Line]:
        if listing:
            yield compiled.listing
            return
        yield from _layers_lines(report)
        if run:
            yield "every layer's values are XLA's"

    more = [
        word for flag, values in (("-a", arg), ("--set", settings)) for value in values or () for word in (flag, value)
    ]
    command = "" if program == "-" else shlex.join(["tilewright", "isa", "compile", program, *more])
    forms = {".html": lambda: f"{report.to_html(command)}\n", ".tasm": lambda: f"{compiled.listing}\n"}
    deliver(Answer(report.to_json, lines), where, forms)
    return 0

"""`tilewright isa asm`, `run`, `reference` and `claims`: assemble programs, run them, look things up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa import machine
from tilewright.cli.streams import (
    Json,
    emit_json,
    emit_text,
    npy_bytes,
    progress,
    read_text,
    remark,
    write_file,
    writer_of,
)
from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from tilewright.isa import RunResult


def asm(
    file: machine.File,
    settings: machine.Settings = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE.tasm", help="Write the canonical text; - is stdout.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Assemble a program and print it in canonical form, each instruction with its address."""
    from tilewright.isa import assemble

    writer_of(out, ".tasm")
    program = assemble(read_text(file), machine.configured(settings))
    if out is not None:
        write_file(out, str(program) + "\n")
        return
    if as_json:
        rows = [
            {"pc": pc, "text": str(it), "name": it.name, "unit": it.spec.unit, "line": it.line}
            for pc, it in enumerate(program.instructions)
        ]
        emit_json({"instructions": rows, "labels": dict(program.labels)})
        return
    emit_text(program.listing())


def run(
    file: machine.File,
    tensor: machine.Tensor = None,
    iota: machine.Iota = None,
    zeros: machine.Zeros = None,
    save: Annotated[
        list[str] | None, typer.Option("--save", metavar="NAME=FILE.npy", help="Write a tensor after the run.")
    ] = None,
    every_pe: machine.EveryPe = False,
    settings: machine.Settings = None,
    out: Annotated[
        str | None, typer.Option("-o", "--out", metavar="FILE.pftrace", help="Write a timeline for Perfetto.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Run a program; print counts, cycles, errors, and the tensors that began as zeros.

    FILE may be a model that `isa compile -o FILE.bundle` wrote: --tensor 0=FILE.npy gives its first argument.
    """
    from tilewright.isa import MatrixUnit, assemble, is_bundle, timeline

    if is_bundle(file):
        return _run_bundle(file, tensor, save, as_json)
    writer_of(out, ".pftrace", stdout=False)
    config = machine.configured(settings)
    program = assemble(read_text(file), config)
    memory = machine.tensors(tensor, iota, zeros)
    machine.check_named(program, memory)
    if config.pes > 1 and not every_pe:
        remark(f"PE 0 of {config.pes} runs the program; --every-pe starts it on all")
    with progress(file) as bar:
        if every_pe:
            runs = machine.started(program, memory, config, trace=out is not None).run(machine.watch(bar, 0))
        else:
            runs = [MatrixUnit(config).run(program, memory, trace=out is not None, watch=machine.watch(bar, 0))]
    for assignment in save or ():
        name, path = machine.pair(assignment, "--save", "FILE.npy")
        write_file(path, npy_bytes(runs[0].tensor(name)))
    shown = [machine.pair(shape, "--zeros", "")[0] for shape in zeros or ()]
    _print_run(runs, shown, as_json)
    if out is not None:
        machine.write_timeline(out, timeline(runs))
    errors = [error for run in runs for error in run.errors]
    machine.remark_errors(errors)
    return 1 if errors else 0


def _run_bundle(file: str, tensor: Sequence[str] | None, save: Sequence[str] | None, as_json: bool) -> int:
    """A compiled model, with the arguments it was written with or others."""
    from tilewright.isa import load_bundle
    from tilewright.render import print_table

    given = machine.tensors(tensor)
    if unknown := next((name for name in given if not name.isdecimal()), None):
        raise UsageError(f"no argument called {unknown}", how="--tensor 0=FILE.npy is the first, 1 the second")
    results, report = load_bundle(file).run({int(name): array for name, array in given.items()})
    for assignment in save or ():
        name, path = machine.pair(assignment, "--save", "FILE.npy")
        if not name.isdecimal() or int(name) >= len(results):
            raise UsageError(f"no result {name}", how=f"0 to {len(results) - 1}")
        write_file(path, npy_bytes(results[int(name)]))
    if as_json:
        emit_json(report.to_json())
    else:
        print_table(*report.table())
        emit_text(f"\n{report}")
    return 0


def _print_run(runs: Sequence[RunResult], shown: Sequence[str], as_json: bool) -> None:
    """Counts of all processing elements together, cycles and accounts of the one done last."""
    from tilewright.isa import Counts, Moved, Traffic

    last = max(runs, key=lambda run: run.cycles)
    moved, energy_pj = Moved.together(run.moved for run in runs).bytes, sum(run.energy_pj for run in runs)
    utilisation = sum(run.math_utilisation * run.cycles for run in runs) / max(1, last.cycles * len(runs))
    counts, executed = Counts.together(run.counts for run in runs), sum(run.executed for run in runs)
    if as_json:
        records = [
            {"pc": e.pc, "kind": e.kind, "column": e.column, "register": e.register, "pe": e.pe}
            for run in runs
            for e in run.errors
        ]
        value = {"counts": counts.to_dict(), "cycles": last.cycles, "math_cycles": last.math_cycles}
        value |= {"bytes": moved, "energy_pj": energy_pj, "math_utilisation": utilisation}
        emit_json(
            {
                **value,
                "executed": executed,
                "stalls": last.stalls,
                "queue": last.queue,
                "traffic": Traffic.together(run.traffic for run in runs).to_dict(),
                "errors": records,
                "tensors": {name: _plain(last.tensor(name)) for name in shown},
                "pes": machine.pes_value(runs) if len(runs) > 1 else [],
            }
        )
        return
    for name in shown:
        emit_text(f"{name} =\n{last.tensor(name)}\n")
    if len(runs) > 1:
        machine.print_pes(runs)
    emit_text(f"{executed:,} instructions executed, {last.cycles:,} cycles by the model")
    for key, count in counts.to_dict().items():
        if count:
            emit_text(f"{key:20} {count:,}")
    machine.print_account("the math unit was idle", last.stalls)
    machine.print_account("the issue queue", last.queue)
    machine.print_moved(moved, energy_pj, utilisation)


def _plain(array: np.ndarray[Any, Any]) -> Any:
    """Nested lists of numbers; None for what JSON has no number for."""
    import numpy as np

    if array.dtype.kind in "iu":
        return array.tolist()
    plain = array.astype(np.float64).astype(object)
    plain[~np.isfinite(array.astype(np.float64))] = None
    return plain.tolist()


def reference() -> None:
    """Print the instruction reference (Markdown)."""
    from tilewright.isa import reference as reference_text

    emit_text(reference_text())


def claims(as_json: Json = False) -> None:
    """Count what the instruction's source claims, where it holds and where it does not."""
    from tilewright.isa import claims as count_claims

    rows = count_claims()
    if as_json:
        table = [
            {"claim": r.claim, "case": r.case, "counted": r.counted, "without": r.without, "with": r.with_it}
            | {"factor": r.factor, "holds": r.holds, "remark": r.remark}
            | {"cycles": r.cycles, "times_faster": r.times_faster, "confirmed": r.confirmed, "why": r.why}
            for r in rows
        ]
        emit_json({"claims": table})
        return
    title = ""
    for row in rows:
        if row.claim != title:
            emit_text(f"{chr(10) * bool(title)}{row.claim}")
            title = row.claim
        emit_text(f"  {row.case}")
        numbers = f"{row.without:,} -> {row.with_it:,} {row.counted}, {row.factor:.4g} times"
        emit_text(f"    {numbers}: {row.remark}")
        if row.cycles:
            why = f": {row.why}" * bool(row.why)
            word = " (not confirmed)" * (row.holds and not row.confirmed)
            emit_text(f"    {row.cycles[0]:,} -> {row.cycles[1]:,} cycles, {row.times_faster:.4g} times{word}{why}")

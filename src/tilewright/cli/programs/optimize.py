"""`tilewright optimize` rewrites a StableHLO program where it pays on a target; `verify` compares two on values."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from tilewright import hlo, targets
from tilewright.child import half_of_memory
from tilewright.cli.options import Files, Json, this_command
from tilewright.cli.programs.program import PROGRAM_HELP, ArgOption, ModuleOption, load_program
from tilewright.cli.programs.report import make_report
from tilewright.cli.streams import progress
from tilewright.errors import CheckFailed, TilewrightError, UnsupportedError, UsageError
from tilewright.extras import need
from tilewright.files import making_folder, write_whole
from tilewright.render import bytes_text
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, remark, write_file
from tilewright.render.formats import counted
from tilewright.render.tables import Heading, Table

_WITHIN = Option(min=1, help="Seconds for all trials of a proof: no other begins that would take longer.")
_MEMORY = Option(min=1, help="GiB that running the programs may take; default: half of what is free.")


def optimize(
    program: Annotated[str | None, Argument(help=PROGRAM_HELP)] = None,
    target: Annotated[str | None, "--target", "-t", "The chip whose layouts decide."] = None,
    diff: Annotated[bool, "Print what changed, and which passes changed nothing."] = False,
    explain: Annotated[bool, "Print every verdict, with its reason."] = False,
    bit_exact: Annotated[bool, "Keep to rewrites that give the same bits (no float sums taken apart)."] = False,
    products: Annotated[bool, "Take products of reals apart too, which may overflow where they did not."] = False,
    verify: Annotated[bool, "Run both programs on random inputs; exit 1 if they differ."] = False,
    within: Annotated[int, _WITHIN] = 60,
    memory: Annotated[int | None, _MEMORY] = None,
    passes: Annotated[
        str | None,
        "The rewrites to use, such as 'inline,reduce-of-reshape{allow_reassociation=false}'. Without --target "
        "they run on the whole program, without any gate.",
    ] = None,
    print_after_all: Annotated[bool, "Print the program after every pass: to stderr, or into -o FOLDER/."] = False,
    rules: Annotated[str | None, "The rules that may act, separated by commas; 'none' for none. Default: all."] = None,
    assume_finite: Annotated[bool, "No value is NaN or infinite: rules that would spread one may act."] = False,
    judge: Annotated[str | None, "Compile both programs for a TPU by libtpu, keep what wins: tpu:v5e."] = None,
    list_rules: Annotated[bool, "Print the rules there are, with guard and confirmed factors."] = False,
    list_all: Annotated[bool, "--list-passes", "Print the rewrites there are, with their options."] = False,
    arg: ArgOption = None,
    module: ModuleOption = None,
    *,
    to: Annotated[Output, Files(" the result; a folder with --print-after-all", ".html changes before and after")],
) -> None:
    """Cut the data a program moves for layout's sake, where the modelled cost on the target falls."""
    if list_all or list_rules:
        deliver(_passes_listed() if list_all else _rules_listed(), Output(as_json=to.as_json))
        return
    if program is None:
        raise UsageError("no program given", how="name a StableHLO file, model.py:function, or - for stdin")
    need("jax", "jaxlib", what="`optimize`")
    folder = to.path if to.path and (to.path.endswith("/") or Path(to.path).is_dir()) else None
    if folder is not None:
        if not print_after_all:
            raise UsageError("it is a folder", where=folder, how="name a file, or add --print-after-all")
        to = Output(as_json=to.as_json)
    if passes is not None and (bit_exact or products):
        flag, text = ("--bit-exact", "reassociation=false") if bit_exact else ("--products", "products=true")
        raise UsageError(f"{flag} and --passes do not go together", how=f"write reduce-of-reshape{{allow_{text}}}")
    if bit_exact and products:
        raise UsageError("--bit-exact and --products do not go together", how="leave one of them out")
    if passes is not None and target is None:
        loaded = load_program(program, arg, module)
        if loaded.kind != "stablehlo":
            raise UnsupportedError("rewrites work on StableHLO, and this is HLO text", where=program)
        _run_passes(loaded.text, passes, folder, to, diff, print_after_all)
        return
    if target is None:
        raise UsageError("no target given", where=program, how="add --target, such as --target vector8x128")
    chip = targets.target(target)  # before the program is loaded for it
    named = None if rules is None else [name for name in map(str.strip, rules.split(",")) if name not in ("", "none")]
    optimized = hlo.optimize(
        load_program(program, arg, module),
        chip,
        allow_reassociation=not bit_exact,
        passes=passes,
        rules=named,
        judge=judge,
        assume_finite=assume_finite,
        regions=to.suffix == ".html",
        allow_products=products,
    )
    if print_after_all and to.suffix != ".html":
        _print_after(_stages(optimized), folder)
    forms: dict[str, Form] = {
        "": lambda: optimized.text.removesuffix("\n") + "\n",
        ".html": lambda: optimized.to_html(this_command()),
    }

    def left() -> hlo.MovementReport:
        """What only the user can change, which is priced by time."""
        found = make_report(optimized.program, chip, program)
        return found if found.time is not None else replace(found, suggestions=())

    def plain() -> dict[str, Any]:
        return optimized.to_json() | {"changes": left().to_json()["suggestions"]}

    deliver(Answer(plain, lambda: _lines(optimized, diff, explain, left)), to, forms)
    if optimized.target.compiler_normalizes:
        remark(
            f"note: XLA:TPU performs these rewrites itself, so on {optimized.target.name} a gain is claimed only where "
            "it remains after normalising both programs"
        )
    if verify:
        sides = optimized.original, optimized.program
        options: dict[str, Any] = {"bit_exact": bit_exact, "assume_finite": assume_finite, "within": within}
        options |= _limits(sides[0], memory)
        with progress("verify") as advance:
            proof = hlo.verify(*sides, advance=advance, **options)
        if not proof.ok:
            raise CheckFailed(f"the rewritten program differs: {proof.reason}")
        remark(f"verified on random inputs: {proof}")


def _lines(
    optimized: hlo.Optimized, diff: bool, explain: bool, left: Callable[[], hlo.MovementReport]
) -> Iterator[Line]:
    if explain or not diff:
        yield optimized.explain()
    if diff and not optimized.rewrites:
        yield "no change"
    elif diff:
        width = max(map(len, optimized.changes), default=0)
        yield from (f"# {name:{width}}  {_count(count)}" for name, count in optimized.changes.items())
        yield optimized.diff()
    if explain or not diff:
        yield from left().change_lines()


def _passes_listed() -> Answer:
    """Every rewrite with its options, and the default pipeline."""
    found = [(name, rewrite.summary, rewrite.options()) for name, rewrite in hlo.REWRITES.items()]
    passes = [{"name": name, "summary": text, "options": list(map(vars, options))} for name, text, options in found]
    rows = [(name, text, [f"{o.name}={o.default}  {o.summary} ({o.kind})" for o in of]) for name, text, of in found]
    below = "\nby default all of them, in this order, until none changes anything:", hlo.DEFAULT_PIPELINE
    return Answer(lambda: {"passes": passes, "default": hlo.DEFAULT_PIPELINE}, lambda: [*_listed(rows), *below])


def _rules_listed() -> Answer:
    """Every rule with its guard, and what confirmed its gain."""
    rows, rules = list[tuple[str, str, list[str]]](), hlo.list_rules()
    for rule in rules:
        factors = ", ".join(f"{chip} {figure['factor']:.3g}x" for chip, figure in rule["confirmed"].items())
        below = f"{rule['phase']}; guard: {rule['guard']}; {factors or 'not confirmed yet'}"
        rows.append((rule["name"], rule["summary"], [below]))
    return Answer(lambda: {"rules": rules}, lambda: _listed(rows))


def _listed(rows: Sequence[tuple[str, str, Sequence[str]]]) -> Iterator[Line]:
    """Names, each with what it is, and more of it below."""
    width = max(len(name) for name, *_ in rows)
    for name, summary, below in rows:
        yield f"{name:{width}}  {summary}"
        yield from (f"{'':{width}}    {text}" for text in below)


def _run_passes(text: str, passes: str, folder: str | None, to: Output, diff: bool, print_after_all: bool) -> None:
    """Run a pipeline without any gate; the result goes to ``to``, what each pass did to stdout, stderr or a folder."""
    steps = hlo.parse_pipeline(passes)
    pipeline = ",".join(map(str, steps))
    if not (diff or print_after_all or to.as_json or to.suffix):
        result, counts = hlo.run_pipeline(text, steps)
        write_file(to.path or "-", result)
        for step in steps:
            remark(f"{step}: {counts[step.name]} changes")
        return
    runs = hlo.record_passes(text, steps)
    if print_after_all and not to.suffix:
        _print_after(runs, folder)

    def to_json() -> dict[str, Any]:
        rows = [{"pass": run.step, "round": run.round, "changes": run.changes, "diff": run.diff()} for run in runs]
        return {"pipeline": pipeline, "passes": rows}

    def lines() -> Iterator[Line]:
        """What each pass changed, one diff after the other; those that changed nothing are marked."""
        for run in runs if diff and not to.suffix else ():
            yield from (f"# {_heading(run)}", *[run.diff()] * bool(run.changes))

    forms: dict[str, Form] = {"": lambda: runs[-1].after, ".html": lambda: hlo.passes_html(pipeline, runs)}
    deliver(Answer(to_json, lines), to, forms)


def _print_after(runs: Sequence[hlo.PassRun], into: str | None) -> None:
    """The program after every pass that changed it: a file each in a folder, else on stderr."""
    if into is None:
        for run in runs:
            remark(f"// ----- after {_heading(run)}")
            if run.changes:
                remark(run.after)
        return
    folder = Path(into)
    with making_folder(folder):
        for number, run in enumerate(runs, 1):
            if run.changes:
                name = "regions" if " " in run.step else run.step.partition("{")[0]
                write_whole(folder / f"{number:02d}-{name}.mlir", run.after)
        write_whole(folder / "result.mlir", runs[-1].after)
    remark(f"wrote {sum(run.changes > 0 for run in runs) + 1} files to {folder}")


def _stages(optimized: hlo.Optimized) -> list[hlo.PassRun]:
    """A gated run: the passes work on copies of regions, so there is the program with calls inlined, and the result."""
    inlined = hlo.record_passes(optimized.original.text, hlo.parse_pipeline("inline"))[0]
    result = hlo.run_pipeline(optimized.text, ())[0]
    fired = {name: count for name, count in optimized.changes.items() if count and name != "inline"}
    step = f"the accepted regions ({', '.join(fired) or 'none'})"
    return [inlined, hlo.PassRun(step, 1, sum(fired.values()), inlined.after, result)]


def _heading(run: hlo.PassRun) -> str:
    return f"round {run.round}, {run.step}: {_count(run.changes)}"


def _count(changes: int) -> str:
    return counted(changes, "change") if changes else "unchanged"


_WHAT = "StableHLO text, bytecode or a portable artifact, packed (.gz, .xz) or not, or model.py:function."


def verify(
    original: Annotated[str, Argument(metavar="A", help=f"The original: {_WHAT}")],
    rewritten: Annotated[str, Argument(metavar="B", help="What shall stand for it.")],
    seeds: Annotated[int, Option(min=1, help="Try each kind of inputs this many times.")] = 1,
    inputs: Annotated[list[str] | None, "Only normal, wide, zeros, denormal, large, lowest or special ones."] = None,
    bit_exact: Annotated[bool, "The bits must be equal, not only the values."] = False,
    assume_finite: Annotated[bool, "Leave out inputs with a NaN or infinity, as `optimize --assume-finite`."] = False,
    eager: Annotated[bool, "--eager/--no-eager", "Also run both one operation at a time."] = True,
    save: Annotated[str | None, "Write the inputs that show the worst case: a .npz file."] = None,
    tpu: Annotated[str | None, "Also compile both for a TPU such as v5e, and compare cycles (needs jax[tpu])."] = None,
    timeout: Annotated[int, Option(min=1, help="Seconds that a trial, and the TPU compiler, may take.")] = 300,
    within: Annotated[int, _WITHIN] = 60,
    memory: Annotated[int | None, _MEMORY] = None,
    arg: ArgOption = None,
    *,
    to: Json,
) -> None:
    """Compare two programs on values: exit 0 where they agree, 1 where they differ."""
    if save and not save.endswith(".npz"):
        raise UsageError("inputs are written as .npz", where=save)
    need("jax", "jaxlib", what="`verify`")
    given = {source: arg if ".py" in source or ":" in source else None for source in (original, rewritten)}
    before, after = (load_program(source, given[source]) for source in (original, rewritten))
    # First: the TPU compiler may not be installed.
    compiled = hlo.compare_on_tpu(before, after, tpu, timeout=timeout) if tpu else None
    options: dict[str, Any] = {"bit_exact": bit_exact, "inputs": inputs, "eager": eager, "seconds": timeout}
    options |= {"within": within / seeds, "assume_finite": assume_finite, **_limits(before, memory)}
    with progress("verify") as advance:
        parts = [hlo.verify(before, after, None, seed, advance=advance, **options) for seed in range(seeds)]
    trials, remarks = (tuple(each for part in parts for each in getattr(part, name)) for name in ("trials", "remarks"))
    verification = hlo.Verification(trials, parts[0].reference, tuple(dict.fromkeys(remarks)))
    if save:
        _save(before, verification, save)
    value = {**verification.to_json(), "tpu": compiled.to_json() if compiled else None}
    deliver(Answer(lambda: value, lambda: _trials_lines(verification, compiled)), to)
    if not verification.ok:
        raise CheckFailed(f"the programs differ: {verification.reason}" if to.as_json else "the programs differ")


#: Multiplications and additions, and bytes of arrays, of a run that is told of beforehand.
_LONG, _LARGE = 10**11, 4 << 30


def _limits(before: hlo.Program, memory: int | None) -> dict[str, Any]:
    """How a proof runs within ``memory`` GiB; says what a run takes where that is much."""
    if memory is not None:
        os.environ["TILEWRIGHT_CHILD_GIB"] = str(memory)  # for the process that runs them, which is yet to start
    with suppress(TilewrightError):  # what has no estimate is run without one
        flops, peak = float(hlo.estimate(before, "tpu-v5e").flops), hlo.lifetimes(before, "tpu-v5e").peak
        if flops > _LONG or peak > _LARGE:
            remark(
                f"a run computes {flops:.2g} multiplications and additions on {bytes_text(peak)} of arrays (modelled), "
                f"in float64 on twice that; a trial is some runs, {half_of_memory() >> 30} GiB are allowed"
            )
    return {"apart": True}


def _save(program: hlo.Program, verification: hlo.Verification, path: str) -> None:
    import numpy as np

    buffer, trial = io.BytesIO(), verification.worst
    arrays = {f"argument_{k}": array for k, array in enumerate(trial.arguments(program))}
    np.savez(buffer, allow_pickle=False, **arrays)
    write_file(path, buffer.getvalue(), f"{trial.inputs} inputs, seed {trial.seed}")


def _trials_lines(verification: hlo.Verification, compiled: hlo.TpuComparison | None) -> Iterator[Line]:
    columns: list[Heading] = ["inputs", ("seed", "number"), "run", "verdict", "differ by", "error of A", "error of B"]
    rows = []
    for trial in verification.trials:
        verdict = "DIFFER" if not trial.ok else "same bits" if trial.bit_equal else "agree"
        errors = ["-" if error is None else f"{error:.2g}" for error in (trial.error_before, trial.error_after)]
        rows.append([trial.inputs, trial.seed, trial.run, verdict, f"{trial.max_difference:.2g}", *errors])
    yield from (Table(columns, rows), str(verification))
    if compiled:
        yield f"\n{compiled}"

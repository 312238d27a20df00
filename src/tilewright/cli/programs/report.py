"""`tilewright report` and `diff`: what a program moves and pads, why and from which line; how two programs differ."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from tilewright import hlo, targets
from tilewright.cli.figures import both_reports, compare_reports
from tilewright.cli.programs.program import (
    PROGRAM_HELP,
    ArgOption,
    AssumeOption,
    FramesOption,
    MeshOptions,
    ModuleOption,
    ProgramArgument,
    assumptions,
    load_program,
)
from tilewright.cli.streams import Json, read_text
from tilewright.errors import CheckFailed, ParseError, TilewrightError, UnsupportedError, UsageError
from tilewright.extras import installed
from tilewright.render.delivery import Answer, Form, Line, Output, deliver, json_text, remark, show, write_file

_TargetOption = Annotated[str | None, "--target", "-t", "The chip; needed for StableHLO, whose layouts it predicts."]
_Output = Annotated[str | None, "--output", "-o", "Write a .html or .json file; - is stdout."]
_Written = Annotated[
    str | None, "--output", "-o", "Write a .html, .json, .sarif (code review) or .modelexplorer.json file."
]
_GRAPH = ".modelexplorer.json"
_SUFFIXES = (".json", ".html", ".htm")
_SIDE = f"{PROGRAM_HELP[:-1]}; or a report written with -o REPORT.json."


def _chip(name: str | None) -> targets.Target | None:
    """The target; UsageError where there is none of this name, before a program is loaded for it."""
    return targets.target(name) if name else None


def make_report(
    program: hlo.Program, chip: targets.Target | None, where: str, assumed: Mapping[str, float] | None = None
) -> hlo.MovementReport:
    """The report of a loaded program; UsageError where its layouts must be predicted and no target is named."""
    if program.kind == "stablehlo" and chip is None:
        raise UsageError(
            "a StableHLO program carries no layouts, so a target must predict them",
            where=where,
            how="add --target, such as --target tpu-v5e",
        )
    try:  # what optimize would change
        suggested = (*hlo.suggest(program, chip), *hlo.suggest_rewrites(program, chip)) if chip is not None else ()
        suggested += tuple(hlo.sharding_advice(program, chip, every=False)) if chip is not None else ()
    except TilewrightError:  # no JAX, a target that optimize does not take, an old text: a report does
        suggested = ()
    movement = replace(hlo.report(program, chip, suggested, assumed), source=where)
    if program.kind == "stablehlo" and not (installed("jax") and installed("jaxlib")):
        why = "no rule looks at the program, and it is taken as it was written, not as a compiler normalises it"
        remark(f"note: without jax {why}; pip install 'tilewright[jax]'")
    if program.kind == "hlo" and chip is not None and movement.time is None:
        remark(f"note: a dump has layouts of its own; {chip.name} does not change them")
    return movement


def _read_report(path: str) -> hlo.MovementReport:
    """A report that `tilewright report X -o OLD.json` (or --json) wrote."""
    text = read_text(path)
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParseError(f"not JSON: {error.msg}", text=text, column=error.pos, where=path) from None
    except RecursionError:
        raise UsageError("not a movement report: nested too deeply", where=path) from None
    return hlo.MovementReport.from_json(plain, where=path)


def _report_or_program(
    source: str, target: str | None, arguments: Sequence[str] | None, module: str | None
) -> tuple[hlo.MovementReport, hlo.Program | None]:
    """A report's JSON is read, anything else is loaded and reported on; with the program, where there is one."""
    chip = _chip(target)
    if Path(source).suffix.lower() == ".json":
        return _read_report(source), None
    program = load_program(source, arguments, module)
    return make_report(program, chip, source), program


def _share(text: str) -> float:
    """``5%`` or ``0.05`` as a share. Raises UsageError for anything else."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"'{text}' is not a share", where="--fail-on", how="write a percentage such as 5%")
    return value


def terminal_width() -> int:
    """Columns to fill: the terminal's, or at least 100 where there is none."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else max(console.width, 100)


_Only = StrEnum("_Only", "RELAYOUT TRANSFER DUPLICATE REPEAT PART FUSED COMPUTE")
_By = StrEnum("_By", "MOVED PADDING TIME")


def report(
    program: ProgramArgument,
    target: _TargetOption = None,
    output: _Written = None,
    as_json: Json = False,
    top: Annotated[int, Option(min=1, help="How many entries of each ranking to print.")] = 10,
    by: Annotated[_By | None, "Print this ranking only."] = None,
    only: Annotated[
        list[_Only] | None, "Rank operations of this category only, such as relayout; repeat it for more."
    ] = None,
    transfers: Annotated[bool, "List prefetches and write-backs one by one, too."] = False,
    profile: Annotated[
        str | None, "Join measured times: an .xplane.pb or .trace.json.gz of jax.profiler or XProf, or its folder."
    ] = None,
    baseline: Annotated[str | None, "Compare with this report, written earlier with -o OLD.json."] = None,
    fail_on: Annotated[
        str | None, "With --baseline: exit 1 if bytes moved, padding or peak memory grew by more than, say, 5%."
    ] = None,
    compiled: Annotated[
        bool, "--compile", "Report on what an installed TPU compiler (libtpu) makes of StableHLO."
    ] = False,
    *,
    meshed: MeshOptions,
    assume: AssumeOption = None,
    arg: ArgOption = None,
    module: ModuleOption = None,
    frames: FramesOption = None,
) -> None:
    """Rank a program's operations by modelled time (by bytes moved without a chip), and its tensors by padding."""
    where = Output(None if output == "-" else output, as_json, *_SUFFIXES, ".sarif", _GRAPH)
    if fail_on is not None and baseline is None:
        raise UsageError("--fail-on needs something to compare with", how="add --baseline OLD.json")
    chip, allowed = _chip(target), _share(fail_on or "0%")
    old = _read_report(baseline) if baseline else None
    loaded = load_program(program, arg, module, frames, meshed)
    if compiled and chip is not None and loaded.kind != "hlo":
        from tilewright.hlo import compile_for_tpu

        loaded = compile_for_tpu(loaded, chip.name)
    movement = make_report(loaded, chip, program, assumptions(assume))
    if profile:
        movement = movement.with_profile(loaded, profile)
    if by is _By.TIME and movement.time is None and profile is None:
        how = "add --profile PROFILE.xplane.pb (measured), or a --target whose time is modelled, such as tpu-v6e"
        raise UsageError("--by time needs times", where=program, how=how)
    ranked = ["time", "moved"] if profile else ["time"] if movement.time is not None else ["moved"]
    rankings = [by.value] if by is not None else [*ranked, "padding"]
    lines = _lines(movement, rankings, top, [category.value for category in only or ()], transfers)
    forms: dict[str, Form] = {
        ".html": movement.to_html,
        ".sarif": lambda: json_text(movement.to_sarif(), own=False),
        _GRAPH: lambda: json_text(movement.model_explorer(loaded), own=False),
    }
    deliver(Answer(movement.to_json, lambda: lines), where, forms, said=(), notes=movement.notes)
    if where.path is not None and where.suffix == _GRAPH:  # beside the graph a file for each figure of its nodes
        for figure, data in movement.model_explorer_data(loaded).items():
            write_file(f"{where.path[: -len(_GRAPH)]}.{figure}.nodedata.json", json_text(data, own=False))
    if old is not None:
        _compare(old, movement, allowed, quiet=as_json)


def _lines(
    movement: hlo.MovementReport, rankings: list[str], top: int, only: list[str], transfers: bool
) -> Iterator[Line]:
    width = terminal_width()
    for text in movement.head_lines():
        yield from (("", line) for line in textwrap.wrap(text, width, subsequent_indent="  "))
    if changes := list(movement.change_lines(width=width)):
        yield ""
        yield from changes
    for ranking in rankings:
        yield ""
        yield from movement.ranking_lines(ranking, top, width, only, transfers)


def _compare(old: hlo.MovementReport, new: hlo.MovementReport, allowed: float, quiet: bool) -> None:
    """The difference from the baseline; CheckFailed where it grew by more than is allowed."""
    layouts = [f"predicted for {side.target}" if side.predicted else "the dump's own" for side in (old, new)]
    for name, before, after in (("layouts", *layouts), ("kind of program", old.kind, new.kind)):
        if before != after:
            problem = f"the baseline's {name}: {before}; this report's: {after}"
            raise UsageError(problem, where="--baseline", how="make the baseline anew, from the same kind of program")
    difference = hlo.diff_reports(old, new)
    if not quiet:
        show(["", ("bold", "against the baseline"), *difference.lines(10, terminal_width())])
    if failed := difference.regressions(allowed):
        raise CheckFailed("; ".join(failed), how=f"--fail-on allows {allowed:.1%}")


def diff(
    before: Annotated[str, Argument(metavar="BEFORE", help=_SIDE, show_default=False)],
    after: Annotated[str, Argument(metavar="AFTER", help="The same, of the other side.", show_default=False)],
    target: _TargetOption = None,
    output: _Output = None,
    as_json: Json = False,
    top: Annotated[int, Option(min=1, help="How many rows to print.")] = 20,
    arg: ArgOption = None,
    module: ModuleOption = None,
) -> None:
    """Compare two programs: movement new, gone and changed; of two dumps on a TPU also time, with line and cause.

    Two runs (report.json, of a recommender, or of any program on a target) and two embedding plans (embed plan --json)
    are compared by their figures.
    """
    if reports := both_reports(before, after):
        compare_reports(reports, (before, after), output, as_json, top)
        return
    where = Output(None if output == "-" else output, as_json, *_SUFFIXES)
    (old, first), (new, second) = (_report_or_program(side, target, arg, module) for side in (before, after))
    difference, upgrade = hlo.diff_reports(old, new), _diagnose(first, second, target)

    def lines() -> Iterator[Line]:
        if upgrade is not None:
            yield from (("", line) for line in (*upgrade.lines(top, terminal_width()), ""))
        yield from difference.lines(top, terminal_width())

    plain = difference.to_json() | ({"time": upgrade.to_json()} if upgrade else {})
    deliver(Answer(lambda: plain, lines), where, {".html": lambda: difference.to_html(upgrade)}, said=())


def _diagnose(before: hlo.Program | None, after: hlo.Program | None, target: str | None) -> hlo.StepDiff | None:
    """Of two optimised modules and a chip whose time is known: what got slower, and why."""
    if target is None or before is None or after is None or {before.kind, after.kind} != {"hlo"}:
        return None
    try:
        return hlo.diagnose_upgrade(before, after, target)
    except UnsupportedError:  # a target without a time model
        return None

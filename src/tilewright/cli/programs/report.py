"""`tilewright report`: which operations of a program move or pad data, why, how much, and from which source line."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.programs.argument import ArgOption, ModuleOption, ProgramArgument, load_program
from tilewright.cli.streams import emit_json, read_text, remark, write_file
from tilewright.errors import CheckFailed, ParseError, UsageError

if TYPE_CHECKING:
    from tilewright.hlo import MovementReport, Program


# What `report` and `diff` share: a report from a program or from an earlier report's JSON, and lines on a terminal.


def known_target(name: str | None) -> None:
    """UsageError for a target that does not exist, before a program is loaded for it."""
    from tilewright.targets import target as find_target

    if name:
        find_target(name)


def make_report(program: Program, target: str | None, where: str) -> MovementReport:
    """The report of a loaded program; UsageError where its layouts must be predicted and no target is named."""
    from tilewright.hlo import report
    from tilewright.targets import target as find_target

    chip = find_target(target) if target else None
    if program.kind == "stablehlo" and chip is None:
        raise UsageError(
            "a StableHLO program carries no layouts, so a target must predict them",
            where=where,
            how="add --target, such as --target tpu-v5e",
        )
    if program.kind == "hlo" and chip is not None:
        remark(f"note: a dump has layouts of its own; {chip.name} does not change them")
    return replace(report(program, chip), source=where)


def read_report(path: str) -> MovementReport:
    """A report that `tilewright report X -o OLD.json` (or --json) wrote."""
    from tilewright.hlo import report_from_json

    text = read_text(path)
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParseError(f"not JSON: {error.msg}", text=text, column=error.pos, where=path) from None
    except RecursionError:
        raise UsageError("not a movement report: nested too deeply", where=path) from None
    return report_from_json(plain, where=path)


def report_or_program(
    source: str, target: str | None, arguments: Sequence[str] | None, module: str | None
) -> MovementReport:
    """A report's JSON is read, anything else is loaded and reported on."""
    known_target(target)
    if Path(source).suffix.lower() == ".json":
        return read_report(source)
    return make_report(load_program(source, arguments, module), target, source)


def share(text: str) -> float:
    """``5%`` or ``0.05`` as a share. Raises UsageError for anything else."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"'{text}' is no share", where="--fail-on", how="write a percentage such as 5%")
    return value


def terminal_width() -> int:
    """Columns to fill: the terminal's, or at least 100 where there is none."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else max(console.width, 100)


def print_lines(lines: Iterator[tuple[str, str]]) -> None:
    """Styled lines to stdout, unfolded."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for style, line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


class _Only(StrEnum):
    RELAYOUT = "relayout"
    TRANSFER = "transfer"
    DUPLICATE = "duplicate"
    REPEAT = "repeat"
    PART = "part"
    FUSED = "fused"


class _By(StrEnum):
    MOVED = "moved"
    PADDING = "padding"
    TIME = "time"


def _report(
    program: ProgramArgument,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", help="The chip; needed for StableHLO, whose layouts it predicts."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write a .html or .json file; - is stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="How many entries of each ranking to print.")] = 10,
    by: Annotated[_By | None, typer.Option("--by", help="Print this ranking only.")] = None,
    only: Annotated[
        list[_Only] | None,
        typer.Option("--only", help="Rank operations of this category only, such as relayout; repeat it for more."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", help="Join measured times: a .trace.json.gz of jax.profiler or XProf, or its folder."
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="Compare with this report, written earlier with -o OLD.json.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on",
            help="With --baseline: exit 1 if bytes moved, padding or peak memory grew by more than, say, 5%.",
        ),
    ] = None,
    arg: ArgOption = None,
    module: ModuleOption = None,
) -> None:
    """Rank a program's operations by bytes moved, and its tensors by padding."""
    _check(output, by, profile, baseline, fail_on)
    known_target(target)
    allowed = share(fail_on or "0%")
    old = read_report(baseline) if baseline else None
    found = _load_and_report(program, target, profile, arg, module)
    if output and output != "-":
        _write(found, output)
    if as_json:
        emit_json(found.to_json())
    elif not output or output == "-":
        _print(found, _rankings(by, profile), top, [category.value for category in only or ()])
    if old is not None:
        _compare(old, found, allowed, quiet=as_json)


def _check(output: str | None, by: _By | None, profile: str | None, baseline: str | None, fail_on: str | None) -> None:
    suffix = Path(output).suffix.lower() if output and output != "-" else ".json"
    if suffix not in (".html", ".htm", ".json"):
        raise UsageError(
            f"no writer for '{suffix or output}'", where=output or "", how="end the name in .html or .json"
        )
    if fail_on is not None and baseline is None:
        raise UsageError("--fail-on needs something to compare with", how="add --baseline OLD.json")
    if by is _By.TIME and profile is None:
        raise UsageError("--by time needs measured times", how="add --profile TRACE.json.gz")


def _rankings(by: _By | None, profile: str | None) -> list[str]:
    if by is not None:
        return [by.value]
    return [*(["time"] if profile else []), "moved", "padding"]


def _load_and_report(
    source: str, target: str | None, profile: str | None, arg: list[str] | None, module: str | None
) -> MovementReport:
    from tilewright.hlo import join_profile, read_profile

    program = load_program(source, arg, module)
    found = make_report(program, target, source)
    return join_profile(found, program, read_profile(profile)) if profile else found


def _write(found: MovementReport, output: str) -> None:
    if Path(output).suffix.lower() == ".json":
        emit_json(found.to_json(), output)
    else:
        write_file(output, found.to_html())
    remark(f"wrote {output}")


def _print(found: MovementReport, rankings: list[str], top: int, only: list[str]) -> None:
    from tilewright.hlo.reporting.lines import by_category, by_operation, peak_lines, summary, to_lines

    head = (summary(found), by_operation(found), by_category(found), *peak_lines(found))
    width = terminal_width()
    print_lines(("", line) for text in head for line in textwrap.wrap(text, width, subsequent_indent="  "))
    for note in found.notes:
        remark(f"note: {note}")
    for ranking in rankings:
        print_lines(iter([("", "")]))
        print_lines(to_lines(found, ranking, top, width, only))


def _layouts_of(report: MovementReport) -> str:
    return f"predicted for {report.target}" if report.predicted else "the dump's own"


def _compare(old: MovementReport, found: MovementReport, allowed: float, quiet: bool) -> None:
    """The difference from the baseline; CheckFailed where it grew by more than is allowed."""
    from tilewright.hlo import diff_reports, regressions
    from tilewright.hlo.reporting.lines import diff_lines

    for name, before, after in (
        ("layouts", _layouts_of(old), _layouts_of(found)), ("kind of program", old.kind, found.kind)
    ):  # fmt: skip
        if before != after:
            what = f"the baseline's {name}: {before}; this report's: {after}"
            raise UsageError(what, where="--baseline", how="make the baseline anew, from the same kind of program")
    if not quiet:
        print_lines(iter([("", ""), ("bold", "against the baseline")]))
        print_lines(diff_lines(diff_reports(old, found), 10, terminal_width()))
    if failed := regressions(old, found, allowed):
        raise CheckFailed("; ".join(failed), how=f"--fail-on allows {allowed:.1%}")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("report")(_report)

"""`tilewright diff`: what two programs, or two builds of one, move differently."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.programs.argument import PROGRAM_HELP, ArgOption, ModuleOption
from tilewright.cli.programs.report import print_lines, report_or_program, terminal_width
from tilewright.cli.streams import emit_json, remark, write_file
from tilewright.errors import UsageError

_HELP = f"{PROGRAM_HELP[:-1]}; or a report written with -o REPORT.json."


def _diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=_HELP, show_default=False)],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The same, of the other side.", show_default=False)],
    target: Annotated[
        str | None, typer.Option("--target", "-t", help="The chip; needed for StableHLO, whose layouts it predicts.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Write a .html or .json file; - is stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="How many rows to print.")] = 20,
    arg: ArgOption = None,
    module: ModuleOption = None,
) -> None:
    """Compare the movement of two programs: rows new, gone and changed, and the totals."""
    suffix = Path(output).suffix.lower() if output and output != "-" else ".json"
    if suffix not in (".html", ".htm", ".json"):
        raise UsageError(
            f"no writer for '{suffix or output}'", where=output or "", how="end the name in .html or .json"
        )
    from tilewright.hlo import diff_reports
    from tilewright.hlo.reporting.lines import diff_lines
    from tilewright.hlo.reporting.page import diff_html

    found = diff_reports(*(report_or_program(side, target, arg, module) for side in (before, after)))
    if output and output != "-":
        if suffix == ".json":
            emit_json(found.to_json(), output)
        else:
            write_file(output, diff_html(found))
        remark(f"wrote {output}")
    if as_json:
        emit_json(found.to_json())
    elif not output or output == "-":
        print_lines(diff_lines(found, top, terminal_width()))


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("diff")(_diff)

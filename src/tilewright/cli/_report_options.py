"""What `report` and `diff` share: a report from a program or from an earlier report's JSON, and lines on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.cli._io import read_text, remark
from tilewright.cli._program import load_program
from tilewright.errors import ParseError, UsageError

if TYPE_CHECKING:
    from tilewright.hlo import MovementReport, Program

__all__ = ["known_target", "make_report", "print_lines", "read_report", "report_or_program", "share", "terminal_width"]


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

"""`tilewright report`: which operations of a program move or pad data, why, how much, and from which source line."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli._io import emit_json, read_bytes, remark, write_file
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.hlo import MovementReport

__all__ = ["add_to"]


class _By(StrEnum):
    MOVED = "moved"
    PADDING = "padding"


def _report(
    file: Annotated[str, typer.Argument(help="HLO text, StableHLO text, or either gzipped; - is stdin.")],
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
) -> None:
    """Rank a program's operations by bytes moved, and its tensors by padding."""
    suffix = Path(output).suffix.lower() if output and output != "-" else ""
    if output and output != "-" and suffix not in (".html", ".htm", ".json"):
        raise UsageError(f"no writer for '{suffix or output}'", where=output, how="end the name in .html or .json")
    found = _load_and_report(file, target)
    if output and output != "-":
        if suffix == ".json":
            emit_json(found.to_json(), output)
        else:
            write_file(output, found.to_html())
        remark(f"wrote {output}")
    if as_json:
        emit_json(found.to_json())
    elif not output or output == "-":
        _print(found, [by.value] if by else ["moved", "padding"], top)


def _load_and_report(file: str, target: str | None) -> MovementReport:
    from tilewright.hlo import load, report
    from tilewright.targets import target as find_target

    chip = find_target(target) if target else None
    source: bytes | Path = read_bytes(file) if file == "-" else Path(file)
    program = load(source)
    if program.kind == "stablehlo" and chip is None:
        raise UsageError(
            "a StableHLO program carries no layouts, so a target must predict them",
            where=file,
            how="add --target, such as --target tpu-v5e",
        )
    if program.kind == "hlo" and chip is not None:
        remark(f"note: a dump has layouts of its own; {chip.name} does not change them")
    return report(program, chip)


def _print(found: MovementReport, rankings: list[str], top: int) -> None:
    from rich.console import Console
    from rich.text import Text

    from tilewright.hlo._report_text import by_operation, summary, to_lines

    console = Console()
    width = console.width if console.is_terminal else max(console.width, 100)
    for line in filter(None, (summary(found), by_operation(found))):
        console.print(Text(line), soft_wrap=True)
    for note in found.notes:
        remark(f"note: {note}")
    for ranking in rankings:
        console.print()
        for style, line in to_lines(found, ranking, top, width):
            console.print(Text(line, style=style), soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("report")(_report)

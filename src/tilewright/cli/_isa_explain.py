"""`tilewright isa explain`: what an instruction does, with this machine's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli._io import emit_json, emit_text, read_text
from tilewright.cli._isa_tensors import Json, Settings, machine
from tilewright.errors import UsageError

__all__ = ["add_to"]


def _explain(
    what: Annotated[
        str, typer.Argument(metavar="TEXT|FILE[:LINE]", help="An instruction, a program, or one line of a program.")
    ],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Say what an instruction does: who loads, who multiplies, which registers, what it costs."""
    from tilewright.isa import assemble, explain

    config = machine(settings)
    text, line = _source(what)
    found = [each for each in assemble(text, config).instructions if line is None or each.line == line]
    if not found:
        raise UsageError(f"no instruction on line {line}", where=what) if line else UsageError("no instruction")
    told = [explain(each, config) for each in found]
    if as_json:
        rows = [{"line": each.line, **words.to_dict()} for each, words in zip(found, told, strict=True)]
        emit_json({"instructions": rows})
    else:
        emit_text("\n\n".join(map(str, told)))


def _source(what: str) -> tuple[str, int | None]:
    """The program's text and the line asked for: a file, a file and a line, or the text itself."""
    path, colon, number = what.rpartition(":")
    if colon and number.isdecimal() and Path(path).is_file():
        return read_text(path), int(number)
    if what == "-" or Path(what).is_file() or what.endswith(".tasm"):
        return read_text(what), None
    return what, None


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("explain")(_explain)

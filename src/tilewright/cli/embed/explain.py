"""`tilewright embed explain-error`: a compiler's error about SparseCore memory, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.streams import emit_json, emit_text, read_text
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.embed import Explanation


def _explain(
    error: Annotated[
        str, typer.Argument(help="The error's text, a file that holds it (a whole log may), or - (stdin).")
    ],
    width: Annotated[int | None, typer.Option(help="Floats per row of the stack the error is about.")] = None,
    max_ids: Annotated[int | None, typer.Option("--max-ids", help="Its max_ids_per_partition.")] = None,
    sparsecores: Annotated[
        int, typer.Option(help="SparseCores in all: below 16 there is a second lookup program.")
    ] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Read a TPU compiler's error about SparseCore memory: what was too large, and the changes that compile."""
    from tilewright.embed import explain_error

    text = _text(error)
    try:
        found = explain_error(text, width=width, max_ids=max_ids, sparsecores=sparsecores)
    except UsageError as wrong:
        raise _no_such_file(error, wrong) from None
    if as_json:
        emit_json({"kind": "explained_errors", "errors": [each.to_json() for each in found]})
    else:
        emit_text("\n\n".join(_told(each) for each in found))


def _text(given: str) -> str:
    """Of a file, of stdin, or the argument itself."""
    if given == "-":
        return read_text(given)
    try:
        is_file = Path(given).is_file()
    except OSError:  # a text too long to be a name
        is_file = False
    return read_text(given) if is_file else given


def _no_such_file(given: str, wrong: UsageError) -> UsageError:
    """Something short without blanks was meant as a file."""
    if given != "-" and len(given) < 200 and not any(c.isspace() for c in given) and not Path(given).exists():
        return UsageError("neither a file nor an error's text", where=given, how="check the file's name")
    return wrong


def _told(found: Explanation) -> str:
    program = {"forward": "lookup", "backward": "update", "host": "preprocessing on the host"}.get(
        found.program, "program"
    )
    lines = [f"{', '.join(filter(None, (found.target, program)))} ({found.basis}): {found.meaning}"]
    lines += [f"  {name}: {value:,}" for name, value in found.figures.items()]
    lines += ["what to change:", *(f"  - {line}" for line in found.advice)]
    return "\n".join(lines)


def add_to(group: typer.Typer) -> None:
    """Register the command in its group."""
    group.command("explain-error")(_explain)

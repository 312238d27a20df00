"""`tilewright isa step`: through a program one instruction at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from tilewright.cli._io import emit_text, read_text
from tilewright.cli._isa_tensors import File, Iota, Settings, Tensor, Zeros, machine, tensors
from tilewright.errors import UsageError

__all__ = ["add_to"]


def _step(
    file: File,
    tensor: Tensor = None,
    iota: Iota = None,
    zeros: Zeros = None,
    execute: Annotated[
        str | None, typer.Option("-x", "--execute", metavar="COMMANDS", help="Do these, separated by ;, and end.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Step through a program: run to a place, set breakpoints, print registers, tokens, pages, tensors.

    Commands come from the terminal, from standard input, or from -x; help lists them. Ctrl-D ends.
    """
    from tilewright.isa import Debugger

    if file == "-" and execute is None:
        raise UsageError("standard input cannot be the program and the commands", how="give the commands with -x")
    config = machine(settings)
    debugger = Debugger(read_text(file), tensors(tensor or (), iota or (), zeros or ()), config)
    emit_text(debugger.where())
    told = execute is not None or not sys.stdin.isatty()
    for line in _lines(execute):
        if told:
            emit_text(f"> {line.strip()}")
        if line.strip() in ("quit", "q", "exit"):
            break
        try:
            emit_text(debugger.command(line))
        except KeyboardInterrupt:
            emit_text(f"interrupted before {debugger.where()}")


def _lines(execute: str | None) -> Iterator[str]:
    """The commands, wherever they come from; an empty line is one only where somebody types."""
    if execute is not None:
        yield from (part for part in execute.split(";") if part.strip())
    elif not sys.stdin.isatty():
        yield from (line for line in sys.stdin if line.strip())
    else:
        while True:
            try:
                yield input("(isa) ")
            except KeyboardInterrupt:
                emit_text("")
            except EOFError:
                emit_text("")
                return


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("step")(_step)

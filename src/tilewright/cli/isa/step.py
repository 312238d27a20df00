"""`tilewright isa step`: through a program one instruction at a time."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa.tensors import File, Iota, Settings, Tensor, Zeros, machine, remark_errors, tensors
from tilewright.cli.streams import emit_text, read_text, remark
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.isa import Debugger, MatrixUnitConfig

_LEAVE = ("quit", "q", "exit")


def _step(
    file: File,
    tensor: Tensor = None,
    iota: Iota = None,
    zeros: Zeros = None,
    execute: Annotated[
        str | None, typer.Option("-x", "--execute", metavar="COMMANDS", help="Do these, separated by ;, and end.")
    ] = None,
    every_pe: Annotated[
        bool, typer.Option("--every-pe", help="Every processing element (--set pes=N) runs it, not the first alone.")
    ] = False,
    settings: Settings = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line for every command (-x, or standard input).")
    ] = False,
) -> int:
    """Step through a program: run to a place or a change, set breakpoints, print registers, tokens, pages, tensors.

    Commands come from the terminal, from standard input, or from -x; help lists them. Ctrl-D ends, Ctrl-C interrupts a
    run. From -x and standard input the exit code is 1 if the program was stopped by an error or left error records,
    2 if a command was not understood.
    """
    if file == "-" and execute is None:
        raise UsageError("standard input cannot be the program and the commands", how="give the commands with -x")
    typed = execute is None and sys.stdin.isatty()
    if as_json and typed:
        raise UsageError("--json answers -x or commands on standard input, not a terminal")
    debugger = _debugger(read_text(file), tensors(tensor or (), iota or (), zeros or ()), machine(settings), every_pe)
    if typed:
        _converse(debugger)
        return 0
    lines = execute.split(";") if execute is not None else sys.stdin
    return _obey(debugger, (line.strip() for line in lines if line.strip()), as_json)


def _debugger(text: str, memory: dict[str, Any], config: MatrixUnitConfig, every_pe: bool) -> Debugger:
    from tilewright.isa import Debugger, Machine

    if not every_pe:
        if config.pes > 1:
            remark(f"PE 0 of {config.pes} runs the program, as in isa run; --every-pe starts it on all")
        return Debugger(text, memory, config)
    host = Machine(config)
    for name, array in memory.items():
        host.system[name] = array
        host.page_table(name, mapped=True)
    host.start(text)
    return Debugger(host)


def _obey(debugger: Debugger, lines: Iterator[str], as_json: bool) -> int:
    """Do the commands, show each with its answer, and say how it ended."""
    understood = True
    if not as_json:
        emit_text(debugger.where())
    for line in lines:
        if line in _LEAVE:
            emit_text(json.dumps(_object(debugger, line, "", None, True)) if as_json else f"> {line}")
            break
        answer = debugger.answer(line)
        understood &= answer.ok
        if as_json:
            emit_text(json.dumps(_object(debugger, line, answer.text, answer.value, answer.ok), allow_nan=False))
        else:
            emit_text(f"> {line}\n{answer.text}")
        sys.stdout.flush()  # a program may read the answer before it gives the next command
    records = [record for pe in debugger.runner.pes for record in pe.errors]
    remark_errors(records)
    return 1 if debugger.stopped or records else 0 if understood else 2


def _object(debugger: Debugger, line: str, text: str, value: Any, ok: bool) -> dict[str, Any]:
    """One command as JSON: what was said and shown, and where the processing element stands."""
    pe = debugger.pe
    at = None if debugger.done or pe.halted or pe.barrier is not None else pe.pc
    place = {"pe": pe.number, "pc": at, "executed": pe.executed, "cycles": pe.clock.cycles, "done": debugger.done}
    said = {"schema_version": 1, "command": line, "ok": ok, "text": text, "value": value}
    return {**said, **place, "stopped": debugger.stopped}


def _converse(debugger: Debugger) -> None:
    """Commands from a terminal; an empty line is one too."""
    _edit_lines(debugger)
    emit_text(debugger.where())
    with _interrupting(debugger) as asking:
        while True:
            try:
                asking.append("")
                line = input("(isa) ").strip()
            except KeyboardInterrupt:
                emit_text("")
                continue
            except EOFError:
                emit_text("")
                return
            finally:
                asking.clear()
            if line in _LEAVE:
                return
            emit_text(debugger.command(line))


def _edit_lines(debugger: Debugger) -> None:
    """History, line editing and completion of words where there is a readline; nothing is written to a file."""
    with suppress(ImportError):
        import readline

        def complete(start: str, number: int) -> str | None:
            found = [word for word in debugger.words if word.startswith(start)]
            return found[number] if number < len(found) else None

        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")


@contextmanager
def _interrupting(debugger: Debugger) -> Iterator[list[str]]:
    """Ctrl-C stops a run between two instructions, never within one; at the prompt (the list has one) the line goes."""
    asking: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield asking
        return

    def interrupted(number: int, frame: object) -> None:
        if asking:
            raise KeyboardInterrupt
        debugger.interrupt()

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield asking
    finally:
        signal.signal(signal.SIGINT, before)


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("step")(_step)

"""`tilewright isa step` and `explain`: through a program one instruction at a time; what an instruction does."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

from typer import Argument, Option

from tilewright import isa
from tilewright.cli.isa import machine
from tilewright.cli.streams import Json, progress, read_text
from tilewright.errors import UsageError
from tilewright.render.delivery import Answer, Output, deliver, remark, show

_LEAVE = ("quit", "q", "exit")


def step(
    file: machine.File,
    tensors: machine.Tensors,
    execute: Annotated[str | None, "-x", "--execute COMMANDS", "Do these, separated by ;, and end."] = None,
    every_pe: machine.EveryPe = False,
    settings: machine.Settings = None,
    as_json: Annotated[bool, "--json", "Print a JSON object a line for every command (-x, or standard input)."] = False,
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
    debugger = isa.Debugger(*machine.work(read_text(file), tensors.arrays(), machine.configured(settings), every_pe))
    if typed:
        _read_commands(debugger)
        return 0
    lines = execute.split(";") if execute is not None else sys.stdin
    return _run_commands(debugger, (line.strip() for line in lines if line.strip()), as_json)


def _run_commands(debugger: isa.Debugger, lines: Iterator[str], as_json: bool) -> int:
    """Run the commands, show each with its answer; the exit code."""
    understood = True
    if not as_json:
        show([debugger.where()])
    for line in lines:
        if line in _LEAVE:
            show([json.dumps(_answer_value(debugger, line, "", None, True)) if as_json else f"> {line}"])
            break
        answer = debugger.answer(line)
        understood &= answer.ok
        if as_json:
            show([json.dumps(_answer_value(debugger, line, answer.text, answer.value, answer.ok), allow_nan=False)])
        else:
            show([f"> {line}\n{answer.text}"])
        sys.stdout.flush()  # a program may read the answer before it gives the next command
    records = [record for pe in debugger.runner.pes for record in pe.errors]
    machine.remark_errors(records)
    return 1 if debugger.stopped or records else 0 if understood else 2


def _answer_value(debugger: isa.Debugger, line: str, text: str, value: Any, ok: bool) -> dict[str, Any]:
    """One command as JSON: its answer, and where the processing element stands."""
    pe = debugger.pe
    at = None if debugger.done or pe.halted or pe.barrier is not None else pe.pc
    place = {"pe": pe.number, "pc": at, "executed": pe.executed, "cycles": pe.clock.cycles, "done": debugger.done}
    answer = {"schema_version": 1, "command": line, "ok": ok, "text": text, "value": value}
    return {**answer, **place, "stopped": debugger.stopped}


def _read_commands(debugger: isa.Debugger) -> None:
    """Read commands from a terminal until it ends; an empty line is a command too."""
    _enable_editing(debugger)
    show([debugger.where()])
    with _interrupting(debugger) as asking:
        while True:
            try:
                asking.append("")
                line = input("(isa) ").strip()
            except KeyboardInterrupt:
                show([""])
                continue
            except EOFError:
                show([""])
                return
            finally:
                asking.clear()
            if line in _LEAVE:
                return
            show([debugger.command(line)])


def _enable_editing(debugger: isa.Debugger) -> None:
    """History, line editing and completion of words where there is a readline; nothing is written to a file."""
    with suppress(ImportError):
        import readline

        def complete(start: str, number: int) -> str | None:
            words = [word for word in debugger.words if word.startswith(start)]
            return words[number] if number < len(words) else None

        readline.set_completer(complete)
        readline.parse_and_bind("tab: complete")


@contextmanager
def _interrupting(debugger: isa.Debugger) -> Iterator[list[str]]:
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


def explain(
    source: Annotated[
        str, Argument(metavar="TEXT|FILE[:LINE]", help="An instruction, a program, or one line of a program.")
    ],
    segment: Annotated[str | None, "--segment s8[24,200]", "What B of an mm is like, as it is stored."] = None,
    columns: Annotated[int | None, Option(min=1, help="Columns of an mm, as setmm would say.")] = None,
    rows: Annotated[int | None, Option(min=1, help="Rows of an mm, as setmm would say.")] = None,
    *,
    tensors: machine.Tensors,
    settings: machine.Settings = None,
    as_json: Json = False,
) -> int:
    """Say what an instruction does: who loads, who multiplies, which registers and lines, what it costs.

    With tensors the program is run, and each instruction is explained as it stands when it is first come to: the
    columns that are on, the lines it touches and misses, what it waits for.
    """
    config = machine.configured(settings)
    text, line = _source(source)
    program = isa.assemble(text, config)
    addresses = _addresses(program, line, source)
    like = None if segment is None else machine.array(segment, "--segment")
    runs = tensors != machine.Tensors()
    if runs and any(option is not None for option in (segment, columns, rows)):
        how = "they say where each instruction stands; leave --segment, --columns and --rows out"
        raise UsageError("tensors, and a place to explain at", how=how)
    reached: dict[int, Any] = {}
    stopped = ""
    if runs:
        debugger = isa.Debugger(program, tensors.arrays(), config)
        with progress("running") as bar:
            reached = debugger.explain_first(addresses, lambda done: bar(done, len(addresses)))
        stopped = debugger.stopped
    explained = {
        pc: reached.get(pc) or isa.explain(program.instructions[pc], config, like, columns, rows) for pc in addresses
    }
    values = [
        {"pc": pc, "line": program.instructions[pc].line, "in_a_run": pc in reached, **explanation.to_dict()}
        for pc, explanation in explained.items()
    ]
    shown = []
    for pc, explanation in explained.items():
        address = f"{pc:04d}  " if len(program) > 1 else ""
        never = ["this run never comes to it; in general:"] if runs and pc not in reached else []
        shown.append("\n".join([f"{address}{explanation.text}", *never, *explanation.says]))
    deliver(Answer(lambda: {"instructions": values}, lambda: ["\n\n".join(shown)]), Output(as_json=as_json))
    if stopped:
        remark(stopped)
    return 1 if stopped else 0


def _addresses(program: isa.Program, line: int | None, source: str) -> list[int]:
    """The addresses of all instructions, or of those on a line."""
    addresses = [pc for pc, it in enumerate(program.instructions) if line is None or it.line == line]
    if addresses:
        return addresses
    if line is None:
        raise UsageError("no instruction")
    after = next((f"the next is on line {it.line}" for it in program.instructions if it.line > line), "")
    raise UsageError(f"no instruction on line {line}", where=source, how=after)


def _source(source: str) -> tuple[str, int | None]:
    """The program's text and the line asked for: a file, a file and a line, or the text itself."""
    path, colon, number = source.rpartition(":")
    is_line = colon and number.isascii() and number.isdecimal() and len(number) <= 9
    if is_line and (os.path.isfile(path) or path.endswith(".tasm")):
        return read_text(path), int(number)
    if source == "-" or os.path.isfile(source) or source.endswith(".tasm"):
        return read_text(source), None
    return source, None

"""`tilewright isa explain`: what an instruction does, with this machine's numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.isa.tensors import Iota, Json, Settings, Tensor, Zeros, array, machine, tensors
from tilewright.cli.streams import emit_json, emit_text, progress, read_text, remark
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.isa import Explanation, MatrixUnitConfig, Program

_NEVER = "this run never comes to it; in general:"


def _explain(
    what: Annotated[
        str, typer.Argument(metavar="TEXT|FILE[:LINE]", help="An instruction, a program, or one line of a program.")
    ],
    segment: Annotated[
        str | None, typer.Option("--segment", metavar="s8[24,200]", help="What B of an mm is like, as it is stored.")
    ] = None,
    columns: Annotated[int | None, typer.Option(min=1, help="Columns of an mm, as setmm would say.")] = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows of an mm, as setmm would say.")] = None,
    tensor: Tensor = None,
    iota: Iota = None,
    zeros: Zeros = None,
    settings: Settings = None,
    as_json: Json = False,
) -> int:
    """Say what an instruction does: who loads, who multiplies, which registers and lines, what it costs.

    With tensors the program is run, and each instruction is explained as it stands when it is first come to: the
    columns that are on, the lines it touches and misses, what it waits for.
    """
    from tilewright.isa import assemble, explain

    config = machine(settings)
    text, line = _source(what)
    program = assemble(text, config)
    wanted = _wanted(program, line, what)
    like = None if segment is None else array(segment, "--segment")
    if tensor or iota or zeros:
        if any(each is not None for each in (segment, columns, rows)):
            how = "they say where each instruction stands; leave --segment, --columns and --rows out"
            raise UsageError("tensors, and a place to explain at", how=how)
        told, stopped = _run(program, wanted, tensors(tensor or (), iota or (), zeros or ()), config)
    else:
        told, stopped = {}, ""
    said = [told.get(pc) or explain(program.instructions[pc], config, like, columns, rows) for pc in wanted]
    if as_json:
        emit_json(
            {"instructions": [_row(program, pc, each, pc in told) for pc, each in zip(wanted, said, strict=True)]}
        )
    else:
        ran = bool(tensor or iota or zeros)
        shown = [_shown(program, pc, each, ran and pc not in told) for pc, each in zip(wanted, said, strict=True)]
        emit_text("\n\n".join(shown))
    if stopped:
        remark(stopped)
    return 1 if stopped else 0


def _run(
    program: Program, wanted: Sequence[int], memory: dict[str, Any], config: MatrixUnitConfig
) -> tuple[dict[int, Explanation], str]:
    """Every wanted instruction that is come to, explained there, and the error that stopped the run."""
    from tilewright.isa import Debugger

    debugger = Debugger(program, memory, config)
    with progress("running") as bar:
        return debugger.explain_first(wanted, lambda found: bar(found, len(wanted))), debugger.stopped


def _shown(program: Program, pc: int, said: Explanation, never: bool) -> str:
    """An explanation, with its address where there are several, and a word where the run did not come to it."""
    address = f"{pc:04d}  " if len(program) > 1 else ""
    return "\n".join([f"{address}{said.text}", *([_NEVER] if never else []), *said.says])


def _row(program: Program, pc: int, said: Explanation, ran: bool) -> dict[str, Any]:
    return {"pc": pc, "line": program.instructions[pc].line, "in_a_run": ran, **said.to_dict()}


def _wanted(program: Program, line: int | None, what: str) -> list[int]:
    """The addresses of the instructions asked for."""
    found = [pc for pc, each in enumerate(program.instructions) if line is None or each.line == line]
    if found:
        return found
    if line is None:
        raise UsageError("no instruction")
    after = next((f"the next is on line {each.line}" for each in program.instructions if each.line > line), "")
    raise UsageError(f"no instruction on line {line}", where=what, how=after)


def _source(what: str) -> tuple[str, int | None]:
    """The program's text and the line asked for: a file, a file and a line, or the text itself."""
    path, colon, number = what.rpartition(":")
    is_line = colon and number.isascii() and number.isdecimal() and len(number) <= 9
    if is_line and (os.path.isfile(path) or path.endswith(".tasm")):
        return read_text(path), int(number)
    if what == "-" or os.path.isfile(what) or what.endswith(".tasm"):
        return read_text(what), None
    return what, None


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("explain")(_explain)

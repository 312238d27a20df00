"""Branches, loops, barriers, setmm and halt."""

from __future__ import annotations

from tilewright.isa.chip.state import Pe, wrap
from tilewright.isa.execute.operands import Handler, control_cost, number, threads_on, uniform_source, write
from tilewright.isa.execute.scalar import compare
from tilewright.isa.language.errors import Faults
from tilewright.isa.language.program import Immediate, Instruction, Label


def _go(pe: Pe, instruction: Instruction) -> None:
    label = instruction.operands[-1]
    assert isinstance(label, Label)
    pe.next_pc = pe.labels[label.name]


def _jump(pe: Pe, instruction: Instruction) -> None:
    # operation
    _go(pe, instruction)
    # cost
    control_cost(pe, instruction)


def _br(pe: Pe, instruction: Instruction) -> None:
    # operands
    x, y = (uniform_source(pe, o) for o in instruction.operands[:2])
    # operation
    if compare(instruction.suffix("cond"), x, y):
        _go(pe, instruction)
    # cost
    control_cost(pe, instruction)


def _loop(pe: Pe, instruction: Instruction) -> None:
    # operands
    counter = number(instruction.operands[0])
    # operation, result
    pe.uniform[counter] = wrap(pe.uniform[counter] - 1)
    if pe.uniform[counter]:
        _go(pe, instruction)
    # cost
    control_cost(pe, instruction, pe.config.alu_latency)


def _bar(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    on = threads_on(pe, instruction)
    name = instruction.operands[0] if instruction.operands else Immediate(0)
    assert isinstance(name, Immediate)
    # operation: whoever runs the processing elements lets them go on together
    pe.barrier = name.value, pe.pc
    # cost
    control_cost(pe, instruction)
    return [] if on.all() else [("divergent_barrier", int(on.argmin()), -1)]


def _setmm(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    columns, *rows = (uniform_source(pe, o) for o in instruction.operands)
    # operation
    wrong = not 1 <= columns <= pe.config.loader_threads or any(r < 1 for r in rows)
    if not wrong:
        pe.columns, pe.rows = columns, rows[0] if rows else None
    # cost
    control_cost(pe, instruction)
    return [("count_out_of_range", -1, -1)] if wrong else []


def _peid(pe: Pe, instruction: Instruction) -> None:
    # operation, result
    write(pe, instruction, pe.number)
    # cost
    control_cost(pe, instruction)


def _npe(pe: Pe, instruction: Instruction) -> None:
    # operation, result
    write(pe, instruction, pe.config.pes)
    # cost
    control_cost(pe, instruction)


def _halt(pe: Pe, instruction: Instruction) -> None:
    # operation
    pe.halted = True
    # cost
    control_cost(pe, instruction)


CONTROL_HANDLERS: dict[str, Handler] = {
    "jump": _jump,
    "br": _br,
    "loop": _loop,
    "bar": _bar,
    "setmm": _setmm,
    "peid": _peid,
    "npe": _npe,
    "nop": control_cost,
    "halt": _halt,
}

"""What instructions have in common: reading operands, writing results, and their place on the scoreboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.isa.chip.state import Pe, wrap
from tilewright.isa.language.errors import Faults
from tilewright.isa.language.program import Float, Immediate, Instruction, Operand, Register

Array = np.ndarray[Any, Any]
Handler = Callable[[Pe, Instruction], Faults | None]
"""One instruction: it changes the processing element, and returns what it has to report."""


def number(operand: Operand) -> int:
    """The number of a register operand (the assembler saw to it that it is one)."""
    assert isinstance(operand, Register)
    return operand.number


def source(pe: Pe, operand: Operand) -> Any:
    """The value of r, ur, imm or float: int64[threads], or one Python integer."""
    if isinstance(operand, Register) and operand.kind == "r":
        return pe.registers[:, operand.number].astype(np.int64)
    return uniform_source(pe, operand)


def uniform_source(pe: Pe, operand: Operand) -> int:
    """The value of ur, imm or float as a signed 32-bit integer."""
    if isinstance(operand, Immediate):
        return wrap(operand.value)
    if isinstance(operand, Float):
        return wrap(operand.bits)
    return pe.uniform[number(operand)]


def count_of(pe: Pe, instruction: Instruction, place: int, default: int = 1) -> Any:
    """An optional count operand: an integer, or int64[threads], 0 in threads the guard keeps out."""
    if len(instruction.operands) <= place:
        return default
    count = source(pe, instruction.operands[place])
    return np.where(threads_on(pe, instruction), count, 0) if np.ndim(count) else count


def threads_on(pe: Pe, instruction: Instruction) -> Array:
    """bool[threads]: the guard's predicate, all true without a guard."""
    if instruction.guard is None:
        return np.ones(pe.config.threads, bool)
    return pe.predicates[:, instruction.guard.predicate] ^ instruction.guard.negated


def spans(pe: Pe, instruction: Instruction, operands: tuple[Operand, ...], guard: bool = True) -> list[slice]:
    """The scoreboard's places of register operands and, for what is read, of the guard."""
    places = [pe.clock.span(o.kind, o.number) for o in operands if isinstance(o, Register)]
    if guard and instruction.guard is not None:
        places.append(pe.clock.span("p", instruction.guard.predicate))
    return places


def write(pe: Pe, instruction: Instruction, value: Any) -> None:
    """Put a value (integers modulo 2^32, or booleans for a predicate) in the first operand, where the guard is true."""
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    if destination.kind == "ur":
        pe.uniform[destination.number] = wrap(value)
        return
    on = True if instruction.guard is None else threads_on(pe, instruction)
    if destination.kind == "p":
        np.copyto(pe.predicates[:, destination.number], value, where=on)
        return
    words = np.asarray(value, np.int64).astype(np.uint32).view(np.int32)
    np.copyto(pe.registers[:, destination.number], words, where=on)
    pe.mark_written(destination.number, 1, on)
    pe.traffic.register_writes += pe.config.threads if on is True else int(np.count_nonzero(on))


def control_cost(pe: Pe, instruction: Instruction, latency: int = 1) -> None:
    """One issue of the control unit: every operand is read; a first one that the table writes is ready afterwards."""
    operands, table = instruction.operands, instruction.spec.operands
    written = operands[:1] if table and table[0].access == "write" else ()
    writes = spans(pe, instruction, written, guard=False)
    pe.clock.step("control", instruction.name, spans(pe, instruction, operands), writes, latency)


def scalar_cost(pe: Pe, instruction: Instruction) -> None:
    """One issue; the first operand is ready after the table's latency, the others are read."""
    known = pe.known.get(id(instruction))
    if known is None or known[0] is not instruction:  # kept with it, so that no other one can have its identity
        known = pe.known[id(instruction)] = (instruction, *_scalar_cost(pe, instruction))
    _, unit, places, written, registers, latency = known
    pe.traffic.register_reads += registers
    pe.clock.scalar(unit, instruction.name, places, written, latency)


def _scalar_cost(pe: Pe, instruction: Instruction) -> tuple[str, list[int], int, int, int]:
    """Unit, places on the scoreboard, of them the one written (-1: none), words read per register, latency."""
    operands, latency = instruction.operands, instruction.spec.latency
    reads, writes = spans(pe, instruction, operands[1:]), spans(pe, instruction, operands[:1], guard=False)
    per_thread = sum(isinstance(o, Register) and o.kind == "r" for o in operands[1:])
    cycles = getattr(pe.config, latency) if latency else 1
    written = writes[0].start if writes else -1
    places = [span.start for span in (*reads, *writes)]
    return instruction.spec.unit, places, written, per_thread * pe.config.threads, cycles

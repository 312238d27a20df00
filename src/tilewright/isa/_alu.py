"""Arithmetic, moves, comparisons and predicates.

Every instruction has the same four phases: operands, operation, result, cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.isa._program import Immediate, Instruction, Operand, Register
from tilewright.isa._state import MachineState, wrap

__all__ = ["HANDLERS", "count_of", "number", "source", "spans", "threads_on", "uniform_source"]

Array = np.ndarray[Any, Any]


def number(operand: Operand) -> int:
    """The number of a register operand (the assembler saw to it that it is one)."""
    assert isinstance(operand, Register)
    return operand.number


def source(state: MachineState, operand: Operand) -> Any:
    """The value of r, ur or imm: int64[threads], or one integer."""
    if isinstance(operand, Register) and operand.kind == "r":
        return state.registers[:, operand.number].astype(np.int64)
    return np.int64(uniform_source(state, operand))


def uniform_source(state: MachineState, operand: Operand) -> int:
    """The value of ur or imm as a signed 32-bit integer."""
    if isinstance(operand, Immediate):
        return wrap(operand.value)
    return state.uniform[number(operand)]


def count_of(state: MachineState, instruction: Instruction, place: int, default: int = 1) -> Any:
    """An optional count operand: an integer, or int64[threads]."""
    return source(state, instruction.operands[place]) if len(instruction.operands) > place else default


def threads_on(state: MachineState, instruction: Instruction) -> Array:
    """bool[threads]: the guard's predicate, all true without a guard."""
    if instruction.guard is None:
        return np.ones(state.config.threads, bool)
    return state.predicates[:, instruction.guard.predicate] ^ instruction.guard.negated


def spans(state: MachineState, instruction: Instruction, operands: tuple[Operand, ...]) -> list[slice]:
    """The scoreboard's places of register operands and of the guard."""
    found = [state.clock.span(o.kind, o.number) for o in operands if isinstance(o, Register)]
    if instruction.guard is not None:
        found.append(state.clock.span("p", instruction.guard.predicate))
    return found


def _write(state: MachineState, instruction: Instruction, value: Any) -> None:
    destination = instruction.operands[0]
    assert isinstance(destination, Register)
    if destination.kind == "ur":
        state.uniform[destination.number] = wrap(value)
        return
    words = np.broadcast_to(np.asarray(value, np.int64).astype(np.uint32).view(np.int32), (state.config.threads,))
    np.copyto(state.registers[:, destination.number], words, where=threads_on(state, instruction))


def _cost(state: MachineState, instruction: Instruction) -> None:
    operands = instruction.operands
    reads, writes = spans(state, instruction, operands[1:]), spans(state, instruction, operands[:1])
    state.clock.step("arithmetic", instruction.name, reads, writes, state.config.alu_latency)


def _arithmetic(operation: Callable[[Any, Any], Any]) -> Callable[[MachineState, Instruction], None]:
    def execute(state: MachineState, instruction: Instruction) -> None:
        # operands
        x, y = (source(state, o) for o in instruction.operands[1:])
        # operation
        value = operation(x, y)
        # result
        _write(state, instruction, value)
        # cost
        _cost(state, instruction)

    return execute


def _division(remainder: bool) -> Callable[[MachineState, Instruction], None]:
    def execute(state: MachineState, instruction: Instruction) -> None:
        # operands
        x, y = np.broadcast_arrays(*(source(state, o) for o in instruction.operands[1:]))
        # operation
        zero = y == 0
        safe = np.where(zero, 1, y)
        quotient = np.abs(x) // np.abs(safe) * np.sign(x) * np.sign(safe)
        value = np.where(zero, 0, x - safe * quotient if remainder else quotient)
        # result
        _write(state, instruction, value)
        if zero.ndim == 0:
            bad = [-1] if zero else []
        else:
            bad = np.flatnonzero(zero & threads_on(state, instruction)).tolist()
        # cost
        _cost(state, instruction)
        state.record(instruction, [("divide_by_zero", thread, -1) for thread in bad])

    return execute


def _mov(state: MachineState, instruction: Instruction) -> None:
    # operands
    value = source(state, instruction.operands[1])
    # operation, result
    _write(state, instruction, value)
    # cost
    _cost(state, instruction)


def _tid(state: MachineState, instruction: Instruction) -> None:
    # operands
    value = np.arange(state.config.threads, dtype=np.int64)
    # operation, result
    _write(state, instruction, value)
    # cost
    _cost(state, instruction)


def _clr(state: MachineState, instruction: Instruction) -> None:
    # operands
    first, on = number(instruction.operands[0]), threads_on(state, instruction)
    count = count_of(state, instruction, 1)
    most = max(0, int(np.max(count)))
    # operation
    if first + most > state.config.registers:
        state.clock.step("arithmetic", "clr", (), ())
        state.record(instruction, [("operand_out_of_range", -1, state.config.registers)])
        return
    # result
    window = state.registers[:, first : first + most]
    window[on[:, None] & (np.arange(most) < np.reshape(count, (-1, 1)))] = 0
    # cost
    written = [state.clock.span("r", first, most)] if most else []
    state.clock.step("arithmetic", "clr", spans(state, instruction, instruction.operands[1:]), written, max(1, most))


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def compare(condition: str | None, x: Any, y: Any) -> Any:
    """X cond Y."""
    return _COMPARE[condition or ""](x, y)


def _cmp(state: MachineState, instruction: Instruction) -> None:
    # operands
    x, y = (source(state, o) for o in instruction.operands[1:])
    # operation
    value = compare(instruction.suffix("cond"), x, y)
    # result
    state.predicates[:, number(instruction.operands[0])] = value
    # cost
    _cost(state, instruction)


def _logic(operation: Callable[..., Any]) -> Callable[[MachineState, Instruction], None]:
    def execute(state: MachineState, instruction: Instruction) -> None:
        # operands
        values = [state.predicates[:, number(o)] for o in instruction.operands[1:]]
        # operation, result
        state.predicates[:, number(instruction.operands[0])] = operation(*values)
        # cost
        _cost(state, instruction)

    return execute


HANDLERS: dict[str, Callable[[MachineState, Instruction], None]] = {
    "mov": _mov,
    "clr": _clr,
    "tid": _tid,
    "add": _arithmetic(np.add),
    "sub": _arithmetic(np.subtract),
    "mul": _arithmetic(np.multiply),
    "div": _division(remainder=False),
    "rem": _division(remainder=True),
    "min": _arithmetic(np.minimum),
    "max": _arithmetic(np.maximum),
    "and": _arithmetic(np.bitwise_and),
    "or": _arithmetic(np.bitwise_or),
    "xor": _arithmetic(np.bitwise_xor),
    "shl": _arithmetic(lambda x, y: x << (y & 31)),
    "shr": _arithmetic(lambda x, y: x >> (y & 31)),
    "cmp": _cmp,
    "pand": _logic(np.logical_and),
    "por": _logic(np.logical_or),
    "pnot": _logic(np.logical_not),
}

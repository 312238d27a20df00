"""Moves and integer arithmetic.

Every instruction, here and in the files beside this one, has the same four phases: operands, operation, result, cost.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.isa._operands import Handler, count_of, number, scalar_cost, source, spans, threads_on, write
from tilewright.isa._program import Instruction, Register
from tilewright.isa._state import Pe

__all__ = ["INTEGER_HANDLERS"]


def _arithmetic(operation: Callable[..., Any], uniform: Callable[..., Any] | None = None) -> Handler:
    """``uniform``: the same on Python integers, where ``operation`` takes arrays only."""
    on_uniform = uniform or operation

    def execute(pe: Pe, instruction: Instruction) -> None:
        # operands
        values = (source(pe, o) for o in instruction.operands[1:])
        # operation: words of 32 bits, so that no sum or product leaves 64
        value = (on_uniform if _is_uniform(instruction) else operation)(*values)
        # result
        write(pe, instruction, value)
        # cost
        scalar_cost(pe, instruction)

    return execute


def _is_uniform(instruction: Instruction) -> bool:
    destination = instruction.operands[0]
    return isinstance(destination, Register) and destination.kind == "ur"


def _divided(x: int, y: int, remainder: bool) -> int:
    """The quotient towards zero, or what is left; 0 where y is."""
    if y == 0:
        return 0
    quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    return x - y * quotient if remainder else quotient


def _division(remainder: bool) -> Handler:
    def execute(pe: Pe, instruction: Instruction) -> None:
        # operands
        values = [source(pe, o) for o in instruction.operands[1:]]
        if _is_uniform(instruction):
            write(pe, instruction, _divided(values[0], values[1], remainder))
            scalar_cost(pe, instruction)
            pe.record(instruction, [("divide_by_zero", -1, -1)] if values[1] == 0 else [])
            return
        x, y = np.broadcast_arrays(*values)
        # operation
        zero = y == 0
        safe = np.where(zero, 1, y)
        quotient = np.abs(x) // np.abs(safe) * np.sign(x) * np.sign(safe)
        value = np.where(zero, 0, x - safe * quotient if remainder else quotient)
        # result
        write(pe, instruction, value)
        if zero.ndim == 0:
            bad = [-1] if zero else []
        else:
            bad = np.flatnonzero(zero & threads_on(pe, instruction)).tolist()
        # cost
        scalar_cost(pe, instruction)
        pe.record(instruction, [("divide_by_zero", thread, -1) for thread in bad])

    return execute


def _mov(pe: Pe, instruction: Instruction) -> None:
    # operands
    value = source(pe, instruction.operands[1])
    # operation, result
    write(pe, instruction, value)
    # cost
    scalar_cost(pe, instruction)


def _tid(pe: Pe, instruction: Instruction) -> None:
    # operands
    value = np.arange(pe.config.threads, dtype=np.int64)
    # operation, result
    write(pe, instruction, value)
    # cost
    scalar_cost(pe, instruction)


def _sel(pe: Pe, instruction: Instruction) -> None:
    # operands
    choice = pe.predicates[:, number(instruction.operands[1])]
    x, y = (source(pe, o) for o in instruction.operands[2:])
    # operation, result
    write(pe, instruction, np.where(choice, x, y))
    # cost
    scalar_cost(pe, instruction)


def _read(pe: Pe, instruction: Instruction) -> None:
    # operands
    thread = int(source(pe, instruction.operands[2]))
    there = 0 <= thread < pe.config.threads
    # operation, result
    write(pe, instruction, pe.registers[thread, number(instruction.operands[1])] if there else 0)
    # cost
    scalar_cost(pe, instruction)
    pe.record(instruction, [] if there else [("thread_out_of_range", thread, -1)])


def _clr(pe: Pe, instruction: Instruction) -> None:
    # operands
    first, on = number(instruction.operands[0]), threads_on(pe, instruction)
    count = count_of(pe, instruction, 1)
    most = max(0, int(np.max(count)))
    # operation
    if first + most > pe.config.registers:
        pe.clock.step("alu", "clr")
        pe.record(instruction, [("operand_out_of_range", -1, pe.config.registers)])
        return
    # result
    if np.ndim(count) == 0 and on.all():
        pe.registers[:, first : first + most] = 0
        pe.mark_written(first, most, on)
        pe.traffic.register_writes += most * len(on)
    else:
        cleared = on[:, None] & (np.arange(most) < np.reshape(count, (-1, 1)))
        pe.registers[:, first : first + most][cleared] = 0
        if pe.written is not None:
            pe.written[:, first : first + most] |= cleared
        pe.traffic.register_writes += int(np.count_nonzero(cleared))
    # cost
    written = [pe.clock.span("r", first, most)] if most else []
    pe.clock.step("alu", "clr", spans(pe, instruction, instruction.operands[1:]), written, max(1, most))


INTEGER_HANDLERS: dict[str, Handler] = {
    "mov": _mov,
    "clr": _clr,
    "tid": _tid,
    "sel": _sel,
    "read": _read,
    "add": _arithmetic(operator.add),
    "sub": _arithmetic(operator.sub),
    "mul": _arithmetic(operator.mul),
    "mad": _arithmetic(lambda x, y, z: x * y + z),
    "div": _division(remainder=False),
    "rem": _division(remainder=True),
    "min": _arithmetic(np.minimum, min),
    "max": _arithmetic(np.maximum, max),
    "and": _arithmetic(operator.and_),
    "or": _arithmetic(operator.or_),
    "xor": _arithmetic(operator.xor),
    "not": _arithmetic(operator.invert),
    "shl": _arithmetic(lambda x, y: x << (y & 31)),
    "shr": _arithmetic(lambda x, y: x >> (y & 31)),
    "shru": _arithmetic(lambda x, y: (x & 0xFFFFFFFF) >> (y & 31)),
}

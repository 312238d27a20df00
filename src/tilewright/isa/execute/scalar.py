"""Instructions of the arithmetic unit (moves, integers, floats, predicates), and control: branches, loops, barriers.

Every instruction, here and in the files beside this one, has the same four phases: operands, operation, result, cost.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.isa.chip.state import Pe, wrap
from tilewright.isa.execute import operands
from tilewright.isa.language.errors import Array, Faults
from tilewright.isa.language.program import Instruction, Operand

Value = Callable[[Pe, Instruction], Any]


def _writing(value: Value) -> operands.Handler:
    """The instruction that works out ``value`` from its operands and writes it to the first one."""

    def execute(pe: Pe, instruction: Instruction) -> None:
        # operands, operation
        result = value(pe, instruction)
        # result
        operands.write(pe, instruction, result)
        # cost
        operands.scalar_cost(pe, instruction)

    return execute


def _arithmetic(
    operation: Callable[..., Any], operand: Callable[[Pe, Operand], Any] = operands.source
) -> operands.Handler:
    """``operation`` on operands as ``operand`` reads them, by default words of 32 bits: no sum or product leaves 64."""
    return _writing(lambda pe, instruction: operation(*(operand(pe, o) for o in instruction.operands[1:])))


def _division(remainder: bool) -> operands.Handler:
    """The quotient towards zero, or what is left; 0 where the divisor is."""

    def execute(pe: Pe, instruction: Instruction) -> Faults:
        # operands
        x, y = (np.asarray(operands.source(pe, o)) for o in instruction.operands[1:])
        # operation, of one number or of every thread's
        zero = y == 0
        divisor = np.where(zero, 1, y)
        quotient = np.abs(x) // np.abs(divisor) * np.where((x < 0) == (divisor < 0), 1, -1)
        value = np.where(zero, 0, x - divisor * quotient if remainder else quotient)
        undefined = [-1] if zero.any() else []
        if undefined and np.ndim(value):
            undefined = np.flatnonzero(zero & operands.threads_on(pe, instruction)).tolist()
        # result
        operands.write(pe, instruction, value)
        # cost
        operands.scalar_cost(pe, instruction)
        return [("divide_by_zero", thread, -1) for thread in undefined]

    return execute


def _select(pe: Pe, instruction: Instruction) -> Any:
    return np.where(
        _predicate(pe, instruction.operands[1]), *(operands.source(pe, o) for o in instruction.operands[2:])
    )


def _read(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    thread = int(operands.source(pe, instruction.operands[2]))
    inside = 0 <= thread < pe.config.threads
    # operation, result
    operands.write(pe, instruction, pe.registers[thread, operands.number(instruction.operands[1])] if inside else 0)
    # cost
    operands.scalar_cost(pe, instruction)
    return [] if inside else [("thread_out_of_range", thread, -1)]


def _clr(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    first, on = operands.number(instruction.operands[0]), operands.threads_on(pe, instruction)
    count = operands.count_of(pe, instruction, 1)
    most = max(0, int(np.max(count)))
    # operation
    if first + most > pe.config.registers:
        pe.clock.step("alu", "clr")
        return [("operand_out_of_range", -1, pe.config.registers)]
    # result
    pe.product += 1
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
    pe.clock.step("alu", "clr", operands.spans(pe, instruction, instruction.operands[1:]), written, max(1, most))
    return []


# float32 arithmetic and conversions, one rounding each, the same bits on every machine.


def as_float(pe: Pe, operand: Operand) -> Array:
    """The 32 bits of an operand as float32: [threads], or one."""
    return np.asarray(operands.source(pe, operand)).astype(np.uint32).view(np.float32)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """float32 x * y + z with one rounding.

    The product is exact in float64; its sum is rounded to odd there, so that rounding to float32 is the only one.

    >>> x, z = np.float32(1 + 2**-12), np.float32(-1)
    >>> float(fused_multiply_add(x, x, z)) == 2**-11 + 2**-24
    True
    """
    p, c = np.float64(x) * np.float64(y), np.float64(z)
    total = np.asarray(p + c)
    back = total - p
    lost = np.asarray((p - (total - back)) + (c - back))
    odd = total.view(np.int64) & 1 == 1
    inexact = (lost != 0) & np.isfinite(lost) & np.isfinite(total) & ~odd
    towards = np.where((lost > 0) == (total > 0), 1, -1)
    return (total.view(np.int64) + np.where(inexact, towards, 0)).view(np.float64).astype(np.float32)


def _float_arithmetic(operation: Callable[..., Any]) -> operands.Handler:
    def rounded(*values: Array) -> Array:
        with np.errstate(all="ignore"):
            single = np.asarray(operation(*values), np.float32)
        return np.where(np.isnan(single), operands.NAN, single.view(np.uint32)).astype(np.int64)  # as words

    return _arithmetic(rounded, as_float)


def _convert(pe: Pe, instruction: Instruction) -> Array:
    words = np.asarray(operands.source(pe, instruction.operands[1]))
    of, to = instruction.suffix("from") or "", instruction.suffix("to") or ""
    packed = words.astype(np.uint32).view(np.int32).reshape(-1, 1)
    with np.errstate(all="ignore"):
        values = operands.convert(operands.unpack(packed, of, 1), of, to, nearest=False)
    return operands.pack(values, np.zeros_like(packed)).reshape(words.shape)


# Comparisons into predicates, logic on them, and votes: one uniform register from what all threads say.


def compare(condition: str | None, x: Any, y: Any) -> Any:
    """X cond Y (eq, ne, lt, le, gt, ge), of signed integers or, where it ends in u, of the same words unsigned."""
    name = condition or ""
    if name.endswith("u"):
        return compare(name[:-1], x & 0xFFFFFFFF, y & 0xFFFFFFFF)
    return getattr(operator, name)(x, y)


def _comparison(operand: Callable[[Pe, Operand], Any]) -> operands.Handler:
    def value(pe: Pe, instruction: Instruction) -> Any:
        x, y = (operand(pe, o) for o in instruction.operands[1:])
        return compare(instruction.suffix("cond"), x, y)

    return _writing(value)


def _predicate(pe: Pe, operand: Operand) -> Array:
    return pe.predicates[:, operands.number(operand)]


SCALAR_HANDLERS: dict[str, operands.Handler] = {
    "mov": _writing(lambda pe, instruction: operands.source(pe, instruction.operands[1])),
    "clr": _clr,
    "tid": _writing(lambda pe, _: np.arange(pe.config.threads, dtype=np.int64)),
    "sel": _writing(_select),
    "read": _read,
    "add": _arithmetic(operator.add),
    "sub": _arithmetic(operator.sub),
    "mul": _arithmetic(operator.mul),
    "mad": _arithmetic(lambda x, y, z: x * y + z),
    "div": _division(remainder=False),
    "rem": _division(remainder=True),
    "min": _arithmetic(np.minimum),
    "max": _arithmetic(np.maximum),
    "and": _arithmetic(operator.and_),
    "or": _arithmetic(operator.or_),
    "xor": _arithmetic(operator.xor),
    "not": _arithmetic(operator.invert),
    "shl": _arithmetic(lambda x, y: x << (y & 31)),
    "shr": _arithmetic(lambda x, y: x >> (y & 31)),
    "shru": _arithmetic(lambda x, y: (x & 0xFFFFFFFF) >> (y & 31)),
    "fadd": _float_arithmetic(np.add),
    "fsub": _float_arithmetic(np.subtract),
    "fmul": _float_arithmetic(np.multiply),
    "fma": _float_arithmetic(fused_multiply_add),
    "fdiv": _float_arithmetic(np.divide),
    "fsqrt": _float_arithmetic(np.sqrt),
    "fmin": _float_arithmetic(lambda x, y: np.where((x <= y) | np.isnan(y), x, y)),
    "fmax": _float_arithmetic(lambda x, y: np.where((x >= y) | np.isnan(y), x, y)),
    "cvt": _writing(_convert),
    "cmp": _comparison(operands.source),
    "fcmp": _comparison(as_float),
    "pand": _arithmetic(np.logical_and, _predicate),
    "por": _arithmetic(np.logical_or, _predicate),
    "pxor": _arithmetic(np.logical_xor, _predicate),
    "pnot": _arithmetic(np.logical_not, _predicate),
    "pany": _arithmetic(np.any, _predicate),
    "pall": _arithmetic(np.all, _predicate),
    "pcount": _arithmetic(np.count_nonzero, _predicate),
}


# Branches, loops, barriers, setmm and halt.


def _go(pe: Pe, instruction: Instruction) -> None:
    pe.next_pc = pe.labels[str(instruction.operands[-1])]


def _br(pe: Pe, instruction: Instruction) -> None:
    # operands
    x, y = (operands.uniform_source(pe, o) for o in instruction.operands[:2])
    # operation
    if compare(instruction.suffix("cond"), x, y):
        _go(pe, instruction)


def _loop(pe: Pe, instruction: Instruction) -> None:
    # operands
    counter = operands.number(instruction.operands[0])
    # operation, result
    pe.uniform[counter] = wrap(pe.uniform[counter] - 1)
    if pe.uniform[counter]:
        _go(pe, instruction)
    # cost
    operands.control_cost(pe, instruction, pe.config.alu_latency)


def _bar(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    on = operands.threads_on(pe, instruction)
    name = operands.uniform_source(pe, instruction.operands[0]) if instruction.operands else 0
    # operation: the runner lets all of them go on
    pe.barrier = name, pe.pc
    return [] if on.all() else [("divergent_barrier", int(on.argmin()), -1)]


def _setmm(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    columns, *rows = (operands.uniform_source(pe, o) for o in instruction.operands)
    # operation
    wrong = not 1 <= columns <= pe.config.loader_threads or any(r < 1 for r in rows)
    if not wrong:
        pe.columns, pe.rows = columns, rows[0] if rows else None
        pe.product += 1
    return [("count_out_of_range", -1, -1)] if wrong else []


def _halt(pe: Pe, instruction: Instruction) -> None:
    pe.halted = True


CONTROL_HANDLERS: dict[str, operands.Handler] = {
    "jump": operands.controlling(_go),
    "br": operands.controlling(_br),
    "loop": _loop,
    "bar": operands.controlling(_bar),
    "setmm": operands.controlling(_setmm),
    "peid": operands.controlling(lambda pe, instruction: operands.write(pe, instruction, pe.number)),
    "npe": operands.controlling(lambda pe, instruction: operands.write(pe, instruction, pe.config.pes)),
    "nop": operands.control_cost,
    "halt": operands.controlling(_halt),
}

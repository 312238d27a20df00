"""Vector instructions: the same on N registers of every thread, along them, and across threads.

Floats are float32 and each operation rounds once. Functions are evaluated in float64 by additions, multiplications,
divisions and square roots in a fixed order and rounded once more, so that every machine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa.chip.state import Pe
from tilewright.isa.execute import operands
from tilewright.isa.execute.scalar import compare
from tilewright.isa.language.errors import Array, Faults
from tilewright.isa.language.program import Instruction, Register

# Functions of float32, in float64: the exponential and the logarithm as a power of two times a polynomial.

_LOG2E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_TAYLOR = tuple(1.0 / float(np.prod(np.arange(1, n + 1, dtype=np.float64))) for n in range(12))
_LOG = tuple(2.0 / n for n in (3, 5, 7, 9, 11, 13, 15, 17, 19, 21))


def exp64(x: Array) -> Array:
    """e^x of float64 within some units in its last place, for -1e3 < x < 1e3; by + and * alone."""
    power = np.rint(x * _LOG2E)
    r = x - power * _LN2_HIGH
    r -= power * _LN2_LOW
    value = np.full_like(r, _TAYLOR[-1])
    for coefficient in _TAYLOR[-2::-1]:
        value *= r
        value += coefficient
    return np.asarray(np.ldexp(value, power.astype(np.int32)))


def _log(x: Array) -> Array:
    """By the series of the inverse hyperbolic tangent, of a fraction between sqrt(1/2) and sqrt(2)."""
    fraction, power = np.frexp(x)
    small = fraction < 0.7071067811865476
    fraction = np.where(small, fraction * 2.0, fraction)
    power = (power - small).astype(np.float64)
    s = (fraction - 1.0) / (fraction + 1.0)
    square = s * s
    series = np.full_like(s, _LOG[-1])
    for coefficient in _LOG[-2::-1]:
        series *= square
        series += coefficient
    value = power * _LN2_HIGH + (power * _LN2_LOW + (2.0 * s + s * (square * series)))
    value = np.where(x == 0, -np.inf, np.where(x < 0, np.nan, value))
    return np.asarray(np.where(np.isposinf(x) | np.isnan(x), x, value))


def _tanh(x: Array) -> Array:
    size = np.abs(x)
    twice = exp64(np.minimum(size, 20.0) * 2.0)
    large = (twice - 1.0) / (twice + 1.0)
    square = size * size
    small = size * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
    return np.copysign(np.where(size < 0.01, small, large), x)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "exp": lambda x: exp64(np.clip(x, -200.0, 200.0)),  # float32 ends long before; a NaN stays one
    "log": _log,
    "tanh": _tanh,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sqrt": np.sqrt,
    "recip": lambda x: 1.0 / x,
}
"""Of float32 numbers as float64; the result is rounded to float32."""


# Operations on float32 and on 32-bit integers; ``out`` may be one of the operands.


def _float_extreme(is_first: Any) -> Callable[[Any, Any, Array], None]:
    return lambda x, y, out: np.copyto(out, np.where(is_first(x, y) | np.isnan(x), x, y))


def _plain(operation: Any) -> Callable[[Any, Any, Array], None]:
    return lambda x, y, out: operation(x, y, out=out)


def _unsigned(operation: Any) -> Callable[[Any, Any, Array], None]:
    return lambda x, y, out: operation(x.view(np.uint32), y.view(np.uint32), out=out.view(np.uint32))


def _shifted(operation: Any, unsigned: bool = False) -> Callable[[Any, Any, Array], None]:
    def shift(x: Any, y: Any, out: Array) -> None:
        kind = np.uint32 if unsigned else np.int32
        operation(x.view(kind), (y & np.int32(31)).view(kind), out=out.view(kind))

    return shift


def _divided(remainder: bool) -> Callable[[Any, Any, Array], None]:
    def divide(x: Any, y: Any, out: Array) -> None:
        zero = y == 0
        # A quotient of 32-bit integers is never so near to a whole number that float64 would round it there.
        quotient = np.trunc(np.float64(x) / np.where(zero, 1, y)).astype(np.int64)
        quotient = np.where(zero, 0 if remainder else -1, quotient).astype(np.uint32, casting="unsafe").view(np.int32)
        np.copyto(out, x - y * quotient if remainder else quotient)

    return divide


FLOATS: dict[str, Callable[[Any, Any, Array], None]] = {
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "div": _plain(np.divide),
    "min": _float_extreme(np.less_equal),
    "max": _float_extreme(np.greater_equal),
}
INTEGERS: dict[str, Callable[[Any, Any, Array], None]] = {
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "div": _divided(remainder=False),
    "rem": _divided(remainder=True),
    "min": _plain(np.minimum),
    "max": _plain(np.maximum),
    "minu": _unsigned(np.minimum),
    "maxu": _unsigned(np.maximum),
    "and": _plain(np.bitwise_and),
    "or": _plain(np.bitwise_or),
    "xor": _plain(np.bitwise_xor),
    "shl": _shifted(np.left_shift),
    "shr": _shifted(np.right_shift),
    "shru": _shifted(np.right_shift, unsigned=True),
}
IDENTITIES = {
    ("add", "f32"): -0.0,
    ("add", "s32"): 0,
    ("max", "f32"): -np.inf,
    ("max", "s32"): -(2**31),
    ("min", "f32"): np.inf,
    ("min", "s32"): 2**31 - 1,
}
"""What a reduction (operation, type) of no elements gives."""


# Reductions by halves.


def halves(values: Array, operation: Callable[[Any, Any, Array], None], axis: int) -> Array:
    """Of ``values``, which are used up: one is left along the axis.

    >>> halves(np.arange(5, dtype=np.int32)[None], INTEGERS["add"], 1).tolist()
    [[10]]
    """
    while (n := values.shape[axis]) > 1:
        half = -(-n // 2)
        low, high = (values[:half], values[half:]) if axis == 0 else (values[:, :half], values[:, half:])
        first = low[: n - half] if axis == 0 else low[:, : n - half]
        operation(first, high, first)
        values = low
    return values


def _reduction(instruction: Instruction) -> tuple[Callable[[Any, Any, Array], None], Any, Any]:
    """The operation, the type it works on, and what changes nothing."""
    op, kind = instruction.suffix("op") or "", instruction.suffix("type") or ""
    table, dtype = (FLOATS, np.float32) if kind == "f32" else (INTEGERS, np.int32)
    return table[op], dtype, dtype(IDENTITIES[op, kind])


# The instructions: what each takes and leaves, and the phases they have in common.

_Body = Callable[[Pe, Instruction, int, Array], None]
"""Does the work on [threads, words] of D (int32): all threads, and D may be one of the sources."""


def _source_registers(pe: Pe, instruction: Instruction, place: int, count: int, kind: Any = np.int32) -> Any:
    """Operand ``place``: [threads, count] of its registers, [threads, 1] of one, or a number, as type ``kind``."""
    operand = instruction.operands[place]
    if isinstance(operand, Register) and operand.kind == "r":
        wide = 1 if _is_one(instruction, place) else count
        return pe.file[:, operand.number : operand.number + wide].view(kind)
    return np.array(operands.uniform_source(pe, operand), np.int32).view(kind)[()]


def _is_one(instruction: Instruction, place: int) -> bool:
    """Whether a source is one register of each thread for all."""
    spec, has_suffix = instruction.spec, any(s.key == "y" for s in instruction.spec.suffixes)
    return spec.operands[place].name == "Y" and has_suffix and instruction.suffix("y") == "1"


def _widths(instruction: Instruction, count: int) -> dict[int, int]:
    """Registers of every operand that is one or several, by its place."""
    converts = instruction.name in ("vcvt", "vquant")
    packed = {0: instruction.suffix("to"), 1: instruction.suffix("from")} if converts else {}
    widths = {}
    for place, operand in enumerate(instruction.operands[:-1]):
        if not (isinstance(operand, Register) and operand.kind == "r"):
            continue
        dtype = packed.get(place)
        one = _is_one(instruction, place) or (place == 0 and instruction.name == "vred")
        one = one or (place == 1 and instruction.name == "viota")
        widths[place] = operands.registers_of(dtype, count) if dtype else min(1, count) if one else count
    return widths


@dataclass(frozen=True)
class _Cost:
    """What is the same each time: N, registers (of D first), places on the scoreboard, cycles."""

    count: int
    into: int
    wide: int
    fits: bool
    read: int
    reads: tuple[slice, ...]
    writes: tuple[slice, ...]
    cycles: int
    slow: bool


def _cost(pe: Pe, instruction: Instruction, passes: int, slow: bool) -> _Cost:
    count, c = operands.uniform_source(pe, instruction.operands[-1]), pe.config
    widths = _widths(instruction, max(0, count)) if count <= 8 * c.registers else {0: count}
    starts = {place: operands.number(instruction.operands[place]) for place in widths}
    fits = all(starts[place] + width <= c.registers for place, width in widths.items())
    spanned = {place: pe.clock.span("r", starts[place], width) for place, width in widths.items() if width}
    others = tuple(o for place, o in enumerate(instruction.operands) if place not in widths)
    reads = *(span for place, span in spanned.items() if place), *operands.spans(pe, instruction, others)
    writes = (spanned[0],) if 0 in spanned else ()
    cycles = passes * max(0, c.special_cycles * count if slow else -(-count // c.vector_rate))
    read = sum(width for place, width in widths.items() if place)
    return _Cost(count, starts[0], widths[0], fits, read, reads, writes, cycles, slow)


def _vector(
    body: _Body,
    passes: Callable[[Pe, Instruction], int] | None = None,
    special: Callable[[Instruction], bool] | None = None,
) -> operands.Handler:
    """``passes``: over the registers; ``special``: whether each takes ``special_cycles``."""

    def execute(pe: Pe, instruction: Instruction) -> Faults:
        # operands
        number_of = operands.uniform_source(pe, instruction.operands[-1])
        cost: _Cost | None = pe.costs.get((instruction, number_of))
        if cost is None:
            slow = special is not None and special(instruction)
            cost = _cost(pe, instruction, 1 if passes is None else passes(pe, instruction), slow)
            if 0 <= number_of <= 8 * pe.config.registers:
                pe.costs[instruction, number_of] = cost
        count, into, wide = cost.count, cost.into, cost.wide
        if not cost.fits:
            pe.clock.step("vector", instruction.name)
            return [("operand_out_of_range", -1, pe.config.registers)]
        on = operands.threads_on(pe, instruction)
        active = pe.config.threads if instruction.guard is None else int(np.count_nonzero(on))
        # operation, result
        if count > 0 and active and pe.config.values:
            target = pe.file[:, into : into + wide]
            made = target if active == len(on) else target.copy()
            with np.errstate(all="ignore"):
                body(pe, instruction, count, made)
            if made is not target:
                np.copyto(target, made, where=on[:, None])
        if count > 0:
            pe.mark_written(into, wide, on)
        # cost
        done, traffic = max(0, count) * active, pe.traffic
        traffic.vector_ops += done
        traffic.special_ops += done if cost.slow else 0
        traffic.register_reads += active * cost.read
        traffic.register_writes += active * wide
        pe.clock.vector(instruction.name, cost.reads, cost.writes, cost.cycles)
        return []

    return execute


def _float_binary(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    x, y = (_source_registers(pe, instruction, place, count, np.float32) for place in (1, 2))
    out = into.view(np.float32)
    FLOATS[instruction.suffix("op") or ""](x, y, out)
    operands.unify_nans(out)


def _integer_binary(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    x, y = (_source_registers(pe, instruction, place, count) for place in (1, 2))
    INTEGERS[instruction.suffix("op") or ""](x, y, into)


def _function(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    x = _source_registers(pe, instruction, 1, count, np.float32)
    out = into.view(np.float32)
    np.copyto(out, FUNCTIONS[instruction.suffix("op") or ""](x.astype(np.float64)), casting="same_kind")
    operands.unify_nans(out)


def _comparison(kind: Any) -> _Body:
    def body(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
        x, y = (_source_registers(pe, instruction, place, count, kind) for place in (1, 2))
        condition = instruction.suffix("cond") or ""
        if condition.endswith("u"):
            x, y, condition = x.view(np.uint32), y.view(np.uint32), condition[:-1]
        np.copyto(into, compare(condition, x, y))

    return body


def _select(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    mask, x, y = (_source_registers(pe, instruction, place, count) for place in (1, 2, 3))
    np.copyto(into, np.where(mask != 0, x, y))


def _iota(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    operand = instruction.operands[1]
    per_thread = isinstance(operand, Register) and operand.kind == "r"
    first = (
        pe.file[:, operands.number(operand), None].copy()
        if per_thread
        else np.int32(operands.uniform_source(pe, operand))
    )
    np.add(first, np.arange(count, dtype=np.int32), out=into)


def _cvt(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    target, source = instruction.suffix("to") or "", instruction.suffix("from") or ""
    words = _source_registers(pe, instruction, 1, operands.registers_of(source, count))
    nearest, wrap = instruction.suffix("round") != "z", instruction.suffix("end") == "wrap"
    values = operands.convert(operands.unpack(words, source, count), source, target, nearest, wrap)
    into[:] = operands.pack(values, into)


def _quant(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    target, source = instruction.suffix("to") or "", instruction.suffix("from") or ""
    x = _source_registers(pe, instruction, 1, count, np.float32 if source == "f32" else np.int32).astype(np.float32)
    scaled = np.rint(x * _source_registers(pe, instruction, 2, count, np.float32)).astype(np.float64)
    scaled += operands.uniform_source(pe, instruction.operands[3])
    into[:] = operands.pack(operands.to_integers(scaled, target), into)


def _red(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    operation, kind, _ = _reduction(instruction)
    values = np.ascontiguousarray(_source_registers(pe, instruction, 1, count, kind))
    into.view(kind)[:] = halves(values.copy() if np.shares_memory(values, pe.file) else values, operation, 1)
    if kind is np.float32:
        operands.unify_nans(into.view(kind))


def _group(pe: Pe, instruction: Instruction) -> int:
    return min(int(instruction.suffix("g") or 0) or pe.config.threads, pe.config.threads)


def _thr(pe: Pe, instruction: Instruction, count: int, into: Array) -> None:
    operation, kind, nothing = _reduction(instruction)
    size, threads = _group(pe, instruction), pe.config.threads
    whole = -(-threads // size) * size
    values = np.full((whole, count), nothing, kind)
    on = operands.threads_on(pe, instruction)
    np.copyto(values[:threads], _source_registers(pe, instruction, 1, count, kind), where=on[:, None])
    grouped = values.reshape(-1, size, count).transpose(1, 0, 2)
    kept = halves(grouped, operation, 0).transpose(1, 0, 2)
    everywhere = np.broadcast_to(kept, (whole // size, size, count)).reshape(-1, count)
    into.view(kind)[:] = everywhere[:threads]
    if kind is np.float32:
        operands.unify_nans(into.view(kind))


VECTOR_HANDLERS: dict[str, operands.Handler] = {
    "vf": _vector(_float_binary, None, lambda instruction: instruction.suffix("op") == "div"),
    "vi": _vector(_integer_binary),
    "vfun": _vector(_function, special=lambda _: True),
    "vcmp": _vector(_comparison(np.int32)),
    "vfcmp": _vector(_comparison(np.float32)),
    "vsel": _vector(_select),
    "viota": _vector(_iota),
    "vcvt": _vector(_cvt),
    "vquant": _vector(_quant, passes=lambda *_: 2),
    "vred": _vector(_red),
    "vthr": _vector(_thr, passes=lambda pe, instruction: max(1, (_group(pe, instruction) - 1).bit_length())),
}

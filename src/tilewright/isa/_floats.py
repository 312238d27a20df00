"""float32 arithmetic and conversions, one rounding each, the same bits on every machine.

A register holds 32 bits; here they are a float32. Every NaN that comes out is 0x7fc00000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.isa._operands import Handler, scalar_cost, source, write
from tilewright.isa._program import Instruction, Operand
from tilewright.isa._state import Pe

__all__ = ["FLOAT_HANDLERS", "NAN", "as_float", "fused_multiply_add"]

Array = np.ndarray[Any, Any]
NAN = 0x7FC00000
"""The NaN that comes out of every float instruction."""
_ENDS = {"s32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1)}


def as_float(pe: Pe, operand: Operand) -> Array:
    """The 32 bits of an operand as float32: [threads], or one."""
    return np.asarray(source(pe, operand)).astype(np.uint32).view(np.float32)


def _bits(value: Any) -> Array:
    """A float32 as the word that holds it."""
    single = np.asarray(value, np.float32)
    return np.where(np.isnan(single), NAN, single.view(np.uint32)).astype(np.int64)


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


def _lesser(x: Array, y: Array) -> Array:
    return np.where((x <= y) | np.isnan(y), x, y)


def _greater(x: Array, y: Array) -> Array:
    return np.where((x >= y) | np.isnan(y), x, y)


def _arithmetic(operation: Callable[..., Any]) -> Handler:
    def execute(pe: Pe, instruction: Instruction) -> None:
        # operands
        values = (as_float(pe, o) for o in instruction.operands[1:])
        # operation
        with np.errstate(all="ignore"):
            value = operation(*values)
        # result
        write(pe, instruction, _bits(value))
        # cost
        scalar_cost(pe, instruction)

    return execute


def _decode(words: Array, dtype: str) -> Array:
    """Words as the numbers they stand for: float64, which holds all of them."""
    low = words.astype(np.uint32)
    if dtype == "s32":
        return low.view(np.int32).astype(np.float64)
    if dtype == "u32":
        return low.astype(np.float64)
    if dtype == "f16":
        return low.astype(np.uint16).view(np.float16).astype(np.float64)
    return (low << 16 if dtype == "bf16" else low).view(np.float32).astype(np.float64)


def _encode(value: Array, dtype: str) -> Array:
    """Numbers as words of a type."""
    if dtype in _ENDS:
        low, high = _ENDS[dtype]
        return np.where(np.isnan(value), 0, np.clip(np.trunc(value), low, high)).astype(np.int64)
    if dtype == "f16":
        half = value.astype(np.float16)
        return np.where(np.isnan(half), 0x7E00, half.view(np.uint16)).astype(np.int64)
    if dtype == "f32":
        return _bits(value.astype(np.float32))
    # Every value here is a float32, an f16 or an integer below 2^32: for the last, round to odd first.
    single = value.astype(np.float32)
    words = single.view(np.uint32).astype(np.int64)
    inexact = np.isfinite(single) & (single.astype(np.float64) != value)
    towards = np.where(np.abs(value) > np.abs(single.astype(np.float64)), 1, -1)
    words += np.where(inexact & (words & 1 == 0), towards, 0)
    rounded = (words + 0x7FFF + (words >> 16 & 1)) >> 16
    return np.where(np.isnan(value), 0x7FC0, rounded)


def _cvt(pe: Pe, instruction: Instruction) -> None:
    # operands
    words = np.asarray(source(pe, instruction.operands[1]))
    # operation
    with np.errstate(all="ignore"):
        value = _encode(_decode(words, instruction.suffix("from") or ""), instruction.suffix("to") or "")
    # result
    write(pe, instruction, value)
    # cost
    scalar_cost(pe, instruction)


FLOAT_HANDLERS: dict[str, Handler] = {
    "fadd": _arithmetic(np.add),
    "fsub": _arithmetic(np.subtract),
    "fmul": _arithmetic(np.multiply),
    "fma": _arithmetic(fused_multiply_add),
    "fdiv": _arithmetic(np.divide),
    "fsqrt": _arithmetic(np.sqrt),
    "fmin": _arithmetic(_lesser),
    "fmax": _arithmetic(_greater),
    "cvt": _cvt,
}

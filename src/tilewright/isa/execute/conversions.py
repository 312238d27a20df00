"""Element types: packed in registers, and converted to one another with one rounding, the same on every machine.

Narrow elements lie in the registers of a thread one behind the other, low bytes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.execute.operands import numpy_type

Array = np.ndarray[Any, Any]
NAN = 0x7FC00000
"""The NaN that comes out of every float instruction."""
_HOLDS: dict[str, Any] = {"s4": np.int8, "u4": np.uint8}


def unify_nans(out: Array) -> None:
    """Give every NaN of a float32 array the bits :data:`NAN`, in place."""
    nan = np.isnan(out)
    if nan.any():
        out.view(np.int32)[nan] = np.int32(NAN)


def unpack(words: Array, dtype: str, count: int) -> Array:
    """[threads, count] elements out of [threads, words of them]; 4-bit integers, one in a byte, as int8 or uint8."""
    raw: Array = np.ascontiguousarray(words).view(_HOLDS.get(dtype) or numpy_type(dtype))[:, :count]
    return _narrow(raw, dtype)


def pack(values: Array, old: Array) -> Array:
    """The words of ``old`` with these elements in their place, from the first on."""
    words: Array = np.ascontiguousarray(old)
    words.view(values.dtype)[:, : values.shape[1]] = values
    return words


def registers_of(dtype: str, count: int) -> int:
    """Registers that ``count`` packed elements take."""
    return -(-count * int(numpy_type(dtype).itemsize) // 4)


def ends_of(dtype: str) -> tuple[int, int]:
    """Least and greatest integer of a type.

    >>> ends_of("s4")
    (-8, 7)
    """
    bits = int(dtype[1:])
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _narrow(values: Array, dtype: str) -> Array:
    """Integers modulo 16, where the type has 4 bits."""
    if dtype not in _HOLDS:
        return values
    return np.asarray(((values & 15) ^ 8) - 8 if dtype == "s4" else values & 15)


def to_integers(value: Array, dtype: str) -> Array:
    """Float64 numbers without fractions to a type that ends where it ends; a NaN is 0."""
    held = np.clip(value, *ends_of(dtype))
    nan = np.isnan(held)
    if nan.any():
        held[nan] = 0
    return np.asarray(held.astype(np.int64).astype(_HOLDS.get(dtype) or numpy_type(dtype)))


def convert(values: Array, source: str, target: str, nearest: bool = True, wrap: bool = False) -> Array:
    """Elements of type ``source`` as type ``target``, rounded once.

    ``nearest``: floats to integers by the nearest one (ties to even), else towards zero. ``wrap``: integers modulo the
    target's width, else clipped to its ends; floats beyond them are clipped always.
    """
    if source[0] in "su" and target[0] in "su":
        if not wrap:
            (low, high), (least, most) = ends_of(source), ends_of(target)
            values = np.clip(values, max(low, least), min(high, most))
        return _narrow(values.astype(_HOLDS.get(target) or numpy_type(target)), target)
    if target[0] in "su":
        wide = values.astype(np.float64)
        return to_integers(np.rint(wide) if nearest else np.trunc(wide), target)
    return _to_float(values, source, target)


def _to_float(values: Array, source: str, target: str) -> Array:
    kind = numpy_type(target)
    if source[0] in "su":
        # Through float64, which holds all of them; then to odd in float32, so that one rounding is left.
        wide = values.astype(np.float64)
        if target == "f32":
            return wide.astype(np.float32)
        values = _to_odd(wide)
    else:
        values = values.astype(np.float32)
    out = values.astype(kind)
    if kind != np.float32:
        nan = np.isnan(values)
        if nan.any():
            out[nan] = kind.type(np.nan)
            out.view(f"u{kind.itemsize}")[nan] &= (1 << (8 * kind.itemsize - 1)) - 1
    else:
        unify_nans(out)
    return out


def _to_odd(value: Array) -> Array:
    """Float64 to float32, towards zero but to the odd neighbour where that is not exact."""
    single = value.astype(np.float32)
    words = single.view(np.int32)
    over = np.abs(single.astype(np.float64)) > np.abs(value)
    words -= over
    words |= single.astype(np.float64) != value
    return single

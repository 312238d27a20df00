"""Values narrower than a byte: packed low bits first, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["narrow", "to_type", "widen"]

Array = np.ndarray[Any, Any]


def narrow(slots: Array, bits: int, length: int) -> Array:
    """uint8[length]: the low ``bits`` bits of every slot (uint8), end to end.

    >>> narrow(np.array([1, 2, 15, 4], np.uint8), 4, 2).tolist()
    [33, 79]
    """
    if 8 % bits:
        unpacked = (slots[:, None] >> np.arange(bits, dtype=np.uint8)) & 1
        return np.packbits(unpacked.reshape(-1), bitorder="little")[:length]
    per_byte = 8 // bits
    whole = np.zeros(length * per_byte, np.uint8) if len(slots) % per_byte else slots
    whole[: len(slots)] = slots
    mask = np.uint8((1 << bits) - 1)
    columns = whole.reshape(length, per_byte)
    packed = columns[:, 0] & mask
    for k in range(1, per_byte):
        packed |= (columns[:, k] & mask) << np.uint8(bits * k)
    return packed


def widen(packed: Array, bits: int, count: int) -> Array:
    """uint8[count]: the inverse of :func:`narrow`, one value per byte."""
    if 8 % bits:
        raw = np.unpackbits(packed, bitorder="little", count=count * bits).reshape(count, bits)
        values: Array = (raw * (1 << np.arange(bits)).astype(np.uint8)).sum(axis=1, dtype=np.uint8)
        return values
    per_byte = 8 // bits
    mask = np.uint8((1 << bits) - 1)
    columns = np.empty((len(packed), per_byte), np.uint8)
    for k in range(per_byte):
        columns[:, k] = (packed >> np.uint8(bits * k)) & mask
    return columns.reshape(-1)[:count]


def to_type(wide: Array, dtype: str, bits: int, numpy_type: np.dtype[Any]) -> Array:
    """Bytes whose low ``bits`` bits are values of ``dtype``, as its numpy type (signed ones sign-extended)."""
    if dtype.startswith("s"):
        up = np.uint8(8 - bits)
        signed: Array = (wide << up).view(np.int8) >> up.astype(np.int8)
        return signed.astype(numpy_type)
    return wide.astype(numpy_type) if dtype.startswith("u") else wide.view(numpy_type)

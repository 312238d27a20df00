"""Rows as codes of few bits and back, in numpy: what every reader computes, to the bit.

======================  ============================================  ==============================================
encoding                a row's bytes                                 value of a code q
======================  ============================================  ==============================================
``bf16``                width bfloat16 numbers                        itself
``row``                 a float32 scale, then the codes               q * scale of the row, q signed
``table``               the codes                                     q * scale of the table, q signed
``levels``              the codes                                     q * step + low, q from 0 on
======================  ============================================  ==============================================

Codes are bytes, or two to a byte with the earlier column in the low bits. All sums and products are float32, each
rounded, in the order written. ``levels`` is what :class:`Quantization` simulates in training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tilewright.embed.host.arrays import Floats
from tilewright.embed.model.tables import Table
from tilewright.errors import UsageError

DTYPES = ("int8", "bf16", "int4")
SCALES = ("row", "table")
ENCODINGS = ("bf16", "row", "table", "levels")
_BITS = {"int8": 8, "bf16": 16, "int4": 4}
SCALE_BYTES = 4
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Coding:
    """How the rows of one table are written. ``scale``, ``low`` and ``high`` are float32 numbers of the table."""

    encoding: str
    bits: int
    width: int
    scale: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def head(self) -> int:
        """Bytes in front of a row's codes."""
        return SCALE_BYTES if self.encoding == "row" else 0

    @property
    def stride(self) -> int:
        """Bytes of a row."""
        return self.head + -(-self.width * self.bits // 8)

    @property
    def most(self) -> int:
        """The largest code of a signed encoding."""
        return (1 << self.bits - 1) - 1

    def encode(self, rows: Floats) -> Bytes:
        """f32[n, width] -> u8[n, stride]."""
        made = np.empty((len(rows), self.stride), np.uint8)
        if self.encoding == "bf16":
            made[:] = rows.astype(ml_dtypes.bfloat16).view(np.uint8)
            return made
        if self.encoding == "levels":
            codes = np.round((np.clip(rows, self.low, self.high) - self.low) / self.scale)
        else:
            scale: Any = np.float32(self.scale)
            if self.encoding == "row":
                scale = row_scales(rows, self.most)[:, None]
                made[:, : self.head] = scale.view(np.uint8)
            codes = np.clip(np.round(rows / np.where(scale > 0, scale, 1)), -self.most, self.most)
        made[:, self.head :] = _packed(codes.astype(np.int16).astype(np.uint8), self.bits)
        return made

    def decode(self, stored: Bytes) -> Floats:
        """u8[n, stride] -> f32[n, width]."""
        if self.encoding == "bf16":
            numbers: Any = np.ascontiguousarray(stored).view(ml_dtypes.bfloat16)
            return np.asarray(numbers, np.float32)
        codes = self._unpacked(stored[:, self.head :])
        if self.encoding == "levels":
            return np.asarray(self.levels[codes], np.float32)
        scale: Any = np.float32(self.scale)
        if self.encoding == "row":
            scale = np.ascontiguousarray(stored[:, : self.head]).view(np.float32)
        decoded: Floats = codes.astype(np.float32) * scale
        return decoded

    @property
    def levels(self) -> Floats:
        """The value of every code of ``levels``, as :class:`Quantization` computes it in numpy."""
        return np.arange(1 << self.bits, dtype=np.float32) * np.float32(self.scale) + np.float32(self.low)

    def _unpacked(self, stored: Bytes) -> NDArray[Any]:
        signed = self.encoding != "levels"
        if self.bits == 8:
            return stored.view(np.int8) if signed else stored
        codes = np.stack([stored & 15, stored >> 4], axis=-1).reshape(len(stored), -1)[:, : self.width]
        return (codes ^ 8).astype(np.int8) - np.int8(8) if signed else codes


def row_scales(rows: Floats, most: int) -> Floats:
    """float32[n]: the largest magnitude of every row over the largest code; 0 for a row of zeros."""
    return np.asarray(np.abs(rows).max(axis=1, initial=0) / np.float32(most), np.float32)


def _packed(codes: Bytes, bits: int) -> Bytes:
    if bits == 8:
        return codes
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return np.asarray((codes[:, ::2] & 15) | (codes[:, 1::2] << 4), np.uint8)


def coding_of(table: Table, dtype: str, scale: str, largest: float) -> Coding:
    """How a table is written whose largest magnitude is ``largest``.

    A table with a :class:`Quantization` keeps its levels, so that serving computes what training simulated; its levels
    must fit the codes.
    """
    bits, quantization = _BITS[dtype], table.quantization
    if dtype == "bf16":
        return Coding("bf16", 16, table.width)
    if quantization is not None:
        if quantization.num_buckets > 1 << bits:
            problem = f"its {quantization.num_buckets} levels of simulated quantisation do not fit {dtype}"
            how = f"train with num_buckets of at most {1 << bits}, or export another dtype"
            raise UsageError(problem, where=f"table {table.name!r}", how=how)
        step = (quantization.high - quantization.low) / (quantization.num_buckets - 1)
        numbers = (float(np.float32(number)) for number in (step, quantization.low, quantization.high))
        return Coding("levels", bits, table.width, *numbers)
    if scale == "row":
        return Coding("row", bits, table.width)
    most = (1 << bits - 1) - 1
    return Coding("table", bits, table.width, float(np.float32(largest) / np.float32(most)))

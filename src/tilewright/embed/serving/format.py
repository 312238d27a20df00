"""The file of an export: rows as codes of few bits, and the header that says where they are; checked when it is opened.

::

    0   "TWEMBED\0"                              what it is
    8   version, bytes of JSON, its CRC-32       three little-endian uint32, and four bytes of zeros
    24  JSON                                     dtype, features, tables: where each begins and how it is coded
    ..  rows of a table, row after row           at a multiple of 64 bytes

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

import json
import struct
import zlib
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from tilewright.embed.host.arrays import Bytes, Floats
from tilewright.embed.model.tables import COMBINERS, Table
from tilewright.errors import UsageError
from tilewright.reading import parse, table_of, typed

# Rows as codes and back, in numpy: what every reader computes, to the bit.

DTYPES = ("int8", "bf16", "int4")
SCALES = ("row", "table")
ENCODINGS = ("bf16", "row", "table", "levels")
_BITS = {"int8": 8, "bf16": 16, "int4": 4}
SCALE_BYTES, CHUNK = 4, 1 << 22


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
        """Bytes of a coded row."""
        return self.head + -(-self.width * self.bits // 8)

    @property
    def most(self) -> int:
        """The largest code of a signed encoding."""
        return (1 << self.bits - 1) - 1

    @property
    def rows_per_sum(self) -> int:
        """Rows under one checksum: some 4 MiB of them."""
        return max(1, CHUNK // self.stride)

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
                # of every row the largest magnitude over the largest code; 0 for a row of zeros
                scale = np.asarray(np.abs(rows).max(axis=1, initial=0) / np.float32(self.most), np.float32)[:, None]
                made[:, : self.head] = scale.view(np.uint8)
            codes = np.clip(np.round(rows / np.where(scale > 0, scale, 1)), -self.most, self.most)
        made[:, self.head :] = _packed(codes.astype(np.int16).astype(np.uint8), self.bits)
        return made

    def decode(self, stored: Any, xp: Any = np) -> Any:
        """u8[..., stride] -> f32[..., width], by numpy or by jax.numpy."""
        if self.encoding == "bf16":
            return stored.view(ml_dtypes.bfloat16).astype(np.float32)
        signed, codes = self.encoding != "levels", stored[..., self.head :]
        if self.bits == 8:
            codes = codes.view(np.int8) if signed else codes
        else:
            codes = xp.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)[..., : self.width]
            codes = (codes ^ 8).astype(np.int8) - np.int8(8) if signed else codes
        if self.encoding == "levels":  # a table: XLA would make one instruction of product and sum, and other bits
            return xp.take(xp.asarray(self.levels), codes, axis=0)
        scale = stored[..., : self.head].view(np.float32) if self.encoding == "row" else np.float32(self.scale)
        return codes.astype(np.float32) * scale

    @property
    def levels(self) -> Floats:
        """The value of every code of ``levels``, as :class:`Quantization` computes it in numpy."""
        return np.arange(1 << self.bits, dtype=np.float32) * np.float32(self.scale) + np.float32(self.low)


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
        numbers = (float(np.float32(n)) for n in (quantization.step, quantization.low, quantization.high))
        return Coding("levels", bits, table.width, *numbers)
    if scale == "row":
        return Coding("row", bits, table.width)
    most = (1 << bits - 1) - 1
    return Coding("table", bits, table.width, float(np.float32(largest) / np.float32(most)))


# The file.

MAGIC, VERSION, KIND = b"TWEMBED\0", 2, "embedding_export"
LINE = 64
_HEAD = struct.Struct("<8sIIIxxxx")


@dataclass(frozen=True, kw_only=True)
class StoredRows(Coding):
    """A table's rows: how they are coded, where they are in the file, and a CRC-32 of every so many of them, in hex."""

    name: str
    vocab: int
    combiner: str
    offset: int
    crc32: list[str]

    @property
    def end(self) -> int:
        """Where the rows end in the file."""
        return self.offset + self.vocab * self.stride


@dataclass(frozen=True)
class Header:
    """What an export says of itself. ``features``: feature -> table; ``updates``: those the state had seen."""

    dtype: str
    updates: int
    file_bytes: int
    features: dict[str, str]
    tables: list[StoredRows]
    kind: str = KIND
    schema_version: int = VERSION

    def data(self) -> bytes:
        """The first bytes of the file."""
        text = json.dumps(asdict(self)).encode()
        return _HEAD.pack(MAGIC, VERSION, len(text), zlib.crc32(text)) + text


_AGAIN = "export the tables again"


def read_header(file: BinaryIO, size: int, where: str) -> Header:
    """The header of an export of ``size`` bytes, checked.

    Raises :class:`UsageError`: another kind of file, another version, cut short, damaged, tables that cannot be.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(MAGIC):
        raise UsageError("not an export of embedding tables", where=where, how="write one with embed.export")
    _, version, length, crc = _HEAD.unpack(head)
    if version != VERSION:
        problem = f"version {version} of the format, this program reads {VERSION}"
        raise UsageError(problem, where=where, how="read it with the version that wrote it")
    text = file.read(length)
    if len(text) < length or zlib.crc32(text) != crc:
        raise UsageError("damaged: its header does not have its checksum", where=where, how=_AGAIN)
    entry = table_of(parse(text.decode("utf-8", "replace"), "JSON", where), where)
    if entry.get("kind") != KIND or entry.get("schema_version") != VERSION:
        raise UsageError(
            f"its schema is {entry.get('kind')!r} {entry.get('schema_version')!r}", where=where, how=_AGAIN
        )
    header = typed(entry, Header, where)
    if size != header.file_bytes:
        short = "cut short: " if size < header.file_bytes else ""
        raise UsageError(f"{short}{size:,} bytes of {header.file_bytes:,}", where=where, how=_AGAIN)
    _check(header, where)
    return header


def _check(header: Header, where: str) -> None:
    tables = {table.name: table for table in header.tables}
    wrong = [f"table {table.name!r}" for table in header.tables if not _sound(table, header.file_bytes)]
    wrong += [f"feature {feature!r}" for feature, name in header.features.items() if name not in tables]
    if header.dtype not in DTYPES or len(tables) != len(header.tables):
        wrong.insert(0, "dtype" if header.dtype not in DTYPES else "tables of one name")
    if wrong:
        raise UsageError(f"its schema is wrong: {wrong[0]}", where=where, how=_AGAIN)


def _sound(table: StoredRows, file_bytes: int) -> bool:
    known = table.encoding in ENCODINGS and table.combiner in COMBINERS and table.bits in (4, 8, 16)
    coded = known and (table.bits == 16) == (table.encoding == "bf16") and table.width > 0 < table.vocab
    placed = coded and _HEAD.size <= table.offset and table.end <= file_bytes and table.offset % LINE == 0
    return placed and len(table.crc32) == -(-table.vocab // table.rows_per_sum)


def check_sums(rows: dict[str, Bytes], header: Header, where: str) -> None:
    """:class:`UsageError` that names the first table whose rows do not have their checksums."""
    for table in header.tables:
        for first, crc32 in zip(range(0, table.vocab, table.rows_per_sum), table.crc32):
            part: Any = rows[table.name][first : first + table.rows_per_sum]
            if f"{zlib.crc32(part):08x}" != crc32:
                problem = f"damaged: rows from {first:,} on of table {table.name!r} do not have their checksum"
                raise UsageError(problem, where=where, how=_AGAIN)

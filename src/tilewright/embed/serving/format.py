"""The file of an export: a header in JSON, then every table's rows; checked whole when it is opened.

::

    0   "TWEMBED\0"                              what it is
    8   version, bytes of JSON, its CRC-32       three little-endian uint32, and four bytes of zeros
    24  JSON                                     dtype, features, tables: where each begins and how it is coded
    ..  rows of a table, row after row           at a multiple of 64 bytes
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tilewright.embed.model.tables import COMBINERS
from tilewright.embed.serving.codes import DTYPES, ENCODINGS, Bytes, Coding
from tilewright.errors import UsageError
from tilewright.reading import parse, table_of, typed

MAGIC, VERSION, KIND = b"TWEMBED\0", 1, "embedding_export"
LINE = 64
CHUNK = 1 << 24
"""Bytes of rows under one checksum."""
_HEAD = struct.Struct("<8sIIIxxxx")


@dataclass(frozen=True)
class StoredRows:
    """Where a table's rows are in the file, how they are coded, and a CRC-32 of every 16 MiB of them, in hex."""

    name: str
    vocab: int
    width: int
    combiner: str
    encoding: str
    bits: int
    scale: float
    low: float
    high: float
    offset: int
    crc32: list[str]

    @property
    def coding(self) -> Coding:
        """How rows become codes and back."""
        return Coding(self.encoding, self.bits, self.width, self.scale, self.low, self.high)

    @property
    def size(self) -> int:
        """Bytes of all rows."""
        return self.vocab * self.coding.stride

    @property
    def end(self) -> int:
        """Where the rows end in the file."""
        return self.offset + self.size


@dataclass(frozen=True)
class Header:
    """What an export says of itself. ``features``: feature -> table; ``updates``: those the state had seen."""

    kind: str
    schema_version: int
    dtype: str
    updates: int
    file_bytes: int
    features: dict[str, str]
    tables: list[StoredRows]

    def data(self) -> bytes:
        """The first bytes of the file."""
        text = json.dumps(asdict(self)).encode()
        return _HEAD.pack(MAGIC, VERSION, len(text), zlib.crc32(text)) + text


def up_to_line(position: int) -> int:
    """The next multiple of 64."""
    return -(-position // LINE) * LINE


def blank_sums(size: int) -> list[str]:
    """As many checksums as ``size`` bytes have, not yet known: the header's length is."""
    return ["00000000"] * (-(-size // CHUNK))


class Summing:
    """Checksums of bytes that come in parts of any size."""

    def __init__(self) -> None:
        self.sums: list[str] = []
        self._sum, self._held = 0, 0

    def add(self, part: memoryview) -> None:
        """The next bytes."""
        while len(part):
            taken = part[: CHUNK - self._held]
            self._sum, self._held, part = zlib.crc32(taken, self._sum), self._held + len(taken), part[len(taken) :]
            if self._held == CHUNK:
                self._close()

    def finish(self) -> list[str]:
        """All of them."""
        if self._held:
            self._close()
        return self.sums

    def _close(self) -> None:
        self.sums.append(f"{self._sum:08x}")
        self._sum = self._held = 0


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
    return placed and len(table.crc32) == len(blank_sums(table.size))


def mapped_rows(path: Path, header: Header) -> dict[str, Bytes]:
    """Every table's rows u8[vocab, stride], mapped into memory, not read."""
    whole = np.memmap(path, np.uint8, "r")
    return {t.name: whole[t.offset : t.end].reshape(t.vocab, t.coding.stride) for t in header.tables}


def check_sums(rows: dict[str, Bytes], header: Header, where: str) -> None:
    """:class:`UsageError` that names the first table whose rows do not have their checksums."""
    for table, k, part in _parts(rows, header):
        if f"{zlib.crc32(part):08x}" != table.crc32[k]:
            first = k * CHUNK // table.coding.stride
            problem = f"damaged: rows from {first:,} on of table {table.name!r} do not have their checksum"
            raise UsageError(problem, where=where, how=_AGAIN)


def _parts(rows: dict[str, Bytes], header: Header) -> Iterator[tuple[StoredRows, int, Any]]:
    for table in header.tables:
        flat = rows[table.name].reshape(-1)
        for k in range(len(table.crc32)):
            yield table, k, flat[k * CHUNK : (k + 1) * CHUNK]

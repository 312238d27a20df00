"""Read Criteo click logs (TSV without header, CSV with one) in bounded batches, hashing values into vocabularies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tilewright.embed.logs.clicks import CATEGORICAL, NUMERIC, Clicks, check_vocabs
from tilewright.errors import UsageError

_BLOCK = 4 << 20
_ROLES = {name: role for role, name in enumerate(("label", *NUMERIC, *CATEGORICAL))}
_COLUMNS = len(_ROLES)


def read_criteo(
    path: str | Path, vocabs: Sequence[int], batch: int = 65536, ids_only: bool = False
) -> Iterator[Clicks]:
    """Batches of at most ``batch`` rows of a Criteo file; only one batch and one block of bytes are held at a time.

    Tab-separated (or comma-separated) rows of label, 13 numeric and 26 categorical values; or a header that names
    them ``label``, ``I1`` .. ``I13``, ``C1`` .. ``C26`` in any order, other columns being skipped. ``ids_only`` asks
    for no more than ``C1`` .. ``C26`` of a header. ``path`` "-" is stdin.

    A categorical value becomes ``1 + h % (vocab - 1)``, h = its bytes under 64-bit FNV-1a followed by MurmurHash3's
    64-bit finaliser: the same on every machine. Id 0 is kept for missing values. A numeric value becomes
    log(1 + max(x, 0)), a missing one 0.

    Raises :class:`UsageError` that names the file and line: no such file, an empty file, a wrong number of columns, a
    value that is not a number, a label that is not 0 or 1.

    >>> rows = next(read_criteo("clicks.csv", [1000] * 26))  # doctest: +SKIP
    >>> rows.categorical.shape  # doctest: +SKIP
    (200, 26)
    """
    sizes = check_vocabs(vocabs)
    if batch < 1:
        raise UsageError(f"a batch of {batch} rows", how="read at least one row at a time")
    with _opened(str(path)):  # a missing file is refused here, not where the first batch is taken
        pass
    return _batches(str(path), sizes, batch, ids_only)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; errors of opening alone are translated
    except OSError as error:
        raise UsageError(f"cannot read it: {error.strerror or error}", where=path) from None
    with file:
        yield file


def _batches(where: str, vocabs: NDArray[np.int64], batch: int, ids_only: bool) -> Iterator[Clicks]:
    with _opened(where) as file:
        lines = _Lines(file, where)
        separator, roles = _columns(lines, ids_only)
        full = _empty(batch)
        filled, rows = 0, 0
        while len(lines.data):
            filled += _parse(lines, separator, roles, vocabs, full[filled:])
            if filled == batch:
                rows += filled
                yield full
                full, filled = _empty(batch), 0
        if filled:
            yield full[:filled]
        elif not rows:
            raise UsageError("no rows in the file", where=where)


def _empty(rows: int) -> Clicks:
    return Clicks(np.zeros(rows, np.float32), np.zeros((rows, 13), np.float32), np.zeros((rows, 26), np.int32))


class _Lines:
    """The unread bytes of a file, always holding at least one whole line; a last newline is supplied."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.file, self.where, self.line = file, where, 1
        self.data = b""
        self.fill()
        if not self.data:
            raise UsageError("the file is empty", where=where)

    def fill(self) -> None:
        """Read on until a whole line is there."""
        while b"\n" not in self.data:
            if len(self.data) > 4 * _BLOCK:
                raise UsageError(f"a line of more than {4 * _BLOCK} bytes", where=f"{self.where}: line {self.line}")
            block = self.file.read(_BLOCK)
            if not block:
                self.data += b"\n" if self.data else b""
                return
            self.data += block

    def take(self, consumed: int, lines: int) -> None:
        """Drop what was read."""
        self.data = self.data[consumed:]
        self.line += lines
        self.fill()

    def error(self, what: str, how: str = "") -> UsageError:
        """About the line at hand."""
        return UsageError(what, where=f"{self.where}: line {self.line}", how=how)


def _columns(lines: _Lines, ids_only: bool) -> tuple[int, NDArray[np.int64]]:
    """Separator and role of every column; consumes a header."""
    head = lines.data[: lines.data.index(b"\n")]
    separator = b"\t" if b"\t" in head else b","
    names = [cell.decode("utf-8", "replace").strip(' \r"') for cell in head.split(separator)]
    if not {*names} & {*CATEGORICAL}:
        return separator[0], np.arange(_COLUMNS)
    wanted = CATEGORICAL if ids_only else tuple(_ROLES)
    if missing := [name for name in wanted if name not in names]:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise lines.error(f"the header has no column {', '.join(missing[:4])}{more}")
    lines.take(len(head) + 1, 1)
    return separator[0], np.array([_ROLES.get(name, -1) for name in names], np.int64)


def _parse(lines: _Lines, separator: int, roles: NDArray[np.int64], vocabs: NDArray[np.int64], into: Clicks) -> int:
    """Rows parsed from the bytes at hand."""
    from tilewright.embed.logs import criteo_kernels as kernel

    raw = np.frombuffer(lines.data, np.uint8)
    report = np.zeros(6, np.int64)
    kernel.parse_rows(raw, len(raw), separator, roles, vocabs, into.labels, into.numeric, into.categorical, report)
    rows, consumed, read, why, column, start = (int(v) for v in report)
    if why != kernel.FINE:
        lines.line += read
        raise _refusal(lines, kernel, why, column, start, separator, roles)
    lines.take(consumed, read)
    return rows


def _refusal(
    lines: _Lines, kernel: Any, why: int, column: int, start: int, separator: int, roles: NDArray[np.int64]
) -> UsageError:
    if why == kernel.COLUMNS:
        return lines.error(f"{column} columns where {len(roles)} are expected", "label, I1 to I13, C1 to C26")
    stop = min(i for i in (lines.data.find(c, start) for c in (b"\n", bytes([separator]))) if i >= 0)
    text = lines.data[start:stop].decode("utf-8", "replace").strip()
    name = tuple(_ROLES)[roles[column]]
    shown = text if len(text) <= 40 else text[:37] + "..."
    if why == kernel.BAD_LABEL:
        return lines.error(f"the label is {shown!r}", "a label is 0 or 1")
    return lines.error(f"{shown!r} in numeric column {name} is not a number")

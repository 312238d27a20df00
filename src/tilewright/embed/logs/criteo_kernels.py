"""One pass over the bytes of a click log: fields, numbers and hashes, without a Python object per value."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels import njit

FINE, COLUMNS, BAD_LABEL, BAD_NUMBER = 0, 1, 2, 3
"""Why :func:`parse_rows` stopped: nothing wrong, a wrong number of columns, a label not 0 or 1, not a number."""

Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]
_NEWLINE, _RETURN, _SPACE, _QUOTE = 10, 13, 32, 34


@njit(cache=True, nogil=True)
def _trim(data: Bytes, start: int, end: int) -> tuple[int, int]:
    """The field without surrounding blanks and one pair of double quotes."""
    while start < end and (data[start] == _SPACE or data[start] == _RETURN):
        start += 1
    while end > start and (data[end - 1] == _SPACE or data[end - 1] == _RETURN):
        end -= 1
    if end - start >= 2 and data[start] == _QUOTE and data[end - 1] == _QUOTE:
        return start + 1, end - 1
    return start, end


@njit(cache=True, nogil=True)
def _finish(h: np.uint64, vocab: int) -> np.int64:
    """A 64-bit number, finished as MurmurHash3 does, into 1 .. vocab-1; 0 where there is no such id."""
    if vocab < 2:
        return np.int64(0)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    h = (h ^ (h >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    h = h ^ (h >> np.uint64(33))
    return np.int64(1) + np.int64(h % np.uint64(vocab - 1))


@njit(cache=True, nogil=True)
def _bucket(data: Bytes, start: int, end: int, vocab: int) -> np.int64:
    """FNV-1a (64 bits) of the bytes, finished as MurmurHash3 does, into 1 .. vocab-1; an empty value is 0."""
    if start == end or vocab < 2:
        return np.int64(0)
    h = np.uint64(0xCBF29CE484222325)
    for i in range(start, end):
        h = (h ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return _finish(h, vocab)


@njit(cache=True, nogil=True)
def _digits(data: Bytes, i: int, end: int, value: float) -> tuple[int, float]:
    """Read decimal digits from ``i``: where they stop, and ``value`` extended by them."""
    while i < end and 48 <= data[i] <= 57:
        value = value * 10.0 + (data[i] - 48)
        i += 1
    return i, value


@njit(cache=True, nogil=True)
def _number(data: Bytes, start: int, end: int) -> float:
    """A decimal number (sign, fraction, exponent) as float64; NaN where the field is not one."""
    i, sign = start, 1.0
    if i < end and (data[i] == 43 or data[i] == 45):
        sign = 44.0 - data[i]
        i += 1
    first = i
    i, value = _digits(data, i, end, 0.0)
    digits, scale = i - first, 0
    if i < end and data[i] == 46:
        first = i + 1
        i, value = _digits(data, first, end, value)
        scale = i - first
        digits += scale
    if digits == 0:
        return np.nan
    exponent = 0.0
    if i + 1 < end and (data[i] == 69 or data[i] == 101):
        i, down = i + 1, 1.0
        if data[i] == 43 or data[i] == 45:
            down = 44.0 - data[i]
            i += 1
        first = i
        i, exponent = _digits(data, i, end, 0.0)
        if i == first:
            return np.nan
        exponent *= down
    return sign * value * 10.0 ** (exponent - scale) if i == end else np.nan


@njit(cache=True, nogil=True)
def _blank(data: Bytes, start: int, stop: int) -> bool:
    """Nothing but spaces and a carriage return."""
    start, stop = _trim(data, start, stop)
    return start == stop


@njit(cache=True, nogil=True)
def _field(
    data: Bytes,
    start: int,
    stop: int,
    role: int,
    vocabs: Ints,
    row: int,
    labels: Floats,
    numeric: Floats,
    categories: Ids,
) -> int:
    """Store one field of ``row`` where its role says; returns why it cannot be, or FINE."""
    if role < 0:
        return FINE
    start, stop = _trim(data, start, stop)
    if role >= 14:
        categories[row, role - 14] = _bucket(data, start, stop, vocabs[role - 14])
        return FINE
    if role > 0 and start == stop:
        numeric[row, role - 1] = 0.0
        return FINE
    value = _number(data, start, stop)
    if role == 0:
        if value != 0.0 and value != 1.0:
            return BAD_LABEL
        labels[row] = value
        return FINE
    if not np.isfinite(value):
        return BAD_NUMBER
    numeric[row, role - 1] = np.log1p(max(value, 0.0))
    return FINE


@njit(cache=True, nogil=True)
def _row(
    data: Bytes,
    start: int,
    stop: int,
    separator: int,
    roles: Ints,
    vocabs: Ints,
    row: int,
    labels: Floats,
    numeric: Floats,
    categories: Ids,
    report: Ints,
) -> bool:
    """One line; True if it became a row, else ``report[3:6]`` says why not."""
    column, columns, begin = 0, roles.shape[0], start
    for i in range(start, stop + 1):
        if i == stop or data[i] == separator:
            if column < columns:
                why = _field(data, begin, i, roles[column], vocabs, row, labels, numeric, categories)
                if why != FINE and report[3] == FINE:
                    report[3], report[4], report[5] = why, column, begin
            column += 1
            begin = i + 1
    if column != columns:
        report[3], report[4], report[5] = COLUMNS, column, start
    return bool(report[3] == FINE)


@njit(cache=True, nogil=True)
def parse_rows(
    data: Bytes,
    size: int,
    separator: int,
    roles: Ints,
    vocabs: Ints,
    labels: Floats,
    numeric: Floats,
    categories: Ids,
    report: Ints,
) -> None:
    """Parse whole lines of ``data[:size]`` until they, or the output arrays, end.

    ``roles[column]``: 0 the label, 1..13 a numeric, 14..39 a categorical column, -1 one to skip. ``report`` (int64[6])
    returns rows, bytes consumed, lines consumed, why it stopped, and the bad line's column count or bad column with
    the byte where its field starts. Blank lines are skipped.
    """
    row, pos, lines = 0, 0, 0
    report[3] = FINE
    while pos < size and row < labels.shape[0]:
        stop = pos
        while stop < size and data[stop] != _NEWLINE:
            stop += 1
        if stop == size:
            break
        if not _blank(data, pos, stop):
            if not _row(data, pos, stop, separator, roles, vocabs, row, labels, numeric, categories, report):
                break
            row += 1
        pos = stop + 1
        lines += 1
    report[0], report[1], report[2] = row, pos, lines


# Raw values of a log -> ids below a vocabulary, by the hash of the Criteo reader.

Longs: TypeAlias = NDArray[np.int64]


@njit(cache=True, nogil=True)
def hash_texts(data: Bytes, offsets: Longs, vocab: int, out: Ids) -> None:
    """Text k is ``data[offsets[k]:offsets[k + 1]]``."""
    for k in range(out.shape[0]):
        out[k] = _bucket(data, offsets[k], offsets[k + 1], vocab)


@njit(cache=True, nogil=True)
def hash_numbers(values: Longs, vocab: int, out: Ids) -> None:
    """MurmurHash3's finaliser of every number, into 1 .. vocab - 1."""
    for k in range(out.shape[0]):
        out[k] = _finish(np.uint64(values[k]), vocab)

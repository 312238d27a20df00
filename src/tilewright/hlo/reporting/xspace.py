"""A profiler's own file (``.xplane.pb``, an XSpace), read field by field: planes, their lines, the events on them.

Only what a report needs is decoded; the field numbers are those of xplane.proto in the profiler's sources.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.errors import UsageError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Field = tuple[int, int | float | memoryview]


@dataclass(frozen=True, slots=True)
class Event:
    """One event: where it stands, what it is called (``display`` may be shorter), how long it took, how often."""

    plane: str
    line: str
    name: str
    display: str
    picoseconds: int
    count: int
    stats: Mapping[str, str | int | float]


def events_of(raw: bytes, where: str) -> Iterator[Event]:
    """Every event of an XSpace. Raises UsageError where the bytes are none."""
    try:
        for number, plane in _fields(memoryview(raw)):
            if number == 1 and isinstance(plane, memoryview):
                yield from _Plane(plane).events()
    except (IndexError, ValueError, struct.error, UnicodeDecodeError) as error:
        reason = str(error) or "cut short"
        raise UsageError(f"not a profiler's XSpace: {reason}", where=where) from None


class _Plane:
    """One device, or the host: its lines, and what its events and their statistics are called."""

    def __init__(self, raw: memoryview) -> None:
        self.name, self.lines = "", list[memoryview]()
        self.called: dict[int, tuple[str, str, list[memoryview]]] = {}
        self.statistics: dict[int, str] = {}
        for number, value in _fields(raw):
            if number == 2:
                self.name = _text(value)
            elif number == 3 and isinstance(value, memoryview):
                self.lines.append(value)
            elif number == 4:
                identity, event = _entry(value)
                self.called[identity] = _called(event)
            elif number == 5:
                identity, statistic = _entry(value)
                self.statistics[identity] = next((_text(v) for n, v in _fields(statistic) if n == 2), "")

    def events(self) -> Iterator[Event]:
        for line in self.lines:
            names = {number: _text(value) for number, value in _fields(line) if number in (2, 11)}
            name = names.get(2) or names.get(11, "")
            for number, value in _fields(line):
                if number == 4 and isinstance(value, memoryview):
                    yield self._event(name, value)

    def _event(self, line: str, raw: memoryview) -> Event:
        identity = picoseconds = 0
        count, stats = 1, list[memoryview]()
        for number, value in _fields(raw):
            if number == 4 and isinstance(value, memoryview):
                stats.append(value)
            elif isinstance(value, int):
                identity = value if number == 1 else identity
                picoseconds = value if number == 3 else picoseconds
                count = value if number == 5 else count
        name, display, shared = self.called.get(identity, ("", "", []))
        return Event(self.name, line, name, display, picoseconds, count, dict(map(self._statistic, [*shared, *stats])))

    def _statistic(self, raw: memoryview) -> tuple[str, str | int | float]:
        name, held = "", 0
        found: str | int | float = ""
        for number, value in _fields(raw):
            if number == 1 and isinstance(value, int):
                name = self.statistics.get(value, "")
            elif number in (5, 6) and isinstance(value, memoryview):
                found = bytes(value).decode("utf-8", errors="replace")
            elif number == 7 and isinstance(value, int):  # a text that many share, kept as a statistic's name
                held = value
            elif not isinstance(value, memoryview):
                found = value
        return name, self.statistics.get(held, "") if held else found


def _called(raw: memoryview) -> tuple[str, str, list[memoryview]]:
    """Name, display name and statistics of all events of one kind."""
    fields = list(_fields(raw))
    texts = {number: _text(value) for number, value in fields if number in (2, 4)}
    return texts.get(2, ""), texts.get(4, ""), [v for n, v in fields if n == 5 and isinstance(v, memoryview)]


def _entry(raw: int | float | memoryview) -> tuple[int, memoryview]:
    """Key and value of a map's entry."""
    key, value = 0, memoryview(b"")
    for number, found in _fields(raw):
        if number == 1 and isinstance(found, int):
            key = found
        elif number == 2 and isinstance(found, memoryview):
            value = found
    return key, value


def _text(raw: int | float | memoryview) -> str:
    if not isinstance(raw, memoryview):
        raise ValueError("a number where a text should be")
    return bytes(raw).decode("utf-8", errors="replace")


def _fields(raw: int | float | memoryview) -> Iterator[_Field]:
    """(number, value) of every field of a message; ValueError or IndexError where the wire format is broken."""
    if not isinstance(raw, memoryview):
        raise ValueError("a number where a message should be")
    at, end = 0, len(raw)
    while at < end:
        tag, at = _varint(raw, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise ValueError("a field without a number")
        if kind == _VARINT:
            value, at = _varint(raw, at)
            yield number, value
        elif kind == _BYTES:
            length, at = _varint(raw, at)
            if at + length > end:
                raise ValueError("cut short")
            yield number, raw[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            yield number, struct.unpack_from("<d" if kind == _FIXED64 else "<f", raw, at)[0]
            at += size
        else:
            raise ValueError(f"wire type {kind}")


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    byte = raw[at]
    if byte < 128:
        return byte, at + 1
    value, shift = byte & 127, 7
    while True:
        at += 1
        byte = raw[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")

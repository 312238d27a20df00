"""A profiler's own file (``.xplane.pb``, an XSpace): planes, their lines, the events on them with their statistics.

Field numbers are those of xplane.proto (github.com/openxla/xla, third_party/tsl/tsl/profiler/protobuf). JAX's reader,
``jax.profiler.ProfileData``, tells neither display names nor how often an event occurred; this one needs no JAX.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import UsageError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Value = int | float | memoryview


@dataclass(frozen=True, slots=True)
class XEvent:
    """One event of a line."""

    name: str  # what it is called
    display: str  # a shorter name, or ""
    start: int  # when it begins, picoseconds since 1970; its line's begin, where it stands for ``count`` of them
    picoseconds: int  # how long it takes, one of them
    count: int  # how often it occurred
    stats: Mapping[str, str | int | float]  # statistics, those that all events of its kind share and its own


@dataclass(frozen=True, slots=True)
class XLine:
    """One line (a thread, a stream, a unit) of a plane: ``name``, a ``display`` name or "", its events."""

    name: str
    display: str
    events: Sequence[XEvent]


@dataclass(frozen=True, slots=True)
class XPlane:
    """One device (``/device:TPU:0``) or the host (``/host:CPU``) with its lines."""

    name: str
    lines: Sequence[XLine]


def read_xspace(
    raw: bytes, where: str = "", *, planes: str | tuple[str, ...] = "", stats: bool = True
) -> Iterator[XPlane]:
    """The planes of an XSpace, in the order of the file.

    ``where``: the file's name, for messages. ``planes``: only planes whose names begin with one of these. ``stats``:
    whether events get their statistics; without, reading takes half the time. Raises UsageError for bytes that are no
    XSpace, or are cut off.

    >>> tpu = b"\\x12\\x0d/device:TPU:0" + b"\\x1a\\x0d" + b"\\x12\\x05Steps" + b"\\x22\\x04\\x10\\x05\\x18\\x07"
    >>> [plane] = read_xspace(b"\\x0a" + bytes([len(tpu)]) + tpu)
    >>> plane.name, plane.lines[0].name, plane.lines[0].events[0].picoseconds
    ('/device:TPU:0', 'Steps', 7)
    """
    try:
        for number, value in protobuf_fields(memoryview(raw)):
            if number == 1:
                reader = _PlaneReader(_message(value), stats)
                if reader.name.startswith(planes):
                    yield reader.plane()
    except (IndexError, ValueError, struct.error) as error:
        reason = str(error) if isinstance(error, ValueError) else "cut short"
        raise UsageError(f"not a profiler's XSpace: {reason}", where=where) from None


class _PlaneReader:
    """What the events of a plane and their statistics are called, then its lines."""

    def __init__(self, raw: memoryview, stats: bool) -> None:
        self.name, self.stats, self.lines = "", stats, list[memoryview]()
        self.kinds: dict[int, tuple[str, str, list[memoryview]]] = {}  # number -> name, display name, statistics
        self.statistics: dict[int, str] = {}
        for number, value in protobuf_fields(raw):
            if number == 2:
                self.name = _text(value)
            elif number == 3:
                self.lines.append(_message(value))
            elif number in (4, 5):  # entries of maps from numbers
                entry = dict(protobuf_fields(_message(value)))
                key, inner = int(_number(entry.get(1, 0))), _message(entry.get(2, memoryview(b"")))
                fields = list(protobuf_fields(inner))
                texts = {n: _text(v) for n, v in fields if n in ((2, 4) if number == 4 else (2,))}
                if number == 5:
                    self.statistics[key] = texts.get(2, "")
                else:
                    self.kinds[key] = texts.get(2, ""), texts.get(4, ""), [_message(v) for n, v in fields if n == 5]

    def plane(self) -> XPlane:
        return XPlane(self.name, [self._line(raw) for raw in self.lines])

    def _line(self, raw: memoryview) -> XLine:
        fields = list(protobuf_fields(raw))
        texts = {number: _text(value) for number, value in fields if number in (2, 11)}
        start = 1000 * next((int(_number(value)) for number, value in fields if number == 3), 0)  # nanoseconds
        events = [self._event(_message(value), start) for number, value in fields if number == 4]
        return XLine(texts.get(2, ""), texts.get(11, ""), events)

    def _event(self, raw: memoryview, line_start: int) -> XEvent:
        own, numbers = list[memoryview](), {1: 0, 2: 0, 3: 0, 5: 1}  # kind, offset, picoseconds, how often
        for number, value in protobuf_fields(raw):
            if number == 4:
                own.append(_message(value))
            elif isinstance(value, int):
                numbers[number] = value
        name, display, shared = self.kinds.get(numbers[1], ("", "", []))
        stats = dict(map(self._statistic, [*shared, *own])) if self.stats else {}
        return XEvent(name, display, line_start + numbers[2], numbers[3], numbers[5], stats)

    def _statistic(self, raw: memoryview) -> tuple[str, str | int | float]:
        name = ""
        found: str | int | float = ""
        for number, value in protobuf_fields(raw):
            if number == 1:
                name = self.statistics.get(int(_number(value)), "")
            elif number in (5, 6):
                found = _text(value)
            elif number == 7:  # a text that many share, kept as a statistic's name
                found = self.statistics.get(int(_number(value)), "")
            else:
                found = _number(value)
        return name, found


def _message(value: _Value) -> memoryview:
    if not isinstance(value, memoryview):
        raise ValueError("a number where a message should be")
    return value


def _text(value: _Value) -> str:
    return bytes(_message(value)).decode("utf-8", errors="replace")


def _number(value: _Value) -> int | float:
    if isinstance(value, memoryview):
        raise ValueError("a message where a number should be")
    return value


def protobuf_fields(raw: memoryview) -> Iterator[tuple[int, _Value]]:
    """(number, value) of every field of a protobuf message: bytes of a text or message, else a number.

    Raises ValueError, IndexError or struct.error where the wire format is broken.

    >>> [(number, bytes(value)) for number, value in protobuf_fields(memoryview(b"\\x0a\\x02hi"))]
    [(1, b'hi')]
    """
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
                raise ValueError(f"{at + length - end} bytes are missing at its end")
            yield number, raw[at : at + length]
            at += length
        elif kind in (_FIXED64, _FIXED32):
            yield number, struct.unpack_from("<d" if kind == _FIXED64 else "<f", raw, at)[0]
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number without end")

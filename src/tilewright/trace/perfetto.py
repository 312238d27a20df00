"""Events as a Perfetto trace: TrackEvent packets in protobuf, which ui.perfetto.dev opens from disk."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tilewright.extras import need
from tilewright.files import write_whole
from tilewright.trace.events import Args, Counter, Event, Instant, Slice, Track

# Slices of one track, laid into rows in which they nest, as timeline formats need them.

Mark = tuple[int, Slice | None]
"""A moment in a row: a slice begins, or (None) the innermost open slice ends."""


def nested_rows(slices: Iterable[Slice]) -> list[list[Mark]]:
    """Rows of begin and end marks, each row well nested and in time order.

    A slice goes to the first row in which it lies inside the slice that is open there, or in which none is open; so
    slices that nest share one row, and slices that overlap get further ones.

    >>> from tilewright.trace import Track
    >>> t = Track("p", "l")
    >>> rows = nested_rows([Slice(t, "a", 0, 4), Slice(t, "b", 1, 2), Slice(t, "c", 2, 4)])
    >>> [[(time, s and s.name) for time, s in row] for row in rows]
    [[(0, 'a'), (1, 'b'), (3, None), (4, None)], [(2, 'c'), (6, None)]]
    """
    rows: list[list[Mark]] = []
    open_ends: list[list[int]] = []
    for piece in sorted(slices, key=lambda s: (s.start, -s.duration)):
        end = piece.start + piece.duration
        for row, ends in zip(rows, open_ends, strict=True):
            _close(row, ends, piece.start)
            if not ends or end <= ends[-1]:
                break
        else:
            row, ends = [], []
            rows.append(row)
            open_ends.append(ends)
        row.append((piece.start, piece))
        ends.append(end)
    for row, ends in zip(rows, open_ends, strict=True):
        _close(row, ends, None)
    return rows


def _close(row: list[Mark], ends: list[int], until: int | None) -> None:
    while ends and (until is None or ends[-1] <= until):
        row.append((ends.pop(), None))


_SEQUENCE = 1
_CLEARED = 1  # TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


def perfetto_bytes(events: Iterable[Event]) -> bytes:
    """The trace of these events; the same events give the same bytes.

    Processes and lanes stand in the order in which they first occur. Times are nanoseconds (an engine that
    counts cycles emits 1 cycle = 1 ns). Slices that overlap without nesting share a lane's name on several rows.
    MissingExtra where the ``perfetto`` package is not installed.
    """
    need("perfetto", what="writing a trace")
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    writer = _Writer(perfetto_trace_pb2)
    writer.add(events)
    return writer.serialize()


def write_perfetto(events: Iterable[Event], path: Path | str) -> int:
    """Write the trace to a file (made whole or not at all); its size in bytes."""
    raw = perfetto_bytes(events)
    write_whole(path, raw)
    return len(raw)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Writer:
    """Collects packets as bytes.

    A protobuf message may be written in pieces, so a packet is a body the library serialised (cached, for most events
    differ from others in their time only) followed by its timestamp field.
    """

    def __init__(self, pb: Any) -> None:
        self._pb = pb
        self._head: list[bytes] = []
        self._timed: list[tuple[int, bytes]] = []
        self._uuids: dict[object, int] = {}
        self._ranks: dict[Track, int] = {}
        self._bodies: dict[object, bytes] = {}
        fields = pb.TracePacket.DESCRIPTOR.fields_by_name
        self._time_tag = _varint(fields["timestamp"].number << 3)
        self._packet_tag = _varint(pb.Trace.DESCRIPTOR.fields_by_name["packet"].number << 3 | 2)
        start = self._packet()
        start.sequence_flags = _CLEARED
        self._head.append(start.SerializeToString(deterministic=True))

    def add(self, events: Iterable[Event]) -> None:
        lanes: dict[Track, list[Slice]] = {}
        for event in events:
            if event.track not in self._ranks:
                self._process(event.track)
                self._ranks[event.track] = len(self._ranks)
            if isinstance(event, Slice):
                lanes.setdefault(event.track, []).append(event)
            elif isinstance(event, Instant):
                self._instant(event)
            else:
                self._counter(event)
        for track, slices in lanes.items():
            self._slices(track, slices)

    def serialize(self) -> bytes:
        self._timed.sort(key=operator.itemgetter(0))  # stable: marks of one row keep their order
        times: dict[int, bytes] = {}
        out = [self._framed(body) for body in self._head]
        for time, body in self._timed:
            stamp = times.get(time)
            if stamp is None:
                stamp = times[time] = self._time_tag + _varint(time)
            out.append(self._framed(body + stamp))
        return b"".join(out)

    def _framed(self, body: bytes) -> bytes:
        return self._packet_tag + _varint(len(body)) + body

    def _packet(self) -> Any:
        packet = self._pb.TracePacket()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def _track(self, key: object, describe: Callable[[Any], None]) -> int:
        """The uuid of a track; the first time it is described, in a packet of its own."""
        if key not in self._uuids:
            self._uuids[key] = len(self._uuids) + 1
            packet = self._packet()
            packet.track_descriptor.uuid = self._uuids[key]
            describe(packet.track_descriptor)
            self._head.append(packet.SerializeToString(deterministic=True))
        return self._uuids[key]

    def _process(self, track: Track) -> int:
        def describe(descriptor: Any) -> None:
            descriptor.process.pid = descriptor.uuid
            descriptor.process.process_name = track.process
            descriptor.child_ordering = self._pb.TrackDescriptor.EXPLICIT
            descriptor.description = "times in ns; 1 cycle = 1 ns"

        return self._track(("process", track.process), describe)

    def _lane(self, track: Track, row: int | str = 0, unit: str = "") -> int:
        """A row of a lane's slices, or (row ``counter``) a lane that shows a quantity in this unit."""
        parent = self._process(track)

        def describe(descriptor: Any) -> None:
            descriptor.parent_uuid = parent
            descriptor.name = track.lane
            descriptor.sibling_order_rank = self._ranks[track]
            if row == "counter":
                descriptor.counter.SetInParent()
                if unit:
                    descriptor.counter.unit_name = unit

        return self._track((track, row), describe)

    def _slices(self, track: Track, slices: list[Slice]) -> None:
        kinds = self._pb.TrackEvent
        for row, marks in enumerate(nested_rows(slices)):
            uuid = self._lane(track, row)
            end = self._body(uuid, kinds.TYPE_SLICE_END, "", ())
            for time, begun in marks:
                body = end if begun is None else self._body(uuid, kinds.TYPE_SLICE_BEGIN, begun.name, begun.args)
                self._timed.append((operator.index(time), body))

    def _instant(self, event: Instant) -> None:
        body = self._body(self._lane(event.track), self._pb.TrackEvent.TYPE_INSTANT, event.name, event.args)
        self._timed.append((operator.index(event.time), body))

    def _counter(self, event: Counter) -> None:
        packet = self._packet()
        packet.track_event.type = self._pb.TrackEvent.TYPE_COUNTER
        packet.track_event.track_uuid = self._lane(event.track, "counter", event.unit)
        if isinstance(event.value, float):
            packet.track_event.double_counter_value = event.value
        else:
            packet.track_event.counter_value = operator.index(event.value)
        self._timed.append((operator.index(event.time), packet.SerializeToString(deterministic=True)))

    def _body(self, uuid: int, kind: int, name: str, args: Args) -> bytes:
        key = (uuid, kind, name, args, *(type(value) for _, value in args))  # True == 1, but reads otherwise
        body = self._bodies.get(key)
        if body is None:
            packet = self._packet()
            packet.track_event.type = kind
            packet.track_event.track_uuid = uuid
            if name:
                packet.track_event.name = name
            for label, value in args:
                _annotate(packet.track_event.debug_annotations.add(), label, value)
            body = self._bodies[key] = packet.SerializeToString(deterministic=True)
        return body


def _annotate(annotation: Any, label: str, value: int | float | str | bool) -> None:
    annotation.name = label
    if isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    else:
        annotation.int_value = operator.index(value)

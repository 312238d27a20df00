"""Events as a Perfetto trace: TrackEvent packets in protobuf, which ui.perfetto.dev opens from disk."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tilewright.extras import need
from tilewright.files import write_whole
from tilewright.trace.events import Args, Event, Instant, Slice, Track

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

    return _Writer(perfetto_trace_pb2).trace(events)


def write_perfetto(events: Iterable[Event], path: Path | str) -> int:
    """Write the trace to a file (made whole or not at all); its size in bytes."""
    raw = perfetto_bytes(events)
    write_whole(path, raw)
    return len(raw)


class _Writer:
    """Packets that describe tracks, and packets of events, which are sorted by time in the end."""

    def __init__(self, pb: Any) -> None:
        self._pb = pb
        self._head, self._timed = [self._packet(sequence_flags=_CLEARED)], list[Any]()
        self._uuids: dict[object, int] = {}
        self._ranks: dict[Track, int] = {}

    def trace(self, events: Iterable[Event]) -> bytes:
        lanes: dict[Track, list[Slice]] = {}
        for event in events:
            if event.track not in self._ranks:
                self._process(event.track)
                self._ranks[event.track] = len(self._ranks)
            if isinstance(event, Slice):
                lanes.setdefault(event.track, []).append(event)
            elif isinstance(event, Instant):
                uuid = self._lane(event.track)
                self._add(event.time, uuid, self._pb.TrackEvent.TYPE_INSTANT, event.name, event.args)
            else:
                uuid = self._lane(event.track, "counter", event.unit)
                shown = self._add(event.time, uuid, self._pb.TrackEvent.TYPE_COUNTER)
                if isinstance(event.value, float):
                    shown.double_counter_value = event.value
                else:
                    shown.counter_value = operator.index(event.value)
        for track, slices in lanes.items():
            for row, marks in enumerate(nested_rows(slices)):
                uuid = self._lane(track, row)
                for time, begun in marks:
                    if begun is None:
                        self._add(time, uuid, self._pb.TrackEvent.TYPE_SLICE_END)
                    else:
                        self._add(time, uuid, self._pb.TrackEvent.TYPE_SLICE_BEGIN, begun.name, begun.args)
        self._timed.sort(key=operator.attrgetter("timestamp"))  # stable: marks of one row keep their order
        whole = self._pb.Trace(packet=[*self._head, *self._timed])
        return bytes(whole.SerializeToString(deterministic=True))

    def _packet(self, **fields: int) -> Any:
        return self._pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, **fields)

    def _add(self, time: int, uuid: int, kind: int, name: str = "", args: Args = ()) -> Any:
        packet = self._packet(timestamp=operator.index(time))
        self._timed.append(packet)
        event = packet.track_event
        event.track_uuid, event.type = uuid, kind
        if name:
            event.name = name
        for label, value in args:
            _annotate(event.debug_annotations.add(), label, value)
        return event

    def _track(self, key: object, describe: Callable[[Any], None]) -> int:
        """The uuid of a track; the first time it is described, in a packet of its own."""
        if key not in self._uuids:
            self._uuids[key] = len(self._uuids) + 1
            self._head.append(self._packet())
            self._head[-1].track_descriptor.uuid = self._uuids[key]
            describe(self._head[-1].track_descriptor)
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


def _annotate(annotation: Any, label: str, value: Any) -> None:
    annotation.name = label
    for kind, field in ((bool, "bool_value"), (str, "string_value"), (float, "double_value")):
        if isinstance(value, kind):
            setattr(annotation, field, value)
            return
    annotation.int_value = operator.index(value)

"""Typed events that engines emit, their writers, and the reader of a profiler's file."""

from tilewright.trace.events import Args, Counter, Event, Instant, Recorder, Sink, Slice, Track
from tilewright.trace.perfetto import perfetto_bytes, write_perfetto
from tilewright.trace.xspace import protobuf_fields, read_xspace

__all__ = [
    "Args",
    "Counter",
    "Event",
    "Instant",
    "Recorder",
    "Sink",
    "Slice",
    "Track",
    "perfetto_bytes",
    "protobuf_fields",
    "read_xspace",
    "write_perfetto",
]

"""Typed events that engines emit, and their writers."""

from tilewright.trace.events import Args, Counter, Event, Instant, Recorder, Sink, Slice, Track
from tilewright.trace.perfetto import perfetto_bytes, write_perfetto

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
    "write_perfetto",
]

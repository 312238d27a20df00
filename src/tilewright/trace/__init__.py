"""Typed events that engines emit, their writers, and the reader of a profiler's file."""

from tilewright.trace.events import Args, Counter, Event, Instant, Recorder, Sink, Slice, Track
from tilewright.trace.perfetto import perfetto_bytes, write_perfetto
from tilewright.trace.profile import is_profile, read_profile
from tilewright.trace.xspace import XEvent, XPlane, read_xspace

__all__ = [
    "Args",
    "Counter",
    "Event",
    "Instant",
    "Recorder",
    "Sink",
    "Slice",
    "Track",
    "XEvent",
    "XPlane",
    "is_profile",
    "perfetto_bytes",
    "read_profile",
    "read_xspace",
    "write_perfetto",
]

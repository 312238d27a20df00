"""Typed events that engines emit, their writers, and the reader of a profiler's file."""

from typing import TYPE_CHECKING

from tilewright.exports import public_names

if TYPE_CHECKING:
    from tilewright.trace.events import Args, Counter, Event, Instant, Recorder, Sink, Slice, Track
    from tilewright.trace.perfetto import perfetto_bytes, write_perfetto
    from tilewright.trace.profile import is_profile, read_profile
    from tilewright.trace.xspace import XEvent, XPlane, protobuf_fields

__all__, __getattr__, __dir__ = public_names(__name__, __file__)

"""What engines emit: typed events on tracks, in integer time (1 cycle = 1 ns), to a Sink.

An engine takes a :class:`Sink` and knows nothing of files. Writers (this room's Perfetto writer, a table, a test) read
the events afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tilewright.errors import UsageError

Args = tuple[tuple[str, int | float | str | bool], ...]
"""Named facts about an event, in the order they are shown."""


@dataclass(frozen=True, slots=True)
class Track:
    """Where an event is drawn: a lane of a process, such as ("matrix unit", "accumulators")."""

    process: str
    lane: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that takes from ``start`` to ``start + duration`` (ns). Slices of a track may nest or overlap."""

    track: Track
    name: str
    start: int
    duration: int
    args: Args = ()

    def __post_init__(self) -> None:
        if self.start < 0 or self.duration < 0:
            raise UsageError(f"slice {self.name!r} starts at {self.start} and takes {self.duration}; both must be >= 0")


@dataclass(frozen=True, slots=True)
class Instant:
    """Something that happens at one moment (ns)."""

    track: Track
    name: str
    time: int
    args: Args = ()

    def __post_init__(self) -> None:
        if self.time < 0:
            raise UsageError(f"instant {self.name!r} happens at {self.time}; times must be >= 0")


@dataclass(frozen=True, slots=True)
class Counter:
    """A quantity that has ``value`` from ``time`` (ns) on; ``unit`` is shown beside its axis. One unit to a track."""

    track: Track
    time: int
    value: int | float
    unit: str = ""

    def __post_init__(self) -> None:
        if self.time < 0:
            raise UsageError(f"counter {self.track.lane!r} is set at {self.time}; times must be >= 0")


Event = Slice | Instant | Counter


class Sink(Protocol):
    """A listener to what an engine does."""

    def emit(self, event: Event, /) -> None:
        """Take one event. Called often: be quick."""


class Recorder:
    """A sink that keeps everything.

    >>> recorder = Recorder()
    >>> recorder.emit(Slice(Track("matrix unit", "mm"), "mm r0", start=0, duration=12))
    >>> len(recorder)
    1
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.emit = self.events.append

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

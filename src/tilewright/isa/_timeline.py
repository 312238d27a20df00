"""A traced run as a timeline: what every unit did, why it waited, how the caches fared, and the DMA transfers.

A lane of the issue queue shows its waits, one of the math unit its instructions, one more why it was idle; each adds up
to the run's own accounts, and a test holds them to it. Drawing is left to the trace room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tilewright.trace import Event, Slice, Track

if TYPE_CHECKING:
    from tilewright.isa._run import RunResult

__all__ = ["CACHES", "IDLE", "LOADER", "MOST_EVENTS", "QUEUE_LANE", "timeline"]

LOADER, QUEUE_LANE, IDLE, CACHES = "loader", "issue queue waits", "math idle", ("L1 misses", "L2 misses", "DRAM bytes")
"""Lanes of a processing element beside those of its units."""

MOST_EVENTS = 2_000_000
"""Events a processing element keeps; a longer run's timeline ends there and says so."""


def timeline(runs: Iterable[RunResult]) -> tuple[Event, ...]:
    """The events of all processing elements, and of the DMA controller they share; one cycle is one nanosecond.

    ``runs`` were made with ``trace=True``. Empty where they were not.

    >>> from tilewright.isa import MatrixUnit
    >>> run = MatrixUnit().run("mov r0, 1\\nadd r1, r0, 2\\nhalt", {}, trace=True)
    >>> [event.name for event in timeline([run])]
    ['mov', 'add', 'halt']
    """
    events: list[Event] = []
    chips = {}
    for run in runs:
        events += run.trace
        events += run.state.clock.lanes
        chips[id(run.state.chip)] = run.state.chip
    if events:
        for chip in chips.values():
            for t in chip.dma.transfers:
                name, lane = f"{t.storage} page {t.page} {t.direction}", Track("DMA", f"pages {t.direction}")
                events.append(Slice(lane, name, t.start, t.end - t.start, (("bytes", t.bytes),)))
    return tuple(events)

"""Time, as a model: in-order issue, one token per register, a two-phase ``mm``. Results never depend on it.

Cycles are integers and the same in every run. The model follows the specification's issue section; its latencies are
the configuration's, each with its source in the target file ``simt.toml``. Two accounts are kept, and each adds up to
the cycles of the run: what the issue queue did (``queue``), and what the math unit did (``math_busy`` and ``math``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.instructions import UNITS
from tilewright.trace import Args, Counter, Event, Instant, Slice, Track

if TYPE_CHECKING:
    from tilewright.isa.execute.run import RunResult


# A traced run as a timeline: what every unit did, why it waited, how the caches fared, and the DMA transfers.

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


QUEUE = {
    "issued": "an instruction was issued",
    "host": "the host had not started the program yet",
    "arithmetic": "a register of an arithmetic instruction was not there yet",
    "load": "a register of a load was not there yet",
    "product": "a product register was still being added to",
    "port": "the load-store unit was busy",
    "depth": "bcast_depth mm were under way",
    "A": "an mm waited for its A, and nothing younger issued",
    "page": "a page was still loading",
    "dma": "dmawait, or dmastat on a loading page",
    "barrier": "other processing elements were not there yet",
    "drain": "everything was issued; results were under way",
}
"""What the issue queue did in a cycle."""
MATH_STALLS = {
    "columns of B": "a step's columns were not there yet",
    "A": "the A registers were not there yet",
    "no mm": "no mm had been issued",
    "after": "the last mm was done",
}
"""Why the math unit did nothing in a cycle."""
CAUSES = ("arithmetic", "load", "product")
"""Units that make registers, as reasons to wait for one."""
_ARITHMETIC, _LOAD, _PRODUCT = range(3)


@dataclass
class Clock:
    """The scoreboard of one processing element.

    ``issue`` is the next free issue cycle. ``tokens``: cycle at which each register is ready (r0 onwards, then the
    uniform registers, then the predicates: ``span``); ``causes``: the unit that made it; ``foreign``: the same cycles,
    but for registers the math unit made, whose steps follow one another in order anyway.

    ``free``: cycles at which load-store unit, math unit, L2 bus and DRAM bus are free. ``share``: processing elements
    among which the buses are divided. ``events``: a slice per instruction, when asked for; ``lanes``: waits, loads and
    counters beside them.
    """

    config: MatrixUnitConfig
    tracing: bool = False
    name: str = "PE 0"
    share: int = 1
    issue: int = 0
    end: int = 0
    free: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    math_busy: int = 0
    tokens: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    causes: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int8))
    foreign: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0, np.int64))
    in_flight: deque[int] = field(default_factory=deque)
    queue: dict[str, int] = field(default_factory=lambda: dict.fromkeys(QUEUE, 0))
    math: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MATH_STALLS, 0))
    events: list[Event] = field(default_factory=list)
    lanes: list[Event] = field(default_factory=list)
    _totals: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """All registers are ready at first."""
        c = self.config
        places = c.registers + c.uniform_registers + c.predicates
        self.tokens, self.foreign = np.zeros((2, places), np.int64)
        self.causes = np.zeros(places, np.int8)
        self._base = {"r": 0, "ur": c.registers, "p": c.registers + c.uniform_registers}

    def span(self, kind: str, number: int, count: int = 1) -> slice:
        """The tokens of ``count`` registers from number ``number``."""
        base = self._base[kind] + number
        return slice(base, base + count)

    @property
    def cycles(self) -> int:
        """The cycle at which everything issued so far is done."""
        return max(self.end, self.issue)

    def accounts(self) -> tuple[dict[str, int], dict[str, int]]:
        """(what the issue queue did, why the math unit did nothing); the first adds up to ``cycles``."""
        total = self.cycles
        queue = {**self.queue, "drain": total - self.issue}
        return queue, {**self.math, "after": total - self.free[1]}

    def until(self, cycle: int, reason: str) -> None:
        """The queue stands still until a cycle."""
        if cycle > self.issue:
            self.queue[reason] += cycle - self.issue
            self._slice(QUEUE_LANE, reason, self.issue, cycle)
            self.issue = cycle

    def _take(self) -> int:
        start = self.issue
        self.queue["issued"] += 1
        self.issue = start + 1
        return start

    def _latest(self, spans: Iterable[slice]) -> tuple[int, str]:
        cycle, cause = 0, 0
        for s in spans:
            if s.stop == s.start:
                continue
            place = s.start if s.stop == s.start + 1 else s.start + int(self.tokens[s].argmax())
            if self.tokens[place] > cycle:
                cycle, cause = int(self.tokens[place]), int(self.causes[place])
        return cycle, CAUSES[cause]

    def _set(self, spans: Iterable[slice], cycle: int, cause: int) -> None:
        for s in spans:
            self.tokens[s], self.causes[s] = cycle, cause
            if cause != _PRODUCT:
                self.foreign[s] = cycle

    def step(
        self, unit: str, name: str, reads: Iterable[slice] = (), writes: Iterable[slice] = (), latency: int = 1
    ) -> None:
        """An instruction of one cycle, whose results are there ``latency`` cycles later."""
        writes = tuple(writes)
        self.until(*self._latest((*reads, *writes)))
        start = self._take()
        self._set(writes, start + latency, _ARITHMETIC)
        self._done(unit, name, start, start + max(1, latency))

    def scalar(self, unit: str, name: str, places: Sequence[int], written: int, latency: int) -> None:
        """:meth:`step` of single registers: ``places`` it looks at, and the one it writes (-1: none)."""
        tokens, latest, at = self.tokens, self.issue, -1
        for place in places:
            if tokens[place] > latest:
                latest, at = int(tokens[place]), place
        if at >= 0:
            self.until(latest, CAUSES[self.causes[at]])
        start = self._take()
        if written >= 0:
            tokens[written] = self.foreign[written] = start + latency
            self.causes[written] = _ARITHMETIC
        self._done(unit, name, start, start + max(1, latency))

    def transfer(self, name: str, reads: Iterable[slice], writes: Iterable[slice], lines: int) -> None:
        """Per-thread loads and stores: ``lines`` requests, then the latency of L2 (a reading: rows stream ahead)."""
        c, writes = self.config, tuple(writes)
        self.until(*self._latest((*reads, *writes)))
        self.until(self.free[0], "port")
        start = self._take()
        self.free[0] = start + max(1, -(-lines // c.l1_ports))
        end = self.free[0] + c.l2_latency
        self._set(writes, end, _LOAD)
        self._done("lsu", name, start, end)

    def begin_mm(self, reads: Iterable[slice], a: slice, products: slice, page_ready: int) -> tuple[int, int]:
        """(cycle of the memory issue, cycle at which A is there, and the products, if another unit made them)."""
        self.until(*self._latest(reads))
        if len(self.in_flight) >= self.config.bcast_depth:
            self.until(self.in_flight.popleft(), "depth")
        self.until(page_ready, "page")
        tokens = max(int(self.tokens[a].max()), int(self.foreign[products].max(initial=0)))
        self.math["no mm"] += max(0, self.issue - self.free[1])
        return self._take(), tokens

    def end_mm(self, name: str, start: int, tokens: int, first: int, a: slice, products: slice, busy: int) -> None:
        """The queue stood still until A was there; A may be overwritten once the first math issue has read it."""
        if first < 0:  # no step: the math unit never heard of it
            self.math["no mm"] -= max(0, start - self.free[1])
            self._done("math", name, start, start + 1)
            return
        end = self.free[1]
        self.until(tokens, "A")
        later = self.tokens[a] < first
        self.causes[a][later] = _PRODUCT
        self.tokens[a][later] = self.foreign[a][later] = first
        self._set((products,), end, _PRODUCT)
        self.in_flight.append(end)
        self.math_busy += busy
        self._done("math", name, first, end)

    def wait(self, name: str, until: int) -> None:
        """Stand still until a DMA transfer is done."""
        self.step("control", name)
        self.until(until, "dma")

    def _done(self, unit: str, name: str, start: int, end: int) -> None:
        self.end = max(self.end, end)
        if self.tracing:
            self._keep(self.events, Slice(Track(self.name, UNITS[unit]), name, start, end - start))

    def _slice(self, lane: str, name: str, start: int, end: int, args: Args = ()) -> None:
        if self.tracing and end > start:
            self._keep(self.lanes, Slice(Track(self.name, lane), name, start, end - start, args))

    def _keep(self, into: list[Event], event: Event) -> None:
        kept = len(self.events) + len(self.lanes)
        if kept < MOST_EVENTS:
            into.append(event)
        elif kept == MOST_EVENTS:
            what = f"the timeline ends here, after {MOST_EVENTS} events"
            self.lanes.append(Instant(Track(self.name, QUEUE_LANE), what, self.issue))

    def show_mm(self, name: str, start: int, free: tuple[int, int], waits: tuple[int, int, int], seen: Args) -> None:
        """Lanes of one ``mm`` that has steps: its loads, why the math unit was idle before and in it, the caches.

        ``free``: when the math unit was free before, and its first issue; ``waits``: cycles without mm, for columns and
        for A; ``seen``: columns, lines touched, and misses of L1 and L2.
        """
        if not self.tracing:
            return
        idle, columns, operand = waits
        before, first = free
        self._slice(LOADER, name, start, max(self.free[0], start + 1), seen)
        self._slice(IDLE, "no mm", before, before + idle)
        self._slice(IDLE, "A", before + idle, before + idle + operand)
        rest = (first - before) - idle - operand
        self._slice(IDLE, "columns of B", first - rest, first)
        # What is left of the waits for columns lies between steps: drawn at the end, where the lane is free.
        self._slice(IDLE, "columns of B", self.free[1] - (columns - rest), self.free[1])
        facts = dict(seen)
        for lane, fact, scale in zip(CACHES, ("L1 misses", "L2 misses", "L2 misses"), (1, 1, self.config.line_bytes)):
            at = self._totals[lane] = self._totals.get(lane, 0) + int(facts[fact]) * scale
            self._keep(self.lanes, Counter(Track(self.name, lane), start, at, "bytes" if scale > 1 else "lines"))

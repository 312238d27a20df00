"""Time, as a model: buses, in-order issue, one token per register, a two-phase ``mm``. Results never depend on it.

Cycles are integers and the same in every run. The model follows the specification's issue section; its latencies are
the configuration's, each with its source in the target file ``simt.toml``. Two accounts are kept, and each adds up to
the cycles of the run: what the issue queue did (``queue``), and what the math unit did (``math_busy`` and ``math``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.isa.kernels import records
from tilewright.isa.language.config import DRAMS, MatrixUnitConfig
from tilewright.isa.language.counts import Moved
from tilewright.isa.language.errors import Array
from tilewright.isa.language.instructions import UNITS
from tilewright.trace import Args, Counter, Event, Instant, Slice, Track

_AT, _COUNTERS = records.ACCOUNTS.places, [f.name for f in fields(Moved)]


@dataclass(eq=False)
class MemoryPort:
    """The memory system as one processing element sees it: what it has asked of L2 and device memory, in cycles.

    Reads come first: ``read`` is the end of those asked for. DMA comes second (``urgent``: reads and DMA), lines that
    were stored to last (``work``: everything). So no bus is idle while it has something to do, none carries more than
    it can, and a run ends when all of it is done.

    ==================  ================================================================================
    ``chip``            what all ports have together: L2, its dirty lines, banks, and windows of the buses
    ``numbers``         the record ACCOUNTS
    ``last``            the line that each thread loaded last
    ``several``         whether there are other elements, so that windows of the buses are shared
    ``waiting``         with several: (cycle, cycles) of stores whose lines have yet to go back
    ``transferred``     when the last of its DMA transfers is done
    ==================  ================================================================================
    """

    config: MatrixUnitConfig
    chip: Any = field(repr=False)
    numbers: Array = field(default_factory=lambda: np.zeros(len(records.ACCOUNTS.names), np.int64))
    last: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    several: bool = False
    waiting: list[tuple[int, int]] = field(default_factory=list)
    transferred: int = 0

    def __post_init__(self) -> None:
        self.last = np.full(self.config.threads, -1, np.int64)

    def cycles(self, size: int, rate: int) -> int:
        """Of ``size`` bytes on a bus of ``rate`` bytes a cycle."""
        return -(-size * self.config.slots // rate)

    @cached_property
    def links(self) -> records.Record:
        """What kernels are given: the record MEMORY."""
        chip, c = self.chip, self.config
        dram, line = DRAMS.get(c.dram), c.line_bytes
        values: dict[str, Any] = {"line_bytes": line, "accounts": self.numbers, "last": self.last}
        values |= {"l2": chip.l2.cells, "dirty": chip.dirty}
        values |= {"l2_line": self.cycles(line, c.l2_bytes_per_cycle)}
        values |= {"dram_line": self.cycles(line, c.dram_bytes_per_cycle)}
        values |= dict(zip(("rows", "bank_free", "activated"), chip.banks, strict=True))
        if self.several and c.slots == 1:
            values |= dict(zip(("l2_windows", "dram_windows"), chip.windows, strict=True))
        if dram is not None:
            values |= {"banks": dram.banks, "row_shift": max(0, (dram.row_bytes // line).bit_length() - 1)}
            values |= {name: dram.cycles(name) for name in ("rcd", "rp", "ras")}
        return records.Record(records.MEMORY, values)

    def relink(self) -> None:
        """Forget the kernels' record of the chip's arrays, which were replaced by larger ones."""
        self.__dict__.pop("links", None)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has tables of its own."""
        return {name: value for name, value in self.__dict__.items() if name != "links"}

    def _account(self, name: str) -> int:
        return int(self.numbers[_AT[name]])

    def count(self, **more: int) -> None:
        """Add to the counters of :class:`Moved` and ACCOUNTS, by name."""
        for name, number in more.items():
            self.numbers[_AT[name]] += number

    def begin(self) -> None:
        """A load or store begins: nothing has arrived, and no line was written."""
        self.numbers[_AT["arrived"]] = self.numbers[_AT["written"]] = 0

    def idle_until(self, cycle: int) -> None:
        """Let every bus be busy until ``cycle``, when a program starts: nothing it reads comes sooner."""
        for name in ("read", "urgent", "work", "l2_free", "l2_work"):
            self.numbers[_AT[name]] = max(self._account(name), cycle)
        if self.several:
            window, gone = cycle >> records.WINDOW_SHIFT, cycle & ((1 << records.WINDOW_SHIFT) - 1)
            for ring in self.chip.windows:
                own = ring[2 * (window & (records.WINDOWS - 1)) :][:2]
                if own[0] <= window:
                    own[:] = window, max(int(own[1]) if own[0] == window else 0, gone)

    @property
    def arrived(self) -> int:
        """When what the last load asked of device memory is there (0: it asked for nothing)."""
        arrived = self._account("arrived")
        return arrived + self.config.dram_latency if arrived else 0

    def over_l2(self, start: int, size: int) -> int:
        """Move bytes between L2 and the registers; the cycle at which they are over the bus."""
        return self._take_bus(records.L2_BUS, start, self.cycles(size, self.config.l2_bytes_per_cycle))

    def _take_bus(self, which: int, start: int, cycles: int) -> int:
        from tilewright.isa.kernels.memory_kernels import take_bus

        return int(take_bus(self.links.numbers, which, start, cycles))

    def write_back(self, start: int) -> None:
        """The lines of a store go back to device memory when that has nothing else to do."""
        written = self._account("written")
        size = written * self.config.line_bytes
        cycles = written * self.cycles(self.config.line_bytes, self.config.dram_bytes_per_cycle)
        self.count(dram_c=size)
        if self.several and self.config.slots == 1:
            self.waiting += [(start, cycles)] if cycles else []
        else:
            self.numbers[_AT["work"]] = max(self._account("work"), start) + cycles

    def transfer(self, now: int, start: int, size: int) -> int:
        """A page that DMA moves, asked for at ``now``, its turn at ``start``; when it is done."""
        c = self.config
        dram, l2 = (self.cycles(size, rate) for rate in (c.dram_bytes_per_cycle, c.l2_bytes_per_cycle))
        done = start + c.dma_latency + max(dram, l2)
        self.count(l2_dma=size, dram_dma=size)
        if self.several and self.config.slots == 1:
            for which, cycles in ((records.L2_WINDOWS, l2), (records.DRAM_WINDOWS, dram)):
                done = max(done, self._take_bus(which, start + c.dma_latency, cycles))
        else:
            for name, cycles in (("urgent", dram), ("work", dram), ("l2_work", l2)):
                self.numbers[_AT[name]] = max(self._account(name), now) + cycles
            done = max(done, self._account("urgent") + c.dma_latency, self._account("l2_work"))
        self.transferred = max(self.transferred, done)
        return done

    def settled(self) -> int:
        """The cycle at which everything asked for so far is done, and stored lines are in device memory."""
        done = max(self._account("read"), self._account("l2_free"), self.transferred)
        if not self.several or self.config.slots > 1:
            return max(done, self._account("work"), self._account("l2_work"))
        for start, cycles in self.waiting:
            done = max(done, self._take_bus(records.DRAM_WINDOWS, start, cycles))
        self.waiting.clear()
        return done

    @property
    def moved(self) -> Moved:
        return Moved(**{name: self._account(name) for name in _COUNTERS})


# Time: in-order issue, one token per register, a two-phase mm.


LOADER, QUEUE_LANE, IDLE, CACHES = "loader", "issue queue waits", "math idle", ("L1 misses", "L2 misses", "DRAM bytes")
"""Lanes of a processing element beside those of its units."""

MOST_EVENTS = 2_000_000
"""Events a processing element keeps; a longer run's timeline ends there and says so."""


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
    "vector": "the vector unit was busy",
    "fetch": "an instruction was fetched (fetch_cycles)",
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

    ``free``: cycles at which load-store unit, math unit and broadcast bus are free, ``vector_free``: the vector unit;
    ``port``: the buses behind them. ``events``: a slice per instruction, when asked for; ``lanes``: waits, loads and
    counters beside them.
    """

    config: MatrixUnitConfig
    port: MemoryPort
    tracing: bool = False
    name: str = "PE 0"
    issue: int = 0
    end: int = 0
    free: list[int] = field(default_factory=lambda: [0, 0, 0])
    vector_free: int = 0
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
        """Let the issue queue wait until ``cycle``, and count the cycles for ``reason``, a key of :data:`QUEUE`."""
        if cycle > self.issue:
            self.queue[reason] += cycle - self.issue
            self._draw(QUEUE_LANE, reason, self.issue, cycle)
            self.issue = cycle

    def _issue_next(self) -> int:
        start = self.issue
        self.queue["issued"] += 1
        self.queue["fetch"] += self.config.fetch_cycles
        self.issue = start + 1 + self.config.fetch_cycles
        return start

    def _last_ready(self, spans: Iterable[slice]) -> tuple[int, str]:
        cycle, cause = 0, 0
        for s in spans:
            if s.stop == s.start:
                continue
            place = s.start if s.stop == s.start + 1 else s.start + int(self.tokens[s].argmax())
            if self.tokens[place] > cycle:
                cycle, cause = int(self.tokens[place]), int(self.causes[place])
        return cycle, CAUSES[cause]

    def _mark_ready(self, spans: Iterable[slice], cycle: int, cause: int) -> None:
        for s in spans:
            self.tokens[s], self.causes[s] = cycle, cause
            if cause != _PRODUCT:
                self.foreign[s] = cycle

    def step(
        self, unit: str, name: str, reads: Iterable[slice] = (), writes: Iterable[slice] = (), latency: int = 1
    ) -> None:
        """Issue an instruction of one cycle, once the registers it reads and writes are ready.

        ``reads`` and ``writes`` are spans of register tokens (:meth:`span`); what it writes is ready ``latency`` cycles
        after the issue. ``unit`` and ``name`` are its lane and its label in the trace.
        """
        writes = tuple(writes)
        self.until(*self._last_ready((*reads, *writes)))
        start = self._issue_next()
        self._mark_ready(writes, start + latency, _ARITHMETIC)
        self._finish(unit, name, start, start + max(1, latency))

    def vector(self, name: str, reads: Iterable[slice], writes: Iterable[slice], cycles: int) -> None:
        """An instruction that keeps the vector unit for ``cycles``; no one sees a part of its result sooner."""
        writes = tuple(writes)
        self.until(*self._last_ready((*reads, *writes)))
        self.until(self.vector_free, "vector")
        start = self._issue_next()
        self.vector_free = start + max(1, cycles)
        end = self.vector_free + self.config.alu_latency - 1
        self._mark_ready(writes, end, _ARITHMETIC)
        self._finish("vector", name, start, max(end, start + 1))

    def settle(self) -> None:
        """Let the run end no sooner than the last transfer and write-back it asked for."""
        self.end = max(self.end, self.port.settled())

    def transfer(
        self, name: str, reads: Iterable[slice], writes: Iterable[slice], lines: int, size: int, storing: bool
    ) -> None:
        """Per-thread loads and stores: ``lines`` requests, ``size`` bytes over L2's bus, then the latency of L2.

        What L2 had not came as soon as device memory had time (a reading: rows stream ahead): a load waits for it.
        """
        c, writes = self.config, tuple(writes)
        self.until(*self._last_ready((*reads, *writes)))
        self.until(self.free[0], "port")
        start = self._issue_next()
        self.free[0] = start + max(1, -(-lines // c.l1_ports))
        end = max(self.free[0], self.port.over_l2(start, size)) + c.l2_latency
        if storing:
            self.port.write_back(start)
        else:
            end = max(end, self.port.arrived)
        self._mark_ready(writes, end, _LOAD)
        self._finish("lsu", name, start, end)

    def line_times(self, step_cycles: int, column_cycles: int) -> np.ndarray[Any, Any]:
        """What the issue kernel takes, a record TIMING; ``column_cycles``: of a column on the broadcast bus."""
        c = self.config
        times = (c.l1_ports, c.l1_latency, c.l2_latency, c.dram_latency, step_cycles, column_cycles)
        return np.array(times, np.int64)

    def wait(self, name: str, until: int) -> None:
        """Stand still until a DMA transfer is done."""
        self.step("control", name)
        self.until(until, "dma")

    def _finish(self, unit: str, name: str, start: int, end: int) -> None:
        self.end = max(self.end, end)
        if self.tracing:
            self._add_event(self.events, Slice(Track(self.name, UNITS[unit]), name, start, end - start))

    def _draw(self, lane: str, name: str, start: int, end: int, args: Args = ()) -> None:
        if self.tracing and end > start:
            self._add_event(self.lanes, Slice(Track(self.name, lane), name, start, end - start, args))

    def _add_event(self, into: list[Event], event: Event) -> None:
        kept = len(self.events) + len(self.lanes)
        if kept < MOST_EVENTS:
            into.append(event)
        elif kept == MOST_EVENTS:
            end = f"the timeline ends here, after {MOST_EVENTS} events"
            self.lanes.append(Instant(Track(self.name, QUEUE_LANE), end, self.issue))

    def draw_mm(
        self,
        name: str,
        now: int,
        waits: dict[str, int],
        math: tuple[int, int],
        idle: dict[str, int],
        traffic: np.ndarray[Any, Any],
    ) -> None:
        """Lanes of one ``mm``: itself, its loads, why queue and math unit waited, the caches.

        ``now``: the next issue before it; ``waits``: cycles of the queue by reason, in order, "A" behind the issue;
        ``math``: when the math unit was free before, and its first issue (-1: none); ``idle``: why it waited;
        ``traffic``: lines touched, L1 misses and L2 misses of every column.
        """
        (before, first), (lines, l1, l2) = math, traffic.sum(axis=0).tolist()
        for reason, cycles in waits.items():
            now += (1 + self.config.fetch_cycles) * (reason == "A")
            self._draw(QUEUE_LANE, reason, now, now + cycles)
            now += cycles
        start = now - waits["A"] - 1 - self.config.fetch_cycles
        if first < 0:  # no step: the math unit never heard of it
            self._finish("math", name, start, start + 1)
            return
        self._finish("math", name, first, self.free[1])
        facts = (("columns", len(traffic)), ("lines", lines), ("L1 misses", l1), ("L2 misses", l2))
        self._draw(LOADER, name, start, max(self.free[0], start + 1), facts)
        at = before
        for reason in ("no mm", "A"):
            self._draw(IDLE, reason, at, at + idle[reason])
            at += idle[reason]
        self._draw(IDLE, "columns of B", at, first)
        # What is left of the waits for columns lies between steps: drawn at the end, where the lane is free.
        rest = idle["columns of B"] - (first - at)
        self._draw(IDLE, "columns of B", self.free[1] - rest, self.free[1])
        for lane, more, unit in zip(
            CACHES, (l1, l2, l2 * self.config.line_bytes), ("lines", "lines", "bytes"), strict=True
        ):
            total = self._totals[lane] = self._totals.get(lane, 0) + more
            self._add_event(self.lanes, Counter(Track(self.name, lane), start, total, unit))

"""Time, as a model: in-order issue, one token per register, a two-phase ``mm``. Results never depend on it.

Cycles are integers and the same in every run. The model follows the specification's issue section; its latencies are
the configuration's, each with its source in the target file ``simt.toml``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tilewright.isa._config import MatrixUnitConfig
from tilewright.trace import Event, Slice, Track

__all__ = ["Clock"]


@dataclass
class Clock:
    """The scoreboard: ``issue`` is the next free issue cycle, ``tokens`` the cycle at which each register is ready.

    Registers come as slices of ``tokens``: r0 onwards, then the uniform registers, then the predicates (``span``).

    ``free``: cycles at which load-store unit, math unit, L2 bus and DRAM bus are free. ``stalls``: cycles the math unit
    waited, by reason. ``events``: slices for a timeline, when asked for.
    """

    config: MatrixUnitConfig
    tracing: bool = False
    issue: int = 0
    end: int = 0
    free: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    dma_free: int = 0
    math_busy: int = 0
    tokens: list[int] = field(default_factory=list)
    in_flight: deque[int] = field(default_factory=deque)
    stalls: dict[str, int] = field(default_factory=lambda: {"columns of B": 0, "A": 0, "page": 0, "dma": 0})
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        """All registers are ready at first."""
        c = self.config
        self.tokens = [0] * (c.registers + c.uniform_registers + c.predicates)

    def span(self, kind: str, number: int, count: int = 1) -> slice:
        """The tokens of ``count`` registers from number ``number``."""
        base = {"r": 0, "ur": self.config.registers, "p": self.config.registers + self.config.uniform_registers}[kind]
        return slice(base + number, base + number + count)

    def ready(self, spans: Iterable[slice]) -> int:
        """The cycle at which an instruction that needs these registers can issue."""
        return max(self.issue, self._latest(spans))

    def _latest(self, spans: Iterable[slice]) -> int:
        return max((max(self.tokens[s], default=0) for s in spans), default=0)

    def _set(self, spans: Iterable[slice], cycle: int) -> None:
        for s in spans:
            self.tokens[s] = [cycle] * (s.stop - s.start)

    def step(self, lane: str, name: str, reads: Iterable[slice], writes: Iterable[slice], latency: int = 1) -> None:
        """An instruction of one cycle, whose results are there ``latency`` cycles later."""
        start = self.ready((*reads, *writes))
        self.issue = start + 1
        self._set(writes, start + latency)
        self._done(lane, name, start, start + max(1, latency))

    def transfer(self, name: str, reads: Iterable[slice], writes: Iterable[slice], lines: int) -> None:
        """Per-thread loads and stores: ``lines`` requests, then the latency of L2 (a reading: rows stream ahead)."""
        c = self.config
        start = max(self.ready((*reads, *writes)), self.free[0])
        self.issue = start + 1
        self.free[0] = start + max(1, -(-lines // c.l1_ports))
        end = self.free[0] + c.l2_latency
        self._set(writes, end)
        self._done("load-store", name, start, end)

    def begin_mm(self, reads: Iterable[slice], tokens: Iterable[slice], page_ready: int) -> tuple[int, int]:
        """(cycle of the memory issue, cycle at which A and the products are there)."""
        start = self.ready(reads)
        if len(self.in_flight) >= self.config.bcast_depth:
            start = max(start, self.in_flight.popleft())
        self.stalls["page"] += max(0, page_ready - start)
        start = max(start, page_ready)
        return start, self._latest(tokens)

    def end_mm(
        self, name: str, start: int, tokens: int, first: int, a: Iterable[slice], products: Iterable[slice], busy: int
    ) -> None:
        """The queue stood still until A was there; A may be overwritten once the first math issue has read it."""
        end = max(self.free[1], start + 1)
        self.issue = max(start + 1, tokens)
        for s in a:
            self.tokens[s] = [max(cycle, first) for cycle in self.tokens[s]]
        self._set(products, end)
        self.in_flight.append(end)
        self.math_busy += busy
        self._done("math", name, first if first >= 0 else start, end)

    def dma(self, name: str, bytes_: int) -> int:
        """Start a transfer when the controller is free; returns the cycle at which it is done."""
        start = max(self.issue, self.dma_free)
        self.issue += 1
        self.dma_free = start + self.config.dma_latency + -(-bytes_ // self.config.dram_bytes_per_cycle)
        self._done("dma", name, start, self.dma_free)
        return self.dma_free

    def wait(self, name: str, until: int) -> None:
        """Stand still until a cycle."""
        self.stalls["dma"] += max(0, until - self.issue)
        self.step("control", name, (), ())
        self.issue = max(self.issue, until)

    def _done(self, lane: str, name: str, start: int, end: int) -> None:
        self.end = max(self.end, end)
        if self.tracing:
            self.events.append(Slice(Track("matrix unit", lane), name, start, end - start))

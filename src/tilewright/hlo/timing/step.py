"""The modelled time of one run of a program: rows, what bounds each, and how far off such rows were seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.trace import Event, Slice, Track
from tilewright.version import __version__

SCHEMA = "tilewright.time/2"


@dataclass(frozen=True, slots=True)
class TimeRow:
    """One operation.

    ==================  ========================================================================================
    ``name``, ``op``    the operation and its opcode; for StableHLO the operation that ends a predicted fusion
    ``seconds``         of all its runs in one step: ``runs`` times one
    ``bound``           what it waits for: ``matrix``, ``vector``, ``hbm``, ``vmem``, ``link``, ``latency``,
                        ``relayout``, ``sparsecore``; "" where it is not priced
    ``bytes``           bytes through HBM, padding included, all runs; no row is below these at HBM's peak
    ``flops``           multiplications and additions on the matrix unit, all runs
    ``source``          the line of the user's program
    ``start``           seconds after the step's begin at which its first run begins
    ``lane``            ``matrix``, ``vector``, ``dma``, ``sparsecore``, ``link`` or ``host``
    ``calibrated``      whether such operations were measured on this chip: of its type, size and bound
    ``error``           mean absolute error seen of such operations, as a share; 0 = not known
    ``runs``            how often it runs
    ``unpriced``        why it has no time ("" where it has)
    ``begun``           for the end of what runs beside other work (a transfer, an offloaded call): when it began, and
    ``beside``          for how many seconds it runs; ``seconds`` is only what the step waits for it
    ``line``            its line in the program's text, from 1; 0 for what no operation alone stands for
    ``resident``        bytes of its arguments that an earlier step may have left in vector memory; not in ``bytes``
    ``note``            what to know of its time: not measured there, raised to a peak, what may lie near already
    ``untimed_flops``,  of an operation without a time: what it computes and what arrays it reads and writes, all runs,
    ``untimed_bytes``   as far as its text says
    ==================  ========================================================================================
    """

    name: str
    op: str
    seconds: float
    bound: str
    bytes: int
    flops: int
    source: str
    start: float = 0.0
    lane: str = "vector"
    calibrated: bool = False
    error: float = 0.0
    runs: int = 1
    unpriced: str = ""
    begun: float = 0.0
    beside: float = 0.0
    line: int = 0
    resident: int = 0
    note: str = ""
    untimed_flops: int = 0
    untimed_bytes: int = 0


def share_with_a_time(pairs: Iterable[tuple[int, int]]) -> float:
    """The share of the first of two sums in both; 1 where there is nothing.

    >>> share_with_a_time([(3, 0), (0, 1)]), share_with_a_time([])
    (0.75, 1.0)
    """
    known = list(pairs)
    timed, untimed = sum(pair[0] for pair in known), sum(pair[1] for pair in known)
    return timed / (timed + untimed) if untimed else 1.0


@dataclass(frozen=True)
class StepTime:
    """What one run of a program takes on a chip, modelled.

    ==================  ========================================================================================
    ``seconds``         the whole step, the call included
    ``call_seconds``    of it, what a call costs beyond its kernels
    ``rows``            the operations, in the order they begin
    ``predicted``       the program was StableHLO: fusions and layouts are predictions
    ``priced``          the lesser of ``priced_flops`` and ``priced_bytes``; below 1, ``seconds`` is a lower bound
    ``notes``           what the reader must know: loops of unknown length, chips without measurements
    ==================  ========================================================================================

    >>> from tilewright.hlo import load
    >>> text = '''func.func @main(%a: tensor<8192x8192xbf16>) -> tensor<8192x8192xbf16> {
    ...   %0 = stablehlo.exponential %a : tensor<8192x8192xbf16>
    ...   return %0 : tensor<8192x8192xbf16>
    ... }'''
    >>> step = estimate(load(text), "tpu-v6e")  # doctest: +SKIP
    >>> step.rows[0].bound  # doctest: +SKIP
    'hbm'
    """

    program: str
    target: str
    seconds: float
    call_seconds: float
    rows: tuple[TimeRow, ...]
    predicted: bool
    priced: float
    matrix_peak: float = 0.0
    hbm_peak: float = 0.0
    notes: tuple[str, ...] = field(default=())

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products, of those without a time as well."""
        return sum(row.flops + row.untimed_flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """Bytes through HBM."""
        return sum(row.bytes for row in self.rows)

    @property
    def priced_flops(self) -> float:
        """Share of the multiplications and additions that have a time."""
        return share_with_a_time((row.flops, row.untimed_flops) for row in self.rows)

    @property
    def priced_bytes(self) -> float:
        """Share of the bytes that have a time; those of an operation without one are all it reads and writes."""
        return share_with_a_time((row.bytes, row.untimed_bytes) for row in self.rows)

    @property
    def matrix_utilisation(self) -> float:
        """Share of the published matrix peak that the step reaches; 0 where no peak is known."""
        timed = sum(row.flops for row in self.rows)
        return timed / self.seconds / self.matrix_peak if self.matrix_peak and self.seconds else 0.0

    @property
    def hbm_utilisation(self) -> float:
        """Share of the published HBM bandwidth that the step reaches; 0 where none is known."""
        return self.bytes / self.seconds / self.hbm_peak if self.hbm_peak and self.seconds else 0.0

    def by_bound(self) -> dict[str, float]:
        """Seconds by what bounds them, the most first."""
        sums: dict[str, float] = {}
        for row in self.rows:
            sums[row.bound or "unpriced"] = sums.get(row.bound or "unpriced", 0.0) + row.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def slowest(self, count: int) -> Sequence[TimeRow]:
        """The rows that take longest, the longest first."""
        return sorted(self.rows, key=lambda row: -row.seconds)[:count]

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``schema_version`` changes when a field changes its meaning."""
        return {
            "schema": SCHEMA,
            "schema_version": 2,
            "tilewright": __version__,
            "program": self.program,
            "target": self.target,
            "kind": "modelled, from predicted fusions and layouts" if self.predicted else "modelled, from the dump",
            "seconds": self.seconds,
            "call_seconds": self.call_seconds,
            "priced": self.priced,
            "priced_flops": self.priced_flops,
            "priced_bytes": self.priced_bytes,
            "flops": self.flops,
            "bytes": self.bytes,
            "matrix_utilisation": self.matrix_utilisation,
            "hbm_utilisation": self.hbm_utilisation,
            "by_bound": self.by_bound(),
            "notes": list(self.notes),
            "rows": [{name: getattr(row, name) for name in TimeRow.__slots__} for row in self.rows],
        }

    def events(self) -> tuple[Event, ...]:
        """The step as a timeline: a lane per unit, in nanoseconds since its begin; of a loop's body its first run.

        What runs beside other work has as many lanes of its unit as run at once.
        """
        events: list[Event] = []
        free: dict[str, list[int]] = {}
        for row in sorted(self.rows, key=lambda row: row.begun if row.beside else row.start):
            details: tuple[tuple[str, str | int], ...]
            details = (("bound", row.bound), ("bytes", row.bytes), ("flops", row.flops), ("source", row.source))
            begin, seconds, lane = row.start, row.seconds / row.runs, row.lane
            if row.beside:
                begin, seconds = row.begun, row.beside
                details = (*details, ("waited_ns", round(row.seconds / row.runs * 1e9)))
            if not seconds:
                continue
            start, duration = round(begin * 1e9), max(1, round(seconds * 1e9))
            lanes = free.setdefault(lane, [])
            number = next((k for k, end in enumerate(lanes) if end <= start), len(lanes))
            lanes[number:] = [start + duration, *lanes[number + 1 :]]
            name = f"{lane} {number + 1}" if number else lane
            events.append(Slice(Track(self.target, name), row.name or row.op, start, duration, details))
        return tuple(events)

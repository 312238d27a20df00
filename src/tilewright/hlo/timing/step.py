"""The modelled time of one run of a program: rows, what bounds each, how far off such rows were seen; and its views.

A step is shown as sentences about what to do first, as lines and tables for a terminal, and as a page with a roofline
and lanes over time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import groupby
from typing import Any, TypeVar

from msgspec import to_builtins

from tilewright.hlo.program import joined, title
from tilewright.render.drawing import Bar, LanePlane, LogPlane, bar_chart
from tilewright.render.formats import bytes_text, count_text, percent_text, place_text, seconds_text
from tilewright.render.markup import Html, element
from tilewright.render.page import Card, Page, advised, cards, note, steps
from tilewright.render.tables import Field, Table, cells, explorer
from tilewright.targets import SeenError
from tilewright.trace import Args, Event, Slice, Track
from tilewright.version import __version__

SCHEMA = "tilewright.time/3"

_WAITS = {
    "matrix": "computes on the matrix unit",
    "vector": "computes on the vector unit",
    "hbm": "waits for HBM",
    "vmem": "waits for vector memory",
    "relayout": "turns its data",
    "latency": "waits for its start",
    "link": "waits for links",
    "sparsecore": "waits for the SparseCores",
    "host": "waits for its host's memory",
}
_OFFLOAD, _OFFLOADED = "xla_tpu_enable_sparse_core_collective_offload_", ("all-gather", "all-reduce", "reduce-scatter")
"""The compiler's flags that let SparseCores exchange beside the products, and for which exchanges there are some."""
MOSTLY = 2 / 3
"""Share of its time from which a program is taken to be of one kind of kernel."""
_SMALL = 0.03
"""Share of the step from which a line is worth a word."""
_CALL = 0.3
"""And the call beside it."""
_MOST_LANES = 4
"""Steps whose lanes are drawn below each other."""
_LANES = {"matrix": "matrix unit", "vector": "vector unit", "copy": "copies", "dma": "DMA", "link": "links"}
_LANES |= {"sparsecore": "SparseCores", "host": "host"}
_MOST_MARKS = 2000
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class TimeRow:
    """One operation.

    ==================  ========================================================================================
    ``name``, ``op``    the operation and its opcode; for StableHLO the operation that ends a predicted fusion
    ``seconds``         of all its runs in one step: ``runs`` times one
    ``bound``           what it waits for: ``matrix``, ``vector``, ``hbm``, ``vmem``, ``link``, ``latency``,
                        ``relayout``, ``sparsecore``, ``host``; "" where it is not priced
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
    ``kernel``          what a custom kernel's maker called it, where ``name`` is no such name
    ``again``           whether it is computed a second time, for the gradient (``jax.checkpoint``)
    ``measured_on``     where operations of its kind, type, size and bound were measured: ``this chip``,
                        ``another chip`` (whose constants were scaled by published peaks) or ``nowhere``
    ``kind``            of kernel, and its type: ``product bf16``, ``reduction f32``, ``pallas bf16``; ``alone`` in the
                        program; "" of what nobody has timed
    ``seen``            what ``error`` was seen on, or that it was not
    ``also``            of several equal rows shown as one, the names of the others; () in every step's own rows
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
    kernel: str = ""
    again: bool = False
    measured_on: str = "nowhere"
    kind: str = ""
    seen: str = ""
    also: tuple[str, ...] = ()

    @property
    def once_text(self) -> str:
        """The time of one run, two digits; "" for a wait, which is longer or shorter in equal layers."""
        return "" if self.beside else f"{self.seconds / self.runs:.1e}"


@dataclass(frozen=True)
class StepTime:
    """What one run of a program takes on a chip, modelled.

    ==================  ========================================================================================
    ``device_seconds``  of its kernels on one device, as a profiler shows them: what is ranked, compared and titled
    ``call_seconds``    what a call from the host costs beside them, the same for every program of a chip
    ``rows``            the operations, in the order they begin
    ``predicted``       the program was StableHLO: fusions and layouts are predictions
    ``notes``           what the reader must know: loops of unknown length, chips without measurements
    ``brought``         arguments that are brought near the core before it, between calls, and their bytes: these are
                        in no row, as in no profile
    ``mixed``           how far off whole functions of the chip were: those of many kinds of kernels, then all
    ==================  ========================================================================================
    """

    program: str
    target: str
    device_seconds: float
    call_seconds: float
    rows: tuple[TimeRow, ...]
    predicted: bool
    matrix_peak: float = 0.0
    hbm_peak: float = 0.0
    notes: tuple[str, ...] = field(default=())
    brought: tuple[tuple[str, int], ...] = ()
    mixed: tuple[SeenError, ...] = ()

    @property
    def seconds(self) -> float:
        """The device and the call together: one call, waited for."""
        return self.device_seconds + self.call_seconds

    @property
    def brought_seconds(self) -> float:
        """How long HBM takes at its peak for what is ``brought``: calls in a row are no quicker than that."""
        return sum(size for _, size in self.brought) / self.hbm_peak if self.hbm_peak else 0.0

    @property
    def exposed_seconds(self) -> float:
        """Of the step, what it waits for exchanges between chips; the rest of ``exchange_seconds`` is hidden."""
        return sum(row.seconds for row in self.rows if row.bound == "link")

    @property
    def exchange_seconds(self) -> float:
        """How long exchanges between chips take, those beside other work included."""
        rows = (row for row in self.rows if row.lane == "link" or row.bound == "link")
        return sum(row.beside * row.runs or row.seconds for row in rows)

    @property
    def recomputed_seconds(self) -> float:
        """Of the step, what it computes a second time for the gradient."""
        return sum(row.seconds for row in self.rows if row.again)

    @property
    def priced(self) -> float:
        """Share of the step that has a time, by flops or by bytes, whichever is less; below 1 it is a lower bound."""
        return min(self.priced_flops, self.priced_bytes)

    @property
    def priced_flops(self) -> float:
        """Share of the multiplications and additions that have a time."""
        untimed = sum(row.untimed_flops for row in self.rows)
        return (self.flops - untimed) / self.flops if untimed else 1.0

    @property
    def priced_bytes(self) -> float:
        """Share of the bytes that have a time; those of an operation without one are all it reads and writes."""
        untimed = sum(row.untimed_bytes for row in self.rows)
        return self.bytes / (self.bytes + untimed) if untimed else 1.0

    @property
    def flops(self) -> int:
        """Multiplications and additions of all products, of those without a time as well."""
        return sum(row.flops + row.untimed_flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """Bytes through HBM."""
        return sum(row.bytes for row in self.rows)

    @property
    def matrix_utilisation(self) -> float:
        """Share of the published matrix peak that the step reaches; 0 where no peak is known."""
        timed = sum(row.flops for row in self.rows)
        return timed / self.device_seconds / self.matrix_peak if self.matrix_peak and self.device_seconds else 0.0

    @property
    def hbm_utilisation(self) -> float:
        """Share of the published HBM bandwidth that the step reaches; 0 where none is known."""
        return self.bytes / self.device_seconds / self.hbm_peak if self.hbm_peak and self.device_seconds else 0.0

    @property
    def coverage(self) -> dict[str, float]:
        """Shares of the step's time by where its operations' kind was measured: this chip, another chip or nowhere.

        What has no time counts nowhere in it; ``priced`` says how much that is.
        """
        sums, places = self._seconds_by(lambda row: row.measured_on), ("this chip", "another chip", "nowhere")
        whole = sum(sums.values())
        return {place: sums.get(place, 0.0) / whole if whole else 0.0 for place in places}

    @property
    def seen(self) -> tuple[float, str]:
        """How far off such steps were, as a share (0: not known), and what that was seen on: functions that are mostly
        of the kind that two thirds of it are of, else functions of many kinds.
        """
        sums = self._seconds_by(lambda row: (row.error, row.seen)) or {(0.0, ""): 0.0}
        most = next(iter(sums))
        if sums[most] >= MOSTLY * sum(sums.values()):
            return most
        if self.coverage["this chip"] < MOSTLY:
            return 0.0, "not measured for a third of its time and more"
        for known in self.mixed:
            if known.covers(1e6 * self.device_seconds):
                return known.error, known.said("of many kinds of kernels")
        return 0.0, "not measured for steps of many kinds of this length"

    def by_bound(self) -> dict[str, float]:
        """Seconds by what bounds them, the most first."""
        return self._seconds_by(lambda row: row.bound or "unpriced")

    def _seconds_by(self, key: Callable[[TimeRow], K]) -> dict[K, float]:
        """Seconds of the rows that are of one ``key``, the most first."""
        sums = defaultdict[K, float](float)
        for row in self.rows:
            sums[key(row)] += row.seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def slowest(self, count: int) -> Sequence[TimeRow]:
        """The rows that take longest, the longest first."""
        return sorted(self.rows, key=lambda row: -row.seconds)[:count]

    def alike(self) -> list[TimeRow]:
        """The rows in the order they begin, equal ones of unrolled layers as one."""
        same = ("op", "source", "bound", "bytes", "flops", "runs", "lane", "kernel", "again", "unpriced", "once_text")
        return joined(self.rows, same, ("seconds", "bytes", "flops", "runs", "untimed_flops", "untimed_bytes"))

    def to_json(self) -> dict[str, Any]:
        """Plain values, every figure of the step; ``schema_version`` changes when a field changes its meaning."""
        kind = "modelled, from predicted fusions and layouts" if self.predicted else "modelled, from the dump"
        head = {"schema": SCHEMA, "schema_version": 3, "tilewright": __version__}
        shown = [name for name, value in vars(StepTime).items() if isinstance(value, property)]
        figures = {name: getattr(self, name) for name in ("device_seconds", "call_seconds", "brought", *shown)}
        rows = [{name: value for name, value in to_builtins(row).items() if name != "also"} for row in self.rows]
        parts = {"by_bound": self.by_bound(), "notes": list(self.notes), "rows": rows}
        return {**head, "program": self.program, "target": self.target, "kind": kind, **figures, **parts}

    def events(self) -> tuple[Event, ...]:
        """The step as a timeline: a lane per unit, in nanoseconds since its begin; of a loop's body its first run.

        What runs beside other work has as many lanes of its unit as run at once.
        """
        events: list[Event] = []
        free: dict[str, list[int]] = {}
        for row in sorted(self.rows, key=lambda row: row.begun if row.beside else row.start):
            details: Args = (("bound", row.bound), ("bytes", row.bytes), ("flops", row.flops), ("source", row.source))
            begin, seconds, lane = row.start, row.seconds / row.runs, row.lane
            if row.beside:
                details = (*details, ("waited_ns", round(seconds * 1e9)))
                begin, seconds = row.begun, row.beside
            if not seconds:
                continue
            start, duration = round(begin * 1e9), max(1, round(seconds * 1e9))
            lanes = free.setdefault(lane, [])
            number = next((k for k, end in enumerate(lanes) if end <= start), len(lanes))
            lanes[number:] = [start + duration, *lanes[number + 1 :]]
            name = f"{lane} {number + 1}" if number else lane
            events.append(Slice(Track(self.target, name), row.name or row.op, start, duration, details))
        return tuple(events)

    def waits(self, count: int = 5) -> list[str]:
        """What the step waits for, in sentences, the one that concerns most time first."""
        groups: dict[tuple[str, str], list[TimeRow]] = defaultdict(list)
        for row in self.rows:
            if row.seconds:
                groups[row.source or row.name, row.bound].append(row)
        whole, said = self.device_seconds or 1.0, [(self.recomputed_seconds, "computed a second time for the gradient")]
        for (place, bound), rows in groups.items():
            words = f"{place_text(place)} {_WAITS.get(bound, bound)}{self._measure(bound, rows)}"
            said.append((sum(row.seconds for row in rows), words))
        most = sorted((each for each in said if each[0] >= _SMALL * whole), key=lambda each: -each[0])[:count]
        sentences = [f"{seconds_text(s)} ({percent_text(s / whole)} of the step): {words}" for s, words in most]
        if self.call_seconds >= _CALL * whole:
            words = "the call itself, whatever it computes: run several steps in one call (a loop under jit)"
            sentences.append(f"{seconds_text(self.call_seconds)} beside every step: {words}")
        if self.priced < 1:
            reasons = list(dict.fromkeys(row.unpriced for row in self.rows if row.unpriced))
            lacking = f"{percent_text(1 - self.priced_flops)} of the flops and {percent_text(1 - self.priced_bytes)}"
            sentences.append(f"{lacking} of the bytes have no time, so the step takes longer: {'; '.join(reasons[:2])}")
        return sentences or ["no line of the program takes more than a few per cent of the step"]

    def _measure(self, bound: str, rows: list[TimeRow]) -> str:
        """How much of what: bytes, kernels, the share of a peak."""
        if bound == "hbm":
            moved, transfer = sum(row.bytes for row in rows), all(row.lane == "dma" for row in rows)
            return f", a transfer of {bytes_text(moved)}" if transfer else f" for {bytes_text(moved)}" if moved else ""
        kernels = sum(row.runs for row in rows)
        if bound == "latency" and kernels > 1:
            return f" in {count_text(kernels)} small kernels"
        if bound == "matrix" and self.matrix_peak:
            share = sum(row.flops for row in rows) / sum(row.seconds for row in rows) / self.matrix_peak
            return f" at {percent_text(share)} of its peak"
        if bound == "link":
            if any(row.beside for row in rows):
                return ", longer than what runs beside: begin earlier, or exchange less"
            flags = [f"{_OFFLOAD}{row.op.replace('-', '_')}" for row in rows if row.op in _OFFLOADED]
            how = f" ({flags[0]}=true gives it to SparseCores)" if flags else ""
            return f", and nothing runs beside: exchange less, or beside products{how}"
        return ""

    def _fields(self) -> tuple[Field, ...]:
        """The columns of a step's rows, for terminal and page."""
        whole, through = self.device_seconds or 1.0, "bytes through HBM, padding included"
        error, beside = "mean absolute error of this kind on rows not fitted", "how long it runs beside other work"
        return (
            Field("operation", "code", of=title, width=13),
            Field("opcode", of=lambda row: row.op, facet=True, below=True),
            Field("time", "seconds", "modelled, all runs together", of=lambda row: row.seconds, width=6, total=True),
            Field("share", "percent", "of the whole step", of=lambda row: row.seconds / whole, below=True),
            Field("error", "percent", error, of=lambda row: row.error or None, below=True),
            Field("bound", of=lambda row: row.bound or "unpriced", width=6, facet=True),
            Field("runs", "count", of=lambda row: row.runs, below=True),
            Field("HBM", "bytes", through, of=lambda row: row.bytes, width=9.5, total=True),
            Field("flops", "count", "on the matrix unit", of=lambda row: row.flops, below=True, total=True),
            Field("line", of=lambda row: place_text(row.source), width=13, tail=True, facet=True),
            Field("seen on", of=lambda row: row.seen, shown=False),
            Field("beside", "seconds", beside, of=lambda row: row.beside or None, shown=False),
            Field("note", of=lambda row: row.note, below=True),
            Field("why not", of=lambda row: row.unpriced, shown=False),
            Field("equal ones", "code", of=lambda row: ", ".join(row.also) or None, shown=False),
        )

    def lines(self) -> list[str]:
        """The head of a step's account: its time, what it reaches, what bounds it, and how sure that is."""
        kind = "modelled from predicted fusions and layouts" if self.predicted else "modelled from the dump"
        lines = [f"{self.program} on {self.target}: {seconds_text(self.device_seconds)} a step ({kind})"]
        if self.call_seconds:
            lines.append(f"beside it {seconds_text(self.call_seconds)} for the call itself")
        for name, size in self.brought:
            lines.append(f"before it {bytes_text(size)} of {name} are brought near the core, not among its bytes:")
            waits = "longer than the step, so calls in a row wait for it" * (self.brought_seconds > self.device_seconds)
            lines.append(f"  {seconds_text(self.brought_seconds)} at HBM's peak, {waits or 'less than the step takes'}")
        matrix, hbm = percent_text(self.matrix_utilisation), percent_text(self.hbm_utilisation)
        work = f"{count_text(self.flops)} flops, {bytes_text(self.bytes)} through HBM"
        lines.append(f"matrix unit {matrix} of its peak, HBM {hbm}: {work}")
        if exchanges := exchanges_text(self.exchange_seconds, self.exposed_seconds, self.device_seconds):
            lines.append(exchanges)
        if again := self.recomputed_seconds:
            flops = sum(row.flops for row in self.rows if row.again) / (self.flops or 1)
            lines.append(f"computed again for the gradient: {seconds_text(again)}, {percent_text(flops)} of the flops")
        covered = [f"{percent_text(share)} {place}" for place, share in self.coverage.items() if share]
        if covered:
            lines.append(f"of its time, kinds measured on: {', '.join(covered)}")
            error, of = self.seen
            lines.append(f"error: {percent_text(error)}, seen on {of}" if error else f"error: {of}")
        bounds = [f"{name} {seconds_text(seconds)}" for name, seconds in self.by_bound().items() if seconds]
        lines.append(f"bound by {', '.join(bounds)}" if bounds else "nothing in it takes time")
        return lines

    def slowest_table(self, count: int) -> Table:
        """The slowest ``count`` operations; what is hidden behind other work takes no line."""
        wanted = ("operation", "opcode", "time", "share", "error", "bound", "HBM", "line")
        chosen = [field for field in self._fields() if field.heading in wanted]
        rows = sorted((row for row in self.alike() if row.seconds or not row.beside), key=lambda row: -row.seconds)
        return Table(chosen, cells(chosen, rows[:count]))

    def to_html(
        self, beside: Sequence[tuple[str, StepTime]] = (), changes: Sequence[str] = (), compared: Sequence[Html] = ()
    ) -> str:
        """One page: this step in full, what would take less, and steps ``beside`` it by name, itself the first.

        ``compared``: what holds these against each other.
        """
        kind = "predicted fusions and layouts" if self.predicted else "the dump's own schedule"
        facts = [("target", self.target), ("kind", f"modelled, {kind}"), ("made", date.today().isoformat())]
        head = f"{seconds_text(self.device_seconds)} a step on {self.target}"
        page = Page(f"Time of {self.program}", head, facts=facts, wide=True)
        page.section("advice", "What to do first", steps(map(advised, (*changes, *self.waits()))))
        page.section("summary", "What a step takes", cards(self._figures()), *(note(text) for text in self.notes))
        if compared:
            page.section("compare", "Beside each other", *compared)
        waits = {**self.by_bound(), "the call, beside it": self.call_seconds}
        bars = [Bar(name, (seconds,)) for name, seconds in waits.items() if seconds]
        page.section("bounds", "What it waits for", bar_chart(bars, title="time by what bounds it", kind="seconds"))
        key, empty = (lambda row: row.name or row.op), "no operations"
        rows = explorer(self._fields(), self.alike(), key=key, sort="time", empty=empty)
        page.section("operations", "Operations by time", rows)
        page.section("roofline", "Roofline", self._roofline())
        page.section("lanes", "Lanes over the step", *lanes(beside or [("", self)]))
        page.data("time", self.to_json())
        return page.html()

    def _figures(self) -> list[Card]:
        shares = f"{percent_text(self.priced_flops)} of the flops, {percent_text(self.priced_bytes)} of the bytes"
        priced = "every operation has a time" if self.priced == 1 else f"{shares}: a lower bound"
        waited = f"of {seconds_text(self.exchange_seconds)} of exchanges"
        call = f"{seconds_text(self.call_seconds)} beside it for the call"
        before = [f"{bytes_text(size)} of {name} before it" for name, size in self.brought]
        return [
            Card("step", seconds_text(self.device_seconds), call),
            Card("matrix unit", percent_text(self.matrix_utilisation), f"{count_text(self.flops, compact=True)} flops"),
            Card("HBM", percent_text(self.hbm_utilisation), ", ".join([bytes_text(self.bytes), *before])),
            *([Card("exposed", seconds_text(self.exposed_seconds), waited)] if self.exchange_seconds else []),
            Card("priced", percent_text(self.priced), priced, "plain" if self.priced == 1 else "warn"),
        ]

    def _roofline(self) -> Html:
        """Operations by flops per byte and flops per second, under the chip's two roofs. A disc's size is its time.

        Products that touch vector memory alone stand at the right end.
        """
        marks = [row for row in self.slowest(_MOST_MARKS) if row.flops and row.seconds]
        if not marks or not self.matrix_peak or not self.hbm_peak:
            return element("p", "no operation of this step uses the matrix unit", class_="empty")
        ridge = self.matrix_peak / self.hbm_peak
        known = [row.flops / row.bytes for row in marks if row.bytes]
        low, high = min([*known, ridge / 10]), max([*known, ridge * 10]) * 2
        bottom = min([row.flops / row.seconds for row in marks] + [low * self.hbm_peak])
        labels = ("flops per byte of HBM", "flops per second")
        plane = LogPlane("Roofline", [low, high], [bottom, self.matrix_peak], labels, 720)
        x, y = plane.x, plane.y
        if len(known) < len(marks):
            plane.text(x(high), plane.low - 6, "no HBM", "soft", anchor="end")
        roof = [(x(low), y(low * self.hbm_peak)), (x(ridge), y(self.matrix_peak)), (x(high), y(self.matrix_peak))]
        plane.polyline(roof, "curve s1")
        plane.text(plane.right, y(self.matrix_peak) - 6, "matrix peak", "soft", anchor="end")
        plane.text(x(ridge) - 8, y(self.matrix_peak) + 20, "HBM bandwidth", "soft", anchor="end")
        longest = max(row.seconds for row in marks)
        for row in marks:
            value = row.flops / row.bytes if row.bytes else high
            each = f"{count_text(round(value))} flops a byte" if row.bytes else "no byte of HBM"
            tip = f"{row.name}: {seconds_text(row.seconds)}, {each}, bound by {row.bound}"
            size = 2 + 8 * math.sqrt(row.seconds / longest)
            plane.circle(x(value), y(row.flops / row.seconds), size, "dot s0", tip=tip)
        return element("figure", plane.svg())

    def lanes(self, end: float | None = None) -> Html:
        """A drawing of which unit is busy when, over the first ``end`` seconds (the whole step).

        What runs beside other work is drawn light, what the step waits for full. A loop is drawn as its first run, and
        light over all its runs: neighbouring rows that run alike often, for each lane they use. What the call takes
        beyond its kernels stands first, with the host.
        """
        call, bars = self.call_seconds, list[tuple[str, float, float, str, bool]]()  # lane, begin, seconds, tip, light
        for runs, group in groupby((row for row in self.rows if row.seconds), key=lambda row: row.runs):
            rows: list[TimeRow] = list(group)
            whole = sum(row.seconds for row in rows)
            for lane in dict.fromkeys(row.lane for row in rows) if runs > 1 else ():
                busy = seconds_text(sum(row.seconds for row in rows if row.lane == lane))
                tip = f"a loop of {runs} runs: {busy} of {seconds_text(whole)}"
                bars.append((lane, min(row.start for row in rows), whole, tip, True))
        for row in sorted(self.rows, key=lambda row: -max(row.seconds, row.beside))[:_MOST_MARKS]:
            once = row.seconds / row.runs
            if row.beside:
                tip = f"{row.name}: {seconds_text(row.beside)} beside other work, {seconds_text(once)} of it waited for"
                bars.append((row.lane, row.begun, row.beside, tip, True))
            if once:
                bars.append((row.lane, row.start, once, f"{row.name}: {seconds_text(once)}, {row.bound}", False))
        if not bars:
            return element("p", "nothing to draw", class_="empty")
        if call:
            bars.insert(0, ("host", -call, call, f"the call itself: {seconds_text(call)}", False))
        names = [name for name in _LANES if any(bar[0] == name for bar in bars)]
        end = max(call + max(start + seconds for _, start, seconds, *_ in bars), end or 0.0)
        plane = LanePlane("Lanes", [_LANES[name] for name in names], end)
        for lane, start, seconds, tip, light in bars:
            plane.bar(names.index(lane), call + start, seconds, tip, light)
        return element("figure", plane.svg())


def exchanges_text(exchange: float, exposed: float, step: float) -> str:
    """How long exchanges take and what of it the step waits for, in seconds; "" where there are none.

    >>> exchanges_text(1.02, 0.0593, 8.5)
    'exchanges between chips take 1.02 s, 59.3 ms of it exposed (0.7 % of the step)'
    """
    if not exchange:
        return ""
    share = percent_text(exposed / step) if step else ""
    hidden = f"{seconds_text(exposed)} of it exposed ({share} of the step)" if exposed else "none of it exposed"
    return f"exchanges between chips take {seconds_text(exchange)}, {hidden}"


def lanes(steps: Sequence[tuple[str, StepTime]]) -> list[Html]:
    """The lanes of the first steps at one scale, each under its name where there are several."""
    shown = steps[:_MOST_LANES]
    end = max(step.seconds for _, step in shown)
    if len(shown) == 1:
        return [shown[0][1].lanes()]
    return [part for name, step in shown for part in (element("h3", name), step.lanes(end))]

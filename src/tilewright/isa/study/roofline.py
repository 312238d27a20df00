"""roofline: what a run could not have been faster than, what it took, and what a change of the machine would bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import UsageError
from tilewright.isa.language.config import RANGES, MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import math_cycles_at_least
from tilewright.isa.study.choices import problem_of
from tilewright.isa.study.tune import element_bytes, search
from tilewright.render import Card, Column, Html, Page, Step, Table, cards, steps, table
from tilewright.render.delivery import Line
from tilewright.render.drawing import LogPlane
from tilewright.render.page import paragraph


@dataclass(frozen=True)
class Bound:
    """A unit that does one thing after another: ``amount`` of ``what`` at ``rate`` a cycle takes ``cycles`` at least.

    ``ceiling``: products a cycle that a run with so many products for each of ``what`` cannot pass.
    """

    name: str
    what: str
    amount: float
    rate: float
    cycles: float
    ceiling: float

    @property
    def intensity(self) -> float:
        """Multiplications for each of ``what``."""
        return self.ceiling / self.rate


@dataclass(frozen=True)
class Change:
    """A field of the machine with another value, and the cycles of the same program, or of its best, then."""

    field: str
    before: Any
    after: Any
    cycles: int


@dataclass(frozen=True)
class Roofline:
    """``bounds``, the highest first; ``macs`` in ``cycles`` is the measured point.

    ``stalls``: why the math unit did nothing in the others; ``changes``: what other machines would take
    (:func:`what_if`), the best first.
    """

    title: str
    macs: int
    cycles: int
    peak: float
    bounds: tuple[Bound, ...]
    stalls: dict[str, int]
    changes: tuple[Change, ...] = ()

    @staticmethod
    def measured(
        sizes: Sequence[Any],
        dtype: str = "s8",
        config: MatrixUnitConfig | None = None,
        tuned: bool = False,
        changes: bool = False,
        watch: Callable[[int, int], None] | None = None,
        **how: Any,
    ) -> tuple[Roofline, str]:
        """Run a product (m, n, k) or a convolution (shapes of x and w) without values: (its roofline, how it ran).

        ``tuned``: by its fastest choice, not by default options; ``changes``: run it on other machines too, as
        :func:`what_if` has them; ``how``: stride, padding, ... of a convolution.

        >>> found, choice = Roofline.measured((16, 64, 64), changes=True)
        >>> found.limit.name, choice, found.changes[0].field
        ('load-store unit', 'ka1 kb1 k_outer t0', 'a_bytes')
        """
        config = checked_config(config)
        problem: Any = problem_of(sizes, how, element_bytes(dtype), config)
        choice: Any = search(problem, dtype).best.choice if tuned else problem.default

        def run(machine: MatrixUnitConfig) -> Any:
            return replace(problem, config=machine).run(dtype, choice)

        found = roofline(run(config), config, problem.title)
        if changes:
            found = replace(found, changes=what_if(config, lambda machine: int(run(machine).cycles), watch))
        return found, str(choice)

    @property
    def rate(self) -> float:
        """Multiplications a cycle."""
        return self.macs / max(1, self.cycles)

    @property
    def limit(self) -> Bound:
        """The unit that is busy for longest."""
        return self.bounds[0]

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change, the most urgent first."""
        first, math = self.limit, next(bound for bound in self.bounds if bound.name == "math")
        said = []
        if self.cycles > 1.15 * first.cycles:
            waited = max(self.stalls, key=lambda name: self.stalls[name]) if any(self.stalls.values()) else ""
            share = 1 - first.cycles / self.cycles
            reason = f"; the math unit waits most for: {waited} ({self.stalls[waited]:,} cycles)" if waited else ""
            said.append(f"No unit is busy in {share:.0%} of the cycles{reason}. Bring data earlier: {_EARLIER}.")
        if first.name in _ADVICE:
            said.append(f"The {first.name} is busy for {first.cycles:,.0f} cycles. {_ADVICE[first.name]}")
        issued = next((bound for bound in self.bounds if bound.name == "math steps"), None)
        if issued is not None and issued.cycles > 1.1 * math.cycles:
            idle = 1 - math.cycles / issued.cycles
            said.append(f"{idle:.0%} of all threads have nothing to multiply in a step. {_ADVICE['math steps']}")
        for change in self.changes[:3]:
            if change.cycles < 0.99 * self.cycles:
                faster = f"{change.cycles:,} cycles, {self.cycles / change.cycles:.3g} times as fast"
                said.append(f"{change.field}={change.after} instead of {change.before}: {faster}.")
        return tuple(said)

    def lines(self) -> Iterator[Line]:
        """For a terminal: the rate, every bound, what to do."""
        yield f"{self.macs:,} products in {self.cycles:,} cycles: {self.rate:,.0f} of {self.peak:,.0f} a cycle\n"
        yield Table(*self.table())
        yield from ("", *(f"* {text}" for text in self.advice))

    def to_dict(self) -> dict[str, Any]:
        bounds = [{**bound.__dict__, "intensity": bound.intensity} for bound in self.bounds]
        plain = {"title": self.title, "macs": self.macs, "cycles": self.cycles, "rate": self.rate, "peak": self.peak}
        plain |= {"bounds": bounds, "stalls": self.stalls, "advice": list(self.advice)}
        return plain | {"changes": [change.__dict__ for change in self.changes]}

    def table(self) -> tuple[list[Column], list[tuple[object, ...]]]:
        """Columns, and every bound as a row: for pages and terminals."""
        columns = [Column("unit"), Column("busy at least", "count"), Column("of all cycles", "percent")]
        columns += [Column("amount", "count"), Column("of"), Column("a cycle", "number")]
        columns.append(Column("products each", "number"))
        rows: list[tuple[object, ...]] = []
        for b in self.bounds:
            head = (b.name, round(b.cycles), b.cycles / max(1, self.cycles), round(b.amount))
            rows.append((*head, b.what, round(b.rate, 3), round(b.intensity, 2)))
        return columns, rows

    def to_html(self, command: str = "") -> str:
        """A page: what to change, the roofs, the bounds, other machines; ``command``: what makes it again."""
        share = self.rate / self.peak
        page = Page(f"Roofline of {self.title}", "on the matrix unit", facts=[("products", f"{self.macs:,}")])
        todo = [Step(text) for text in self.advice]
        if command and self.changes and (best := self.changes[0]).cycles < self.cycles:
            todo.append(Step("Change the machine, and look again.", f"{command} --set {best.field}={best.after}"))
        figures = [
            Card("cycles", f"{self.cycles:,}", f"the {self.limit.name} is busy for {self.limit.cycles:,.0f}"),
            Card("products a cycle", f"{self.rate:,.0f}", f"of {self.peak:,.0f}: {share:.1%}"),
        ]
        page.section(
            "change", "What to change", steps(todo) or paragraph("Nothing: it is as fast as it can be."), cards(figures)
        )
        page.section("roofs", "The point and its roofs", _roofs(self))
        page.section("bounds", "Every bound", table(*self.table()))
        if self.changes:
            heads = [Column("field", "code"), Column("is", "code"), Column("as", "code"), Column("cycles", "count")]
            heads.append(Column("times as fast", "ratio"))
            other = [(c.field, str(c.before), str(c.after), c.cycles, self.cycles / c.cycles) for c in self.changes]
            page.section("machines", "Other machines", table(heads, other, caption="The same work, run on each."))
        page.data("roofline", {"schema_version": 1, **self.to_dict()})
        return page.html()


_EARLIER = "A of several rounds at once (block_a), weights by DMA (stream, segments), more in flight (bcast_depth)"
_ADVICE = {
    "load-store unit": "Ask for fewer lines: more of k per column (a_bytes; kb with kb_mode='chunk'), A of several "
    "rounds at once (block_a); or more l1_ports.",
    "L2's bus": "Let L1 serve more (more columns an instruction, larger l1_bytes), or widen l2_bytes_per_cycle.",
    "device memory": "Every byte once is the least there is; more rows at once (more threads, a larger batch) use a "
    "byte more often, a larger l2_bytes keeps it, dram_bytes_per_cycle brings it sooner.",
    "broadcast bus": "Let more rows share a column (more threads to rows, fewer to ka and kb), or widen "
    "bus_bytes_per_cycle.",
    "instruction fetch": "Let an instruction do more: more columns, more of k (a_bytes), more A at once (block_a).",
    "math steps": "Let groups of threads share a row (ka) or a dot product (kb), so that all have work.",
    "math": "All threads multiply: only more threads, or more bytes of A each (a_bytes), make more.",
}


def roofline(result: Any, config: MatrixUnitConfig | None = None, title: str = "the run") -> Roofline:
    """The roofline of a finished run: of :func:`matmul`, :func:`conv2d`, a program, or a compiled model.

    ``config``: the machine it ran on, where it was not the default one and the result does not know. Every bound is
    what was counted over what the machine can do in a cycle, all processing elements together.

    >>> import numpy as np
    >>> from tilewright.isa import matmul
    >>> ones = np.ones((64, 64), np.int8)
    >>> print(roofline(matmul(ones, ones)).limit.name)
    load-store unit
    """
    if not hasattr(result, "counts") or not hasattr(result, "moved"):
        raise UsageError(f"{type(result).__name__} is no run", how="what matmul, conv2d or a program's run returns")
    runs = getattr(result, "pes", ()) or (result,)
    known = getattr(result, "config", None) or getattr(getattr(runs[0], "state", None), "config", None)
    c = config or known or checked_config(None)
    counts, moved, pes = result.counts, result.moved, c.pes
    sizes = {level: sum(of.values()) for level, of in moved.bytes.items()}
    macs, ideal = counts.macs, math_cycles_at_least(moved, c) / pes
    traffic = getattr(result, "traffic", None)
    lines = counts.l1_touches + (traffic.load_lines + traffic.store_lines if traffic else 0)
    peak = macs / ideal if ideal else float(c.compute_threads * pes)
    found = [
        ("load-store unit", "lines", lines, c.l1_ports * pes),
        ("L2's bus", "bytes", sizes["l2"], c.l2_bytes_per_cycle),
        ("device memory", "bytes", sizes["dram"], c.dram_bytes_per_cycle),
    ]
    if c.bus_bytes_per_cycle:
        found.append(("broadcast bus", "bytes", moved.l1_b, c.bus_bytes_per_cycle * pes))
    if c.fetch_cycles:
        found.append(("instruction fetch", "instructions", getattr(result, "executed", 0), pes / (1 + c.fetch_cycles)))
    found.append(("math", "products", macs, peak))
    bounds = []
    for name, what, amount, rate in found:
        if amount or name == "math":
            cycles = amount / rate
            bounds.append(Bound(name, what, amount, rate, cycles, macs / cycles if cycles else float("inf")))
    if (busy := max(getattr(run, "math_cycles", 0) for run in runs)) > 0:
        bounds.append(Bound("math steps", "steps", busy, 1.0, busy, macs / busy))
    bounds.sort(key=lambda bound: -bound.cycles)
    return Roofline(title, macs, result.cycles, peak, tuple(bounds), dict(getattr(result, "stalls", {})))


_DOUBLED = (
    *("l1_ports", "l2_bytes_per_cycle", "dram_bytes_per_cycle", "l1_bytes", "l2_bytes", "bcast_depth", "threads"),
    *("a_bytes", "line_bytes", "bus_bytes_per_cycle"),
)
_HALVED = (
    *("l1_latency", "l2_latency", "dram_latency", "dma_latency", "fetch_cycles", "page_hit_cycles"),
    "page_miss_cycles",
)


def what_if(
    config: MatrixUnitConfig, run: Callable[[MatrixUnitConfig], int], watch: Callable[[int, int], None] | None = None
) -> tuple[Change, ...]:
    """Every bandwidth and size doubled, every latency halved, one at a time: what ``run`` says it takes then.

    ``run`` gives the cycles on a machine; a machine that cannot be, or not run it, is left out. The best first.
    """
    changes: list[Change] = []
    fields: Sequence[str] = (*_DOUBLED, *_HALVED)
    for done, field in enumerate(fields, 1):
        before = getattr(config, field)
        after = before // 2 if field in _HALVED else before * 2
        least, most = RANGES[field]
        if after != before and least <= after <= most:
            with suppress(UsageError):
                changes.append(Change(field, before, after, run(replace(config, **{field: after}))))
        if watch is not None:
            watch(done, len(fields))
    return tuple(sorted(changes, key=lambda change: change.cycles))


def _roofs(found: Roofline) -> Html:
    """Products a cycle over products a byte: a roof for each level of memory, flat where math ends it."""
    slopes = [bound for bound in found.bounds if bound.what == "bytes"]
    if not slopes:
        return paragraph("No byte was moved.")
    places = [bound.intensity for bound in slopes]
    knees = [found.peak / bound.rate for bound in slopes]
    xs = [*places, *knees, min(places) / 4, max(*places, *knees) * 2]
    lowest = min([found.rate, *(bound.rate * min(xs) for bound in slopes)])
    title = "Products a cycle, by products for each byte of a level"
    plane = LogPlane(title, xs, [max(lowest, found.peak / 4096), found.peak], ("products a byte", "products a cycle"))
    for number, bound in enumerate(slopes):
        knee = found.peak / bound.rate
        first = max(min(xs), 10 ** plane.y_ends[0] / bound.rate)
        ends = [(first, first * bound.rate), (knee, found.peak), (max(xs), found.peak)]
        plane.polyline([(plane.x(x), plane.y(y)) for x, y in ends], f"curve s{number}")
        x, y = plane.x(bound.intensity), plane.y(found.rate)
        most = min(bound.ceiling, found.peak)
        tip = f"{bound.name}: {bound.intensity:,.1f} products a byte, at most {most:,.0f} a cycle"
        plane.circle(x, y, 5, f"dot s{number}", tip=tip)
        plane.text(x + 9, y + 4 + 15 * number, bound.name)
    others = [bound for bound in found.bounds if bound.what not in ("bytes", "products")]
    for bound in others:
        if bound.ceiling < 0.98 * found.peak:
            y = plane.y(bound.ceiling)
            plane.line(plane.x(min(xs)), y, plane.x(max(xs)), y, "mark")
            plane.text(plane.x(min(xs)) + 6, y - 5, f"{bound.name}: {bound.ceiling:,.0f}", "small")
    return plane.figure()

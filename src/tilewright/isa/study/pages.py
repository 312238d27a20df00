"""The pages of a roofline and of an exploration: what to do first, then a picture, then the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from tilewright.isa.study.explore import AREA_SOURCE, Exploration, Point
from tilewright.isa.study.networks import LayerShape
from tilewright.isa.study.roofline import Roofline
from tilewright.render import Card, Column, Drawing, Html, Page, Step, badge, cards, count_text, steps, table
from tilewright.render.markup import element
from tilewright.render.page import paragraph

# A picture of points on two logarithmic axes.


@dataclass(frozen=True)
class _Dot:
    x: float
    y: float
    label: str
    strong: bool


class _Plane:
    """Two logarithmic axes with a mark at 1, 2 and 5 of every power of ten."""

    def __init__(self, title: str, xs: Sequence[float], ys: Sequence[float], labels: tuple[str, str]) -> None:
        self.left, self.top, self.right, self.low = 74, 30, 24, 300
        self.drawing, self.width = Drawing(860, 346, title=title), 860
        self.x_ends, self.y_ends = _ends(xs), _ends(ys)
        for tick in _ticks(*self.x_ends):
            x = self.x(tick)
            self.drawing.line(x, self.top, x, self.low, "grid")
            self.drawing.text(x, self.low + 18, count_text(tick, compact=True), "soft", anchor="middle")
        for tick in _ticks(*self.y_ends):
            self.drawing.line(self.left, self.y(tick), self.width - self.right, self.y(tick), "grid")
            self.drawing.text(self.left - 8, self.y(tick) + 4, count_text(tick, compact=True), "soft", anchor="end")
        self.drawing.line(self.left, self.low, self.width - self.right, self.low, "axis")
        self.drawing.line(self.left, self.top, self.left, self.low, "axis")
        self.drawing.text(self.left, 16, labels[1], "soft")
        self.drawing.text((self.left + self.width - self.right) / 2, 341, labels[0], "soft", anchor="middle")
        self.title = title

    def x(self, value: float) -> float:
        """Where a value lies."""
        low, high = self.x_ends
        return self.left + (log10(value) - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Where a value lies."""
        low, high = self.y_ends
        return self.low - (log10(value) - low) / (high - low) * (self.low - self.top)

    def figure(self) -> Html:
        """The drawing with its caption."""
        return element("figure", element("figcaption", self.title), self.drawing.svg())


def _ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = log10(min(values)), log10(max(values))
    room = max(0.06, 0.08 * (high - low))
    return low - room, high + room


def _ticks(low: float, high: float) -> list[float]:
    powers = range(floor(low), floor(high) + 1)
    every = [part * 10.0**power for power in powers for part in (1, 2, 5) if low <= log10(part * 10.0**power) <= high]
    if len(every) < 3:  # a narrow range: twenty steps of its power
        step = 10.0 ** floor(log10(10**high - 10**low))
        first = floor(10**low / step) + 1
        every = [n * step for n in range(first, first + 20) if n * step <= 10**high]
    return every if len(every) < 13 else [tick for tick in every if f"{tick:e}".startswith("1")]


# The page of an exploration.

_COSTS = "cycles, energy and area"


def exploration_page(found: Exploration) -> str:
    """What to build, the front, all machines, the layers of the fastest."""
    facts = [("network", found.network), ("elements", found.dtype), ("machines", str(len(found.points)))]
    page = Page(f"Machines for {found.network}", "the matrix unit, every layer at its best", facts=facts, wide=True)
    fast, even = found.fastest, found.balanced
    figures = [
        Card("fastest", f"{fast.cycles:,} cycles", fast.name, "good"),
        Card("balanced", f"{even.cycles:,} cycles", even.name),
        Card("on the front", f"{len(found.front)} of {len(found.built)}", f"beaten by none in {_COSTS}"),
    ]
    page.section("choice", "What to do", steps(_todo(found)), cards(figures))
    page.section("front", "Cycles and energy", _front(found), paragraph(_CAPTION))
    page.section("machines", "Every machine", _machines(found))
    page.section("layers", "Layers on the fastest", paragraph(f"{fast.name}, every layer at its best."), _layers(fast))
    text = f"Energy: published figures (ISSCC 2014, 45 nm) times what was counted. Area: {AREA_SOURCE}."
    more = "Bandwidths, ports and wires cost nothing in it. Layers keep nothing in the caches from one to the next."
    page.section("proxies", "What the figures are", paragraph(text), paragraph(more))
    page.data("exploration", {"schema_version": 1, **found.to_dict()})
    return page.html()


_CAPTION = "Large: no other machine costs less in one way and not more in the others, area included."


def _todo(found: Exploration) -> list[Step]:
    fast, even = found.fastest, found.balanced
    what = f"Build {even.name}: the least product of {_COSTS}."
    beaten = [point for point in found.built if found.beaten_by(point)]
    todo = [Step(what, "", _costs(even), "balanced", "good")]
    if even.cycles > 1.01 * fast.cycles:
        times = f"{even.cycles / fast.cycles:.3g}× as fast"
        todo.append(Step(f"Where only time counts, build {fast.name}.", "", _costs(fast), times))
    worst = max(fast.layers, key=lambda cost: cost.cycles)
    share = worst.cycles / max(1, fast.cycles)
    what = f"Look at {worst.layer.name} first: {share:.0%} of the fastest machine's cycles, for its {worst.best.limit}."
    todo.append(Step(what, _tuning(worst.layer, fast), f"{worst.layer}, by {worst.best.choice}", f"{share:.0%}"))
    if beaten:
        names = ", ".join(point.name for point in beaten[:3])
        others = f" and {len(beaten) - 3} more" if len(beaten) > 3 else ""
        todo.append(Step(f"Do not build {names}{others}: another machine costs no more in any way.", "", "", "beaten"))
    return todo


def _tuning(layer: LayerShape, point: Point) -> str:
    """The command that looks for more ways to make a layer."""
    words = (
        [f"tilewright isa tune --m {layer.sizes[0]} --n {layer.sizes[1]} --k {layer.sizes[2]}"] if layer.sizes else []
    )
    if layer.x:
        words = [f"tilewright isa tune-conv2d {' '.join('x'.join(map(str, side)) for side in (layer.x, layer.w))}"]
    words += [f"--{name} {value}" for name, value in layer.how]
    return " ".join([*words, *(f"--set {name}={value}" for name, value in point.settings.items())])


def _costs(point: Point) -> str:
    return f"{point.cycles:,} cycles, {point.energy_pj / 1e6:,.0f} uJ, {point.area_mm2:.1f} mm2 (proxy)"


def _front(found: Exploration) -> Html:
    front = {id(point) for point in found.front}
    dots = [_Dot(p.cycles, p.energy_pj / 1e6, f"{p.name}: {_costs(p)}", id(p) in front) for p in found.built]
    title = "Cycles and energy of the whole network"
    plane = _Plane(title, [dot.x for dot in dots], [dot.y for dot in dots], ("cycles", "energy, uJ (modelled)"))
    for dot in sorted(dots, key=lambda dot: dot.strong):
        style = "dot s0" if dot.strong else "dot s3"
        plane.drawing.circle(plane.x(dot.x), plane.y(dot.y), 5 if dot.strong else 3, style, tip=dot.label)
    return plane.figure()


def _machines(found: Exploration) -> Html:
    front = {id(point) for point in found.front}
    columns = [Column(name, "code") for name in found.points[0].settings]
    columns += [
        Column("cycles", "count"),
        Column("energy, uJ", "count", "Modelled."),
        Column("area, mm2", "number", "A proxy."),
        Column("utilisation", "percent", "Products made, of those all threads could make."),
        Column("front", "text", "Beaten by none in all three costs."),
    ]
    rows: list[tuple[object, ...]] = []
    for point in found.points:
        settings = [str(value) for value in point.settings.values()]
        if point.refused:
            rows.append((*settings, None, None, None, None, point.refused))
            continue
        mark = badge("front", "good") if id(point) in front else ""
        figures = (point.cycles, round(point.energy_pj / 1e6), round(point.area_mm2, 2), point.utilisation)
        rows.append((*settings, *figures, mark))
    return table(columns, rows)


def _layers(point: Point) -> Html:
    columns = [Column("layer", "code"), Column("times", "count"), Column("best choice", "code")]
    columns += [Column("cycles", "count", "Of all of its kind."), Column("of all", "percent")]
    columns += [Column("utilisation", "percent"), Column("busiest", "text"), Column("energy, uJ", "count")]
    rows = []
    for cost in point.layers:
        best, share = cost.best, cost.cycles / max(1, point.cycles)
        head = (str(cost.layer), cost.layer.count, str(best.choice), cost.cycles, share, best.utilisation)
        rows.append((*head, best.limit, round(cost.energy_pj / 1e6)))
    return table(columns, rows)


# The page of a roofline.


def roofline_page(found: Roofline, command: str = "") -> str:
    """What to change, the roofs, the bounds, other machines."""
    share = found.rate / found.peak
    page = Page(f"Roofline of {found.title}", "on the matrix unit", facts=[("products", f"{found.macs:,}")])
    todo = [Step(text) for text in found.advice]
    todo += [Step("Change it, and look again.", command)] if command else []
    figures = [
        Card("cycles", f"{found.cycles:,}", f"the {found.limit.name} is busy for {found.limit.cycles:,.0f}"),
        Card("products a cycle", f"{found.rate:,.0f}", f"of {found.peak:,.0f}: {share:.1%}"),
    ]
    page.section(
        "change", "What to change", steps(todo) or paragraph("Nothing: it is as fast as it can be."), cards(figures)
    )
    page.section("roofs", "The point and its roofs", _roofs(found))
    columns = [Column("unit", "text"), Column("busy at least", "count"), Column("of all cycles", "percent")]
    columns += [
        Column("amount", "count"),
        Column("of", "text"),
        Column("a cycle", "number"),
        Column("products each", "number"),
    ]
    rows = [
        (
            b.name,
            round(b.cycles),
            b.cycles / max(1, found.cycles),
            round(b.amount),
            b.what,
            b.rate,
            round(b.intensity, 2),
        )
        for b in found.bounds
    ]
    page.section("bounds", "Every bound", table(columns, rows))
    if found.changes:
        heads = [Column("field", "code"), Column("is", "code"), Column("as", "code"), Column("cycles", "count")]
        heads.append(Column("times as fast", "ratio"))
        other = [(c.field, str(c.before), str(c.after), c.cycles, found.cycles / c.cycles) for c in found.changes]
        page.section("machines", "Other machines", table(heads, other, caption="The same work, run on each."))
    page.data("roofline", {"schema_version": 1, **found.to_dict()})
    return page.html()


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
    plane = _Plane(title, xs, [max(lowest, found.peak / 4096), found.peak], ("products a byte", "products a cycle"))
    for number, bound in enumerate(slopes):
        knee = found.peak / bound.rate
        first = max(min(xs), 10 ** plane.y_ends[0] / bound.rate)
        ends = [(first, first * bound.rate), (knee, found.peak), (max(xs), found.peak)]
        plane.drawing.polyline([(plane.x(x), plane.y(y)) for x, y in ends], f"curve s{number}")
        x, y = plane.x(bound.intensity), plane.y(found.rate)
        most = min(bound.ceiling, found.peak)
        tip = f"{bound.name}: {bound.intensity:,.1f} products a byte, at most {most:,.0f} a cycle"
        plane.drawing.circle(x, y, 5, f"dot s{number}", tip=tip)
        plane.drawing.text(x + 9, y + 4 + 15 * number, bound.name)
    others = [bound for bound in found.bounds if bound.what not in ("bytes", "products")]
    for bound in others:
        if bound.ceiling < 0.98 * found.peak:
            y = plane.y(bound.ceiling)
            plane.drawing.line(plane.x(min(xs)), y, plane.x(max(xs)), y, "mark")
            plane.drawing.text(plane.x(min(xs)) + 6, y - 5, f"{bound.name}: {bound.ceiling:,.0f}", "small")
    return plane.figure()

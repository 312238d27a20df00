"""A small SVG builder (typed primitives, escaped text, one palette for light and dark), and small charts made of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewright.render.formats import Kind, count_text, format_value, seconds_text
from tilewright.render.markup import Html, element, join, number, shared_asset

Anchor = Literal["start", "middle", "end"]


def text_width(text: str, size: float = 12.0) -> float:
    """An estimate of a text's width in user units, on the wide side for the faces of figure.css.

    >>> text_width("1024") > text_width("17")
    True
    """
    return sum(1.0 if ord(c) > 0x2E80 else 0.36 if c in " .,:;'|ijl()[]" else 0.64 for c in text) * size


class Drawing:
    """An SVG of ``width`` by ``height`` user units (pixels at natural size), drawn in the order of the calls.

    Looks come from ``style``, one or more classes of assets/figure.css:

    ==============  ====================================================================
    fills           ``c0`` to ``c7`` (tiles), ``r0`` to ``r7`` (a ramp from light to deep), ``cell`` (thin edge),
                    ``bar s0`` to ``s3``, ``moved``
    lines           ``grid``, ``axis``, ``edge l0`` to ``l3`` (tile levels), ``mark``
    text            ``soft``, ``small``, ``strong``, ``mono``
    ==============  ====================================================================

    ``ground`` lays a background, so that a file reads well wherever it is shown.

    >>> drawing = Drawing(40, 20, title="one cell")
    >>> drawing.rect(0, 0, 40, 20, "cell c0", tip="(0, 0)")
    >>> str(drawing.svg()).startswith("<svg")
    True
    """

    def __init__(self, width: float, height: float, *, title: str, description: str = "", ground: bool = False) -> None:
        self.width, self.height, self._ground = width, height, ground
        self._title, self._description = title, description
        self._hatch = "hatch-" + hashlib.sha256(f"{title}\n{description}".encode()).hexdigest()[:8]
        self._hatched = False
        self._parts: list[Html] = []

    def rect(
        self, x: float, y: float, width: float, height: float, style: str, *, tip: str = "", radius: float = 0
    ) -> None:
        """A rectangle; ``tip`` shows on hover."""
        of = {"x": x, "y": y, "width": width, "height": height}
        self._parts.append(element("rect", *_title(tip), **of, class_=style, rx=radius or None))

    def padding(self, x: float, y: float, width: float, height: float, *, tip: str = "") -> None:
        """A hatched rectangle: memory that holds no element."""
        self._hatched = True
        of = {"x": x, "y": y, "width": width, "height": height}
        self._parts.append(element("rect", **of, class_="cell pad"))
        self._parts.append(element("rect", *_title(tip), **of, fill=f"url(#{self._hatch})"))

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        """A straight line."""
        self._parts.append(element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=style))

    def polyline(self, points: Iterable[tuple[float, float]], style: str, shape: str = "polyline") -> None:
        """A line through the points."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self._parts.append(element(shape, points=path, class_=style))

    def polygon(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """A closed shape."""
        self.polyline(points, style, "polygon")

    def circle(self, x: float, y: float, radius: float, style: str, *, tip: str = "") -> None:
        """A dot."""
        self._parts.append(element("circle", *_title(tip), cx=x, cy=y, r=radius, class_=style))

    def text(self, x: float, y: float, text: str, style: str = "", *, anchor: Anchor = "start") -> None:
        """Text with its baseline at ``y``."""
        side = None if anchor == "start" else anchor
        self._parts.append(element("text", text, x=x, y=y, class_=style or None, text_anchor=side))

    def svg(self) -> Html:
        """The drawing as a document of its own, which a page may also hold as it is."""
        size: dict[str, float] = {"width": self.width, "height": self.height}
        box, head = f"0 0 {number(self.width)} {number(self.height)}", [element("title", self._title)]
        if self._description:
            head.append(element("desc", self._description))
        head.append(element("style", Html(shared_asset("figure.css"))))
        if self._hatched:
            stroke = element("path", d="M-1 5L5 -1M-1 11L11 -1M5 11L11 5", class_="hatch")
            hatch = element("pattern", stroke, id=self._hatch, width=10, height=10, patternUnits="userSpaceOnUse")
            head.append(element("defs", hatch))
        if self._ground:
            head.append(element("rect", x=0, y=0, **size, class_="ground"))
        inside, space = [*head, "\n", join(self._parts, "\n"), "\n"], "http://www.w3.org/2000/svg"
        return element("svg", *inside, xmlns=space, class_="tw", viewBox=box, **size, role="img")


def _title(tip: str) -> Sequence[Html]:
    """What shows on hover, inside a shape."""
    return (element("title", tip),) if tip else ()


_COLOURS = 4
_MOST_POINTS = 600
_MOST_COLUMNS = 192
_ABOVE, _BELOW = 30, 40  # what a chart leaves for its legend and for the names of x


@dataclass(frozen=True)
class Bar:
    """One bar: its label and the lengths of its parts, from the left."""

    label: str
    parts: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """One curve: its label and its points, x ascending. Points that are not finite are left out."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]


def bar_chart(
    bars: Sequence[Bar], *, title: str, kind: Kind = "count", parts: Sequence[str] = (), width: float = 720
) -> Html:
    """Horizontal bars on one scale from zero, each with its total; ``parts`` names the parts in a legend."""
    if not bars:
        return element("p", "nothing to draw", class_="empty")
    labels = [bar.label if len(bar.label) <= 34 else f"{bar.label[:33]}…" for bar in bars]
    left = max(text_width(label) for label in labels) + 12
    totals = [format_value(sum(bar.parts), kind) + (f"  {bar.note}" if bar.note else "") for bar in bars]
    right = max(text_width(total) for total in totals) + 12
    top = 26 if parts else 4
    drawing = Drawing(width, top + 24 * len(bars) + 2, title=title)
    _legend(drawing, left, parts, box=True)
    scale = (width - left - right) / (max(sum(bar.parts) for bar in bars) or 1)
    for row, (bar, label, total) in enumerate(zip(bars, labels, totals, strict=True)):
        y = top + 24 * row
        drawing.text(left - 8, y + 15, label, anchor="end")
        x = left
        for index, part in enumerate(bar.parts):
            length, name = max(0.0, part) * scale, f"{parts[index]}: " if index < len(parts) else ""
            tip = f"{bar.label}: {name}{format_value(part, kind)}"
            drawing.rect(x, y + 4, length, 15, f"bar s{index % _COLOURS}", tip=tip)
            x += length
        drawing.text(x + 7, y + 15, total, "soft")
    drawing.line(left, top, left, top + 24 * len(bars), "axis")
    return element("figure", element("figcaption", title), drawing.svg())


def column_chart(series: Sequence[Curve], *, title: str, x_label: str = "", y_label: str = "") -> Html:
    """Upright bars from zero for things that are counted, not measured along a scale: shards, chips, steps.

    The x of a curve numbers the things. Where more stand side by side than can be told apart, each bar is the highest
    of a few neighbours, and the label says so.
    """
    lines = [_finite(curve) for curve in series]
    count = max((len(line) for line in lines), default=0)
    if not count:
        return element("p", "nothing to draw", class_="empty")
    width, height = 720.0, 240.0
    ticks = ticks_of(min(0.0, *(y for line in lines for _, y in line)), max(y for line in lines for _, y in line))
    per_bar = -(-count * len(lines) // _MOST_COLUMNS)
    said = x_label if per_bar == 1 else f"{x_label} (each bar the highest of {per_bar})"
    drawing, left, up = _axes(series, ticks, "number", (width, height), (title, said, y_label), box=True)
    ground = height - _BELOW + ticks[0] * up
    slot = (width - left - 16) / -(-count // per_bar)
    each = slot * 0.78 / len(lines)
    for number_, line in enumerate(lines):
        for place, start in enumerate(range(0, len(line), per_bar)):
            x, value = max(line[start : start + per_bar], key=lambda point: abs(point[1]))
            tip = f"{series[number_].label}, {x_label} {_place(x)}: {format_value(value, 'number')}"
            at = left + place * slot + slot * 0.11 + number_ * each
            tall = abs(value) * up
            drawing.rect(at, ground - max(value, 0) * up, each, tall, f"bar s{number_ % _COLOURS}", tip=tip)
    longest = max(lines, key=len)
    for place in range(0, -(-count // per_bar), max(1, round(44 / slot))):
        text = _place(longest[place * per_bar][0])
        drawing.text(left + (place + 0.5) * slot, height - _BELOW + 18, text, "soft", anchor="middle")
    drawing.line(left, ground, width - 16, ground, "axis")
    return element("figure", element("figcaption", title), drawing.svg())


def _place(x: float) -> str:
    return format_value(int(x) if x.is_integer() else x, "number")


def line_chart(
    curves: Sequence[Curve],
    *,
    title: str,
    x_label: str = "",
    y_label: str = "",
    kind: Kind = "number",
    width: float = 720,
    height: float = 260,
) -> Html:
    """Curves over one x axis. Of long curves the lowest and the highest of neighbouring points are kept."""
    points = [_finite(curve) for curve in curves]
    every = [point for line in points for point in line]
    if not every:
        return element("p", "nothing to draw", class_="empty")
    x_ticks = ticks_of(min(x for x, _ in every), max(x for x, _ in every))
    y_ticks = ticks_of(min(y for _, y in every), max(y for _, y in every))
    drawing, left, up = _axes(curves, y_ticks, kind, (width, height), (title, x_label, y_label), box=False)
    x_low, x_high = min(every)[0], max(every)[0]
    across, ground = (width - left - 16) / ((x_high - x_low) or 1), height - _BELOW
    for tick in (tick for tick in x_ticks if x_low <= tick <= x_high):
        x = left + (tick - x_low) * across
        drawing.text(x, ground + 18, format_value(tick, "number"), "soft", anchor="middle")
    drawing.line(left, ground, width - 16, ground, "axis")
    for index, line in enumerate(points):
        placed = [(left + (x - x_low) * across, ground - (y - y_ticks[0]) * up) for x, y in _thin(line)]
        if len(placed) == 1:
            drawing.circle(*placed[0], 3, f"dot s{index % _COLOURS}")
        drawing.polyline(placed, f"curve s{index % _COLOURS}")
    return element("figure", element("figcaption", title), drawing.svg())


def _axes(
    curves: Sequence[Curve],
    ticks: Sequence[float],
    kind: Kind,
    size: tuple[float, float],
    said: tuple[str, str, str],
    *,
    box: bool,
) -> tuple[Drawing, float, float]:
    """A drawing with a legend, a line for every tick of the upright axis and ``said``: its title and both labels.

    Beside it where the axis of x begins, and how high one of y is.
    """
    (width, height), (title, x_label, y_label) = size, said
    marks = [format_value(tick, kind) for tick in ticks]
    left, up = max(map(text_width, marks)) + 14, (height - _ABOVE - _BELOW) / ((ticks[-1] - ticks[0]) or 1)
    drawing = Drawing(width, height, title=title)
    _legend(drawing, left, [curve.label for curve in curves], box=box)
    for tick, mark in zip(ticks, marks, strict=True):
        y = height - _BELOW - (tick - ticks[0]) * up
        drawing.line(left, y, width - 16, y, "grid")
        drawing.text(left - 8, y + 4, mark, "soft", anchor="end")
    drawing.text((left + width - 16) / 2, height - 5, x_label, "soft", anchor="middle")
    drawing.text(width - 16, 16, y_label, "soft", anchor="end")
    return drawing, left, up


def _legend(drawing: Drawing, x: float, names: Sequence[str], *, box: bool) -> None:
    for index, name in enumerate(names):
        size = 10 if box else 3
        drawing.rect(x, 7 + (10 - size) / 2, 10, size, f"bar s{index % _COLOURS}", radius=1.5)
        drawing.text(x + 15, 16, name)
        x += text_width(name) + 36


def _finite(curve: Curve) -> list[tuple[float, float]]:
    pairs = ((float(x), float(y)) for x, y in zip(curve.xs, curve.ys, strict=True))
    return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= _MOST_POINTS:
        return points
    step = -(-2 * len(points) // _MOST_POINTS)
    parts = (points[start : start + step] for start in range(0, len(points), step))
    pairs = ({min(s, key=lambda p: p[1]), max(s, key=lambda p: p[1])} for s in parts)
    return [point for pair in pairs for point in sorted(pair)]


def ticks_of(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that enclose low to high, about ``count`` of them."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two of a logarithmic axis: 1, 2 and 5 of every power of ten, or the ones where these are
    many; of a narrow range steps of its power."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = [part * 10.0**power for power in powers for part in (1, 2, 5) if low <= part * 10.0**power <= high]
    if len(every) < 3:
        step = 10.0 ** math.floor(math.log10(high - low))
        every = [n * step for n in range(math.floor(low / step) + 1, math.floor(low / step) + 21) if n * step <= high]
    return every if len(every) < 13 else [tick for tick in every if f"{tick:e}".startswith("1")]


class LogPlane(Drawing):
    """A drawing of two logarithmic axes with a line at each of :func:`log_ticks`; ``xs``, ``ys``: what they must hold.

    >>> plane = LogPlane("Roofline", [1, 100], [1, 1000], ("flops a byte", "flops a second"))
    >>> plane.x(1) < plane.x(10) < plane.x(100), plane.y(1) > plane.y(1000)
    (True, True)
    """

    def __init__(
        self, title: str, xs: Sequence[float], ys: Sequence[float], labels: tuple[str, str], width: float = 860
    ) -> None:
        super().__init__(width, 346, title=title)
        self.left, self.top, self.right, self.low = 74, 30, width - 24, 300
        self.x_ends, self.y_ends = _log_ends(xs), _log_ends(ys)
        for tick in log_ticks(*(10**end for end in self.x_ends)):
            self.line(self.x(tick), self.top, self.x(tick), self.low, "grid")
            self.text(self.x(tick), self.low + 18, count_text(tick, compact=True), "soft", anchor="middle")
        for tick in log_ticks(*(10**end for end in self.y_ends)):
            self.line(self.left, self.y(tick), self.right, self.y(tick), "grid")
            self.text(self.left - 8, self.y(tick) + 4, count_text(tick, compact=True), "soft", anchor="end")
        self.line(self.left, self.low, self.right, self.low, "axis")
        self.line(self.left, self.top, self.left, self.low, "axis")
        self.text(self.left, 16, labels[1], "soft")
        self.text((self.left + self.right) / 2, 341, labels[0], "soft", anchor="middle")

    def x(self, value: float) -> float:
        """The horizontal place of a value, in pixels."""
        low, high = self.x_ends
        return self.left + (math.log10(value) - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        """The vertical place of a value, in pixels."""
        low, high = self.y_ends
        return self.low - (math.log10(value) - low) / (high - low) * (self.low - self.top)

    def figure(self) -> Html:
        """The drawing under its title."""
        return element("figure", element("figcaption", self._title), self.svg())


class LanePlane(Drawing):
    """A drawing of lanes below each other over one axis of time, from 0 to ``end`` seconds.

    >>> plane = LanePlane("Lanes", ["matrix unit", "DMA"], 2e-3)
    >>> plane.bar(1, 0.0, 1e-3, "a transfer", light=True)
    >>> plane.x(0) == plane.left, plane.x(2e-3)
    (True, 890.0)
    """

    def __init__(self, title: str, lanes: Sequence[str], end: float) -> None:
        self.tall, self.left, width = 28.0, max(map(text_width, lanes)) + 16, 900.0
        self.low = self.tall * len(lanes)
        super().__init__(width, self.low + 30, title=title)
        self.scale = (width - self.left - 10) / (end or 1.0)
        for at in ticks_of(0, end):
            if at <= end:
                self.line(self.x(at), 0, self.x(at), self.low, "grid")
                self.text(self.x(at), self.low + 20, seconds_text(at), "soft", anchor="middle" if at else "start")
        for k, lane in enumerate(lanes):
            self.text(self.left - 8, self.tall * k + 19, lane, anchor="end")
            self.line(self.left, self.tall * (k + 1), width - 10, self.tall * (k + 1), "grid")

    def x(self, seconds: float) -> float:
        """The horizontal place of a time, in pixels."""
        return self.left + seconds * self.scale

    def bar(self, lane: int, start: float, seconds: float, tip: str, light: bool = False) -> None:
        """What a lane does from ``start`` on, drawn full or ``light``."""
        style = ("c0", "c1", "c5", "c2")[lane % 4] if light else f"bar s{lane % 4}"
        self.rect(self.x(start), self.tall * lane + 5, max(0.4, seconds * self.scale), self.tall - 9, style, tip=tip)


def _log_ends(values: Sequence[float]) -> tuple[float, float]:
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.06, 0.08 * (high - low))
    return low - room, high + room

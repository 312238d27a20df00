"""A picture of points and lines on two logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10

from tilewright.render import Html, count_text
from tilewright.render.drawing import Drawing
from tilewright.render.markup import element


class LogPlane:
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
        """The horizontal place of a value, in pixels."""
        low, high = self.x_ends
        return self.left + (log10(value) - low) / (high - low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """The vertical place of a value, in pixels."""
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

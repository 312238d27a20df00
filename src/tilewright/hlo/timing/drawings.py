"""A modelled step drawn: the roofline, and lanes over time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.render import Drawing, Html, count_text, seconds_text
from tilewright.render.drawing import text_width
from tilewright.render.markup import element

_LANES = ("matrix", "vector", "copy", "dma", "link", "sparsecore", "host")
_TITLES = {
    "matrix": "matrix unit",
    "vector": "vector unit",
    "copy": "copies",
    "dma": "DMA",
    "link": "links",
    "sparsecore": "SparseCores",
}
_LIGHT = ("c0", "c1", "c5", "c2")
"""The lighter colours that go with those of bars."""
_MOST_MARKS = 2000
_ANCHORS: tuple[Literal["start", "middle", "end"], ...] = ("start", "middle", "middle", "middle", "end")


def roofline(step: StepTime) -> Html:
    """Operations by flops per byte and flops per second, under the chip's two roofs. A disc is as large as its time.

    Products that touch vector memory alone stand at the right end.
    """
    marks = [row for row in step.slowest(_MOST_MARKS) if row.flops and row.seconds]
    if not marks or not step.matrix_peak or not step.hbm_peak:
        return element("p", "no operation of this step uses the matrix unit", class_="empty")
    ridge = step.matrix_peak / step.hbm_peak
    known = [row.flops / row.bytes for row in marks if row.bytes]
    low, high = min([*known, ridge / 10]), max([*known, ridge * 10]) * 2
    intensity = [row.flops / row.bytes if row.bytes else high for row in marks]
    bottom = min([row.flops / row.seconds for row in marks] + [low * step.hbm_peak])
    width, height, left, base, top = 720.0, 320.0, 70.0, 40.0, 16.0
    across = (width - left - 20) / math.log(high / low)
    up = (height - base - top) / math.log(step.matrix_peak * 1.5 / bottom)

    def x(value: float) -> float:
        return left + math.log(value / low) * across

    def y(value: float) -> float:
        return height - base - math.log(max(value, bottom) / bottom) * up

    drawing = Drawing(width, height, title="Roofline")
    drawing.line(left, height - base, width - 20, height - base, "axis")
    drawing.line(left, top, left, height - base, "axis")
    for value in _round_numbers(low, high / 1.3):
        drawing.line(x(value), top, x(value), height - base, "grid")
        drawing.text(x(value), height - base + 17, count_text(value, compact=True), "soft", anchor="middle")
    if len(known) < len(marks):
        drawing.text(x(high), height - base + 17, "no HBM", "soft", anchor="end")
    for value in _round_numbers(bottom, step.matrix_peak):
        drawing.line(left, y(value), width - 20, y(value), "grid")
        drawing.text(left - 6, y(value) + 4, count_text(value, compact=True), "soft", anchor="end")
    roof = [(x(low), y(low * step.hbm_peak)), (x(ridge), y(step.matrix_peak)), (x(high), y(step.matrix_peak))]
    drawing.polyline(roof, "curve s1")
    drawing.text(width - 24, y(step.matrix_peak) - 6, "matrix peak", "soft", anchor="end")
    drawing.text(x(ridge) - 8, y(step.matrix_peak) + 20, "HBM bandwidth", "soft", anchor="end")
    longest = max(row.seconds for row in marks)
    for row, value in zip(marks, intensity, strict=True):
        each = f"{count_text(round(value))} flops a byte" if row.bytes else "no byte of HBM"
        tip = f"{row.name}: {seconds_text(row.seconds)}, {each}, bound by {row.bound}"
        drawing.circle(
            x(value), y(row.flops / row.seconds), 2 + 8 * math.sqrt(row.seconds / longest), "dot s0", tip=tip
        )
    drawing.text((left + width) / 2, height - 6, "flops per byte of HBM", "soft", anchor="middle")
    drawing.text(left + 6, top + 4, "flops per second", "soft")
    return element("figure", drawing.svg())


def _round_numbers(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers, and twice and five times them where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high < 100 * low else (1,)
    return [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]


def step_lanes(step: StepTime, end: float | None = None) -> Html:
    """Which unit is busy when, over the first ``end`` seconds (the whole step).

    What runs beside other work is drawn light, what the step waits for full. A loop is drawn as its first run, and
    light over all its runs. What the call takes beyond its kernels stands first, with the host.
    """
    rows = [row for row in step.rows if row.seconds or row.beside]
    call = step.call_seconds
    names = [lane for lane in _LANES if any(row.lane == lane for row in rows) or (lane == "host" and call)]
    if not rows or not names:
        return element("p", "nothing to draw", class_="empty")
    loops = list(_loops(step))
    reach = [row.start + row.seconds / row.runs for row in rows] + [stop for _, _, stop, _ in loops]
    end = max(call + max(reach), end or 0.0)
    left = max(text_width(_TITLES.get(name, name)) for name in names) + 16
    width, tall = 900.0, 28.0
    drawing = Drawing(width, tall * len(names) + 30, title="Lanes")
    scale = (width - left - 10) / (end or 1.0)

    def bar(lane: str, start: float, seconds: float, tip: str, *, light: bool = False) -> None:
        k = names.index(lane)
        style = _LIGHT[k % 4] if light else f"bar s{k % 4}"
        drawing.rect(left + (call + start) * scale, tall * k + 5, max(0.4, seconds * scale), tall - 9, style, tip=tip)

    for part in range(5):
        across = left + end * part / 4 * scale
        drawing.line(across, 0, across, tall * len(names), "grid")
    for k, lane in enumerate(names):
        drawing.text(left - 8, tall * k + 19, _TITLES.get(lane, lane), anchor="end")
        drawing.line(left, tall * (k + 1), width - 10, tall * (k + 1), "grid")
    if call:
        bar("host", -call, call, f"the call itself: {seconds_text(call)}")
    for lane, start, stop, tip in loops:
        bar(lane, start, stop - start, tip, light=True)
    for row in sorted(rows, key=lambda row: -max(row.seconds, row.beside))[:_MOST_MARKS]:
        once = row.seconds / row.runs
        if row.beside:
            tip = f"{row.name}: {seconds_text(row.beside)} beside other work, {seconds_text(once)} of it waited for"
            bar(row.lane, row.begun, row.beside, tip, light=True)
        if once:
            bar(row.lane, row.start, once, f"{row.name}: {seconds_text(once)}, {row.bound}")
    for part in range(5):
        at = end * part / 4
        drawing.text(left + at * scale, tall * len(names) + 20, seconds_text(at), "soft", anchor=_ANCHORS[part])
    return element("figure", drawing.svg())


def _loops(step: StepTime) -> Iterator[tuple[str, float, float, str]]:
    """(lane, begin, end, words) of every stretch of rows that run alike often, for each lane it uses."""
    for runs, group in groupby((row for row in step.rows if row.seconds), key=lambda row: row.runs):
        rows: list[TimeRow] = list(group)
        if runs > 1:
            start, whole = min(row.start for row in rows), sum(row.seconds for row in rows)
            for lane in dict.fromkeys(row.lane for row in rows):
                busy = sum(row.seconds for row in rows if row.lane == lane)
                yield (
                    lane,
                    start,
                    start + whole,
                    f"a loop of {runs} runs: {seconds_text(busy)} of {seconds_text(whole)}",
                )

"""A modelled step on a terminal and as a page: what bounds it, the slowest operations, a roofline, lanes over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import Literal

from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.render import (
    Bar,
    Card,
    Column,
    Drawing,
    Field,
    Html,
    Page,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    element,
    explorer,
    note,
    percent_text,
    place_text,
    ratio_text,
    seconds_text,
    table,
    text_width,
)

_LANES = ("matrix", "vector", "dma", "link", "sparsecore", "host")
_MOST_MARKS = 2000
_ANCHORS: tuple[Literal["start", "middle", "end"], ...] = ("start", "middle", "middle", "middle", "end")


def fields(step: StepTime) -> tuple[Field, ...]:
    """The columns of a step's rows, for terminal and page."""
    whole = step.seconds or 1.0
    return (
        Field("operation", "code", of=lambda row: row.name, width=14),
        Field("opcode", of=lambda row: row.op, facet=True),
        Field("time", "seconds", "modelled, all runs together", of=lambda row: row.seconds, total=True),
        Field("share", "percent", "of the whole step", of=lambda row: row.seconds / whole),
        Field("bound", of=lambda row: row.bound or "unpriced", facet=True),
        Field("HBM", "bytes", "bytes through HBM, padding included", of=lambda row: row.bytes, total=True),
        Field("flops", "count", "on the matrix unit", of=lambda row: row.flops, total=True),
        Field("runs", "count", of=lambda row: row.runs),
        Field("error seen", "percent", "mean absolute error of this kind on rows not fitted", of=_error),
        Field("line", of=lambda row: place_text(row.source), width=16, tail=True),
        Field("why not", of=lambda row: row.unpriced, shown=False),
    )


def _error(row: TimeRow) -> float | None:
    return row.error if row.calibrated and row.error else None


def summary_lines(step: StepTime) -> list[str]:
    """The head of a step's account: its time, what it reaches, what bounds it, and how sure that is."""
    kind = "modelled from predicted fusions and layouts" if step.predicted else "modelled from the dump"
    lines = [f"{step.program} on {step.target}: {seconds_text(step.seconds)} a step ({kind})"]
    if step.call_seconds:
        lines.append(f"of it {seconds_text(step.call_seconds)} for the call itself")
    lines.append(
        f"matrix unit {percent_text(step.matrix_utilisation)} of its peak, HBM {percent_text(step.hbm_utilisation)}: "
        f"{count_text(step.flops)} flops, {bytes_text(step.bytes)}"
    )
    bounds = [f"{name} {seconds_text(seconds)}" for name, seconds in step.by_bound().items() if seconds]
    lines.append(f"bound by {', '.join(bounds)}" if bounds else "nothing in it takes time")
    return lines


def slowest_table(step: StepTime, count: int) -> tuple[list[Column], list[tuple[object, ...]]]:
    """The slowest operations as columns and rows of a table."""
    wanted = ("operation", "opcode", "time", "share", "bound", "HBM", "line")
    chosen = [field for field in fields(step) if field.heading in wanted]
    return list(chosen), [tuple(field.of(row) for field in chosen) for row in step.slowest(count)]


def comparison_table(steps: Sequence[StepTime], names: Sequence[str]) -> tuple[list[Column], list[tuple[object, ...]]]:
    """Several steps beside each other, each against the first."""
    columns = [
        Column("step"),
        Column("time", "seconds"),
        Column("of the first", "ratio"),
        Column("matrix", "percent"),
        Column("HBM", "percent"),
        Column("most of it"),
        Column("priced", "percent"),
    ]
    first = steps[0].seconds or 1.0
    rows: list[tuple[object, ...]] = [
        (
            *(name, step.seconds, step.seconds / first, step.matrix_utilisation, step.hbm_utilisation),
            *(next(iter(step.by_bound()), ""), step.priced),
        )
        for name, step in zip(names, steps, strict=True)
    ]
    return columns, rows


def time_html(steps: Sequence[StepTime], names: Sequence[str]) -> str:
    """One page: the first step in full, and the others beside it."""
    step = steps[0]
    kind = "predicted fusions and layouts" if step.predicted else "the dump's own schedule"
    facts = [("target", step.target), ("kind", f"modelled, {kind}"), ("made", date.today().isoformat())]
    page = Page(
        f"Time of {step.program}", f"{seconds_text(step.seconds)} a step on {step.target}", facts=facts, wide=True
    )
    page.section("summary", "What a step takes", _cards(step), *(note(text) for text in step.notes))
    if len(steps) > 1:
        page.section("compare", "Beside each other", table(*comparison_table(steps, names)))
    page.section("bounds", "What it waits for", _bounds(step))
    page.section("operations", "Operations by time", _operations(step))
    page.section("roofline", "Roofline", roofline(step))
    page.section("lanes", "Lanes over the step", step_lanes(step))
    page.data("time", step.to_json())
    return page.html()


def _cards(step: StepTime) -> Html:
    priced = "every operation has a time" if step.priced == 1 else "the rest has no mechanism: a lower bound"
    return cards(
        [
            Card("step", seconds_text(step.seconds), f"{seconds_text(step.call_seconds)} of it for the call"),
            Card("matrix unit", percent_text(step.matrix_utilisation), f"{count_text(step.flops, compact=True)} flops"),
            Card("HBM", percent_text(step.hbm_utilisation), bytes_text(step.bytes)),
            Card("priced", percent_text(step.priced), priced, "plain" if step.priced == 1 else "warn"),
        ]
    )


def _bounds(step: StepTime) -> Html:
    bars = [Bar(name, (seconds,)) for name, seconds in step.by_bound().items() if seconds]
    return bar_chart(bars, title="seconds by what bounds them", kind="seconds")


def _operations(step: StepTime) -> Html:
    return explorer(fields(step), step.rows, key=lambda row: row.name or row.op, sort="time", empty="no operations")


def roofline(step: StepTime) -> Html:
    """Operations by flops per byte and flops per second, under the chip's two roofs. A disc is as large as its time."""
    marks = [row for row in step.slowest(_MOST_MARKS) if row.flops and row.bytes and row.seconds]
    if not marks or not step.matrix_peak or not step.hbm_peak:
        return element("p", "no operation of this step uses both the matrix unit and HBM", class_="empty")
    ridge = step.matrix_peak / step.hbm_peak
    intensity = [row.flops / row.bytes for row in marks]
    low, high = min([*intensity, ridge / 10]), max([*intensity, ridge * 10])
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
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        if low <= 10.0**power <= high:
            drawing.line(x(10.0**power), top, x(10.0**power), height - base, "grid")
            drawing.text(
                x(10.0**power), height - base + 17, count_text(10.0**power, compact=True), "soft", anchor="middle"
            )
    for power in range(math.ceil(math.log10(bottom)), math.floor(math.log10(step.matrix_peak)) + 1):
        drawing.line(left, y(10.0**power), width - 20, y(10.0**power), "grid")
        drawing.text(left - 6, y(10.0**power) + 4, count_text(10.0**power, compact=True), "soft", anchor="end")
    roof = [(x(low), y(low * step.hbm_peak)), (x(ridge), y(step.matrix_peak)), (x(high), y(step.matrix_peak))]
    drawing.polyline(roof, "curve s1")
    drawing.text(width - 24, y(step.matrix_peak) - 6, "matrix peak", "soft", anchor="end")
    drawing.text(x(ridge) - 8, y(step.matrix_peak) + 20, "HBM bandwidth", "soft", anchor="end")
    longest = max(row.seconds for row in marks)
    for row, value in zip(marks, intensity, strict=True):
        tip = f"{row.name}: {seconds_text(row.seconds)}, {ratio_text(value)} flops a byte, bound by {row.bound}"
        drawing.circle(
            x(value), y(row.flops / row.seconds), 2 + 8 * math.sqrt(row.seconds / longest), "dot s0", tip=tip
        )
    drawing.text((left + width) / 2, height - 6, "flops per byte of HBM", "soft", anchor="middle")
    drawing.text(left + 6, top + 4, "flops per second", "soft")
    return element("figure", drawing.svg())


def step_lanes(step: StepTime) -> Html:
    """Which unit is busy when; a loop's body is drawn at its first run."""
    rows = [row for row in step.rows if row.seconds]
    names = [lane for lane in _LANES if any(row.lane == lane for row in rows)]
    if not rows or not names:
        return element("p", "nothing to draw", class_="empty")
    end = max(row.start + row.seconds for row in rows)
    left = max(text_width(name) for name in names) + 16
    width, tall = 900.0, 26.0
    drawing = Drawing(width, tall * len(names) + 30, title="Lanes")
    for k, lane in enumerate(names):
        drawing.text(left - 8, tall * k + 17, lane, anchor="end")
        drawing.line(left, tall * (k + 1), width - 10, tall * (k + 1), "grid")
    scale = (width - left - 10) / end
    for row in sorted(rows, key=lambda row: -row.seconds)[:_MOST_MARKS]:
        k = names.index(row.lane)
        tip = f"{row.name}: {seconds_text(row.seconds)}, {row.bound}"
        drawing.rect(
            left + row.start * scale, tall * k + 4, max(0.4, row.seconds * scale), tall - 8, f"bar s{k % 4}", tip=tip
        )
    for part in range(5):
        at = end * part / 4
        drawing.text(left + at * scale, tall * len(names) + 20, seconds_text(at), "soft", anchor=_ANCHORS[part])
    return element("figure", drawing.svg())

"""A modelled step on a terminal and as a page: what to do first, what bounds it, the slowest operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

from tilewright.hlo.timing.advice import advice
from tilewright.hlo.timing.drawings import roofline, step_lanes
from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.render import (
    Bar,
    Card,
    Column,
    Field,
    Html,
    Page,
    Step,
    bar_chart,
    bytes_text,
    cards,
    count_text,
    explorer,
    percent_text,
    seconds_text,
    steps,
    table,
)
from tilewright.render.drawing import Curve, line_chart
from tilewright.render.formats import place_text
from tilewright.render.markup import element
from tilewright.render.page import note

_SWEPT = re.compile(r"(\w+) ([\d.]+), (.+)")
_MOST_LANES = 4
"""Steps whose lanes are drawn below each other."""


def fields(step: StepTime) -> tuple[Field, ...]:
    """The columns of a step's rows, for terminal and page."""
    whole = step.seconds or 1.0
    return (
        Field("operation", "code", of=lambda row: row.name, width=13),
        Field("opcode", of=lambda row: row.op, facet=True, below=True),
        Field("time", "seconds", "modelled, all runs together", of=lambda row: row.seconds, width=6, total=True),
        Field("share", "percent", "of the whole step", of=lambda row: row.seconds / whole, below=True),
        Field("bound", of=lambda row: row.bound or "unpriced", width=6, facet=True),
        Field("runs", "count", of=lambda row: row.runs, below=True),
        Field("HBM", "bytes", "bytes through HBM, padding included", of=lambda row: row.bytes, width=9.5, total=True),
        Field("flops", "count", "on the matrix unit", of=lambda row: row.flops, below=True, total=True),
        Field("line", of=lambda row: place_text(row.source), width=13, tail=True, facet=True),
        Field("error seen", "percent", "mean absolute error of this kind on rows not fitted", of=_error, below=True),
        Field(
            "beside", "seconds", "how long it runs beside other work", of=lambda row: row.beside or None, shown=False
        ),
        Field("note", of=lambda row: row.note, below=True),
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
    """The slowest operations as columns and rows of a table; what hides beside other work takes no line."""
    wanted = ("operation", "opcode", "time", "share", "bound", "HBM", "line")
    chosen = [field for field in fields(step) if field.heading in wanted]
    rows = [row for row in step.slowest(count) if row.seconds or not row.beside]
    return list(chosen), [tuple(field.of(row) for field in chosen) for row in rows]


def comparison_table(steps: Sequence[StepTime], names: Sequence[str]) -> tuple[list[Column], list[tuple[object, ...]]]:
    """Several steps beside each other, each against the first."""
    columns = [
        Column("step", "code"),
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


def _advised(sentence: str) -> Step:
    """A sentence of advice; the time it is about, which it begins with, stands out."""
    worth, colon, words = sentence.partition(": ")
    return Step(words, worth=worth) if colon and worth.endswith("of the step)") else Step(sentence)


def time_html(timed: Sequence[StepTime], names: Sequence[str]) -> str:
    """One page: the first step in full, and the others beside it."""
    step = timed[0]
    kind = "predicted fusions and layouts" if step.predicted else "the dump's own schedule"
    facts = [("target", step.target), ("kind", f"modelled, {kind}"), ("made", date.today().isoformat())]
    page = Page(
        f"Time of {step.program}", f"{seconds_text(step.seconds)} a step on {step.target}", facts=facts, wide=True
    )
    page.section("advice", "What to do first", steps(map(_advised, advice(step))))
    page.section("summary", "What a step takes", _cards(step), *(note(text) for text in step.notes))
    if len(timed) > 1:
        page.section("compare", "Beside each other", *_compared(timed, names))
    page.section("bounds", "What it waits for", _bounds(step))
    page.section("operations", "Operations by time", _operations(step))
    page.section("roofline", "Roofline", roofline(step))
    page.section("lanes", "Lanes over the step", *_lanes(timed, names))
    page.data("time", step.to_json())
    return page.html()


def _compared(steps: Sequence[StepTime], names: Sequence[str]) -> list[Html]:
    """A table of all steps; of a sweep also the curves over its values."""
    parts = [table(*comparison_table(steps, names))]
    curves: dict[str, list[tuple[float, float]]] = {}
    word = ""
    for step, name in zip(steps, names, strict=True):
        if match := _SWEPT.fullmatch(name):
            word = match[1]
            curves.setdefault(match[3], []).append((float(match[2]), step.seconds))
    if any(len({x for x, _ in points}) > 1 for points in curves.values()):
        for title, each in ((f"time of a step over {word}", False), (f"time of a step for each {word}", True)):
            lines = [
                Curve(label, [x for x, _ in points], [y / x if each and x else y for x, y in points])
                for label, points in ((label, sorted(points)) for label, points in curves.items())
            ]
            parts.append(line_chart(lines, title=title, x_label=word, kind="seconds"))
    return parts


def _lanes(steps: Sequence[StepTime], names: Sequence[str]) -> list[Html]:
    """The lanes of the first steps at one scale, each under its name where there are several."""
    shown = list(zip(steps, names, strict=True))[:_MOST_LANES]
    end = max(step.seconds for step, _ in shown)
    if len(shown) == 1:
        return [step_lanes(shown[0][0])]
    return [part for step, name in shown for part in (element("h3", name), step_lanes(step, end))]


def _cards(step: StepTime) -> Html:
    shares = f"{percent_text(step.priced_flops)} of the flops, {percent_text(step.priced_bytes)} of the bytes"
    priced = "every operation has a time" if step.priced == 1 else f"{shares}: a lower bound"
    return cards(
        [
            Card("step", seconds_text(step.seconds), f"{seconds_text(step.call_seconds)} of it for the call"),
            Card("matrix unit", percent_text(step.matrix_utilisation), f"{count_text(step.flops, compact=True)} flops"),
            Card("HBM", percent_text(step.hbm_utilisation), bytes_text(step.bytes)),
            Card("priced", percent_text(step.priced), priced, "plain" if step.priced == 1 else "warn"),
        ]
    )


def _bounds(step: StepTime) -> Html:
    waits = {"the call itself": step.call_seconds, **step.by_bound()}
    bars = [Bar(name, (seconds,)) for name, seconds in waits.items() if seconds]
    return bar_chart(bars, title="time by what bounds it", kind="seconds")


def _operations(step: StepTime) -> Html:
    return explorer(fields(step), step.rows, key=lambda row: row.name or row.op, sort="time", empty="no operations")

"""A modelled step for people: what to do first, lines and tables for a terminal, a page with roofline and lanes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from itertools import groupby
from typing import Literal

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
from tilewright.render.drawing import Curve, Drawing, line_chart, text_width
from tilewright.render.formats import place_text
from tilewright.render.markup import element
from tilewright.render.page import note
from tilewright.render.tables import cells

# What to do first: the lines of the program that take most of a step, and what would help each.

_WAITS = {
    "matrix": "computes on the matrix unit",
    "vector": "computes on the vector unit",
    "hbm": "waits for HBM",
    "vmem": "waits for vector memory",
    "relayout": "turns its data",
    "latency": "waits for its start",
    "link": "waits for links",
    "sparsecore": "waits for the SparseCores",
}
_HELPS = {
    "vector": "fewer transcendental functions, a narrower type, or work on smaller arrays",
    "vmem": "fuse it with its neighbours",
    "relayout": "keep the order of dims that its users want, or leave a transpose out",
    "link": "exchange less, or start the exchange earlier",
    "sparsecore": "start the lookup earlier, or gather fewer rows",
}
_SMALL = 0.03
"""Share of the step from which a line is worth a word."""
_FULL = 0.6
"""Share of the matrix peak from which products are well used."""


def advice(step: StepTime, count: int = 5) -> list[str]:
    """Sentences, the one that concerns most time first."""
    groups: dict[tuple[str, str], list[TimeRow]] = defaultdict(list)
    for row in step.rows:
        if row.seconds:
            groups[row.source or row.name, row.bound].append(row)
    whole, said = step.seconds or 1.0, list[tuple[float, str]]()

    def say(seconds: float, words: str) -> None:
        if seconds >= _SMALL * whole:
            said.append((seconds, f"{seconds_text(seconds)} ({percent_text(seconds / whole)} of the step): {words}"))

    for (place, bound), rows in groups.items():
        words = f"{place_text(place)} {_WAITS.get(bound, bound)}{_what_helps(step, bound, rows)}"
        say(sum(row.seconds for row in rows), words)
    words = "the call itself, whatever it computes: run several steps in one call (a loop under jit)"
    say(step.call_seconds, words)
    sentences = [words for _, words in sorted(said, key=lambda item: -item[0])[:count]]
    if step.priced < 1:
        reasons = list(dict.fromkeys(row.unpriced for row in step.rows if row.unpriced))
        lacking = f"{percent_text(1 - step.priced_flops)} of the flops and {percent_text(1 - step.priced_bytes)}"
        sentences.append(f"{lacking} of the bytes have no time, so the step takes longer: {'; '.join(reasons[:2])}")
    return sentences or ["no line of the program takes more than a few per cent of the step"]


def _what_helps(step: StepTime, bound: str, rows: list[TimeRow]) -> str:
    if bound == "hbm":
        moved = bytes_text(sum(row.bytes for row in rows))
        if all(row.lane == "dma" for row in rows):
            return f", a transfer of {moved}: fewer bytes, or more work that can stand before it"
        return f" for {moved}: a narrower type, less padding, or results used where they are made"
    if bound == "latency":
        kernels = sum(row.runs for row in rows)
        many = f" in {count_text(kernels)} small kernels" if kernels > 1 else ""
        return f"{many}: fuse them, or give each more to do"
    if bound == "matrix" and step.matrix_peak:
        share = sum(row.flops for row in rows) / sum(row.seconds for row in rows) / step.matrix_peak
        words = f" at {percent_text(share)} of its peak"
        return words if share >= _FULL else f"{words}: dims that fill its tiles, larger products, or a narrower type"
    return f": {_HELPS[bound]}" if bound in _HELPS else ""


# Lines, tables and the page.

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
        Field(
            "error seen",
            "percent",
            "mean absolute error of this kind on rows not fitted",
            below=True,
            of=lambda row: row.error if row.calibrated and row.error else None,
        ),
        Field(
            "beside", "seconds", "how long it runs beside other work", of=lambda row: row.beside or None, shown=False
        ),
        Field("note", of=lambda row: row.note, below=True),
        Field("why not", of=lambda row: row.unpriced, shown=False),
    )


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
    return list(chosen), cells(chosen, (row for row in step.slowest(count) if row.seconds or not row.beside))


def comparison_table(steps: Sequence[StepTime], names: Sequence[str]) -> tuple[list[Column], list[tuple[object, ...]]]:
    """Several steps beside each other, each against the first."""
    first = steps[0].seconds or 1.0
    columns = (
        Field("step", "code", of=lambda pair: pair[0]),
        Field("time", "seconds", of=lambda pair: pair[1].seconds),
        Field("of the first", "ratio", of=lambda pair: pair[1].seconds / first),
        Field("matrix", "percent", of=lambda pair: pair[1].matrix_utilisation),
        Field("HBM", "percent", of=lambda pair: pair[1].hbm_utilisation),
        Field("most of it", of=lambda pair: next(iter(pair[1].by_bound()), "")),
        Field("priced", "percent", of=lambda pair: pair[1].priced),
    )
    return list(columns), cells(columns, zip(names, steps, strict=True))


def _advised(sentence: str) -> Step:
    """A sentence of advice; the time that it begins with stands out."""
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
    page.section("summary", "What a step takes", cards(_figures(step)), *(note(text) for text in step.notes))
    if len(timed) > 1:
        page.section("compare", "Beside each other", *_compared(timed, names))
    waits = {"the call itself": step.call_seconds, **step.by_bound()}
    bars = [Bar(name, (seconds,)) for name, seconds in waits.items() if seconds]
    page.section("bounds", "What it waits for", bar_chart(bars, title="time by what bounds it", kind="seconds"))
    rows = explorer(fields(step), step.rows, key=lambda row: row.name or row.op, sort="time", empty="no operations")
    page.section("operations", "Operations by time", rows)
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


def _figures(step: StepTime) -> list[Card]:
    shares = f"{percent_text(step.priced_flops)} of the flops, {percent_text(step.priced_bytes)} of the bytes"
    priced = "every operation has a time" if step.priced == 1 else f"{shares}: a lower bound"
    return [
        Card("step", seconds_text(step.seconds), f"{seconds_text(step.call_seconds)} of it for the call"),
        Card("matrix unit", percent_text(step.matrix_utilisation), f"{count_text(step.flops, compact=True)} flops"),
        Card("HBM", percent_text(step.hbm_utilisation), bytes_text(step.bytes)),
        Card("priced", percent_text(step.priced), priced, "plain" if step.priced == 1 else "warn"),
    ]


# The roofline, and lanes over time.

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
    """(lane, begin, end, tip) of every loop: neighbouring rows that run alike often, for each lane they use."""
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

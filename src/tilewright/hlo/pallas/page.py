"""A page about kernels: the verdict, what to do, the time by what bounds it, the first steps, the grid, the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tilewright.hlo.reading.kernel import Kernel, Window
from tilewright.hlo.timing.kernels import Pipeline
from tilewright.render import Bar, Card, Html, Page, bar_chart, bytes_text, cards, count_text, seconds_text, table
from tilewright.render import steps as listed
from tilewright.render.drawing import Drawing, LanePlane
from tilewright.render.formats import place_text
from tilewright.render.markup import element
from tilewright.render.page import advised, code_block, note, side_by_side
from tilewright.render.tables import Column

Check: TypeAlias = Any
"""A ``KernelCheck``, whose face this is."""
_CELLS = 48
"""Blocks along a dim that are drawn; of more, as many lie in one cell."""
_LANES = ("in and out", "matrix", "vector", "across lanes")


def kernels_page(checks: Sequence[Check], target: str) -> str:
    """One self-contained page."""
    name = checks[0].name if len(checks) == 1 else f"{len(checks)} kernels"
    page = Page(f"Pallas: {name}", f"on {target}, never run: modelled", facts=[("made", date.today().isoformat())])
    for number, check in enumerate(checks):
        for part, heading, content in kernel_sections(check):
            title = heading if len(checks) == 1 else f"{check.name}: {heading.lower()}"
            page.section(f"{part}-{number + 1}", title, *content)
    page.data("kernels", {"kernels": [check.to_json() for check in checks]})
    return page.html()


def kernel_sections(check: Check, step: int | None = None) -> Iterator[tuple[str, str, list[str]]]:
    """Name, heading and blocks of each section; with ``step``, from 0 on, what that step holds is framed and listed."""
    verdict = "compiles" if check.ok else "does not compile"
    limit = f"of {bytes_text(check.vmem_limit)}" if check.vmem_limit else ""
    least = f"at least {bytes_text(check.least_hbm_bytes)}"
    grid = " x ".join(map(str, check.grid)) or "1"
    figures = [
        Card("verdict", verdict, place_text(check.line).rpartition("/")[2], "good" if check.ok else "bad"),
        Card("time", seconds_text(check.seconds), f"by {check.bound}") if check.seconds else Card("time", "not known"),
        Card("vector memory", bytes_text(check.vmem_bytes), limit),
        Card("HBM", bytes_text(check.hbm_bytes), least),
        Card("grid", grid, ""),
    ]
    problems = [code_block(f"{p.text}\n{p.suggestion}".strip(), f"{p.kind} {p.line}") for p in check.problems]
    yield "summary", "What it is", [cards(figures), *problems, *(note(text) for text in check.notes)]
    if check.advice:
        yield "advice", "What to do", [listed(map(advised, check.advice))]
    if check.pipeline and check.pipeline.us:
        bars = [Bar(bound, (us / 1e6,)) for bound, us in check.pipeline.by_bound.items()]
        yield "time", "Where the time goes", [bar_chart(bars, title="time by what bounds its steps", kind="seconds")]
        if check.kernel and check.kernel.first:
            yield "steps", "The first steps", [_first_steps(check.pipeline, check.kernel.first, step)]
    if check.windows:
        rows: list[tuple[object, ...]] = [
            (k, w.dtype, str(w.array), str(w.block), w.fetches, w.bytes, w.held) for k, w in enumerate(check.windows)
        ]
        sizes = Column("fetches", "count"), Column("moved", "bytes"), Column("held", "bytes")
        heads: tuple[str | Column, ...] = ("window", "type", "array", "block", *sizes)
        said: list[str] = []
        if step is not None and check.kernel is not None:
            heads = (*heads, "has now", "in this step")
            rows = [(*row, *held) for row, held in zip(rows, _held(check.kernel, step))]
            at = tuple(map(int, np.unravel_index(step, check.grid))) if check.grid else ()
            said = [f"Step {count_text(step + 1)} of {count_text(check.kernel.steps)}, {at} of the grid:"]
        moving = [
            (number, window)
            for number, window in enumerate(check.kernel.windows if check.kernel is not None else ())
            if len(window.places) == len(window.block) and window.fetches > 1 and window.array
        ]
        grids = side_by_side(*(_grid(number, window, check.grid, step) for number, window in moving))
        yield "windows", "What moves", [*said, table(heads, rows), grids]
        held = [Bar(f"window {k}: {w.dtype} {w.block}", (w.held,)) for k, w in enumerate(check.windows) if w.held]
        held += [Bar("scratch", (check.scratch_bytes,)), Bar("spilled, estimated", (check.spilled_bytes,))]
        held += [Bar("may take", (check.vmem_limit,))] if check.vmem_limit else []
        yield "memory", "Vector memory", [bar_chart(held, title="bytes of vector memory", kind="bytes")]


def _first_steps(whole: Pipeline, first: Sequence[int], framed: int | None) -> Html:
    """A lane for transfers and one for each unit, over the first steps: each as long as the longest of them."""
    opening = [step for step in whole.steps if step.moment.alone][:1]
    shown = [*opening, *(whole.steps[place] for place in first if place < len(whole.steps))]
    drawing, at = LanePlane("The first steps", _LANES, sum(step.us for step in shown) / 1e6), 0.0
    for number, step in enumerate(shown):
        what = "before the first" if step.moment.alone else f"step {number + 1 - len(opening)}"
        busy = step.moved_us, *step.units.values()
        begin, long = drawing.x(at), step.us / 1e6
        drawing.line(begin, 0, begin, drawing.low, "grid")
        for k, us in enumerate(busy):
            if us:
                tip = f"{what}, {_LANES[k]}: {seconds_text(us / 1e6)} of {seconds_text(long)}, by {step.bound}"
                drawing.bar(k, at, us / 1e6, tip)
        if framed is not None and number == framed + len(opening):
            drawing.rect(begin, 1, long * drawing.scale, drawing.low - 1, "mark")
        at += long
    return element("figure", element("figcaption", "a step lasts as long as its longest lane"), drawing.svg())


def _held(kernel: Kernel, step: int) -> Iterator[tuple[str, str]]:
    """The block that each window has in a step, and whether it comes in for it or goes out after it."""
    for window in kernel.windows:
        if len(window.places) != len(window.block) or not window.array:
            yield "", "the kernel copies what it wants" if window.space != "vmem" else "its data says which"
            continue
        before, here, after = (_block_at(window, kernel.grid, step + by) for by in (-1, 0, 1))
        moves, how = (after != here, "goes out after it") if window.result else (before != here, "comes in for it")
        yield str(here), how if moves else "stays"


def _block_at(window: Window, grid: Sequence[int], step: int) -> tuple[int, ...] | None:
    """Where a window's block lies in a step; None before the first step and after the last."""
    if not 0 <= step < prod(grid):
        return None
    place = np.unravel_index(step, grid) if grid else ()
    return tuple(int(np.broadcast_to(index, grid)[place]) for index in window.places)


def _grid(number: int, window: Window, grid: Sequence[int], step: int | None) -> Html:
    """The blocks of a window, light where they come early, deep where late; a tip says how often each comes."""
    counts = [-(-size // max(1, cut)) for size, cut in zip(window.array, window.block)]
    flat = [np.broadcast_to(place, grid).reshape(-1) for place in window.places]
    inside = np.logical_and.reduce([(place >= 0) & (place < count) for place, count in zip(flat, counts)])
    varied = [d for d, count in enumerate(counts) if count > 1]
    last = len(counts) - 1 if len(varied) < 2 else varied[-1]  # it goes across, all others down
    across, wide = flat[last], counts[last]
    down, high = np.zeros_like(across), 1
    for d, count in enumerate(counts):
        down, high = (down, high) if d == last else (down * count + flat[d], high * count)
    changed = np.ones(len(across), bool)
    changed[1:] = (across[1:] != across[:-1]) | (down[1:] != down[:-1])
    columns, rows = min(wide, _CELLS), min(high, _CELLS)
    at = np.flatnonzero(inside & changed)
    cell = (down[at] * rows // high) * columns + across[at] * columns // wide
    times = np.bincount(cell, minlength=rows * columns)
    first = np.full(rows * columns, -1)
    first[cell[::-1]] = at[::-1]
    size = max(5.0, min(18.0, 420 / columns, 300 / rows))
    drawing = Drawing(size * columns + 4, size * rows + 4, title=f"Blocks of window {number}")
    for k in range(rows * columns):
        row, column = divmod(k, columns)
        tone = f"cell r{min(7, int(8 * first[k] / max(1, len(across))))}" if first[k] >= 0 else "cell"
        tip = f"row {row}, column {column}: first in step {first[k] + 1}, {times[k]} times" if times[k] else "never"
        drawing.rect(2 + size * column, 2 + size * row, size - 1, size - 1, tone, tip=tip)
    if step is not None and inside[step]:
        row, column = int(down[step]) * rows // high, int(across[step]) * columns // wide
        drawing.rect(2 + size * column, 2 + size * row, size - 1, size - 1, "mark")
    most = int(np.unique(down[at] * wide + across[at], return_counts=True)[1].max(initial=0))
    often = "each once" if most == 1 else f"up to {count_text(most)} times each"
    caption = f"window {number}, {count_text(high)} x {count_text(wide)} blocks of {window.block}: {often}"
    return element("figure", element("figcaption", f"{caption}; the deeper, the later"), drawing.svg())

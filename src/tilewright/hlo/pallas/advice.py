"""What would make a kernel quicker or smaller: movement that another order saves, short steps, unfilled units."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.hlo.pallas.order import best_order
from tilewright.hlo.reading.kernel import Kernel
from tilewright.hlo.timing.pallas import Pipeline
from tilewright.render.formats import bytes_text, count_text, percent_text, seconds_text
from tilewright.targets import Target

_SAID = 0.1
"""Share of a kernel's time from which something is worth a sentence."""


def advice(kernel: Kernel, whole: Pipeline | None, chip: Target) -> Iterator[str]:
    """Sentences, those about movement first; ``whole``: its time, None where there is none."""
    yield from _movement(kernel)
    if whole is None or not whole.us:
        return
    bounds = whole.by_bound()
    latency = bounds.get("latency", 0.0)
    if latency > 2 * _SAID * whole.us:
        steps = sum(step.moment.times for step in whole.steps if not step.moment.alone)
        share = percent_text(latency / whole.us)
        yield f"{share} of the time goes to beginning steps, {count_text(round(steps))} of them: larger blocks"
    moved = bounds.get("hbm", 0.0)
    if moved > 0.5 * whole.us:
        yield "it waits for HBM: blocks that are kept for more steps, or a narrower type"
    lanes = sum(step.units.get("lanes", 0.0) * step.moment.times for step in whole.steps)
    if lanes > _SAID * whole.us:
        yield f"{seconds_text(lanes / 1e6)} of turning data across lanes: transposes, concatenations, gathers"
    yield from _products(kernel, chip)
    cores = round(chip.time["pallas"]["cores"]) if "pallas" in chip.time else 1
    if cores > 1 and not any(word == "parallel" for word in kernel.semantics):
        yield f"one of {cores} cores works: a dim of the grid that is parallel gives both a part"


def _movement(kernel: Kernel) -> Iterator[str]:
    moved = sum(w.megabytes for w in kernel.windows) * 1e6
    if order := best_order(kernel):
        dims, saved = ", ".join(map(str, order.dims)), moved - order.bytes
        yield (
            f"another order of the grid moves {bytes_text(round(saved))} less ({saved / moved:.0%}): "
            f"its dims as they are now numbered, the outermost first: {dims}"
        )
    for number, window in enumerate(kernel.windows):
        if window.distinct and window.megabytes > 1.5 * window.distinct:
            times = window.megabytes / window.distinct
            yield f"window {number} is moved {times:.0f} times: {count_text(window.fetches)} fetches of {window.block}"


def _products(kernel: Kernel, chip: Target) -> Iterator[str]:
    """The largest product, where it leaves much of the matrix unit empty."""
    if chip.matrix is None or not kernel.products:
        return
    side = chip.matrix.rows
    (_, rows, columns, depth, kind), _ = max(kernel.products.items(), key=lambda item: prod(item[0][:4]) * item[1])
    filled = columns * depth / (-(-columns // side) * -(-depth // side) * side * side)
    if filled < 0.75:
        yield (
            f"its products of {rows} x {depth} by {depth} x {columns} ({kind}) fill {percent_text(filled)} of the "
            f"matrix unit: its squares are {side} x {side}"
        )

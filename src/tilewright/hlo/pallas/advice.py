"""What would make a kernel quicker or smaller: movement that another order saves, short steps, unfilled units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from math import prod

import numpy as np

from tilewright.hlo.reading.kernel import Kernel, Window, moves_of
from tilewright.hlo.timing.kernels import Pipeline
from tilewright.render.formats import bytes_text, count_text, percent_text, seconds_text
from tilewright.targets import Target

_SAID = 0.1
"""Share of a kernel's time from which something is worth a sentence."""
_MOST_DIMS, _MOST_STEPS = 4, 1 << 20
"""Of grids whose other orders are counted."""


def advice(kernel: Kernel, whole: Pipeline | None, chip: Target) -> Iterator[str]:
    """Sentences, those that can save most first; ``whole``: its time, None where there is none.

    "saves up to": what the named unit, transfers or starts take now; what then bounds the steps may come sooner.
    """
    if whole is None or not whole.us:
        yield from (words for _, words in _movement(kernel, 0.0))
        return
    bounds, times = whole.by_bound(), [step.moment.times for step in whole.steps]
    waits = bounds.get("hbm", 0.0) / whole.us
    found = list(_movement(kernel, waits * sum(step.moved_us * n for step, n in zip(whole.steps, times))))
    latency = bounds.get("latency", 0.0)
    if latency > 2 * _SAID * whole.us:
        steps = count_text(round(sum(n for step, n in zip(whole.steps, times) if not step.moment.alone)))
        busy = sum(max([step.moved_us, *step.units.values()]) * n for step, n in zip(whole.steps, times))
        words = f"larger blocks: beginning its {steps} steps takes {percent_text(latency / whole.us)} of the time"
        found.append((min(latency, whole.us - busy), words))
    if waits > 0.5:
        found.append((0.0, "it waits for HBM: blocks that are kept for more steps, or a narrower type"))
    lanes = sum(step.units.get("lanes", 0.0) * n for step, n in zip(whole.steps, times))
    if lanes > _SAID * whole.us:
        found.append((lanes, "fewer transposes, concatenations and gathers: they turn data across lanes"))
    matrix = whole.core_us()[0] * bounds.get("matrix", 0.0) / whole.us
    found += [((1 - filled) * matrix, words) for filled, words in _products(kernel, chip)]
    cores = round(chip.time["kernel"]["cores"]) if "kernel" in chip.time else 1
    if cores > 1 and not any(word == "parallel" for word in kernel.semantics):
        words = f'dimension_semantics with "parallel" for a dim of the grid: one of {cores} cores works now'
        found.append((whole.us * (1 - 1 / cores), words))
    for saved, words in sorted(found, key=lambda each: -each[0]):
        yield f"saves up to {seconds_text(saved / 1e6)}: {words}" if saved > 0.01 * whole.us else words


def _movement(kernel: Kernel, transfers: float) -> Iterator[tuple[float, str]]:
    """What is moved again, and its part of the microseconds that the kernel waits for ``transfers``."""
    moved = sum(w.megabytes for w in kernel.windows) * 1e6
    if order := best_order(kernel):
        dims, saved = ", ".join(map(str, order.dims)), moved - order.bytes
        yield (
            transfers * saved / moved,
            f"another order of the grid moves {bytes_text(round(saved))} less ({saved / moved:.0%}): "
            f"its dims as they are now numbered, the outermost first: {dims}",
        )
    for number, window in enumerate(kernel.windows):
        if window.distinct and window.megabytes > 1.5 * window.distinct:
            again = window.megabytes - window.distinct
            passed = [d for d, size in enumerate(kernel.grid) if size > 1 and window.places and not _follows(window, d)]
            along = f" along dim {' or '.join(map(str, passed))} of the grid" if passed else ""
            yield (
                transfers * again * 1e6 / moved,
                f"larger blocks{along}: window {number}, {window.block}, is moved "
                f"{window.megabytes / window.distinct:.0f} times, {bytes_text(round(again * 1e6))} more than once",
            )


def _follows(window: Window, dim: int) -> bool:
    """Whether its block is another along this dim of the grid."""
    return any(place.ndim > dim and place.shape[dim] > 1 for place in map(np.asarray, window.places))


def _products(kernel: Kernel, chip: Target) -> Iterator[tuple[float, str]]:
    """The largest product, where it leaves much of the matrix unit empty, and the share that it fills."""
    if chip.matrix is None or not kernel.products:
        return
    side = chip.matrix.rows
    (_, rows, columns, depth, kind), _ = max(kernel.products.items(), key=lambda item: prod(item[0][:4]) * item[1])
    filled = columns * depth / (-(-columns // side) * -(-depth // side) * side * side)
    if filled < 0.75:
        yield (
            filled,
            f"blocks that are multiples of {side} along what is multiplied: products of {rows} x {depth} by "
            f"{depth} x {columns} ({kind}) fill {percent_text(filled)} of the matrix unit",
        )


@dataclass(frozen=True)
class Order:
    """An order of the grid's dims, the outermost first, and the bytes that all windows move in it."""

    dims: tuple[int, ...]
    bytes: int


def best_order(kernel: Kernel) -> Order | None:
    """The order that moves least, where it moves less than the kernel's own; None where none does, or nobody knows.

    Of orders that would fetch a block of a result again, or write it in parts, none is taken.
    """
    windows = [window for window in kernel.windows if window.space == "vmem"]
    if len(kernel.grid) > _MOST_DIMS or kernel.steps > _MOST_STEPS or not all(window.places for window in windows):
        return None
    own = sum(window.megabytes for window in windows)
    best = min(_orders(kernel), key=lambda order: order.bytes, default=None)
    return best if best and best.bytes < own * 1e6 * 0.98 else None


def _orders(kernel: Kernel) -> Iterator[Order]:
    rank = len(kernel.grid)
    for dims in permutations(range(rank)):
        grid, moved = tuple(kernel.grid[d] for d in dims), 0.0
        for window in kernel.windows:
            if window.space != "vmem":
                continue
            places = [
                np.transpose(place.reshape((1,) * (rank - place.ndim) + place.shape), dims) for place in window.places
            ]
            known = window.array if len(window.array) == len(window.block) else ()
            moves = moves_of(places, grid, window.block, known, window.dtype)
            if window.result and moves.fetches > window.fetches:
                break
            moved += moves.megabytes
        else:
            yield Order(dims, round(moved * 1e6))

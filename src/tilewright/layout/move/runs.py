"""How contiguous a move is: its longest run, and the lines of memory that hold data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.move.moves import relayout_boxes
from tilewright.layout.move.nest import Box, CommonDim, Loop, boxes_of, layout_terms

Array = np.ndarray[Any, Any]
_MOST_RUNS = 1 << 24


class _Runs(NamedTuple):
    """The runs of a box: ``length`` elements from each of its places on, again along ``loops``."""

    length: int
    loops: list[Loop]
    box: Box


def _runs_of(box: Box, both: bool) -> _Runs:
    """Runs that are contiguous on the target's side, or on ``both``."""
    length, around = 1, []
    for loop in sorted(box.loops, key=lambda x: x.target):
        if loop.target == length and (loop.source == length or not both):
            length *= loop.count
        else:
            around.append(loop)
    return _Runs(length, around, box)


def _listed(all_runs: Sequence[_Runs], layout: AddressMap) -> tuple[Array, Array, Array]:
    """(source, target, elements) of every run."""
    if sum(len(runs.box.targets) * math.prod(loop.count for loop in runs.loops) for runs in all_runs) > _MOST_RUNS:
        raise _too_many(layout)
    columns = []
    for length, loops, box in all_runs:
        sources, targets = box.sources, box.targets
        for loop in loops:
            steps = np.arange(loop.count, dtype=np.int64)
            sources = (sources[:, None] + steps * loop.source).reshape(-1)
            targets = (targets[:, None] + steps * loop.target).reshape(-1)
        columns.append((sources, targets, np.full(len(sources), length)))
    sources, targets, lengths = (np.concatenate(column) for column in zip(*columns, strict=True))
    return sources, targets, lengths


def _too_many(layout: AddressMap) -> UnsupportedError:
    return UnsupportedError(f"{layout} lies in more than {_MOST_RUNS} pieces", how="ask for a slice of the array")


def _all_slots(layout: AddressMap, order: Sequence[int]) -> Array:
    """The slots of all elements, the dims read in ``order``."""
    if layout.num_elements > _MOST_RUNS:
        raise _too_many(layout)
    return layout.slots_of(np.arange(layout.num_elements), order)


# -- lines -------------------------------------------------------------------------------------------------------------


def lines_touched(layout: AddressMap, line_bytes: int) -> int:
    """Distinct lines of ``line_bytes`` bytes that hold an element (or a part of one)."""
    if not layout.num_elements:
        return 0
    bits = layout.element_bits
    terms = layout_terms(layout, 1)
    boxes = None
    if terms is not None:
        dims = [CommonDim(n, (), t) for n, t in zip(layout.shape, terms[1], strict=True) if n > 1]
        boxes = boxes_of(dims, (0, terms[0]))
    if boxes is None:
        starts = np.unique(_all_slots(layout, range(layout.rank)))
        return _count(starts, np.ones(len(starts), np.int64), bits, line_bytes)
    times = 1
    if len(boxes) == 1:
        boxes, times = _without_far(boxes[0], bits, line_bytes)
    _, starts, lengths = _listed([_runs_of(box, both=False) for box in boxes], layout)
    order = np.argsort(starts, kind="stable")
    return times * _count(starts[order], lengths[order], bits, line_bytes)


def _without_far(box: Box, bits: int, line_bytes: int) -> tuple[list[Box], int]:
    """The box without its outermost loops that step whole lines past all that lies within; and how many they make."""
    loops, times, line = sorted(box.loops, key=lambda x: x.target), 1, 8 * line_bytes
    while loops and len(box.targets) == 1:
        far = loops.pop()
        step = far.target * bits
        per_line = line // step if line % step == 0 else 1
        if far.count % per_line == 0 and per_line > 1:  # steps within a line stay
            near = [Loop(per_line, far.source, far.target)]
            far = Loop(far.count // per_line, 0, far.target * per_line)
        else:
            near = []
        reach = sum((loop.count - 1) * loop.target for loop in (*loops, *near)) + 1
        inside = int(box.targets[0]) * bits % line + reach * bits
        if far.target * bits % line or inside > far.target * bits:
            loops += [*near, far]
            break
        loops += near
        times *= far.count
        if near:
            break
    return [Box(box.sources, box.targets, tuple(loops))], times


def _count(starts: Array, lengths: Array, bits: int, line_bytes: int) -> int:
    """Lines under ascending disjoint runs of elements."""
    line = 8 * line_bytes
    first, last = starts * bits // line, ((starts + lengths) * bits - 1) // line
    shared = first[1:] <= np.maximum.accumulate(last)[:-1]
    return int((last - first + 1).sum() - shared.sum())


# -- the longest run, from the boxes of the move rather than from its elements where no run goes on in another ---------

_MOST_PAIRS = 1 << 12  # pairs of places where boxes begin, in about a quarter of a second
_MOST_TRIES = 1 << 10


def longest_run(a: AddressMap, b: AddressMap, order: Sequence[int]) -> int:
    """Elements of the longest piece that is contiguous in both layouts, b being reshape(transpose(a, order))."""
    if not a.num_elements:
        return 0
    boxes = relayout_boxes(a, b, order, 1)
    if boxes is None:
        sources, targets = _all_slots(a, order), _all_slots(b, range(b.rank))
        lengths = np.ones(len(sources), np.int64)
    else:
        runs = [_runs_of(box, both=True) for box in boxes]
        if not _join(runs):
            return max(some.length for some in runs)
        sources, targets, lengths = _listed(runs, a)
    by_source = np.argsort(sources, kind="stable")
    sources, targets, lengths = sources[by_source], targets[by_source], lengths[by_source]
    goes_on = (np.diff(sources) == lengths[:-1]) & (np.diff(targets) == lengths[:-1])
    ends = np.append(np.nonzero(~goes_on)[0], len(lengths) - 1)
    total = np.cumsum(lengths)[ends]
    return int(np.diff(total, prepend=0).max())


def _join(all_runs: Sequence[_Runs]) -> bool:
    """Whether some run may go on in another one, on both sides at once."""
    if sum(len(runs.box.targets) for runs in all_runs) ** 2 > _MOST_PAIRS:
        return True
    begins = [list(zip(runs.box.sources.tolist(), runs.box.targets.tolist(), strict=True)) for runs in all_runs]
    for (a, begins_a), (b, begins_b) in product(zip(all_runs, begins, strict=True), repeat=2):
        counters = _counters(a, b)
        for (from_source, from_target), (to_source, to_target) in product(begins_a, begins_b):
            source, target = from_source + a.length - to_source, from_target + a.length - to_target
            if _solvable(counters, source, target, [0]):
                return True
    return False


class _Counter(NamedTuple):
    """``low <= k <= high`` steps of ``source`` and ``target`` elements."""

    low: int
    high: int
    source: int
    target: int


def _counters(a: _Runs, b: _Runs) -> list[_Counter]:
    """What lies between a run of ``a`` and one of ``b``, widest steps first."""
    if a is b:
        counters = [_Counter(1 - loop.count, loop.count - 1, loop.source, loop.target) for loop in a.loops]
    else:
        counters = [_Counter(0, loop.count - 1, loop.source, loop.target) for loop in b.loops]
        counters += [_Counter(1 - loop.count, 0, loop.source, loop.target) for loop in a.loops]
    return sorted(counters, key=lambda c: -max(abs(c.source), abs(c.target)))


def _solvable(counters: Sequence[_Counter], source: int, target: int, tries: list[int]) -> bool:
    """Whether some counters add up to both sums; True too once too many have been tried."""
    if not counters:
        return not source and not target
    tries[0] += 1
    if tries[0] > _MOST_TRIES:
        return True
    first, rest = counters[0], counters[1:]
    low, high = first.low, first.high
    for side, total in ((2, source), (3, target)):
        least, most = _reach(rest, side)
        step = first[side]
        if not step:
            if not least <= total <= most:
                return False
            continue
        a, b = (total - most, total - least) if step > 0 else (least - total, most - total)
        low, high = max(low, -(-a // abs(step))), min(high, b // abs(step))
    return any(
        _solvable(rest, source - k * first.source, target - k * first.target, tries) for k in range(low, high + 1)
    )


def _reach(counters: Sequence[_Counter], side: int) -> tuple[int, int]:
    """The least and the largest sum of the counters on a side (2: source, 3: target)."""
    ends = [sorted((c.low * c[side], c.high * c[side])) for c in counters]
    return sum(low for low, _ in ends), sum(high for _, high in ends)

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
from tilewright.layout.move.nest import Box, Dim, Loop, boxes, layout_terms

Array = np.ndarray[Any, Any]
_MOST_RUNS = 1 << 24


def _too_many(layout: AddressMap) -> UnsupportedError:
    return UnsupportedError(f"{layout} lies in more than {_MOST_RUNS} pieces", how="ask for a slice of the array")


def _run_of(box: Box, both: bool) -> tuple[int, list[Loop]]:
    """Elements contiguous on the target (or on both sides), and the loops around them."""
    extent, outer = 1, []
    for loop in sorted(box.loops, key=lambda x: x.target):
        if loop.target == extent and (loop.source == extent or not both):
            extent *= loop.count
        else:
            outer.append(loop)
    return extent, outer


def _starts(box: Box, loops: Sequence[Loop]) -> tuple[Array, Array]:
    """(source, target) places of all runs of a box."""
    sources, targets = box.sources, box.targets
    for loop in loops:
        k = np.arange(loop.count, dtype=np.int64)
        sources = (sources[:, None] + k * loop.source).reshape(-1)
        targets = (targets[:, None] + k * loop.target).reshape(-1)
    return sources, targets


def _runs(found: Sequence[Box], both: bool, layout: AddressMap) -> tuple[Array, Array, Array]:
    """(source, target, elements) of every run of the boxes."""
    cut = [_run_of(box, both) for box in found]
    count = sum(len(b.targets) * math.prod(x.count for x in c[1]) for b, c in zip(found, cut, strict=True))
    if count > _MOST_RUNS:
        raise _too_many(layout)
    places = [_starts(box, loops) for box, (_, loops) in zip(found, cut, strict=True)]
    lengths = [np.full(len(s), extent) for (s, _), (extent, _) in zip(places, cut, strict=True)]
    return np.concatenate([s for s, _ in places]), np.concatenate([t for _, t in places]), np.concatenate(lengths)


def _flat(layout: AddressMap, order: Sequence[int]) -> Array:
    """Flat slots of all elements, the dims read in ``order``."""
    if layout.num_elements > _MOST_RUNS:
        raise _too_many(layout)
    return layout.slots_of(np.arange(layout.num_elements), order)


def longest_of_all_runs(a: AddressMap, b: AddressMap, order: Sequence[int]) -> int:
    """Elements of the longest piece that is contiguous in both layouts, b being reshape(transpose(a, order))."""
    if not a.num_elements:
        return 0
    found = relayout_boxes(a, b, order, 1)
    if found is None:
        sources, targets = _flat(a, order), _flat(b, range(b.rank))
        lengths = np.ones(len(sources), np.int64)
    else:
        sources, targets, lengths = _runs(found, True, a)
    by_source = np.argsort(sources, kind="stable")
    sources, targets, lengths = sources[by_source], targets[by_source], lengths[by_source]
    goes_on = (np.diff(sources) == lengths[:-1]) & (np.diff(targets) == lengths[:-1])
    ends = np.append(np.nonzero(~goes_on)[0], len(lengths) - 1)
    total = np.cumsum(lengths)[ends]
    return int(np.diff(total, prepend=0).max())


def lines_touched(layout: AddressMap, line_bytes: int) -> int:
    """Distinct lines of ``line_bytes`` bytes that hold an element (or a part of one)."""
    if not layout.num_elements:
        return 0
    bits = layout.element_bits
    terms = layout_terms(layout, 1)
    found = None
    if terms is not None:
        dims = [Dim(n, (), t) for n, t in zip(layout.shape, terms[1], strict=True) if n > 1]
        found = boxes(dims, (0, terms[0]))
    if found is None:
        starts = np.unique(_flat(layout, range(layout.rank)))
        return _count(starts, np.ones(len(starts), np.int64), bits, line_bytes)
    times = 1
    if len(found) == 1:
        found, times = _without_far(found[0], bits, line_bytes)
    _, starts, lengths = _runs(found, False, layout)
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


# The longest piece that a move leaves in one piece, from the boxes of the move rather than from its elements.

_MOST_PAIRS = 1 << 12  # pairs of places where boxes begin, in about a quarter of a second
_MOST_TRIES = 1 << 10


class _Counter(NamedTuple):
    """``low <= k <= high`` steps of ``source`` and ``target`` elements."""

    low: int
    high: int
    source: int
    target: int


class _Runs(NamedTuple):
    """The runs of a box: ``length`` elements from every (source, target) of ``begins`` on, again along ``loops``."""

    length: int
    begins: tuple[tuple[int, int], ...]
    loops: tuple[Loop, ...]


def _runs_of(box: Box) -> _Runs:
    length, around = 1, []
    for loop in sorted(box.loops, key=lambda x: x.target):
        if loop.target == loop.source == length:
            length *= loop.count
        else:
            around.append(loop)
    begins = tuple(zip(box.sources.tolist(), box.targets.tolist(), strict=True))
    return _Runs(length, begins, tuple(around))


def _reach(counters: Sequence[_Counter], side: int) -> tuple[int, int]:
    """The least and the largest sum of the counters on a side (2: source, 3: target)."""
    ends = [sorted((c.low * c[side], c.high * c[side])) for c in counters]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _solvable(counters: Sequence[_Counter], source: int, target: int, tries: list[int]) -> bool:
    """Whether some counters add up to both sums; True too once too many have been tried."""
    if not counters:
        return not source and not target
    tries[0] += 1
    if tries[0] > _MOST_TRIES:
        return True
    first, rest = counters[0], counters[1:]
    low, high = first.low, first.high
    for side, wanted in ((2, source), (3, target)):
        least, most = _reach(rest, side)
        step = first[side]
        if not step:
            if not least <= wanted <= most:
                return False
            continue
        a, b = (wanted - most, wanted - least) if step > 0 else (least - wanted, most - wanted)
        low, high = max(low, -(-a // abs(step))), min(high, b // abs(step))
    return any(
        _solvable(rest, source - k * first.source, target - k * first.target, tries) for k in range(low, high + 1)
    )


def _counters(a: _Runs, b: _Runs) -> list[_Counter]:
    """What lies between a run of ``a`` and one of ``b``, widest steps first."""
    if a is b:
        found = [_Counter(1 - loop.count, loop.count - 1, loop.source, loop.target) for loop in a.loops]
    else:
        found = [_Counter(0, loop.count - 1, loop.source, loop.target) for loop in b.loops]
        found += [_Counter(1 - loop.count, 0, loop.source, loop.target) for loop in a.loops]
    return sorted(found, key=lambda c: -max(abs(c.source), abs(c.target)))


def _join(runs: Sequence[_Runs]) -> bool:
    """Whether some run may go on in another one, on both sides at once."""
    if sum(len(each.begins) for each in runs) ** 2 > _MOST_PAIRS:
        return True
    for a, b in product(runs, repeat=2):
        counters = _counters(a, b)
        for (from_source, from_target), (to_source, to_target) in product(a.begins, b.begins):
            source, target = from_source + a.length - to_source, from_target + a.length - to_target
            if _solvable(counters, source, target, [0]):
                return True
    return False


def longest_run(a: AddressMap, b: AddressMap, order: Sequence[int]) -> int:
    """Elements of the longest piece that is contiguous in both layouts, b being reshape(transpose(a, order))."""
    found = relayout_boxes(a, b, order, 1) if a.num_elements else None
    if found is not None:
        runs = [_runs_of(box) for box in found]
        if not _join(runs):
            return max(each.length for each in runs)
    return longest_of_all_runs(a, b, order)

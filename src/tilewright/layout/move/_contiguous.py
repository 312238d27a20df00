"""The longest piece that a move leaves in one piece, from the boxes of the move rather than from its elements.

A box's runs are known from its loops. What remains to be asked is whether some run ends where another one begins on
both sides; that is a pair of linear equations in the loops' counters, and mostly has no solution. Where it has one, or
where there are no boxes, the runs themselves are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from tilewright.layout.move._move import relayout_boxes
from tilewright.layout.move._nest import Box, Loop
from tilewright.layout.move._runs import longest_of_all_runs

if TYPE_CHECKING:
    from tilewright.layout._index_map import IndexMap

__all__ = ["longest_run"]

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


def longest_run(a: IndexMap, b: IndexMap, order: Sequence[int]) -> int:
    """Elements of the longest piece that is contiguous in both layouts, b being reshape(transpose(a, order))."""
    found = relayout_boxes(a, b, order, 1) if a.num_elements else None
    if found is not None:
        runs = [_runs_of(box) for box in found]
        if not _join(runs):
            return max(each.length for each in runs)
    return longest_of_all_runs(a, b, order)

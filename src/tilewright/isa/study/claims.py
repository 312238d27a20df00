"""What the instruction's source claims, each claim counted: where it holds, and where it does not."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa.chip.segments import make_storage, whole_segment
from tilewright.isa.chip.state import Cache
from tilewright.isa.execute.operands import NOT_SEEN, reach_elements
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.multiply.matmul import matmul


@dataclass(frozen=True)
class Claim:
    """One row: what is claimed, on which case, what is counted, without and with it, and what to learn from it."""

    claim: str
    case: str
    counted: str
    without: int
    with_it: int
    remark: str

    @property
    def factor(self) -> float:
        """How many times less."""
        return self.without / self.with_it

    @property
    def holds(self) -> bool:
        """Whether it saves half or more."""
        return self.factor >= 2


def claims() -> tuple[Claim, ...]:
    """Every claim on the cases of the text and on cases where it fails; the machine counts, nothing is assumed.

    >>> claims()[0].factor
    256.0
    """
    return (*_broadcast(), *_retention(), *_merging())


def _broadcast() -> tuple[Claim, ...]:
    rows = []
    for threads, m, size, remark in (
        (256, 256, 256, "once for all rows of a block"),
        (64, 16, 64, "as many times as there are rows at work: 16 of 64 threads have one"),
    ):
        a, b = np.ones((m, size), np.int8), np.ones((size, size), np.int8)
        counts = matmul(a, b, MatrixUnitConfig(threads=threads)).counts
        case = f"{m} x {size} x {size}, {threads} threads"
        loads = m * size * size
        rows.append(Claim("B is broadcast", case, "elements of B moved", loads, counts.broadcast_elements, remark))
    return tuple(rows)


def _merging() -> tuple[Claim, ...]:
    rows = []
    for m, ka, kb, remark in (
        (16, 4, 1, "four threads share a row's columns"),
        (16, 1, 4, "four threads share every dot product"),
        (16, 2, 2, "both"),
        (64, 4, 1, "no thread was idle: as many steps, and A is loaded four times"),
    ):
        a, b, config = np.ones((m, 64), np.int8), np.ones((64, 64), np.int8), MatrixUnitConfig(threads=64)
        alone, merged = (matmul(a, b, config, ka=x, kb=y).counts for x, y in ((1, 1), (ka, kb)))
        case = f"{m} x 64 x 64, 64 threads, ka{ka} kb{kb}"
        counted = f"math steps (mm instructions: {alone.instructions} -> {merged.instructions})"
        rows.append(Claim("ka and kb fill idle threads", case, counted, alone.steps, merged.steps, remark))
    return tuple(rows)


_SQUARE = "256 x 256 B by rows"
_FITS = f"{_SQUARE}, column outer, L1 of 256 lines"
_FOREIGN = f"{_FITS} and others' lines"
_SMALL = f"{_SQUARE}, column outer, L1 of 64 lines"
_SETS = f"{_FITS} in sets of 4, rows 4096 bytes apart"
_WALKS: tuple[tuple[str, dict[str, Any], str, str], ...] = (
    (_FOREIGN, {"lines": 256, "foreign": True}, "bypass", "64 bytes a line, 64 times less: as claimed"),
    (_FOREIGN, {"lines": 256, "foreign": True}, "evict", "evicting when all is retained costs a little"),
    (_SMALL, {"lines": 64}, "bypass", "a quarter of the rows fits and stays"),
    (_SMALL, {"lines": 64}, "evict", "what is evicted was retained in vain"),
    (_SETS, {"lines": 256, "ways": 4, "pitch": 4096}, "bypass", "rows meet in the same sets"),
)


def _retention() -> tuple[Claim, ...]:
    a, b = np.ones((2, 256), np.int8), np.ones((256, 256), np.int8)
    walked = matmul(a, b, MatrixUnitConfig(l1_bytes=64 * 8), transpose_b=True).counts.l1_misses
    plain = column_walk_misses(8, None, outer=True)
    remark = "every line is used up while it is there, retained or not"
    rows = [Claim("t1 retains lines", f"{_SQUARE}, k outer, L1 of 8 lines", "L1 misses", plain, walked, remark)]
    for case, how, policy, remark in _WALKS:
        lru, kept = (column_walk_misses(retention=policies, **how) for policies in (None, policy))
        rows.append(Claim("t1 retains lines", case, f"L1 misses ({policy})", lru, kept, remark))
    lru, kept, counted = column_walk_misses(64, None), forgetful_walk_misses(64), "L1 misses (bypass, another machine)"
    remark = "were the bits kept in the cached copy, half-read lines would stay for good"
    return (*rows, Claim("t1 retains lines", _SMALL, counted, lru, kept, remark))


def forgetful_walk_misses(lines: int) -> int:
    """What :func:`column_walk_misses` would be with ``bypass`` if a line's bits lived in its cached copy alone.

    This machine keeps them by the segment. In a copy they begin anew whenever the line comes in, and a selection that
    passes by leaves no mark: a line that came in half-way waits for elements nobody selects again.
    """
    cached: OrderedDict[tuple[int, int], int] = OrderedDict()
    free: OrderedDict[tuple[int, int], None] = OrderedDict()
    misses = 0
    for column in range(256):
        for row in range(256):
            line = row, column // 64
            misses += line not in cached
            if line not in cached and len(cached) == lines:
                if not free:
                    continue  # all retained: passed by
                del cached[free.popitem(last=False)[0]]
            cached[line] = cached.get(line, (1 << 64) - 1) & ~(1 << column % 64)
            if not cached[line]:
                free[line] = None
    return misses


def column_walk_misses(
    lines: int,
    retention: str | None,
    foreign: bool = False,
    ways: int = 0,
    pitch: int | None = None,
    outer: bool = False,
) -> int:
    """L1 misses of B's lines when an int8 B of 256 rows of 256 bytes is walked column by column.

    ``retention``: None (plain LRU), bypass or evict; ``foreign``: a line nobody else uses comes after every column;
    ``pitch``: bytes from row to row; ``outer``: k in steps of 8 is the outer loop, as for the k_outer order.
    """
    from tilewright.isa.kernels.cache_kernels import lru_touch
    from tilewright.isa.kernels.memory_kernels import touch_columns

    storage = make_storage("B", np.zeros((256, 256), np.int8), 0, 64, page=None if pitch is None else (256, pitch))
    storage.table.phys[:] = np.arange(storage.map.num_pages) * storage.page_bytes
    segment = whole_segment(storage, 1, "B")
    segment.await_all()
    own = storage.total_bytes // 64
    caches = Cache.of(own + 256, lines, ways).cells, Cache.of(own + 256, own + 256, 0).cells
    depth = 8 if outer else 256
    pages, kept = (storage.table.in_l2, storage.map.page_elements, 6), (segment.selected, segment.awaited, segment.walk)
    retain, totals, misses = (retention is not None, retention != "evict"), np.zeros(4, np.int64), 0
    for begin in range(0, 256, depth):
        at = np.stack([np.arange(256), np.full(256, begin)], axis=1)
        reach = reach_elements(segment, at, np.full(256, depth), depth, 1)
        for column in range(256):
            out = np.zeros((1, 3), np.int64)
            walked, deep = (reach.ids, reach.places), np.empty(depth, np.int64)
            touch_columns(walked, np.array([column]), pages, retain, kept, caches, out, totals, deep, NOT_SEEN)
            misses += int(out[0, 1])
            if foreign and lru_touch(caches[0], own + column, retention != "evict"):
                lru_touch(caches[1], own + column, True)
    return misses

"""What the instruction's source claims, each claim counted and timed: where it holds, and where it does not."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa.chip.state import new_chip
from tilewright.isa.execute.operands import reach_elements
from tilewright.isa.execute.tensor import walk_columns
from tilewright.isa.kernels import records
from tilewright.isa.kernels.records import Record
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.multiply.matmul import matmul


@dataclass(frozen=True)
class Claim:
    """One row: what is claimed, on which case, what is counted, without and with it, and what to learn from it.

    ``cycles``: by the machine's clock, without and with it; None where a cache was walked alone, without a machine.
    ``why``: what the clock makes of it.
    """

    claim: str
    case: str
    counted: str
    without: int
    with_it: int
    remark: str
    cycles: tuple[int, int] | None = None
    why: str = ""

    @property
    def times_faster(self) -> float | None:
        """How many times fewer cycles."""
        return self.cycles[0] / self.cycles[1] if self.cycles else None

    @property
    def confirmed(self) -> bool | None:
        """Whether the clock, too, saves half or more; None without one."""
        return self.times_faster >= 2 if self.times_faster is not None else None

    @property
    def factor(self) -> float:
        """How many times less is counted with it."""
        return self.without / self.with_it

    @property
    def holds(self) -> bool:
        """Whether the count is halved, or less."""
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
        config = MatrixUnitConfig(threads=threads)
        made, one_row = matmul(a, b, config), matmul(a[:1], b, config)
        case, moved = f"{m} x {size} x {size}, {threads} threads", made.counts.broadcast_elements
        cycles, why = (m * one_row.cycles, made.cycles), "against the same program row by row, each of which moves B"
        what = "elements of B moved"
        rows.append(Claim("B is broadcast", case, what, m * size * size, moved, remark, cycles, why))
    return tuple(rows)


_ONE_BY_ONE: dict[str, Any] = {"macs_per_thread_cycle": 1}
_MATH = "math takes most of the time"
_MERGES: tuple[tuple[int, int, int, dict[str, Any], str, str], ...] = (
    (16, 4, 1, {}, "four threads share a row's columns", "each of them loads the row's A, and math waits for that"),
    (16, 1, 4, _ONE_BY_ONE, "four threads share every dot product, two of 8 products each", _MATH),
    (16, 2, 2, _ONE_BY_ONE, "both", _MATH),
    (16, 1, 4, {}, "a thread makes all 8 products in a cycle as well", "and their sums are sent for nothing"),
    (16, 1, 4, {"kb_mode": "chunk"}, "8 products each", "columns of B take as long, first and last loads too"),
    (64, 4, 1, {}, "no thread was idle: as many, and A is loaded four times", "and that takes its time"),
)
"""Of 64 threads: rows of A, ka, kb, what else the machine has, what is counted, what the clock says."""


def _merging() -> tuple[Claim, ...]:
    rows = []
    for m, ka, kb, how, remark, why in _MERGES:
        a, b, config = np.ones((m, 64), np.int8), np.ones((64, 64), np.int8), MatrixUnitConfig(threads=64, **how)
        alone, merged = (matmul(a, b, config, ka=x, kb=y) for x, y in ((1, 1), (ka, kb)))
        settings = "".join(f", {key}={value}" for key, value in how.items())
        case = f"{m} x 64 x 64, 64 threads, ka{ka} kb{kb}{settings}"
        counted = f"cycles of math (mm instructions: {alone.counts.instructions} -> {merged.counts.instructions})"
        claim, math = "ka and kb fill idle threads", (alone.math_cycles, merged.math_cycles)
        rows.append(Claim(claim, case, counted, *math, remark, (alone.cycles, merged.cycles), why))
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


_KERNELS = (
    (32, "column outer, A in registers, L1 of 255 lines", "one line in 256 finds no place", "math waits for B alone"),
    (1, "column outer, A loaded before every mm, the same L1", "as many", "256 rows of A take longer than a column"),
)
"""Of the machine: k steps of A that stay, the case, what is counted, what the clock says."""


def _retained(case: str, lines: int, how: dict[str, Any], remark: str, why: str) -> Claim:
    """Two runs of the machine over 256 rows, without retention and with it."""
    a = np.ones((256, 256), np.int8)
    configs = [MatrixUnitConfig(l1_bytes=64 * lines, retention=kind, values=False) for kind in ("off", "bypass")]
    off, on = (matmul(a, a, config, transpose_b=True, **how) for config in configs)
    cycles = off.cycles, on.cycles
    return Claim("t1 retains lines", case, "L1 misses", off.counts.l1_misses, on.counts.l1_misses, remark, cycles, why)


def _retention() -> tuple[Claim, ...]:
    remark = "every line is used up while it is there, retained or not"
    rows = [_retained(f"{_SQUARE}, k outer, L1 of 8 lines", 8, {}, remark, "")]
    for block_a, case, remark, why in _KERNELS:
        kernel: dict[str, Any] = {"order": "column_outer", "block_a": block_a}
        rows.append(_retained(f"256 rows by {_SQUARE}, {case}", 255, kernel, remark, why))
    for case, how, policy, remark in _WALKS:
        lru, kept = (column_walk_misses(retention=policies, **how) for policies in (None, policy))
        rows.append(Claim("t1 retains lines", case, f"L1 misses ({policy})", lru, kept, remark))
    lru, kept, counted = column_walk_misses(64, None), forgetful_walk_misses(64), "L1 misses (bypass, another machine)"
    remark = "were the bits kept in the cached copy, half-read lines would stay for good"
    return (*rows, Claim("t1 retains lines", _SMALL, counted, lru, kept, remark))


def forgetful_walk_misses(lines: int) -> int:
    """What :func:`column_walk_misses` would be with ``bypass`` if a line's bits lived in its cached copy alone.

    This machine keeps them by the segment. In a copy they begin anew whenever the line comes in, and a selection that
    passes by leaves no mark: a line that came in half-way waits for elements that are not selected again.
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

    ``retention``: None (plain LRU), bypass or evict; ``foreign``: a line of another tensor comes in after every column;
    ``pitch``: bytes from row to row; ``outer``: k in steps of 8 is the outer loop, as for the k_outer order.
    """
    from tilewright.isa.kernels.cache_kernels import lru_touch

    chip = new_chip(MatrixUnitConfig(l1_bytes=64 * lines, l1_ways=ways, retention=retention or "off"))
    pe, page = chip.pes[0], None if pitch is None else (256, pitch)
    tensors = [("B", np.zeros((256, 256), np.int8), {"page": page}), ("others", np.zeros((256, 64), np.int8), {})]
    storage, others = chip.add_all(tensors)
    storage.map_pages()
    segment, depth = pe.segments[pe.names["B"]], 8 if outer else 256
    row = {"x": 0, "x_place": -1, "guard_place": -1, "handle": segment.handle}
    mm: dict[str, Any] = {"depth": depth, "on": np.ones(256, bool), "timing": pe.clock.line_times(1, 0)}
    for begin in range(0, 256, depth):
        at = np.stack([np.arange(256), np.full(256, begin)], axis=1)
        reach = reach_elements(segment, at, np.full(256, depth), depth, 1)
        for columns in np.arange(256).reshape(-1, 1 if foreign else 256):
            fill = Record(records.FILL, {"columns": len(columns), "steps": len(columns)})
            walk_columns(pe, segment, at, reach, 1, columns, row, mm | {"fill": fill, "step_of": columns})
            if foreign:
                lru_touch(pe.l1.cells, others.home // 64 + int(columns[0]), retention != "evict")
    return pe.counts.l1_misses

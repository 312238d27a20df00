"""numba kernels: lines that the ``mm`` of a loop touches, through the caches."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._blocks import (
    L_COUNTS,
    L_L1,
    L_L2,
    L_TRAFFIC,
    M_AWAITED,
    M_BEGINS,
    M_BYPASSES,
    M_DEPTH,
    M_DIM,
    M_FILL,
    M_IN_L2,
    M_OFFSETS_OF,
    M_OUT,
    M_PAGE_ELEMENTS,
    M_PAGES_OF,
    M_PHYS,
    M_REACH,
    M_SELECTED,
    M_SEQUENCE,
    M_SHIFT,
    M_SIZE,
    M_STARTS,
    M_WALKS,
)
from tilewright.isa._cache_kernels import BYPASSED, HIT, PINNED, relist, tables_of, touch
from tilewright.isa._cells import byte, cell, put, put_byte, put_word, word
from tilewright.kernels import inner

__all__ = ["lines_of_columns"]


@inner(inline="always")
def _add(f: Any, touches: Any, misses: Any, deep: Any) -> None:
    counts, traffic = cell(f, L_COUNTS), cell(f, L_TRAFFIC)
    put(counts, 10, cell(counts, 10) + touches)
    put(counts, 11, cell(counts, 11) + misses)
    put(counts, 12, cell(counts, 12) + deep)
    put(traffic, 4, cell(traffic, 4) + touches - misses)


@inner()
def _missed(f: Any, outcome: Any, line: Any, beyond: Any) -> Any:
    """A line that L1 had not: what else that means, and 1 if L2 had not either."""
    traffic, second = cell(f, L_TRAFFIC), cell(f, L_L2)
    if outcome == PINNED:
        put(traffic, 7, cell(traffic, 7) + 1)
    if outcome == BYPASSED:
        put(traffic, 8, cell(traffic, 8) + 1)
    return np.int64(touch(second, tables_of(second), line, beyond) != HIT) if beyond else np.int64(0)


@inner()
def _lines_of_one(f: Any, m: Any, found: Any, tables: Any) -> Any:
    """(lines, L1 misses, L2 misses) of a column that is no run, or whose lines are retained."""
    e, dim, page_elements, shift = cell(m, M_SIZE), cell(m, M_DIM), cell(m, M_PAGE_ELEMENTS), cell(m, M_SHIFT)
    pages_of, offsets_of, phys, in_l2 = cell(m, M_PAGES_OF), cell(m, M_OFFSETS_OF), cell(m, M_PHYS), cell(m, M_IN_L2)
    walks, bypass, selected, awaited = (
        cell(m, M_WALKS),
        cell(m, M_BYPASSES) == 1,
        cell(m, M_SELECTED),
        cell(m, M_AWAITED),
    )
    page, offset, first, traffic = cell(found, 2), cell(found, 3), cell(f, L_L1), cell(f, L_TRAFFIC)
    head = cell(cell(m, M_STARTS), dim) + cell(found, 4) + cell(found, 5)
    lines, misses, deep, last = np.int64(0), np.int64(0), np.int64(0), np.int64(-1)
    for u in range(cell(found, 6)):
        p, o = page + cell(pages_of, head + u), offset + cell(offsets_of, head + u)
        line, element = (cell(phys, p) + o * e) >> shift, p * page_elements + o
        if line != last:
            last = line
            lines += 1
            outcome = touch(first, tables, line, bypass)
            if outcome != HIT:
                misses += 1
                deep += _missed(f, outcome, line, not byte(in_l2, p))
        if walks:
            own = element * e >> shift
            if byte(selected, element) == 0:
                put_byte(selected, element, 1)
                put_word(awaited, own, word(awaited, own) - 1)
            which = np.int64(word(awaited, own) > 0)
            if relist(first, tables, line, which):
                at = 6 - which
                put(traffic, at, cell(traffic, at) + 1)
    return lines, misses, deep


@inner()
def lines_of_columns(f: Any, m: Any, runs: bool) -> None:
    """Lines of the columns that take part through the caches; to ``M_OUT``: lines, L1 and L2 misses of each.

    ``runs``: all of them are whole, and ``M_BEGINS`` says where.
    """
    e, shift, walks, bypass = cell(m, M_SIZE), cell(m, M_SHIFT), cell(m, M_WALKS), cell(m, M_BYPASSES) == 1
    reach, out, sequence, in_l2 = cell(m, M_REACH), cell(m, M_OUT), cell(m, M_SEQUENCE), cell(m, M_IN_L2)
    first, head, pages_of = cell(f, L_L1), cell(cell(m, M_STARTS), cell(m, M_DIM)), cell(m, M_PAGES_OF)
    begins, length = cell(m, M_BEGINS), cell(m, M_DEPTH) * e
    tables, touches, all_misses, all_deep = tables_of(first), np.int64(0), np.int64(0), np.int64(0)
    for s in range(cell(cell(m, M_FILL), 2)):
        j = cell(sequence, s)
        lines, misses, deep, found = np.int64(0), np.int64(0), np.int64(0), reach + 56 * j
        if runs:
            begin, page = cell(begins, 2 * j), cell(begins, 2 * j + 1)
        else:
            begin, length = cell(found, 0), cell(found, 6) * e
            page = cell(found, 2) + cell(pages_of, head + cell(found, 4) + cell(found, 5)) if begin >= 0 else begin
        if begin >= 0 and not walks:
            for line in range(begin >> shift, ((begin + length - 1) >> shift) + 1):
                lines += 1
                outcome = touch(first, tables, line, bypass)
                if outcome != HIT:
                    misses += 1
                    deep += _missed(f, outcome, line, not byte(in_l2, page))
        elif length > 0:
            lines, misses, deep = _lines_of_one(f, m, found, tables)
        put(out, 3 * s, lines)
        put(out, 3 * s + 1, misses)
        put(out, 3 * s + 2, deep)
        touches += lines
        all_misses += misses
        all_deep += deep
    _add(f, touches, all_misses, all_deep)

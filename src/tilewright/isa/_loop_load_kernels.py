"""numba kernels: the ``ld`` of a loop that one call runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._blocks import (
    L_COUNTS,
    L_FILE,
    L_LIMIT,
    L_PER_THREAD,
    L_PITCH,
    L_PREDICATES,
    L_THREADS,
    L_TRAFFIC,
    L_TRANSFER,
    T_AT,
    T_DIM,
    T_DIMS,
    T_ELEMENTS,
    T_LINES,
    T_OFFSETS_OF,
    T_PAGES_OF,
    T_PHYS,
    T_REGISTERS,
    T_SHIFT,
    T_SIZE,
    T_SIZES,
    T_STARTS,
    T_STORE,
    T_STRIDE,
    T_WANTED,
)
from tilewright.isa._cells import byte, cell, copy, put, word
from tilewright.isa._transfer_kernels import move
from tilewright.kernels import inner

__all__ = ["load"]


@inner()
def _load_runs(f: Any, row: Any, t: Any) -> Any:
    """``ld`` of two words a thread where they lie in one run of two dims: (elements, lines, threads left to others).

    ``T_WANTED`` of the threads that are done becomes 0.
    """
    dim, e, shift, limit = cell(t, T_DIM), cell(t, T_SIZE), cell(t, T_SHIFT), cell(f, L_LIMIT)
    at, wanted, phys, store = cell(t, T_AT), cell(t, T_WANTED), cell(t, T_PHYS), cell(t, T_STORE)
    pages_of, offsets_of = cell(t, T_PAGES_OF), cell(t, T_OFFSETS_OF)
    other = 1 - dim
    head_of, row_of = cell(cell(t, T_STARTS), dim), cell(cell(t, T_STARTS), other)
    length, rows = cell(cell(t, T_SIZES), dim) - limit, cell(cell(t, T_SIZES), other)
    guard, negated, first, more = cell(row, 7), cell(row, 8), cell(row, 4), cell(row, 5)
    more_x, more_y = (more, np.int64(0)) if dim == 0 else (np.int64(0), more)
    own, pitch, flags, into = cell(f, L_FILE), cell(f, L_PITCH), cell(f, L_PREDICATES), cell(t, T_REGISTERS)
    per_thread, done, lines, left = cell(f, L_PER_THREAD), np.int64(0), np.int64(0), np.int64(0)
    for thread in range(cell(f, L_THREADS)):
        put(wanted, thread, 0)
        if guard < 0 or byte(flags, guard) != negated:
            x, y, whole = word(own, first + dim) + more_x, word(own, first + other) + more_y, False
            if x >= 0 and x <= length and y >= 0 and y < rows:
                head, page, offset = head_of + x, cell(pages_of, row_of + y), cell(offsets_of, row_of + y)
                tail, place, beside = head + limit - 1, cell(offsets_of, head), cell(pages_of, head)
                begin = cell(phys, page + beside) + (offset + place) * e
                whole = cell(pages_of, tail) == beside and cell(offsets_of, tail) - place == limit - 1
                if whole:
                    copy(into, store + begin)
                    lines += ((begin + 7) >> shift) - (begin >> shift) + 1
                    done += limit
            if not whole and y >= 0 and y < rows:
                put(at, 2 * thread + dim, x)
                put(at, 2 * thread + other, y)
                put(wanted, thread, limit)
                left += 1
        own += pitch
        into += pitch
        flags += per_thread
    return done, lines, left


@inner()
def load(f: Any, row: Any) -> Any:
    """``ld``; the lines it asked for."""
    t, counts, traffic = cell(f, L_TRANSFER), cell(f, L_COUNTS), cell(f, L_TRAFFIC)
    limit, dims, e, threads = cell(f, L_LIMIT), cell(t, T_DIMS), cell(t, T_SIZE), cell(f, L_THREADS)
    total, lines, left = np.int64(0), np.int64(0), np.int64(1)
    if dims == 2 and cell(t, T_STRIDE) == 1 and limit * e == 8:
        total, lines, left = _load_runs(f, row, t)
    else:
        at, wanted, guard, negated, first = cell(t, T_AT), cell(t, T_WANTED), cell(row, 7), cell(row, 8), cell(row, 4)
        for thread in range(threads):
            own, off = cell(f, L_FILE) + thread * cell(f, L_PITCH), False
            for d in range(dims):
                put(at, thread * dims + d, word(own, first + d) + (cell(row, 5) if d == 0 else 0))
            if guard >= 0:
                off = byte(cell(f, L_PREDICATES), thread * cell(f, L_PER_THREAD) + guard) == negated
            put(wanted, thread, 0 if off else limit)
    if left > 0:
        move(t)
        total += cell(t, T_ELEMENTS)
        lines += cell(t, T_LINES)
    put(counts, 6, cell(counts, 6) + total * e)
    put(traffic, 2, cell(traffic, 2) + lines)
    put(traffic, 3, cell(traffic, 3) + total * e)
    put(traffic, 1, cell(traffic, 1) - (-total * e // 4))
    return lines

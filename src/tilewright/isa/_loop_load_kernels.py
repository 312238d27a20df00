"""numba kernels: the ``ld`` of a loop that one call runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._transfer_kernels import transfer
from tilewright.kernels import njit

__all__ = ["load"]


@njit(cache=True, nogil=True)
def _load_runs(row: Any, file: Any, predicates: Any, store: Any, ld: Any) -> Any:
    """``ld`` of two words a thread where they lie in one run of two dims: (elements, lines, threads left to others).

    ``wanted`` of the threads that are done becomes 0.
    """
    (dim, _, e, shift, into), limit, at, wanted, tables = ld
    sizes, starts, pages_of, offsets_of, phys, _ = tables
    registers, words, other = file[0], store[0], 1 - dim
    head_of, row_of, length, rows = starts[dim], starts[other], sizes[dim] - limit, sizes[other]
    guarded, guard, negated = row[7] >= 0, np.uint64(max(0, row[7])), row[8]
    along, across, to = np.uint64(row[4] + dim), np.uint64(row[4] + other), np.uint64(into)
    more_x, more_y = (row[5], 0) if dim == 0 else (0, row[5])
    done, lines, left = 0, 0, 0
    for t in range(np.uint64(at.shape[0])):
        wanted[t] = 0
        if guarded and predicates[t, guard] == negated:
            continue
        x, y = np.int64(registers[t, along]) + more_x, np.int64(registers[t, across]) + more_y
        if y < 0 or y >= rows:
            continue
        if x >= 0 and x <= length:
            head, own = np.uint64(head_of + x), np.uint64(row_of + y)
            tail = np.uint64(head_of + x + limit - 1)
            begin = phys[np.uint64(pages_of[own] + pages_of[head])] + (offsets_of[own] + offsets_of[head]) * e
            if pages_of[tail] == pages_of[head] and offsets_of[tail] - offsets_of[head] == limit - 1 and begin & 3 == 0:
                word = np.uint64(begin >> 2)
                registers[t, to] = words[word]
                registers[t, to + np.uint64(1)] = words[word + np.uint64(1)]
                lines += ((begin + 7) >> shift) - (begin >> shift) + 1
                done += limit
                continue
        at[t, np.uint64(dim)], at[t, np.uint64(other)], wanted[t] = x, y, limit
        left += 1
    return done, lines, left


@njit(cache=True, nogil=True)
def load(row: Any, file: Any, predicates: Any, store: Any, ld: Any, counts: Any, traffic: Any) -> int:
    """``ld``; the lines it asked for."""
    numbers, limit, at, wanted, tables = ld
    registers, first, dims = file[0], np.uint64(row[4]), np.uint64(at.shape[1])
    total, lines, left = 0, 0, 1
    if dims == 2 and numbers[1] == 1 and limit * numbers[2] == 8:
        total, lines, left = _load_runs(row, file, predicates, store, ld)
    else:
        for t in range(np.uint64(at.shape[0])):
            for d in range(dims):
                at[t, d] = registers[t, first + d]
            at[t, np.uint64(0)] += row[5]
            off = row[7] >= 0 and predicates[t, row[7]] == row[8]
            wanted[t] = 0 if off else limit
    if left > 0:
        others = transfer(False, at, wanted, tables, numbers, file, store)
        total += others[0]
        lines += others[1]
    counts[6] += total * numbers[2]
    traffic[2] += lines
    traffic[3] += total * numbers[2]
    traffic[1] += -(-total * numbers[2] // 4)
    return int(lines)

"""numba kernels of a profile: which line of a tensor each touch, miss and per-thread access went to.

Imported on first use. ``seen``: int64[lines of the tensor's pages, kinds of :data:`LINE_ACCESSES`].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.memory_kernels import touch_columns
from tilewright.kernels import njit


@njit(cache=True, nogil=True)
def touch_columns_seen(
    reach: Any, sequence: Any, pages: Any, rules: Any, retention: Any, caches: Any, out: Any, totals: Any, seen: Any
) -> None:
    """:func:`touch_columns`, one line at a time, each of them noted in ``seen`` (touches, L1 misses, L2 misses)."""
    ids, places = reach
    shift, width = pages[2], ids.shape[1]
    first, one = np.zeros(1, np.int64), np.zeros((1, 3), np.int64)
    for s in range(len(sequence)):
        j, u = sequence[s], 0
        out[s, 0], out[s, 1], out[s, 2] = 0, 0, 0
        while u < width:
            if ids[j, u] < 0:
                u += 1
                continue
            line, end = places[j, u] >> shift, u + 1
            while end < width and (ids[j, end] < 0 or places[j, end] >> shift == line):
                end += 1
            part = ids[j : j + 1, u:end], places[j : j + 1, u:end]
            touch_columns(part, first, pages, rules, retention, caches, one, totals)
            for kind in range(3):
                out[s, kind] += one[0, kind]
                seen[ids[j, u] >> shift, kind] += one[0, kind]
            u = end


@njit(cache=True, nogil=True)
def see_lines(ids: Any, places: Any, per_line: int, kind: int, seen: Any) -> None:
    """The lines that per-thread accesses ask for, counted as :func:`count_lines` counts them."""
    for j in range(ids.shape[0]):
        last = -1
        for u in range(ids.shape[1]):
            if ids[j, u] >= 0:
                line = places[j, u] // per_line
                if line != last:
                    seen[ids[j, u] // per_line, kind] += 1
                last = line

"""numba kernels: what one ``mm``, or many one after another, add to the product registers. Imported on first use.

No fast-math: every multiply and every add rounds once, in the order written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit


@njit(cache=True, nogil=True)
def add_rounds(sums: Any, a: Any, b: Any, presents: Any, chunk: int, kb: int) -> None:
    """sums[r, i] += the dots of round after round, in the 'chunk' order; ``a``: [rows, k], ``b``: [k, columns].

    Round s has the elements u < presents[s] of its kb * chunk.
    """
    rows, n = sums.shape
    dot, part = np.empty(n, np.float32), np.empty(n, np.float32)
    for r in range(rows):
        total = sums[r]
        for s in range(len(presents)):
            begin, present = s * kb * chunk, presents[s]
            x = a[r, begin : begin + present]
            y = b[begin : begin + present]
            if present <= chunk and present == 2:
                x0, x1, y0, y1 = x[0], x[1], y[0], y[1]
                for i in range(n):
                    total[i] += x0 * y0[i] + x1 * y1[i]
                continue
            if present <= chunk and present == 4:
                x0, x1, x2, x3, y0, y1, y2, y3 = x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]
                for i in range(n):
                    total[i] += x0 * y0[i] + x1 * y1[i] + x2 * y2[i] + x3 * y3[i]
                continue
            for qb in range((present + chunk - 1) // chunk):
                first, last = qb * chunk, min(present, (qb + 1) * chunk)
                d = dot if qb == 0 else part
                for i in range(n):
                    d[i] = x[first] * y[first, i]
                for u in range(first + 1, last):
                    for i in range(n):
                        d[i] += x[u] * y[u, i]
                if qb:
                    for i in range(n):
                        dot[i] += part[i]
            for i in range(n):
                total[i] += dot[i]


@njit(cache=True, nogil=True)
def add_words(sums: Any, a: Any, b: Any) -> None:
    """sums[r, i] += a[r, k] * b[k, i], modulo 2^32."""
    for r in range(sums.shape[0]):
        total = sums[r]
        for k in range(a.shape[1]):
            x, y = a[r, k], b[k]
            for i in range(len(total)):
                total[i] = np.int32(total[i] + np.int32(x * y[i]))

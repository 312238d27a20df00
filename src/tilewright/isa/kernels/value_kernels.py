"""numba kernels: what one ``mm``, or many one after another, add to the product registers. Imported on first use.

No fast-math: every multiply and every add rounds once, in the order written. Integers are added modulo 2^32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.pointers import sixteen_dots
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
            # The usual depths of floats, a tenth faster so than by the loop below.
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


@njit(cache=True, nogil=True)
def add_products(a: Any, b: Any, depth: int, part: Any, words: Any, pitch: int, place: Any) -> None:
    """Rows ``part`` (first, end) of a @ b.T to registers; ``place``: a's first row's thread, threads a row, register.

    ``a``, ``b``: rows of bytes with a sign, of which ``depth`` count, a multiple of 64. ``words``: all registers, flat,
    ``pitch`` a thread. Sixteen sums at a time stay in the processor's own registers.
    """
    (low, high), (thread, step, first) = part, place
    n, sums = len(b), np.empty(16, np.int32)
    for i in range(low, high, 4):
        rows = i, min(i + 1, high - 1), min(i + 2, high - 1), min(i + 3, high - 1)
        for j in range(0, n, 4):
            columns = j, min(j + 1, n - 1), min(j + 2, n - 1), min(j + 3, n - 1)
            sixteen_dots(a, b, depth, rows, columns, sums)
            at, down = (thread + i * step) * pitch + first + j, step * pitch
            if i + 4 <= high and j + 4 <= n:
                for r in range(4):
                    for c in range(4):
                        words[at + c] = np.int32(words[at + c] + sums[4 * r + c])
                    at += down
            else:
                for r in range(min(4, high - i)):
                    for c in range(min(4, n - j)):
                        words[at + c] = np.int32(words[at + c] + sums[4 * r + c])
                    at += down

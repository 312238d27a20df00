"""numba kernels: products of 8-bit integers, many K rounds of them at once, modulo 2^32.

Rows come with k behind k, and products are of 16 bits, so that the inner loop is the pair-wise multiply-and-add that
processors have.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit


@njit(cache=True, nogil=True)
def turn_words(words: Any, out: Any) -> None:
    """``words`` (int64[rounds, rows, words of a row]) row by row: out[row, rounds * words], zeros behind them."""
    rounds, rows, several = words.shape
    for low in range(0, rows, 8):
        for q in range(rounds):
            for r in range(low, min(low + 8, rows)):
                for w in range(several):
                    out[r, q * several + w] = words[q, r, w]
    out[:, rounds * several :] = 0


@njit(cache=True, nogil=True)
def add_products(a: Any, b: Any, part: Any, words: Any, pitch: int, place: Any) -> None:
    """Rows ``part`` (first, end) of a @ b.T to registers; ``place``: a's first row's thread, threads a row, register.

    ``a``, ``b``: rows of numbers of 8 or 16 bits. ``words``: all registers, flat, ``pitch`` a thread. Sixteen sums at
    a time stay in the processor's own registers.
    """
    (low, high), (thread, step, first) = part, place
    n, depth, none = len(b), np.uint64(a.shape[1]), np.int32(0)
    for i in range(low, high, 4):
        a0, a1, a2, a3 = a[i], a[min(i + 1, high - 1)], a[min(i + 2, high - 1)], a[min(i + 3, high - 1)]
        for j in range(0, n, 4):
            b0, b1, b2, b3 = b[j], b[min(j + 1, n - 1)], b[min(j + 2, n - 1)], b[min(j + 3, n - 1)]
            c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = none
            c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = none
            for k in range(depth):
                x0, x1, x2, x3 = np.int32(a0[k]), np.int32(a1[k]), np.int32(a2[k]), np.int32(a3[k])
                y0, y1, y2, y3 = np.int32(b0[k]), np.int32(b1[k]), np.int32(b2[k]), np.int32(b3[k])
                c00 = np.int32(c00 + np.int32(x0 * y0))
                c01 = np.int32(c01 + np.int32(x0 * y1))
                c02 = np.int32(c02 + np.int32(x0 * y2))
                c03 = np.int32(c03 + np.int32(x0 * y3))
                c10 = np.int32(c10 + np.int32(x1 * y0))
                c11 = np.int32(c11 + np.int32(x1 * y1))
                c12 = np.int32(c12 + np.int32(x1 * y2))
                c13 = np.int32(c13 + np.int32(x1 * y3))
                c20 = np.int32(c20 + np.int32(x2 * y0))
                c21 = np.int32(c21 + np.int32(x2 * y1))
                c22 = np.int32(c22 + np.int32(x2 * y2))
                c23 = np.int32(c23 + np.int32(x2 * y3))
                c30 = np.int32(c30 + np.int32(x3 * y0))
                c31 = np.int32(c31 + np.int32(x3 * y1))
                c32 = np.int32(c32 + np.int32(x3 * y2))
                c33 = np.int32(c33 + np.int32(x3 * y3))
            sums = (
                (c00, c01, c02, c03),
                (c10, c11, c12, c13),
                (c20, c21, c22, c23),
                (c30, c31, c32, c33),
            )
            for r in range(4):
                if i + r < high:
                    at = (thread + (i + r) * step) * pitch + first + j
                    row = sums[r]
                    for c in range(4):
                        if j + c < n:
                            words[at + c] = np.int32(words[at + c] + row[c])

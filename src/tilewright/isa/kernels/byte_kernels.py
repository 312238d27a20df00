"""numba kernels: products of 8-bit integers, many K rounds of them at once, modulo 2^32.

Rows come with k behind k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.pointers import sixteen_dots
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

    ``a``, ``b``: rows of numbers of 8 or 16 bits, a multiple of 32 each; those of 16 are no larger than bytes are.
    ``words``: all registers, flat, ``pitch`` a thread. Sixteen sums at a time stay in the processor's own registers.
    """
    (low, high), (thread, step, first) = part, place
    n, sums = len(b), np.empty(16, np.int32)
    for i in range(low, high, 4):
        rows = i, min(i + 1, high - 1), min(i + 2, high - 1), min(i + 3, high - 1)
        for j in range(0, n, 4):
            sixteen_dots(a, b, rows, (j, min(j + 1, n - 1), min(j + 2, n - 1), min(j + 3, n - 1)), sums)
            for r in range(min(4, high - i)):
                at = (thread + (i + r) * step) * pitch + first + j
                for c in range(min(4, n - j)):
                    words[at + c] = np.int32(words[at + c] + sums[4 * r + c])

"""numba kernels: products of 8-bit integers, many K rounds of them at once, modulo 2^32.

Rows come with k behind k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.pointers import sixteen_dots
from tilewright.kernels import njit


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

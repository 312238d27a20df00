"""Where the tree of hash buckets must be cut for every run of buckets to keep a limit.

A node whose two halves together exceed the limit gets its bit, and the larger half's count goes up; else the counts
add.
"""

from __future__ import annotations

import numpy as np

from tilewright.embed._types import Index, Longs
from tilewright.kernels import njit

__all__ = ["split_bits"]


@njit(cache=True, nogil=True)
def split_bits(counts: Longs, limit: Index, work: Longs) -> np.uint64:
    """Bits of the nodes that must be cut for ``counts`` (a power of two of them) to keep ``limit``; uses ``work``."""
    n = counts.size
    for i in range(n):
        work[i] = counts[i]
    bits = np.uint64(0)
    node = 0
    while n > 1:
        n //= 2
        for i in range(n):
            left, right = work[2 * i], work[2 * i + 1]
            if left + right > limit:
                bits |= np.uint64(1) << np.uint64(node)
                work[i] = max(left, right)
            else:
                work[i] = left + right
            node += 1
    return bits

"""One pass over the counts of kernel 1 for all that limits, buffers and statistics need: there may be millions."""

from __future__ import annotations

import numpy as np

from tilewright.embed._types import Index, Ints, Longs
from tilewright.kernels import njit

__all__ = ["add_up"]


@njit(cache=True, nogil=True)
def add_up(counts: Ints, units: Longs, most: Longs, required: Longs) -> None:
    """From ``counts`` int32[units, 2, sources, S] (entries, distinct ids) and the first unit of every stack and the
    end ``units`` int64[stacks + 1]: ``most`` int64[stacks, 2, S], of all sources, and ``required`` int64[stacks,
    sources], slots with every partition rounded up to 8.
    """
    shards = counts.shape[3]
    whole = np.empty(shards, np.int32)
    for k in range(units.size - 1):
        most[k] = 0
        for kind in range(2):
            peak = most[k, kind]
            for l in range(counts.shape[2]):
                if units[k + 1] - units[k] == 1:
                    row = counts[units[k], kind, l]
                else:
                    row = whole
                    row[:] = 0
                    for u in range(units[k], units[k + 1]):
                        row += counts[u, kind, l]
                slots: Index = 0
                for shard in range(shards):
                    n = np.int64(row[shard])
                    peak[shard] = max(peak[shard], n)
                    slots += (n + 7) & ~7
                if kind == 0:
                    required[k, l] = slots

"""What other rotations of a stack's tables would do: their counts are turned and added, no id is counted again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.embed._stacking import Stack, Stacking
from tilewright.embed._types import Ints, Longs

__all__ = ["Rotation", "best_rotation", "turned"]

_STEPS = 64
_ENTRIES = 1 << 22
"""Counts among which the best rotation is looked for; the chosen one is counted on everything."""


class Rotation:
    """Fullest partitions and loads of shards of one stack, table k turned by k * ``step`` shards."""

    def __init__(self, each: Stack, separate: Stacking, step: int) -> None:
        self.step, self.change = step, f"rotation by {step}" if step else "no rotation"
        self.where = [list(separate.stacks).index(table.name) for table in each.tables]
        self.most = np.zeros(2, np.int64)
        self.per_shard = np.zeros(separate.topology.sparsecores, np.int64)

    def add(self, counts: Longs) -> None:
        """Of one batch: int64[tables, 2, sources, S], every table unturned."""
        whole = turned([counts[k] for k in self.where], self.step)
        self.most = np.maximum(self.most, whole.max(axis=(1, 2)))
        self.per_shard += whole[0].sum(axis=0)


def turned(tables: Iterable[Longs | Ints], step: int) -> Longs:
    """The sum of [2, sources, S] counts, table k turned by k * step shards."""
    total = None
    for k, counts in enumerate(tables):
        at = k * step % counts.shape[-1]
        if total is None:
            total = counts.astype(np.int64)
            continue
        total[..., at:] += counts[..., : counts.shape[-1] - at]
        if at:
            total[..., :at] += counts[..., counts.shape[-1] - at :]
    assert total is not None
    return total


def best_rotation(tables: Sequence[Longs], now: int) -> int:
    """The step whose fullest partition is smallest on some sources of one batch; none is better: ``now``."""
    sources, shards = tables[0].shape[1:]
    most = max(1, _ENTRIES // (2 * shards * len(tables)))
    few = [counts[:, :: -(-sources // most)].astype(np.int32) for counts in tables]
    tries = max(4, min(_STEPS, (_ENTRIES * 32) // sum(counts.size for counts in few)))
    steps = [now, *(step for step in range(1, shards) if step != now)][:tries]

    def peaks(step: int) -> tuple[int, int]:
        whole = turned(few, step)
        return int(whole[0].max()), int(whole[0].sum(axis=0).max())

    return min(steps, key=peaks)

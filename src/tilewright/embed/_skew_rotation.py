"""What other rotations of a stack's tables would do: their counts are turned and added, no id is counted again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.embed._types import Longs

__all__ = ["Rotation", "add_turned", "best_rotation", "some_sources"]

_STEPS = 64
_ENTRIES = 1 << 22
"""Counts among which the best rotation is looked for; the chosen one is counted on everything."""


class Rotation:
    """Fullest partitions and loads of shards of one stack, table k turned by k * ``step`` shards."""

    def __init__(self, shards: int, step: int) -> None:
        self.step, self.change = step, f"rotation by {step}" if step else "no rotation"
        self.most, self.per_shard = np.zeros(2, np.int64), np.zeros(shards, np.int64)
        self._batch = np.zeros((2, shards, shards), np.int64)

    def add(self, k: int, counts: Longs) -> None:
        """Table k of the batch at hand, unturned: int64[2, sources, S]."""
        add_turned(self._batch, counts, k * self.step)

    def finish(self) -> None:
        """The batch is whole."""
        np.maximum(self.most, self._batch.max(axis=(1, 2)), out=self.most)
        self.per_shard += self._batch[0].sum(axis=0)
        self._batch[:] = 0


def add_turned(total: Longs, counts: Longs, by: int) -> None:
    """Add counts [.., S] to ``total``, what shard s has at shard (s + by) % S.

    >>> total = np.zeros(4, np.int64)
    >>> add_turned(total, np.array([5, 1, 0, 2]), 1)
    >>> total.tolist()
    [2, 5, 1, 0]
    """
    shards = counts.shape[-1]
    at = by % shards
    total[..., at:] += counts[..., : shards - at]
    if at:
        total[..., :at] += counts[..., shards - at :]


def some_sources(counts: Longs, tables: int) -> Longs:
    """Entries of so many sources that all tables' counts stay few: [sources, S]."""
    sources, shards = counts.shape[1:]
    most = max(1, _ENTRIES // (shards * tables))
    return counts[0, :: -(-sources // most)].copy()


def best_rotation(tables: Sequence[Longs], now: int) -> int:
    """The step whose fullest partition is smallest on some sources of one batch; none is better: ``now``."""
    sources, shards = tables[0].shape
    tries = max(4, min(_STEPS, (_ENTRIES * 32) // (sources * shards * len(tables))))
    steps = [now, *(step for step in range(1, shards) if step != now)][:tries]

    def peaks(step: int) -> tuple[int, int]:
        whole = np.zeros((sources, shards), np.int64)
        for k, counts in enumerate(tables):
            add_turned(whole, counts, k * step)
        return int(whole.max()), int(whole.sum(axis=0).max())

    return min(steps, key=peaks)

"""What logged batches ask of the partitions, gathered in one pass and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.overflow import limit_table
from tilewright.embed.host.tally import tally
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits

REPLAYED = 8
"""Batches kept to be run again under candidate limits, at most; large ones are fewer, but two."""
_IDS, _PARTITIONS = 1 << 23, 1 << 22
"""About how many ids and partitions are run again."""


class Observed:
    """Counts over all batches seen so far.

    =====================  =======================================================================================
    ``batches``            how many
    ``sizes``              the first batch's size of every feature
    ``histograms``         of every stack, for ids and for distinct ids: how many partitions hold n of them
    ``peaks``              per batch int64[stacks, 2]: the fullest partition
    ``per_shard``          of every stack int64[S]: entries each shard receives
    ``sample``             copies of up to ``keep`` batches, every one with the same chance
    =====================  =======================================================================================
    """

    def __init__(self, stacking: Stacking, bad_ids: str = "error") -> None:
        self.stacking, self.bad_ids = stacking, bad_ids
        self.batches = 0
        self.sizes: dict[str, int] = {}
        self.histograms = {name: (np.zeros(8, np.int64), np.zeros(8, np.int64)) for name in stacking.stacks}
        self.peaks: list[Longs] = []
        self.per_shard = {name: np.zeros(stacking.topology.sparsecores, np.int64) for name in stacking.stacks}
        self.sample: list[Mapping[str, Any]] = []
        self.keep = REPLAYED
        self._draw = np.random.Generator(np.random.PCG64(0))

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count one more batch."""
        counted = tally(batch, self.stacking, self.bad_ids)
        counts = counted.per_stack
        if not self.sizes:
            self.sizes = counted.sizes
            room = min(_IDS // max(1, int(counts[:, 0].sum())), _PARTITIONS // counts[:, 0].size)
            self.keep = max(2, min(REPLAYED, room))
        for name, (ids, unique) in zip(self.stacking.stacks, counts):
            of_ids, of_unique = self.histograms[name]
            self.histograms[name] = added(of_ids, ids), added(of_unique, unique)
            self.per_shard[name] += ids.sum(axis=0)
        self.peaks.append(counts.max(axis=(2, 3)))
        self.batches += 1
        if len(self.sample) < self.keep:
            self.sample.append(deepcopy(dict(batch)))
        elif (at := int(self._draw.integers(self.batches))) < self.keep:
            self.sample[at] = deepcopy(dict(batch))

    def limits(self, quantile: float) -> dict[str, Limits]:
        """Per stack the smallest limits that at least the share ``quantile`` of all partitions keep (1.0: all)."""
        return {
            name: Limits.holding(quantile_of(ids, quantile), quantile_of(unique, quantile))
            for name, (ids, unique) in self.histograms.items()
        }

    def batches_over(self, limits: Mapping[str, Limits]) -> float:
        """The share of batches in which some partition of some stack exceeds ``limits``."""
        allowed = limit_table(limits, self.stacking)
        return float((np.array(self.peaks) > allowed).any(axis=(1, 2)).mean())

    def partitions_over(self, name: str, limits: Limits) -> float:
        """The share of a stack's partitions that exceed a limit: the larger of the two kinds' shares."""
        bounds = limits.max_ids_per_partition, limits.max_unique_ids_per_partition
        return max(float(h[bound + 1 :].sum() / h.sum()) for h, bound in zip(self.histograms[name], bounds))

    def means(self, name: str) -> tuple[float, float]:
        """Entries and distinct ids of a stack's average partition."""
        ids, unique = self.histograms[name]
        return _mean(ids), _mean(unique)


def imbalance(per_shard: Longs) -> float:
    """The fullest shard over the average one; 1.0 where all are empty."""
    return float(per_shard.max() / per_shard.mean()) if per_shard.any() else 1.0


def _mean(histogram: Longs) -> float:
    return float((histogram * np.arange(len(histogram))).sum() / histogram.sum())


def added(histogram: Longs, values: Longs) -> Longs:
    """The histogram with ``values`` counted in, longer if it must be."""
    more = np.bincount(values.reshape(-1), minlength=len(histogram))
    more[: len(histogram)] += histogram
    return more


def quantile_of(histogram: Longs, quantile: float) -> int:
    """The smallest n such that at least ``quantile`` of the partitions hold n or fewer."""
    rank = max(1, math.ceil(quantile * int(histogram.sum()) - 1e-9))
    return int(np.searchsorted(np.cumsum(histogram), rank))

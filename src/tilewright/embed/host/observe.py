"""What logged batches ask of the partitions, gathered in one pass and in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilewright.embed.host.batch import minibatch_starts
from tilewright.embed.host.overflow import Overflow, limit_table
from tilewright.embed.host.preprocess import check_choices, ragged_inputs, source_slices
from tilewright.embed.host.tally import BAD_IDS, Tally, tally
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits
from tilewright.threads import thread_count

Longs: TypeAlias = NDArray[np.int64]
REPLAYED = 8
"""Batches kept to be run again under candidate limits, at most; large ones are fewer, but two."""
_IDS, _PARTITIONS = 1 << 23, 1 << 22
"""About how many ids and partitions are run again."""


def batch_sizes(batch: Mapping[str, Any], stacking: Stacking) -> dict[str, int]:
    """Every feature's batch, checked as ``preprocess`` checks it."""
    inputs = ragged_inputs(batch, stacking, source_slices(stacking, None, False))
    return {name: ragged.batch_size for name, ragged in inputs.items()}


def count_batch(batch: Mapping[str, Any], stacking: Stacking, bad_ids: str) -> tuple[Tally, Longs, dict[str, int]]:
    """A batch merged and counted, without writing buffers: int64[stacks, 2, sources, S], and the features' batches."""
    check_choices(bad_ids=(bad_ids, BAD_IDS))
    slices = source_slices(stacking, None, False)
    inputs = ragged_inputs(batch, stacking, slices)
    sizes = {name: ragged.batch_size for name, ragged in inputs.items()}
    offsets = {name: at for stack in stacking.groups for name, at in stack.sample_offsets(sizes).items()}
    made = tally(stacking, inputs, offsets, slices, bad_ids, thread_count())
    return made, made.per_stack(), sizes


def splits(stacking: Stacking, made: Tally, limits: Longs) -> int:
    """Into how many mini-batches a counted batch is cut (a bucket that alone is too full stays whole)."""
    over = Overflow(stacking, made, limits, 0)
    return len(minibatch_starts(over.split_bits(True, thread_count()))) if over.over.any() else 1


class Observed:
    """Counts over all batches seen so far.

    =====================  =======================================================================================
    ``batches``            how many
    ``sizes``              the first batch's size of every feature
    ``histograms``         per stack and kind (ids, distinct ids): how many partitions hold n of them
    ``peaks``              per batch int64[stacks, 2]: the fullest partition
    ``per_shard``          int64[stacks, S]: entries each shard receives
    ``sample``             copies of up to ``keep`` batches, every one with the same chance
    =====================  =======================================================================================
    """

    def __init__(self, stacking: Stacking, bad_ids: str = "error") -> None:
        stacks, shards = len(stacking.groups), stacking.topology.sparsecores
        self.stacking, self.bad_ids = stacking, bad_ids
        self.batches = 0
        self.sizes: dict[str, int] = {}
        self.histograms = [[np.zeros(8, np.int64) for _ in range(2)] for _ in range(stacks)]
        self.peaks: list[Longs] = []
        self.per_shard = np.zeros((stacks, shards), np.int64)
        self.sample: list[Mapping[str, Any]] = []
        self.keep = REPLAYED
        self._draw = np.random.Generator(np.random.PCG64(0))

    def add(self, batch: Mapping[str, Any]) -> None:
        """Count one more batch."""
        _, counts, sizes = count_batch(batch, self.stacking, self.bad_ids)
        if not self.sizes:
            self.sizes = sizes
            room = min(_IDS // max(1, int(counts[:, 0].sum())), _PARTITIONS // counts[:, 0].size)
            self.keep = max(2, min(REPLAYED, room))
        for k, stack in enumerate(counts):
            for kind in range(2):
                self.histograms[k][kind] = _added(self.histograms[k][kind], stack[kind])
        self.peaks.append(counts.max(axis=(2, 3)))
        self.per_shard += counts[:, 0].sum(axis=1)
        self.batches += 1
        if len(self.sample) < self.keep:
            self.sample.append(deepcopy(dict(batch)))
        elif (at := int(self._draw.integers(self.batches))) < self.keep:
            self.sample[at] = deepcopy(dict(batch))

    def limits(self, quantile: float) -> dict[str, Limits]:
        """Per stack the smallest limits that at least the share ``quantile`` of all partitions keep (1.0: all)."""
        found = {}
        for name, histograms in zip(self.stacking.stacks, self.histograms):
            ids, unique = (max(1, _quantile(h, quantile)) for h in histograms)
            found[name] = Limits(ids, min(ids, unique))
        return found

    def batches_over(self, limits: Mapping[str, Limits]) -> float:
        """The share of batches in which some partition of some stack exceeds ``limits``."""
        allowed = limit_table(limits, self.stacking)
        return float((np.array(self.peaks) > allowed).any(axis=(1, 2)).mean())

    def partitions_over(self, name: str, limits: Limits) -> float:
        """The share of a stack's partitions that exceed a limit: the larger of the two kinds' shares."""
        histograms = self.histograms[list(self.stacking.stacks).index(name)]
        bounds = limits.max_ids_per_partition, limits.max_unique_ids_per_partition
        return max(float(h[bound + 1 :].sum() / h.sum()) for h, bound in zip(histograms, bounds))

    def mean_ids(self, name: str) -> float:
        """Entries of a stack's average partition."""
        return self._mean(name, 0)

    def mean_unique(self, name: str) -> float:
        """Distinct ids of a stack's average partition."""
        return self._mean(name, 1)

    def _mean(self, name: str, kind: int) -> float:
        histogram = self.histograms[list(self.stacking.stacks).index(name)][kind]
        return float((histogram * np.arange(len(histogram))).sum() / histogram.sum())


def _added(histogram: Longs, values: Longs) -> Longs:
    """The histogram with ``values`` counted in, longer if it must be."""
    more = np.bincount(values.reshape(-1), minlength=len(histogram))
    more[: len(histogram)] += histogram
    return more


def _quantile(histogram: Longs, quantile: float) -> int:
    """The smallest n such that at least ``quantile`` of the partitions hold n or fewer."""
    rank = max(1, math.ceil(quantile * int(histogram.sum()) - 1e-9))
    return int(np.searchsorted(np.cumsum(histogram), rank))

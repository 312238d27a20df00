"""Preprocessed batches as counters: what a run was fed, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from tilewright.embed._diagnose_counters import Counters, StackCounters, TableCounters
from tilewright.embed._host_batch import HostBatch
from tilewright.embed._tables import Limits
from tilewright.embed._types import Longs
from tilewright.errors import UsageError

__all__ = ["batch_counters"]


def batch_counters(
    batches: Iterable[HostBatch],
    limits: Mapping[str, Limits] | None = None,
    target: str = "",
) -> Counters:
    """Counters of the batches a run was fed, read once and not kept; ``limits`` are those it was compiled with.

    Every new shape of the buffers is counted as a program compiled: that is what jit does.

    Raises :class:`UsageError` for no batches, or batches of several models.

    >>> from tilewright.embed import Feature, Table, Topology, preprocess, stack
    >>> model = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> made = batch_counters(preprocess({"f": ids}, model) for ids in ([[0, 2], [4]], [[1], [1]]))
    >>> made.steps, made.stacks["t"].observed_ids, made.stacks["t"].shard_ids
    (2, 2, (3, 2))
    """
    seen: _Seen | None = None
    for batch in batches:
        seen = seen or _Seen(batch)
        seen.add(batch)
    if seen is None:
        raise UsageError("no batches", where="batch_counters", how="give at least one preprocessed batch")
    return seen.counters(limits or {}, target)


class _Seen:
    """Sums and maxima so far."""

    def __init__(self, first: HostBatch) -> None:
        self.stacking, self.sizes, self.sources = first.stacking, first.batch_sizes, len(first.sources)
        shards = first.stacking.topology.sparsecores
        self.per_shard = {name: np.zeros(shards, np.int64) for name in first.stats}
        self.dropped = dict.fromkeys(first.stats, 0)
        self.most = dict.fromkeys(first.stats, (0, 0))
        self.histograms = {name: np.zeros(1, np.int64) for name in first.stats}
        self.steps = self.minibatches = self.over = self.bytes = 0
        self.layout = first.minibatch_layout
        self.shapes: set[tuple[int, ...]] = set()

    def add(self, batch: HostBatch) -> None:
        """One more batch."""
        if batch.stacking != self.stacking:
            raise UsageError("batches of several stackings", where="batch_counters", how="count each model by itself")
        self.steps += 1
        self.minibatches += batch.num_minibatches
        self.over += batch.num_minibatches > 1 or any(s.dropped_ids.any() for s in batch.stats.values())
        for name, stats in batch.stats.items():
            found = partition_counts(batch, name)
            self.per_shard[name] += found.sum(axis=0) + stats.dropped_ids
            self.dropped[name] += int(stats.dropped_ids.sum())
            both = int(stats.max_ids_per_partition.max()), int(stats.max_unique_ids_per_partition.max())
            self.most[name] = max(self.most[name][0], both[0]), max(self.most[name][1], both[1])
            more = np.bincount(found.reshape(-1), minlength=len(self.histograms[name]))
            more[: len(self.histograms[name])] += self.histograms[name]
            self.histograms[name] = more
        arrays = [a for kind in (batch.row_pointers, batch.embedding_ids) for a in kind.values()]
        self.shapes.add(tuple(a.shape[1] for a in arrays))
        size = sum(a.nbytes for a in arrays) + 2 * sum(a.nbytes for a in batch.embedding_ids.values())
        self.bytes = max(self.bytes, size * self.stacking.topology.sparsecores_per_chip // self.sources)

    def counters(self, limits: Mapping[str, Limits], target: str) -> Counters:
        """All of it."""
        topology = self.stacking.topology
        return Counters(
            target=target,
            chips=topology.chips,
            sparsecores=topology.sparsecores,
            steps=self.steps,
            minibatches=self.minibatches,
            steps_over=self.over / self.steps,
            compilations=len(self.shapes),
            minibatch_layout=self.layout,
            buffer_bytes=self.bytes,
            stacks={name: self._stack(name, limits.get(name)) for name in self.most},
            tables={p.table.name: TableCounters(p.table.vocab, p.table.width) for p in self.stacking.placements},
        )

    def _stack(self, name: str, limits: Limits | None) -> StackCounters:
        stack, shards = self.stacking.stacks[name], self.per_shard[name]
        partitions = self.steps * self.sources * len(shards)
        below = np.cumsum(self.histograms[name])
        dropped = self.dropped[name]
        return StackCounters(
            tables=len(stack.tables),
            width=stack.padded_width,
            optimizer=type(stack.optimizer).__name__,
            combiner=stack.combiner,
            samples_per_sparsecore=stack.samples_per_sparsecore(self.sizes),
            max_ids_per_partition=limits.max_ids_per_partition if limits else None,
            max_unique_ids_per_partition=limits.max_unique_ids_per_partition if limits else None,
            observed_ids=self.most[name][0],
            observed_unique_ids=self.most[name][1],
            typical_ids=None if dropped else int(np.searchsorted(below, 0.99 * below[-1])),
            mean_ids=float(shards.sum() / partitions),
            shard_ids=tuple(shards.tolist()),
            ids=int(shards.sum()),
            dropped_ids=dropped,
        )


def partition_counts(batch: HostBatch, stack: str) -> Longs:
    """int64[sources, S]: entries kept of every partition, all mini-batches together, from the row pointers."""
    shards = batch.stacking.topology.sparsecores
    per_device = batch.stacking.topology.sparsecores_per_device
    segments = per_device * (batch.num_minibatches if batch.minibatch_layout else 1)
    ends = batch.row_pointers[stack].astype(np.int64)[:, : segments * max(shards, 8)]
    if not batch.minibatch_layout:  # every source counts from the start of its own slice
        ends = ends.reshape(-1, max(shards, 8))
    starts = np.zeros_like(ends)
    starts[:, 1:] = (ends[:, :-1] + 7) // 8 * 8
    counts = (ends - starts).reshape(len(batch.sources), -1, max(shards, 8))[:, :, :shards]
    found: Longs = counts.sum(axis=1)
    return found

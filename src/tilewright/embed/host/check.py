"""Batches held against limits, without writing a buffer: what overflows, where, and what it would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.narrow import NarrowTables
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking, stack
from tilewright.embed.model.tables import Limits
from tilewright.errors import UsageError


@dataclass(frozen=True)
class Excess:
    """One limit and the most any batch asked of it.

    ``what`` is a stack, table or ``all tables``; ``place`` says where the most was seen: batch (from 0), source and
    shard, or batch, sample and chip.
    """

    what: str
    knob: str
    limit: int
    observed: int
    place: str

    @property
    def over(self) -> bool:
        """The limit does not hold."""
        return self.observed > self.limit


@dataclass(frozen=True)
class Check:
    """``limits``: every limit with the most asked of it; ``minibatches``: the most a batch would be cut into."""

    batches: int
    batches_over: int
    minibatches: int
    limits: tuple[Excess, ...]

    @property
    def passed(self) -> bool:
        """Nothing overflows."""
        return not any(each.over for each in self.limits)

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``."""
        limits = [{**vars(each), "over": each.over} for each in self.limits]
        head = {"schema_version": 1, "kind": "embedding_check", "passed": self.passed}
        return {**head, **vars(self), "limits": limits}


def check_batches(
    batches: Iterable[Mapping[str, Any]],
    stacking: Stacking,
    limits: Mapping[str, Limits],
    sparsecore: SparseCoreConfig | None = None,
    bad_ids: str = "error",
    progress: Callable[[int], None] | None = None,
    narrow: NarrowTables | None = None,
) -> Check:
    """Count every batch and compare: partitions with ``limits``, and with the bounds of ``sparsecore`` (per table, per
    sample and chip) where one is given. ``narrow``: ``stacking`` is of its packed features, batches are of the model's.

    Raises :class:`UsageError` for what ``preprocess`` refuses, limits of something that is no stack, limits of more
    distinct ids than ids, no batches.

    >>> from tilewright.embed import Feature, Table, Topology
    >>> stacking = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> found = check_batches([{"f": [[0, 2, 4], [1]]}], stacking, {"t": Limits(2, 2)})
    >>> found.passed, found.limits[0].observed, found.limits[0].place
    (False, 3, 'batch 0, source 0, shard 0')
    """
    seen = _Seen(stacking, limits, sparsecore, bad_ids)
    seen.narrow = narrow
    for n, batch in enumerate(batches):
        seen.add(n, batch)
        if progress is not None:
            progress(n + 1)
    if not seen.batches:
        raise UsageError("no batches", where="check", how="give at least one batch")
    return Check(seen.batches, seen.over, seen.minibatches, tuple(seen.most.values()))


class _Seen:
    """The most of everything so far."""

    def __init__(
        self, stacking: Stacking, limits: Mapping[str, Limits], knobs: SparseCoreConfig | None, bad_ids: str
    ) -> None:
        from tilewright.embed.host.overflow import limit_table

        self.stacking, self.table, self.bad_ids, self.knobs = stacking, limit_table(limits, stacking), bad_ids, knobs
        self.limits = {name: each.consistent(f"limits of {name!r}") for name, each in limits.items()}
        self.alone = stack(stacking.features, stacking.topology, table_stacking=False)
        self.narrow: NarrowTables | None = None
        self.batches = self.over = 0
        self.minibatches = 1
        self.most: dict[tuple[str, str], Excess] = {}

    def add(self, n: int, batch: Mapping[str, Any]) -> None:
        """One more batch."""
        from tilewright.embed.host.observe import count_batch, splits

        if self.narrow is not None:
            batch = self.narrow.batch(batch, self.bad_ids)
        made, counts, _ = count_batch(batch, self.stacking, self.bad_ids)
        found = [*self._partitions(n, counts)]
        over = any(each.over for each in found)
        if over:
            self.minibatches = max(self.minibatches, splits(self.stacking, made, self.table))
        if self.knobs is not None:
            found += [*self._tables(n, batch), *self._samples(n, batch)]
        for each in found:
            key = each.what, each.knob
            if key not in self.most or each.observed > self.most[key].observed:
                self.most[key] = each
        self.batches += 1
        self.over += any(each.over for each in found)

    def _partitions(self, n: int, counts: Longs) -> Iterable[Excess]:
        for name, stack_counts in zip(self.stacking.stacks, counts):
            for knob, per_partition in zip(("max_ids_per_partition", "max_unique_ids_per_partition"), stack_counts):
                if name in self.limits:
                    source, shard = (int(i) for i in np.unravel_index(per_partition.argmax(), per_partition.shape))
                    place = f"batch {n}, source {source}, shard {shard}"
                    limit = getattr(self.limits[name], knob)
                    yield Excess(name, knob, limit, int(per_partition[source, shard]), place)

    def _tables(self, n: int, batch: Mapping[str, Any]) -> Iterable[Excess]:
        from tilewright.embed.host.observe import count_batch

        assert self.knobs is not None
        bounds = {
            "max_ids_per_table": self.knobs.max_ids_per_table or {},
            "max_unique_ids_per_table": self.knobs.max_unique_ids_per_table or {},
        }
        if not any(bounds.values()):
            return
        for name in {name for bound in bounds.values() for name in bound} - set(self.stacking.tables):
            raise UsageError(f"a bound for {name!r}, which is no table", where="sparsecore")
        _, counts, _ = count_batch(batch, self.alone, self.bad_ids)
        sums = counts.sum(axis=(2, 3))
        for kind, (knob, bound) in enumerate(bounds.items()):
            for name, (total, unique) in zip(self.alone.stacks, sums):
                if name in bound:
                    yield Excess(name, knob, bound[name], int((total, unique)[kind]), f"batch {n}")

    def _samples(self, n: int, batch: Mapping[str, Any]) -> Iterable[Excess]:
        assert self.knobs is not None
        parts = self.narrow.samples_per_sample() if self.narrow is not None else {}
        found = ids_per_chip_and_sample(batch, self.stacking, parts)
        sample, chip = (int(i) for i in np.unravel_index(found.argmax(), found.shape))
        limit, place = self.knobs.max_ids_per_chip_per_sample, f"batch {n}, sample {sample}, chip {chip}"
        yield Excess("all tables", "max_ids_per_chip_per_sample", limit, int(found[sample, chip]), place)


def ids_per_chip_and_sample(
    batch: Mapping[str, Any], stacking: Stacking, parts: Mapping[str, int] = MappingProxyType({})
) -> Longs:
    """int64[samples, chips]: merged ids of sample i, over all features, that live on the shards of each chip.

    Features of other batch sizes share sample numbers as far as they go. Ids outside a vocabulary are not counted.
    ``parts``: feature -> how many of its samples are one, for packed tables.
    """
    from tilewright.embed.host.preprocess import ragged_inputs, source_slices

    topology = stacking.topology
    inputs = ragged_inputs(batch, stacking, source_slices(stacking, None, False))
    most = max(r.batch_size // parts.get(name, 1) for name, r in inputs.items())
    counts = np.zeros((most, topology.chips), np.int64)
    for feature in stacking.features:
        ragged, place = inputs[feature.name], stacking.tables[feature.table.name]
        bounds = ragged.bounds(np.arange(ragged.batch_size + 1))
        samples = np.repeat(np.arange(ragged.batch_size), np.diff(bounds))
        ids = ragged.values.astype(np.int64)
        good = (ids >= 0) & (ids < feature.table.vocab)
        merged = np.unique(samples[good] * feature.table.vocab + ids[good])
        samples, ids = merged // feature.table.vocab // parts.get(feature.name, 1), merged % feature.table.vocab
        shard = (ids + place.rotation) % topology.sparsecores
        np.add.at(counts, (samples, shard // topology.sparsecores_per_chip), 1)
    return counts

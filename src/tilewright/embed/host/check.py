"""Batches held against limits, without writing a buffer: what overflows, where, and what it would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import ragged_inputs, source_slices
from tilewright.embed.host.narrow import NarrowTables, pack_narrow
from tilewright.embed.host.overflow import Overflow, limit_table
from tilewright.embed.host.tally import tally
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking, stack
from tilewright.embed.model.tables import Limits
from tilewright.errors import LimitError, UsageError


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

    @property
    def of_partition(self) -> bool:
        """Whether it bounds partitions, which mini-batches can cut."""
        return self.knob in (knob.name for knob in fields(Limits))


@dataclass(frozen=True)
class Check:
    """What was asked of the limits.

    ===================  ==========================================================================================
    ``batches``          how many; ``batches_over``: those that exceed anything
    ``minibatches``      the most that ``preprocess`` cuts a batch into
    ``limits``           every limit with the most asked of it
    ``partitions_over``  batches with a partition above its limit: what mini-batches are for
    ``uncut``            those of them that it refuses, for one hash bucket alone exceeds a limit; ``uncut_because``:
                         what it says of the first
    ===================  ==========================================================================================
    """

    batches: int
    batches_over: int
    minibatches: int
    limits: tuple[Excess, ...]
    partitions_over: int = 0
    uncut: int = 0
    uncut_because: str = ""

    @property
    def passed(self) -> bool:
        """Nothing overflows."""
        return not any(excess.over for excess in self.limits)

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``."""
        limits = [{**vars(excess), "over": excess.over} for excess in self.limits]
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
    >>> check = check_batches([{"f": [[0, 2, 4], [1]]}], stacking, {"t": Limits(2, 2)})
    >>> check.passed, check.limits[0].observed, check.limits[0].place
    (False, 3, 'batch 0, source 0, shard 0')
    """
    most = _Most(stacking, limits, sparsecore, bad_ids, narrow or pack_narrow(stacking.features, pack=False))
    for n, batch in enumerate(batches):
        most.add(n, batch)
        if progress is not None:
            progress(n + 1)
    if not most.batches:
        raise UsageError("no batches", where="check", how="give at least one batch")
    asked = tuple(most.excesses.values())
    return Check(most.batches, most.over, most.minibatches, asked, most.partitions_over, most.uncut, most.because)


class _Most:
    """The most that any batch so far has asked of each limit."""

    def __init__(
        self,
        stacking: Stacking,
        limits: Mapping[str, Limits],
        knobs: SparseCoreConfig | None,
        bad_ids: str,
        narrow: NarrowTables,
    ) -> None:
        self.stacking, self.table, self.bad_ids, self.knobs = stacking, limit_table(limits, stacking), bad_ids, knobs
        self.limits = {name: limit.consistent(f"limits of {name!r}") for name, limit in limits.items()}
        self.alone = stack(stacking.features, stacking.topology, table_stacking=False)
        self.narrow = narrow
        self.batches = self.over = self.partitions_over = self.uncut = 0
        self.minibatches, self.because = 1, ""
        self.excesses: dict[tuple[str, str], Excess] = {}

    def add(self, n: int, batch: Mapping[str, Any]) -> None:
        """One more batch."""
        batch = self.narrow.batch(batch, self.bad_ids)
        counted = tally(batch, self.stacking, self.bad_ids)
        self._cut(Overflow(self.stacking, counted, self.table))
        excesses = [*self._partitions(n, counted.per_stack)]
        if self.knobs is not None:
            excesses += [*self._tables(n, batch, self.knobs), self._samples(n, batch, self.knobs)]
        for excess in excesses:
            key = excess.what, excess.knob
            if key not in self.excesses or excess.observed > self.excesses[key].observed:
                self.excesses[key] = excess
        self.batches += 1
        self.over += any(excess.over for excess in excesses)

    def _cut(self, overflow: Overflow) -> None:
        """Into mini-batches, as ``preprocess`` would with the same knobs."""
        self.partitions_over += bool(overflow.over.any())
        try:
            cut = overflow.minibatches(self.knobs is not None and self.knobs.allow_id_dropping)
        except LimitError as error:
            self.uncut += 1
            self.because = self.because or str(error)
        else:
            self.minibatches = max(self.minibatches, cut)

    def _partitions(self, n: int, counts: Longs) -> Iterable[Excess]:
        for name, stack_counts in zip(self.stacking.stacks, counts):
            if name in self.limits:
                for knob, per_partition in zip(fields(Limits), stack_counts):
                    source, shard = (int(i) for i in np.unravel_index(per_partition.argmax(), per_partition.shape))
                    place = f"batch {n}, source {source}, shard {shard}"
                    limit = getattr(self.limits[name], knob.name)
                    yield Excess(name, knob.name, limit, int(per_partition[source, shard]), place)

    def _tables(self, n: int, batch: Mapping[str, Any], knobs: SparseCoreConfig) -> Iterable[Excess]:
        bounds = {
            "max_ids_per_table": knobs.max_ids_per_table or {},
            "max_unique_ids_per_table": knobs.max_unique_ids_per_table or {},
        }
        if not any(bounds.values()):
            return
        for name in {name for bound in bounds.values() for name in bound} - set(self.stacking.tables):
            raise UsageError(f"a bound for {name!r}, which is no table", where="sparsecore")
        sums = tally(batch, self.alone, self.bad_ids).per_stack.sum(axis=(2, 3))
        for kind, (knob, bound) in enumerate(bounds.items()):
            for name, totals in zip(self.alone.stacks, sums):
                if name in bound:
                    yield Excess(name, knob, bound[name], int(totals[kind]), f"batch {n}")

    def _samples(self, n: int, batch: Mapping[str, Any], knobs: SparseCoreConfig) -> Excess:
        counts = ids_per_chip_and_sample(batch, self.stacking, self.narrow.samples_per_sample())
        sample, chip = (int(i) for i in np.unravel_index(counts.argmax(), counts.shape))
        limit, place = knobs.max_ids_per_chip_per_sample, f"batch {n}, sample {sample}, chip {chip}"
        return Excess("all tables", "max_ids_per_chip_per_sample", limit, int(counts[sample, chip]), place)


def ids_per_chip_and_sample(batch: Mapping[str, Any], stacking: Stacking, parts: Mapping[str, int]) -> Longs:
    """int64[samples, chips]: merged ids of sample i, over all features, that live on the shards of each chip.

    Features of other batch sizes share sample numbers as far as they go. Ids outside a vocabulary are not counted.
    ``parts``: feature -> how many of its samples are one, for packed tables.
    """
    topology = stacking.topology
    inputs = ragged_inputs(batch, stacking, source_slices(stacking))
    most = max(ragged.batch_size // parts[name] for name, ragged in inputs.items())
    counts = np.zeros((most, topology.chips), np.int64)
    for feature in stacking.features:
        ragged, place = inputs[feature.name], stacking.tables[feature.table.name]
        samples = ragged.samples
        ids = ragged.values.astype(np.int64)
        good = (ids >= 0) & (ids < feature.table.vocab)
        merged = np.unique(samples[good] * feature.table.vocab + ids[good])
        samples, ids = merged // feature.table.vocab // parts[feature.name], merged % feature.table.vocab
        shard = (ids + place.rotation) % topology.sparsecores
        np.add.at(counts, (samples, shard // topology.sparsecores_per_chip), 1)
    return counts

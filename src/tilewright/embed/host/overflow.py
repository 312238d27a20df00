"""Step 2 of preprocessing: what a batch does about partitions above their limits: an error, mini-batches or drops.

And batches held against limits without writing a buffer: what overflows, where, and what it would cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Entries, Longs, Mask
from tilewright.embed.host.batch import minibatch_starts
from tilewright.embed.host.buffers import Arrays, Buffers
from tilewright.embed.host.inputs import ragged_inputs, source_slices
from tilewright.embed.host.tables import NarrowTables, pack_narrow
from tilewright.embed.host.tally import Tally, tally
from tilewright.embed.model.formulas import BUCKETS
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.stacking import stack as stack_features
from tilewright.embed.model.tables import Limits
from tilewright.errors import LimitError, UsageError
from tilewright.kernels.threads import run_all, thread_count

NO_LIMIT = 2**62
_NAMED = 3
"""Ids of a hash bucket that a message names; the figure behind each is its entries."""


def limit_table(limits: Mapping[str, Limits] | None, stacking: Stacking) -> Longs:
    """int64[stacks, 2]: both limits of every stack, NO_LIMIT where there is none."""
    table = np.full((len(stacking.groups), 2), NO_LIMIT, np.int64)
    names = list(stacking.stacks)
    for name, limit in (limits or {}).items():
        if name not in stacking.stacks:
            home = stacking.tables.get(name)
            how = f"its stack is {home.stack!r}" if home else f"stacks are {', '.join(names)}"
            raise UsageError(f"limits for {name!r}, which is no stack", where="limits", how=how)
        if not isinstance(limit, Limits):
            raise UsageError(f"{limit!r} is not a Limits", where=f"limits of {name!r}")
        table[names.index(name)] = limit.max_ids_per_partition, limit.max_unique_ids_per_partition
    return table


@dataclass(frozen=True, eq=False)
class Overflow:
    """A counted batch held against ``limits`` int64[stacks, 2]; ``first_source``: the first SparseCore it is of."""

    stacking: Stacking
    tally: Tally
    limits: Longs
    first_source: int = 0

    @cached_property
    def over(self) -> Mask:
        """bool[stacks, 2, sources, S]: which partitions exceed which limit."""
        return self.tally.per_stack > self.limits[:, :, None, None]

    def minibatches(self, allow_id_dropping: bool = False) -> int:
        """How many mini-batches the batch is cut into, by the rule of :meth:`split_bits`.

        Raises :class:`LimitError` where no cut helps, as ``preprocess`` does.
        """
        return len(minibatch_starts(self.split_bits(allow_id_dropping))) if self.over.any() else 1

    def error(self) -> LimitError:
        """The first partition above a limit, by stack, source, shard, with the limit the whole batch needs."""
        over = self.over
        stack, source, shard = (int(i) for i in np.argwhere(over.any(axis=1))[0])
        kind = 0 if over[stack, 0, source, shard] else 1
        counts, limit = self.tally.per_stack[stack, kind], int(self.limits[stack, kind])
        observed, need = int(counts[source, shard]), int(counts.max())
        return self._limit_error(stack, source, shard, kind, observed, limit, f"{need}, which this batch needs")

    def _limit_error(
        self, stack: int, source: int, shard: int, kind: int, observed: int, limit: int, advice: str
    ) -> LimitError:
        name = self.stacking.groups[stack].name
        knob, noun = (("max_ids_per_partition", "ids"), ("max_unique_ids_per_partition", "distinct ids"))[kind]
        return LimitError(
            f"{observed} {noun} in one partition, {knob} is {limit}",
            table=name,
            shard=shard,
            observed=observed,
            limit=limit,
            where=f"stack {name!r}, source {self.first_source + source}, shard {shard}",
            how=f"set {knob} of {name!r} to at least {advice}",
        )

    def _gather(self, stack: int, source: int) -> tuple[Entries, Longs]:
        """Rows, samples and gains of one source by (shard, row, sample), and int64[2, S]: their counts per shard."""
        from tilewright.embed.host.write_kernels import gather_source

        per_shard = np.ascontiguousarray(self.tally.per_stack[stack, :, source])
        n = int(per_shard[0].sum())
        gathered = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.float32)
        first, last = self.tally.first_unit[stack], self.tally.first_unit[stack + 1]
        gather_source((int(first), int(last)), source, self.tally.runs, gathered)
        return gathered, per_shard

    def split_bits(self, allow_id_dropping: bool) -> int:
        """Nodes of the bucket tree at which this process wants a cut.

        Raises :class:`LimitError` for a bucket that alone exceeds a limit, unless ids may be dropped.
        """
        jobs = [partial(self._splits, int(k), int(l)) for k, l in np.argwhere(self.over.any(axis=(1, 3)))]
        bits = 0
        for wanted_bits, lone, stack, source in run_all(jobs, thread_count()):
            bits |= wanted_bits
            if lone[0] >= 0 and not allow_id_dropping:
                kind = 0 if lone[1] > self.limits[stack, 0] else 1
                observed, limit = int(lone[1 + kind]), int(self.limits[stack, kind])
                ids = self._sharing(stack, source, int(lone[0]), int(lone[3]))
                why = f"they share one hash bucket, which mini-batches cannot cut: {ids}"
                advice = f"{observed} ({why}), or set allow_id_dropping"
                raise self._limit_error(stack, source, int(lone[0]), kind, observed, limit, advice)
        return bits

    def _sharing(self, stack: int, source: int, shard: int, bucket: int) -> str:
        """The ids of a partition that share a hash bucket, those with the most entries first."""
        from tilewright.embed.host.write_kernels import hash_ids

        gathered, per_shard = self._gather(stack, source)
        end = int(per_shard[0, : shard + 1].sum())
        rows, entries = np.unique(gathered[0][end - int(per_shard[0, shard]) : end], return_counts=True)
        shards = self.stacking.topology.sparsecores
        here = np.flatnonzero(hash_ids(shard + shards * rows.astype(np.int64)) == bucket)
        hottest = here[np.argsort(-entries[here], kind="stable")]
        names = [self._id_at(stack, shard, int(rows[k])) + f" ({entries[k]})" for k in hottest[:_NAMED].tolist()]
        more = f" and {len(here) - _NAMED} more" if len(here) > _NAMED else ""
        return ", ".join(names) + more

    def _id_at(self, stack: int, shard: int, row: int) -> str:
        """The table and id of a stack's local row."""
        places = [self.stacking.tables[table.name] for table in self.stacking.groups[stack].tables]
        place = next(p for p in places if p.row_offset <= row < p.row_offset + p.rows_per_shard)
        row_id = (row - place.row_offset) * place.shards + (shard - place.rotation) % place.shards
        return f"id {row_id} of {place.table.name}"

    def _splits(self, stack: int, source: int) -> tuple[int, Longs, int, int]:
        from tilewright.embed.host.write_kernels import find_splits, fresh_state

        gathered, per_shard = self._gather(stack, source)
        lone = np.full(4, -1, np.int64)
        bits = find_splits(gathered[0], per_shard, self.limits[stack], fresh_state(), lone)
        return int(bits), lone, stack, source

    def write(self, buffers: Buffers, starts: list[int], lowest: bool) -> tuple[Arrays, Longs]:
        """The buffers filled, cut at the buckets ``starts``; int64[stacks, S]: entries dropped per shard."""
        cuts = np.array([*starts, BUCKETS], np.int64)
        dropped = np.zeros((len(self.limits), self.tally.counts.shape[3]), np.int64)
        devices = range(0, buffers.sources, buffers.per_device)
        stacks = range(len(dropped))
        jobs = [partial(self._write_device, buffers, k, first, cuts, lowest) for k in stacks for first in devices]
        for k, gone in run_all(jobs, thread_count()):
            dropped[k] += gone
        return buffers.finished(len(starts)), dropped

    def _write_device(self, buffers: Buffers, stack: int, first: int, cuts: Longs, lowest: bool) -> tuple[int, Longs]:
        """One stack on one device, source after source: each begins where the one before it ended."""
        from tilewright.embed.host.write_kernels import PAD, fresh_state, write_cut

        minibatches, segment = len(cuts) - 1, buffers.segment
        places = buffers.places(np.zeros((len(self.limits), buffers.sources), np.int64))[stack]
        dropped = np.zeros(self.tally.counts.shape[3], np.int64)
        at = int(places[first, 1])
        for i, source in enumerate(range(first, first + buffers.per_device)):
            origin, begin, end, pointer = (int(x) for x in places[source])
            if buffers.minibatch_layout:
                begin, pointer = at, int(places[first, 3]) + i * minibatches * segment
                end = origin + int(buffers.slots[stack]) if i == buffers.per_device - 1 else 0
            gathered, per_shard = self._gather(stack, source)
            out, pointers, place = buffers.out, buffers.row_pointers, (origin, begin, pointer)
            if buffers.bounds_checked:  # into room of its own: entries and up to 7 pads per partition
                room = len(gathered[0]) + 8 * minibatches * per_shard.shape[1]
                out = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.float32)
                pointers, place = np.empty(minibatches * segment, np.int32), (origin - begin, 0, 0)
            rules, into = (cuts, self.limits[stack], lowest), (out, pointers, dropped)
            at = int(write_cut(gathered, per_shard[0], rules, (*place, segment), into, fresh_state()))
            if buffers.bounds_checked:
                buffers.put(stack, source, (begin, pointer), end, out, at, pointers)
                at += begin
            for flat, pad in zip(buffers.out, (PAD, PAD, np.nan)):
                flat[at : min(end, int(buffers.ends[stack, source]))] = pad
            buffers.ends[stack, source] = at
        return stack, dropped


# Batches held against limits.


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
        """Whether more was observed than the limit allows."""
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
        """Whether no limit is exceeded."""
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

    >>> from tilewright.embed import Feature, Table, Topology, stack
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


@dataclass
class _Most:
    """The most that any batch so far has asked of each limit."""

    stacking: Stacking
    limits: Mapping[str, Limits]
    knobs: SparseCoreConfig | None
    bad_ids: str
    narrow: NarrowTables
    batches: int = 0
    over: int = 0
    partitions_over: int = 0
    uncut: int = 0
    minibatches: int = 1
    because: str = ""
    excesses: dict[tuple[str, str], Excess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = limit_table(self.limits, self.stacking)
        self.limits = {name: limit.consistent(f"limits of {name!r}") for name, limit in self.limits.items()}
        self.alone = stack_features(self.stacking.features, self.stacking.topology, table_stacking=False)

    def add(self, n: int, batch: Mapping[str, Any]) -> None:
        """Count batch number ``n`` and note where it asks more of a limit than those before."""
        batch = self.narrow.batch(batch, self.bad_ids)
        counted = tally(batch, self.stacking, self.bad_ids)
        overflow = Overflow(self.stacking, counted, self.table)
        self.partitions_over += bool(overflow.over.any())
        try:  # into mini-batches, as ``preprocess`` would with the same knobs
            cut = overflow.minibatches(self.knobs is not None and self.knobs.allow_id_dropping)
        except LimitError as error:
            self.uncut += 1
            self.because = self.because or str(error)
        else:
            self.minibatches = max(self.minibatches, cut)
        excesses = [*self._partitions(n, counted.per_stack)]
        if self.knobs is not None:
            excesses += [*self._tables(n, batch, self.knobs), self._samples(n, batch, self.knobs)]
        for excess in excesses:
            key = excess.what, excess.knob
            if key not in self.excesses or excess.observed > self.excesses[key].observed:
                self.excesses[key] = excess
        self.batches += 1
        self.over += any(excess.over for excess in excesses)

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

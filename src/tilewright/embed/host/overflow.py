"""Step 2 of preprocessing: what a batch does about partitions above their limits: an error, mini-batches or drops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from tilewright.embed.host.arrays import Entries, Longs, Mask
from tilewright.embed.host.batch import minibatch_starts
from tilewright.embed.host.buffers import Arrays, Buffers
from tilewright.embed.host.tally import Tally
from tilewright.embed.model.formulas import BUCKETS
from tilewright.embed.model.stacking import Stacking
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

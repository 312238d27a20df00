"""What a log asks of the partitions of a pod: per batch the fullest ones, joined over batches in any order.

Everything kept is a maximum, a sum, or the few batches with the smallest hashes, so that parts of a log counted by
several workers join to the same bits however they are dealt out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs, scratch
from tilewright.embed.host.inputs import BAD_IDS, Ragged, check_choice, ragged_inputs, source_slices
from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.confidence import HELD_OUT
from tilewright.errors import UsageError
from tilewright.kernels.threads import run_all, thread_count

KEPT = 1024
"""Held-out batches whose peaks are kept, those with the smallest hashes of their number."""
_ENTRIES = 1 << 18
"""Entries that are sorted together, about."""
_NO_OFFSETS = np.zeros(1, np.int64)
_NO_BATCH = -1


def batch_peaks(
    batch: Mapping[str, Any], stacking: Stacking, bad_ids: str = "error", apart: Mapping[str, Longs] | None = None
) -> tuple[Longs, dict[str, int]]:
    """int64[stacks, 4]: most entries and distinct ids of any partition, entries, and distinct ids by source, of every
    stack; and the batch of every feature. ``apart``: table -> ids, rising, that every shard holds.

    Raises :class:`UsageError` for input that cannot be read and for a bad id.
    """
    check_choice("bad_ids", bad_ids, BAD_IDS)
    inputs = ragged_inputs(batch, stacking, source_slices(stacking))
    jobs = []
    for group in stacking.groups:
        entries = sum(inputs[f.name].values.size for f in group.features)
        parts = max(1, min(group.shards, entries // _ENTRIES))
        bounds = [group.shards * k // parts for k in range(parts + 1)]
        given = (group, stacking, inputs, BAD_IDS.index(bad_ids), apart or {})
        jobs.append([partial(_part_peaks, *given, (bounds[k], bounds[k + 1])) for k in range(parts)])
    made = iter(run_all([job for of_stack in jobs for job in of_stack], thread_count()))
    found = np.zeros((len(jobs), 4), np.int64)
    for k, of_stack in enumerate(jobs):
        for _ in of_stack:
            part = next(made)
            found[k, :2] = np.maximum(found[k, :2], part[:2])
            found[k, 2:] += part[2:]
    return found, {name: ragged.batch_size for name, ragged in inputs.items()}


def _part_peaks(
    group: Stack,
    stacking: Stacking,
    inputs: Mapping[str, Ragged],
    bad_ids: int,
    apart: Mapping[str, Longs],
    sources: tuple[int, int],
) -> Longs:
    """The four numbers of :func:`batch_peaks` for some sources of a stack."""
    from tilewright.embed.pods.peak_kernels import emit, scan

    room = 0
    for feature in group.features:
        ragged = inputs[feature.name]
        each = ragged.batch_size // group.shards
        begin, end = ragged.bounds(np.array([sources[0] * each, sources[1] * each])).tolist()
        room += end - begin
    keys, n = scratch("keys of partitions", room, np.int64), 0
    for feature in group.features:
        ragged, place = inputs[feature.name], stacking.tables[feature.table.name]
        form = np.array(
            [feature.table.vocab, group.shards, place.rotation, place.row_offset, group.rows_per_shard, bad_ids],
            np.int64,
        )
        offsets = _NO_OFFSETS if ragged.offsets is None else ragged.offsets
        kept = apart.get(feature.table.name, _NO_OFFSETS[:0])
        each = ragged.batch_size // group.shards
        n = int(emit(ragged.values, offsets, ragged.hot, sources, each, form, kept, keys, n))
        if n < 0:
            ragged.inside(feature.table.vocab, "error", feature.name)
    found = np.zeros(4, np.int64)
    part = keys[:n]
    part.sort()
    scan(part, n, group.rows_per_shard, found)
    return found


def mixed(number: int) -> int:
    """A hash of a batch's number (splitmix64's finaliser): which of them are kept does not follow their order."""
    word = (number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ word >> shift) * factor & (1 << 64) - 1
    return word ^ word >> 31


@dataclass
class PartitionPeaks:
    """The peaks of some batches of a log, of every stack's entries and distinct ids; ``merge`` joins two.

    ==============  ==============================================================================================
    ``batches``     how many; ``sizes``: the first batch's samples of every feature
    ``most``        int64[stacks, 2]: the fullest partition of all batches
    ``second``      the same without the batch that holds ``most``; ``holder``: that batch's number
    ``learnt``      the fullest of the batches that are not held out; ``learnt_batches``: how many
    ``held_out``    number -> int64[stacks, 2], of held-out batches, at most 1,024; ``held_out_batches``: of all
    ``totals``      int64[stacks, 2]: entries, and distinct ids by source
    ==============  ==============================================================================================
    """

    stacking: Stacking
    bad_ids: str = "error"
    apart: Mapping[str, Longs] = field(default_factory=dict)
    batches: int = 0
    learnt_batches: int = 0
    held_out_batches: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    held_out: dict[int, Longs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = len(self.stacking.groups), 2
        self.most, self.second = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.holder = np.full(shape, _NO_BATCH, np.int64)
        self.learnt, self.totals = np.zeros(shape, np.int64), np.zeros(shape, np.int64)

    def add(self, number: int, batch: Mapping[str, Any]) -> None:
        """Count batch ``number`` of the log; numbers must not repeat."""
        found, sizes = batch_peaks(batch, self.stacking, self.bad_ids, self.apart)
        one = PartitionPeaks(self.stacking)
        one.batches, one.sizes, one.most, one.totals = 1, sizes, found[:, :2], found[:, 2:]
        one.holder = np.full_like(one.holder, number)
        if number % HELD_OUT == HELD_OUT - 1:
            one.held_out, one.held_out_batches = {number: found[:, :2]}, 1
        else:
            one.learnt, one.learnt_batches = found[:, :2], 1
        self.merge(one)

    def merge(self, other: PartitionPeaks) -> None:
        """Add what ``other`` counted: the same whichever comes first."""
        if self.sizes and other.sizes and self.sizes != other.sizes:
            raise UsageError("batches of different sizes", where="plan", how="leave a last, shorter batch out")
        self.sizes = self.sizes or dict(other.sizes)
        high, low = np.maximum(self.most, other.most), np.minimum(self.most, other.most)
        mine, theirs = self.holder, other.holder
        ties = np.where((mine < 0) | (theirs < 0), np.maximum(mine, theirs), np.minimum(mine, theirs))
        holder = np.where(self.most > other.most, mine, np.where(self.most < other.most, theirs, ties))
        both = self.batches and other.batches
        self.second = np.maximum(np.maximum(self.second, other.second), low if both else 0)
        self.most, self.holder = high, holder
        self.learnt, self.totals = np.maximum(self.learnt, other.learnt), self.totals + other.totals
        self.batches += other.batches
        self.learnt_batches += other.learnt_batches
        self.held_out_batches += other.held_out_batches
        together = {**self.held_out, **other.held_out}
        self.held_out = {number: together[number] for number in sorted(together, key=mixed)[:KEPT]}

    def limits(self) -> dict[str, Limits]:
        return {name: Limits.holding(*counts) for name, counts in zip(self.stacking.stacks, self.most.tolist())}

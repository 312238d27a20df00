"""Step 1 of preprocessing: every table's ids become merged, sorted entries, counted per source and shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed._inputs import Ragged
from tilewright.embed._stacking import Placement, Stacking
from tilewright.embed._tables import COMBINERS, Feature
from tilewright.embed._threads import run_all, workspace
from tilewright.embed._types import Entries, Floats, Ids, Ints, Longs
from tilewright.errors import UsageError

__all__ = ["BAD_IDS", "Slices", "Tally", "tally"]

Arguments: TypeAlias = tuple[Ids, Longs, Floats, tuple[int, ...]]

Call: TypeAlias = tuple[Arguments, Longs, tuple[int, int], Longs, Ints]

BAD_IDS = ("error", "clip", "drop")
_NO_OFFSETS = np.empty(0, np.int64)
_NO_WEIGHTS = np.empty(0, np.float32)
_GROUP = 2048
"""Ids that are sorted together: enough to pay for the counters of the sort, few enough for the first-level cache."""
_SMALL = 20_000
"""Below so many ids a second thread costs more than it brings."""


@dataclass(frozen=True)
class Slices:
    """The slices this process feeds: ``sources``, the first of them slice ``first`` of ``given`` in its batch."""

    sources: range
    shards: int
    first: int
    given: int

    def each(self, ragged: Ragged) -> int:
        """Samples of a feature in one slice."""
        return ragged.batch_size // self.given

    def samples(self, ragged: Ragged) -> Longs:
        """The feature's samples in these slices, and the one behind them."""
        each = self.each(ragged)
        return np.arange(self.first * each, (self.first + len(self.sources)) * each + 1)


@dataclass(frozen=True, eq=False)
class Tally:
    """What kernel 1 made; tables stand stack by stack, in their order inside it.

    ``entries`` are the calling thread's working buffers: its next tally overwrites them.

    ``entries`` rows (in the stack), samples, gains; ``bases`` int64[tables, sources]: where each run begins;
    ``counts`` int32[tables, 2, sources, S]: entries, distinct ids; ``first_table`` int64[stacks + 1].
    """

    entries: Entries
    bases: Longs
    counts: Ints
    first_table: Longs

    def per_stack(self) -> Longs:
        """int64[stacks, 2, sources, S]: entries and distinct ids of whole stacks."""
        return np.add.reduceat(self.counts, self.first_table[:-1], axis=0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _TableJob:
    """The static part of a table's work."""

    placement: Placement
    features: tuple[Feature, ...]
    numbers: tuple[int, ...]


def _static(stacking: Stacking) -> tuple[tuple[_TableJob, ...], Longs]:
    """Jobs of all tables, stack by stack, and the first job of every stack; kept with the plan."""
    held: dict[str, Any] = stacking.__dict__
    if "_jobs" not in held:
        held["_jobs"] = _jobs(stacking)
    made: tuple[tuple[_TableJob, ...], Longs] = held["_jobs"]
    return made


def _jobs(stacking: Stacking) -> tuple[tuple[_TableJob, ...], Longs]:
    jobs = []
    for stack in stacking.groups:
        for table in stack.tables:
            users = tuple(f for f in stack.features if f.table.name == table.name)
            placement = stacking.tables[table.name]
            jobs.append(_TableJob(placement, users, _numbers(placement)))
    first = np.cumsum([0, *(len(s.tables) for s in stacking.groups)], dtype=np.int64)
    return tuple(jobs), first


def _numbers(placement: Placement) -> tuple[int, ...]:
    """Kernel 1's ``table`` argument but for the bad-id mode.

    ``id // S == (id * magic) >> shift`` for 0 <= id < 2**31: with 2**k >= S and magic = 2**(31 + k) // S + 1 the error
    of the product stays below one part in 2**31.
    """
    shards = placement.shards
    shift = 31 + (shards - 1).bit_length()
    magic = (1 << shift) // shards + 1
    combiner = COMBINERS.index(placement.table.combiner)
    bits = (placement.padded_vocab - 1).bit_length()
    layout = (placement.table.vocab, shards, placement.rows_per_shard, placement.rotation, magic, shift)
    return (*layout, combiner, placement.row_offset, bits)


def tally(
    stacking: Stacking,
    inputs: Mapping[str, Ragged],
    offsets: Mapping[str, int],
    slices: Slices,
    bad_ids: str,
    threads: int,
) -> Tally:
    """Run kernel 1 over all tables and sources; ``offsets``: first sample id of every feature inside a slice."""
    jobs, first_table = _static(stacking)
    at = np.arange(slices.first, slices.first + len(slices.sources) + 1, dtype=np.int64)
    users = [inputs[f.name] for job in jobs for f in job.features]
    begins = np.array([ragged.bounds(at * slices.each(ragged)) for ragged in users])
    sizes = np.add.reduceat(np.diff(begins), np.cumsum([0, *(len(job.features) for job in jobs[:-1])]), axis=0)
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    bases, total = ends - sizes, int(ends[-1, -1])
    entries = (
        workspace.get("rows", total, np.int32),
        workspace.get("samples", total, np.int32),
        workspace.get("gains", total, np.float32),
    )
    counts = np.empty((len(jobs), 2, len(slices.sources), slices.shards), np.int32)
    groups = _groups(jobs, sizes)
    widths = {s.name: sum(slices.each(inputs[f.name]) for f in s.features) for s in stacking.groups}
    samples = [widths[job.placement.stack] for job in jobs]
    rows = _feature_rows(jobs, inputs, offsets, slices)
    arguments = [_arguments(job, [inputs[f.name] for f in job.features], BAD_IDS.index(bad_ids)) for job in jobs]
    calls = list(zip(arguments, rows, zip(groups, samples), bases, counts))
    need = max(int(n) * g for n, g in zip(sizes.max(axis=1), groups)), max(w * g for w, g in zip(samples, groups))
    parts = _parts(len(jobs), len(slices.sources), threads if total > _SMALL else 1)
    runs = [partial(_run, calls, entries, tables, part, slices.first, need) for tables, part in parts]
    if any(run_all(runs, threads)):
        raise _complaint(stacking, inputs, slices)
    return Tally(entries, bases, counts, first_table)


def _groups(jobs: tuple[_TableJob, ...], sizes: Longs) -> list[int]:
    """Slices sorted together, per table: about _GROUP ids, and positions that stay within 32 bits."""
    means = sizes.mean(axis=1)
    return [
        int(max(1, min(sizes.shape[1], _GROUP // max(1, mean), 2**32 // job.placement.padded_vocab)))
        for job, mean in zip(jobs, means.tolist())
    ]


def _parts(tables: int, sources: int, threads: int) -> list[tuple[range, tuple[int, int]]]:
    """Which tables and which sources each thread does: sources are divided first."""
    columns = min(sources, threads)
    rows = min(tables, -(-threads // columns))
    cuts = [sources * i // columns for i in range(columns + 1)]
    return [(range(r, tables, rows), cut) for cut in pairwise(cuts) for r in range(rows)]


def _feature_rows(
    jobs: tuple[_TableJob, ...], inputs: Mapping[str, Ragged], offsets: Mapping[str, int], slices: Slices
) -> list[Longs]:
    """Kernel 1's ``features`` of every table."""
    rows = []
    for job in jobs:
        value_base = offset_base = 0
        for feature in job.features:
            ragged = inputs[feature.name]
            sparse = ragged.offsets is not None
            at = offset_base if sparse else -1
            rows.append((value_base, at, ragged.hot, slices.each(ragged), offsets[feature.name]))
            value_base += ragged.values.size
            offset_base += ragged.batch_size + 1 if sparse else 0
    table = np.array(rows, np.int64)
    ends = list(accumulate(len(job.features) for job in jobs))
    return [table[b:e] for b, e in pairwise([0, *ends])]


def _arguments(job: _TableJob, given: list[Ragged], bad_ids: int) -> Arguments:
    """Kernel 1's values, offsets, weights and table; features of one table are joined."""
    numbers = (*job.numbers[:7], bad_ids, *job.numbers[7:])
    first = given[0]
    if len(given) == 1:
        return (
            first.values,
            _NO_OFFSETS if first.offsets is None else first.offsets,
            _NO_WEIGHTS if first.weights is None else first.weights,
            numbers,
        )
    values = np.concatenate([r.values for r in given])
    offsets = np.concatenate([_NO_OFFSETS if r.offsets is None else r.offsets for r in given])
    weights = _NO_WEIGHTS
    if any(r.weights is not None for r in given):
        ones = [np.ones(r.values.size, np.float32) if r.weights is None else r.weights for r in given]
        weights = np.concatenate(ones)
    return values, offsets, weights, numbers


def _run(
    calls: list[Call], entries: Entries, tables: range, part: tuple[int, int], first: int, need: tuple[int, int]
) -> int:
    """Kernel 1 for some tables and sources, in this thread's scratch; not 0 if one of them found something bad."""
    from tilewright.embed._reduce import reduce_table, scratch

    room = scratch(*need)
    for t in tables:
        (values, offsets, weights, numbers), rows, (group, samples), bases, counts = calls[t]
        status = reduce_table(
            values, offsets, weights, rows, numbers, (*part, first), group, samples, bases, entries, counts, room
        )
        if status:
            return int(status)
    return 0


def _complaint(stacking: Stacking, inputs: Mapping[str, Ragged], slices: Slices) -> UsageError:
    """The first bad id, or the first sample without a divisor, of the features in their order."""
    for feature in stacking.features:
        ragged = inputs[feature.name]
        samples = slices.samples(ragged)
        bounds = ragged.bounds(samples)
        values = ragged.values[bounds[0] : bounds[-1]]
        wrong = np.flatnonzero((values < 0) | (values >= feature.table.vocab))
        if wrong.size:
            k = int(wrong[0]) + int(bounds[0])
            sample = int(samples[np.searchsorted(bounds, k, side="right") - 1])
            return UsageError(
                f"id {ragged.values[k]} of sample {sample} is not in 0 .. {feature.table.vocab - 1}",
                where=f"table {feature.table.name!r}, feature {feature.name!r}",
                how='mend the data, or pass bad_ids="clip" or bad_ids="drop"',
            )
    return _bad_divisor(stacking, inputs, slices)


def _bad_divisor(stacking: Stacking, inputs: Mapping[str, Ragged], slices: Slices) -> UsageError:
    for feature in stacking.features:
        ragged, table = inputs[feature.name], feature.table
        if ragged.weights is None or table.combiner == "sum":
            continue
        samples = slices.samples(ragged)
        bounds = ragged.bounds(samples)
        for sample, begin, end in zip(samples, bounds, bounds[1:]):
            total = _float32_sum(ragged.weights[begin:end], table.combiner)
            if end > begin and (total == 0 or not np.isfinite(total)):
                how = "leave such a sample empty, or give it other weights"
                what = f"the weights of sample {sample} sum to {total:g}, so their {table.combiner} has no value"
                return UsageError(what, where=f"feature {feature.name!r}", how=how)
    return UsageError("without its bad ids a sample's weights sum to zero", where="preprocess", how="mend the ids")


def _float32_sum(weights: Floats, combiner: str) -> float:
    """The running sum as kernel 1 makes it."""
    total = np.float32(0)
    with np.errstate(over="ignore"):
        for w in weights:
            total = total + w if combiner == "mean" else np.float32(np.float64(total) + np.float64(w) ** 2)
    return float(total)

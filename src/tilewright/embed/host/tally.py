"""Step 1 of preprocessing: a batch's ids become merged, sorted entries, counted per source and shard.

Kernel 1 sorts one unit at a time: a table, or neighbouring tables of a stack where a table alone has few ids. What it
has to do follows from the shapes of the inputs; the schedule says so before any id is seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Entries, Floats, Ids, Ints, Longs, scratch
from tilewright.embed.host.inputs import BAD_IDS, Ragged, Slices, check_choice, ragged_inputs, source_slices
from tilewright.embed.model.stacking import Stack, Stacking, TablePlacement
from tilewright.embed.model.tables import COMBINERS, Feature
from tilewright.errors import UsageError
from tilewright.kernels.threads import run_all, thread_count

_NO_OFFSETS = np.empty(0, np.int64)
_NO_WEIGHTS = np.empty(0, np.float32)
_SPARE = 8
"""Entries behind the last that may be read: kernel 2 copies whole vectors."""


@dataclass(frozen=True, eq=False)
class Tally:
    """The entries kernel 1 made of a batch; units stand stack by stack, in their order inside it.

    ``entries`` are the calling thread's working buffers: its next tally overwrites them.
    """

    sizes: dict[str, int]  # the whole batch of every feature, over all SparseCores
    entries: Entries  # rows (in the stack), samples, gains
    bases: Longs  # int64[units, sources]: where each run of entries begins
    counts: Ints  # int32[units, 2, sources, S]: entries, distinct ids
    first_unit: Longs  # int64[stacks + 1]: the first unit of every stack, and the end

    def totals(self) -> tuple[Longs, Longs]:
        """int64[stacks, 2, S]: the most entries and distinct ids any source has for a shard; int64[stacks, sources]:
        slots a source needs, every partition rounded up to 8."""
        from tilewright.embed.host.reduce_kernels import add_up

        stacks, (_, _, sources, shards) = len(self.first_unit) - 1, self.counts.shape
        most, required = np.empty((stacks, 2, shards), np.int64), np.empty((stacks, sources), np.int64)
        add_up(self.counts, self.first_unit, most, required)
        return most, required

    @property
    def runs(self) -> tuple[Longs, Ints, Entries]:
        """``bases``, ``counts`` and ``entries``: what kernels 2 and 3 read."""
        return self.bases, self.counts, self.entries

    @cached_property
    def per_stack(self) -> Longs:
        """int64[stacks, 2, sources, S]: entries and distinct ids of whole stacks."""
        return np.add.reduceat(self.counts, self.first_unit[:-1], axis=0, dtype=np.int64)


def tally(batch: Mapping[str, Any], stacking: Stacking, bad_ids: str = "error", slices: Slices | None = None) -> Tally:
    """Run kernel 1 over all units and sources; without ``slices`` the sources are all SparseCores.

    Kernel 1 stops at a bad id: where these are clipped or dropped, it runs again over what is left.

    Raises :class:`UsageError` for input that cannot be read, a bad id, or weights without a sum to divide by.
    """
    check_choice("bad_ids", bad_ids, BAD_IDS)
    slices = slices or source_slices(stacking)
    inputs = ragged_inputs(batch, stacking, slices)
    sizes = {name: slices.size(ragged) * slices.shards for name, ragged in inputs.items()}
    plan, work = planned(stacking, inputs, slices)
    entries = (
        scratch("embed rows", plan.entries + _SPARE, np.int32),
        scratch("embed samples", plan.entries + _SPARE, np.int32),
        scratch("embed gains", plan.entries + _SPARE, np.float32),
    )
    bases = plan.bases.copy()
    counts = np.empty((len(plan.units), 2, len(slices.sources), slices.shards), np.int32)
    calls = [(of_unit, bases[u], counts[u].reshape(2, -1)) for u, of_unit in enumerate(work)]
    jobs = [partial(_run, calls, entries, units, part, slices.first, plan.scratch) for units, part in plan.parts]
    if any(run_all(jobs, thread_count())):
        fields = [(f.name, f.table.vocab) for f in stacking.features] if bad_ids != "error" else []
        inside = {name: inputs[name].inside(vocab, bad_ids, "") for name, vocab in fields}
        if all(ragged is inputs[name] for name, ragged in inside.items()):
            raise complaint(stacking, inputs, slices)
        return tally(inside, stacking, "error", slices)
    return Tally(sizes, entries, bases, counts, plan.first_unit)


def planned(
    stacking: Stacking, inputs: Mapping[str, Ragged], slices: Slices, whole: bool = False
) -> tuple[Schedule, list[Any]]:
    """The schedule for these inputs, and of every unit what a kernel is given first; ``whole``: a stack is one unit."""
    plan = schedule(stacking, inputs, slices, thread_count(), whole)
    joined = (_joined([inputs[feature.name] for feature in unit.features]) for unit in plan.units)
    numbers = [unit.numbers for unit in plan.units]
    return plan, list(zip(joined, plan.features, numbers, plan.groups, plan.samples))


def _joined(inputs: list[Ragged]) -> tuple[Ids, Longs, Floats]:
    """Values, offsets and weights of a unit's features, one feature behind the other."""
    offsets = [_NO_OFFSETS if ragged.offsets is None else ragged.offsets for ragged in inputs]
    if len(inputs) == 1:
        return inputs[0].values, offsets[0], _NO_WEIGHTS if inputs[0].weights is None else inputs[0].weights
    values = np.concatenate([ragged.values for ragged in inputs])
    weights = _NO_WEIGHTS
    if any(ragged.weights is not None for ragged in inputs):
        ones = [np.ones(r.values.size, np.float32) if r.weights is None else r.weights for r in inputs]
        weights = np.concatenate(ones)
    return values, np.concatenate(offsets), weights


def _run(
    calls: list[tuple[Any, Longs, Ints]],
    entries: Entries,
    units: range,
    part: tuple[int, int],
    first: int,
    sizes: tuple[int, int],
) -> int:
    """Kernel 1 for some units and sources, in this thread's scratch; not 0 where it found something bad.

    ``calls``: of every unit what ``reduce_unit`` is given first.
    """
    from tilewright.embed.host.reduce_kernels import reduce_unit

    room = room_for(sizes)
    for u in units:
        if status := reduce_unit(*calls[u], (*part, first), entries, room):
            return int(status)
    return 0


def room_for(sizes: tuple[int, int]) -> Any:
    """This thread's scratch for so many entries and samples, as kernels take it."""
    from tilewright.embed.host.reduce_kernels import DIGIT_SLOTS

    most_entries, most_samples = sizes
    return (
        scratch("sorted keys", most_entries, np.uint64),
        scratch("as many again", most_entries, np.uint64),
        scratch("sample of a key", most_entries, np.int32),
        scratch("gain of a key", most_entries, np.float32),
        scratch("gain of a sample", most_samples, np.float32),
        scratch("counters of digits", DIGIT_SLOTS, np.int32),
    )


def complaint(stacking: Stacking, inputs: Mapping[str, Ragged], slices: Slices) -> UsageError:
    """The first bad id, or the first sample without a divisor, of the features in their order."""
    how = 'mend the data, or pass bad_ids="clip" or bad_ids="drop"'
    for feature in stacking.features:
        samples = slices.samples(inputs[feature.name])[:-1]
        where = f"table {feature.table.name!r}, feature {feature.name!r}"
        try:
            inputs[feature.name].take(samples).inside(feature.table.vocab, "error", where, how, int(samples[0]))
        except UsageError as error:
            return error
    for feature in stacking.features:
        ragged, table = inputs[feature.name], feature.table
        if ragged.weights is None or table.combiner == "sum":
            continue
        samples = slices.samples(ragged)
        bounds = ragged.bounds(samples)
        for sample, begin, end in zip(samples, bounds, bounds[1:]):
            total = np.float32(0)  # the running sum as kernel 1 makes it
            with np.errstate(over="ignore"):
                for w in ragged.weights[begin:end]:
                    square = np.float32(np.float64(total) + np.float64(w) ** 2)
                    total = total + w if table.combiner == "mean" else square
            if end > begin and (total == 0 or not np.isfinite(total)):
                problem = f"the weights of sample {sample} sum to {total:g}, so their {table.combiner} has no value"
                how = "leave such a sample empty, or give it other weights"
                return UsageError(problem, where=f"feature {feature.name!r}", how=how)
    raise AssertionError("nothing is wrong with the batch")  # pragma: no cover


# Units: which tables kernel 1 sorts together.

_FEW = 36
"""Ids per table, source and shard below which tables are sorted together."""


@dataclass(frozen=True, eq=False)
class SortUnit:
    """``placements`` of neighbouring tables of one stack and their ``features``, table by table.

    ``numbers``: kernel 1's ``unit`` argument (S, rows per shard, the two numbers of the
    division by S, combiner, first row in the stack, bits of a position); ``tables``: int64[features, 3] vocab,
    rotation and first row in the unit of each feature's table.
    """

    stack: str
    features: tuple[Feature, ...]
    numbers: tuple[int, ...]
    tables: Longs


def _unit(stack: Stack, placements: list[TablePlacement]) -> SortUnit:
    users = [(f, p) for p in placements for f in stack.features if f.table.name == p.table.name]
    first, shards = placements[0], placements[0].shards
    rows = sum(p.rows_per_shard for p in placements)
    # id // S == (id * magic) >> shift for 0 <= id < 2**31: with 2**k >= S and magic = 2**(31 + k) // S + 1 the error of
    # the product stays below one part in 2**31.
    shift = 31 + (shards - 1).bit_length()
    division, combiner = ((1 << shift) // shards + 1, shift), COMBINERS.index(first.table.combiner)
    numbers = (shards, rows, *division, combiner, first.row_offset, (rows * shards - 1).bit_length())
    tables = [(p.table.vocab, p.rotation, p.row_offset - first.row_offset) for _, p in users]
    return SortUnit(stack.name, tuple(f for f, _ in users), numbers, np.array(tables, np.int64))


def _tables_per_unit(ids: int, tables: int, partitions: int) -> int:
    return min(tables, max(1, _FEW * tables * partitions // max(1, ids)))


def _units_of(
    stacking: Stacking, ids: Mapping[str, int], sources: int, whole: bool
) -> tuple[tuple[SortUnit, ...], Longs]:
    """The units of all stacks, stack by stack, and int64[stacks + 1]: the first of every stack.

    ``ids``: of every feature in this batch. What was decided is kept with the stacking.
    """
    sizes = []
    for stack in stacking.groups:
        in_stack, tables = sum(ids[f.name] for f in stack.features), len(stack.tables)
        partitions = sources * stacking.topology.sparsecores
        sizes.append(tables if whole else _tables_per_unit(in_stack, tables, partitions))
    held: dict[tuple[int, ...], tuple[tuple[SortUnit, ...], Longs]] = stacking.__dict__.setdefault("_units", {})
    key = tuple(sizes)
    if key not in held:
        units, first = [], [0]
        for stack, size in zip(stacking.groups, sizes):
            placements = [stacking.tables[t.name] for t in stack.tables]
            cuts = [*range(0, len(placements), size), len(placements)]
            units += [_unit(stack, placements[a:b]) for a, b in pairwise(cuts)]
            first.append(len(units))
        held[key] = tuple(units), np.array(first, np.int64)
    return held[key]


# The schedule of a batch: a function of the shapes of its inputs, kept with the stacking.

_GROUP = 2048
"""Ids that are sorted together: enough to pay for the counters of the sort, few enough for the first-level cache."""
_SMALL = 20_000
"""Below so many ids a second thread costs more than it brings."""
_KEPT = 8
"""Shapes of batches remembered with a stacking."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """What kernel 1 has to do."""

    units: tuple[SortUnit, ...]  # what is sorted together
    first_unit: Longs  # int64[stacks + 1] of every stack
    bases: Longs  # int64[units, sources]: where their entries begin
    groups: list[int]  # slices sorted together, per unit
    samples: list[int]  # samples of a slice of the unit's stack
    features: list[Longs]  # kernel 1's ``features`` of every unit
    entries: int  # of all units
    scratch: tuple[int, int]  # entries and samples of a thread's scratch
    parts: list[tuple[range, tuple[int, int]]]  # the units and the sources of every thread


def schedule(
    stacking: Stacking, inputs: Mapping[str, Ragged], slices: Slices, threads: int, whole: bool = False
) -> Schedule:
    """The schedule for these inputs; ``whole``: a stack is one unit.

    Where every feature is dense it follows from the shapes, so the next batch of the same shapes has it already.
    """
    if any(ragged.offsets is not None for ragged in inputs.values()):
        return _make_schedule(stacking, inputs, slices, threads, whole)
    held: dict[Any, Schedule] = stacking.__dict__.setdefault("_schedules", {})
    key = (slices, threads, whole, *((ragged.batch_size, ragged.hot) for ragged in inputs.values()))
    known = held.get(key)  # another thread may clear what is held
    if known is None:
        if len(held) >= _KEPT:
            held.clear()
        known = held[key] = _make_schedule(stacking, inputs, slices, threads, whole)
    return known


def _make_schedule(
    stacking: Stacking, inputs: Mapping[str, Ragged], slices: Slices, threads: int, whole: bool
) -> Schedule:
    at = np.arange(slices.first, slices.first + len(slices.sources) + 1, dtype=np.int64)
    bounds = {name: ragged.bounds(at * slices.size(ragged)) for name, ragged in inputs.items()}
    ids = {name: int(ends[-1]) - int(ends[0]) for name, ends in bounds.items()}
    units, first_unit = _units_of(stacking, ids, len(slices.sources), whole)
    begins = np.array([bounds[f.name] for unit in units for f in unit.features])
    sizes = np.add.reduceat(np.diff(begins), np.cumsum([0, *(len(unit.features) for unit in units[:-1])]), axis=0)
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    total = int(ends[-1, -1])
    means = sizes.mean(axis=1).tolist()  # about _GROUP ids are sorted together, and positions stay within 32 bits
    room = [2**32 // (unit.numbers[0] * unit.numbers[1]) for unit in units]
    most = [min(sizes.shape[1], _GROUP // max(1, mean), n) for n, mean in zip(room, means)]
    groups = [int(max(1, slices_)) for slices_ in most]
    widths = {s.name: sum(slices.size(inputs[f.name]) for f in s.features) for s in stacking.groups}
    samples = [widths[unit.stack] for unit in units]
    most_entries = max(n * g for n, g in zip(sizes.max(axis=1).tolist(), groups))
    most_samples = max(w * g for w, g in zip(samples, groups))
    parts = _parts(len(units), len(slices.sources), threads if total > _SMALL else 1)
    rows = _features(stacking, units, inputs, slices)
    return Schedule(units, first_unit, ends - sizes, groups, samples, rows, total, (most_entries, most_samples), parts)


def _parts(units: int, sources: int, threads: int) -> list[tuple[range, tuple[int, int]]]:
    """Which units and which sources each thread does: sources are divided first."""
    columns = min(sources, threads)
    rows = min(units, -(-threads // columns))
    cuts = [sources * i // columns for i in range(columns + 1)]
    return [(range(r, units, rows), cut) for cut in pairwise(cuts) for r in range(rows)]


def _features(
    stacking: Stacking, units: tuple[SortUnit, ...], inputs: Mapping[str, Ragged], slices: Slices
) -> list[Longs]:
    """Kernel 1's argument ``features`` for each unit: int64[features of the unit, 8], a row per feature.

    Columns: first value, first offset (-1: dense), ids per sample (dense), samples per slice, first sample id; and of
    the feature's table vocab, rotation, first row in the unit.
    """
    sizes = {name: slices.size(ragged) * slices.shards for name, ragged in inputs.items()}
    first_samples = {name: at for stack in stacking.groups for name, at in stack.sample_offsets(sizes).items()}
    rows = []
    for unit in units:
        value_base = offset_base = 0
        for feature, table in zip(unit.features, unit.tables.tolist()):
            ragged = inputs[feature.name]
            sparse = ragged.offsets is not None
            at = offset_base if sparse else -1
            rows.append((value_base, at, ragged.hot, slices.size(ragged), first_samples[feature.name], *table))
            value_base += ragged.values.size
            offset_base += ragged.batch_size + 1 if sparse else 0
    joined = np.array(rows, np.int64)
    ends = list(accumulate(len(unit.features) for unit in units))
    return [joined[b:e] for b, e in pairwise([0, *ends])]

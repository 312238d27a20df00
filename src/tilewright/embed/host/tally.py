"""Step 1 of preprocessing: every unit's ids become merged, sorted entries, counted per source and shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Entries, Floats, Ids, Index, Ints, Longs, run_all, workspace
from tilewright.embed.host.inputs import Ragged
from tilewright.embed.host.schedule import Slices, Unit, schedule
from tilewright.embed.model.stacking import Stacking
from tilewright.errors import UsageError
from tilewright.kernels import njit

Arguments: TypeAlias = tuple[Ids, Longs, Floats, tuple[int, ...]]

Call: TypeAlias = tuple[Arguments, Longs, tuple[int, int], Longs, Ints]

BAD_IDS = ("error", "clip", "drop")
_NO_OFFSETS = np.empty(0, np.int64)
_NO_WEIGHTS = np.empty(0, np.float32)
SPARE = 8
"""Entries behind the last that may be read: kernel 2 copies whole vectors."""


@dataclass(frozen=True, eq=False)
class Tally:
    """What kernel 1 made; units (tables sorted together) stand stack by stack, in their order inside it.

    ``entries`` are the calling thread's working buffers: its next tally overwrites them.

    ``entries`` rows (in the stack), samples, gains; ``bases`` int64[units, sources]: where each run begins;
    ``counts`` int32[units, 2, sources, S]: entries, distinct ids; ``first_unit`` int64[stacks + 1].
    """

    entries: Entries
    bases: Longs
    counts: Ints
    first_unit: Longs

    def totals(self) -> tuple[Longs, Longs]:
        """int64[stacks, 2, S]: the most entries and distinct ids any source has for a shard; int64[stacks, sources]:
        slots a source needs, every partition rounded up to 8."""

        stacks, (_, _, sources, shards) = len(self.first_unit) - 1, self.counts.shape
        most, required = np.empty((stacks, 2, shards), np.int64), np.empty((stacks, sources), np.int64)
        add_up(self.counts, self.first_unit, most, required)
        return most, required

    def per_stack(self) -> Longs:
        """int64[stacks, 2, sources, S]: entries and distinct ids of whole stacks."""
        return np.add.reduceat(self.counts, self.first_unit[:-1], axis=0, dtype=np.int64)


def tally(
    stacking: Stacking,
    inputs: Mapping[str, Ragged],
    offsets: Mapping[str, int],
    slices: Slices,
    bad_ids: str,
    threads: int,
) -> Tally:
    """Run kernel 1 over all units and sources; ``offsets``: first sample id of every feature inside a slice."""
    plan = schedule(stacking, inputs, offsets, slices, threads)
    entries = (
        workspace.get("rows", plan.entries + SPARE, np.int32),
        workspace.get("samples", plan.entries + SPARE, np.int32),
        workspace.get("gains", plan.entries + SPARE, np.float32),
    )
    bases = plan.bases.copy()
    counts = np.empty((len(plan.units), 2, len(slices.sources), slices.shards), np.int32)
    bad = BAD_IDS.index(bad_ids)
    arguments = [_arguments(unit, [inputs[f.name] for f in unit.features], bad) for unit in plan.units]
    calls = list(zip(arguments, plan.features, zip(plan.groups, plan.samples), bases, counts))
    runs = [partial(_run, calls, entries, chosen, part, slices.first, plan.need) for chosen, part in plan.parts]
    if any(run_all(runs, threads)):
        raise _complaint(stacking, inputs, slices)
    return Tally(entries, bases, counts, plan.first_unit)


def _arguments(unit: Unit, given: list[Ragged], bad_ids: int) -> Arguments:
    """Kernel 1's values, offsets, weights and unit; the features of one unit are joined."""
    numbers = (*unit.numbers[:5], bad_ids, *unit.numbers[5:])
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
    calls: list[Call], entries: Entries, chosen: range, part: tuple[int, int], first: int, need: tuple[int, int]
) -> int:
    """Kernel 1 for some units and sources, in this thread's scratch; not 0 if one of them found something bad."""
    from tilewright.embed.host.reduce_kernels import reduce_unit, scratch

    room = scratch(*need)
    for t in chosen:
        (values, offsets, weights, numbers), rows, (group, samples), bases, counts = calls[t]
        status = reduce_unit(
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


# One pass over the counts of kernel 1 for all that limits, buffers and statistics need: there may be millions.


@njit(cache=True, nogil=True)
def add_up(counts: Ints, units: Longs, most: Longs, required: Longs) -> None:
    """From ``counts`` int32[units, 2, sources, S] (entries, distinct ids) and the first unit of every stack and the
    end ``units`` int64[stacks + 1]: ``most`` int64[stacks, 2, S], of all sources, and ``required`` int64[stacks,
    sources], slots with every partition rounded up to 8.
    """
    shards = counts.shape[3]
    whole = np.empty(shards, np.int32)
    for k in range(units.size - 1):
        most[k] = 0
        for kind in range(2):
            peak = most[k, kind]
            for l in range(counts.shape[2]):
                if units[k + 1] - units[k] == 1:
                    row = counts[units[k], kind, l]
                else:
                    row = whole
                    row[:] = 0
                    for u in range(units[k], units[k + 1]):
                        row += counts[u, kind, l]
                slots: Index = 0
                for shard in range(shards):
                    n = np.int64(row[shard])
                    peak[shard] = max(peak[shard], n)
                    slots += (n + 7) & ~7
                if kind == 0:
                    required[k, l] = slots

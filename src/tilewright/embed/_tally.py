"""Step 1 of preprocessing: every unit's ids become merged, sorted entries, counted per source and shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from tilewright.embed._inputs import Ragged
from tilewright.embed._stacking import Stacking
from tilewright.embed._threads import run_all, workspace
from tilewright.embed._types import Entries, Floats, Ids, Ints, Longs
from tilewright.embed._units import Unit, units_of
from tilewright.errors import UsageError

__all__ = ["BAD_IDS", "Slices", "Tally", "tally"]

Arguments: TypeAlias = tuple[Ids, Longs, Floats, tuple[int, ...]]

Call: TypeAlias = tuple[Arguments, Longs, tuple[int, int], Longs, Ints]

BAD_IDS = ("error", "clip", "drop")
_NO_OFFSETS = np.empty(0, np.int64)
_NO_WEIGHTS = np.empty(0, np.float32)
SPARE = 8
"""Entries behind the last that may be read: kernel 2 copies whole vectors."""

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
        from tilewright.embed._totals import add_up

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
    at = np.arange(slices.first, slices.first + len(slices.sources) + 1, dtype=np.int64)
    bounds = _bounds(inputs, slices, at)
    ids = {name: int(ends[-1]) - int(ends[0]) for name, ends in bounds.items()}
    units, first_unit = units_of(stacking, ids, len(slices.sources))
    begins = np.array([bounds[f.name] for unit in units for f in unit.features])
    sizes = np.add.reduceat(np.diff(begins), np.cumsum([0, *(len(unit.features) for unit in units[:-1])]), axis=0)
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    bases, total = ends - sizes, int(ends[-1, -1])
    entries = (
        workspace.get("rows", total + SPARE, np.int32),
        workspace.get("samples", total + SPARE, np.int32),
        workspace.get("gains", total + SPARE, np.float32),
    )
    counts = np.empty((len(units), 2, len(slices.sources), slices.shards), np.int32)
    groups = _groups(units, sizes)
    widths = {s.name: sum(slices.each(inputs[f.name]) for f in s.features) for s in stacking.groups}
    samples = [widths[unit.stack] for unit in units]
    rows = _feature_rows(units, inputs, offsets, slices)
    arguments = [_arguments(unit, [inputs[f.name] for f in unit.features], BAD_IDS.index(bad_ids)) for unit in units]
    calls = list(zip(arguments, rows, zip(groups, samples), bases, counts))
    need = max(int(n) * g for n, g in zip(sizes.max(axis=1), groups)), max(w * g for w, g in zip(samples, groups))
    parts = _parts(len(units), len(slices.sources), threads if total > _SMALL else 1)
    runs = [partial(_run, calls, entries, chosen, part, slices.first, need) for chosen, part in parts]
    if any(run_all(runs, threads)):
        raise _complaint(stacking, inputs, slices)
    return Tally(entries, bases, counts, first_unit)


def _bounds(inputs: Mapping[str, Ragged], slices: Slices, at: Longs) -> dict[str, Longs]:
    """Where the slices ``at`` begin in every feature's values; dense features of one shape share the answer."""
    bounds, known = {}, dict[tuple[int, int], Longs]()
    for name, ragged in inputs.items():
        each = slices.each(ragged)
        if ragged.offsets is not None:
            bounds[name] = ragged.bounds(at * each)
            continue
        if (each, ragged.hot) not in known:
            known[each, ragged.hot] = ragged.bounds(at * each)
        bounds[name] = known[each, ragged.hot]
    return bounds


def _groups(units: tuple[Unit, ...], sizes: Longs) -> list[int]:
    """Slices sorted together, per unit: about _GROUP ids, and positions that stay within 32 bits."""
    means = sizes.mean(axis=1)
    return [
        int(max(1, min(sizes.shape[1], _GROUP // max(1, mean), 2**32 // unit.positions)))
        for unit, mean in zip(units, means.tolist())
    ]


def _parts(units: int, sources: int, threads: int) -> list[tuple[range, tuple[int, int]]]:
    """Which units and which sources each thread does: sources are divided first."""
    columns = min(sources, threads)
    rows = min(units, -(-threads // columns))
    cuts = [sources * i // columns for i in range(columns + 1)]
    return [(range(r, units, rows), cut) for cut in pairwise(cuts) for r in range(rows)]


def _feature_rows(
    units: tuple[Unit, ...], inputs: Mapping[str, Ragged], offsets: Mapping[str, int], slices: Slices
) -> list[Longs]:
    """Kernel 1's ``features`` of every unit."""
    rows = []
    for unit in units:
        value_base = offset_base = 0
        for feature, table in zip(unit.features, unit.tables.tolist()):
            ragged = inputs[feature.name]
            sparse = ragged.offsets is not None
            at = offset_base if sparse else -1
            rows.append((value_base, at, ragged.hot, slices.each(ragged), offsets[feature.name], *table))
            value_base += ragged.values.size
            offset_base += ragged.batch_size + 1 if sparse else 0
    joined = np.array(rows, np.int64)
    ends = list(accumulate(len(unit.features) for unit in units))
    return [joined[b:e] for b, e in pairwise([0, *ends])]


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
    from tilewright.embed._reduce import reduce_unit, scratch

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

"""What kernel 1 has to do for a batch, before it sees an id: a function of shapes, kept with the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import Ragged
from tilewright.embed.model.stacking import Placement, Stack, Stacking
from tilewright.embed.model.tables import COMBINERS, Feature

# Which tables kernel 1 sorts together: one table, or neighbours of a stack where a table alone has too few ids.

_FEW = 36
"""Ids per table, source and shard below which tables are sorted together."""


@dataclass(frozen=True, eq=False)
class Unit:
    """``placements`` of neighbouring tables of one stack and their ``features``, table by table.

    ``numbers``: kernel 1's ``unit`` argument but for the bad-id mode (S, rows per shard, the two numbers of the
    division by S, combiner, first row in the stack, bits of a position); ``tables``: int64[features, 3] vocab,
    rotation and first row in the unit of each feature's table.
    """

    stack: str
    features: tuple[Feature, ...]
    numbers: tuple[int, ...]
    tables: Longs
    positions: int


def _division(shards: int) -> tuple[int, int]:
    """``id // S == (id * magic) >> shift`` for 0 <= id < 2**31: with 2**k >= S and magic = 2**(31 + k) // S + 1 the
    error of the product stays below one part in 2**31."""
    shift = 31 + (shards - 1).bit_length()
    return (1 << shift) // shards + 1, shift


def _unit(stack: Stack, placements: list[Placement]) -> Unit:
    users = [(f, p) for p in placements for f in stack.features if f.table.name == p.table.name]
    first, shards = placements[0], placements[0].shards
    rows = sum(p.rows_per_shard for p in placements)
    combiner = COMBINERS.index(first.table.combiner)
    numbers = (shards, rows, *_division(shards), combiner, first.row_offset, (rows * shards - 1).bit_length())
    tables = [(p.table.vocab, p.rotation, p.row_offset - first.row_offset) for _, p in users]
    return Unit(stack.name, tuple(f for f, _ in users), numbers, np.array(tables, np.int64), rows * shards)


def _tables_together(ids: int, tables: int, partitions: int) -> int:
    """How many tables of a stack of ``tables`` make a unit, for ``ids`` in so many (source, shard) ``partitions``."""
    return min(tables, max(1, _FEW * tables * partitions // max(1, ids)))


def units_of(stacking: Stacking, ids: Mapping[str, int], sources: int) -> tuple[tuple[Unit, ...], Longs]:
    """The units of all stacks, stack by stack, and int64[stacks + 1]: the first of every stack.

    ``ids``: of every feature in this batch. What was decided is kept with the plan.
    """
    sizes = []
    for stack in stacking.groups:
        given = sum(ids[f.name] for f in stack.features)
        sizes.append(_tables_together(given, len(stack.tables), sources * stacking.topology.sparsecores))
    held: dict[tuple[int, ...], Any] = stacking.__dict__.setdefault("_units", {})
    key = tuple(sizes)
    if key not in held:
        held[key] = _make_units(stacking, sizes)
    made: tuple[tuple[Unit, ...], Longs] = held[key]
    return made


def _make_units(stacking: Stacking, sizes: list[int]) -> tuple[tuple[Unit, ...], Longs]:
    units, first = [], [0]
    for stack, size in zip(stacking.groups, sizes):
        placements = [stacking.tables[t.name] for t in stack.tables]
        cuts = [*range(0, len(placements), size), len(placements)]
        units += [_unit(stack, placements[a:b]) for a, b in pairwise(cuts)]
        first.append(len(units))
    return tuple(units), np.array(first, np.int64)


_GROUP = 2048
"""Ids that are sorted together: enough to pay for the counters of the sort, few enough for the first-level cache."""
_SMALL = 20_000
"""Below so many ids a second thread costs more than it brings."""
_KEPT = 8
"""Shapes of batches remembered with a plan."""


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
class Schedule:
    """The ``units``, ``first_unit`` int64[stacks + 1] of every stack, and of every unit: ``bases`` int64[units,
    sources], where its entries begin, the slices sorted together (``groups``), the ``samples`` of a slice of its
    stack, and kernel 1's ``features``. ``entries`` of all, ``need``: entries and samples of scratch, ``parts``: units
    and sources of every thread.
    """

    units: tuple[Unit, ...]
    first_unit: Longs
    bases: Longs
    groups: list[int]
    samples: list[int]
    features: list[Longs]
    entries: int
    need: tuple[int, int]
    parts: list[tuple[range, tuple[int, int]]]


def schedule(
    stacking: Stacking, inputs: Mapping[str, Ragged], offsets: Mapping[str, int], slices: Slices, threads: int
) -> Schedule:
    """The schedule for these inputs; ``offsets``: first sample id of every feature inside a slice.

    Where every feature is dense it follows from the shapes, so the next batch of the same shapes has it already.
    """
    if any(ragged.offsets is not None for ragged in inputs.values()):
        return _make(stacking, inputs, offsets, slices, threads)
    held: dict[Any, Schedule] = stacking.__dict__.setdefault("_schedules", {})
    key = (slices, threads, *((ragged.batch_size, ragged.hot) for ragged in inputs.values()))
    found = held.get(key)
    if found is None:
        if len(held) >= _KEPT:
            held.clear()
        found = held[key] = _make(stacking, inputs, offsets, slices, threads)
    return found


def _make(
    stacking: Stacking, inputs: Mapping[str, Ragged], offsets: Mapping[str, int], slices: Slices, threads: int
) -> Schedule:
    at = np.arange(slices.first, slices.first + len(slices.sources) + 1, dtype=np.int64)
    bounds = {name: ragged.bounds(at * slices.each(ragged)) for name, ragged in inputs.items()}
    ids = {name: int(ends[-1]) - int(ends[0]) for name, ends in bounds.items()}
    units, first_unit = units_of(stacking, ids, len(slices.sources))
    begins = np.array([bounds[f.name] for unit in units for f in unit.features])
    sizes = np.add.reduceat(np.diff(begins), np.cumsum([0, *(len(unit.features) for unit in units[:-1])]), axis=0)
    ends = np.cumsum(sizes.reshape(-1)).reshape(sizes.shape)
    total = int(ends[-1, -1])
    groups = _groups(units, sizes)
    widths = {s.name: sum(slices.each(inputs[f.name]) for f in s.features) for s in stacking.groups}
    samples = [widths[unit.stack] for unit in units]
    need = max(n * g for n, g in zip(sizes.max(axis=1).tolist(), groups)), max(w * g for w, g in zip(samples, groups))
    parts = _parts(len(units), len(slices.sources), threads if total > _SMALL else 1)
    rows = _features(units, inputs, offsets, slices)
    return Schedule(units, first_unit, ends - sizes, groups, samples, rows, total, need, parts)


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


def _features(
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

"""Why partitions are uneven, and what would even them out: replayed on the sampled batches of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import Ragged
from tilewright.embed.host.observe import Observed, count_batch
from tilewright.embed.host.preprocess import ragged_inputs, source_slices
from tilewright.embed.model.stacking import Placement, Stack, Stacking, stack
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.types import AS_IT_IS, HotId, Remedy, Skew

# A log's batches changed: ids hashed, samples shuffled, the hottest ids left out. Only what is counted is kept.

Inputs: TypeAlias = Mapping[str, Ragged]

_ODD = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


def ragged(batch: Mapping[str, Any], stacking: Stacking) -> dict[str, Ragged]:
    """A batch's ids without weights: they change no count."""
    found = ragged_inputs(batch, stacking, source_slices(stacking, None, False))
    return {name: Ragged(r.values, r.batch_size, r.hot, r.offsets) for name, r in found.items()}


def given(inputs: Inputs) -> dict[str, Any]:
    """As ``preprocess`` takes it again."""
    return {
        name: r.values.reshape(r.batch_size, -1) if r.offsets is None else (r.values, r.offsets)
        for name, r in inputs.items()
    }


def permuted(ids: Longs, vocab: int) -> Longs:
    """Ids in 0 .. vocab - 1 mixed one to one: odd factors and shifts on the bits of the next power of two, again for
    what lands beyond the vocabulary (each id ends inside, for it began there).

    >>> np.sort(permuted(np.arange(10), 10)).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    bits = max(1, (vocab - 1).bit_length())
    mask, shift = np.uint64((1 << bits) - 1), np.uint64(max(1, bits // 2))
    mixed = ids.astype(np.uint64)
    todo = np.arange(len(mixed))
    while todo.size:
        part = mixed[todo]
        for factor in _ODD:
            part = (part * np.uint64(factor)) & mask
            part ^= part >> shift
        mixed[todo] = part
        todo = todo[part >= vocab]
    return mixed.astype(np.int64)


def hashed(batch: Inputs, stacking: Stacking) -> dict[str, Ragged]:
    """Every table's ids permuted: what hashing does to neighbours and regular strides, without collisions."""
    return {f.name: _hashed(batch[f.name], f.table.vocab) for f in stacking.features}


def _hashed(ids: Ragged, vocab: int) -> Ragged:
    values = ids.values.astype(np.int64)
    good = (values >= 0) & (values < vocab)
    values[good] = permuted(values[good], vocab)
    return Ragged(values, ids.batch_size, ids.hot, ids.offsets)


def shuffled(batches: Sequence[Inputs]) -> list[dict[str, Ragged]]:
    """All samples of the batches in one random order, cut into batches of the same sizes; features stay together."""
    found: list[dict[str, Ragged]] = [{} for _ in batches]
    orders: dict[tuple[int, ...], Longs] = {}
    for name in batches[0]:
        parts = [b[name] for b in batches]
        sizes = tuple(p.batch_size for p in parts)
        if sizes not in orders:
            orders[sizes] = np.random.Generator(np.random.PCG64(0)).permutation(sum(sizes))
        lengths = np.concatenate([lengths_of(p) for p in parts])
        whole = Ragged(np.concatenate([values_of(p) for p in parts]), len(lengths), offsets=_offsets(lengths))
        ends = np.cumsum(sizes)
        for k, order in enumerate(np.split(orders[sizes], ends[:-1])):
            found[k][name] = _taken(whole, order)
    return found


def values_of(ids: Ragged) -> Longs:
    """The ids of all samples, one sample behind the other."""
    ends = ids.bounds(np.array([0, ids.batch_size]))
    return ids.values[int(ends[0]) : int(ends[1])].astype(np.int64)


def lengths_of(ids: Ragged) -> Longs:
    """How many ids every sample has."""
    return np.diff(ids.bounds(np.arange(ids.batch_size + 1)))


def _offsets(lengths: Longs) -> Longs:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _taken(ids: Ragged, samples: Longs) -> Ragged:
    """The samples in that order."""
    lengths, begins = lengths_of(ids)[samples], ids.bounds(samples)
    offsets = _offsets(lengths)
    at = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
    return Ragged(ids.values[at], len(samples), offsets=offsets)


def without(batch: Inputs, hot: Sequence[HotId], stacking: Stacking) -> dict[str, Ragged]:
    """The batch without every stack's hottest id (the first in ``hot``)."""
    first: dict[str, HotId] = {}
    for each in hot:
        first.setdefault(each.stack, each)
    gone = {(each.table, each.id) for each in first.values()}
    return {f.name: _filtered(batch[f.name], [i for t, i in gone if t == f.table.name]) for f in stacking.features}


def _filtered(ids: Ragged, gone: Sequence[int]) -> Ragged:
    if not gone:
        return ids
    values = values_of(ids)
    keep = ~np.isin(values, gone)
    samples = np.repeat(np.arange(ids.batch_size), lengths_of(ids))[keep]
    lengths = np.bincount(samples, minlength=ids.batch_size)
    return Ragged(values[keep], ids.batch_size, offsets=_offsets(lengths))


# What other rotations of a stack's tables would do: their counts are turned and added, no id is counted again.

_STEPS = 64
_ENTRIES = 1 << 22
"""Counts among which the best rotation is looked for; the chosen one is counted on everything."""


class Rotation:
    """Fullest partitions and loads of shards of one stack, table k turned by k * ``step`` shards."""

    def __init__(self, shards: int, step: int) -> None:
        self.step, self.change = step, f"rotation by {step}" if step else "no rotation"
        self.most, self.per_shard = np.zeros(2, np.int64), np.zeros(shards, np.int64)
        self._batch = np.zeros((2, shards, shards), np.int64)

    def add(self, k: int, counts: Longs) -> None:
        """Table k of the batch at hand, unturned: int64[2, sources, S]."""
        add_turned(self._batch, counts, k * self.step)

    def finish(self) -> None:
        """The batch is whole."""
        np.maximum(self.most, self._batch.max(axis=(1, 2)), out=self.most)
        self.per_shard += self._batch[0].sum(axis=0)
        self._batch[:] = 0


def add_turned(total: Longs, counts: Longs, by: int) -> None:
    """Add counts [.., S] to ``total``, what shard s has at shard (s + by) % S.

    >>> total = np.zeros(4, np.int64)
    >>> add_turned(total, np.array([5, 1, 0, 2]), 1)
    >>> total.tolist()
    [2, 5, 1, 0]
    """
    shards = counts.shape[-1]
    at = by % shards
    total[..., at:] += counts[..., : shards - at]
    if at:
        total[..., :at] += counts[..., shards - at :]


def some_sources(counts: Longs, tables: int) -> Longs:
    """Entries of so many sources that all tables' counts stay few: [sources, S]."""
    sources, shards = counts.shape[1:]
    most = max(1, _ENTRIES // (shards * tables))
    return counts[0, :: -(-sources // most)].copy()


def best_rotation(tables: Sequence[Longs], now: int) -> int:
    """The step whose fullest partition is smallest on some sources of one batch; none is better: ``now``."""
    sources, shards = tables[0].shape
    tries = max(4, min(_STEPS, (_ENTRIES * 32) // (sources * shards * len(tables))))
    steps = [now, *(step for step in range(1, shards) if step != now)][:tries]

    def peaks(step: int) -> tuple[int, int]:
        whole = np.zeros((sources, shards), np.int64)
        for k, counts in enumerate(tables):
            add_turned(whole, counts, k * step)
        return int(whole.max()), int(whole.sum(axis=0).max())

    return min(steps, key=peaks)


_HOTTEST = 3


def skew_of(observed: Observed) -> Skew:
    """Replay the sampled batches as they are, rotated otherwise, with hashed ids, shuffled, without the hottest ids."""
    stacking = observed.stacking
    batches = [ragged(batch, stacking) for batch in observed.sample]
    now = _Counts(stacking, batches, observed.bad_ids)
    hot = tuple(
        h for each in stacking.groups for h in _hot(each, stacking, batches, int(now.per_shard[each.name].argmax()))
    )
    rotations, alone = _rotations(stacking, batches, observed.bad_ids)
    others: dict[str, Iterable[Inputs]] = {
        "ids hashed": (hashed(b, stacking) for b in batches),
        "log shuffled": shuffled(batches),
        "hottest id held apart": (without(b, hot, stacking) for b in batches),
    }
    changed = {change: _Counts(stacking, inputs, observed.bad_ids) for change, inputs in others.items()}
    remedies = []
    for each in stacking.groups:
        remedies.append(now.remedy(each.name, AS_IT_IS))
        remedies += rotations[each.name]
        remedies += [counts.remedy(each.name, change) for change, counts in changed.items()]
    return Skew(hot, tuple(remedies), alone)


class _Counts:
    """Fullest partitions and loads of shards over some batches."""

    def __init__(self, stacking: Stacking, batches: Iterable[Inputs], bad_ids: str) -> None:
        stacks, shards = len(stacking.groups), stacking.topology.sparsecores
        most, per_shard = np.zeros((stacks, 2), np.int64), np.zeros((stacks, shards), np.int64)
        for batch in batches:
            counts = count_batch(given(batch), stacking, bad_ids)[1]
            np.maximum(most, counts.max(axis=(2, 3)), out=most)
            per_shard += counts[:, 0].sum(axis=1)
        self.most, self.per_shard = dict(zip(stacking.stacks, most)), dict(zip(stacking.stacks, per_shard))

    def remedy(self, name: str, change: str) -> Remedy:
        """The figures of one stack."""
        return _remedy(name, change, self.most[name], self.per_shard[name])


def _rotations(
    stacking: Stacking, batches: Sequence[Inputs], bad_ids: str
) -> tuple[dict[str, list[Remedy]], dict[str, Limits]]:
    """Per stack what no rotation and the best one would give, and every table's limits were it not stacked.

    Tables are counted one by one, so that however many there are only one table's partitions are in memory.
    """
    alone = {p.table.name: _alone(p.table.name, stacking) for p in stacking.placements}
    most = {name: np.zeros(2, np.int64) for name in alone}
    remedies: dict[str, list[Remedy]] = {}

    def counted(batch: Inputs, name: str) -> Longs:
        inputs = given({f.name: batch[f.name] for f in alone[name].features})
        counts: Longs = count_batch(inputs, alone[name], bad_ids)[1][0]
        np.maximum(most[name], counts.max(axis=(1, 2)), out=most[name])
        return counts

    for each in stacking.groups:
        turns = _turns(each, stacking, lambda name: counted(batches[0], name))
        for batch in batches:
            for k, table in enumerate(each.tables):
                counts = counted(batch, table.name)
                for turn in turns:
                    turn.add(k, counts)
            for turn in turns:
                turn.finish()
        remedies[each.name] = [_remedy(each.name, t.change, t.most, t.per_shard) for t in turns]
    return remedies, {name: Limits(*(max(1, int(n)) for n in counts)) for name, counts in most.items()}


def _alone(name: str, stacking: Stacking) -> Stacking:
    return stack([f for f in stacking.features if f.table.name == name], stacking.topology, table_stacking=False)


def _turns(each: Stack, stacking: Stacking, counted: Callable[[str], Longs]) -> list[Rotation]:
    """The rotations worth a look beside the one the stack has."""
    shards = stacking.topology.sparsecores
    if len(each.tables) < 2 or shards < 2:
        return []
    now = stacking.tables[each.tables[1].name].rotation
    best = best_rotation([some_sources(counted(t.name), len(each.tables)) for t in each.tables], now)
    return [Rotation(shards, step) for step in sorted({0, best}) if step != now]


def _remedy(name: str, change: str, most: Longs, per_shard: Longs) -> Remedy:
    ids, unique = (max(1, int(n)) for n in most)
    imbalance = float(per_shard.max() / per_shard.mean()) if per_shard.any() else 1.0
    return Remedy(name, change, Limits(ids, min(ids, unique)), imbalance)


def _hot(each: Stack, stacking: Stacking, batches: Sequence[Inputs], shard: int) -> list[HotId]:
    """The ids with the most entries on the fullest shard (an id counts once per sample)."""
    found: dict[tuple[str, int], int] = {}
    total = 0
    for feature in each.features:
        place = stacking.tables[feature.table.name]
        for batch in batches:
            ids, entries = np.unique(_on_shard(batch[feature.name], place, shard), return_counts=True)
            total += int(entries.sum())
            for k in np.argsort(-entries, kind="stable")[: 8 * _HOTTEST].tolist():
                key = feature.table.name, int(ids[k])
                found[key] = found.get(key, 0) + int(entries[k])
    hottest = sorted(found.items(), key=lambda item: -item[1])[:_HOTTEST]
    return [HotId(each.name, table, i, shard, n, n / max(1, total)) for (table, i), n in hottest]


def _on_shard(ids: Ragged, place: Placement, shard: int) -> Longs:
    """Merged ids that live on the shard, one for every sample that has them."""
    values = values_of(ids)
    samples = np.repeat(np.arange(ids.batch_size), lengths_of(ids))
    here = ((values + place.rotation) % place.shards == shard) & (values >= 0) & (values < place.table.vocab)
    merged = values[here] + samples[here] * place.table.vocab
    if ids.hot != 1:
        merged = np.unique(merged)
    found: Longs = merged % place.table.vocab
    return found

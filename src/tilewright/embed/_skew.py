"""Why partitions are uneven, and what would even them out: replayed on the sampled batches of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tilewright.embed._inputs import Ragged
from tilewright.embed._observe import Observed, count_batch
from tilewright.embed._skew_inputs import Inputs, given, hashed, lengths_of, ragged, shuffled, values_of, without
from tilewright.embed._skew_rotation import Rotation, best_rotation, some_sources
from tilewright.embed._skew_types import AS_IT_IS, HotId, Remedy, Skew
from tilewright.embed._stacking import Placement, Stack, Stacking, stack
from tilewright.embed._tables import Limits
from tilewright.embed._types import Longs

__all__ = ["skew_of"]

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

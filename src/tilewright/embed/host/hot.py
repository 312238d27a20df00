"""Hot rows: the few ids that fill one shard are held by every device instead, and leave the partitions.

A hot row is summed and learnt where the samples are, like a dense parameter; its home in the table keeps its old value
and gets the new one when the state is saved. So stacks, tables and checkpoints stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Floats, Ints, Longs
from tilewright.embed.host.inputs import Ragged, normalise, offsets_of
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Feature
from tilewright.errors import UsageError

_TRIED = 64
"""Batches in which hot rows are looked for, at most."""


def hot_rows(
    batches: Iterable[Mapping[str, Any]], features: Iterable[Feature], above: float, most: int = 1024
) -> dict[str, Longs]:
    """Table -> the ids, rising, that are more than the share ``above`` of its entries in some batches of a log.

    A shard's fair share of S shards is 1 / S, so that an id above that overfills its shard alone. The hottest ``most``
    ids of a table are taken; the first 64 batches are read.

    >>> from tilewright.embed import Table
    >>> hot_rows([{"f": np.array([[1], [1], [1], [2]])}], [Feature("f", Table("t", 10, 8))], above=0.5)
    {'t': array([1])}
    """
    if not 0 < above < 1:
        raise UsageError(f"a share of {above}", where="hot rows", how="give one above 0 and below 1, such as 0.01")
    features, counts = tuple(features), dict[str, dict[int, int]]()
    totals: dict[str, int] = {}
    for _, batch in zip(range(_TRIED), batches):
        for feature in features:
            ids, found = np.unique(normalise(batch[feature.name], feature.name).values, return_counts=True)
            of_table = counts.setdefault(feature.table.name, {})
            size = int(found.sum())
            totals[feature.table.name] = totals.get(feature.table.name, 0) + size
            for k in np.flatnonzero(found > above * size / 4).tolist():  # rarer ones cannot become hot, as a rule
                of_table[int(ids[k])] = of_table.get(int(ids[k]), 0) + int(found[k])
    hot = {}
    for name, of_table in counts.items():
        chosen = sorted(of_table, key=lambda i: (-of_table[i], i))[:most]
        kept = sorted(i for i in chosen if of_table[i] > above * totals[name])
        if kept:
            hot[name] = np.array(kept, np.int64)
    return hot


@dataclass(frozen=True)
class HotEntries:
    """The hot entries of one feature's batch: ``samples`` i32[E] (the batch's size: none), ``rows`` i32[E] of the hot
    ids, ``gains`` f32[E]; ``shares`` f32[batch]: what the other entries' mean is worth (None: all)."""

    samples: Any
    rows: Any
    gains: Any
    shares: Any


def split_hot(
    batch: Mapping[str, Any], stacking: Stacking, hot: Mapping[str, Longs]
) -> tuple[dict[str, Any], dict[str, HotEntries]]:
    """The batch without its hot ids, for ``preprocess``; and the hot ones, combined as the table says.

    Ids outside a table stay in the batch, whose reader judges them.
    """
    cold, entries = dict(batch), {}
    for feature in stacking.features:
        ids = hot.get(feature.table.name)
        if ids is not None and feature.name in batch:
            ragged = normalise(batch[feature.name], feature.name)
            cold[feature.name], entries[feature.name] = _split(ragged, ids, feature.table.combiner)
    return cold, entries


def _split(ragged: Ragged, hot: Longs, combiner: str) -> tuple[Any, HotEntries]:
    values, samples, size = ragged.values.astype(np.int64), ragged.samples, ragged.batch_size
    place = np.minimum(np.searchsorted(hot, values), len(hot) - 1)
    here = hot[place] == values
    lengths = np.bincount(samples[~here], minlength=size)
    weights = np.ones(values.size, np.float32) if ragged.weights is None else ragged.weights
    flat = ragged.values[~here], offsets_of(lengths)
    cold = flat if ragged.weights is None else (*flat, weights[~here])
    gains, shares = _combined(weights, samples, here, size, combiner)
    return cold, _padded(samples[here], place[here], gains[here], shares, size)


def _combined(weights: Floats, samples: Longs, here: Any, size: int, combiner: str) -> tuple[Floats, Floats | None]:
    """Gains of all entries, and per sample the divisor of the cold entries over that of all."""
    if combiner == "sum":
        return weights, None
    powers = weights.astype(np.float64) ** (2 if combiner == "sqrtn" else 1)
    cold, whole = (np.bincount(samples, powers * part, size) for part in (~here, np.ones_like(here)))
    if combiner == "sqrtn":
        cold, whole = np.sqrt(cold), np.sqrt(whole)
    there = np.where(whole == 0, 1, whole)
    return (weights / there[samples]).astype(np.float32), (cold / there).astype(np.float32)


def _padded(samples: Longs, rows: Longs, gains: Floats, shares: Floats | None, size: int) -> HotEntries:
    """Lengths are powers of two, so that programs are seldom compiled anew."""
    count = len(samples)
    room = max(8, 1 << (count - 1).bit_length()) if count else 8

    def filled(given: Any, value: int, dtype: Any) -> Any:
        made = np.full(room, value, dtype)
        made[:count] = given
        return made

    padded: tuple[Ints, Ints, Floats] = (
        filled(samples, size, np.int32),
        filled(rows, 0, np.int32),
        filled(gains, 0, np.float32),
    )
    return HotEntries(*padded, shares)

"""A log's batches changed: ids hashed, samples shuffled, the hottest ids left out. Only what is counted is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed._inputs import Ragged
from tilewright.embed._preprocess import ragged_inputs, source_slices
from tilewright.embed._skew_types import HotId
from tilewright.embed._stacking import Stacking
from tilewright.embed._types import Longs

__all__ = ["Inputs", "given", "hashed", "lengths_of", "permuted", "ragged", "shuffled", "values_of", "without"]

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

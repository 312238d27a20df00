"""Limits without a log: ids as a good hash would spread them, so that partitions are balls thrown into bins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.confidence import log_chance

CHANCE = 1e-3
"""That some partition of a stack exceeds the limits in a batch, at most."""


def uniform_limits(stacking: Stacking, sizes: Mapping[str, int], ids_per_sample: int) -> dict[str, Limits]:
    """Stack -> limits that a batch of uniform ids exceeds with a chance of at most 0.1 %.

    A source's ids fall on every shard with the same chance; S x S partitions are bounded one by one and added up. Real
    ids are not uniform: a log, even a small one, says more.
    """
    return {group.name: _limits(group, sizes, ids_per_sample) for group in stacking.groups}


def _limits(group: Stack, sizes: Mapping[str, int], ids_per_sample: int) -> Limits:
    entries = group.samples_per_sparsecore(sizes) * ids_per_sample
    most = fullest(entries, group.shards, CHANCE / group.shards**2)
    return Limits.holding(most, min(most, group.rows_per_shard))


@cache
def fullest(entries: int, shards: int, chance: float) -> int:
    """The smallest n such that of ``entries`` thrown into ``shards`` one shard gets more with at most that chance.

    >>> fullest(64, 1, 0.1), fullest(64, 64, 1e-9)
    (64, 11)
    """
    if shards == 1:
        return entries
    p, mean = 1 / shards, entries / shards
    n = math.floor(mean)
    while n < entries and _above(n, entries, p) > chance:
        n += max(1, n >> 10)
    return min(n, entries)


def _above(n: int, entries: int, p: float) -> float:
    """The chance of more than ``n``, for n not below the mean: terms fall at least like a geometric series."""
    if n >= entries:
        return 0.0
    first = math.exp(log_chance(n + 1, entries, p))
    ratio = (entries - n - 1) / (n + 2) * p / (1 - p)
    return first / (1 - ratio) if ratio < 1 else 1.0

"""Sampled batches run again under candidate limits: their drops and mini-batches, counted, not estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.embed._observe import Observed, count_batch, splits
from tilewright.embed._overflow import limit_table
from tilewright.embed._preprocess import preprocess
from tilewright.embed._tables import Limits
from tilewright.embed._types import Longs

__all__ = ["Replayed", "replay"]


@dataclass(frozen=True)
class Replayed:
    """Under one choice of limits: ``dropped``, per stack the share of entries dropped where ids are dropped above them;
    ``minibatches``, into how many each batch is cut (a bucket that alone is too full stays whole)."""

    dropped: dict[str, float]
    minibatches: list[int]


def replay(observed: Observed, candidates: Sequence[Mapping[str, Limits]]) -> list[Replayed]:
    """Every batch is counted once for all candidates; only what overflows is cut and dropped."""
    names = list(observed.stacking.stacks)
    tables = [limit_table(limits, observed.stacking) for limits in candidates]
    entries = np.zeros(len(names), np.int64)
    dropped = np.zeros((len(candidates), len(names)), np.int64)
    cuts: list[list[int]] = [[] for _ in candidates]
    for batch in observed.sample:
        made, counts, _ = count_batch(batch, observed.stacking, observed.bad_ids)
        entries += counts[:, 0].sum(axis=(1, 2))
        over = [bool((counts.max(axis=(2, 3)) > table).any()) for table in tables]
        for k, table in enumerate(tables):
            cuts[k].append(splits(observed.stacking, made, table) if over[k] else 1)
        for k in np.flatnonzero(over).tolist():
            dropped[k] += _dropped(observed, batch, candidates[k])
    shares = dropped / np.maximum(entries, 1)
    return [Replayed(dict(zip(names, row.tolist())), cut) for row, cut in zip(shares, cuts)]


def _dropped(observed: Observed, batch: Mapping[str, Any], limits: Mapping[str, Limits]) -> Longs:
    """Entries of every stack."""
    host = preprocess(batch, observed.stacking, limits, overflow="drop", bad_ids=observed.bad_ids)
    return np.array([host.stats[name].dropped_ids.sum() for name in observed.stacking.stacks], np.int64)

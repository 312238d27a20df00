"""Where a run's rows come from: a click log on disk, or a seeded one with a planted signal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.embed import Clicks, Feature, read_criteo, synthetic_criteo
from tilewright.errors import UsageError

_EVALUATION_ROWS = 8192
_FEWEST_HELD_OUT = 256
_MOST_ROWS = 1 << 21  # 2 Mi rows of 160 bytes: 320 MiB; a longer log is read up to here


@dataclass(frozen=True)
class RunData:
    """Rows to learn from and rows to judge by; ``held_out`` tells whether the two are disjoint."""

    train: Clicks
    evaluate: Clicks
    held_out: bool
    source: str

    def training_batches(self, batch: int, steps: int) -> Iterator[Clicks]:
        """``steps`` whole batches, going through the rows again as often as needed."""
        return itertools.islice(itertools.chain.from_iterable(self._epochs(batch)), steps)

    def _epochs(self, batch: int) -> Iterator[Iterator[Clicks]]:
        while True:
            yield self.train.batches(batch)


def _whole(rows: Clicks, batch: int) -> Clicks:
    return rows[: len(rows) // batch * batch]


def _from_file(path: str, vocabs: Sequence[int], batch: int) -> RunData:
    parts, count = [], 0
    for part in read_criteo(path, vocabs):
        parts.append(part)
        count += len(part)
        if count >= _MOST_ROWS:
            break
    rows = Clicks.join(parts)
    if len(rows) < batch:
        how = f"use --batch {max(1, len(rows) // 2)} or less, or a longer log"
        raise UsageError(f"{len(rows)} rows are fewer than one batch of {batch}", where=path, how=how)
    kept = min(_EVALUATION_ROWS, len(rows) // 5) // batch * batch
    if kept < _FEWEST_HELD_OUT:  # too few to judge by: take the rows it learns from, and say so
        return RunData(_whole(rows, batch), _whole(rows, batch), held_out=False, source=str(Path(path).name))
    return RunData(rows[: len(rows) - kept], rows[len(rows) - kept :], held_out=True, source=str(Path(path).name))


def load_data(path: str | None, features: Sequence[Feature], batch: int, steps: int, seed: int = 0) -> RunData:
    """Rows for ``steps`` batches of ``batch``; without a path, a seeded log whose ids follow a Zipf law.

    Raises :class:`UsageError` for a missing, empty or malformed file and for one with fewer rows than a batch.
    """
    vocabs = [feature.table.vocab for feature in features]
    if path is not None:
        return _from_file(path, vocabs, batch)
    train = synthetic_criteo(seed, min(steps * batch, _MOST_ROWS // batch * batch), vocabs)
    kept = max(1, _EVALUATION_ROWS // batch) * batch
    return RunData(train, synthetic_criteo(seed + 1, kept, vocabs), held_out=True, source=f"generated, seed {seed}")


# How well a click model ranks.


def auc(labels: Any, scores: Any) -> float:
    """Area under the ROC curve: the chance that a click scores above a non-click, ties counting half.

    ``labels`` [n] of 0 and 1, ``scores`` [n]; nan where only one class occurs.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
    0.75
    """
    clicked = np.asarray(labels) > 0.5
    values = np.asarray(scores, np.float64)
    positive, negative = int(clicked.sum()), int((~clicked).sum())
    if not positive or not negative:
        return float("nan")
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # ranks from 1, tied values sharing their mean
    ranks = middle[inverse].sum(where=clicked)
    return float((ranks - positive * (positive + 1) / 2) / (positive * negative))

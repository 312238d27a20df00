"""Tables smaller than their vocabulary: an id is the sum of several rows, each chosen by a hash of its own.

With one hash, ids that meet share everything. With two into half the rows each, those that meet in the one part rarely
meet in the other: what they share is counted here, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import normalise, offsets_of
from tilewright.embed.model.specs import as_feature, flat_specs
from tilewright.embed.model.tables import Feature, count
from tilewright.errors import UsageError


@dataclass(frozen=True)
class MultiHash:
    """``rows`` in all, an equal part of them for each of ``hashes``; ``seed`` chooses the hashes.

    >>> MultiHash(rows=10, hashes=2).places(np.array([7, 123456789])).tolist()
    [[2, 9], [2, 6]]
    """

    rows: int
    hashes: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        """At least a row for every hash."""
        for name, least in (("hashes", 1), ("rows", self.hashes), ("seed", 0)):
            object.__setattr__(self, name, count(getattr(self, name), name, "MultiHash", least))

    @property
    def part(self) -> int:
        """Rows of one hash."""
        return self.rows // self.hashes

    def places(self, ids: Any) -> Longs:
        """int64[ids, hashes]: the rows of each id."""
        words = np.asarray(ids).astype(np.uint64)
        with np.errstate(over="ignore"):
            made = [np.int64(k * self.part) + self._mixed(words, k) for k in range(self.hashes)]
        return np.stack(made, axis=-1)

    def _mixed(self, words: Any, k: int) -> Longs:
        """splitmix64 of the id and the hash's number."""
        word = words + np.uint64((self.seed * 64 + k + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
        word = (word ^ word >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ word >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return np.asarray((word ^ word >> np.uint64(31)) % np.uint64(self.part), np.int64)

    def collisions(self, ids: Any) -> Collisions:
        """What the distinct ones of ``ids`` share.

        >>> MultiHash(rows=4, hashes=1).collisions(np.arange(100)).alike
        100
        """
        distinct = np.unique(np.asarray(ids))
        places = self.places(distinct)
        used = np.bincount(places.reshape(-1), minlength=self.rows)
        _, which, alike = np.unique(places, axis=0, return_inverse=True, return_counts=True)
        some = int((used[places] > 1).any(axis=1).sum())
        return Collisions(len(distinct), some, int((alike[which.reshape(-1)] > 1).sum()), int((used > 0).sum()))


@dataclass(frozen=True)
class Collisions:
    """Of ``ids`` distinct ids: ``sharing`` share some row with another, ``alike`` all of them; ``rows``: used."""

    ids: int
    sharing: int
    alike: int
    rows: int


@dataclass(frozen=True)
class HashedTables:
    """Features whose tables have fewer rows than ids; see :func:`hash_tables`. ``features`` are those to stack."""

    original: tuple[Feature, ...]
    features: tuple[Feature, ...]
    hashes: Mapping[str, MultiHash]

    def batch(self, batch: Mapping[str, Any], bad_ids: str = "error") -> Mapping[str, Any]:
        """The batch for ``features``: every id of a hashed table as its rows, each with the id's weight.

        A mean is then one over all rows. ``bad_ids`` other than ``error`` clips or drops ids outside the vocabulary.
        """
        made = {
            f.name: self._spread(batch[f.name], f, bad_ids) for f in self.original if f.name in batch and self._of(f)
        }
        return {**batch, **made} if made else batch

    def _of(self, feature: Feature) -> MultiHash | None:
        return self.hashes.get(feature.table.name)

    def _spread(self, raw: Any, feature: Feature, bad_ids: str) -> Any:
        ragged, hashed = normalise(raw, feature.name), self.hashes[feature.table.name]
        ids, lengths, weights = ragged.values.astype(np.int64), ragged.lengths, ragged.weights
        wrong, last = (ids < 0) | (ids >= feature.table.vocab), feature.table.vocab - 1
        if wrong.any() and bad_ids == "error":
            at = int(np.flatnonzero(wrong)[0])
            problem = f"id {ragged.id_at(at)} of sample {ragged.samples[at]} is not in 0 .. {last}"
            raise UsageError(problem, where=f"feature {feature.name!r}", how='pass bad_ids="clip" or bad_ids="drop"')
        if wrong.any() and bad_ids == "drop":
            lengths = np.bincount(ragged.samples[~wrong], minlength=ragged.batch_size)
            ids, weights = ids[~wrong], None if weights is None else weights[~wrong]
        rows = hashed.places(np.clip(ids, 0, last)).reshape(-1)
        flat = rows, offsets_of(lengths * hashed.hashes)
        return flat if weights is None else (*flat, np.repeat(weights, hashed.hashes))


def hash_tables(features: Iterable[Any], hashes: Mapping[str, MultiHash]) -> HashedTables:
    """Give the tables named in ``hashes`` the rows of their :class:`MultiHash`; ids stay those of the vocabulary.

    Stacked, planned, trained and saved are tables of so many rows; only :meth:`HashedTables.batch` knows of ids.

    >>> from tilewright.embed import Table
    >>> hashed = hash_tables([Feature("user", Table("user", 10**9, 16))], {"user": MultiHash(10**6)})
    >>> hashed.features[0].table.vocab
    1000000
    """
    original = tuple(as_feature(feature) for feature in flat_specs(features))
    known = {feature.table.name for feature in original}
    if unknown := sorted(set(hashes) - known):
        raise UsageError(
            f"no table called {unknown[0]!r}", where="hash_tables", how=f"one of {', '.join(sorted(known))}"
        )
    made = []
    for feature in original:
        rule = hashes.get(feature.table.name)
        table = feature.table if rule is None else replace(feature.table, vocab=rule.rows)
        made.append(Feature(feature.name, table))
    return HashedTables(original, tuple(made), dict(hashes))

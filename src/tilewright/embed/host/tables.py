"""Tables held otherwise than row by row over the shards: narrow, hashed and hot ones.

* **Narrow**: several rows of fewer than 8 floats in one 32-byte line, as the guide's roadmap has it. A line of a packed
  table holds 8 // w rows, w the width rounded up to a power of two: row i is part ``i % parts`` of line ``i // parts``.
  SparseCores add whole lines, so a sample becomes ``parts`` samples, one for each part, and its activation is part q of
  the q-th of them, added up: exact, for ``parts`` times the activations of the narrow table.
* **Hashed**: tables smaller than their vocabulary, an id being the sum of several rows, each chosen by a hash of its
  own. With one hash, ids that meet share everything. With two into half the rows each, those that meet in the one part
  rarely meet in the other: what they share is counted here, not guessed.
* **Hot**: the few ids that fill one shard are held by every device instead, and leave the partitions. A hot row is
  summed and learnt where the samples are, like a dense parameter; its home in the table keeps its old value and gets
  the new one when the state is saved. So stacks, tables and checkpoints stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import COO, Ragged, normalise, offsets_of
from tilewright.embed.model.optimizers import OPTIMIZERS, short_name
from tilewright.embed.model.specs import as_feature, flat_specs
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Feature, Table, count
from tilewright.errors import UsageError, check_known

# Narrow tables.

LINE = 8
"""Floats of a line."""


@dataclass(frozen=True)
class NarrowTables:
    """Features whose narrow tables share lines; see :func:`pack_narrow`.

    ``original`` are the model's features, ``features`` those to stack: packed tables have the combiner ``sum``, for
    the gains are made here. Where both are the same nothing is packed, and every method gives back what it got. Bounds
    of ids per sample count the parts of a sample apart, but in ``check_batches``, which is told of the packing.
    """

    original: tuple[Feature, ...]
    features: tuple[Feature, ...]

    @property
    def saved_bytes(self) -> int:
        """Bytes of table that lines of one row each would take on top."""
        tables = {f.table.name: (f.table, p.table) for f, p in zip(self.original, self.features)}
        return sum(4 * LINE * (a.vocab - b.vocab) for a, b in tables.values() if a is not b)

    @property
    def rows_per_line(self) -> dict[str, int]:
        """Packed table -> its rows in a line."""
        return {feature.table.name: parts for feature, parts in self._packed()}

    def samples_per_sample(self) -> dict[str, int]:
        """Feature -> the samples its batch has for each one of the model's."""
        rows = self.rows_per_line
        return {feature.name: rows.get(feature.table.name, 1) for feature in self.original}

    def batch_sizes(self, batch: int) -> dict[str, int]:
        """Feature -> its batch, as ``stack`` takes it, for ``batch`` samples of the model."""
        return {name: batch * parts for name, parts in self.samples_per_sample().items()}

    def _packed(self) -> Iterator[tuple[Feature, int]]:
        for feature, other in zip(self.original, self.features):
            if feature.table != other.table:
                yield feature, _parts(feature.table)

    def batch(self, batch: Mapping[str, Any], bad_ids: str = "error") -> Mapping[str, Any]:
        """The batch for ``features``: ids of lines, ``parts`` samples for each sample of a packed table's feature.

        ``bad_ids`` as ``preprocess`` takes it. Raises :class:`UsageError` for a feature that is missing, ids outside
        the vocabulary where they are an error, input that cannot be read.
        """
        packed = {}
        for feature, parts in self._packed():
            if feature.name not in batch:
                raise UsageError(f"no input for feature {feature.name!r}", where="batch")
            packed[feature.name] = _by_part(normalise(batch[feature.name], feature.name), feature, parts, bad_ids)
        return {**batch, **packed} if packed else batch

    def activations(self, activations: Mapping[str, Any]) -> dict[str, Any]:
        """{feature: [batch, width]} from a lookup of ``features``: part q of every sample's q-th row, added up."""
        result = dict(activations)
        for feature, parts in self._packed():
            value = activations[feature.name].reshape(-1, parts, parts, LINE // parts)
            own = sum(value[:, q, q] for q in range(parts))
            result[feature.name] = own[:, : feature.table.width]
        return result

    def gradients(self, gradients: Mapping[str, Any], xp: Any = np) -> dict[str, Any]:
        """{feature: [batch, width]} of the model's features as the gradients of ``features``, for ``update``."""
        result = dict(gradients)
        for feature, parts in self._packed():
            padding = LINE // parts - feature.table.width
            value = xp.pad(xp.asarray(gradients[feature.name]), ((0, 0), (0, padding)))
            spread = xp.eye(parts, dtype=value.dtype)[None, :, :, None] * value[:, None, None, :]
            result[feature.name] = spread.reshape(-1, LINE)
        return result

    def unpack(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """{table: [vocab, width]} of the model from those of ``features``."""
        result = dict(tables)
        for table, parts in {f.table: parts for f, parts in self._packed()}.items():
            rows = np.asarray(tables[table.name]).reshape(-1, LINE // parts)
            result[table.name] = rows[: table.vocab, : table.width]
        return result

    def pack(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """The inverse of :meth:`unpack`: tables of the model as those of ``features``."""
        result = dict(tables)
        for table, parts in {f.table: parts for f, parts in self._packed()}.items():
            lines = np.zeros((-(-table.vocab // parts) * parts, LINE // parts), np.float32)
            lines[: table.vocab, : table.width] = tables[table.name]
            result[table.name] = lines.reshape(-1, LINE)
        return result


def pack_narrow(features: Iterable[Any], pack: bool = True) -> NarrowTables:
    """Pack every table of at most 4 floats a row; wider ones stay as they are.

    An update sees whole lines, and rows without gradient must stay as they are: so tables learnt by something else
    than SGD, Adagrad or a user's own optimizer, which must hold to that, are not packed.

    ``features`` may be FeatureSpecs of jax-tpu-embedding. ``pack`` False leaves all tables as they are.

    >>> narrow = pack_narrow([Feature("day", Table("day", vocab=1000, width=2))])
    >>> narrow.features[0].table.vocab, narrow.features[0].table.width, narrow.saved_bytes
    (250, 8, 24000)
    """
    original = tuple(as_feature(feature) for feature in flat_specs(features))
    if not pack:
        return NarrowTables(original, original)
    packed = {f.table.name: _packed(f.table) for f in original}
    return NarrowTables(original, tuple(Feature(f.name, packed[f.table.name]) for f in original))


def _parts(table: Table) -> int:
    """Rows of a line; 0 where a row is a line or more, or learnt by its line."""
    if short_name(table.optimizer) in set(OPTIMIZERS) - {"sgd", "adagrad"}:
        return 0
    return LINE >> (table.width - 1).bit_length() if table.width <= LINE // 2 else 0


def _packed(table: Table) -> Table:
    parts = _parts(table)
    if not parts:
        return table
    if table.initializer is not None:
        raise UsageError("an initializer of a packed table", where=f"table {table.name!r}", how="use from_tables")
    return replace(table, vocab=-(-table.vocab // parts), width=LINE, combiner="sum")


def _by_part(ragged: Ragged, feature: Feature, parts: int, bad_ids: str) -> Any:
    """COO of lines: sample * parts + part, with the gains of the table's combiner."""
    ragged, combiner = ragged.inside(feature.table.vocab, bad_ids, f"feature {feature.name!r}"), feature.table.combiner
    ids, samples = ragged.values.astype(np.int64), ragged.samples
    gains = np.ones(ids.size, np.float32) if ragged.weights is None else ragged.weights
    if combiner != "sum":
        divisor = _divisors(gains, samples, ragged.batch_size, combiner)[samples]
        if (divisor == 0).any():
            at = int(samples[np.flatnonzero(divisor == 0)[0]])
            raise UsageError(f"the weights of sample {at} have no {combiner}", where=f"feature {feature.name!r}")
        gains = (gains / divisor).astype(np.float32)
    return COO(samples * parts + ids % parts, ids // parts, ragged.batch_size * parts, gains)


def _divisors(weights: Any, samples: Longs, batch: int, combiner: str) -> Any:
    """What the weights of every sample are divided by: their sum, or the root of the sum of their squares."""
    sums = np.bincount(samples, weights.astype(np.float64) ** (2 if combiner == "sqrtn" else 1), batch)
    return np.sqrt(sums) if combiner == "sqrtn" else sums


# Hashed tables.

GOLDEN, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


def splitmix64(word: Any) -> Any:
    """The hash that ends splitmix64, of an int below 2**64 or an array of uint64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ word >> shift) * factor & _WORD
    return word ^ word >> 31


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
        for name, least in (("hashes", 1), ("rows", self.hashes), ("seed", 0)):
            object.__setattr__(self, name, count(getattr(self, name), name, "MultiHash", least))

    @property
    def part(self) -> int:
        """Rows that each hash chooses from."""
        return self.rows // self.hashes

    def places(self, ids: Any) -> Longs:
        """int64[ids, hashes]: the rows of each id."""
        words = np.asarray(ids).astype(np.uint64)
        with np.errstate(over="ignore"):
            made = [np.int64(k * self.part) + self._mixed(words, k) for k in range(self.hashes)]
        return np.stack(made, axis=-1)

    def _mixed(self, words: Any, k: int) -> Longs:
        """splitmix64 of the id and the hash's number."""
        word = splitmix64(words + np.uint64((self.seed * 64 + k + 1) * GOLDEN & _WORD))
        return np.asarray(word % np.uint64(self.part), np.int64)

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
        hashed = [f for f in self.original if f.name in batch and f.table.name in self.hashes]
        made = {f.name: self._spread(batch[f.name], f, bad_ids) for f in hashed}
        return {**batch, **made} if made else batch

    def _spread(self, raw: Any, feature: Feature, bad_ids: str) -> Any:
        hashed = self.hashes[feature.table.name]
        ragged = normalise(raw, feature.name).inside(feature.table.vocab, bad_ids, f"feature {feature.name!r}")
        rows = hashed.places(ragged.values.astype(np.int64)).reshape(-1)
        weights = None if ragged.weights is None else np.repeat(ragged.weights, hashed.hashes)
        offsets = offsets_of(ragged.lengths * hashed.hashes)
        return Ragged(rows, ragged.batch_size, offsets=offsets, weights=weights).as_input()


def hash_tables(features: Iterable[Any], hashes: Mapping[str, MultiHash]) -> HashedTables:
    """Give the tables named in ``hashes`` the rows of their :class:`MultiHash`; ids stay those of the vocabulary.

    Stacked, planned, trained and saved are tables of so many rows; only :meth:`HashedTables.batch` knows of ids.

    >>> from tilewright.embed import Table
    >>> hashed = hash_tables([Feature("user", Table("user", 10**9, 16))], {"user": MultiHash(10**6)})
    >>> hashed.features[0].table.vocab
    1000000
    """
    original = tuple(as_feature(feature) for feature in flat_specs(features))
    known = sorted({feature.table.name for feature in original})
    for name in sorted(hashes):
        check_known(name, known, f"no table called {name!r}", where="hash_tables")
    made = []
    for feature in original:
        rule = hashes.get(feature.table.name)
        table = feature.table if rule is None else replace(feature.table, vocab=rule.rows)
        made.append(Feature(feature.name, table))
    return HashedTables(original, tuple(made), dict(hashes))


# Hot rows.

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
    ids, ``gains`` f32[E]; ``shares`` f32[batch]: what the other entries' mean is worth (None: all).

    The E entries are an equal part for each of the topology's devices, which holds those of its samples.
    """

    samples: Any
    rows: Any
    gains: Any
    shares: Any

    def of_devices(self, devices: range, count: int) -> HotEntries:
        """The parts of ``devices`` out of ``count``, their samples still numbered over the whole batch."""

        def part(values: Any) -> Any:
            return None if values is None else values.reshape(count, -1)[devices.start : devices.stop].reshape(-1)

        return HotEntries(*map(part, (self.samples, self.rows, self.gains, self.shares)))


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
            ragged, devices = normalise(batch[feature.name], feature.name), stacking.topology.devices
            cold[feature.name], entries[feature.name] = _split(ragged, ids, feature.table.combiner, devices)
    return cold, entries


def without_hot(batch: Mapping[str, Any], features: Iterable[Feature], hot: Mapping[str, Longs]) -> Mapping[str, Any]:
    """The batch without its hot ids, as plans and checks count it."""
    cold = dict(batch)
    for feature in features:
        if (ids := hot.get(feature.table.name)) is not None and feature.name in batch:
            ragged = normalise(batch[feature.name], feature.name)
            cold[feature.name] = ragged.only(~_places(ragged, ids)[1]).as_input()
    return cold


def _places(ragged: Ragged, hot: Longs) -> tuple[Longs, Any]:
    """Of every entry the hot row it asks for, and whether it asks for one."""
    values = ragged.values.astype(np.int64)
    place = np.minimum(np.searchsorted(hot, values), len(hot) - 1)
    return place, hot[place] == values


def _split(ragged: Ragged, hot: Longs, combiner: str, devices: int) -> tuple[Any, HotEntries]:
    samples, size = ragged.samples, ragged.batch_size
    place, here = _places(ragged, hot)
    weights = np.ones(samples.size, np.float32) if ragged.weights is None else ragged.weights
    gains, shares = weights, None
    if combiner != "sum":  # the divisor of the cold entries over that of all
        cold_divisor, divisor = (_divisors(w, samples, size, combiner) for w in (np.where(here, 0, weights), weights))
        divisor = np.where(divisor == 0, 1, divisor)
        gains, shares = (weights / divisor[samples]).astype(np.float32), (cold_divisor / divisor).astype(np.float32)
    # An equal part for every device. Its length is a power of two, so that programs are seldom compiled anew.
    of_device = samples[here] // max(1, size // devices) if size % devices == 0 else np.zeros(int(here.sum()), np.int64)
    counts = np.bincount(of_device, minlength=devices)
    room = max(8, 1 << (int(counts.max()) - 1).bit_length())
    at = of_device * room + np.arange(len(of_device)) - np.repeat(np.cumsum(counts) - counts, counts)
    own = np.full(devices * room, size, np.int32), np.zeros(devices * room, np.int32)
    of_rows = np.zeros(devices * room, np.float32)
    own[0][at], own[1][at], of_rows[at] = samples[here], place[here], gains[here]
    return ragged.only(~here).as_input(), HotEntries(*own, of_rows, shares)

"""Narrow tables: several rows of fewer than 8 floats in one 32-byte line, as the guide's roadmap has it.

A line of a packed table holds 8 // w rows, w the width rounded up to a power of two: row i is part ``i % parts`` of
line ``i // parts``. SparseCores add whole lines, so a sample becomes ``parts`` samples, one for each part, and its
activation is part q of the q-th of them, added up: exact, for ``parts`` times the activations of the narrow table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.embed.host.inputs import COO, Ragged, normalise
from tilewright.embed.model.optimizers import OPTIMIZERS, short_name
from tilewright.embed.model.specs import as_feature, flat_specs
from tilewright.embed.model.tables import Feature, Table
from tilewright.errors import UsageError

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
        """The other way: {feature: [batch, width]} to the gradients of ``features``, for ``update``."""
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
        """The other way."""
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
    ids = ragged.values.astype(np.int64)
    samples = ragged.samples
    weights = np.ones(ids.size, np.float32) if ragged.weights is None else ragged.weights
    wrong, last = (ids < 0) | (ids >= feature.table.vocab), feature.table.vocab - 1
    if bad_ids == "clip":
        ids = np.clip(ids, 0, last)
    elif bad_ids == "drop":
        ids, samples, weights = ids[~wrong], samples[~wrong], weights[~wrong]
    elif wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        problem = f"id {ragged.id_at(at)} of sample {samples[at]} is not in 0 .. {last}"
        how = 'pass bad_ids="clip" or bad_ids="drop"'
        raise UsageError(problem, where=f"feature {feature.name!r}", how=how)
    gains = _gains(weights, samples, ragged.batch_size, feature)
    return COO(samples * parts + ids % parts, ids // parts, ragged.batch_size * parts, gains)


def _gains(weights: Any, samples: Any, batch: int, feature: Feature) -> Any:
    combiner = feature.table.combiner
    if combiner == "sum":
        return weights
    sums = np.bincount(samples, weights.astype(np.float64) ** (2 if combiner == "sqrtn" else 1), batch)
    divisor = (np.sqrt(sums) if combiner == "sqrtn" else sums)[samples]
    if (divisor == 0).any():
        at = int(samples[np.flatnonzero(divisor == 0)[0]])
        raise UsageError(f"the weights of sample {at} have no {combiner}", where=f"feature {feature.name!r}")
    return (weights / divisor).astype(np.float32)

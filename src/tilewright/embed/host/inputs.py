"""A batch as it is given: any kind of input as flat ids of samples, and the slices of it that this process feeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Floats, Ids, Longs, Mask
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import check_batch_divides, count
from tilewright.errors import UsageError, check_known

BAD_IDS = ("error", "clip", "drop")
"""What to do with an id outside its table's vocabulary; kernel 1 knows them by their place here."""

_IDS = (np.dtype(np.int32), np.dtype(np.int64))
_BAD_ID = 'pass bad_ids="clip" or bad_ids="drop"'
_KINDS = "give (values, offsets), (values, offsets, weights), a 2-D array, a list of lists or a COO"


@dataclass(frozen=True, eq=False)
class COO:
    """Coordinates: entry k says that sample ``row_ids[k]`` of ``batch_size`` has id ``col_ids[k]``, in any order.

    >>> normalise(COO([1, 0, 1], [7, 5, 7], batch_size=2), "f").offsets.tolist()
    [0, 1, 3]
    """

    row_ids: Any
    col_ids: Any
    batch_size: int
    weights: Any = None


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sample i holds ``values[offsets[i]:offsets[i + 1]]``; without offsets, ``hot`` ids each.

    ``values`` is int32 or int64, ``offsets`` int64 with ``batch_size + 1`` entries, ``weights`` float32 or None.
    ``given``: the ids as uint64, where some are beyond int64 and stand in ``values`` as its largest number.
    """

    values: Ids
    batch_size: int
    hot: int = -1
    offsets: Longs | None = None
    weights: Floats | None = None
    given: Any = None

    def bounds(self, samples: Longs) -> Longs:
        """Where the given samples begin in ``values``."""
        return samples * self.hot if self.offsets is None else self.offsets[samples]

    @property
    def lengths(self) -> Longs:
        """How many ids every sample has."""
        return np.diff(self.bounds(np.arange(self.batch_size + 1)))

    @property
    def samples(self) -> Longs:
        """The sample that every id belongs to."""
        return np.repeat(np.arange(self.batch_size), self.lengths)

    def take(self, samples: Longs) -> Ragged:
        """The given samples, in that order."""
        begins, lengths = self.bounds(samples), self.lengths[samples]
        offsets = offsets_of(lengths)
        taken = self._of(np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets)
        return taken if self.offsets is not None else replace(taken, hot=self.hot, offsets=None)

    def only(self, kept: Mask) -> Ragged:
        """The same samples with the entries that are ``kept`` alone."""
        return self._of(kept, offsets_of(np.bincount(self.samples[kept], minlength=self.batch_size)))

    def _of(self, places: Any, offsets: Longs) -> Ragged:
        weights, given = (None if of is None else of[places] for of in (self.weights, self.given))
        return Ragged(self.values[places], len(offsets) - 1, offsets=offsets, weights=weights, given=given)

    def inside(self, vocab: int, bad_ids: str, where: str, how: str = _BAD_ID, first: int = 0) -> Ragged:
        """The same with its ids in 0 .. vocab - 1: one outside is clipped, dropped, or a :class:`UsageError` ``where``,
        which counts samples from ``first``."""
        wrong = (self.values < 0) | (self.values >= vocab)
        if not wrong.any():
            return self
        if bad_ids == "clip":
            return replace(self, values=np.clip(self.values.astype(np.int64), 0, vocab - 1), given=None)
        if bad_ids == "drop":
            return replace(self.only(~wrong), given=None)
        at = int(np.flatnonzero(wrong)[0])
        given = (self.values if self.given is None else self.given)[at]
        problem = f"id {given} of sample {first + self.samples[at]} is not in 0 .. {vocab - 1}"
        raise UsageError(problem, where=where, how=how)

    def as_input(self) -> Any:
        """The ids as an argument of ``preprocess``."""
        if self.offsets is None:
            return self.values.reshape(self.batch_size, self.hot)
        flat = self.values, self.offsets
        return flat if self.weights is None else (*flat, self.weights)


def offsets_of(lengths: Longs) -> Longs:
    """Where each of several runs of these lengths begins, and the end of the last."""
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True)
class Slices:
    """The SparseCores this process feeds: ``sources`` of ``shards`` in all.

    Every SparseCore reads an equal slice of each feature's samples. The batch at hand has ``in_batch`` slices, and
    that of the first source is number ``first``.
    """

    sources: range
    shards: int
    first: int
    in_batch: int

    def size(self, ragged: Ragged) -> int:
        """Samples of a feature in one slice."""
        return ragged.batch_size // self.in_batch

    def samples(self, ragged: Ragged) -> Longs:
        """The feature's samples in these slices, and the one behind them."""
        size = self.size(ragged)
        return np.arange(self.first * size, (self.first + len(self.sources)) * size + 1)


def source_slices(stacking: Stacking, sources: range | None = None, local_batch: bool = False) -> Slices:
    """Which slices to read, checked: consecutive SparseCores of whole devices; None: those of all SparseCores.

    ``local_batch``: the batch holds the samples of ``sources`` only.
    """
    topology = stacking.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    if sources is None:
        return Slices(range(shards), shards, 0, shards)
    if not isinstance(sources, range) or sources.step != 1 or not sources or sources[0] < 0 or sources[-1] >= shards:
        problem = f"sources = {sources!r} is not a range of the {shards} SparseCores"
        raise UsageError(problem, where="preprocess", how=f"such as range(0, {shards})")
    if sources.start % per_device or len(sources) % per_device:
        problem = f"sources = {sources!r} cuts a device of {per_device} SparseCores"
        raise UsageError(problem, where="preprocess", how=f"begin and end at a multiple of {per_device}")
    if local_batch:
        return Slices(sources, shards, 0, len(sources))
    return Slices(sources, shards, sources.start, shards)


def ragged_inputs(batch: Mapping[str, Any], stacking: Stacking, slices: Slices) -> dict[str, Ragged]:
    """Feature -> its input as :class:`Ragged`, checked against stacking and slices."""
    names = [feature.name for feature in stacking.features]
    for name in batch:
        if name not in names:
            near = get_close_matches(str(name), names, n=3, cutoff=0.4) or names
            raise UsageError(f"no feature called {name!r}", where="batch", how=f"did you mean {' or '.join(near)}?")
    inputs = {}
    for name in names:
        if name not in batch:
            raise UsageError(f"no input for feature {name!r}", where="batch", how="give every feature of the stacking")
        inputs[name] = normalise(batch[name], name)
        if inputs[name].batch_size % slices.in_batch:
            check_batch_divides(inputs[name].batch_size, slices.in_batch, f"feature {name!r}")
    return inputs


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """:class:`UsageError` for an argument of ``preprocess`` that is none of the ``allowed`` texts."""
    check_known(value, allowed, f"{name} = {value!r}", where="preprocess")


def normalise(raw: Any, feature: str) -> Ragged:
    """Any kind of input as :class:`Ragged`; :class:`UsageError` names the feature and what is wrong with it."""
    if type(raw) is np.ndarray and raw.ndim == 2 and raw.size and raw.dtype in _IDS and raw.flags.c_contiguous:
        return Ragged(raw.reshape(-1), raw.shape[0], raw.shape[1])
    if isinstance(raw, Ragged):
        return raw
    where = f"feature {feature!r}"
    if isinstance(raw, COO):
        return _from_coo(raw, where)
    if isinstance(raw, tuple):
        if len(raw) not in (2, 3):
            raise UsageError(f"a tuple of {len(raw)} is not an input", where=where, how=_KINDS)
        return _from_offsets(raw[0], raw[1], raw[2] if len(raw) == 3 else None, where)
    if type(raw) is np.ndarray and raw.dtype == object and raw.ndim == 1:  # ragged, as jax-tpu-embedding takes it
        raw = raw.tolist()
    if isinstance(raw, list) and not all(np.ndim(x) == 0 and not isinstance(x, (str, bytes)) for x in raw):
        return _from_lists(raw, where)
    return _from_array(raw, where)


def _from_array(raw: Any, where: str) -> Ragged:
    values = _integers(raw, "ids", where)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[0] == 0:
        raise UsageError(f"an array of shape {values.shape} is not [batch, ids]", where=where, how=_KINDS)
    return Ragged(values.reshape(-1), values.shape[0], hot=values.shape[1], given=_beyond_int64(raw, values))


def _from_lists(raw: Sequence[Any], where: str) -> Ragged:
    try:
        if any(isinstance(row, (str, bytes)) for row in raw):
            raise UsageError("texts where ids should stand", where=where, how="hash the texts to ids first")
        lengths = np.fromiter((len(row) for row in raw), np.int64, len(raw))
    except TypeError:
        raise UsageError("a list that mixes ids and lists", where=where, how=_KINDS) from None
    arrays = all(type(row) is np.ndarray and row.ndim == 1 and row.dtype == raw[0].dtype for row in raw)
    flat = np.concatenate(raw) if arrays else list(chain.from_iterable(raw))
    values = _integers(flat, "ids", where)
    if values.ndim != 1:
        raise UsageError("lists nested deeper than sample and id", where=where, how=_KINDS)
    return Ragged(values, len(raw), offsets=offsets_of(lengths), given=_beyond_int64(flat, values))


def _from_offsets(values: Any, offsets: Any, weights: Any, where: str) -> Ragged:
    flat = _integers(values, "values", where)
    if flat.ndim != 1:
        raise UsageError(f"values of shape {flat.shape} are not flat", where=where, how=_KINDS)
    at = _integers(offsets, "offsets", where).astype(np.int64, copy=False)
    if at.ndim != 1 or at.size < 2:
        raise UsageError(f"offsets of shape {at.shape}", where=where, how="give one more than there are samples")
    falls = np.flatnonzero(at[1:] < at[:-1])
    if falls.size:
        i = int(falls[0])
        raise UsageError(f"offsets decrease: offsets[{i}] = {at[i]}, offsets[{i + 1}] = {at[i + 1]}", where=where)
    if at[0] != 0 or at[-1] != flat.size:
        problem = f"offsets run from {at[0]} to {at[-1]}, but there are {flat.size} values"
        raise UsageError(problem, where=where, how="offsets begin with 0 and end with the number of values")
    weights = _weights(weights, flat.size, where)
    return Ragged(flat, at.size - 1, offsets=at, weights=weights, given=_beyond_int64(values, flat))


def _from_coo(raw: COO, where: str) -> Ragged:
    size = count(raw.batch_size, "batch_size", where)
    samples = _integers(raw.row_ids, "row_ids", where).astype(np.int64, copy=False)
    values = _integers(raw.col_ids, "col_ids", where)
    if samples.ndim != 1 or samples.shape != values.shape:
        raise UsageError(f"row_ids of shape {samples.shape}, col_ids of shape {values.shape}", where=where)
    wrong = np.flatnonzero((samples < 0) | (samples >= size))
    if wrong.size:
        k = int(wrong[0])
        raise UsageError(f"row_ids[{k}] = {samples[k]} is not a sample of a batch of {size}", where=where)
    weights, given = _weights(raw.weights, values.size, where), _beyond_int64(raw.col_ids, values)
    if np.any(samples[1:] < samples[:-1]):
        order = np.argsort(samples, kind="stable")
        values = values[order]
        weights = None if weights is None else weights[order]
        given = None if given is None else given[order]
    return Ragged(values, size, offsets=offsets_of(np.bincount(samples, minlength=size)), weights=weights, given=given)


def _beyond_int64(raw: Any, values: Ids) -> Any:
    """The ids, flat, where some are above the largest int64, which stands for them in ``values``; else None."""
    if getattr(raw, "dtype", np.uint64) != np.uint64 or not (values == 2**63 - 1).any():
        return None
    array = _array(raw)
    return array.reshape(-1) if array.dtype == np.uint64 else None


def _array(raw: Any) -> Any:
    """An array of ``raw``; a list whose numbers need all of uint64 becomes one of them, where numpy takes floats."""
    array = np.asarray(raw)
    wide = isinstance(raw, list) and array.dtype.kind in "fO"
    if wide and all(isinstance(i, int) and 0 <= i < 2**64 for i in raw):
        return np.array(raw, np.uint64)
    return array


def _integers(raw: Any, name: str, where: str) -> Ids:
    """``raw`` as a C-contiguous int32 or int64 array, without a copy where it is one."""
    if isinstance(raw, np.ma.MaskedArray):
        raise UsageError(f"{name} are a masked array", where=where, how="take the masked ids out: (values, offsets)")
    try:
        array = _array(raw)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{name} are not an array: {error}", where=where, how=_KINDS) from None
    if array.size == 0 and array.dtype != object:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        wide = [i for i in raw if isinstance(i, int) and not -(2**63) <= i < 2**63] if isinstance(raw, list) else []
        if wide:
            raise UsageError(f"{name} hold {wide[0]}, which int64 does not", where=where, how="hash such ids first")
        how = "ids and offsets are integers; hash or round the values first"
        raise UsageError(f"{name} of type {array.dtype}", where=where, how=how)
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(2**63 - 1))
    if array.dtype.itemsize < 4 or array.dtype == np.int32:
        return np.ascontiguousarray(array, np.int32)
    return np.ascontiguousarray(array, np.int64)


def _weights(raw: Any, size: int, where: str) -> Floats | None:
    if raw is None:
        return None
    try:
        with np.errstate(over="ignore"):
            weights = np.ascontiguousarray(raw, np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(f"weights are not numbers: {error}", where=where) from None
    if weights.shape != (size,):
        raise UsageError(f"weights of shape {weights.shape} for {size} values", where=where)
    wrong = np.flatnonzero(~np.isfinite(weights))
    if wrong.size:
        k = int(wrong[0])
        raise UsageError(f"weights[{k}] is {weights[k]}", where=where, how="weights are finite float32 numbers")
    return weights

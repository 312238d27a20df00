"""The kinds of input a feature may have, brought to one form: flat ids, where each sample begins, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Floats, Ids, Longs
from tilewright.embed.model.tables import count
from tilewright.errors import UsageError

_IDS = (np.dtype(np.int32), np.dtype(np.int64))
KINDS = "give (values, offsets), (values, offsets, weights), a 2-D array, a list of lists or a COO"


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
    """

    values: Ids
    batch_size: int
    hot: int = -1
    offsets: Longs | None = None
    weights: Floats | None = None

    def bounds(self, samples: Longs) -> Longs:
        """Where the given samples begin in ``values``."""
        return samples * self.hot if self.offsets is None else self.offsets[samples]


def normalise(given: Any, feature: str) -> Ragged:
    """Any kind of input as :class:`Ragged`; :class:`UsageError` names the feature and what is wrong with it."""
    if (
        type(given) is np.ndarray
        and given.ndim == 2
        and given.size
        and given.dtype in _IDS
        and given.flags.c_contiguous
    ):
        return Ragged(given.reshape(-1), given.shape[0], given.shape[1])
    where = f"feature {feature!r}"
    if isinstance(given, COO):
        return _from_coo(given, where)
    if isinstance(given, tuple):
        if len(given) not in (2, 3):
            raise UsageError(f"a tuple of {len(given)} is not an input", where=where, how=KINDS)
        return _from_offsets(given[0], given[1], given[2] if len(given) == 3 else None, where)
    if isinstance(given, list) and not _is_flat(given):
        return _from_lists(given, where)
    return _from_array(given, where)


def _is_flat(given: list[Any]) -> bool:
    return all(np.ndim(x) == 0 and not isinstance(x, (str, bytes)) for x in given)


def _from_array(given: Any, where: str) -> Ragged:
    values = _integers(given, "ids", where)
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2 or values.shape[0] == 0:
        raise UsageError(f"an array of shape {values.shape} is not [batch, ids]", where=where, how=KINDS)
    return Ragged(values.reshape(-1), values.shape[0], hot=values.shape[1])


def _from_lists(given: Sequence[Any], where: str) -> Ragged:
    try:
        if any(isinstance(row, (str, bytes)) for row in given):
            raise UsageError("texts where ids should stand", where=where, how="hash the texts to ids first")
        lengths = np.fromiter((len(row) for row in given), np.int64, len(given))
    except TypeError:
        raise UsageError("a list that mixes ids and lists", where=where, how=KINDS) from None
    flat = list(chain.from_iterable(given))
    values = _integers(flat, "ids", where)
    if values.ndim != 1:
        raise UsageError("lists nested deeper than sample and id", where=where, how=KINDS)
    return Ragged(values, len(given), offsets=_offsets_of(lengths))


def _from_offsets(values: Any, offsets: Any, weights: Any, where: str) -> Ragged:
    flat = _integers(values, "values", where)
    if flat.ndim != 1:
        raise UsageError(f"values of shape {flat.shape} are not flat", where=where, how=KINDS)
    at = _integers(offsets, "offsets", where).astype(np.int64, copy=False)
    if at.ndim != 1 or at.size < 2:
        raise UsageError(f"offsets of shape {at.shape}", where=where, how="give one more than there are samples")
    falls = np.flatnonzero(at[1:] < at[:-1])
    if falls.size:
        i = int(falls[0])
        raise UsageError(f"offsets decrease: offsets[{i}] = {at[i]}, offsets[{i + 1}] = {at[i + 1]}", where=where)
    if at[0] != 0 or at[-1] != flat.size:
        what = f"offsets run from {at[0]} to {at[-1]}, but there are {flat.size} values"
        raise UsageError(what, where=where, how="offsets begin with 0 and end with the number of values")
    return Ragged(flat, at.size - 1, offsets=at, weights=_weights(weights, flat.size, where))


def _from_coo(given: COO, where: str) -> Ragged:
    size = count(given.batch_size, "batch_size", where)
    samples = _integers(given.row_ids, "row_ids", where).astype(np.int64, copy=False)
    values = _integers(given.col_ids, "col_ids", where)
    if samples.ndim != 1 or samples.shape != values.shape:
        raise UsageError(f"row_ids of shape {samples.shape}, col_ids of shape {values.shape}", where=where)
    wrong = np.flatnonzero((samples < 0) | (samples >= size))
    if wrong.size:
        k = int(wrong[0])
        raise UsageError(f"row_ids[{k}] = {samples[k]} is not a sample of a batch of {size}", where=where)
    weights = _weights(given.weights, values.size, where)
    if np.any(samples[1:] < samples[:-1]):
        order = np.argsort(samples, kind="stable")
        values = values[order]
        weights = None if weights is None else weights[order]
    return Ragged(values, size, offsets=_offsets_of(np.bincount(samples, minlength=size)), weights=weights)


def _offsets_of(lengths: Longs) -> Longs:
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _integers(given: Any, name: str, where: str) -> Ids:
    """``given`` as a C-contiguous int32 or int64 array, without a copy where it is one."""
    if isinstance(given, np.ma.MaskedArray):
        raise UsageError(f"{name} are a masked array", where=where, how="take the masked ids out: (values, offsets)")
    try:
        array = np.asarray(given)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{name} are not an array: {error}", where=where, how=KINDS) from None
    if array.size == 0 and array.dtype != object:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        how = "ids and offsets are integers; hash or round the values first"
        raise UsageError(f"{name} of type {array.dtype}", where=where, how=how)
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(2**63 - 1))
    if array.dtype.itemsize < 4 or array.dtype == np.int32:
        return np.ascontiguousarray(array, np.int32)
    return np.ascontiguousarray(array, np.int64)


def _weights(given: Any, size: int, where: str) -> Floats | None:
    if given is None:
        return None
    try:
        with np.errstate(over="ignore"):
            weights = np.ascontiguousarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(f"weights are not numbers: {error}", where=where) from None
    if weights.shape != (size,):
        raise UsageError(f"weights of shape {weights.shape} for {size} values", where=where)
    wrong = np.flatnonzero(~np.isfinite(weights))
    if wrong.size:
        k = int(wrong[0])
        raise UsageError(f"weights[{k}] is {weights[k]}", where=where, how="weights are finite float32 numbers")
    return weights

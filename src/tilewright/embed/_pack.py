"""Ids -> 64-bit keys: ``(partition * rows_per_shard + row) << 32 | payload``, where partition = slice * S + shard.

The slice is counted inside a group of slices that are sorted together. Without weights the payload is the sample
(``slice * samples of a slice + sample``), whose gain all its entries share; with weights it is the entry's number,
through which sample and gain are found.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.embed._types import Floats, Ids, Index, Ints, Keys
from tilewright.kernels import njit

__all__ = [
    "BAD_DIVISOR",
    "BAD_ID",
    "FINE",
    "Form",
    "label_sample",
    "pack_dense",
    "pack_ones",
    "pack_places",
    "pack_weighted",
]

FINE, BAD_ID, BAD_DIVISOR = 0, 1, 2
"""What packing found; the caller looks for the place, which is rarely needed."""

Form: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""Vocab, S, rows per shard, rotation, the two numbers of the division by S, combiner, bad-id mode."""

_ONE = np.float32(1.0)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit(cache=True, nogil=True)
def _position(value: np.uint64, form: Form) -> np.uint64:
    """Shard * rows_per_shard + row; ``value // S`` is a multiplication (exact for 0 <= value < 2**31).

    All factors have 32 bits, which the masks tell the compiler: then a vector does eight at once.
    """
    shards, rows, rotation = np.uint64(form[1]) & _LOW, np.uint64(form[2]) & _LOW, np.uint64(form[3])
    row = ((value & _LOW) * (np.uint64(form[4]) & _LOW)) >> np.uint64(form[5])
    shard = value - (row & _LOW) * shards + rotation
    shard = shard - shards if shard >= shards else shard
    return (shard & _LOW) * rows + row


@njit(cache=True, nogil=True)
def _mended(value: Index, vocab: Index, bad_ids: Index) -> Index:
    """The id itself, clipped, or -1 where it must go."""
    if 0 <= value < vocab:
        return value
    if bad_ids == 1:
        return 0 if value < 0 else vocab - 1
    return -1


@njit(cache=True, nogil=True)
def _divisor(weights: Floats, begin: Index, end: Index, squares: bool) -> np.float32:
    """The float32 running sum of weights, or of squares added in float64; sqrt for the latter."""
    total = np.float32(0.0)
    for k in range(begin, end):
        if squares:
            total = np.float32(np.float64(total) + np.float64(weights[k]) * np.float64(weights[k]))
        else:
            total = np.float32(total + weights[k])
    return np.float32(np.sqrt(total)) if squares else total


@njit(cache=True, nogil=True)
def _ones_gain(combiner: Index, n: Index) -> np.float32:
    """1, 1 / n or 1 / sqrt(n) in float32."""
    if combiner == 1:
        return np.float32(_ONE / np.float32(n))
    if combiner == 2:
        return np.float32(_ONE / np.float32(np.sqrt(np.float32(n))))
    return _ONE


@njit(cache=True, nogil=True)
def pack_dense(
    values: Ids,
    begin: Index,
    samples: Index,
    hot: Index,
    first: Index,
    offset: Index,
    form: Form,
    keys: Keys,
    n: Index,
    of_sample: Floats,
) -> bool:
    """Keys of ``samples`` samples of ``hot`` ids, payloads from ``first``, places from ``offset``; False: a bad id.

    The sample of the k-th id is ``k // hot`` by a multiplication, exact while samples * hot**2 < 2**32.
    """
    vocab = form[0]
    sign = np.int64(0)
    reciprocal, tag = np.uint64((1 << 32) // hot + 1), np.uint64(first)
    for k in range(samples * hot):
        value = np.int64(values[begin + k])
        sign |= value | (vocab - 1 - value)
        sample = ((np.uint64(k) & _LOW) * reciprocal) >> _32
        keys[n + k] = ((np.uint64(offset) + _position(np.uint64(value), form)) << _32) | (tag + sample)
    of_sample[first : first + samples] = _ones_gain(form[6], hot)
    return bool(sign >= 0)


@njit(cache=True, nogil=True)
def pack_places(values: Ids, begin: Index, end: Index, offset: Index, form: Form, keys: Keys, n: Index) -> bool:
    """Keys from ``n`` on, still without payloads, of the values ``begin .. end``; False: a bad id."""
    vocab = form[0]
    sign = np.int64(0)
    for k in range(end - begin):
        value = np.int64(values[begin + k])
        sign |= value | (vocab - 1 - value)
        keys[n + k] = (np.uint64(offset) + _position(np.uint64(value), form)) << _32
    return bool(sign >= 0)


@njit(cache=True, nogil=True)
def label_sample(keys: Keys, begin: Index, end: Index, payload: Index, combiner: Index, of_sample: Floats) -> None:
    """Give the keys ``begin .. end``, which are one sample's, their payload, and the sample its gain."""
    for k in range(begin, end):
        keys[k] |= np.uint64(payload)
    if end > begin:
        of_sample[payload] = _ones_gain(combiner, end - begin)


@njit(cache=True, nogil=True)
def pack_ones(
    values: Ids,
    begin: Index,
    end: Index,
    payload: Index,
    offset: Index,
    form: Form,
    keys: Keys,
    n: Index,
    of_sample: Floats,
) -> Index:
    """Keys of one sample without weights. Returns their end; -1: a bad id."""
    start = n
    for k in range(begin, end):
        value = _mended(np.int64(values[k]), form[0], form[7])
        if value < 0:
            if form[7] == 0:
                return -1
            continue
        keys[n] = ((np.uint64(offset) + _position(np.uint64(value), form)) << _32) | np.uint64(payload)
        n += 1
    if n > start:
        of_sample[payload] = _ones_gain(form[6], n - start)
    return n


@njit(cache=True, nogil=True)
def pack_weighted(
    values: Ids,
    weights: Floats,
    begin: Index,
    end: Index,
    sample: Index,
    offset: Index,
    form: Form,
    keys: Keys,
    n: Index,
    sample_of: Ints,
    gain_of: Floats,
) -> Index:
    """Keys of one sample with weights. Returns their end; -1: a bad id, -2: a divisor that is zero or not finite."""
    start = n
    for k in range(begin, end):
        value = _mended(np.int64(values[k]), form[0], form[7])
        if value < 0:
            if form[7] == 0:
                return -1
            continue
        keys[n] = ((np.uint64(offset) + _position(np.uint64(value), form)) << _32) | np.uint64(n)
        sample_of[n] = sample
        gain_of[n] = weights[k]
        n += 1
    if form[6] != 0 and n > start:
        divisor = _divisor(gain_of, start, n, form[6] == 2)
        if divisor == 0 or not np.isfinite(divisor):
            return -2
        for j in range(start, n):
            gain_of[j] = np.float32(gain_of[j] / divisor)
    return n

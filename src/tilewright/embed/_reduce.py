"""Kernel 1: the ids of one table -> merged entries per source, sorted by (shard, local row, sample), and their counts.

An entry is packed as ``(shard * rows_per_shard + row) << 32 | payload``. Without weights the payload is the sample,
whose gain all its entries share; with weights it is the entry's number, through which sample and gain are found.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

import numpy as np
from numba import njit

from tilewright.embed._sort import DIGIT_SLOTS, sort_keys
from tilewright.embed._types import Entries, Floats, Ids, Index, Ints, Keys, Longs

__all__ = ["BAD_DIVISOR", "BAD_ID", "FINE", "reduce_table", "scratch"]

Room: TypeAlias = tuple[Keys, Ints, Floats, Floats, Longs]
"""Keys [2, entries], sample and gain of every entry, gain of every sample, counters."""
Form: TypeAlias = tuple[int, int, int, int, int, int, int, int]
"""Vocab, S, rows per shard, rotation, the two numbers of the division by S, combiner, bad-id mode."""

FINE, BAD_ID, BAD_DIVISOR = 0, 1, 2
"""What :func:`reduce_table` found; the caller looks for the place, which is rarely needed."""

_ONE = np.float32(1.0)
_LOW = np.uint64(0xFFFFFFFF)


class Scratch(threading.local):
    """The buffers a thread works in, one set per thread, grown when a job needs more."""

    def __init__(self) -> None:
        self._entries = self._samples = -1
        self._arrays: Room | None = None

    def __call__(self, entries: int, samples: int) -> Room:
        """Room for so many entries of one table and source, and samples of a slice: kernel 1's last argument."""
        if self._arrays is None or entries > self._entries or samples > self._samples:
            self._entries, self._samples = max(entries, self._entries), max(samples, self._samples)
            self._arrays = (
                np.empty((2, self._entries), np.uint64),
                np.empty(self._entries, np.int32),
                np.empty(self._entries, np.float32),
                np.empty(self._samples, np.float32),
                np.empty(DIGIT_SLOTS, np.int64),
            )
        return self._arrays


scratch = Scratch()
"""The calling thread's buffers."""


@njit(cache=True, nogil=True, inline="always")
def _position(value: Index, shards: Index, rows: Index, rotation: Index, magic: Index, shift: Index) -> Index:
    """Shard * rows_per_shard + row: ``value // shards`` is a multiplication (exact for 0 <= value < 2**31)."""
    row = (value * magic) >> shift
    shard = value - row * shards + rotation
    if shard >= shards:
        shard -= shards
    return shard * rows + row


@njit(cache=True, nogil=True, inline="always")
def _divisor(weights: Floats, begin: Index, end: Index, squares: bool) -> np.float32:
    """The float32 running sum of weights, or of squares added in float64; sqrt for the latter."""
    total = np.float32(0.0)
    for k in range(begin, end):
        if squares:
            total = np.float32(np.float64(total) + np.float64(weights[k]) * np.float64(weights[k]))
        else:
            total = np.float32(total + weights[k])
    return np.float32(np.sqrt(total)) if squares else total


@njit(cache=True, nogil=True, inline="always")
def _ones_gain(combiner: Index, n: Index) -> np.float32:
    """1, 1 / n or 1 / sqrt(n) in float32."""
    if combiner == 1:
        return np.float32(_ONE / np.float32(n))
    if combiner == 2:
        return np.float32(_ONE / np.float32(np.sqrt(np.float32(n))))
    return _ONE


@njit(cache=True, nogil=True)
def _pack_ones(
    values: Ids, begin: Index, end: Index, sample: Index, table: Form, keys: Keys, n: Index, of_sample: Floats
) -> tuple[Index, Index]:
    """Keys of one sample without weights. Returns their end and the status."""
    vocab, shards, rows, rotation, magic, shift, combiner, bad_ids = table
    first = n
    for k in range(begin, end):
        value: Index = np.int64(values[k])
        if value < 0 or value >= vocab:
            if bad_ids == 0:
                return n, BAD_ID
            if bad_ids == 2:
                continue
            value = 0 if value < 0 else vocab - 1
        at = _position(value, shards, rows, rotation, magic, shift)
        keys[n] = (np.uint64(at) << np.uint64(32)) | np.uint64(sample)
        n += 1
    if n > first:
        of_sample[sample] = _ones_gain(combiner, n - first)
    return n, FINE


@njit(cache=True, nogil=True)
def _pack_weighted(
    values: Ids,
    weights: Floats,
    begin: Index,
    end: Index,
    sample: Index,
    table: Form,
    keys: Keys,
    n: Index,
    sample_of: Ints,
    gain_of: Floats,
) -> tuple[Index, Index]:
    """Keys of one sample with weights. Returns their end and the status."""
    vocab, shards, rows, rotation, magic, shift, combiner, bad_ids = table
    first = n
    for k in range(begin, end):
        value: Index = np.int64(values[k])
        if value < 0 or value >= vocab:
            if bad_ids == 0:
                return n, BAD_ID
            if bad_ids == 2:
                continue
            value = 0 if value < 0 else vocab - 1
        at = _position(value, shards, rows, rotation, magic, shift)
        keys[n] = (np.uint64(at) << np.uint64(32)) | np.uint64(n)
        sample_of[n] = sample
        gain_of[n] = weights[k]
        n += 1
    if combiner != 0 and n > first:
        divisor = _divisor(gain_of, first, n, combiner == 2)
        if divisor == 0 or not np.isfinite(divisor):
            return n, BAD_DIVISOR
        for j in range(first, n):
            gain_of[j] = np.float32(gain_of[j] / divisor)
    return n, FINE


@njit(cache=True, nogil=True)
def _merge(
    keys: Keys,
    n: Index,
    weighted: bool,
    room: Room,
    rows: Index,
    row_offset: Index,
    at: Index,
    entries: Entries,
    count: Ints,
    unique: Ints,
) -> None:
    """Write sorted entries from ``at`` on, equal (row, sample) added up; count entries and rows per shard."""
    _, sample_of, gain_of, of_sample, _ = room
    out_rows, out_samples, out_gains = entries
    for k in range(count.size):
        count[k] = unique[k] = 0
    last_row, last_sample, shard = np.int64(-1), np.int32(-1), np.int64(0)
    base: Index = 0
    begun = at
    for i in range(n):
        key = keys[i]
        place = np.int64(key >> np.uint64(32))
        low = np.int64(key & _LOW)
        sample = sample_of[low] if weighted else np.int32(low)
        gain = gain_of[low] if weighted else of_sample[low]
        if place == last_row and sample == last_sample:
            out_gains[at - 1] += gain
            continue
        if place >= base + rows:
            count[shard] = at - begun
            begun = at
            shard = place // rows
            base = shard * rows
        if place != last_row:
            unique[shard] += 1
        out_rows[at] = np.int32(place - base + row_offset)
        out_samples[at] = sample
        out_gains[at] = gain
        at += 1
        last_row, last_sample = place, sample
    count[shard] = at - begun


@njit(cache=True, nogil=True)
def reduce_table(
    values: Ids,
    offsets: Longs,
    weights: Floats,
    features: Longs,
    table: tuple[int, ...],
    slices: tuple[int, int, int],
    bases: Longs,
    entries: Entries,
    counts: Ints,
    room: Room,
) -> Index:
    """Reduce one table for the slices ``slices[0] <= l < slices[1]``, which are ``slices[2]`` slices into the batch.

    ``features`` int64[n, 5]: of each feature of the table first value, first offset (-1: dense), ids per sample
    (dense), samples per slice, first sample id. ``table``: vocab, S, rows per shard, rotation, the two numbers of the
    division by S, combiner, bad-id mode (error, clip, drop), row offset, bits of a position. ``bases[l]``: where slice
    l writes in ``entries``; ``counts`` int32[2, slices, S]: entries and distinct ids.
    """
    keys, sample_of, gain_of, of_sample, counters = room
    form = (table[0], table[1], table[2], table[3], table[4], table[5], table[6], table[7])
    weighted = weights.size > 0
    for l in range(slices[0], slices[1]):
        n: Index = 0
        for f in range(features.shape[0]):
            value_base, offset_base, hot, samples, sample_base = features[f]
            first = (slices[2] + l) * samples
            for i in range(samples):
                begin, end = (first + i) * hot, (first + i + 1) * hot
                if offset_base >= 0:
                    begin, end = offsets[offset_base + first + i], offsets[offset_base + first + i + 1]
                begin, end, sample = begin + value_base, end + value_base, sample_base + i
                if weighted:
                    n, bad = _pack_weighted(values, weights, begin, end, sample, form, keys[0], n, sample_of, gain_of)
                else:
                    n, bad = _pack_ones(values, begin, end, sample, form, keys[0], n, of_sample)
                if bad != FINE:
                    return bad
        swapped = sort_keys(keys[0], keys[1], n, table[9], counters)
        merged = keys[1] if swapped else keys[0]
        _merge(merged, n, weighted, room, table[2], table[8], bases[l], entries, counts[0, l], counts[1, l])
    return FINE

"""Kernel 1: a unit of tables -> merged entries per source, sorted by (shard, local row, sample), and their counts.

Slices are sorted in groups: a slice of few ids alone would spend its time on the counters of the sort, and a group of
many would leave the cache.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

import numpy as np

from tilewright.embed._pack import (
    BAD_DIVISOR,
    BAD_ID,
    FINE,
    Form,
    label_sample,
    pack_dense,
    pack_ones,
    pack_places,
    pack_weighted,
)
from tilewright.embed._sort import DIGIT_SLOTS, sort_keys
from tilewright.embed._types import Entries, Floats, Ids, Index, Ints, Keys, Longs
from tilewright.kernels import njit

__all__ = ["reduce_unit", "scratch"]

Room: TypeAlias = tuple[Keys, Keys, Ints, Floats, Floats, Ints]
"""Keys and as many again, sample and gain of every entry, gain of every sample, counters."""

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_EXACT = 1 << 32


class Scratch(threading.local):
    """The buffers a thread works in, one set per thread, grown when a job needs more."""

    def __init__(self) -> None:
        self._entries = self._samples = -1
        self._arrays: Room | None = None

    def __call__(self, entries: int, samples: int) -> Room:
        """Room for so many entries of one unit and group, and samples of a group: kernel 1's last argument."""
        if self._arrays is None or entries > self._entries or samples > self._samples:
            self._entries, self._samples = max(entries, self._entries), max(samples, self._samples)
            self._arrays = (
                np.empty(self._entries, np.uint64),
                np.empty(self._entries, np.uint64),
                np.empty(self._entries, np.int32),
                np.empty(self._entries, np.float32),
                np.empty(self._samples, np.float32),
                np.empty(DIGIT_SLOTS, np.int32),
            )
        return self._arrays


scratch = Scratch()
"""The calling thread's buffers."""


@njit(cache=True, nogil=True)
def _bound(offsets: Longs, feature: Longs, sample: Index) -> Index:
    """Where a sample's values begin, counted from the feature's first."""
    at: Index = offsets[feature[1] + sample] if feature[1] >= 0 else sample * feature[2]
    return at


@njit(cache=True, nogil=True)
def _pack_feature(
    values: Ids,
    offsets: Longs,
    weights: Floats,
    feature: Longs,
    slice_: Index,
    number: Index,
    samples_of_slice: Index,
    offset: Index,
    form: Form,
    n: Index,
    room: Room,
) -> Index:
    """Keys of one feature's slice, which is the ``number``-th of its group; their end, or -1, -2 as in packing."""
    keys, _, sample_of, gain_of, of_sample, _ = room
    value_base, samples, sample_base = feature[0], feature[3], feature[4]
    first = slice_ * samples
    payload = number * samples_of_slice + sample_base
    fast = False
    if weights.size == 0:
        start = value_base + _bound(offsets, feature, first)
        end = value_base + _bound(offsets, feature, first + samples)
        hot = feature[2]
        if feature[1] < 0 and hot > 0 and samples * hot * hot < _EXACT:
            if pack_dense(values, start, samples, hot, payload, offset, form, keys, n, of_sample):
                n += samples * hot
                return n
        else:
            fast = pack_places(values, start, end, offset, form, keys, n)
        if not fast and form[7] == 0:
            return -1
    for i in range(samples):
        begin, end = _bound(offsets, feature, first + i), _bound(offsets, feature, first + i + 1)
        if fast:
            label_sample(keys, n, n + end - begin, payload + i, form[6], of_sample)
            n += end - begin
            continue
        begin, end = begin + value_base, end + value_base
        if weights.size > 0:
            n = pack_weighted(values, weights, begin, end, sample_base + i, offset, form, keys, n, sample_of, gain_of)
        else:
            n = pack_ones(values, begin, end, payload + i, offset, form, keys, n, of_sample)
        if n < 0:
            return n
    return n


@njit(cache=True, nogil=True)
def _merge_ones(
    keys: Keys,
    n: Index,
    unit: tuple[int, ...],
    samples_of_slice: Index,
    of_sample: Floats,
    at: Index,
    entries: Entries,
    count: Ints,
    unique: Ints,
) -> Index:
    """Write the sorted keys from ``at`` on, equal ones added up; count entries and rows per partition. Their end."""
    rows, samples, gains = entries
    shards, per_shard, row_offset = unit[0], unit[1], unit[6]
    last, last_place = _LOW << _32 | _LOW, np.int64(-1)
    end_of_part, shift, skipped = np.int64(0), np.int64(0), np.int64(0)
    part, begun, distinct = np.int64(0), at, np.int64(0)
    at -= 1
    for i in range(n):
        key = keys[i]
        place = np.int64(key >> _32)
        payload = np.int64(key & _LOW)
        if place >= end_of_part:
            count[part] = at + 1 - begun
            unique[part] = distinct
            begun, distinct = at + 1, np.int64(0)
            part = part + 1 if place < end_of_part + per_shard and end_of_part > 0 else place // per_shard
            end_of_part = (part + 1) * per_shard
            shift = row_offset - part * per_shard
            skipped = part // shards * samples_of_slice
        gain = of_sample[key & _LOW]
        distinct += place != last_place
        if key == last:
            gains[np.uint64(at)] += gain
        else:
            at += 1
            slot = np.uint64(at)
            rows[slot] = np.int32(place + shift)
            samples[slot] = np.int32(payload - skipped)
            gains[slot] = gain
        last, last_place = key, place
    count[part] = at + 1 - begun
    unique[part] = distinct
    return at + 1


@njit(cache=True, nogil=True)
def _merge_weighted(
    keys: Keys,
    n: Index,
    unit: tuple[int, ...],
    sample_of: Ints,
    gain_of: Floats,
    at: Index,
    entries: Entries,
    count: Ints,
    unique: Ints,
) -> Index:
    """The same where payloads are numbers of entries."""
    rows, samples, gains = entries
    per_shard, row_offset = unit[1], unit[6]
    last_place, last_sample = np.int64(-1), np.int32(-1)
    for i in range(n):
        place = np.int64(keys[i] >> _32)
        entry = np.int64(keys[i] & _LOW)
        sample = sample_of[entry]
        if place == last_place and sample == last_sample:
            gains[at - 1] += gain_of[entry]
            continue
        part = place // per_shard
        count[part] += 1
        unique[part] += place != last_place
        rows[at] = np.int32(place - part * per_shard + row_offset)
        samples[at] = sample
        gains[at] = gain_of[entry]
        at += 1
        last_place, last_sample = place, sample
    return at


@njit(cache=True, nogil=True)
def reduce_unit(
    values: Ids,
    offsets: Longs,
    weights: Floats,
    features: Longs,
    unit: tuple[int, ...],
    slices: tuple[int, int, int],
    group: int,
    samples_of_slice: int,
    bases: Longs,
    entries: Entries,
    counts: Ints,
    room: Room,
) -> Index:
    """Reduce one unit for the slices ``slices[0] <= l < slices[1]``, which are ``slices[2]`` slices into the batch.

    ``features`` int64[n, 8]: of each feature first value, first offset (-1: dense), ids per sample (dense), samples per
    slice, first sample id; of its table vocab, rotation, first row in the unit. ``unit``: S, rows per shard, the two
    numbers of the division by S, combiner, bad-id mode (error, clip, drop), first row in the stack, bits of a position.
    ``group``: slices sorted together; ``samples_of_slice``: of all the stack's features. ``bases[l]``: where slice l
    may write in ``entries``, then where it did; ``counts`` int32[2, slices, S]: entries and distinct ids. Returns what
    packing found.
    """
    keys, spare, sample_of, gain_of, of_sample, counters = room
    shards, rows = unit[0], unit[1]
    for first in range(slices[0], slices[1], group):
        last = min(first + group, slices[1])
        n: Index = np.int64(0)  # a literal 0 would be a type of its own, and everything compiled twice
        for l in range(first, last):
            for shard in range(shards):
                counts[0, l, shard] = counts[1, l, shard] = 0
            number = l - first
            for f in range(features.shape[0]):
                vocab, rotation = features[f, 5], features[f, 6]
                n = _pack_feature(
                    values,
                    offsets,
                    weights,
                    features[f],
                    slices[2] + l,
                    number,
                    samples_of_slice,
                    number * shards * rows + features[f, 7],
                    (vocab, shards, rows, rotation, unit[2], unit[3], unit[4], unit[5]),
                    n,
                    room,
                )
                if n < 0:
                    return BAD_ID if n == -1 else BAD_DIVISOR
        bits, parts = unit[7], last - first
        while parts > 1:
            parts = (parts + 1) // 2
            bits += 1
        merged = spare if sort_keys(keys, spare, n, bits, counters) else keys
        count, unique = counts[0, first:last].reshape(-1), counts[1, first:last].reshape(-1)
        at = bases[first]
        if weights.size > 0:
            _merge_weighted(merged, n, unit, sample_of, gain_of, at, entries, count, unique)
        else:
            _merge_ones(merged, n, unit, samples_of_slice, of_sample, at, entries, count, unique)
        for l in range(first, last):
            bases[l] = at
            for shard in range(shards):
                at += counts[0, l, shard]
    return FINE

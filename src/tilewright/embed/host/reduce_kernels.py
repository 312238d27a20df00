"""Kernel 1: a unit of tables -> merged entries per source, sorted by (shard, local row, sample), and their counts.

Slices are sorted in groups: a slice of few ids alone would spend its time on the counters of the sort, and a group of
many would leave the cache.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Entries, Floats, Ids, Index, Ints, Keys, Longs
from tilewright.kernels import inner, njit

# Ids -> 64-bit keys: ``(partition * rows_per_shard + row) << 32 | payload``, where partition = slice * S + shard.

FINE, BAD_ID, BAD_DIVISOR = 0, 1, 2
"""What packing found; the caller looks for the place, which is rarely needed."""

Inputs: TypeAlias = tuple[Ids, Longs, Floats]
"""Values, offsets and weights of a unit's features, one feature behind the other; no offsets or weights: empty."""

Form: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Vocab, S, rows per shard, rotation, the two numbers of the division by S, combiner."""

Room: TypeAlias = tuple[Keys, Keys, Ints, Floats, Floats, Ints]
"""Keys and as many again, sample and gain of every entry, gain of every sample, counters."""

_ONE = np.float32(1.0)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@inner()
def _position(value: np.uint64, form: Form) -> np.uint64:
    """Shard * rows_per_shard + row; ``value // S`` is a multiplication (exact for 0 <= value < 2**31).

    All factors have 32 bits, which the masks tell the compiler: then a vector does eight at once.
    """
    shards, rows, rotation = np.uint64(form[1]) & _LOW, np.uint64(form[2]) & _LOW, np.uint64(form[3])
    row = ((value & _LOW) * (np.uint64(form[4]) & _LOW)) >> np.uint64(form[5])
    shard = value - (row & _LOW) * shards + rotation
    shard = shard - shards if shard >= shards else shard
    return (shard & _LOW) * rows + row


@inner()
def divisor(weights: Floats, begin: Index, end: Index, squares: bool) -> np.float32:
    """The float32 running sum of weights, or of squares added in float64; sqrt for the latter."""
    total = np.float32(0.0)
    for k in range(begin, end):
        if squares:
            total = np.float32(np.float64(total) + np.float64(weights[k]) * np.float64(weights[k]))
        else:
            total = np.float32(total + weights[k])
    return np.float32(np.sqrt(total)) if squares else total


@inner()
def ones_gain(combiner: Index, n: Index) -> np.float32:
    """1, 1 / n or 1 / sqrt(n) in float32."""
    if combiner == 1:
        return np.float32(_ONE / np.float32(n))
    if combiner == 2:
        return np.float32(_ONE / np.float32(np.sqrt(np.float32(n))))
    return _ONE


@inner()
def pack_dense(
    values: Ids, begin: Index, samples: Index, hot: Index, first: Index, offset: Index, form: Form, n: Index, room: Room
) -> bool:
    """Keys of ``samples`` samples of ``hot`` ids, payloads from ``first``, places from ``offset``; False: a bad id.

    The sample of the k-th id is ``k // hot`` by a multiplication, exact while samples * hot**2 < 2**32.
    """
    keys, of_sample, vocab = room[0], room[4], form[0]
    sign = np.int64(0)
    reciprocal, tag = np.uint64((1 << 32) // hot + 1), np.uint64(first)
    for k in range(samples * hot):
        value = np.int64(values[begin + k])
        sign |= value | (vocab - 1 - value)
        sample = ((np.uint64(k) & _LOW) * reciprocal) >> _32
        keys[n + k] = ((np.uint64(offset) + _position(np.uint64(value), form)) << _32) | (tag + sample)
    of_sample[first : first + samples] = ones_gain(form[6], hot)
    return bool(sign >= 0)


@inner()
def pack_places(values: Ids, begin: Index, end: Index, offset: Index, form: Form, keys: Keys, n: Index) -> bool:
    """Keys from ``n`` on, still without payloads, of the values ``begin .. end``; False: a bad id."""
    vocab = form[0]
    sign = np.int64(0)
    for k in range(end - begin):
        value = np.int64(values[begin + k])
        sign |= value | (vocab - 1 - value)
        keys[n + k] = (np.uint64(offset) + _position(np.uint64(value), form)) << _32
    return bool(sign >= 0)


@inner()
def pack_weighted(
    inputs: Inputs, begin: Index, end: Index, sample: Index, offset: Index, form: Form, n: Index, room: Room
) -> Index:
    """Keys of one sample with weights. Returns their end; -1: a bad id, -2: a divisor that is zero or not finite."""
    values, _, weights = inputs
    keys, _, sample_of, gain_of, _, _ = room
    start = n
    for k in range(begin, end):
        value = np.int64(values[k])
        if not 0 <= value < form[0]:
            return -1
        keys[n] = ((np.uint64(offset) + _position(np.uint64(value), form)) << _32) | np.uint64(n)
        sample_of[n] = sample
        gain_of[n] = weights[k]
        n += 1
    if form[6] != 0 and n > start:
        by = divisor(gain_of, start, n, form[6] == 2)
        if by == 0 or not np.isfinite(by):
            return -2
        for j in range(start, n):
            gain_of[j] = np.float32(gain_of[j] / by)
    return n


# Sorting of packed 64-bit keys by their upper half, stable: insertion for a few, counting per digit for many.

DIGIT_BITS = 11
DIGIT_SLOTS = 4 << DIGIT_BITS
"""Counters that :func:`sort_keys` needs."""

_FEW = 40
_ROW_BITS = np.uint64(32)


@inner(inline="always")
def _insertion(keys: Keys, n: Index) -> None:
    for i in range(1, n):
        key = keys[i]
        j = i
        while j > 0 and keys[j - 1] > key:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@inner()
def _count(keys: Keys, n: Index, passes: Index, width: Index, counters: Ints) -> None:
    """How often every value of every digit occurs, digit after digit in ``counters``; straight code for up to three."""
    size = np.uint64(1) << np.uint64(width)
    mask, step, first = size - np.uint64(1), np.uint64(width), _ROW_BITS
    second = first + step
    if passes == 1:
        for i in range(n):
            counters[(keys[i] >> first) & mask] += 1
    elif passes == 2:
        for i in range(n):
            key = keys[i]
            counters[(key >> first) & mask] += 1
            counters[size + ((key >> second) & mask)] += 1
    elif passes == 3:
        for i in range(n):
            key = keys[i]
            counters[(key >> first) & mask] += 1
            counters[size + ((key >> second) & mask)] += 1
            counters[size + size + ((key >> (second + step)) & mask)] += 1
    else:
        for i in range(n):
            rest, base = keys[i] >> first, np.uint64(0)
            for _ in range(passes):
                counters[base + (rest & mask)] += 1
                rest >>= step
                base += size


@inner()
def sort_keys(keys: Keys, spare: Keys, n: Index, bits: Index, counters: Ints) -> bool:
    """Sort ``keys[:n]`` by bits 32 .. 32 + bits; the lower halves ascend already. True: the result is in ``spare``.

    All digits are counted in one pass over the keys. Few keys take narrow digits, so that the counters stay few.
    """
    if n <= _FEW:
        _insertion(keys, n)
        return False
    widest = 8 if n < 1000 else DIGIT_BITS
    passes = (bits + widest - 1) // widest
    if passes == 0:
        return False
    width = (bits + passes - 1) // passes
    size = 1 << width
    mask = np.uint64(size - 1)
    counters[: passes * size] = 0
    _count(keys, n, passes, width, counters)
    swapped = False
    for p in range(passes):
        count = counters[p * size : (p + 1) * size]
        at = np.int32(0)
        for d in range(size):
            at, count[d] = at + count[d], at
        shift = _ROW_BITS + np.uint64(p * width)
        source, target = (spare, keys) if swapped else (keys, spare)
        for i in range(n):
            key = source[i]
            digit = (key >> shift) & mask
            place = count[digit]
            target[np.uint64(place)] = key
            count[digit] = place + 1
        swapped = not swapped
    return swapped


Counts: TypeAlias = tuple[Ints, Ints]
"""Entries and distinct ids of every partition."""

_EXACT = 1 << 32


@inner()
def _bound(offsets: Longs, feature: Longs, sample: Index) -> Index:
    """Where a sample's values begin, counted from the feature's first."""
    at: Index = offsets[feature[1] + sample] if feature[1] >= 0 else sample * feature[2]
    return at


@inner()
def _pack_feature(
    inputs: Inputs, feature: Longs, slice_: Index, first_payload: Index, offset: Index, form: Form, n: Index, room: Room
) -> Index:
    """Keys of one feature's slice, its payloads from ``first_payload`` on; their end, or -1, -2 as in packing."""
    values, offsets, weights = inputs
    keys, of_sample = room[0], room[4]
    value_base, samples, sample_base = feature[0], feature[3], feature[4]
    first, payload = slice_ * samples, first_payload + sample_base
    if weights.size == 0:
        start = value_base + _bound(offsets, feature, first)
        end = value_base + _bound(offsets, feature, first + samples)
        hot = feature[2]
        if feature[1] < 0 and hot > 0 and samples * hot * hot < _EXACT:
            fine = pack_dense(values, start, samples, hot, payload, offset, form, n, room)
            return n + samples * hot if fine else -1
        if not pack_places(values, start, end, offset, form, keys, n):
            return -1
    for i in range(samples):
        begin, end = _bound(offsets, feature, first + i), _bound(offsets, feature, first + i + 1)
        if weights.size == 0:
            for k in range(n, n + end - begin):
                keys[k] |= np.uint64(payload + i)
            if end > begin:
                of_sample[payload + i] = ones_gain(form[6], end - begin)
            n += end - begin
            continue
        n = pack_weighted(inputs, begin + value_base, end + value_base, sample_base + i, offset, form, n, room)
        if n < 0:
            return n
    return n


@inner()
def _merge_ones(
    keys: Keys, n: Index, unit: tuple[int, ...], of_slice: Index, room: Room, at: Index, out: Entries, counts: Counts
) -> Index:
    """Write the sorted keys from ``at`` on, equal ones added up; count entries and rows per partition. Their end."""
    rows, samples, gains = out
    (count, unique), of_sample = counts, room[4]
    shards, per_shard, row_offset = unit[0], unit[1], unit[5]
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
            skipped = part // shards * of_slice
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


@inner()
def _merge_weighted(
    keys: Keys, n: Index, unit: tuple[int, ...], room: Room, at: Index, entries: Entries, counts: Counts
) -> Index:
    """What :func:`_merge_ones` does, where payloads are numbers of entries."""
    rows, samples, gains = entries
    (count, unique), sample_of, gain_of = counts, room[2], room[3]
    per_shard, row_offset = unit[1], unit[5]
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


@inner()
def _sorted_slices(
    work: tuple[Inputs, Longs, tuple[int, ...], int, int], first: Index, last: Index, before: Index, room: Room
) -> tuple[Index, Keys]:
    """The keys of a unit's slices ``first`` .. ``last`` - 1, ``before`` of which are not counted, sorted: their number,
    or -1, -2 as in packing; ``work`` as :func:`reduce_unit` takes it."""
    inputs, features, unit, _, of_slice = work
    keys, spare, counters = room[0], room[1], room[5]
    shards, rows = unit[0], unit[1]
    n: Index = np.int64(0)  # a literal 0 would be a type of its own, and everything compiled twice
    for l in range(first, last):
        number = l - first
        for f in range(features.shape[0]):
            vocab, rotation = features[f, 5], features[f, 6]
            form = (vocab, shards, rows, rotation, unit[2], unit[3], unit[4])
            offset = number * shards * rows + features[f, 7]
            n = _pack_feature(inputs, features[f], before + l, number * of_slice, offset, form, n, room)
            if n < 0:
                return n, keys
    bits, parts = unit[6], last - first
    while parts > 1:
        parts = (parts + 1) // 2
        bits += 1
    return n, spare if sort_keys(keys, spare, n, bits, counters) else keys


@njit(cache=True, nogil=True)
def reduce_unit(
    work: tuple[Inputs, Longs, tuple[int, ...], int, int],
    bases: Longs,
    counts: Ints,
    slices: tuple[int, int, int],
    entries: Entries,
    room: Room,
) -> Index:
    """Reduce one unit for the slices ``slices[0] <= l < slices[1]``, which are ``slices[2]`` slices into the batch.

    ``work``: inputs; ``features`` int64[n, 8], of each feature first value, first offset (-1: dense), ids per sample
    (dense), samples per slice, first sample id, and of its table vocab, rotation, first row in the unit; ``unit``: S,
    rows per shard, the two numbers of the division by S, combiner, first row in the stack, bits of a position;
    ``group``: slices sorted together; ``of_slice``: samples of a slice, of all the stack's features. ``bases[l]``:
    where slice l may write in ``entries``, then where it did; ``counts`` int32[2, slices * S]: entries and distinct
    ids. Returns what packing found.
    """
    inputs, _, unit, group, of_slice = work
    weights, shards = inputs[2], unit[0]
    for first in range(slices[0], slices[1], group):
        last = min(first + group, slices[1])
        n, merged = _sorted_slices(work, first, last, slices[2], room)
        if n < 0:
            return BAD_ID if n == -1 else BAD_DIVISOR
        for part in range(first * shards, last * shards):
            counts[0, part] = counts[1, part] = 0
        counted = counts[0, first * shards : last * shards], counts[1, first * shards : last * shards]
        at = bases[first]
        if weights.size > 0:
            _merge_weighted(merged, n, unit, room, at, entries, counted)
        else:
            _merge_ones(merged, n, unit, of_slice, room, at, entries, counted)
        for l in range(first, last):
            bases[l] = at
            for shard in range(shards):
                at += counts[0, l * shards + shard]
    return FINE


@njit(cache=True, nogil=True)
def peak_unit(
    work: tuple[Inputs, Longs, tuple[int, ...], int, int], slices: tuple[int, int, int], room: Room, found: Longs
) -> Index:
    """What :func:`reduce_unit` counts of a unit without weights, without a count for every partition: work grows with
    the ids, not with S x S. ``found`` int64[4]: the most entries and distinct ids of a partition, and both in all, each
    source's distinct ids counted; all raised. Returns what packing found.
    """
    rows, group = work[2][1], work[3]
    for first in range(slices[0], slices[1], group):
        n, keys = _sorted_slices(work, first, min(first + group, slices[1]), slices[2], room)
        if n < 0:
            return BAD_ID
        last, last_place, end_of_part = _LOW << _32 | _LOW, np.int64(-1), np.int64(0)
        count, unique = np.int64(0), np.int64(0)
        for i in range(n):
            key, place = keys[i], np.int64(keys[i] >> _32)
            if key == last:
                continue
            if place >= end_of_part:
                count = unique = np.int64(0)
                end_of_part = (place // rows + 1) * rows
            count += 1
            unique += place != last_place
            found[0], found[1] = max(found[0], count), max(found[1], unique)
            found[2] += 1
            found[3] += place != last_place
            last, last_place = key, place
    return FINE


# One pass over the counts for all that limits, buffers and statistics need: there may be millions.


@njit(cache=True, nogil=True)
def add_up(counts: Ints, units: Longs, most: Longs, required: Longs) -> None:
    """From ``counts`` int32[units, 2, sources, S] (entries, distinct ids) and the first unit of every stack and the
    end ``units`` int64[stacks + 1]: ``most`` int64[stacks, 2, S], of all sources, and ``required`` int64[stacks,
    sources], slots with every partition rounded up to 8.
    """
    shards = counts.shape[3]
    whole = np.empty(shards, np.int32)
    for k in range(units.size - 1):
        most[k] = 0
        for kind in range(2):
            peak = most[k, kind]
            for l in range(counts.shape[2]):
                if units[k + 1] - units[k] == 1:
                    row = counts[units[k], kind, l]
                else:
                    row = whole
                    row[:] = 0
                    for u in range(units[k], units[k + 1]):
                        row += counts[u, kind, l]
                slots: Index = 0
                for shard in range(shards):
                    n = np.int64(row[shard])
                    peak[shard] = max(peak[shard], n)
                    slots += (n + 7) & ~7
                if kind == 0:
                    required[k, l] = slots

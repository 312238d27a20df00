"""From a device's buffers to its index: the distinct rows it asks of every shard, and its entries in two orders.

Buffers hold entries by source, mini-batch and shard. A lookup wants them by sample, an update by row: so every sample
is summed once, and every row read and written once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Floats, Index, Ints, Longs
from tilewright.kernels import inner, njit

Sorted: TypeAlias = tuple[Longs, Ints, Ints, Floats]
"""Of every entry, by row: shard * rows_per_shard + local row, its number in the buffers' order; and, in that order,
sample and gain."""

_DIGIT = 11
_BINS = 1 << _DIGIT


@njit(cache=True, nogil=True)
def collect(
    pointers: Ints,
    buffers: tuple[Ints, Ints, Floats],
    layout: tuple[int, int, int, int, int],
    bounds: tuple[int, int],
    entries: Sorted,
) -> Index:
    """The entries of one device without padding; their number, or -1 - slot where one leaves table or slice.

    ``layout``: sources, mini-batches, shards, pointers per segment, slots a source's pointers count from. ``bounds``:
    rows per shard, samples per source.
    """
    rows, samples, gains = buffers
    sources, minibatches, shards, segment, base = layout
    rows_per_shard, per_source = bounds
    keys, order, entry_samples, entry_gains = entries
    found = 0
    for source in range(sources):
        for minibatch in range(minibatches):
            first = (source * minibatches + minibatch) * segment
            for shard in range(shards):
                at = first + shard
                # Pointers count from the source's slots (base > 0) or from the device's; the end before rounds up to 8.
                fresh = shard == 0 and (base > 0 or at == 0)
                begin = 0 if fresh else (np.int64(pointers[at - 1]) + 7) // 8 * 8
                offset = source * base
                end = np.int64(pointers[at]) + offset
                for slot in range(begin + offset, end):
                    row, sample = rows[slot], samples[slot]
                    if row < 0 or row >= rows_per_shard or sample < 0 or sample >= per_source:
                        return -1 - slot
                    keys[found] = shard * rows_per_shard + row
                    order[found] = found
                    entry_samples[found] = source * per_source + sample
                    entry_gains[found] = gains[slot]
                    found += 1
    return found


@njit(cache=True, nogil=True)
def sort_by_row(entries: Sorted, count: Index, most: Index, spare: tuple[Longs, Ints], shards: Index) -> Index:
    """Sort keys and numbers by key (below ``most``), stable; the most distinct rows of one shard.

    Digit by digit from the low one; invariant: after a digit both arrays are sorted by the digits so far.
    """
    keys, order = entries[0], entries[1]
    other_keys, other_order = spare
    counts = np.empty(_BINS, np.int64)
    shift, passes = 0, 0
    while most > 1 and (most - 1) >> shift:
        counts[:] = 0
        for i in range(count):
            counts[keys[i] >> shift & _BINS - 1] += 1
        total = 0
        for b in range(_BINS):
            here = counts[b]
            counts[b] = total
            total += here
        for i in range(count):
            b = keys[i] >> shift & _BINS - 1
            to = counts[b]
            counts[b] = to + 1
            other_keys[to] = keys[i]
            other_order[to] = order[i]
        keys, order, other_keys, other_order = other_keys, other_order, keys, order
        shift += _DIGIT
        passes += 1
    if passes & 1:
        for i in range(count):
            other_keys[i] = keys[i]
            other_order[i] = order[i]
    return _most_rows(entries[0], count, most // shards)


@inner()
def _most_rows(keys: Longs, count: Index, rows_per_shard: Index) -> Index:
    most, here, bound, previous = 0, 0, 0, -1
    for i in range(count):
        key = keys[i]
        if key >= bound:
            here, bound = 0, (key // rows_per_shard + 1) * rows_per_shard
        if key != previous:
            here += 1
            most = max(most, here)
        previous = key
    return most


@njit(cache=True, nogil=True)
def fill(
    entries: Sorted,
    count: Index,
    rows_per_shard: Index,
    per_shard: Index,
    codes: Ints,
    places: Ints,
    rows: Ints,
    by_row: tuple[Ints, Ints, Floats],
    by_sample: tuple[Ints, Ints, Ints, Floats],
) -> None:
    """Write the index of one device from its sorted entries; ``places`` int32[count] is working memory.

    ``rows`` int32[S * per_shard]: the distinct local rows of every shard, rising, then ``rows_per_shard``. ``by_row``:
    the end of each of these places, the samples as ``codes`` has them, gains; ``by_sample``: the end of each sample,
    rows of all shards laid end to end, places, gains.
    """
    keys, order, samples, gains = entries
    row_ends, row_samples, row_gains = by_row
    sample_ends, sample_rows, sample_places, sample_gains = by_sample
    place, end_of_shard, first_of_shard, previous = -1, 0, 0, -1
    for i in range(count):
        key = keys[i]
        if key != previous:
            if key >= end_of_shard:
                shard = key // rows_per_shard
                first_of_shard, end_of_shard = shard * rows_per_shard, (shard + 1) * rows_per_shard
                for pad in range(place + 1, shard * per_shard):
                    rows[pad], row_ends[pad] = rows_per_shard, i
                place = shard * per_shard - 1
            place += 1
            rows[place] = key - first_of_shard
            previous = key
        row_ends[place] = i + 1
        entry = order[i]
        places[entry] = place
        row_samples[i] = codes[samples[entry]]
        row_gains[i] = gains[entry]
    for pad in range(place + 1, len(rows)):
        rows[pad], row_ends[pad] = rows_per_shard, count
    _by_sample(samples, gains, places, count, sample_ends, sample_places, sample_gains)
    for k in range(count):
        asked = np.int64(sample_places[k])
        sample_rows[k] = asked // per_shard * rows_per_shard + rows[asked]


@inner()
def _by_sample(
    samples: Ints, gains: Floats, places: Ints, count: Index, ends: Ints, sample_places: Ints, sample_gains: Floats
) -> None:
    """Counting sort; invariant of the second loop: ``ends[s]`` is where the next entry of sample s goes."""
    ends[:] = 0
    for i in range(count):
        ends[samples[i]] += 1
    total = 0
    for s in range(len(ends)):
        here = ends[s]
        ends[s] = total
        total += here
    for i in range(count):
        to = ends[samples[i]]
        ends[samples[i]] = to + 1
        sample_places[to] = places[i]
        sample_gains[to] = gains[i]

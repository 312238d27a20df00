"""From a device's buffers to its index: the distinct rows it asks of every shard, and its entries in two orders.

Buffers hold entries by source, mini-batch and shard. A lookup wants them by sample, an update by row: so every sample
is summed once, and every row read and written once.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Floats, Index, Ints, Keys
from tilewright.embed.host.reduce_kernels import sort_keys
from tilewright.kernels import inner, njit

Sorted: TypeAlias = tuple[Keys, Ints, Floats]
"""Of every entry, by row: ``shard * rows_per_shard + local row << 32 | its number`` in the buffers' order; and, in that
order, sample and gain."""

_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


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
    keys, entry_samples, entry_gains = entries
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
                    keys[found] = np.uint64(shard * rows_per_shard + row) << _32 | np.uint64(found)
                    entry_samples[found] = source * per_source + sample
                    entry_gains[found] = gains[slot]
                    found += 1
    return found


@njit(cache=True, nogil=True)
def sort_by_row(keys: Keys, count: Index, rows_per_shard: Index, shards: Index, spare: Keys, counters: Ints) -> Index:
    """Sort keys; the most distinct rows of one shard. ``counters`` int32[DIGIT_SLOTS] is working memory."""
    bits = 0
    most: Index = 0
    here: Index = 0
    bound: Index = 0
    previous: Index = -1
    while (shards * rows_per_shard - 1) >> bits:
        bits += 1
    if sort_keys(keys, spare, count, bits, counters):
        for i in range(count):
            keys[i] = spare[i]
    for i in range(count):
        row = np.int64(keys[i] >> _32)
        if row >= bound:
            here, bound = 0, (row // rows_per_shard + 1) * rows_per_shard
        if row != previous:
            here += 1
            most = max(most, here)
        previous = row
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
    keys, samples, gains = entries
    row_ends, row_samples, row_gains = by_row
    sample_ends, sample_rows, sample_places, sample_gains = by_sample
    place: Index = -1
    end_of_shard: Index = 0
    first_of_shard: Index = 0
    previous: Index = -1
    for i in range(count):
        key = np.int64(keys[i] >> _32)
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
        entry = np.int64(keys[i] & _LOW)
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

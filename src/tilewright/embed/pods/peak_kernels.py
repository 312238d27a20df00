"""The fullest partitions of a batch without a table of all partitions: work grows with the ids, not with S x S.

The ids of some sources become keys ``source * positions + shard * rows_per_shard + row``, are sorted, and runs are
counted. Between two kernels the caller sorts.
"""

from __future__ import annotations

import numpy as np

from tilewright.embed.host.arrays import Ids, Index, Longs
from tilewright.kernels import njit

VOCAB, SHARDS, ROTATION, FIRST_ROW, ROWS_PER_SHARD = range(5)
"""Columns of a feature's ``form``."""
_FEW = 24


@njit(cache=True, nogil=True)
def emit(
    values: Ids,
    offsets: Longs,
    hot: Index,
    sources: tuple[int, int],
    slice_samples: Index,
    form: Longs,
    keys: Longs,
    n: Index,
) -> Index:
    """Append the keys of one feature's samples of the ``sources``, an id once a sample; their end, or -1: a bad id.

    ``offsets`` [0]: ``hot`` ids a sample.
    """
    vocab, shards, rotation = form[VOCAB], form[SHARDS], form[ROTATION]
    rows = form[ROWS_PER_SHARD]
    for source in range(sources[0], sources[1]):
        base = source * shards * rows
        for sample in range(source * slice_samples, (source + 1) * slice_samples):
            begin = offsets[sample] if len(offsets) > 1 else sample * hot
            end = offsets[sample + 1] if len(offsets) > 1 else begin + hot
            first = n
            for k in range(begin, end):
                value = np.int64(values[k])
                if value < 0 or value >= vocab:
                    return -1
                row = value // shards
                shard = value - row * shards + rotation
                shard = shard - shards if shard >= shards else shard
                key = base + shard * rows + row + form[FIRST_ROW]
                if end - begin <= _FEW:
                    again = False
                    for j in range(first, n):
                        again |= keys[j] == key
                    if again:
                        continue
                keys[n] = key
                n += 1
            if end - begin > _FEW and n > first:
                keys[first:n].sort()
                kept: Index = first + 1
                for j in range(first + 1, n):
                    if keys[j] != keys[kept - 1]:
                        keys[kept] = keys[j]
                        kept += 1
                n = kept
    return n


@njit(cache=True, nogil=True)
def scan(keys: Longs, n: Index, rows_per_shard: Index, found: Longs) -> None:
    """Over sorted keys: ``found`` = most entries and distinct ids of a partition, entries, distinct ids; raised."""
    last, end_of_part, begun, distinct = np.int64(-1), np.int64(-1), np.int64(0), np.int64(0)
    for k in range(n):
        key = keys[k]
        if key >= end_of_part:
            found[0], found[1] = max(found[0], k - begun), max(found[1], distinct)
            found[3] += distinct
            begun, distinct = np.int64(k), np.int64(0)
            end_of_part = (key // rows_per_shard + 1) * rows_per_shard
        distinct += key != last
        last = key
    found[0], found[1] = max(found[0], n - begun), max(found[1], distinct)
    found[2] += n
    found[3] += distinct

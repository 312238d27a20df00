"""Kernel 3: the same buffers where a limit was exceeded: entries cut into mini-batches, or dropped and counted."""

from __future__ import annotations

import numpy as np

from tilewright.embed._drop import choose
from tilewright.embed._hash import bucket_of
from tilewright.embed._minibatch import BUCKETS
from tilewright.embed._split import split_bits
from tilewright.embed._types import Entries, Index, Ints, Keys, Longs
from tilewright.embed._write import fill_pads
from tilewright.kernels import njit

__all__ = ["find_splits", "gather_source", "write_cut"]


@njit(cache=True, nogil=True)
def gather_source(
    units: tuple[int, int], l: Index, bases: Longs, counts: Ints, entries: Entries, gathered: Entries
) -> None:
    """The entries of units ``units[0] <= t < units[1]`` and source ``l``, shard by shard, one behind the other."""
    rows, samples, gains = entries
    cursor = np.empty(units[1] - units[0], np.int64)
    for t in range(cursor.size):
        cursor[t] = bases[units[0] + t, l]
    at: Index = 0
    for shard in range(counts.shape[3]):
        for t in range(cursor.size):
            n = np.int64(counts[units[0] + t, 0, l, shard])
            begin = cursor[t]
            gathered[0][at : at + n] = rows[begin : begin + n]
            gathered[1][at : at + n] = samples[begin : begin + n]
            gathered[2][at : at + n] = gains[begin : begin + n]
            cursor[t] += n
            at += n


@njit(cache=True, nogil=True)
def find_splits(rows: Ints, per_shard: Longs, limits: Longs, state: Keys, lone: Longs) -> np.uint64:
    """Split bits of one source of one stack: its sorted ``rows``, ``per_shard`` int64[2, S] entries and distinct ids.

    ``lone`` int64[3] becomes (shard, entries, distinct ids) of the first bucket that alone exceeds a limit; -1 if none.
    """
    ids, unique = np.empty(BUCKETS, np.int64), np.empty(BUCKETS, np.int64)
    work = np.empty(BUCKETS, np.int64)
    shards = per_shard.shape[1]
    bits = np.uint64(0)
    at: Index = 0
    for shard in range(shards):
        end = at + per_shard[0, shard]
        if per_shard[0, shard] > limits[0] or per_shard[1, shard] > limits[1]:
            for b in range(BUCKETS):
                ids[b] = unique[b] = 0
            last = np.int64(-1)
            bucket: Index = 0
            for q in range(at, end):
                row = np.int64(rows[q])
                if row != last:
                    bucket = bucket_of(shard + shards * row, state)
                    unique[bucket] += 1
                    last = row
                ids[bucket] += 1
            bits |= split_bits(ids, limits[0], work) | split_bits(unique, limits[1], work)
            for b in range(BUCKETS):
                if lone[0] < 0 and (ids[b] > limits[0] or unique[b] > limits[1]):
                    lone[0], lone[1], lone[2] = shard, ids[b], unique[b]
        at = end
    return bits


@njit(cache=True, nogil=True)
def _cells(rows: Ints, per_shard: Longs, starts: Longs, state: Keys, cell: Longs, ends: Longs) -> None:
    """The cell (mini-batch, shard, bucket) of every entry, in the order of the output; ``ends``: where each cell ends.

    ``starts``: first bucket of every mini-batch and 64 behind them. With one mini-batch the bucket plays no part.
    """
    shards = per_shard.size
    minibatch_of = np.empty(BUCKETS, np.int64)
    for m in range(starts.size - 1):
        for b in range(starts[m], starts[m + 1]):
            minibatch_of[b] = m
    for k in range(ends.size):
        ends[k] = 0
    at: Index = 0
    for shard in range(shards):
        last = np.int64(-1)
        c: Index = 0
        for q in range(at, at + per_shard[shard]):
            row = np.int64(rows[q])
            if row != last:
                last = row
                bucket = bucket_of(shard + shards * row, state) if starts.size > 2 else 0
                begin, behind = starts[minibatch_of[bucket]], starts[minibatch_of[bucket] + 1]
                c = begin * shards + shard * (behind - begin) + bucket - begin
            cell[q] = c
            ends[c] += 1
        at += per_shard[shard]
    total = np.int64(0)
    for k in range(ends.size):
        total += ends[k]
        ends[k] = total


@njit(cache=True, nogil=True)
def _ordered(cell: Longs, ends: Longs, order: Longs) -> None:
    """Entries by cell, stable: filled from behind, so that ``ends`` become the cells' beginnings."""
    for q in range(cell.size - 1, -1, -1):
        ends[cell[q]] -= 1
        order[ends[cell[q]]] = q


@njit(cache=True, nogil=True)
def write_cut(
    gathered: Entries,
    per_shard: Longs,
    starts: Longs,
    limits: Longs,
    lowest: bool,
    place: tuple[int, int, int],
    pointer_stride: Index,
    out: Entries,
    pointers: Ints,
    dropped: Longs,
    state: Keys,
) -> Index:
    """Write one source of one stack, mini-batch by mini-batch; returns the end of the last one, rounded up to 8.

    ``gathered``: entries by (shard, row, sample), ``per_shard`` int64[S] their number; ``place``: the slot pointers
    count from, first slot, first pointer. A partition above ``limits`` loses entries: ``lowest`` keeps the lowest, else
    a pseudo-random choice; ``dropped`` int64[S] counts them.
    """
    rows, samples, gains = gathered
    out_rows, out_samples, out_gains = out
    shards, n = per_shard.size, rows.size
    cell, order, begins = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(BUCKETS * shards, np.int64)
    keep = np.empty(n, np.bool_)
    _cells(rows, per_shard, starts, state, cell, begins)
    _ordered(cell, begins, order)
    origin, at, pointer = np.int64(place[0]), np.int64(place[1]), np.int64(place[2])
    for m in range(starts.size - 1):
        for shard in range(shards):
            width = starts[m + 1] - starts[m]
            first = starts[m] * shards + shard * width
            end = begins[first + width] if first + width < begins.size else n
            chosen = order[begins[first] : end]
            dropped[shard] += choose(chosen, chosen.size, gathered, limits, lowest, keep)
            for i in range(chosen.size):
                q = chosen[i]
                if keep[q]:
                    out_rows[at] = rows[q]
                    out_samples[at] = samples[q]
                    out_gains[at] = gains[q]
                    at += 1
            pointers[pointer + shard] = at - origin
            padded = origin + ((at - origin + 7) & ~7)
            fill_pads(out, at, padded)
            at = padded
        for shard in range(shards, 8):
            pointers[pointer + shard] = at - origin
        pointer += pointer_stride
    return at

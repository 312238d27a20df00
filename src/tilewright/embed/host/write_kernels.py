"""Kernels 2 and 3: merged runs -> the padded buffers, copied whole, or cut into mini-batches by hash bucket.

Runs are short, so they are copied in whole vectors: what a vector writes behind its run, the next run or the padding
overwrites. Only where a source's slots end are entries counted.

The low 6 bits of HighwayHash64 of a stacked column id are the bucket by which mini-batches are cut. The algorithm is
that of google/highwayhash (published with its C reference), for a message of four bytes and one fixed key. Four lanes
of 64 bits each; all sums and products wrap modulo 2**64.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Entries, Index, Ints, Keys, Longs, Mask
from tilewright.embed.model.formulas import BUCKETS
from tilewright.kernels import inner, njit
from tilewright.kernels.vectors import copy_vector

# HighwayHash64.

_KEY = (0x4451E30F87DB9609, 0xCA7358A1FD2737F8, 0x4B2C991FCEE4FDEA, 0x0B2658E18326F6BA)
_MUL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
_MUL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
_SIZE = 4  # bytes of the message
_WORD = 2**64 - 1

V0, V1, M0, M1 = 0, 4, 8, 12
"""Where each group of four lanes begins in the state of sixteen words."""

_32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def _initial() -> Keys:
    """The state after the key and the length went in, before the message: the same for every id."""
    v0 = [(m ^ k) + (_SIZE << 32) + _SIZE & _WORD for m, k in zip(_MUL0, _KEY)]
    v1 = []
    for m, k in zip(_MUL1, _KEY):
        word = m ^ ((k >> 32) | (k << 32) & _WORD)
        low, high = ((h << _SIZE | h >> (32 - _SIZE)) & 0xFFFFFFFF for h in (word & 0xFFFFFFFF, word >> 32))
        v1.append(high << 32 | low)
    return np.array([*v0, *v1, *_MUL0, *_MUL1], np.uint64)


_INITIAL = _initial()


def fresh_state() -> Keys:
    """Working room for :func:`bucket_of`: the words after the key, then the words it changes."""
    return np.concatenate([_INITIAL, _INITIAL])


@inner(forceinline=True)
def _zipper(state: Keys, source: Index, target: Index) -> None:
    """Add the bytes of two lanes, interleaved, to two others."""
    low, high = state[source], state[source + 1]
    u = np.uint64
    state[target] += (
        (((low & u(0xFF000000)) | (high & u(0xFF00000000))) >> u(24))
        | (((low & u(0xFF0000000000)) | (high & u(0xFF000000000000))) >> u(16))
        | (low & u(0xFF0000))
        | ((low & u(0xFF00)) << _32)
        | ((high & u(0xFF00000000000000)) >> u(8))
        | (low << u(56))
    )
    state[target + 1] += (
        (((high & u(0xFF000000)) | (low & u(0xFF00000000))) >> u(24))
        | (high & u(0xFF0000))
        | ((high & u(0xFF0000000000)) >> u(16))
        | ((high & u(0xFF00)) << u(24))
        | ((low & u(0xFF000000000000)) >> u(8))
        | ((high & u(0xFF)) << u(48))
        | (low & u(0xFF00000000000000))
    )


@inner()
def _update(s: Keys, a: np.uint64, b: np.uint64, c: np.uint64, d: np.uint64) -> None:
    """One round with the packet (a, b, c, d)."""
    s[V1] += a
    s[V1 + 1] += b
    s[V1 + 2] += c
    s[V1 + 3] += d
    for i in range(4):
        s[V1 + i] += s[M0 + i]
        s[M0 + i] ^= (s[V1 + i] & _LOW) * (s[V0 + i] >> _32)
        s[V0 + i] += s[M1 + i]
        s[M1 + i] ^= (s[V0 + i] & _LOW) * (s[V1 + i] >> _32)
    for i in range(2):
        _zipper(s, V1 + 2 * i, V0 + 2 * i)
    for i in range(2):
        _zipper(s, V0 + 2 * i, V1 + 2 * i)


@inner()
def bucket_of(col_id: Index, state: Keys) -> Index:
    """The bucket, 0 .. 63, of a stacked column id; ``state`` is from :func:`fresh_state`."""
    s = state[16:]
    for i in range(16):
        s[i] = state[i]
    zero = np.uint64(0)
    _update(s, np.uint64(col_id) & _LOW, zero, zero, zero)
    for _ in range(4):
        a, b, c, d = s[V0 + 2], s[V0 + 3], s[V0], s[V0 + 1]
        _update(s, (a >> _32) | (a << _32), (b >> _32) | (b << _32), (c >> _32) | (c << _32), (d >> _32) | (d << _32))
    return np.int64((s[V0] + s[V1] + s[M0] + s[M1]) & np.uint64(BUCKETS - 1))


@njit(cache=True, nogil=True)
def _hash_all(col_ids: Longs, state: Keys, out: Longs) -> None:
    for i in range(col_ids.size):
        out[i] = bucket_of(col_ids[i], state)


def hash_ids(col_ids: Longs) -> Longs:
    """int64[n]: the hash buckets of stacked column ids."""
    out = np.empty(len(col_ids), np.int64)
    _hash_all(np.ascontiguousarray(col_ids, np.int64), fresh_state(), out)
    return out


# Kernel 2: copies, pads and pointers only.

PAD = 2**31 - 1
"""Both ids of an unused slot; its gain is NaN."""

LANES = 8
"""Slots of a vector, and of the unit partitions are rounded up to; so many entries may be read behind the last."""

Addresses: TypeAlias = tuple[int, int, int]
"""Of rows, samples and gains."""

Runs: TypeAlias = tuple[Longs, Ints, Entries]
"""What kernel 1 made: int64[units, sources] where each run begins, int32[units, 2, sources, S] whose [:, 0] are the
lengths of its parts, and the entries."""

_BYTES = 4 * LANES
_PAD = np.int32(PAD)
_NAN = np.float32(np.nan)


@inner()
def fill_pads(out: Entries, begin: Index, end: Index) -> None:
    """Make the slots ``begin .. end`` padding."""
    ids, samples, gains = out
    ids[begin:end] = _PAD
    samples[begin:end] = _PAD
    gains[begin:end] = _NAN


@inner()
def _copy_exactly(out: Entries, at: Index, entries: Entries, begin: Index, n: Index) -> None:
    rows, samples, gains = entries
    ids_out, samples_out, gains_out = out
    for j in range(n):  # numba compiles two seconds longer for slices, whose shapes it compares
        ids_out[at + j] = rows[begin + j]
        samples_out[at + j] = samples[begin + j]
        gains_out[at + j] = gains[begin + j]


@inner()
def _copy_vectors(target: Addresses, source: Addresses, at: Index, begin: Index, n: Index) -> None:
    """``n`` entries, rounded up to whole vectors."""
    to, of = 4 * at, 4 * begin
    for j in range(0, 4 * n, _BYTES):
        copy_vector(target[0] + to + j, source[0] + of + j, 32)
        copy_vector(target[1] + to + j, source[1] + of + j, 32)
        copy_vector(target[2] + to + j, source[2] + of + j, 32)


@njit(cache=True, nogil=True)
def write_plain(
    units: Longs, sources: tuple[int, int], runs: Runs, places: Longs, ends: Longs, out: Entries, pointers: Ints
) -> None:
    """Write the stacks' buffers for the sources ``sources[0] <= l < sources[1]``.

    ``units`` int64[stacks + 1]: first unit of every stack. ``places`` int64[stacks, sources, 4]: the slot pointers
    count from, first slot, end of the slots to fill, first pointer. ``ends`` int64[stacks, sources]: the slots from
    there on are padding already; becomes where the data ends now.
    """
    bases, counts, entries = runs
    shards = counts.shape[3]
    cursor = np.empty(counts.shape[0], np.int64)
    target = (out[0].ctypes.data, out[1].ctypes.data, out[2].ctypes.data)
    source = (entries[0].ctypes.data, entries[1].ctypes.data, entries[2].ctypes.data)
    pads, no_gains = np.empty(LANES, np.int32), np.empty(LANES, np.float32)
    none, lanes = np.int64(0), np.int64(LANES)  # as numbers of their own, literals are types of their own
    fill_pads((pads, pads, no_gains), none, lanes)
    padding = (pads.ctypes.data, pads.ctypes.data, no_gains.ctypes.data)
    for l in range(sources[0], sources[1]):
        for k in range(units.size - 1):
            for t in range(units[k], units[k + 1]):
                cursor[t] = bases[t, l]
            origin, at, end, pointer = places[k, l, 0], places[k, l, 1], places[k, l, 2], places[k, l, 3]
            for shard in range(shards):
                for t in range(units[k], units[k + 1]):
                    begin, n = cursor[t], np.int64(counts[t, 0, l, shard])
                    cursor[t] = begin + n
                    if at + n + LANES <= end:
                        _copy_vectors(target, source, at, begin, n)
                    else:
                        _copy_exactly(out, at, entries, begin, n)
                    at += n
                pointers[pointer + shard] = at - origin
                padded = origin + ((at - origin + 7) & ~7)
                if at + LANES <= end:
                    _copy_vectors(target, padding, at, none, lanes)
                else:
                    fill_pads(out, at, padded)
                at = padded
            for shard in range(shards, 8):
                pointers[pointer + shard] = at - origin
            fill_pads(out, at, min(end, ends[k, l]))
            ends[k, l] = at
    pads[0] = no_gains[0] = 0  # read by address only: keep them alive until here


# Which entries of an overfull partition stay: the lowest, as the peer does, or a choice without bias to low ids.


@inner()
def _mix(word: np.uint64) -> np.uint64:
    """A bijection of 64-bit words that scatters neighbours (the finaliser of MurmurHash3)."""
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xFF51AFD7ED558CCD)
    word ^= word >> np.uint64(33)
    word *= np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


@inner()
def _word(entries: Entries, q: Index) -> np.uint64:
    return (np.uint64(entries[0][q]) << np.uint64(32)) | np.uint64(entries[1][q])


@inner()
def _cutoff(words: Keys, n: Index, rank: Index) -> np.uint64:
    """The value of which exactly ``rank`` of the first ``n`` words, all distinct, are below or equal: bit by bit."""
    cut = np.uint64(0)
    for place in range(64):
        shift = np.uint64(63 - place)
        below = 0
        for i in range(n):
            below += (words[i] >> shift) == (cut >> shift)
        if rank > below:
            rank -= below
            cut |= np.uint64(1) << shift
    return cut


@inner()
def _keep_lowest(chosen: Longs, n: Index, entries: Entries, limits: Longs, keep: Mask) -> None:
    """An entry stays iff its rank is within the first limit and its row's rank within the second."""
    last, rank = np.int64(-1), 0
    for i in range(n):
        row = np.int64(entries[0][chosen[i]])
        if row != last:
            last = row
            rank += 1
        keep[chosen[i]] = i < limits[0] and rank <= limits[1]


@inner()
def _keep_scattered(chosen: Longs, n: Index, entries: Entries, limits: Longs, keep: Mask) -> None:
    """Keep as many rows, then as many of their entries, as allowed, by a hash seeded with the partition's content."""
    rows = entries[0]
    words = np.empty(n, np.uint64)
    seed = np.uint64(0)
    for i in range(n):
        seed += _mix(_word(entries, chosen[i]))
    last, count = np.int64(-1), np.int64(0)
    for i in range(n):
        row = np.int64(rows[chosen[i]])
        if row != last:
            last = row
            words[count] = _mix(np.uint64(row) ^ seed)
            count += 1
    if count > limits[1]:
        cut = _cutoff(words, count, limits[1])
        for i in range(n):
            keep[chosen[i]] = _mix(np.uint64(rows[chosen[i]]) ^ seed) <= cut
    count = np.int64(0)
    for i in range(n):
        if keep[chosen[i]]:
            words[count] = _mix(_word(entries, chosen[i]) ^ seed)
            count += 1
    if count > limits[0]:
        cut = _cutoff(words, count, limits[0])
        for i in range(n):
            if _mix(_word(entries, chosen[i]) ^ seed) > cut:
                keep[chosen[i]] = False


@inner()
def choose(chosen: Longs, n: Index, entries: Entries, limits: Longs, lowest: bool, keep: Mask) -> Index:
    """Set ``keep`` for the ``n`` ``chosen`` entries of a partition, equal rows adjacent; returns how many must go.

    ``limits``: most entries and most distinct rows. ``lowest``: keep the lowest rows and samples.
    """
    unique, last = 0, np.int64(-1)
    for i in range(n):
        row = np.int64(entries[0][chosen[i]])
        keep[chosen[i]] = True
        if row != last:
            last = row
            unique += 1
    if n <= limits[0] and unique <= limits[1]:
        return 0
    if lowest:
        _keep_lowest(chosen, n, entries, limits, keep)
    else:
        _keep_scattered(chosen, n, entries, limits, keep)
    gone = 0
    for i in range(n):
        gone += not keep[chosen[i]]
    return gone


# Where the tree of hash buckets must be cut for every run of buckets to keep a limit.


@inner()
def split_bits(counts: Longs, limit: Index, work: Longs) -> np.uint64:
    """Bits of the nodes that must be cut for ``counts`` (a power of two of them) to keep ``limit``; uses ``work``."""
    n = counts.size
    for i in range(n):
        work[i] = counts[i]
    bits = np.uint64(0)
    node = 0
    while n > 1:
        n //= 2
        for i in range(n):
            left, right = work[2 * i], work[2 * i + 1]
            if left + right > limit:
                bits |= np.uint64(1) << np.uint64(node)
                work[i] = max(left, right)
            else:
                work[i] = left + right
            node += 1
    return bits


# Kernel 3: the same buffers where a limit was exceeded: entries cut into mini-batches, or dropped and counted.


@njit(cache=True, nogil=True)
def gather_source(units: tuple[int, int], l: Index, runs: Runs, gathered: Entries) -> None:
    """The entries of units ``units[0] <= t < units[1]`` and source ``l``, shard by shard, one behind the other."""
    bases, counts, entries = runs
    cursor = np.empty(units[1] - units[0], np.int64)
    for t in range(cursor.size):
        cursor[t] = bases[units[0] + t, l]
    at: Index = 0
    for shard in range(counts.shape[3]):
        for t in range(cursor.size):
            n = np.int64(counts[units[0] + t, 0, l, shard])
            _copy_exactly(gathered, at, entries, cursor[t], n)
            cursor[t] += n
            at += n


@njit(cache=True, nogil=True)
def find_splits(rows: Ints, per_shard: Longs, limits: Longs, state: Keys, lone: Longs) -> np.uint64:
    """Split bits of one source of one stack: its sorted ``rows``, ``per_shard`` int64[2, S] entries and distinct ids.

    ``lone`` int64[4] becomes (shard, entries, distinct ids, bucket) of the first bucket that alone exceeds a limit; -1
    if none.
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
                    lone[0], lone[1], lone[2], lone[3] = shard, ids[b], unique[b], b
        at = end
    return bits


@inner()
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


@inner()
def _ordered(cell: Longs, ends: Longs, order: Longs) -> None:
    """Entries by cell, stable: filled from behind, so that ``ends`` become the cells' beginnings."""
    for q in range(cell.size - 1, -1, -1):
        ends[cell[q]] -= 1
        order[ends[cell[q]]] = q


@njit(cache=True, nogil=True)
def write_cut(
    gathered: Entries,
    per_shard: Longs,
    rules: tuple[Longs, Longs, bool],
    place: tuple[int, int, int, int],
    out: tuple[Entries, Ints, Longs],
    state: Keys,
) -> Index:
    """Write one source of one stack, mini-batch by mini-batch; returns the end of the last one, rounded up to 8.

    ``gathered``: entries by (shard, row, sample), ``per_shard`` int64[S] their number; ``rules``: starts, limits,
    lowest; ``place``: the slot pointers count from, first slot, first pointer, pointers of a mini-batch; ``out``:
    buffers, row pointers, dropped. A partition above ``limits`` loses entries: ``lowest`` keeps the lowest, else
    a pseudo-random choice; ``dropped`` int64[S] counts them.
    """
    starts, limits, lowest = rules
    rows, samples, gains = gathered
    buffers, pointers, dropped = out
    out_rows, out_samples, out_gains = buffers
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
            fill_pads(buffers, at, padded)
            at = padded
        for shard in range(shards, 8):
            pointers[pointer + shard] = at - origin
        pointer += place[3]
    return at

"""Host preprocessing once more, slowly: lists, dicts and Python ints, written from the rules and sharing no code."""

from __future__ import annotations

import numpy as np

INT_MAX = 2**31 - 1
F = np.float32


def position(row, shards, rotation, row_offset):
    """(shard, local row) of a table's row."""
    return (row % shards + rotation) % shards, row // shards + row_offset


def sample_entries(ids, weights, combiner, vocab, bad_ids="drop"):
    """One sample: [(id, gain)], combined and merged, in order of first appearance."""
    pairs = list(zip(ids, [1.0] * len(ids) if weights is None else weights))
    if bad_ids == "clip":
        pairs = [(min(max(i, 0), vocab - 1), w) for i, w in pairs]
    pairs = [(i, F(w)) for i, w in pairs if 0 <= i < vocab]
    total = F(0)
    for _, w in pairs:
        total = F(total + w) if combiner == "mean" else F(float(total) + float(w) * float(w))
    if combiner == "sqrtn":
        total = np.sqrt(total)
    gains = {}
    for i, w in pairs:
        gain = w if combiner == "sum" else F(w / total)
        gains[i] = F(gains[i] + gain) if i in gains else gain
    return list(gains.items())


def source_entries(stacking, stack, batch, source, bad_ids="drop"):
    """{shard: [(local row, sample id, gain)]} sorted, of one source; batch: {feature: (ids, weights)} as lists."""
    shards = stacking.topology.sparsecores
    found = {shard: [] for shard in range(shards)}
    at = 0
    for feature in stacking.stacks[stack].features:
        ids, weights = batch[feature.name]
        place = stacking.tables[feature.table.name]
        each = len(ids) // shards
        for i in range(each):
            sample = source * each + i
            w = None if weights is None else weights[sample]
            for id_, gain in sample_entries(ids[sample], w, feature.table.combiner, feature.table.vocab, bad_ids):
                shard, row = position(id_, shards, place.rotation, place.row_offset)
                found[shard].append((row, at + i, gain))
        at += each
    return {shard: sorted(entries, key=lambda e: e[:2]) for shard, entries in found.items()}


def round8(n):
    return (n + 7) // 8 * 8


def buffers(per_source, slots, shards):
    """Plain layout of one device: ends, rows, samples, gains; per_source: [{shard: entries}], slots per source."""
    ends, rows, samples, gains = [], [], [], []
    for entries in per_source:
        r, s, g, e = [], [], [], []
        for shard in range(shards):
            for row, sample, gain in entries[shard]:
                r.append(row), s.append(sample), g.append(gain)
            e.append(len(r))
            pads = round8(len(r)) - len(r)
            r += [INT_MAX] * pads
            s += [INT_MAX] * pads
            g += [np.nan] * pads
        e += [len(r)] * (max(shards, 8) - shards)
        pads = slots - len(r)
        ends += e
        rows += r + [INT_MAX] * pads
        samples += s + [INT_MAX] * pads
        gains += g + [np.nan] * pads
    return np.array(ends, np.int32), np.array(rows, np.int32), np.array(samples, np.int32), np.array(gains, F)


MASK = 2**64 - 1


def highway64(message, key):
    """HighwayHash64 of up to 31 bytes, on Python ints."""
    mul0 = [0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3]
    mul1 = [0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377]
    swap = lambda x: (x >> 32 | x << 32) & MASK  # noqa: E731
    v0 = [m ^ k for m, k in zip(mul0, key)]
    v1 = [m ^ swap(k) for m, k in zip(mul1, key)]

    def zipper(a, lo, hi, b):
        x, y = a[lo].to_bytes(8, "little"), a[hi].to_bytes(8, "little")
        one = bytes([x[3], y[4], x[2], x[5], y[6], x[1], y[7], x[0]])
        two = bytes([y[3], x[4], y[2], y[5], y[1], x[6], y[0], x[7]])
        b[lo] = b[lo] + int.from_bytes(one, "little") & MASK
        b[hi] = b[hi] + int.from_bytes(two, "little") & MASK

    def update(lanes):
        for i in range(4):
            v1[i] = v1[i] + mul0[i] + lanes[i] & MASK
            mul0[i] ^= (v1[i] & 0xFFFFFFFF) * (v0[i] >> 32) & MASK
            v0[i] = v0[i] + mul1[i] & MASK
            mul1[i] ^= (v0[i] & 0xFFFFFFFF) * (v1[i] >> 32) & MASK
        for a, b in ((v1, v0), (v0, v1)):
            zipper(a, 0, 1, b)
            zipper(a, 2, 3, b)

    def remainder(n):
        for i in range(4):
            v0[i] = v0[i] + (n << 32) + n & MASK
            halves = [(h << n | h >> (32 - n)) & 0xFFFFFFFF for h in (v1[i] & 0xFFFFFFFF, v1[i] >> 32)]
            v1[i] = halves[0] | halves[1] << 32
        packet = bytearray(32)
        whole, rest = n & ~3, message[n & ~3 :]
        packet[:whole] = message[:whole]
        if n & 16:
            packet[28:32] = message[n - 4 : n]
        elif rest:
            packet[16], packet[17], packet[18] = rest[0], rest[len(rest) >> 1], rest[-1]
        update([int.from_bytes(packet[i : i + 8], "little") for i in range(0, 32, 8)])

    if message:
        remainder(len(message))
    for _ in range(4):
        update([swap(v0[2]), swap(v0[3]), swap(v0[0]), swap(v0[1])])
    return v0[0] + v1[0] + mul0[0] + mul1[0] & MASK


KEY = [0x4451E30F87DB9609, 0xCA7358A1FD2737F8, 0x4B2C991FCEE4FDEA, 0x0B2658E18326F6BA]


def bucket(col_id):
    """Hash bucket of a stacked column id."""
    return highway64(int(col_id).to_bytes(4, "little"), KEY) & 63


def splits(counts, limit):
    """{bucket at which a mini-batch begins}, from the tree's definition, recursively."""

    def node(lo, hi):
        if hi - lo == 1:
            return counts[lo], set()
        mid = (lo + hi) // 2
        (a, cut_a), (b, cut_b) = node(lo, mid), node(mid, hi)
        if a + b > limit:
            return max(a, b), cut_a | cut_b | {mid}
        return a + b, cut_a | cut_b

    return node(0, len(counts))[1]

"""A slow, plain builder of HostBatch buffers and a dense float64 model, independent of the code under test."""

from __future__ import annotations

import numpy as np

from tilewright.embed import HostBatch, Stacking

PAD = 2**31 - 1


def merged(rows):
    """[[(id, weight), ...] per sample] -> the same with repeated ids merged (sum combiner)."""
    out = []
    for row in rows:
        gains: dict[int, float] = {}
        for value, weight in row:
            gains[value] = gains.get(value, 0.0) + weight
        out.append(sorted(gains.items()))
    return out


def place(placement, row):
    """Shard and local row by the formula of the specification."""
    shards = placement.shards
    return (row % shards + placement.rotation) % shards, row // shards + placement.row_offset


def partitions(batch, stacking: Stacking, stack_name, minibatch_of=None, minibatches=1):
    """{(source, shard, minibatch): sorted [(local row, sample, gain)]} of one stack."""
    stack, shards = stacking.stacks[stack_name], stacking.topology.sparsecores
    found: dict = {}
    offset = 0
    for feature in stack.features:
        rows = merged(batch[feature.name])
        each = len(rows) // shards
        for sample, row in enumerate(rows):
            for value, gain in row:
                shard, local = place(stacking.tables[feature.table.name], value)
                mini = minibatch_of(local * shards + shard) if minibatch_of else 0
                key = (sample // each, shard, mini)
                found.setdefault(key, []).append((local, sample % each + offset, gain))
        offset += each
    return {key: sorted(value) for key, value in found.items()}


def round8(value):
    return -(-value // 8) * 8


def host_batch(batch, stacking: Stacking, minibatch_of=None, minibatches=1, capacity=8) -> HostBatch:
    """Buffers of the plain layout, or of the mini-batch layout when ``minibatch_of`` (col_id -> number) is given.

    A partition has room for ``capacity`` entries, or for what the batch needs if that is more.
    """
    topology = stacking.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    factor, segment = (64 if minibatch_of else 1), max(shards, 8)
    pointers, ids, samples, gains = {}, {}, {}, {}
    for name in stacking.stacks:
        parts = partitions(batch, stacking, name, minibatch_of, minibatches)
        room = max([round8(capacity), *(round8(len(p)) for p in parts.values())])
        slots = room * shards * per_device * factor
        pointers[name] = np.zeros((topology.devices, segment * per_device * factor), np.int32)
        ids[name] = np.full((topology.devices, slots), PAD, np.int32)
        samples[name] = np.full((topology.devices, slots), PAD, np.int32)
        gains[name] = np.full((topology.devices, slots), np.nan, np.float32)
        for device in range(topology.devices):
            out, at = [], 0
            for local in range(per_device):
                if not minibatch_of:
                    at = local * room * shards
                for mini in range(minibatches):
                    for shard in range(shards):
                        part = parts.get((device * per_device + local, shard, mini), [])
                        for k, (row, sample, gain) in enumerate(part):
                            ids[name][device, at + k] = row
                            samples[name][device, at + k] = sample
                            gains[name][device, at + k] = gain
                        base = 0 if minibatch_of else local * room * shards
                        out.append(at + len(part) - base)
                        at = round8(at + len(part))
                    out += [round8(out[-1])] * (segment - shards)
            out += [out[-1]] * (pointers[name].shape[1] - len(out))
            pointers[name][device] = out
    sizes = {f.name: len(batch[f.name]) for f in stacking.features}
    layout = minibatch_of is not None
    return HostBatch(stacking, sizes, range(shards), minibatches, layout, 0, pointers, ids, samples, gains, {})


def dense_lookup(tables, batch, stacking: Stacking):
    """{feature: float64[batch, width]} by the definition."""
    out = {}
    for feature in stacking.features:
        rows = batch[feature.name]
        sums = np.zeros((len(rows), feature.table.width))
        for sample, row in enumerate(rows):
            for value, weight in row:
                sums[sample] += np.float64(weight) * tables[feature.table.name][value]
        out[feature.name] = sums
    return out


def dense_gradient(batch, stacking: Stacking, gradients):
    """{table: float64[vocab, width]}, {table: touched rows}."""
    grads = {n: np.zeros((p.table.vocab, p.table.width)) for n, p in stacking.tables.items()}
    touched = {n: np.zeros(p.table.vocab, bool) for n, p in stacking.tables.items()}
    for feature in stacking.features:
        for sample, row in enumerate(batch[feature.name]):
            for value, weight in row:
                grads[feature.table.name][value] += np.float64(weight) * gradients[feature.name][sample]
                touched[feature.table.name][value] = True
    return grads, touched

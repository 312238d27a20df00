"""A HostBatch as arguments of a jitted step: per stack the rows it asks for, and its entries by row and by sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.embed.device.index_kernels import collect, fill, sort_by_row
from tilewright.embed.host.arrays import Ints
from tilewright.embed.host.batch import HostBatch, partition_spans
from tilewright.embed.host.reduce_kernels import DIGIT_SLOTS
from tilewright.embed.model.formulas import pointers_per_segment
from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.errors import CheckFailed, UsageError
from tilewright.kernels.threads import run_all, thread_count

_WORD = 2**31


class StackIndex(NamedTuple):
    """What a step needs of one stack, with L devices, S shards, U rows a shard at most, E entries, N samples a device.

    Samples lie by source, feature and sample. E and U are rounded up by at most an eighth, so that jit seldom compiles
    again.
    """

    rows: Any  # i32[L, S, U]: distinct local rows asked of each shard, rising; then ``rows_per_shard``
    row_ends: Any  # i32[L, S * U]: where the entries of each of these end, in the two arrays below
    row_samples: Any  # i32[L, E]: whose gradient: ``feature << shift | row of the device's activations``
    row_gains: Any  # f32[L, E]: times what
    sample_ends: Any  # i32[L, N]: where the entries of each sample end, in the three arrays below
    sample_rows: Any  # i32[L, E]: which row of all shards laid end to end
    sample_places: Any  # i32[L, E]: which of the S * U places, for devices that hold a part of the shards
    sample_gains: Any  # f32[L, E]: times what


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceBatch:
    """A :class:`HostBatch` as lookups and updates read it: a pytree whose static part fixes the shapes.

    Every array's leading axis is the device, so that ``PartitionSpec("axis")`` splits it. ``batch_sizes`` are those of
    the whole batch.
    """

    index: dict[str, StackIndex]
    stacking: Stacking = field(metadata={"static": True})
    batch_sizes: tuple[tuple[str, int], ...] = field(metadata={"static": True})


def _flatten(batch: HostBatch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    arrays = (batch.row_pointers, batch.embedding_ids, batch.sample_ids, batch.gains)
    static = (batch.stacking, tuple(batch.batch_sizes.items()), batch.sources, batch.minibatch_layout)
    return (batch.num_minibatches, *(dict(of_stacks) for of_stacks in arrays)), static


def _unflatten(static: tuple[Any, ...], children: tuple[Any, ...]) -> HostBatch:
    """Inside a traced function: the arrays without the counters."""
    stacking, sizes, sources, layout = static
    count, pointers, ids, samples, gains = children
    return HostBatch(stacking, dict(sizes), sources, count, layout, 0, pointers, ids, samples, gains, {})


jax.tree_util.register_pytree_node(HostBatch, _flatten, _unflatten)


Lengths: TypeAlias = Callable[[tuple[int, ...]], tuple[int, ...]]
"""U and E of every stack, as one batch needs them -> as they shall be, none smaller."""


def device_batch(batch: HostBatch | DeviceBatch, lengths: Lengths | None = None) -> DeviceBatch:
    """The index of ``batch`` for a jitted step.

    Call it on the host, outside ``jit``: native kernels sort the entries, and arrays are as long as this batch needs,
    or as ``lengths`` says, which processes that feed one step must agree on. Inside a traced function XLA sorts, and
    arrays are as long as the buffers.

    Raises :class:`CheckFailed` for a buffer whose entries leave their table or slice.
    """
    if isinstance(batch, DeviceBatch):
        return batch
    arrays = [batch.row_pointers, batch.embedding_ids, batch.sample_ids, batch.gains]
    traced = any(isinstance(x, jax.core.Tracer) for of_stacks in arrays for x in of_stacks.values())
    stacks = batch.stacking.stacks
    if traced:
        index = {name: _traced_stack(batch, stack) for name, stack in stacks.items()}
    else:
        index = _host_index(batch, stacks, lengths)
    return DeviceBatch(index, batch.stacking, tuple(batch.batch_sizes.items()))


def feature_shift(stack: Stack, batch_sizes: Mapping[str, int]) -> int:
    """Bits for a row of a device's activations in ``row_samples``."""
    per_device = max(batch_sizes[feature.name] for feature in stack.features)
    shift = max(per_device - 1, 1).bit_length()
    if len(stack.features) << shift > _WORD:
        problem = f"{len(stack.features)} features of up to {per_device} samples are too many for 32-bit numbers"
        raise UsageError(problem, where=f"stack {stack.name!r}", how="split the batch or the stack")
    return shift


def _codes(stack: Stack, batch_sizes: Mapping[str, int], sources: int) -> Ints:
    """``feature << shift | row`` of every sample of a device, as ``row_samples`` has it."""
    shift = feature_shift(stack, batch_sizes)
    counts = stack.samples(batch_sizes).values()
    rows = [np.arange(sources * count, dtype=np.int64).reshape(sources, count) for count in counts]
    return np.concatenate([(f << shift) + part for f, part in enumerate(rows)], axis=1).reshape(-1).astype(np.int32)


def _roomy(most: int) -> int:
    """``most`` rounded up to a number of four significant bits."""
    unit = 1 << max(0, most.bit_length() - 4)
    return max(8, -(-most // unit) * unit)


# On the host: a kernel per device and stack collects and sorts, then all know how long the arrays must be.


class _Device:
    """One device's entries of one stack, sorted."""

    def __init__(self, batch: HostBatch, stack: Stack, device: int) -> None:
        topology = batch.stacking.topology
        self.stack, self.device = stack, device
        buffers = tuple(np.asarray(a[stack.name])[device] for a in (batch.embedding_ids, batch.sample_ids, batch.gains))
        slots, per_device = len(buffers[0]), topology.sparsecores_per_device
        minibatches = int(batch.num_minibatches) if batch.minibatch_layout else 1
        base = 0 if batch.minibatch_layout else slots // per_device
        layout = (per_device, minibatches, topology.sparsecores, pointers_per_segment(topology.sparsecores), base)
        pointers = np.asarray(batch.row_pointers[stack.name])[device]
        used = min(slots, int(pointers.max(initial=0)) * (per_device if base else 1))
        self.entries = np.empty(used, np.uint64), np.empty(used, np.int32), np.empty(used, np.float32)
        bounds = (stack.rows_per_shard, stack.samples_per_sparsecore(batch.batch_sizes))
        self.count = int(collect(pointers, buffers, layout, bounds, self.entries))
        if self.count < 0:
            problem = f"slot {-1 - self.count} of device {device} holds an entry outside its table or slice"
            raise CheckFailed(problem, where=f"stack {stack.name!r}", how="hand over batches as preprocess made them")
        spare, counters = np.empty(used, np.uint64), np.empty(DIGIT_SLOTS, np.int32)
        size = self.count, stack.rows_per_shard, topology.sparsecores
        self.rows = int(sort_by_row(self.entries[0], *size, spare, counters))

    def fill(self, index: StackIndex, codes: Ints) -> None:
        at, per_shard = self.device, index.rows.shape[2]
        by_row = (index.row_ends[at], index.row_samples[at], index.row_gains[at])
        by_sample = (index.sample_ends[at], index.sample_rows[at], index.sample_places[at], index.sample_gains[at])
        places = np.empty(self.count, np.int32)
        rows = index.rows[at].reshape(-1)
        fill(self.entries, self.count, self.stack.rows_per_shard, per_shard, codes, places, rows, by_row, by_sample)


def _host_index(batch: HostBatch, stacks: Mapping[str, Stack], lengths: Lengths | None) -> dict[str, StackIndex]:
    threads, topology = thread_count(), batch.stacking.topology
    per_device, shards = topology.sparsecores_per_device, topology.sparsecores
    of_stack = {name: range(np.shape(batch.embedding_ids[name])[0]) for name in stacks}
    jobs = [(name, device) for name, devices in of_stack.items() for device in devices]
    made = run_all([partial(_Device, batch, stacks[name], device) for name, device in jobs], threads)
    index: dict[str, StackIndex] = {}
    fills: list[Callable[[], None]] = []
    of_name = {name: [device for device in made if device.stack.name == name] for name in stacks}
    every = [(of_name[name], what) for name in stacks for what in ("rows", "count")]
    needed = tuple(_roomy(max((getattr(device, what) for device in devices), default=0)) for devices, what in every)
    chosen = iter(needed if lengths is None else lengths(needed))
    for name, stack in stacks.items():
        devices, rows, entries = of_name[name], next(chosen), next(chosen)
        codes = _codes(stack, batch.batch_sizes, per_device)
        index[name] = _empty(len(devices), shards, rows, entries, len(codes))
        fills += [partial(device.fill, index[name], codes) for device in devices]
    run_all(fills, threads)
    return index


def _empty(devices: int, shards: int, rows: int, entries: int, samples: int) -> StackIndex:
    return StackIndex(
        rows=np.empty((devices, shards, rows), np.int32),
        row_ends=np.empty((devices, shards * rows), np.int32),
        row_samples=np.zeros((devices, entries), np.int32),
        row_gains=np.zeros((devices, entries), np.float32),
        sample_ends=np.empty((devices, samples), np.int32),
        sample_rows=np.zeros((devices, entries), np.int32),
        sample_places=np.zeros((devices, entries), np.int32),
        sample_gains=np.zeros((devices, entries), np.float32),
    )


# Under jit: the same with XLA's sorts; the padding of the buffers sorts behind everything.


def _traced_stack(batch: HostBatch, stack: Stack) -> StackIndex:
    topology, name, layout = batch.stacking.topology, stack.name, batch.minibatch_layout
    per_device, shards = topology.sparsecores_per_device, topology.sparsecores
    segment = pointers_per_segment(shards)
    slots = batch.embedding_ids[name].shape[1]
    per_source = stack.samples_per_sparsecore(batch.batch_sizes)
    samples, per_shard = per_device * per_source, stack.rows_per_shard
    distinct = min(-(-slots // shards), per_shard)  # buffers hold equal partitions
    codes, all_rows = jnp.asarray(_codes(stack, batch.batch_sizes, per_device)), shards * per_shard
    minibatches = batch.num_minibatches if layout else 1

    def one(begins: Any, ends: Any, ids: Any, sample_ids: Any, gains: Any) -> StackIndex:
        """The index of one device's buffers."""
        slot = jnp.arange(slots, dtype=jnp.int32)
        found = jnp.searchsorted(ends, slot, side="right").astype(jnp.int32)
        in_use = found < per_device * minibatches * segment
        found = jnp.minimum(found, len(ends) - 1)
        shard, source = found % segment, found // (segment * minibatches)
        in_use &= (slot >= begins[found]) & (shard < shards) & (ids >= 0) & (ids < per_shard)
        in_use &= (sample_ids >= 0) & (sample_ids < per_source)
        row = jnp.where(in_use, shard * per_shard + ids, all_rows)  # of all shards laid end to end
        sample = jnp.where(in_use, source * per_source + sample_ids, samples)
        gain = jnp.where(in_use, gains, 0)

        order = jnp.argsort(row, stable=True)
        row = row[order]
        shard = row // per_shard
        fresh = (row < all_rows) & (row != jnp.concatenate([jnp.full(1, -1, jnp.int32), row[:-1]]))
        seen = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(fresh, dtype=jnp.int32)])  # distinct rows so far
        before = seen[jnp.searchsorted(shard, jnp.arange(shards + 1))]  # of every shard
        place = jnp.where(shard < shards, shard * distinct + seen[1:] - 1 - before[shard], shards * distinct)
        local = jnp.full(shards * distinct, per_shard, jnp.int32).at[place].set(row - shard * per_shard, mode="drop")
        row_ends = jnp.searchsorted(place, jnp.arange(shards * distinct), side="right").astype(jnp.int32)
        place_of = jnp.zeros(slots, jnp.int32).at[order].set(jnp.minimum(place, shards * distinct - 1))
        by_sample = jnp.argsort(sample, stable=True)
        places = place_of[by_sample]
        return StackIndex(
            rows=local.reshape(shards, distinct),
            row_ends=row_ends,
            row_samples=codes[jnp.minimum(sample[order], samples - 1)],
            row_gains=gain[order],
            sample_ends=jnp.searchsorted(sample[by_sample], jnp.arange(samples), side="right").astype(jnp.int32),
            sample_rows=places // distinct * per_shard + local[places],
            sample_places=places,
            sample_gains=gain[by_sample],
        )

    spans = partition_spans(jnp.asarray(batch.row_pointers[name]), slots, per_device, layout, jnp)
    arrays = (jnp.asarray(of_stacks[name]) for of_stacks in (batch.embedding_ids, batch.sample_ids, batch.gains))
    made: StackIndex = jax.vmap(one)(*spans, *arrays)
    return made


def check_batch(batch: HostBatch | DeviceBatch, stacking: Stacking) -> None:
    """Refuse a batch that was made for other tables."""
    if batch.stacking != stacking:
        raise UsageError("the batch was preprocessed for another stacking than the state's", where="embed")

"""A HostBatch as arguments of a jitted step, and the partitions inside its buffers as regular arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.embed.host.batch import HostBatch
from tilewright.embed.model.formulas import BUCKETS, pointers_per_segment, round8
from tilewright.embed.model.stacking import Stacking
from tilewright.errors import UsageError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeviceBatch:
    """The arrays of a :class:`HostBatch` without its counters: a pytree whose static part fixes the shapes.

    ``capacity[i]`` is the most entries a partition of the i-th stack can hold; arrays are as in HostBatch, with the
    leading axis over devices, so that ``PartitionSpec("axis")`` splits them.
    """

    num_minibatches: Any
    row_pointers: dict[str, Any]
    embedding_ids: dict[str, Any]
    sample_ids: dict[str, Any]
    gains: dict[str, Any]
    stacking: Stacking = field(metadata={"static": True})
    batch_sizes: tuple[tuple[str, int], ...] = field(metadata={"static": True})
    minibatch_layout: bool = field(metadata={"static": True})
    capacity: tuple[tuple[str, int], ...] = field(metadata={"static": True})


class PartitionEntries(NamedTuple):
    """The entries of one stack and one mini-batch by source, shard and place in the partition: [sources, S, capacity].

    ``rows``: local row, or ``rows_per_shard`` where there is no entry; ``samples``: sample over all local sources, or
    their number; ``gains``: 0 where there is no entry.
    """

    rows: jax.Array
    samples: jax.Array
    gains: jax.Array


def _flatten(batch: HostBatch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    children = (batch.num_minibatches, batch.row_pointers, batch.embedding_ids, batch.sample_ids, batch.gains)
    static = (batch.stacking, tuple(batch.batch_sizes.items()), batch.sources, batch.minibatch_layout)
    count, *arrays = children
    return (count, *(dict(of_stacks) for of_stacks in arrays)), static


def _unflatten(static: tuple[Any, ...], children: tuple[Any, ...]) -> HostBatch:
    """Inside a traced function: the arrays without the counters."""
    stacking, sizes, sources, layout = static
    count, pointers, ids, samples, gains = children
    return HostBatch(stacking, dict(sizes), sources, count, layout, 0, pointers, ids, samples, gains, {})


jax.tree_util.register_pytree_node(HostBatch, _flatten, _unflatten)


def _capacity(batch: HostBatch, stack: str) -> int:
    """Slots of one partition: the buffers hold S equal ones for every source."""
    per_device = batch.stacking.topology.sparsecores_per_device
    slots = int(batch.embedding_ids[stack].shape[1]) // per_device
    minibatches = BUCKETS if batch.minibatch_layout else 1
    return -(-slots // (batch.stacking.topology.sparsecores * minibatches))


def device_batch(batch: HostBatch | DeviceBatch) -> DeviceBatch:
    """The arrays of ``batch`` for a jitted step. On the host the unused tail of a mini-batch buffer (63 of 64 slots
    where one mini-batch suffices) is cut off, to the next power of two, so that jit seldom compiles again.
    """
    if isinstance(batch, DeviceBatch):
        return batch
    ids, samples, gains = dict(batch.embedding_ids), dict(batch.sample_ids), dict(batch.gains)
    if batch.minibatch_layout and isinstance(next(iter(ids.values()), None), np.ndarray):
        for name, pointers in batch.row_pointers.items():
            used = -(-int(np.asarray(pointers).max(initial=8)) // 8) * 8
            keep = slice(0, 1 << (used - 1).bit_length())
            ids[name], samples[name] = ids[name][:, keep], samples[name][:, keep]
            gains[name] = gains[name][:, keep]
    return DeviceBatch(
        num_minibatches=jnp.asarray(batch.num_minibatches, jnp.int32),
        row_pointers=dict(batch.row_pointers),
        embedding_ids=ids,
        sample_ids=samples,
        gains=gains,
        stacking=batch.stacking,
        batch_sizes=tuple(batch.batch_sizes.items()),
        minibatch_layout=batch.minibatch_layout,
        capacity=tuple((name, _capacity(batch, name)) for name in batch.embedding_ids),
    )


def entries(batch: DeviceBatch, stack: str, minibatch: Any) -> PartitionEntries:
    """Cut the partitions of one mini-batch out of a stack's buffers (a gather of three words per slot)."""
    topology = batch.stacking.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    begin, end = _bounds(batch, stack, minibatch)  # [devices, per_device, S], slots of the device's buffer
    devices, slots = batch.embedding_ids[stack].shape
    place = begin[..., None] + jnp.arange(dict(batch.capacity)[stack], dtype=jnp.int32)
    filled = (place < end[..., None]).reshape(devices * per_device, shards, -1)
    at = jnp.minimum(place, slots - 1).reshape(devices, -1)

    def cut(buffers: Mapping[str, Any]) -> jax.Array:
        taken = jnp.take_along_axis(jnp.asarray(buffers[stack]), at, axis=1, mode="promise_in_bounds")
        return taken.reshape(filled.shape)

    sizes = dict(batch.batch_sizes)
    chosen = batch.stacking.stacks[stack]
    per_source = chosen.samples_per_sparsecore(sizes)
    first = jnp.arange(devices * per_device, dtype=jnp.int32)[:, None, None] * per_source
    return PartitionEntries(
        rows=jnp.where(filled, cut(batch.embedding_ids), chosen.rows_per_shard),
        samples=jnp.where(filled, cut(batch.sample_ids) + first, devices * per_device * per_source),
        gains=jnp.where(filled, cut(batch.gains), 0.0),
    )


def _bounds(batch: DeviceBatch, stack: str, minibatch: Any) -> tuple[jax.Array, jax.Array]:
    """First slot and end of every partition of a mini-batch, each [devices, sources per device, S]."""
    topology = batch.stacking.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    pointers = jnp.asarray(batch.row_pointers[stack])
    devices, segment = pointers.shape[0], pointers_per_segment(shards)
    source = jnp.arange(per_device, dtype=jnp.int32)
    if batch.minibatch_layout:
        starts = round8(jnp.pad(pointers[:, :-1], ((0, 0), (1, 0))))
        at = (source[:, None] * batch.num_minibatches + minibatch) * segment + jnp.arange(shards, dtype=jnp.int32)
        return starts[:, at], pointers[:, at]
    pointers = pointers.reshape(devices, per_device, segment)[..., :shards]
    starts = round8(jnp.pad(pointers[..., :-1], ((0, 0), (0, 0), (1, 0))))
    base = (source * (batch.embedding_ids[stack].shape[1] // per_device))[:, None]
    return starts + base, pointers + base


def check_batch(batch: DeviceBatch, stacking: Stacking) -> None:
    """Refuse a batch that was made for other tables."""
    if batch.stacking != stacking:
        raise UsageError("the batch was preprocessed for another stacking than the state's", where="embed")

"""The buffers that jax-tpu-embedding's primitives read, of one device: from them to partitions of a fixed size.

Every source SparseCore has one partition for every SparseCore of the mesh. ``row_pointers`` holds where each ends; the
next begins at that end rounded up to 8. Without mini-batches the pointers count from the source's own slots; with them
from the device's, and the segments of pointers lie source by source, each source's mini-batches one behind the other.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tilewright.embed.model.formulas import BUCKETS
from tilewright.errors import UnsupportedError, UsageError

WHERE = "a primitive of jax-tpu-embedding"
LINE = 8
"""Slots to which a partition is rounded up, and the fewest pointers of a segment."""


class Buffers(NamedTuple):
    """What a primitive is given first."""

    row_pointers: jax.Array
    embedding_ids: jax.Array
    sample_ids: jax.Array
    gains: jax.Array
    minibatches: jax.Array


class Layout(NamedTuple):
    """What is fixed when a primitive is lowered."""

    devices: int
    sources: int
    """SparseCores of a device."""
    slots: int
    """Slots of a partition, at most."""
    axes: tuple[str, ...]
    """Mesh axes over which ids and vectors are exchanged; none on one device."""
    minibatching: bool

    @property
    def shards(self) -> int:
        """SparseCores of all devices."""
        return self.devices * self.sources

    @property
    def segment(self) -> int:
        """Pointers of a source in one mini-batch."""
        return max(self.shards, LINE)


class Partitions(NamedTuple):
    """The entries of one mini-batch, [devices, sources, shards of a device, slots] each; those that are none: row -1.

    Rows are those of the owner's array, where the shards of a device lie one behind the other.
    """

    rows: jax.Array
    samples: jax.Array
    gains: jax.Array

    @property
    def there(self) -> jax.Array:
        """Which entries are any."""
        return self.rows >= 0


class Asked(NamedTuple):
    """What the package was last asked for: SparseCores of a device, and devices that share tables, where it said."""

    sources: int
    devices: int | None


def layout_of(
    buffers: Buffers, most_ids: int, mesh: dict[str, int], minibatching: bool, asked: Asked, known: tuple[int, ...]
) -> Layout:
    """The layout of buffers (arrays or their types) made for ``most_ids`` per partition.

    A primitive is told neither the number of SparseCores nor which axes of ``mesh`` (name -> size) the tables are split
    over. The number of row pointers says it together with ``asked``; with ``known`` numbers of SparseCores where what
    was asked was something else, all axes counted. Buffers with mini-batches that were made by hand may have room for
    fewer than 64; they are taken to be on all axes.
    """
    mesh = {name: size for name, size in mesh.items() if size > 1}
    pointers, slots = buffers.row_pointers.shape[0], buffers.embedding_ids.shape[0]
    times = BUCKETS if minibatching else 1

    def fits(sources: int, axes: tuple[str, ...]) -> bool:
        return times * sources * max(math.prod(map(mesh.__getitem__, axes)) * sources, LINE) == pointers

    def layout(sources: int, axes: tuple[str, ...]) -> Layout:
        own = slots if minibatching else slots // sources
        devices = math.prod(map(mesh.__getitem__, axes))
        return Layout(devices, sources, min(_up(most_ids), own), axes, minibatching)

    every = tuple(mesh)
    some = [axes for count in range(len(mesh)) for axes in combinations(mesh, count)]
    of_size = [axes for axes in some if math.prod(map(mesh.__getitem__, axes)) == asked.devices]
    if math.prod(mesh.values()) != asked.devices and of_size and fits(asked.sources, of_size[0]):
        if len(of_size) > 1:
            choice = " or ".join(map(str, of_size))
            problem = f"tables on {asked.devices} devices of a mesh {mesh}: over {choice}?"
            how = "give the axes different sizes, or make the mesh of the table's axis alone"
            raise UnsupportedError(problem, where=WHERE, how=how)
        return layout(asked.sources, of_size[0])
    for sources in dict.fromkeys((asked.sources, *known)):
        if fits(sources, every):
            return layout(sources, every)
    if minibatching:
        return layout(asked.sources, every)
    problem = f"{pointers} row pointers, which no number of SparseCores has on {math.prod(mesh.values())} devices"
    how = "buffers belong to a number of devices: run the lookup inside shard_map over as many (global_device_count)"
    raise UsageError(problem, where=WHERE, how=how)


def partitions(buffers: Buffers, layout: Layout, minibatch: Any, rows: int) -> Partitions:
    """The partitions of a mini-batch whose ids are rows of an array of ``rows``.

    Entries behind the end of a source's slots are left out, as the chip does: a buffer smaller than a batch needs.
    """
    pointers, per_device, sources = buffers.row_pointers, len(buffers.embedding_ids), layout.sources
    source = jnp.arange(sources, dtype=jnp.int32)[:, None]
    segment = source * buffers.minibatches + minibatch if layout.minibatching else source
    place = segment * layout.segment + jnp.arange(layout.shards, dtype=jnp.int32)
    fresh = place == 0 if layout.minibatching else place % layout.segment == 0
    begin = jnp.where(fresh, 0, _up(pointers[jnp.maximum(place - 1, 0)]))
    base = 0 if layout.minibatching else source * (per_device // sources)
    stop = per_device if layout.minibatching else base + per_device // sources
    slot = (begin + base)[..., None] + jnp.arange(layout.slots, dtype=jnp.int32)
    there = slot < jnp.minimum(pointers[place] + base, stop)[..., None]

    def taken(values: jax.Array) -> jax.Array:
        return values.at[slot].get(mode="clip")

    per_shard = rows // sources
    shard = jnp.arange(layout.shards, dtype=jnp.int32)[:, None] % sources
    entries = (
        jnp.where(there, jnp.clip(shard * per_shard + taken(buffers.embedding_ids), 0, rows - 1), -1),
        jnp.where(there, taken(buffers.sample_ids), 0),
        jnp.where(there, taken(buffers.gains), 0),
    )
    grid = sources, layout.devices, sources, layout.slots
    return Partitions(*(value.reshape(grid).transpose(1, 0, 2, 3) for value in entries))


def exchanged(values: jax.Array, layout: Layout) -> jax.Array:
    """[devices to which, ...] -> [devices from which, ...]."""
    if not layout.axes:
        return values
    made: jax.Array = jax.lax.all_to_all(values, layout.axes, 0, 0, tiled=True)  # type: ignore[no-untyped-call]
    return made


def over_minibatches(buffers: Buffers, layout: Layout, one: Any, start: Any) -> Any:
    """``one(minibatch, value)`` for every mini-batch in turn, from ``start``; they are the same on every device."""
    if not layout.minibatching:
        return one(0, start)
    return jax.lax.fori_loop(0, buffers.minibatches, one, start)


def _up(count: Any) -> Any:
    return (count + LINE - 1) // LINE * LINE

"""What jax-tpu-embedding's primitives compute, on its buffers, with XLA's own operations: on every platform.

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
from jax.extend.core import Literal

from tilewright.embed.device.step import step_rows, varying, varying_axes
from tilewright.embed.host.batch import partition_spans
from tilewright.embed.model.formulas import BUCKETS, pointers_per_segment, round8
from tilewright.embed.model.tables import Quantization
from tilewright.errors import UnsupportedError, UsageError

# The buffers that the primitives read, of one device: from them to partitions of a fixed size.

WHERE = "a primitive of jax-tpu-embedding"


class Buffers(NamedTuple):
    """The first five operands of every primitive: one device's buffers."""

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
        """SparseCores of all devices together."""
        return self.devices * self.sources

    @property
    def segment(self) -> int:
        """Pointers of a source in one mini-batch."""
        return pointers_per_segment(self.shards)


class Partitions(NamedTuple):
    """The entries of one mini-batch, [devices, sources, shards of a device, slots] each; those that are none: row -1.

    Rows are those of the owner's array, where the shards of a device lie one behind the other.
    """

    rows: jax.Array
    samples: jax.Array
    gains: jax.Array

    @property
    def there(self) -> jax.Array:
        """Which slots hold an entry."""
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
        return times * sources * pointers_per_segment(math.prod(map(mesh.__getitem__, axes)) * sources) == pointers

    def layout(sources: int, axes: tuple[str, ...]) -> Layout:
        own = slots if minibatching else slots // sources
        devices = math.prod(map(mesh.__getitem__, axes))
        return Layout(devices, sources, min(round8(most_ids), own), axes, minibatching)

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
    begins, ends = partition_spans(pointers[None], per_device, sources, layout.minibatching, jnp)
    stop = per_device if layout.minibatching else (source + 1) * (per_device // sources)
    slot = begins[0, place][..., None] + jnp.arange(layout.slots, dtype=jnp.int32)
    there = slot < jnp.minimum(ends[0, place], stop)[..., None]

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


# Lookups and updates.


def activations(
    buffers: Buffers, table: jax.Array, layout: Layout, samples: int, quantization: Quantization | None = None
) -> jax.Array:
    """f32[samples of the device, width]: for every sample the sum of gain * row, over all shards of the mesh.

    Ids go to the devices that own their rows, the rows come back, and the source sums them, in the order of shards.
    """
    per_source = samples // layout.sources
    first = jnp.arange(layout.sources, dtype=jnp.int32)[:, None, None, None] * per_source

    def one(minibatch: Any, summed: jax.Array) -> jax.Array:
        asked = partitions(buffers, layout, minibatch, len(table))
        found = table.at[exchanged(asked.rows, layout)].get(mode="clip")
        found = exchanged(found if quantization is None else _levels(found, quantization), layout)
        if quantization is not None:  # the levels' values: together :meth:`Quantization.apply`
            found = found.astype(jnp.float32) * quantization.step + quantization.low
        found = found.transpose(1, 0, 2, 3, 4)
        of_source = jax.tree.map(lambda value: value.transpose(1, 0, 2, 3), asked)
        weighted = jnp.where(of_source.there[..., None], of_source.gains[..., None] * found, 0)
        sample = jnp.where(of_source.there, first + of_source.samples, samples)
        return summed.at[sample.reshape(-1)].add(weighted.reshape(-1, table.shape[1]), mode="drop")

    nothing = varying(jnp.zeros((samples, table.shape[1]), jnp.float32), varying_axes(table))
    summed: jax.Array = over_minibatches(buffers, layout, one, nothing)
    return summed


def _levels(rows: jax.Array, quantization: Quantization) -> jax.Array:
    """The numbers of the levels, in one byte where they fit: what travels, as on the chip."""
    fitting = (kind for kind, bits in ((jnp.uint8, 8), (jnp.uint16, 16)) if quantization.num_buckets <= 1 << bits)
    levels: jax.Array = quantization.level(rows, jnp).astype(next(fitting, jnp.uint32))
    return levels


def trained(
    buffers: Buffers, kept: tuple[jax.Array, ...], gradient: jax.Array, layout: Layout, optimizer: Any, rate: Any
) -> tuple[jax.Array, ...]:
    """The device's table and slots after one step with the gradient f32[samples, width] of its activations.

    Gradients of a row are summed over all samples and devices first; then the optimizer sees every touched row once,
    for a row belongs to one mini-batch.
    """
    per_source = len(gradient) // layout.sources
    first = jnp.arange(layout.sources, dtype=jnp.int32)[:, None, None] * per_source

    def one(minibatch: Any, kept: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        touched = partitions(buffers, layout, minibatch, len(kept[0]))
        of_sample = gradient.at[first + touched.samples].get(mode="clip")
        vectors = jnp.where(touched.there[..., None], touched.gains[..., None] * of_sample, 0)
        rows = exchanged(touched.rows, layout).reshape(-1)
        rows = jnp.where(rows < 0, len(kept[0]), rows)
        sums = exchanged(vectors, layout).reshape(-1, gradient.shape[1])
        return step_rows(optimizer, kept, rows, sums, rate, distinct=False)

    stepped: tuple[jax.Array, ...] = over_minibatches(buffers, layout, one, kept)
    return stepped


class Unfused:
    """Another optimizer, whose products, quotients and roots are rounded each by itself: the formulas as written.

    Where XLA's CPU compiles a product and a sum together it makes one operation of them, and of a quotient by a root a
    product; these round otherwise than numpy and our kernels do. It leaves alone a number whose bits are joined with
    ``zero``, an int32 of which only the reader knows that it is 0.
    """

    def __init__(self, optimizer: Any, zero: Any) -> None:
        self.optimizer, self.slots, self.zero = optimizer, optimizer.slots, zero

    def apply(self, *operands: Any) -> Any:
        """New rows and slots, as :attr:`optimizer` makes them."""
        traced, shape = jax.make_jaxpr(self.optimizer.apply, return_shape=True)(*operands)
        return jax.tree.unflatten(jax.tree.structure(shape), self._evaluated(traced, jax.tree.leaves(operands)))

    def _evaluated(self, traced: Any, operands: Any) -> list[Any]:
        """The results of a traced function, operation by operation."""
        inside = traced.jaxpr
        values = dict(zip(inside.constvars, traced.consts)) | dict(zip(inside.invars, operands))

        def value_of(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else values[atom]

        for equation in inside.eqns:
            primitive: Any = equation.primitive
            given = [value_of(atom) for atom in equation.invars]
            if "jaxpr" in equation.params:  # a function of jax.numpy's own, compiled by itself
                results = self._evaluated(equation.params["jaxpr"], given)
            else:
                made = primitive.bind(*given, **equation.params)
                results = made if primitive.multiple_results else [made]
            if primitive.name in ("mul", "div", "sqrt"):
                bits = [jax.lax.bitcast_convert_type(value, jnp.int32) | self.zero for value in results]
                results = [jax.lax.bitcast_convert_type(each, jnp.float32) for each in bits]
            values |= dict(zip(equation.outvars, results))
        return [value_of(atom) for atom in inside.outvars]

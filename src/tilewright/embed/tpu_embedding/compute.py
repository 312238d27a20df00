"""What jax-tpu-embedding's primitives compute, on its buffers, with XLA's own operations: on every platform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from tilewright.embed.device.step import step_rows, varying, varying_axes
from tilewright.embed.model.tables import Quantization
from tilewright.embed.tpu_embedding.buffers import Buffers, Layout, exchanged, over_minibatches, partitions


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
        found = (found if quantization is None else _values(found, quantization)).transpose(1, 0, 2, 3, 4)
        of_source = jax.tree.map(lambda value: value.transpose(1, 0, 2, 3), asked)
        weighted = jnp.where(of_source.there[..., None], of_source.gains[..., None] * found, 0)
        sample = jnp.where(of_source.there, first + of_source.samples, samples)
        return summed.at[sample.reshape(-1)].add(weighted.reshape(-1, table.shape[1]), mode="drop")

    nothing = varying(jnp.zeros((samples, table.shape[1]), jnp.float32), varying_axes(table))
    summed: jax.Array = over_minibatches(buffers, layout, one, nothing)
    return summed


def _levels(rows: jax.Array, quantization: Quantization) -> jax.Array:
    """The numbers of the levels, in one byte where they fit: what travels, as on the chip."""
    low, step = quantization.low, _step(quantization)
    fitting = (kind for kind, bits in ((jnp.uint8, 8), (jnp.uint16, 16)) if quantization.num_buckets <= 1 << bits)
    return jnp.round((jnp.clip(rows, low, quantization.high) - low) / step).astype(next(fitting, jnp.uint32))


def _values(levels: jax.Array, quantization: Quantization) -> jax.Array:
    """The levels themselves: together :meth:`Quantization.apply`."""
    return levels.astype(jnp.float32) * _step(quantization) + quantization.low


def _step(quantization: Quantization) -> float:
    return (quantization.high - quantization.low) / (quantization.num_buckets - 1)


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


def unstacked(
    stacked: jax.Array, sizes: tuple[int, ...], widths: tuple[int, ...], sources: int
) -> tuple[jax.Array, ...]:
    """Activations of every feature, f32[size, width], from those of a stack, where each source has its own samples.

    >>> [part.tolist() for part in unstacked(jnp.arange(6.0)[:, None], (4, 2), (1, 1), sources=2)]
    [[[0.0], [1.0], [3.0], [4.0]], [[2.0], [5.0]]]
    """
    by_source, at, parts = stacked.reshape(sources, -1, stacked.shape[1]), 0, []
    for size, width in zip(sizes, widths, strict=True):
        count = size // sources
        parts.append(by_source[:, at : at + count, :width].reshape(size, width))
        at += count
    return tuple(parts)


def stacked(gradients: tuple[jax.Array, ...], size: int, width: int, sources: int) -> jax.Array:
    """The other way round: f32[size, width] of a stack from the features' gradients.

    >>> stacked((jnp.asarray([[0.], [1.], [3.], [4.]]), jnp.asarray([[2.], [5.]])), 6, 1, sources=2)[:, 0].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    by_source = [gradient.reshape(sources, -1, gradient.shape[1]) for gradient in gradients]
    padded = [jnp.pad(part, ((0, 0), (0, 0), (0, width - part.shape[2]))) for part in by_source]
    return jnp.concatenate(padded, axis=1).reshape(size, width)


class Unfused:
    """Another optimizer, whose products, quotients and roots are rounded each by itself: the formulas as written.

    Where XLA's CPU compiles a product and a sum together it makes one operation of them, and of a quotient by a root a
    product; these round otherwise than numpy and our kernels do. It leaves alone a number whose bits are joined with
    ``zero``, an int32 of which only the reader knows that it is 0.
    """

    def __init__(self, optimizer: Any, zero: Any) -> None:
        """``optimizer`` as :func:`step_rows` takes it."""
        self.optimizer, self.slots, self.zero = optimizer, optimizer.slots, zero

    def apply(self, *operands: Any) -> Any:
        """The other's new rows and slots."""
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
                results = [self._rounded(value) for value in results]
            values |= dict(zip(equation.outvars, results))
        return [value_of(atom) for atom in inside.outvars]

    def _rounded(self, value: jax.Array) -> jax.Array:
        return _as(_as(value, jnp.int32) | self.zero, jnp.float32)


def _as(value: jax.Array, kind: Any) -> jax.Array:
    return jax.lax.bitcast_convert_type(value, kind)

"""On a TPU: the buffers of a batch go to jax-tpu-embedding's primitives, which the SparseCores run.

Where that package is not installed, XLA's own gathers and sums do the work, from the index, as on GPU. What stands here
was lowered for TPU (``benchmarks/embed_tpu_lowering.py``) and never run on one. A primitive wants its limits when it is
compiled; here they are what the buffers hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

from tilewright.embed.host.batch import HostBatch
from tilewright.embed.model.formulas import BUCKETS
from tilewright.embed.model.optimizers import FTRL, OPTIMIZERS, AdagradMomentum, Clipped, hyperparameters_at
from tilewright.embed.model.stacking import Stack
from tilewright.errors import UsageError

_PRIMITIVES = "jax_tpu_embedding.sparsecore.lib.core.primitives"
NAMES = {kind: name for name, kind in OPTIMIZERS.items() if name != "rowwise_adagrad"}
"""The optimizers that have a primitive."""


def primitives_here() -> bool:
    """Whether programs run on a TPU and the primitives are installed."""
    return jax.default_backend() == "tpu" and find_spec("jax_tpu_embedding") is not None


def has_primitive(stack: Stack) -> bool:
    """Whether the stack's optimizer is one of the primitives'."""
    return type(_inner(stack.optimizer)) in NAMES


def _inner(optimizer: Any) -> Any:
    return optimizer.optimizer if isinstance(optimizer, Clipped) else optimizer


def _primitive(name: str) -> Any:
    """The package's primitive ``tpu_NAME_primitive``, from its module NAME."""
    return getattr(import_module(f"{_PRIMITIVES}.{name}"), f"tpu_{name}_primitive")


def _inputs(batch: HostBatch, stack: Stack) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Operands of one device's buffers, and what every primitive is told."""
    arrays = (batch.row_pointers, batch.embedding_ids, batch.sample_ids, batch.gains)
    pointers, ids, samples, gains = (jnp.asarray(of_stacks[stack.name]) for of_stacks in arrays)
    if len(ids) != 1:
        problem = f"the buffers of {len(ids)} devices in one program"
        raise UsageError(problem, where="lookup on a TPU", how="run it inside jax.shard_map, with axis")
    topology = batch.stacking.topology
    partitions = topology.sparsecores_per_device * topology.sparsecores
    most = ids.shape[1] // (partitions * (BUCKETS if batch.minibatch_layout else 1))
    minibatches = jnp.asarray(batch.num_minibatches, jnp.int32).reshape(())
    limits = {"max_ids_per_partition": most, "max_unique_ids_per_partition": most}
    told = {**limits, "sharding_strategy": 1, "enable_minibatching": batch.minibatch_layout}
    return (pointers[0], ids[0], samples[0], gains[0], minibatches), told


def activations(table: jax.Array, batch: HostBatch, stack: Stack) -> tuple[jax.Array, ...]:
    """f32[samples, width] of every feature from one device's rows f32[SparseCores, R, W]."""
    operands, told = _inputs(batch, stack)
    sources, per_source = table.shape[0], stack.samples_per_sparsecore(batch.batch_sizes)
    quantization = stack.quantization
    levels = None if quantization is None else (quantization.low, quantization.high, quantization.num_buckets)
    flat = table.reshape(-1, stack.padded_width)
    lookup = _primitive("sparse_dense_matmul_csr").bind
    summed = lookup(*operands, flat, device_batch_size=sources * per_source, quantization_config=levels, **told)
    sizes = [count * sources for count in stack.samples(batch.batch_sizes).values()]
    return unstacked(summed, sizes, [feature.table.width for feature in stack.features], sources)


def trained(
    kept: tuple[jax.Array, ...], batch: HostBatch, stack: Stack, gradients: Mapping[str, Any], step: Any
) -> tuple[jax.Array, ...]:
    """A device's rows and slots after one optimizer step, with the gradients of its activations."""
    operands, told = _inputs(batch, stack)
    given = [jnp.asarray(gradients[feature.name], jnp.float32) for feature in stack.features]
    gradient = stacked(given, sum(map(len, given)), stack.padded_width, kept[0].shape[0])
    optimizer = _inner(stack.optimizer)
    rates = hyperparameters_at(optimizer, step)
    rates = rates if isinstance(rates, tuple) else (rates,)
    if isinstance(optimizer, AdagradMomentum):
        rates = (*rates, jnp.asarray(optimizer.use_nesterov))
    if isinstance(optimizer, FTRL):
        told["multiply_linear_by_learning_rate"] = optimizer.multiply_linear_by_learning_rate
    if isinstance(stack.optimizer, Clipped):
        told |= {"min_value": stack.optimizer.low, "max_value": stack.optimizer.high}
    name = NAMES[type(optimizer)]
    flat = [array.reshape(-1, array.shape[2]) for array in kept]
    update = _primitive(f"sparse_dense_matmul_grad_with_{name}").bind
    after = update(*operands, *flat, gradient, *rates, computation_name=f"{name}-{stack.name}", **told)
    values = after if isinstance(after, tuple | list) else (after,)
    return tuple(value.reshape(array.shape) for value, array in zip(values, kept, strict=True))


# Samples of a stack lie by source, feature and sample; those of a feature by source and sample.


def unstacked(stacked: jax.Array, sizes: Sequence[int], widths: Sequence[int], sources: int) -> tuple[jax.Array, ...]:
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


def stacked(gradients: Sequence[jax.Array], size: int, width: int, sources: int) -> jax.Array:
    """The inverse of :func:`unstacked`: f32[size, width] of a stack from the features' gradients.

    >>> stacked((jnp.asarray([[0.], [1.], [3.], [4.]]), jnp.asarray([[2.], [5.]])), 6, 1, sources=2)[:, 0].tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    by_source = [gradient.reshape(sources, -1, gradient.shape[1]) for gradient in gradients]
    padded = [jnp.pad(part, ((0, 0), (0, 0), (0, width - part.shape[2]))) for part in by_source]
    return jnp.concatenate(padded, axis=1).reshape(size, width)

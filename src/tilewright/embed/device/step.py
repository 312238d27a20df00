"""Lookup and update on the SparseCores' layout, as pure functions under jit and shard_map.

Every function works on the local shards, the leading axis of a stack's array. Without ``axis`` these are all shards
and nothing is exchanged; with it, ids go to the shards that own them and vectors come back, by all-to-all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright.embed.device.batch import DeviceBatch, PartitionEntries, check_batch, device_batch, entries
from tilewright.embed.device.state import EmbeddingState
from tilewright.embed.host.batch import HostBatch
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.optimizers import Optimizer, by_row, hyperparameters_at
from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.errors import CheckFailed, UsageError

# NaN checks of the device side: what goes into a lookup or an update, and what comes out.


def check_by_feature(values: dict[str, Any], stacking: Stacking, stage: str) -> None:
    """:class:`CheckFailed` for a NaN in {feature: [batch, width]}; names stage, feature, table and the first sample."""
    for feature in stacking.features:
        _check(values[feature.name], f"{stage}: feature {feature.name!r}, table {feature.table.name!r}", "sample")


def check_state(state: EmbeddingState, stage: str) -> None:
    """The same for the rows and optimizer slots of every stack."""
    for name, value in _arrays(state):
        _check(value.reshape(-1, value.shape[-1]), f"{stage}: {name}", "row over all shards")


def _arrays(state: EmbeddingState) -> Iterator[tuple[str, jax.Array]]:
    for name, stack in state.stacking.stacks.items():
        tables = ", ".join(table.name for table in stack.tables)
        yield f"stack {name!r} (tables {tables})", state.stacks[name]
        for slot, value in state.slots[name].items():
            yield f"slot {slot!r} of stack {name!r} (tables {tables})", value


def _check(value: Any, where: str, unit: str) -> None:
    """At once where the value is there; under ``jit`` when the program runs, as an error of its callback."""
    wrong = jnp.isnan(jnp.asarray(value)).any(axis=-1)

    def judge(has_nan: Any) -> None:
        at = np.flatnonzero(np.asarray(has_nan))
        if at.size:
            raise CheckFailed(
                f"NaN in {at.size} of {has_nan.size}, first in {unit} {at[0]}", where=f"NaN check, {where}"
            )

    if isinstance(wrong, jax.core.Tracer):
        jax.debug.callback(judge, wrong)
    else:
        judge(wrong)


_CHUNK = 8192
"""Rows the optimizer sees at a time."""


def lookup(
    state: EmbeddingState,
    host_batch: HostBatch | DeviceBatch,
    axis: str | None = None,
    sparsecore: SparseCoreConfig | None = None,
) -> dict[str, jax.Array]:
    """Activations {feature: f32[batch, width]}: for every sample the sum of gain * row over its ids.

    Pure; call it as it is, under ``jit`` (batch and state are pytrees), or inside ``shard_map`` with ``axis`` the name
    of the mesh axis over which state and batch are split. An empty sample gives zeros. ``sparsecore``: with
    ``detect_nan`` the activations are looked through.

    Raises :class:`UsageError` for a batch made with another stacking, :class:`CheckFailed` for a NaN (under ``jit`` the
    error of a callback, which says the same).

    >>> activations = lookup(state, preprocess(batch, stacking))  # doctest: +SKIP
    >>> activations["user"].shape  # doctest: +SKIP
    (4096, 16)
    """
    batch = device_batch(host_batch)
    check_batch(batch, state.stacking)
    activations: dict[str, jax.Array] = _lookup(state, batch, axis)
    if sparsecore is not None and sparsecore.detect_nan:
        check_by_feature(activations, state.stacking, "stage lookup, activations out")
    return {feature.name: activations[feature.name] for feature in state.stacking.features}


def update(
    state: EmbeddingState,
    host_batch: HostBatch | DeviceBatch,
    gradients: Mapping[str, Any],
    axis: str | None = None,
    sparsecore: SparseCoreConfig | None = None,
) -> EmbeddingState:
    """The state after one optimizer step with the gradients {feature: f32[batch, width]} of the activations.

    The gradients of a row are summed first, over all samples and features that looked it up, each times its gain;
    then the optimizer sees every touched row exactly once. All other rows keep their bits. Pure; to update in place
    donate the state: ``jax.jit(update, donate_argnums=0)``. ``sparsecore``: with ``detect_nan`` the gradients, and the
    rows and slots afterwards, are looked through.

    Raises :class:`UsageError` for missing or unknown features, a wrong shape, or a batch made with another stacking;
    :class:`CheckFailed` for a NaN, as ``lookup`` does.
    """
    batch = device_batch(host_batch)
    check_batch(batch, state.stacking)
    looked = sparsecore is not None and sparsecore.detect_nan
    if looked:
        _check_features(gradients, state)
        check_by_feature(dict(gradients), state.stacking, "stage update, gradients in")
    after: EmbeddingState = _update(state, batch, dict(gradients), axis)
    if looked:
        check_state(after, "stage update, out")
    return after


@partial(jax.jit, static_argnames="axis")
def _lookup(state: EmbeddingState, batch: DeviceBatch, axis: str | None) -> dict[str, jax.Array]:
    activations: dict[str, jax.Array] = {}
    for name, stack in state.stacking.stacks.items():
        activations.update(_by_feature(_activations(state.stacks[name], batch, stack, axis), batch, stack))
    return activations


@partial(jax.jit, static_argnames="axis")
def _update(state: EmbeddingState, batch: DeviceBatch, gradients: dict[str, Any], axis: str | None) -> EmbeddingState:
    _check_features(gradients, state)
    stacks, slots = {}, {}
    for name, stack in state.stacking.stacks.items():
        rate = hyperparameters_at(stack.optimizer, state.step)
        by_sample = _by_sample(gradients, batch, stack)
        stacks[name], slots[name] = _trained(state.stacks[name], state.slots[name], by_sample, batch, stack, rate, axis)
    return EmbeddingState(state.step + 1, stacks, slots, state.stacking)


def _sources(batch: DeviceBatch, stack: Stack) -> int:
    """Local source SparseCores."""
    return int(batch.embedding_ids[stack.name].shape[0]) * batch.stacking.topology.sparsecores_per_device


def _over_minibatches(batch: DeviceBatch, body: Any, start: Any) -> Any:
    """``body(minibatch, value)`` for every mini-batch; without the mini-batch layout there is one."""
    if not batch.minibatch_layout:
        return body(0, start)
    return jax.lax.fori_loop(0, batch.num_minibatches, body, start)


def _to_owners(values: jax.Array, axis: str | None) -> jax.Array:
    """[local sources, S, ...] -> [all sources, local shards, ...]."""
    return values if axis is None else _all_to_all(values, axis, 1, 0)


def _to_sources(values: jax.Array, axis: str | None) -> jax.Array:
    """[all sources, local shards, ...] -> [local sources, S, ...]."""
    return values if axis is None else _all_to_all(values, axis, 0, 1)


def _all_to_all(values: jax.Array, axis: str, split: int, join: int) -> jax.Array:
    exchanged: jax.Array = jax.lax.all_to_all(values, axis, split, join, tiled=True)  # type: ignore[no-untyped-call]
    return exchanged


def _owned(rows: jax.Array, table: jax.Array, axis: str | None) -> jax.Array:
    """Rows of the local shards laid end to end that the entries ask for; their number where there is no entry."""
    shards, per_shard, _ = table.shape
    local = _to_owners(rows, axis)
    place = jnp.arange(shards, dtype=jnp.int32)[:, None] * per_shard + local
    return jnp.where(local < per_shard, place, shards * per_shard)


def _activations(table: jax.Array, batch: DeviceBatch, stack: Stack, axis: str | None) -> jax.Array:
    """f32[local samples of the stack, padded width]."""
    flat = table.reshape(-1, stack.padded_width)
    samples = _sources(batch, stack) * stack.samples_per_sparsecore(dict(batch.batch_sizes))

    def one(minibatch: Any, sums: jax.Array) -> jax.Array:
        part: PartitionEntries = entries(batch, stack.name, minibatch)
        vectors = flat.at[_owned(part.rows, table, axis)].get(mode="clip")
        if stack.quantization is not None:
            vectors = stack.quantization.apply(vectors, jnp)
        weighted = _to_sources(vectors, axis) * part.gains[..., None]
        return sums.at[part.samples].add(weighted, mode="drop")

    return jnp.asarray(_over_minibatches(batch, one, jnp.zeros((samples, stack.padded_width), jnp.float32)))


def _trained(
    table: jax.Array,
    slots: dict[str, jax.Array],
    by_sample: jax.Array,
    batch: DeviceBatch,
    stack: Stack,
    rate: Any,
    axis: str | None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The stack's rows and slots after the optimizer has seen every touched row once.

    A row belongs to one mini-batch only (buckets are of ids), so the loop over them keeps "once".
    """
    shape = table.shape

    def one(minibatch: Any, kept: Any) -> Any:
        part: PartitionEntries = entries(batch, stack.name, minibatch)
        gradient = by_sample.at[part.samples].get(mode="clip") * part.gains[..., None]
        rows = _owned(part.rows, table, axis).reshape(-1)
        gradient = _to_owners(gradient, axis).reshape(-1, shape[2])
        return _step_rows(stack.optimizer, kept, rows, gradient[:, :columns], rate)

    columns = stack.tables[0].width if by_row(stack.optimizer) else shape[2]
    flat = (table.reshape(-1, shape[2]), {name: value.reshape(-1, value.shape[2]) for name, value in slots.items()})
    rows, kept = _over_minibatches(batch, one, flat)
    return rows.reshape(shape), {name: value.reshape(slots[name].shape) for name, value in kept.items()}


def _step_rows(optimizer: Optimizer, kept: Any, rows: jax.Array, gradient: jax.Array, rate: Any) -> Any:
    """Sum the gradients of equal ``rows``, then apply the optimizer to each row once, in place.

    Every entry writes its number at its row in a scratch array; the highest stays and stands for the row. So no sort
    is needed, and the work grows with the entries, not with the table (but for clearing four bytes per row). The
    optimizer runs over the touched rows, a chunk at a time, so that padding costs it nothing.
    """
    count, last = len(kept[0]), len(rows)
    number = jnp.arange(last, dtype=jnp.int32)
    chosen = jnp.zeros(count, jnp.int32).at[rows].max(number, mode="drop")
    stands_for = jnp.where(rows < count, chosen.at[rows].get(mode="clip"), last)
    summed = jnp.zeros_like(gradient).at[stands_for].add(gradient, mode="drop")
    place = jnp.cumsum(stands_for == number, dtype=jnp.int32)  # touched rows up to and with this entry
    touched, chunk = place[-1], min(last, _CHUNK)
    standing = jnp.where(stands_for == number, place - 1, last + chunk)
    order = jnp.zeros(last + chunk, jnp.int32).at[standing].set(number, mode="drop")

    def one(i: Any, value: Any) -> Any:
        entry = jax.lax.dynamic_slice_in_dim(order, i * chunk, chunk)
        target = jnp.where(i * chunk + jnp.arange(chunk) < touched, rows[entry], count)
        return _applied(optimizer, value, target, summed[entry], rate)

    return jax.lax.fori_loop(0, (touched + chunk - 1) // chunk, one, kept)


def _applied(optimizer: Optimizer, kept: Any, target: jax.Array, gradient: jax.Array, rate: Any) -> Any:
    """The optimizer on the rows ``target`` (the number of rows: none), each at most once, as wide as the gradient."""
    table, slots = kept
    columns = gradient.shape[1]
    old = {name: value.at[target, :columns].get(mode="clip") for name, value in slots.items()}
    new, fresh = optimizer.apply(table.at[target, :columns].get(mode="clip"), old, gradient, rate)
    return (
        table.at[target, :columns].set(new, mode="drop"),
        {name: value.at[target, :columns].set(fresh[name], mode="drop") for name, value in slots.items()},
    )


def _by_feature(sums: jax.Array, batch: DeviceBatch, stack: Stack) -> dict[str, jax.Array]:
    """Take the stack's activations apart: features lie one behind the other inside every source."""
    sizes = dict(batch.batch_sizes)
    sources = _sources(batch, stack)
    cube = sums.reshape(sources, stack.samples_per_sparsecore(sizes), stack.padded_width)
    by_feature = {}
    for feature in stack.features:
        first, count = stack.sample_offsets(sizes)[feature.name], sizes[feature.name] // stack.shards
        part = cube[:, first : first + count, : feature.table.width]
        by_feature[feature.name] = part.reshape(sources * count, feature.table.width)
    return by_feature


def _by_sample(gradients: Mapping[str, Any], batch: DeviceBatch, stack: Stack) -> jax.Array:
    """The inverse of :func:`_by_feature`: f32[local samples of the stack, padded width]."""
    sizes, sources = dict(batch.batch_sizes), _sources(batch, stack)
    parts = []
    for feature in stack.features:
        count, width = sizes[feature.name] // stack.shards, feature.table.width
        gradient = jnp.asarray(gradients[feature.name], jnp.float32)
        if gradient.shape != (sources * count, width):
            problem = f"a gradient of shape {list(gradient.shape)}, not {[sources * count, width]}"
            raise UsageError(problem, where=f"feature {feature.name!r}")
        part = gradient.reshape(sources, count, width)
        parts.append(jnp.pad(part, ((0, 0), (0, 0), (0, stack.padded_width - width))))
    return jnp.concatenate(parts, axis=1).reshape(-1, stack.padded_width)


def _check_features(gradients: Mapping[str, Any], state: EmbeddingState) -> None:
    names = {feature.name for feature in state.stacking.features}
    if set(gradients) == names:
        return
    missing, unknown = sorted(names - set(gradients)), sorted(set(gradients) - names)
    problem = f"no gradient for {', '.join(missing)}" if missing else f"no feature called {', '.join(unknown)}"
    raise UsageError(problem, where="update", how="give one gradient for every feature")

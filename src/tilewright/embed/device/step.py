"""Lookup and update on the SparseCores' layout, as pure functions under jit and shard_map.

Every function works on the local shards, the leading axis of a stack's array. Without ``axis`` these are all shards
and nothing is exchanged; with it, ids go to the shards that own them and vectors come back, by all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from tilewright.embed.device import tpu
from tilewright.embed.device.batch import DeviceBatch, Lengths, StackIndex, check_batch, device_batch, feature_shift
from tilewright.embed.device.row_kernels import lookup_target, sum_target, update_target
from tilewright.embed.device.state import EmbeddingState, HotState
from tilewright.embed.host.batch import HostBatch
from tilewright.embed.host.tables import HotEntries
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.optimizers import SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad, by_row, hyperparameters_at
from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.errors import CheckFailed, UsageError
from tilewright.kernels.threads import thread_count

# NaN checks of the device side: what goes into a lookup or an update, and what comes out.


def check_by_feature(values: dict[str, Any], stacking: Stacking, stage: str) -> None:
    """:class:`CheckFailed` for a NaN in {feature: [batch, width]}; names stage, feature, table and the first sample."""
    for feature in stacking.features:
        _check(values[feature.name], f"{stage}: feature {feature.name!r}, table {feature.table.name!r}", "sample")


def check_state(state: EmbeddingState, stage: str) -> None:
    """:class:`CheckFailed` for a NaN in the rows or optimizer slots of a stack; names stage, stack, slot and row."""
    for name, stack in state.stacking.stacks.items():
        arrays = {f"slot {slot!r} of ": value for slot, value in state.slots[name].items()}
        where = f"stack {name!r} (tables {', '.join(table.name for table in stack.tables)})"
        for slot, value in ({"": state.stacks[name]} | arrays).items():
            _check(value.reshape(-1, value.shape[-1]), f"{stage}: {slot}{where}", "row over all shards")


def _check(value: Any, where: str, unit: str) -> None:
    """At once where the value is there; under ``jit`` when the program runs, as an error of its callback."""
    wrong = jnp.isnan(jnp.asarray(value)).any(axis=-1)

    def judge(has_nan: Any) -> None:
        at = np.flatnonzero(np.asarray(has_nan))
        if at.size:
            problem = f"NaN in {at.size} of {has_nan.size}, first in {unit} {at[0]}"
            raise CheckFailed(problem, where=f"NaN check, {where}")

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
    check_batch(host_batch, state.stacking)
    activations: dict[str, jax.Array] = _lookup(state.stacks, step_batch(host_batch), axis)
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
    check_batch(host_batch, state.stacking)
    looked = sparsecore is not None and sparsecore.detect_nan
    if looked:
        _check_features(gradients, state)
        check_by_feature(dict(gradients), state.stacking, "stage update, gradients in")
    after: EmbeddingState = _update(state, step_batch(host_batch), dict(gradients), axis)
    if looked:
        check_state(after, "stage update, out")
    return after


def layer(
    state: EmbeddingState, host_batch: HostBatch | DeviceBatch, rows: Mapping[str, Any], axis: str | None = None
) -> dict[str, jax.Array]:
    """``lookup`` for a loss that is differentiated: the gradient of ``rows`` is that of the touched rows.

    ``rows`` comes from :func:`zero_rows`; its values are not looked at. Its gradient holds, for every row that the
    batch asks for, the sum over samples and features, and goes to :func:`update_rows`. The state itself counts as a
    constant (differentiate ``lookup`` for dense gradients of tables). For ``jit``, ``shard_map`` with ``axis``,
    ``remat`` and ``scan``.

    >>> def objective(params, rows):  # doctest: +SKIP
    ...     return loss(params, layer(state, batch, rows), labels)
    >>> both = jax.value_and_grad(objective, argnums=(0, 1))  # doctest: +SKIP
    >>> value, (gradient, of_rows) = both(params, zero_rows(batch))  # doctest: +SKIP
    >>> state = update_rows(state, batch, of_rows)  # doctest: +SKIP
    """
    batch = device_batch(host_batch)
    check_batch(batch, state.stacking)
    activations: dict[str, jax.Array] = {}
    for name, stack in state.stacking.stacks.items():
        static = _static(batch, stack, axis)
        made = _stack_lookup(static, rows[name], jax.lax.stop_gradient(state.stacks[name]), batch.index[name])
        activations.update(zip((feature.name for feature in stack.features), made, strict=True))
    return {feature.name: activations[feature.name] for feature in state.stacking.features}


def zero_rows(host_batch: HostBatch | DeviceBatch) -> dict[str, jax.Array]:
    """{stack: f32[devices, S, U, padded width]}: zeros of the shape of the gradients of a batch's rows."""
    batch = device_batch(host_batch)
    stacks = batch.stacking.stacks
    return {
        name: jnp.zeros((*index.rows.shape, stacks[name].padded_width), jnp.float32)
        for name, index in batch.index.items()
    }


def update_rows(
    state: EmbeddingState, host_batch: HostBatch | DeviceBatch, gradients: Mapping[str, Any], axis: str | None = None
) -> EmbeddingState:
    """The state after one optimizer step with the gradients {stack: f32[devices, S, U, W]} of the batch's rows.

    They are those of ``layer``'s ``rows``. Rows that several devices asked for are summed first.
    """
    batch = device_batch(host_batch)
    check_batch(batch, state.stacking)
    return _stepped(state, batch, axis, {}, lambda static, index: jnp.asarray(gradients[static.stack.name]))


Arrays: TypeAlias = tuple[jax.Array, ...]
"""A stack's rows [shards, rows, W] and its slots."""

Gradients: TypeAlias = list[jax.Array] | jax.Array
"""Of every feature's activations, or of the rows of the index, [L, S, U, W]."""


class _Static(NamedTuple):
    """What is fixed when a step of one stack is traced."""

    stack: Stack
    counts: tuple[int, ...]
    """Samples that one source has of each feature."""
    sources: int
    """SparseCores of one device."""
    shift: int
    axis: str | None


def _static(batch: DeviceBatch, stack: Stack, axis: str | None) -> _Static:
    sources, sizes = batch.stacking.topology.sparsecores_per_device, dict(batch.batch_sizes)
    return _Static(stack, tuple(stack.samples(sizes).values()), sources, feature_shift(stack, sizes), axis)


def step_batch(batch: HostBatch | DeviceBatch, lengths: Lengths | None = None) -> HostBatch | DeviceBatch:
    """What ``lookup`` and ``update`` read here: the buffers where a TPU's primitives do, otherwise their index."""
    served = tpu.primitives_here() and all(map(tpu.has_primitive, batch.stacking.groups))
    return batch if served else device_batch(batch, lengths)


@partial(jax.jit, static_argnames="axis")
def _lookup(stacks: Mapping[str, jax.Array], batch: HostBatch | DeviceBatch, axis: str | None) -> dict[str, jax.Array]:
    activations: dict[str, jax.Array] = {}
    for name, stack in batch.stacking.stacks.items():
        if isinstance(batch, HostBatch):
            made = tpu.activations(stacks[name], batch, stack)
        else:
            made = _stack_lookup(_static(batch, stack, axis), None, stacks[name], batch.index[name])
        activations.update(zip((feature.name for feature in stack.features), made, strict=True))
    return activations


@partial(jax.jit, static_argnames="axis")
def _update(
    state: EmbeddingState, batch: HostBatch | DeviceBatch, gradients: dict[str, Any], axis: str | None
) -> EmbeddingState:
    _check_features(gradients, state)
    return _stepped(state, batch, axis, gradients, lambda static, index: _gradients(static, index, gradients))


def _stepped(
    state: EmbeddingState,
    batch: HostBatch | DeviceBatch,
    axis: str | None,
    gradients: Mapping[str, Any],
    gradients_of: Callable[[_Static, StackIndex], Gradients],
) -> EmbeddingState:
    stacks, slots = {}, {}
    for name, stack in state.stacking.stacks.items():
        names = list(stack.optimizer.slots)  # under jit the state's own are in the order of the alphabet
        kept = (state.stacks[name], *(state.slots[name][slot] for slot in names))
        if isinstance(batch, HostBatch):
            stacks[name], *fresh = tpu.trained(kept, batch, stack, gradients, state.step)
        else:
            static, index = _static(batch, stack, axis), batch.index[name]
            rates = hyperparameters_at(stack.optimizer, state.step)
            stacks[name], *fresh = _trained(static, kept, rates, index, gradients_of(static, index))
        slots[name] = dict(zip(names, fresh, strict=True))
    return EmbeddingState(state.step + 1, stacks, slots, state.stacking)


def _gradients(static: _Static, index: StackIndex, gradients: Mapping[str, Any]) -> list[jax.Array]:
    """The gradients of a stack's features as f32[samples, width], in the order of the stack."""
    given = []
    for feature, count in zip(static.stack.features, static.counts, strict=True):
        gradient = jnp.asarray(gradients[feature.name], jnp.float32)
        expected = (len(index.rows) * static.sources * count, feature.table.width)
        if gradient.shape != expected:
            problem = f"a gradient of shape {list(gradient.shape)}, not {list(expected)}"
            raise UsageError(problem, where=f"feature {feature.name!r}")
        given.append(gradient)
    return given


# Between devices: lists of rows go to the shards that own them, vectors come back.


def _exchanged(values: jax.Array, axis: str | None, to_owners: bool) -> jax.Array:
    """[local lists, S, ...] -> [all lists, local shards, ...] at the rows' owners, or back again."""
    if axis is None:
        return values
    split, join = (1, 0) if to_owners else (0, 1)
    exchanged: jax.Array = jax.lax.all_to_all(values, axis, split, join, tiled=True)  # type: ignore[no-untyped-call]
    return exchanged


def _flat(rows: jax.Array, per_shard: int) -> jax.Array:
    """Rows [lists, shards, U] of shards laid end to end; the number of all rows where there is none."""
    shards = rows.shape[1]
    place = jnp.arange(shards, dtype=jnp.int32)[:, None] * per_shard + rows
    return jnp.where(rows < per_shard, place, shards * per_shard)


# Lookup: a row is gathered once for every device that asks for it; a sample is summed once.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _stack_lookup(static: _Static, rows: Any, table: jax.Array, index: StackIndex) -> tuple[jax.Array, ...]:
    """Activations of a stack's features, f32[local samples, width] each; their gradient is that of the table or, where
    ``rows`` are given, which are not looked at, of the rows asked for."""
    return _pooled(static, *_vectors(static, table, index), index)


def _vectors(static: _Static, table: jax.Array, index: StackIndex) -> tuple[jax.Array, jax.Array]:
    """Rows [n, W] and which of them each entry asks for, i32[L, E]: the table itself where all of it is here."""
    lists, shards, distinct = index.rows.shape
    _, per_shard, width = table.shape
    quantization = static.stack.quantization
    if static.axis is None and quantization is None:
        return table.reshape(-1, width), index.sample_rows
    asked = _flat(_exchanged(index.rows, static.axis, to_owners=True), per_shard)
    vectors = table.reshape(-1, width).at[asked].get(mode="clip")
    if quantization is not None:
        vectors = quantization.apply(vectors, jnp)
    vectors = _exchanged(vectors, static.axis, to_owners=False)
    first_place = jnp.arange(lists, dtype=jnp.int32)[:, None] * (shards * distinct)
    return vectors.reshape(-1, width), first_place + index.sample_places


def _pooled(static: _Static, vectors: jax.Array, rows: jax.Array, index: StackIndex) -> tuple[jax.Array, ...]:
    samples = len(rows) * static.sources
    widths = [feature.table.width for feature in static.stack.features]
    operands = (vectors, index.sample_ends, rows, index.sample_gains)

    def on_cpu(*operands: jax.Array) -> tuple[jax.Array, ...]:
        shapes = [(samples * count, width) for count, width in zip(static.counts, widths, strict=True)]
        made: tuple[jax.Array, ...] = tuple(_call(lookup_target(), shapes, operands, sources=static.sources))
        return made

    def elsewhere(vectors: jax.Array, ends: jax.Array, rows: jax.Array, gains: jax.Array) -> Any:
        def one(ends: jax.Array, rows: jax.Array, gains: jax.Array) -> jax.Array:
            return _segment_sum(vectors.at[rows].get(mode="clip") * gains[:, None], ends)

        sums = jax.vmap(one)(ends, rows, gains).reshape(-1, vectors.shape[1])
        return tpu.unstacked(sums, [samples * count for count in static.counts], widths, samples)

    pooled: tuple[jax.Array, ...] = _by_platform(operands, on_cpu, elsewhere)
    return pooled


def _segment_sum(values: jax.Array, ends: jax.Array) -> jax.Array:
    """Sums of the runs of ``values`` that end at ``ends``."""
    segments = jnp.zeros(len(values) + 1, jnp.int32).at[ends].add(1, mode="drop")[:-1].cumsum()
    summed: jax.Array = jax.ops.segment_sum(values, segments, len(ends), indices_are_sorted=True)
    return summed


def _lookup_forward(static: _Static, rows: Any, table: jax.Array, index: StackIndex) -> Any:
    return _stack_lookup(static, rows, table, index), (index, table.shape if rows is None else None)


def _lookup_backward(static: _Static, kept: Any, cotangents: tuple[jax.Array, ...]) -> tuple[Any, Any, None]:
    """A dense gradient of the table, or that of the rows; quantisation passes gradients on as they are."""
    index, shape = kept
    if shape is None:
        sums = _sums(static, index, list(cotangents))
        return sums.reshape(*index.rows.shape, static.stack.padded_width), None, None
    places, sums = _row_gradients(static, index, list(cotangents))
    dense = jnp.zeros((shape[0] * shape[1], shape[2]), jnp.float32)
    dense = dense.at[_flat(places, shape[1]).reshape(-1)].add(sums.reshape(-1, shape[2]), mode="drop")
    return None, dense.reshape(shape), None


_stack_lookup.defvjp(_lookup_forward, _lookup_backward)


# Gradients of rows: every device sums its own, then they go to the owners.


def _sums(static: _Static, index: StackIndex, gradients: list[jax.Array]) -> jax.Array:
    """f32[L, P, W]: for every place the sum over its entries of gain * gradient of the sample."""
    lists, places = index.row_ends.shape
    width = static.stack.padded_width
    operands = (index.row_ends, index.row_samples, index.row_gains, *gradients)

    def on_cpu(*operands: jax.Array) -> jax.Array:
        made: jax.Array = _call(sum_target(), [(lists, places, width)], operands, shift=static.shift)[0]
        return made

    def elsewhere(ends: jax.Array, samples: jax.Array, gains: jax.Array, *gradients: jax.Array) -> jax.Array:
        rows = [len(gradient) // lists for gradient in gradients]
        first = jnp.asarray(np.cumsum([0, *rows[:-1]]), jnp.int32)
        padded = tpu.stacked(gradients, sum(map(len, gradients)), width, lists).reshape(lists, -1, width)

        def one(ends: jax.Array, samples: jax.Array, gains: jax.Array, given: jax.Array) -> jax.Array:
            at = first[samples >> static.shift] + (samples & (1 << static.shift) - 1)
            return _segment_sum(given.at[at].get(mode="clip") * gains[:, None], ends)

        return jax.vmap(one)(ends, samples, gains, padded)

    summed: jax.Array = _by_platform(operands, on_cpu, elsewhere)
    return summed


def _row_gradients(static: _Static, index: StackIndex, gradients: Gradients) -> tuple[jax.Array, jax.Array]:
    """At the owners: rows i32[lists, local shards, U] and their gradients f32[lists, local shards, U, W]."""
    if isinstance(gradients, list):
        gradients = _sums(static, index, gradients).reshape(*index.rows.shape, static.stack.padded_width)
    rows, sums = (_exchanged(values, static.axis, to_owners=True) for values in (index.rows, gradients))
    return rows, sums


# Update: the optimizer sees every touched row once.


def _trained(static: _Static, kept: Arrays, rates: Any, index: StackIndex, gradients: Gradients) -> Arrays:
    stack = static.stack
    columns = stack.tables[0].width

    def on_cpu(*operands: jax.Array) -> Arrays:
        kept, rates, index, gradients = jax.tree.unflatten(structure, operands)
        if static.axis is None and isinstance(gradients, list):
            shift = static.shift
            lists = (index.rows, index.row_ends, index.row_samples, index.row_gains, *gradients)
        else:
            shift, lists = -1, _row_gradients(static, index, gradients)
        shapes, in_place = [array.shape for array in kept], {i: i for i in range(len(kept))}
        numbers = {"arrays": len(kept), "columns": columns, "optimizer": _KINDS[type(stack.optimizer)], "shift": shift}
        return tuple(_call(update_target(), shapes, (*kept, jnp.stack(rates), *lists), in_place, **numbers))

    def elsewhere(*operands: jax.Array) -> Arrays:
        kept, rates, index, gradients = jax.tree.unflatten(structure, operands)
        rows, sums = _row_gradients(static, index, gradients)
        seen = columns if by_row(stack.optimizer) else stack.padded_width
        flat = tuple(array.reshape(-1, array.shape[2]) for array in kept)
        places, sums = _flat(rows, kept[0].shape[1]).reshape(-1), sums.reshape(-1, stack.padded_width)[:, :seen]
        rate = rates if len(rates) > 1 else rates[0]
        after = step_rows(stack.optimizer, flat, places, sums, rate, distinct=len(rows) == 1)
        return tuple(value.reshape(array.shape) for value, array in zip(after, kept, strict=True))

    scalars = rates if isinstance(rates, tuple) else (rates,)
    operands, structure = jax.tree.flatten((kept, scalars, index, gradients))
    if type(stack.optimizer) not in _KINDS:
        return elsewhere(*operands)
    made: Arrays = _by_platform(operands, on_cpu, elsewhere)
    return made


_KINDS: dict[type, int] = {SGD: 0, Adagrad: 1, RowwiseAdagrad: 2, Adam: 3}
"""Optimizers with a kernel of their own."""


def step_rows(
    optimizer: Optimizer, kept: Arrays, rows: jax.Array, gradient: jax.Array, rate: Any, distinct: bool
) -> Arrays:
    """Sum the gradients of equal ``rows`` (none where they are ``distinct``), then step each row once, in place.

    Every entry writes its number at its row in a scratch array; the highest stays and stands for the row. So no sort
    is needed, and the work grows with the entries, not with the table (but for clearing four bytes per row). The
    optimizer runs over the touched rows, a chunk at a time, so that padding costs it nothing.
    """
    count, last = len(kept[0]), len(rows)
    number = jnp.arange(last, dtype=jnp.int32)
    if distinct:
        stands_for = jnp.where(rows < count, number, last)
        summed = gradient
    else:
        chosen = jnp.zeros(count, jnp.int32).at[rows].max(number, mode="drop")
        stands_for = jnp.where(rows < count, chosen.at[rows].get(mode="clip"), last)
        summed = jnp.zeros_like(gradient).at[stands_for].add(gradient, mode="drop")
    place = jnp.cumsum(stands_for == number, dtype=jnp.int32)  # touched rows up to and with this entry
    touched, chunk = place[-1], min(last, _CHUNK)
    standing = jnp.where(stands_for == number, place - 1, last + chunk)
    order = jnp.zeros(last + chunk, jnp.int32).at[standing].set(number, mode="drop")

    def one(i: Any, value: Arrays) -> Arrays:
        entry = jax.lax.dynamic_slice_in_dim(order, i * chunk, chunk)
        target = jnp.where(i * chunk + jnp.arange(chunk) < touched, rows[entry], count)
        return _applied(optimizer, value, target, summed[entry], rate)

    stepped: Arrays = jax.lax.fori_loop(0, (touched + chunk - 1) // chunk, one, kept)
    return stepped


def _applied(optimizer: Optimizer, kept: Arrays, target: jax.Array, gradient: jax.Array, rate: Any) -> Arrays:
    """The optimizer on the rows ``target`` (the number of rows: none), each at most once, as wide as the gradient."""
    columns = gradient.shape[1]
    rows, *slots = (array.at[target, :columns].get(mode="clip") for array in kept)
    new, fresh = optimizer.apply(rows, dict(zip(optimizer.slots, slots, strict=True)), gradient, rate)
    values = (new, *(fresh[slot] for slot in optimizer.slots))
    return tuple(a.at[target, :columns].set(value, mode="drop") for a, value in zip(kept, values, strict=True))


# Hot rows beside a state: looked up and learnt on every device.


def lookup_hot(
    held: HotState, entries: Mapping[str, HotEntries], activations: Mapping[str, Any], stacking: Stacking
) -> dict[str, jax.Array]:
    """Activations of a lookup without the hot ids, with these added."""
    whole = dict(activations)
    for feature in stacking.features:
        if feature.name in entries:
            part, cold = entries[feature.name], whole[feature.name]
            vectors = held.rows[feature.table.name][part.rows, : feature.table.width] * part.gains[:, None]
            cold = cold if part.shares is None else cold * part.shares[:, None]
            whole[feature.name] = cold.at[part.samples].add(vectors, mode="drop")
    return whole


def update_hot(
    state: EmbeddingState,
    held: HotState,
    entries: Mapping[str, HotEntries],
    gradients: Mapping[str, Any],
    axis: str | None = None,
) -> tuple[HotState, dict[str, Any]]:
    """The hot rows after one step of their optimizers, and the gradients for the update of all others.

    ``state``: before that update, for its count of steps. Gradients of a row are summed over samples and features,
    and over the devices of ``axis`` where there is one; rows nobody asked for stay as they are.
    """
    cold, rows, slots = dict(gradients), dict(held.rows), dict(held.slots)
    sums = {name: (jnp.zeros_like(values), jnp.zeros(len(values), jnp.float32)) for name, values in held.rows.items()}
    for feature in state.stacking.features:
        if feature.name not in entries:
            continue
        part, gradient = entries[feature.name], jnp.asarray(gradients[feature.name])
        there = part.samples < len(gradient)
        own = gradient.at[part.samples].get(mode="fill", fill_value=0) * part.gains[:, None]
        total, asked = sums[feature.table.name]
        padded = jnp.pad(own, ((0, 0), (0, total.shape[1] - own.shape[1])))
        sums[feature.table.name] = total.at[part.rows].add(padded), asked.at[part.rows].add(there)
        if part.shares is not None:
            cold[feature.name] = gradient * part.shares[:, None]
    for name, (total, asked) in sums.items():
        place = state.stacking.tables[name]
        optimizer = place.table.optimizer
        if axis is not None:  # summed over all devices
            total, asked = jax.lax.psum((total, asked), axis)  # type: ignore[no-untyped-call]
        seen = place.table.width if by_row(optimizer) else total.shape[1]
        target = jnp.where(asked > 0, jnp.arange(len(asked)), len(asked))
        kept = (held.rows[name], *(held.slots[name][slot] for slot in optimizer.slots))
        rate = hyperparameters_at(optimizer, state.step)
        rows[name], *fresh = _applied(optimizer, kept, target, total[:, :seen], rate)
        slots[name] = dict(zip(optimizer.slots, fresh, strict=True))
    return HotState(rows, slots), cold


# XLA: kernels of our own on CPU, its own operations elsewhere.


def _by_platform(operands: Sequence[jax.Array], on_cpu: Any, elsewhere: Any) -> Any:
    return jax.lax.platform_dependent(*operands, cpu=on_cpu, default=elsewhere)


def _call(target: str, shapes: list[Any], operands: tuple[Any, ...], in_place: Any = None, **numbers: int) -> Any:
    axes: frozenset[str] = frozenset().union(*map(varying_axes, operands))
    operands = tuple(varying(value, axes) for value in operands)
    everywhere = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())  # type: ignore[no-untyped-call]
    varies = jax.typeof(operands[0]).manual_axis_type
    kind = {"manual_axis_type": varies, "sharding": everywhere} if axes else {}
    results = [jax.ShapeDtypeStruct(shape, jnp.float32, **kind) for shape in shapes]  # type: ignore[no-untyped-call]
    call = jax.ffi.ffi_call(target, results, vmap_method="sequential", input_output_aliases=in_place)
    attributes = {**numbers, "threads": thread_count()}
    return call(*operands, **{name: np.int64(value) for name, value in attributes.items()})


def varying_axes(value: jax.Array) -> frozenset[str]:
    """The axes of ``shard_map`` over which a value is known to vary."""
    return frozenset(jax.typeof(value).manual_axis_type.varying)


def varying(value: jax.Array, axes: frozenset[str]) -> jax.Array:
    """Inside ``shard_map`` every operand of a kernel must vary over the same axes."""
    missing = tuple(axes - varying_axes(value))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def _check_features(gradients: Mapping[str, Any], state: EmbeddingState) -> None:
    names = {feature.name for feature in state.stacking.features}
    if set(gradients) == names:
        return
    missing, unknown = sorted(names - set(gradients)), sorted(set(gradients) - names)
    problem = f"no gradient for {', '.join(missing)}" if missing else f"no feature called {', '.join(unknown)}"
    raise UsageError(problem, where="update", how="give one gradient for every feature")

"""A whole training step: sparse forward, dense forward and backward, sparse backward; in turn or pipelined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tilewright.embed.device.batch import DeviceBatch
from tilewright.embed.device.state import EmbeddingState, HotState, put_hot, take_hot
from tilewright.embed.device.step import lookup, lookup_hot, step_batch, update, update_hot
from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import HostBatch
from tilewright.embed.host.tables import HotEntries
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.errors import UsageError, check_known

Around = Callable[[str, str, Callable[[], Any]], Any]
"""Called with a lane, a phase's name and what does the phase; returns what that returns."""


def _plainly(lane: str, name: str, work: Callable[[], Any]) -> Any:
    return work()


def _split(*axes: str | None) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]


class Waiting(NamedTuple):
    """A batch on its way: behind the lookup its activations, behind the dense part their gradients."""

    batch: HostBatch | DeviceBatch
    vectors: dict[str, jax.Array]
    data: tuple[Any, ...]
    entries: Mapping[str, HotEntries]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Carry:
    """What one step hands to the next: a pytree.

    ``looked_up`` and ``differentiated`` are the batches that wait, pipelined, for the dense part and for the update;
    ``hot`` the rows that every device holds, whose homes in ``state`` are behind until :meth:`TrainStep.whole`.
    """

    params: Any
    optimizer_state: Any
    state: EmbeddingState
    looked_up: Waiting | None = None
    differentiated: Waiting | None = None
    hot: HotState = field(default_factory=lambda: HotState({}, {}))


@dataclass(frozen=True)
class TrainStep:
    """Steps of one model; made by :func:`train_step`, which says what its parts are."""

    gradients: Callable[..., Any]
    optimizer: Any
    pipelined: bool = False
    mesh: Mesh | None = None
    axis: str | None = None
    detect_nan: bool = False
    hot: Mapping[str, Longs] = field(default_factory=dict)

    def start(self, params: Any, state: EmbeddingState, donate: bool = False, optimizer_state: Any = None) -> Carry:
        """The carry before the first step. Steps work in place, on a copy; on the arrays given with ``donate``.

        ``optimizer_state``: that of the dense parameters, where a training goes on; None: a new one. Whatever devices
        the arrays are on, the carry's are where this step's mesh wants them.
        """
        if self.mesh is not None:
            params = jax.device_put(params, NamedSharding(self.mesh, _split()))
            state = jax.device_put(state, _spread(state, self.mesh, str(self.axis)))
        if not donate:
            params, state = jax.tree.map(jnp.copy, (params, state))
        init = self.optimizer.init if optimizer_state is None else lambda params: optimizer_state
        if self.mesh is None:
            return Carry(params, init(params), state, hot=take_hot(state, self.hot))
        everywhere = NamedSharding(self.mesh, _split())  # over processes, too, where a plain array would be local
        held = jax.jit(lambda state: take_hot(state, self.hot), out_shardings=everywhere)(state)
        if optimizer_state is None:
            optimizer_state = jax.jit(init, out_shardings=everywhere)(params)
        return Carry(params, jax.device_put(optimizer_state, everywhere), state, hot=held)

    def step(
        self,
        carry: Carry,
        host_batch: HostBatch | DeviceBatch,
        *data: Any,
        entries: Mapping[str, HotEntries] | None = None,
        around: Around = _plainly,
    ) -> tuple[Carry, jax.Array]:
        """The next carry and the loss of ``host_batch`` with its ``data`` (anything ``loss`` takes, sample by sample).

        Pipelined: the loss of the batch before, NaN at the first call. The carry given is used up. ``entries``: the
        batch's entries of hot rows, which :func:`split_hot` took out of it. ``around`` is called with every phase, to
        measure it.
        """
        batch, data, apart = self.place(step_batch(host_batch)), self.place(data), self.place(dict(entries or {}))
        vectors = around("sparse cores", "lookup", lambda: self._forward(carry.state, carry.hot, batch, apart))
        waiting = Waiting(batch, vectors, data, apart)
        if not self.pipelined:
            now, value, done = self._differentiated(carry, waiting, around)
            return self._updated(now, done, around), value
        now, finished = self._advanced(carry, waiting, around)
        return now, jnp.asarray(np.nan, jnp.float32) if finished is None else finished

    def drain(self, carry: Carry, around: Around = _plainly) -> tuple[Carry, list[jax.Array]]:
        """Finish the batches on their way, before an evaluation or a checkpoint; and the losses not yet returned."""
        losses = []
        while carry.looked_up is not None or carry.differentiated is not None:
            carry, value = self._advanced(carry, None, around)
            losses += [] if value is None else [value]
        return carry, losses

    def _advanced(self, carry: Carry, behind: Waiting | None, around: Around) -> tuple[Carry, jax.Array | None]:
        """The batches on their way one phase further, ``behind`` them the next one; the loss of the first, if any."""
        now, value = replace(carry, looked_up=behind, differentiated=None), None
        if carry.looked_up is not None:
            now, value, done = self._differentiated(now, carry.looked_up, around)
            now = replace(now, differentiated=done)
        if carry.differentiated is not None:
            now = self._updated(now, carry.differentiated, around)
        return now, value

    def finish(self, carry: Carry) -> tuple[Any, EmbeddingState]:
        """Parameters and state after the last step; pipelined, the two batches on their way are finished first."""
        carry = self.whole(self.drain(carry)[0])
        return carry.params, carry.state

    def whole(self, carry: Carry) -> Carry:
        """The carry with the hot rows in their tables as well, to be saved, evaluated or exported; training may go on
        with it."""
        return replace(carry, state=self._home(carry.state, carry.hot)) if self.hot else carry

    def place(self, tree: Any) -> Any:
        """Arrays of a batch where they are needed: with a mesh, their leading axis over it."""
        if self.mesh is None:
            return tree
        shardings = _spread(tree, self.mesh, str(self.axis))
        if jax.process_count() > 1:
            make: Any = jax.make_array_from_process_local_data
            return jax.tree.map(lambda sharding, part: make(sharding, np.asarray(part)), shardings, tree)
        return jax.device_put(tree, shardings)

    def _differentiated(self, carry: Carry, waiting: Waiting, around: Around) -> tuple[Carry, jax.Array, Waiting]:
        def dense() -> Any:
            return self._dense(carry.params, carry.optimizer_state, waiting.vectors, waiting.data)

        value, params, optimizer_state, gradients = around("tensor core", "forward and backward", dense)
        carry = replace(carry, params=params, optimizer_state=optimizer_state)
        return carry, value, Waiting(waiting.batch, gradients, (), waiting.entries)

    def _updated(self, carry: Carry, waiting: Waiting, around: Around) -> Carry:
        def update_tables() -> Any:
            return self._backward(carry.state, carry.hot, waiting.batch, waiting.entries, waiting.vectors)

        state, hot = around("sparse cores", "update", update_tables)
        return replace(carry, state=state, hot=hot)

    @cached_property
    def _dense(self) -> Any:
        import optax

        def dense(params: Any, optimizer_state: Any, vectors: Any, data: tuple[Any, ...]) -> Any:
            value, (gradient, of_vectors) = self.gradients(params, vectors, *data)
            if self.detect_nan:
                finite = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((gradient, of_vectors))]
                value = jnp.where(jnp.all(jnp.stack(finite)), value, jnp.nan)
            changes, optimizer_state = self.optimizer.update(gradient, optimizer_state, params)
            return value, optax.apply_updates(params, changes), optimizer_state, of_vectors

        return jax.jit(dense, donate_argnums=(0, 1))

    @cached_property
    def _forward(self) -> Any:
        return jax.jit(self._on_mesh(_look_up))

    @cached_property
    def _backward(self) -> Any:
        return jax.jit(self._on_mesh(_learn), donate_argnums=(0, 1))

    @cached_property
    def _home(self) -> Any:
        return jax.jit(lambda state, held: put_hot(state, held, self.hot))

    def _on_mesh(self, function: Any) -> Any:
        """``function(*arguments, axis)``; with a mesh on the shards of every device, hot rows whole on each."""
        if self.mesh is None:
            return function

        def specs(tree: Any) -> Any:
            def of(part: Any) -> PartitionSpec:
                return _split() if isinstance(part, HotState) or not np.ndim(part) else _split(self.axis)

            return jax.tree.map(of, tree, is_leaf=lambda part: isinstance(part, HotState))

        def mapped(state: EmbeddingState, held: HotState, *others: Any) -> Any:
            inputs = specs((state, held, *others))
            out = inputs[:2] if function is _learn else _split(self.axis)
            local = partial(function, axis=self.axis)
            return jax.shard_map(local, mesh=self.mesh, in_specs=inputs, out_specs=out)(state, held, *others)

        return mapped


def _look_up(state: EmbeddingState, held: HotState, batch: Any, entries: Any, axis: str | None = None) -> Any:
    """Activations of the tables' rows and of the hot ones."""
    cold = lookup(state, batch, axis=axis)
    return lookup_hot(held, _on_device(entries, cold, axis), cold, state.stacking)


def _learn(
    state: EmbeddingState, held: HotState, batch: Any, entries: Any, gradients: Any, axis: str | None = None
) -> tuple[EmbeddingState, HotState]:
    """Tables and hot rows after one step of their optimizers."""
    after, rest = update_hot(state, held, _on_device(entries, gradients, axis), gradients, axis)
    return update(state, batch, rest, axis=axis), after


def _on_device(entries: Mapping[str, HotEntries], values: Mapping[str, Any], axis: str | None) -> dict[str, HotEntries]:
    """The entries with their samples numbered from this device's first one; those of no sample stay beyond the last."""
    if axis is None:
        return dict(entries)
    own: Any = jax.lax.axis_index(axis)
    return {name: replace(part, samples=part.samples - own * len(values[name])) for name, part in entries.items()}


def _spread(tree: Any, mesh: Mesh, axis: str) -> Any:
    """Shardings of a state or a batch: leading axes over the axis, numbers such as the step's everywhere."""
    return jax.tree.map(lambda x: NamedSharding(mesh, _split(axis) if np.ndim(x) else _split()), tree)


def train_step(
    loss: Callable[..., Any],
    optimizer: Any,
    pipelined: bool = False,
    *,
    mesh: Mesh | None = None,
    axis: str | None = None,
    gradients: Callable[..., Any] | None = None,
    detect_nan: bool = False,
    sparsecore: SparseCoreConfig | None = None,
    hot: Mapping[str, Longs] | None = None,
) -> TrainStep:
    """A training step of a model with embedding tables.

    ``loss(params, activations, *data) -> scalar``; activations are {feature: f32[batch, width]}. ``optimizer``: an
    optax transformation of the dense parameters; every table has its own optimizer. ``mesh`` and ``axis``: batches and
    tables are split over that axis (devices of the topology in order), parameters are everywhere, the loss is that of
    the whole batch: results are those of one device.

    ``pipelined`` is what a TPU does unless ``disable_full_embedding_pipelining`` is set. At step i the SparseCores look
    up batch i and apply the gradients of batch i - 2, while the TensorCore works on batch i - 1; the lookup sees the
    tables as they were before that update. So n steps take n + 2, and gradients reach the tables two steps late.

    ``sparsecore``: the guide's knobs; ``disable_full_embedding_pipelining`` decides in place of ``pipelined``, and
    ``detect_nan`` is the one below.

    ``gradients(params, activations, *data) -> (loss, (of params, of activations))`` takes the place of
    ``jax.value_and_grad(loss, argnums=(0, 1))``, such as a rewritten one. ``detect_nan``: the loss of a step is NaN
    also where a gradient is not finite.

    ``hot``: table -> ids, rising (:func:`hot_rows`), that every device holds beside the tables: their entries leave the
    batch by :func:`split_hot` and are given to :meth:`TrainStep.step`; a :class:`Loop` does both. What comes out is
    what comes out without.

    >>> import optax, jax.numpy as jnp
    >>> from tilewright.embed import SGD, Feature, Table, Topology, from_tables, preprocess, stack, tables
    >>> stacking = stack([Feature("f", Table("t", 2, 1, optimizer=SGD(1.0)))], Topology(1, 1))
    >>> def loss(scale, activations):
    ...     return scale * activations["f"].sum()
    >>> one = train_step(loss, optax.sgd(0.0))
    >>> carry = one.start(jnp.float32(2), from_tables(stacking, {"t": [[10.0], [20.0]]}))
    >>> carry, value = one.step(carry, preprocess({"f": [[0], [0, 1]]}, stacking))
    >>> _, state = one.finish(carry)
    >>> float(value), tables(state)["t"].tolist()
    (80.0, [[6.0], [18.0]])
    """
    if (mesh is None) != (axis is None):
        raise UsageError("a mesh goes with the name of one of its axes", where="train_step", how="give both or none")
    if mesh is not None:
        check_known(axis, mesh.axis_names, f"the mesh has no axis {axis!r}", where="train_step")
    if sparsecore is not None:
        pipelined, detect_nan = not sparsecore.disable_full_embedding_pipelining, detect_nan or sparsecore.detect_nan
    if gradients is None:
        gradients = jax.value_and_grad(loss, argnums=(0, 1))
    return TrainStep(gradients, optimizer, pipelined, mesh, axis, detect_nan, dict(hot or {}))

"""jax-tpu-embedding, unmodified, on eight virtual CPU devices: ``python -m tests.embed.peer_package CASE``.

Every case compares what the package computes through our rules with plain numpy, and with our own lookup and update.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tilewright import embed
from tilewright.embed import tpu_embedding
from tilewright.embed.logs.exchange import FDO_SUFFIXES
from tilewright.embed.model.specs import as_feature
from tilewright.errors import UnsupportedError, UsageError

PER_DEVICE = 4


def package():
    """The parts of jax-tpu-embedding that the cases use."""
    from jax_tpu_embedding.sparsecore.lib.nn import embedding, embedding_spec
    from jax_tpu_embedding.sparsecore.utils import utils

    return SimpleNamespace(api=embedding, spec=embedding_spec, utils=utils)


class Model:
    """Three tables (padded widths 8, 8, 16), four features, drawn ids with repeats; SGD unless told otherwise."""

    def __init__(self, peer, devices=1, optimizer=None, stacked=True, samples=16, limit=64, weighted=False, **table):
        self.peer, self.devices, self.samples = peer, devices, samples * devices
        self.random = np.random.default_rng(devices)
        optimizer = optimizer or peer.spec.SGDOptimizerSpec(learning_rate=0.5)
        sizes = (("a", 100, 6, "sum"), ("b", 64, 12, "mean"), ("c", 50, 5, "sum"))
        specs = {
            name: peer.spec.TableSpec(
                name=name,
                vocabulary_size=vocab,
                embedding_dim=width,
                combiner=combiner,
                optimizer=optimizer,
                initializer=jax.nn.initializers.normal(),
                max_ids_per_partition=limit,
                max_unique_ids_per_partition=limit,
                **table,
            )
            for name, vocab, width, combiner in sizes
        }
        self.features = {
            name: peer.spec.FeatureSpec(
                name=name,
                table_spec=specs[of],
                input_shape=[self.samples, 1],
                output_shape=[self.samples, specs[of].embedding_dim],
            )
            for name, of in (("w", "a"), ("x", "a"), ("y", "b"), ("z", "c"))
        }
        if stacked:
            peer.api.auto_stack_tables(
                self.features,
                devices,
                stack_to_max_ids_per_partition=lambda *_: limit,
                stack_to_max_unique_ids_per_partition=lambda *_: limit,
            )
        peer.api.prepare_feature_specs_for_training(self.features, devices)
        self.tables = {
            name: self.random.integers(-4, 5, (spec.vocabulary_size, spec.embedding_dim)).astype(np.float32)
            for name, spec in specs.items()
        }
        self.specs, self.optimizer = specs, optimizer
        self.ids = {
            name: self.ragged(lambda n, vocab=feature.table_spec.vocabulary_size: self.random.integers(0, vocab, n))
            for name, feature in self.features.items()
        }
        self.weights = None
        if weighted:
            self.weights = {
                name: np.array([np.float32(self.random.integers(1, 4, len(row))) for row in rows], dtype=object)
                for name, rows in self.ids.items()
            }

    def ragged(self, draw):
        rows = np.empty(self.samples, dtype=object)
        rows[:] = [draw(n).astype(np.int32) for n in self.random.integers(1, 6, self.samples)]
        return rows

    def inputs(self, **options):
        return self.peer.api.preprocess_sparse_dense_matmul_input(
            self.ids, self.weights, self.features, self.devices, self.devices, **options
        )

    @property
    def mesh(self):
        return Mesh(np.array(jax.devices()[: self.devices]), ("x",))

    def place(self, table):
        """Of every row: its shard and its row there."""
        setting, row, shards = table.setting_in_stack, np.arange(table.vocabulary_size), self.devices * PER_DEVICE
        return (row % shards + setting.shard_rotation) % shards, row // shards + setting.row_offset_in_shard

    def variables(self, leading=False):
        found, shards = {}, self.devices * PER_DEVICE
        for name, spec in self.peer.api.get_stacked_table_specs(self.features).items():
            rows = np.zeros((shards, spec.stack_vocab_size // shards, spec.stack_embedding_dim), np.float32)
            for table in self.specs.values():
                if table.setting_in_stack.stack_name == name:
                    rows[(*self.place(table), slice(table.embedding_dim))] = self.tables[table.name]
            shape = (self.devices, -1, rows.shape[-1]) if leading else (-1, rows.shape[-1])
            rows = jnp.asarray(rows.reshape(shape))
            slots = tuple(make(jax.random.key(0), rows.shape) for make in self.optimizer.slot_variables_initializers())
            found[name] = self.peer.api.EmbeddingVariables(table=rows, slot=slots)
        return found

    def logical(self, variables, slot=None):
        """{table: rows} out of stacked variables."""
        found = {}
        for name, table in self.specs.items():
            kept = variables[table.setting_in_stack.stack_name]
            array = np.asarray(kept[0] if slot is None else kept[1][slot])
            array = array.reshape(self.devices * PER_DEVICE, -1, array.shape[-1])
            found[name] = array[self.place(table)][:, : table.embedding_dim]
        return found

    def gains(self, name):
        """(sample, id, gain) of every entry."""
        mean = self.features[name].table_spec.combiner == "mean"
        for sample, ids in enumerate(self.ids[name]):
            weights = np.ones(len(ids), np.float32) if self.weights is None else self.weights[name][sample]
            for i, weight in zip(ids, weights):
                yield sample, i, weight / weights.sum() if mean else weight

    def expected(self, seen=lambda rows: rows):
        found = {}
        for name, feature in self.features.items():
            found[name] = np.zeros((self.samples, feature.table_spec.embedding_dim))
            for sample, i, gain in self.gains(name):
                found[name][sample] += gain * seen(self.tables[feature.table_spec.name])[i]
        return found

    def gradients(self):
        return {
            name: self.random.integers(-2, 3, (self.samples, feature.table_spec.embedding_dim)).astype(np.float32)
            for name, feature in self.features.items()
        }

    def summed(self, gradients):
        """{table: (gradient of every row, which rows are touched)}."""
        found = {name: (np.zeros(rows.shape), np.zeros(len(rows), bool)) for name, rows in self.tables.items()}
        for name, feature in self.features.items():
            total, touched = found[feature.table_spec.name]
            for sample, i, gain in self.gains(name):
                total[i] += gain * gradients[name][sample]
                touched[i] = True
        return found

    def run(self, function, *arguments, vma=False, **options):
        """Under jit and shard_map, on all devices of the model."""
        call = partial(function, feature_specs=self.features, global_device_count=self.devices, **options)
        specs = tuple(P("x") for _ in arguments)
        mapped = jax.shard_map(call, mesh=self.mesh, in_specs=specs, out_specs=P("x"), check_vma=vma)
        return jax.jit(mapped)(*arguments)

    def lookup(self, inputs, variables, **options):
        return self.run(self.peer.api.tpu_sparse_dense_matmul, inputs, variables, **options)

    def update(self, gradients, inputs, variables, **options):
        return self.run(self.peer.api.tpu_sparse_dense_matmul_grad, gradients, inputs, variables, **options)

    def ours(self):
        """The same tables and ids as a state and a batch of ours."""
        topology = embed.Topology(self.devices, PER_DEVICE)
        plan = embed.stack(list(self.features.values()), topology, batch_size=self.samples)
        batch = {name: [rows.tolist() for rows in ids] for name, ids in self.ids.items()}
        return embed.from_tables(plan, self.tables), embed.preprocess(batch, plan)


def close(found, expected, **tolerance):
    assert set(found) == set(expected)
    for name, value in expected.items():
        tight = {"rtol": 1e-6, "atol": 1e-6} | tolerance
        np.testing.assert_allclose(np.asarray(found[name]).reshape(value.shape), value, **tight, err_msg=name)


def lookups(peer):
    """Stacked and not, one device and eight, with weights, quantisation, mini-batches, under every transformation."""
    for devices, options in ((1, {"stacked": False}), (8, {}), (2, {"weighted": True})):
        model = Model(peer, devices, **options)
        inputs, variables = model.inputs()[0], model.variables()
        for primitive in (False, True):
            found = model.lookup(inputs, variables, use_activation_unstack_primitive=primitive)
            close(found, model.expected())
    state, batch = Model(peer, 8).ours()
    close(model_found(peer), embed.lookup(state, batch))

    model = Model(peer)
    call = partial(peer.api.tpu_sparse_dense_matmul, feature_specs=model.features, global_device_count=1)
    inputs, variables = model.inputs()[0], model.variables()
    close(call(inputs, variables), model.expected())  # eagerly, as it stands
    close(jax.jit(call)(inputs, variables), model.expected())
    stacks = call(inputs, variables, perform_unstacking=False)
    parts = peer.api.unstack_embedding_activations(stacks, model.features, 1, PER_DEVICE)
    close(parts, model.expected())

    model = Model(peer, 2)
    inputs, variables = model.inputs(has_leading_dimension=True)[0], model.variables(leading=True)
    call = partial(peer.api.tpu_sparse_dense_matmul, feature_specs=model.features, global_device_count=2)
    close(jax.pmap(call, devices=jax.devices()[:2])(inputs, variables), model.expected())

    levels = peer.spec.QuantizationConfig(min_value=-2.0, max_value=2.0, num_buckets=3)
    model = Model(peer, 2, quantization_config=levels)
    found = model.lookup(model.inputs()[0], model.variables(), vma=True)
    call = partial(peer.api.tpu_sparse_dense_matmul, feature_specs=model.features, global_device_count=2)
    one = Model(peer, quantization_config=levels)
    compiled = jax.jit(partial(call, feature_specs=one.features, global_device_count=1)).lower(
        one.inputs()[0], one.variables()
    )
    assert "u8[" in compiled.compile().as_text()
    close(found, model.expected(lambda rows: np.round((np.clip(rows, -2, 2) + 2) / 2) * 2 - 2))


def model_found(peer):
    model = Model(peer, 8)
    return model.lookup(model.inputs()[0], model.variables())


def minibatches(peer):
    """Several mini-batches: 8 devices and 1, forward and back, on buffers of the package's C++."""
    for devices, samples, limit in ((1, 128, 20), (8, 256, 16)):
        model = Model(peer, devices, limit=limit, samples=samples)
        inputs, _ = model.inputs(enable_minibatching=True)
        assert int(inputs.num_minibatches[0]) > 1, inputs.num_minibatches
        variables = model.variables()
        close(model.lookup(inputs, variables, enable_minibatching=True), model.expected())
        gradients = model.gradients()
        after = model.logical(model.update(gradients, inputs, variables, enable_minibatching=True))
        summed = model.summed(gradients)
        close(after, {name: rows - 0.5 * summed[name][0] for name, rows in model.tables.items()}, atol=1e-5)


def optimizer_step(kind, rows, slots, gradient, touched, step):
    """The package's formulas in float64: new rows and slots of the touched rows."""
    rate, name, g = 0.5 / (step + 1), kind.short_name(), gradient
    first = {
        "adagrad": (0.1,), "adagrad_momentum": (0.1, 0), "adam": (0, 0), "ftrl": (0.1, 0), "laprop": (0, 0),
        "f2a": (0.1, 0),
    }.get(name, ())  # fmt: skip
    slots = slots or tuple(np.full(rows.shape, float(start)) for start in first)
    if name == "sgd":
        new, after = rows - rate * g, ()
    elif name == "adagrad":
        after = (slots[0] + g * g,)
        new = rows - rate * g / np.sqrt(after[0])
    elif name == "adagrad_momentum":
        kept = 0.9 * slots[0] + 0.1 * g * g
        scaled = g * (kept + 1e-10) ** -0.5
        after = kept, 0.9 * slots[1] + scaled
        new = rows - rate * (0.9 * after[1] + scaled)
    elif name == "adam":
        after = 0.9 * slots[0] + 0.1 * g, 0.999 * slots[1] + 0.001 * g * g
        correction = np.sqrt(1 - 0.999 ** (step + 1))
        new = rows - rate * correction / (1 - 0.9 ** (step + 1)) * after[0] / (np.sqrt(after[1]) + 1e-8 * correction)
    elif name == "ftrl":
        kept = slots[0] + g * g
        linear = slots[1] + rate * g - (np.sqrt(kept) - np.sqrt(slots[0])) * rows
        after, bound = (kept, linear), 0.1 * rate
        new = (np.clip(linear, -bound, bound) - linear) / np.sqrt(kept)
    elif name == "laprop":
        decay = 0.95 * (1 - 0.95**step) / (1 - 0.95 ** (step + 1))
        squares = decay * slots[1] + (1 - decay) * (g * g + 1e-30)
        after = 0.9 * slots[0] + np.sqrt(1 - 0.9**2) * g / np.sqrt(squares), squares
        new = rows - rate * after[0]
    else:
        seen, kept = slots[1] + 1, slots[0] + g * g
        boost = np.minimum(np.sqrt(max(step, 1) / seen), 1e6)
        after = kept, seen
        new = rows - rate * (g * boost / np.sqrt(kept) + 0.01 * rows)
    chosen = touched[:, None]
    return np.where(chosen, new, rows), tuple(np.where(chosen, a, b) for a, b in zip(after, slots))


class Falling:
    """A learning rate that falls with the step."""

    def __call__(self, step):
        return 0.5 / (step + 1)


def optimizers(peer):
    """Every optimizer, two steps with a schedule, on 2 devices: against float64 formulas, and against ours."""
    spec = peer.spec
    kinds = (
        spec.SGDOptimizerSpec(Falling()),
        spec.AdagradOptimizerSpec(Falling()),
        spec.AdagradMomentumOptimizerSpec(Falling(), use_nesterov=True, beta2=0.9),
        spec.AdamOptimizerSpec(Falling()),
        spec.FTRLOptimizerSpec(Falling(), l1_regularization_strength=0.1, multiply_linear_by_learning_rate=True),
        spec.LaPropOptimizerSpec(Falling()),
        spec.F2AOptimizerSpec(Falling(), l2_regularization_strength=0.01),
    )
    for kind in kinds:
        model = Model(peer, 2, kind)
        inputs, variables = model.inputs()[0], model.variables()
        state, batch = model.ours()
        expected, slots = dict(model.tables), dict.fromkeys(model.tables)
        for step in range(2):
            gradients = model.gradients()
            primitive = step == 1
            variables = model.update(gradients, inputs, variables, step=step, use_gradient_stacking_primitive=primitive)
            state = embed.update(state, batch, gradients)
            for name, (total, touched) in model.summed(gradients).items():
                after, slots[name] = optimizer_step(kind, expected[name], slots[name], total, touched, step)
                expected[name] = after
        found = model.logical(variables)
        close(found, expected, rtol=2e-4, atol=2e-4)
        close(found, embed.tables(state), rtol=1e-5, atol=1e-5)


def limits(peer):
    """``embedding_var_limits`` clip the new rows of every touched row, and only these."""
    for kind in (peer.spec.SGDOptimizerSpec(0.5), peer.spec.AdamOptimizerSpec(0.5)):
        model = Model(peer, 2, kind)
        bounds = dict.fromkeys(model.variables(), (-1.0, None))
        inputs, variables, gradients = model.inputs()[0], model.variables(), model.gradients()
        free = model.logical(model.update(gradients, inputs, variables, step=0))
        after = model.logical(model.update(gradients, inputs, variables, step=0, embedding_var_limits=bounds))
        for name, (_, touched) in model.summed(gradients).items():
            assert np.array_equal(after[name], np.where(touched[:, None], np.maximum(free[name], -1), free[name]))


def custom(peer):
    """Custom optimizers: a function element by element, one over whole rows, StableHLO text, each with bounds."""

    def momentum(gradient, row, kept, rate):
        kept = 0.5 * kept + gradient
        return row - rate * kept, kept

    def normalised(gradient, row, rate):
        return row - rate * gradient / (1 + jnp.sqrt(jnp.sum(gradient * gradient)))

    row = jax.ShapeDtypeStruct((1, 8), jnp.float32)
    text = jax.jit(lambda gradient, row, rate: row - rate * jnp.sign(gradient)).lower(row, row, row).as_text()
    zeros = (jax.nn.initializers.zeros,)
    kinds = {
        "momentum": {"custom_computation_fn": momentum, "slot_variable_initializers_tuple": zeros},
        "normalised": {"custom_computation_fn": normalised},
        "text": {"stablehlo": text},
    }
    for name, arguments in kinds.items():
        bounds = (-3.0, 3.0) if name != "normalised" else (None, None)
        kind = peer.spec.CustomOptimizerSpec(0.5, **arguments)
        model = Model(peer, 2, kind, stacked=False)
        if name == "text":
            del model.features["y"], model.specs["b"]  # the text is for rows of 8
        inputs, variables, gradients = model.inputs_of_features(), model.variables(), model.gradients()
        every = dict.fromkeys(variables, bounds)
        after = model.logical(model.update(gradients, inputs, variables, step=0, embedding_var_limits=every))
        for table in model.specs:
            total, touched = model.summed(gradients)[table]
            rows = model.tables[table]
            if name == "momentum":
                moved = rows - 0.5 * total
            elif name == "text":
                moved = rows - 0.5 * np.sign(total)
            else:
                moved = rows - 0.5 * total / (1 + np.sqrt((total * total).sum(1, keepdims=True)))
            moved = np.clip(moved, *bounds) if bounds[0] is not None else moved
            np.testing.assert_allclose(after[table], np.where(touched[:, None], moved, rows), rtol=1e-5, atol=1e-5)


def by_hand(peer):
    """The primitives themselves: tables of one axis, buffers with room for two mini-batches, a buffer too small."""
    from jax_tpu_embedding.sparsecore.lib.core import input_preprocessing
    from jax_tpu_embedding.sparsecore.lib.core.primitives import (
        sparse_dense_matmul_csr,
        sparse_dense_matmul_grad_with_adagrad,
        sparse_dense_matmul_grad_with_sgd,
    )

    ids = np.random.default_rng(3).permutation(32)[:, None].astype(np.int32)
    weights, mesh = np.ones(ids.shape, np.float32), Mesh(np.array(jax.devices()[:1]), ("x",))
    bounds = {"max_ids_per_partition": 16, "max_unique_ids_per_partition": 16}
    buffers = input_preprocessing.preprocess_sparse_dense_matmul_input(ids, weights, mesh, **bounds)
    look = sparse_dense_matmul_csr.tpu_sparse_dense_matmul_csr_primitive.bind
    table = np.arange(32, dtype=np.float32)
    sharded = peer.utils.shard_emb_table(table[:, None], num_devices=1, num_sc_per_device=PER_DEVICE)[0][:, 0]
    found = look(*buffers, np.int32(1), sharded, device_batch_size=32, sharding_strategy=1, **bounds)
    assert found.shape == (32,)
    assert np.array_equal(found, table[ids[:, 0]])
    gradient = np.ones((32, 1), np.float32)
    step = sparse_dense_matmul_grad_with_sgd.tpu_sparse_dense_matmul_grad_with_sgd_primitive.bind
    after = step(*buffers, np.int32(1), sharded, gradient, np.float32(0.5), computation_name="s", **bounds)
    assert np.array_equal(after, sharded - 0.5)

    first, second = [[i] for i in range(16)], [[i] for i in range(16, 32)]
    halves = input_preprocessing.preprocess_sparse_dense_matmul_input(
        [first, second], [[[1.0]] * 16] * 2, mesh, enable_minibatching=True, **bounds
    )
    rows = peer.utils.shard_emb_table(np.repeat(table[:, None], 8, 1), num_devices=1, num_sc_per_device=PER_DEVICE)[0]
    found = look(
        *halves, np.int32(2), rows, device_batch_size=16, enable_minibatching=True, sharding_strategy=1, **bounds
    )
    assert np.array_equal(found, np.repeat((2 * table[:16] + 16)[:, None], 8, 1))
    step = sparse_dense_matmul_grad_with_adagrad.tpu_sparse_dense_matmul_grad_with_adagrad_primitive.bind
    ones = np.ones((16, 8), np.float32)
    after, kept = step(
        *halves, np.int32(2), rows, rows * 0 + 3, ones, np.float32(1), enable_minibatching=True,
        computation_name="a", **bounds,
    )  # fmt: skip
    assert np.array_equal(kept, rows * 0 + 4)
    assert np.array_equal(after, rows - 0.5)

    model = Model(peer, stacked=False, suggested_coo_buffer_size_per_device=32)  # 8 slots a source: the rest is lost
    inputs, stats = model.inputs()
    assert stats.required_buffer_size_per_sc["a"].max() > 8
    found = model.lookup(inputs, {k: v._replace(table=v.table * 0 + 1) for k, v in model.variables().items()})
    kept = np.nansum(inputs.lhs_gains["a"])
    assert sum(np.asarray(found[name])[:, 0].sum() for name in ("w", "x")) == kept > 0


def meshes(peer):
    """Tables over one axis of two, and over both; a number of SparseCores given by hand; wrong ones refused."""
    model = Model(peer, 2)
    inputs, variables = model.inputs()[0], model.variables()
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    call = partial(peer.api.tpu_sparse_dense_matmul, feature_specs=model.features, global_device_count=2)
    over = jax.shard_map(call, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P("data"), check_vma=False)
    close(jax.jit(over)(inputs, variables), model.expected())
    model = Model(peer, 8)
    call = partial(peer.api.tpu_sparse_dense_matmul, feature_specs=model.features, global_device_count=8)
    both = P(("data", "model"))
    over = jax.shard_map(call, mesh=mesh, in_specs=(both, both), out_specs=both, check_vma=False)
    close(jax.jit(over)(model.inputs()[0], model.variables()), model.expected())

    square = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    model = Model(peer, 2)
    call = partial(peer.api.tpu_sparse_dense_matmul, feature_specs=model.features, global_device_count=2)
    over = jax.shard_map(call, mesh=square, in_specs=(P("a"), P("a")), out_specs=P("a"), check_vma=False)
    try:
        jax.jit(over)(model.inputs()[0], model.variables())
    except Exception as error:
        assert "over ('a',) or ('b',)?" in str(error), error
    else:
        raise AssertionError("axes of one size were not refused")
    model = Model(peer, 8)
    try:
        jax.jit(partial(call, feature_specs=model.features))(model.inputs()[0], model.variables())
    except UsageError as error:
        assert "row pointers" in str(error)
    else:
        raise AssertionError("buffers of eight devices were looked up on one")


def platforms(peer):
    """For a GPU nothing but XLA's own operations; for a TPU the package's calls, as before."""
    model = Model(peer, 1)
    call = partial(peer.api.tpu_sparse_dense_matmul, feature_specs=model.features, global_device_count=1)
    traced = jax.jit(call).trace(model.inputs()[0], model.variables())
    assert "custom_call" not in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "SparseDenseMatmul" in traced.lower(lowering_platforms=("tpu",)).as_text()


def pipelining(peer):
    """The package's auto-pipelining: every step's loss sees tables two steps late, the last tables have all updates."""
    from jax_tpu_embedding.sparsecore.lib.auto_pipelining import auto_pipelining

    model = Model(peer, 2)
    inputs, variables = model.inputs()[0], model.variables()
    weights = [model.gradients() for _ in range(4)]
    over = partial(jax.shard_map, mesh=model.mesh, out_specs=P("x"), check_vma=False)
    stacks = list(variables)

    def step(carry, inputs, given):
        looked, grads = {}, {}
        buffers = inputs.sparse_dense_matmul_input
        for name in stacks:
            features = {k: f for k, f in model.features.items() if f.table_spec.stacked_table_spec.stack_name == name}
            own = peer.api.PreprocessedInput(
                peer.api.SparseDenseMatmulInput(*({name: part[name]} for part in buffers)), inputs.num_minibatches
            )
            options = {"feature_specs": features, "global_device_count": 2}
            look = over(partial(peer.api.tpu_sparse_dense_matmul, **options), in_specs=(P("x"), P("x")))
            looked |= look(own, {name: carry[name]})
            grads[name] = options, own
        loss = sum((looked[name] * given[name]).sum() for name in model.features)
        fresh = {}
        for name in stacks:
            options, own = grads[name]
            back = over(partial(peer.api.tpu_sparse_dense_matmul_grad, perform_stacking=False, **options),
                        in_specs=(P("x"), P("x"), P("x")))  # fmt: skip
            cotangent = {k: given[k] for k in options["feature_specs"]}
            stack = partial(peer.api.stack_embedding_gradients, feature_specs=options["feature_specs"],
                            num_sc_per_device=PER_DEVICE)  # fmt: skip
            stacked = over(stack, in_specs=(P("x"),))(cotangent)
            fresh |= back(stacked, own, {name: carry[name]})
        return fresh, loss

    piped = auto_pipelining.auto_pipelining(step, out_shardings=None)
    state, losses, carry = auto_pipelining.init_state(), [], variables
    for given in weights:
        state, (carry, loss) = piped(state, carry, inputs, given)
        losses.append(loss)
    state, (carry, loss) = auto_pipelining.finalize_pipelining(piped, state, carry)
    losses.append(loss)
    seen, tables, expected = [], dict(model.tables), []
    for given in weights:
        seen.append({name: rows.copy() for name, rows in tables.items()})
        for name, (total, _) in model.summed(given).items():
            tables[name] = tables[name] - 0.5 * total
    for k, given in enumerate(weights):
        model.tables = seen[max(k - 1, 0)]  # what step k looks up has the updates of the steps before the last
        activations = model.expected()
        expected.append(sum((activations[name] * given[name]).sum() for name in activations))
    np.testing.assert_allclose(losses[1:], expected, rtol=1e-5)
    close(model.logical(carry), tables, rtol=1e-5, atol=1e-4)


def statistics(peer):
    """Files of the package's FDO clients are read without loss, and ours by its clients."""
    from jax_tpu_embedding.sparsecore.lib.fdo import csv_file_fdo_client, file_fdo_client

    model = Model(peer, 2)
    _, stats = model.inputs()
    clients = (
        lambda folder: file_fdo_client.NPZFileFDOClient(folder),
        lambda folder: csv_file_fdo_client.CSVFileFDOClient(folder, retain_history=True),
    )
    for make, suffix in zip(clients, (".npz", ".csv")):
        folder = Path(tempfile.mkdtemp())
        client = make(folder)
        for _ in range(3):
            client.record(stats)
        client.publish()
        read = embed.read_fdo(folder)
        loaded = make(folder).load()
        for kind in FDO_SUFFIXES:
            theirs = getattr(loaded, kind)
            assert getattr(read, kind).keys() == theirs.keys()
            for name, values in theirs.items():
                np.testing.assert_array_equal(getattr(read, kind)[name], values)
        other = Path(tempfile.mkdtemp())
        read.write(other / f"fdo_stats_0_1{suffix}")
        again = make(other).load()
        for kind in FDO_SUFFIXES:
            for name, values in getattr(again, kind).items():
                np.testing.assert_array_equal(values, getattr(read, kind)[name])
        peer.api.update_preprocessing_parameters(model.features, again, PER_DEVICE)
        for name, limits in read.limits().items():
            spec = peer.api.get_stacked_table_specs(model.features)[name]
            assert vars(limits) == {knob: getattr(spec, knob) for knob in vars(limits)}


def specs(peer):
    """A stacking of ours as its specs: the same buffers to the bit, and back again the same tables."""

    @dataclass(frozen=True)
    class Halving:
        learning_rate: float = 0.5
        slots = MappingProxyType({"seen": 0.0})

        def apply(self, rows, slots, gradient, rate):
            return rows - rate * gradient / 2, {"seen": slots["seen"] + 1}

    kinds = (
        embed.SGD(0.5), embed.Adagrad(0.5, 0.3), embed.AdagradMomentum(0.5, use_nesterov=True), embed.Adam(0.5, b1=0.8),
        embed.FTRL(0.5, l1_regularization=0.1), embed.LaProp(0.5, epsilon=1e-20), embed.F2A(0.5), Halving(),
    )  # fmt: skip
    random = np.random.default_rng(0)
    sizes = {"x": 64, "y": 128, "z": 64}
    for kind in kinds:
        levels = embed.Quantization(-1.0, 1.0, 9)
        a, b = (embed.Table(n, v, w, "mean", kind, None, levels) for n, v, w in (("b", 90, 12), ("a", 40, 16)))
        plan = embed.stack([embed.Feature(*pair) for pair in (("z", a), ("x", b), ("y", a))], embed.Topology(2, 4))
        limits = {name: embed.Limits(40, 30) for name in plan.stacks}
        made = embed.as_specs(plan, sizes, limits)
        assert list(made) == ["z", "x", "y"]
        ids = {
            n: random.integers(0, f.table_spec.vocabulary_size, (sizes[n], 3)).astype(np.int32) for n, f in made.items()
        }
        theirs, _ = peer.api.preprocess_sparse_dense_matmul_input(ids, None, made, 2, 2)
        ours = embed.preprocess(ids, plan)
        for name in plan.stacks:
            pointers = ours.row_pointers[name].reshape(-1)
            assert np.array_equal(theirs.lhs_row_pointers[name], pointers)
            for source in range(8):
                slots = len(theirs.lhs_gains[name]) // 8
                end = pointers[source * 8 + 7]
                mine = ours.gains[name].reshape(8, -1)[source, :end]
                assert np.array_equal(theirs.lhs_gains[name].reshape(8, slots)[source, :end], mine, equal_nan=True)
            spec = peer.api.get_stacked_table_specs(made)[name]
            assert (spec.max_ids_per_partition, spec.max_unique_ids_per_partition) == (40, 30)
        for feature in plan.features:
            back = as_feature(made[feature.name]).table
            assert (back.vocab, back.width, back.combiner) == (feature.table.vocab, feature.table.width, "mean")
            assert back.quantization == levels
            assert kind == back.optimizer or isinstance(kind, Halving)
    for refused in (embed.Clipped(embed.SGD(0.5), 0, 1), embed.RowwiseAdagrad(0.5)):
        plan = embed.stack([embed.Feature("x", embed.Table("a", 40, 16, optimizer=refused))], embed.Topology(1, 4))
        try:
            embed.as_specs(plan, {"x": 16})
        except UnsupportedError as error:
            assert "optimizer of table 'a'" in str(error)
        else:
            raise AssertionError(refused)


def layers(peer):
    """The package's Flax layers, linen and nnx: initial tables, lookup, and the update that their gradient is."""
    from flax import nnx
    from jax_tpu_embedding.sparsecore.lib.flax.linen import embed as linen
    from jax_tpu_embedding.sparsecore.lib.flax.nnx import embed as nnx_embed

    model = Model(peer, 8)
    inputs = model.inputs()[0]
    layer = linen.SparseCoreEmbed(feature_specs=model.features, sharding_axis="x", _mesh=model.mesh)
    start = layer.init(jax.random.key(0), inputs)
    from flax.core import meta

    variables = meta.unbox(start)["params"]
    (held,) = variables.values()
    model.tables = model.logical(held)
    close(layer.apply(start, inputs), model.expected(), rtol=1e-5)
    gradients = model.gradients()

    def objective(start):
        found = layer.apply(start, inputs)
        return sum((found[name] * gradients[name]).sum() for name in found)

    (after,) = meta.unbox(jax.grad(objective)(start))["params"].values()
    summed = model.summed(gradients)
    close(
        model.logical(after), {name: rows - 0.5 * summed[name][0] for name, rows in model.tables.items()}, rtol=1e-4,
        atol=1e-5,
    )  # fmt: skip

    layer = nnx_embed.SparseCoreEmbed(model.features, "x", model.mesh, nnx.Rngs(0))
    model.tables = model.logical(layer.embedding_table.get_value())
    close(layer(inputs), model.expected(), rtol=1e-5)


Model.inputs_of_features = lambda model: model.peer.api.preprocess_sparse_dense_matmul_input(
    {name: model.ids[name] for name in model.features}, None, model.features, model.devices, model.devices
)[0]
CASES = (
    lookups,
    minibatches,
    optimizers,
    limits,
    custom,
    by_hand,
    meshes,
    platforms,
    pipelining,
    layers,
    statistics,
    specs,
)


def main(names):
    tpu_embedding.install(PER_DEVICE)
    peer = package()
    for case in CASES:
        if case.__name__ in names or not names:
            case(peer)
            print("done:", case.__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

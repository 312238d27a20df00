"""The rules for jax-tpu-embedding's primitives, without the package: on buffers like its own, and stand-in primitives.

Its own code runs in test_peer_package.py, under Python 3.12.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

from tilewright.embed import (
    SGD,
    Adagrad,
    AdagradMomentum,
    Clipped,
    Feature,
    Limits,
    Table,
    Topology,
    from_tables,
    lookup,
    preprocess,
    stack,
    tpu_embedding,
    update,
)
from tilewright.embed.model.optimizers import hyperparameters_at
from tilewright.embed.tpu_embedding import primitives
from tilewright.embed.tpu_embedding.compute import Asked, Buffers, Unfused, layout_of
from tilewright.errors import UnsupportedError, UsageError

HOME = "jax_tpu_embedding.sparsecore"
NAMES = (
    "csr activation_unstack gradient_stack optimizer_grad grad_with_sgd grad_with_adagrad grad_with_adagrad_momentum "
    "grad_with_adam grad_with_ftrl grad_with_laprop grad_with_f2a"
)


def stand_in():
    """Modules by the package's names, with primitives that know their results' shapes and nothing else."""

    def module(name, **values):
        made = ModuleType(name)
        vars(made).update(values)
        return made

    made = {name: module(name) for name in ("jax_tpu_embedding", f"{HOME}.lib.core.primitives")}
    for word in NAMES.split():
        name = f"sparse_dense_matmul_{word}"
        primitive = Primitive(name)
        primitive.multiple_results = word not in ("csr", "gradient_stack", "grad_with_sgd")
        primitive.def_abstract_eval(KINDS[word])
        full = f"{HOME}.lib.core.primitives.{name}"
        made[full] = module(full, **{f"tpu_{name}_primitive": primitive})
    utils = {"NUM_SC_PER_DEVICE_MAP": {"TPU v5p": 4, "TPU v6e": 2}, "num_sparsecores_per_device": lambda device: 4}
    made[f"{HOME}.utils.utils"] = module("utils", embedding_table_format_with_sharding=lambda s: "tiled", **utils)
    called = {name: lambda num_sc_per_device=None, global_device_count=None: 0 for name in CALLS}
    made[f"{HOME}.lib.nn.embedding"] = module("embedding", **called)
    return made


CALLS = (
    "tpu_sparse_dense_matmul",
    "tpu_sparse_dense_matmul_grad",
    "unstack_embedding_activations",
    "stack_embedding_gradients",
)


def like(value, *shape):
    return jax.core.ShapedArray(shape or value.shape, jnp.float32)


def kept_of(slots):
    """A primitive whose results are the table and so many slots behind the five buffers."""
    one = slots == 0
    return lambda *operands, **_: like(operands[5]) if one else [like(part) for part in operands[5 : 6 + slots]]


KINDS = {
    "csr": lambda *operands, device_batch_size, **_: like(operands[5], device_batch_size, *operands[5].shape[1:]),
    "activation_unstack": lambda given, per_feature_batch_sizes, per_feature_dims: [
        like(given, size, width) for size, width in zip(per_feature_batch_sizes, per_feature_dims)
    ],
    "gradient_stack": lambda *given, stacked_batch_size, stacked_feature_dim: like(
        given[0], stacked_batch_size, stacked_feature_dim
    ),
    "optimizer_grad": lambda *operands, num_hyperparameters, **_: [
        like(part) for part in operands[6 + num_hyperparameters :]
    ],
    "grad_with_sgd": kept_of(0),
    "grad_with_adagrad": kept_of(1),
    **{f"grad_with_{name}": kept_of(2) for name in ("adagrad_momentum", "adam", "ftrl", "laprop", "f2a")},
}


def test_a_lookup_without_exchange_is_refused(monkeypatch):
    """Of packages newer than 0.2.0: the reason in place of jax's error on a missing rule."""
    made, name = stand_in(), "local_sparse_dense_matmul"
    primitive = Primitive(name)
    primitive.def_abstract_eval(lambda ids: like(ids))
    made[f"{HOME}.lib.core.primitives.{name}"] = ModuleType(name)
    vars(made[f"{HOME}.lib.core.primitives.{name}"])[f"tpu_{name}_primitive"] = primitive
    for module, stands_in in made.items():
        monkeypatch.setitem(sys.modules, module, stands_in)
    tpu_embedding.install(4)
    with pytest.raises(UnsupportedError, match="the primitive local_sparse_dense_matmul has no rule for CPU and GPU"):
        jax.jit(primitive.bind)(jnp.zeros(3))


@pytest.fixture
def bind(monkeypatch):
    """bind(word) -> the bind of a stand-in primitive, with rules for the CPU."""
    made = stand_in()
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    tpu_embedding.install(4)
    names = {word: f"sparse_dense_matmul_{word}" for word in NAMES.split()}
    return lambda word: getattr(made[f"{HOME}.lib.core.primitives.{names[word]}"], f"tpu_{names[word]}_primitive").bind


def plan_of(optimizer=None, devices=1):
    kind = optimizer or SGD(0.5)
    a, b = (Table(name, vocab, 8, optimizer=kind) for name, vocab in (("a", 90), ("b", 40)))
    return stack([Feature("x", a), Feature("y", b), Feature("z", a)], Topology(devices, 4))


def whole_numbers(plan, seed=0):
    random = np.random.default_rng(seed)
    rows = {n: random.integers(-4, 5, (p.table.vocab, p.table.width)) for n, p in plan.tables.items()}
    return from_tables(plan, {name: value.astype(np.float32) for name, value in rows.items()})


def batch_of(plan, samples=16, seed=0):
    random = np.random.default_rng(seed)
    return {
        f.name: [random.integers(0, f.table.vocab, n).tolist() for n in random.integers(0, 5, samples)]
        for f in plan.features
    }


def operands(host, name):
    """A device's buffers, as the primitives take them."""
    arrays = host.row_pointers, host.embedding_ids, host.sample_ids, host.gains
    return (*(np.asarray(of[name])[0] for of in arrays), np.int32(host.num_minibatches))


def most(host, name):
    """The limits that the buffers have room for."""
    slots = host.embedding_ids[name].shape[1] // (16 * (64 if host.minibatch_layout else 1))
    return {"max_ids_per_partition": slots, "max_unique_ids_per_partition": slots}


@pytest.mark.parametrize("limits", [None, 16])
def test_a_step_is_ours(bind, limits):
    plan = plan_of()
    (name,) = plan.stacks
    host = preprocess(batch_of(plan, 64), plan, limits and {name: Limits(limits, limits)})
    assert limits is None or host.num_minibatches > 1
    state = whole_numbers(plan)
    options = {"enable_minibatching": host.minibatch_layout, **most(host, name)}
    table = np.asarray(state.stacks[name]).reshape(-1, 8)
    found = jax.jit(lambda *given: bind("csr")(*given, device_batch_size=3 * 64, **options))(
        *operands(host, name), table
    )
    sizes = {"per_feature_batch_sizes": (64,) * 3, "per_feature_dims": (8,) * 3}
    parts = jax.jit(lambda given: bind("activation_unstack")(given, **sizes))(found)
    expected = lookup(state, host)
    for part, feature in zip(parts, plan.stacks[name].features):
        assert np.array_equal(part, expected[feature.name])

    random = np.random.default_rng(1)
    gradients = {f.name: random.integers(-2, 3, (64, 8)).astype(np.float32) for f in plan.features}
    in_order = [gradients[feature.name] for feature in plan.stacks[name].features]
    shape = {"stacked_batch_size": 3 * 64, "stacked_feature_dim": 8}
    stacked = jax.jit(lambda *given: bind("gradient_stack")(*given, **shape))(*in_order)
    step = jax.jit(lambda *given: bind("grad_with_sgd")(*given, min_value=-2.0, **options))
    after = step(*operands(host, name), table, stacked, np.float32(0.5))
    ours = np.asarray(update(state, host, gradients).stacks[name]).reshape(-1, 8)
    touched = (ours != table).any(1)
    assert np.array_equal(after[touched], np.maximum(ours, -2)[touched])


def test_what_the_operands_say(bind):
    """Nesterov's flag is an operand; hyper-parameters come from outside."""
    for nesterov in (False, True):
        plan = plan_of(AdagradMomentum(0.5, use_nesterov=nesterov))
        (name,) = plan.stacks
        host, state = preprocess(batch_of(plan), plan), whole_numbers(plan)
        gradients = {f.name: np.ones((16, 8), np.float32) for f in plan.features}
        rates = (*hyperparameters_at(plan.stacks[name].optimizer, 0), np.asarray(nesterov))
        kept = [np.asarray(value).reshape(-1, 8) for value in (state.stacks[name], *state.slots[name].values())]
        step = jax.jit(lambda *given, host=host: bind("grad_with_adagrad_momentum")(*given, **most(host, name)))  # noqa: B023
        after = step(*operands(host, name), *kept, np.ones((48, 8), np.float32), *rates)
        ours = update(state, host, gradients)
        expected = ours.stacks[name], *ours.slots[name].values()
        for value, other in zip(after, expected, strict=True):
            np.testing.assert_allclose(value, np.asarray(other).reshape(-1, 8), rtol=1e-6, atol=1e-6)


def test_custom_optimizers(bind):
    """StableHLO of one row: element by element, and over a row's norm; of rows with one axis as well."""
    plan = plan_of()
    (name,) = plan.stacks
    host, state = preprocess(batch_of(plan), plan), whole_numbers(plan)
    table = np.asarray(state.stacks[name]).reshape(-1, 8)
    gradient = np.ones((48, 8), np.float32)
    plain = update(state, host, {f.name: np.ones((16, 8), np.float32) for f in plan.features})
    summed = (table - np.asarray(plain.stacks[name]).reshape(-1, 8)) / 0.5

    def by_element(gradient, row, slot, rate):
        return row - rate * jnp.sign(gradient), slot + jnp.where(gradient > 3, 1.0, 2.0)

    def by_norm(gradient, row, slot, rate):
        return row - rate * gradient / (1 + jnp.sum(gradient, axis=1, keepdims=True)), slot + 1

    for function, form in ((by_element, str), (by_norm, str.encode)):  # as text, or as its bytes
        text = jax.jit(function).lower(*[jax.ShapeDtypeStruct((1, 8), jnp.float32)] * 4).as_text()
        told = {"num_hyperparameters": 1, "stablehlo": form(text), **most(host, name)}
        step = jax.jit(lambda *operands, told=told: bind("optimizer_grad")(*operands, **told))
        new, slot = step(*operands(host, name), gradient, np.float32(0.5), table, np.zeros_like(table))
        expected, counted = function(summed, table, np.zeros_like(table), 0.5)
        touched = (summed != 0).any(1)[:, None]
        np.testing.assert_allclose(new, np.where(touched, expected, table), rtol=1e-6)
        np.testing.assert_allclose(slot, np.where(touched, counted, 0))
    one = [jax.ShapeDtypeStruct((1,), jnp.float32)] * 3
    text = jax.jit(lambda gradient, row, rate: row - rate * gradient).lower(*one).as_text()
    step = jax.jit(lambda *operands: bind("optimizer_grad")(*operands, **{**told, "stablehlo": text}))
    (new,) = step(*operands(host, name), gradient[:, 0], np.float32(0.5), table[:, 0])
    np.testing.assert_allclose(new, table[:, 0] - 0.5 * summed[:, 0])


def test_formulas_are_computed_as_written():
    """Not one bit from float32 numpy, although XLA compiles the whole formula."""
    random = np.random.default_rng(0)
    rows, gradient, kept = (random.normal(size=(512, 8)).astype(np.float32) for _ in range(3))
    kept, rate = np.square(kept), np.float32(0.3)

    def stepped(optimizer, slots):
        step = jax.jit(lambda zero, *operands: Unfused(optimizer, zero).apply(*operands))
        return step(np.int32(0), rows, slots, gradient, rate)

    new, after = stepped(Adagrad(), {"accumulator": kept})
    assert np.array_equal(after["accumulator"], kept + gradient * gradient)
    assert np.array_equal(new, rows - rate * gradient / np.sqrt(kept + gradient * gradient))
    new, _ = stepped(Clipped(SGD(), -1.0), {})
    assert np.array_equal(new, np.maximum(rows - rate * gradient, -1))


def layout(pointers, mesh, minibatching=False, asked=(4, None), known=(4, 2)):
    given = SimpleNamespace(shape=(pointers,)), *[SimpleNamespace(shape=(4096,))] * 3, None
    found = layout_of(Buffers(*given), 20, mesh, minibatching, Asked(*asked), known)
    return found.devices, found.sources, found.axes, found.slots


def test_what_pointers_say():
    assert layout(32, {}) == (1, 4, (), 24)
    assert layout(128, {"x": 8}) == (8, 4, ("x",), 24)
    assert layout(32, {"x": 8}) == (8, 2, ("x",), 24)  # two SparseCores, where nobody said so
    assert layout(128 * 64, {"x": 8}, minibatching=True) == (8, 4, ("x",), 24)
    assert layout(64, {}, minibatching=True) == (1, 4, (), 24)  # room for two mini-batches: made by hand
    assert layout(32, {"data": 2, "model": 4}, asked=(4, 2)) == (2, 4, ("data",), 24)
    assert layout(32, {"model": 4}, asked=(4, 1)) == (1, 4, (), 24)
    assert layout(128, {"data": 2, "one": 1, "model": 4}, asked=(4, 8)) == (8, 4, ("data", "model"), 24)
    with pytest.raises(UnsupportedError, match="over \\('a',\\) or \\('b',\\)"):
        layout(32, {"a": 2, "b": 2}, asked=(4, 2))
    with pytest.raises(UsageError, match="40 row pointers"):
        layout(40, {"x": 8})


def test_what_the_package_is_told_of_devices(bind):
    utils, api = sys.modules[f"{HOME}.utils.utils"], sys.modules[f"{HOME}.lib.nn.embedding"]
    assert utils.num_sparsecores_per_device() == utils.num_sparsecores_per_device(jax.devices()[0]) == 4
    tpu_embedding.install(2)
    assert utils.num_sparsecores_per_device() == utils.NUM_SC_PER_DEVICE_MAP["cpu"] == 2
    assert utils.num_sparsecores_per_device(SimpleNamespace(platform="tpu")) == 4
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert utils.embedding_table_format_with_sharding(sharding) is sharding
    api.tpu_sparse_dense_matmul(global_device_count=8, num_sc_per_device=4)
    assert primitives._asked == (4, 8)
    api.tpu_sparse_dense_matmul_grad()
    assert primitives._asked == (2, 8)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_tpu_embedding", None)
    with pytest.raises(UsageError, match="jax-tpu-embedding is not installed"):
        tpu_embedding.install()
    with pytest.raises(UsageError, match="sparsecores_per_device = 0"):
        tpu_embedding.install(0)

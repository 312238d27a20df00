"""Whole training steps: in turn, pipelined, over a mesh; the differentiable layer; native kernels beside XLA's."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import by_night
from tests.embed.batches import alike
from tests.embed.slow_batch import host_batch
from tests.embed.test_step import draw, fresh, gradients, model
from tilewright.embed import (
    FTRL,
    SGD,
    Adagrad,
    AdagradMomentum,
    Adam,
    Feature,
    Quantization,
    RowwiseAdagrad,
    SparseCoreConfig,
    Table,
    Topology,
    device_batch,
    from_tables,
    layer,
    lookup,
    preprocess,
    stack,
    tables,
    train_step,
    update,
)
from tilewright.embed.device import step as device_step
from tilewright.embed.device.step import update_rows, zero_rows
from tilewright.errors import CheckFailed, UsageError

SAMPLES = 16


def batches(plan, count):
    """Batches and their labels."""
    hosts = [host_batch(draw(plan, SAMPLES, seed), plan) for seed in range(count)]
    return [(batch, np.float32(k % 3 - 1) * np.ones(SAMPLES, np.float32)) for k, batch in enumerate(alike(hosts))]


def loss(params, activations, labels):
    logits = sum(value @ params[name] for name, value in activations.items()) + params["bias"]
    return jnp.mean((logits - labels) ** 2)


def parameters(plan):
    rng = np.random.default_rng(3)
    weights = {f.name: rng.normal(size=f.table.width).astype(np.float32) for f in plan.features}
    return jax.tree.map(jnp.asarray, {**weights, "bias": np.float32(0)})


def same(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), found, expected)


def written_out(plan, steps, late):
    """The definition: lookup i, dense part i - late, update i - 2 * late, in this order."""
    params, state = parameters(plan), fresh(plan)
    optimizer = optax.adam(0.1)
    optimizer_state = optimizer.init(params)
    work, vectors, grads, losses = batches(plan, steps), {}, {}, []
    dense = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    for i in range(steps + 2 * late):
        if i < steps:
            vectors[i] = lookup(state, work[i][0])
        if 0 <= i - late < steps:
            value, (gradient, grads[i - late]) = dense(params, vectors[i - late], work[i - late][1])
            changes, optimizer_state = optimizer.update(gradient, optimizer_state, params)
            params = optax.apply_updates(params, changes)
            losses.append(value)
        if 0 <= i - 2 * late < steps:
            state = update(state, work[i - 2 * late][0], grads[i - 2 * late])
    return params, state, losses


@pytest.mark.parametrize("pipelined", [False, True])
def test_steps_equal_the_definition_written_out(pipelined):
    plan, steps = model(4, 1, "adagrad"), 5
    params, state = parameters(plan), fresh(plan)
    one = train_step(loss, optax.adam(0.1), pipelined)
    carry, losses = one.start(params, state), []
    for batch, labels in batches(plan, steps):
        carry, value = one.step(carry, batch, labels)
        losses.append(value)
    drained, rest = one.drain(carry)
    expected = written_out(plan, steps, int(pipelined))
    np.testing.assert_allclose([*losses, *rest][int(pipelined) :], expected[2], rtol=1e-5)
    assert np.isnan(losses[0]) == pipelined
    for found, value in zip(one.finish(drained), expected[:2], strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, value)
    assert int(drained.state.step) == steps
    same(state.stacks, fresh(plan).stacks)  # what was given is still there


@pytest.mark.parametrize(("levels", "last"), [(None, -24), (Quantization(-2.0, 2.0, 5), -16)])
def test_pipelined_gradients_are_two_steps_late(levels, last):
    """On whole numbers, so that every order of sums gives the same bits; clipped where rows are quantised."""
    table = Table("t", 4, 8, optimizer=SGD(1.0), quantization=levels)
    plan = stack([Feature("f", table)], Topology(1, 1))
    state = from_tables(plan, {"t": np.zeros((4, 8), np.float32)})
    one = train_step(lambda params, vectors: vectors["f"].sum(), optax.sgd(0.0), pipelined=True)
    carry, seen = one.start({}, state), []
    host = preprocess({"f": [[0]]}, plan)
    for _ in range(7):
        carry, value = one.step(carry, host)
        seen.append(float(value))
    assert np.isnan(seen[0])
    assert seen[1:] == [0, 0, 0, -8, -16, last], "batch i sees the updates of the batches before i - 2"
    assert float(tables(one.finish(carry)[1])["t"][0, 0]) == -7


def test_the_layer_gives_the_gradients_of_rows():
    plan = model(4, 2, "adagrad")
    batch, labels = batches(plan, 1)[0]
    params, state = parameters(plan), fresh(plan)

    @jax.jit
    def by_rows(params, rows, batch):
        return loss(params, jax.checkpoint(lambda r: layer(state, batch, r))(rows), labels)

    value, (gradient, of_rows) = jax.value_and_grad(by_rows, argnums=(0, 1))(params, zero_rows(batch), batch)
    dense = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    other, (expected, vectors) = dense(params, lookup(state, batch), labels)
    np.testing.assert_allclose(value, other, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), gradient, expected)
    found, after = tables(update_rows(state, batch, of_rows)), tables(update(state, batch, vectors))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, after)


def test_micro_batches_under_scan_give_the_same_gradients():
    plan = model(4, 1, "sgd")
    batch, labels = batches(plan, 1)[0]
    params, state = parameters(plan), fresh(plan)

    def in_parts(params, rows):
        cut = jax.tree.map(lambda x: x.reshape(4, -1, *x.shape[1:]), (layer(state, batch, rows), jnp.asarray(labels)))
        total, _ = jax.lax.scan(lambda total, part: (total + loss(params, *part) / 4, None), 0.0, cut)
        return total

    def whole(params, rows):
        return loss(params, layer(state, batch, rows), labels)

    found, expected = (jax.jit(jax.grad(f, argnums=(0, 1)))(params, zero_rows(batch)) for f in (in_parts, whole))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("minibatches", "on_host"),
    [(1, True), (3, False), pytest.param(1, False, marks=NIGHTLY), pytest.param(3, True, marks=NIGHTLY)],
)
def test_grad_through_lookup_is_the_dense_gradient(minibatches, on_host):
    """With the index made on the host, or traced; by day each once, and each number of mini-batches."""
    plan = model(4, 2, SGD(1.0))
    bucket = (lambda col_id: col_id % minibatches) if minibatches > 1 else None
    host, grads = host_batch(draw(plan, SAMPLES), plan, bucket, minibatches), gradients(plan, SAMPLES)
    state = fresh(plan)

    def objective(stacks, batch):
        found = lookup(type(state)(state.step, stacks, state.slots, plan), batch)
        return sum((found[name] * grads[name]).sum() for name in found)

    stepped = update(state, host, grads).stacks
    gradient = jax.jit(jax.grad(objective))(state.stacks, device_batch(host) if on_host else host)
    for name, value in gradient.items():
        np.testing.assert_allclose(state.stacks[name] - value, stepped[name], rtol=1e-5, atol=1e-5)


KINDS = [SGD(0.3), Adagrad(0.3, 0.0), RowwiseAdagrad(0.3), Adam(0.1)]
MORE_KINDS = [Adagrad(0.3), AdagradMomentum(0.1), FTRL(0.1)]  # other numbers, and what has no kernel of its own


def test_kernels_do_what_xlas_operations_do(monkeypatch):
    """All optimizers in one plan, which compiles once; with tables of other names, so that it is traced anew."""

    def found(prefix):
        features = []
        for k, kind in enumerate(KINDS + MORE_KINDS * by_night()):
            a, b = (Table(f"{prefix}{n}{k}", v, w, optimizer=kind) for n, v, w in (("a", 50, 12), ("b", 33, 16)))
            features += [Feature(f"fa{k}", a), Feature(f"fb{k}", b), Feature(f"ga{k}", a)]
        features.append(Feature("fc", Table(f"{prefix}c", 9, 3, optimizer=RowwiseAdagrad(0.3))))
        plan = stack(features, Topology(2, 2))
        host, grads, state = batches(plan, 1)[0][0], gradients(plan, SAMPLES), fresh(plan)
        return lookup(state, host), update(update(state, host, grads), host, grads)

    native, seen = found("native"), []
    monkeypatch.setattr(
        device_step, "_by_platform", lambda given, on_cpu, elsewhere: seen.append(elsewhere) or elsewhere(*given)
    )
    plain = found("plain")
    assert len({function.__qualname__ for function in seen}) == 3, "lookups, sums and updates"
    for one, other in zip(jax.tree.leaves(native), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_a_quantised_table_is_looked_up_rounded_and_updated_as_it_is():
    table = Table("t", 4, 8, optimizer=SGD(1.0), quantization=Quantization(-1.0, 1.0, 3))
    plan = stack([Feature("f", table)], Topology(1, 1))
    state = from_tables(plan, {"t": np.full((4, 8), 0.6, np.float32)})
    host = preprocess({"f": [[0, 1], [0]]}, plan)
    assert np.asarray(lookup(state, host)["f"])[:, 0].tolist() == [2, 1]
    after = tables(update(state, host, {"f": np.ones((2, 8), np.float32)}))["t"][:, 0]
    np.testing.assert_allclose(after, [-1.4, -0.4, 0.6, 0.6], rtol=1e-6)


def test_a_buffer_that_leaves_its_table_is_refused():
    plan = model(4, 1, "sgd")
    host = preprocess({f.name: [[0]] * 8 for f in plan.features}, plan)
    name = next(iter(plan.stacks))
    wrong = host.embedding_ids[name].copy()
    wrong[0, 0] = plan.stacks[name].rows_per_shard
    with pytest.raises(CheckFailed, match="slot 0 of device 0"):
        device_batch(replace(host, embedding_ids={**host.embedding_ids, name: wrong}))


@pytest.mark.parametrize("off", [False, True])
def test_the_guides_knob_decides_over_pipelining(off):
    knobs = SparseCoreConfig(disable_full_embedding_pipelining=off)
    assert train_step(loss, optax.sgd(0.1), pipelined=off, sparsecore=knobs).pipelined is not off


def test_a_mesh_wants_its_axis():
    mesh = jax.make_mesh((1,), ("sc",))
    for wrong in ({"mesh": mesh}, {"axis": "sc"}, {"mesh": mesh, "axis": "data"}):
        with pytest.raises(UsageError, match=r"ax[ei]s"):
            train_step(loss, optax.sgd(0.1), **wrong)

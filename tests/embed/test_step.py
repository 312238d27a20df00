"""Lookups and updates against a dense float64 model and jax.grad."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import by_night, tries
from tests.embed.slow_batch import dense_gradient, dense_lookup, host_batch
from tilewright.embed import (
    SGD,
    Adagrad,
    Feature,
    Limits,
    Table,
    Topology,
    device_batch,
    from_tables,
    lookup,
    preprocess,
    stack,
    tables,
    update,
)
from tilewright.embed.device import step as _step
from tilewright.errors import UsageError

OPTIMIZERS = {"sgd": SGD(0.5), "adagrad": Adagrad(0.3, initial_accumulator=0.2)}


def model(sparsecores=4, chips=1, optimizer="adagrad", stacking=True):
    """Three tables (padded widths 16, 16, 8), four features, two of them on one table."""
    kind = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    a, b, c = (Table(n, v, w, optimizer=kind) for n, v, w in (("a", 50, 12), ("b", 33, 16), ("c", 9, 3)))
    features = [Feature("fa", a), Feature("fb", b), Feature("fc", c), Feature("fa2", a)]
    return stack(features, Topology(chips, sparsecores // chips), stacking)


def draw(stacking, samples, seed=0, most=3):
    """{feature: [[(id, weight), ...], ...]} with empty samples and repeated ids."""
    rng = np.random.default_rng(seed)
    return {
        f.name: [
            [(int(rng.integers(f.table.vocab)), float(np.float32(rng.uniform(0.5, 2)))) for _ in range(n)]
            for n in rng.integers(0, most + 1, samples)
        ]
        for f in stacking.features
    }


def weights(stacking, seed=5):
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=(p.table.vocab, p.table.width)).astype(np.float32) for n, p in stacking.tables.items()}


def fresh(stacking):
    """A state with random rows, made without compiling anything."""
    return from_tables(stacking, weights(stacking))


def gradients(stacking, samples, seed=1):
    rng = np.random.default_rng(seed)
    return {f.name: rng.normal(size=(samples, f.table.width)).astype(np.float32) for f in stacking.features}


def dense(found):
    return {name: np.asarray(value, np.float64) for name, value in found.items()}


def trained(before, grads, touched, optimizer, steps=1):
    """The definition, in float64."""
    after = {}
    for name, w in before.items():
        acc = np.full_like(w, getattr(optimizer, "initial_accumulator", 0.0))
        w = w.copy()
        for _ in range(steps):
            g = grads[name]
            if isinstance(optimizer, Adagrad):
                acc = np.where(touched[name][:, None], acc + g * g, acc)
                w = np.where(touched[name][:, None], w - optimizer.learning_rate * g / np.sqrt(acc), w)
            else:
                w = w - optimizer.learning_rate * g
        after[name] = w
    return after


NIGHTLY = {"marks": pytest.mark.nightly}


@pytest.mark.parametrize(
    ("sparsecores", "chips", "optimizer", "stacking", "minibatches"),
    [
        (4, 1, "adagrad", True, 0),
        (4, 2, "sgd", False, 3),
        (6, 3, "adagrad", True, 3),
        (1, 1, "sgd", True, 0),
        pytest.param(4, 1, "adagrad", True, 3, **NIGHTLY),
        pytest.param(4, 2, "sgd", False, 0, **NIGHTLY),
        pytest.param(6, 3, "adagrad", True, 0, **NIGHTLY),
        pytest.param(1, 1, "sgd", True, 3, **NIGHTLY),
    ],
)
def test_a_step_equals_the_dense_model(sparsecores, chips, optimizer, stacking, minibatches):
    """By day every layout once, half of them with mini-batches."""
    plan = model(sparsecores, chips, optimizer, stacking)
    samples = sparsecores * 4
    batch, grads = draw(plan, samples), gradients(plan, samples)
    bucket = (lambda col_id: col_id * 7 % minibatches) if minibatches else None
    host = host_batch(batch, plan, bucket, minibatches or 1)
    state = fresh(plan)
    before = tables(state)

    found = lookup(state, host)
    expected = dense_lookup(dense(before), batch, plan)
    assert list(found) == [f.name for f in plan.features]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)

    state = update(state, host, grads)
    summed, touched = dense_gradient(batch, plan, grads)
    after = trained(dense(before), summed, touched, OPTIMIZERS[optimizer])
    for name, value in tables(state).items():
        np.testing.assert_allclose(value, after[name], rtol=1e-5, atol=1e-5)
        same = ~touched[name]
        assert same.any() or name == "c"
        assert np.array_equal(np.asarray(value)[same], np.asarray(before[name])[same]), "untouched rows keep their bits"
    assert int(state.step) == 1


@settings(max_examples=tries(10))
@given(seed=st.integers(0, 2**32), most=st.integers(0, 5))
def test_any_batch_from_preprocess_equals_the_dense_model(seed, most):
    """One topology and one buffer size, so that everything compiles once."""
    plan = model(4, 2, "adagrad")
    batch, grads = draw(plan, 16, seed, most), gradients(plan, 16, seed + 1)
    rows = {
        name: (
            np.array([v for row in each for v, _ in row], np.int32),
            np.cumsum([0, *map(len, each)]),
            np.array([w for row in each for _, w in row], np.float32),
        )
        for name, each in batch.items()
    }
    limits = {name: Limits(64, 64) for name in plan.stacks}
    host = preprocess(rows, plan, limits, overflow="error")
    state = fresh(plan)
    before = dense(tables(state))
    expected = dense_lookup(before, batch, plan)
    for name, value in lookup(state, host).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
    summed, touched = dense_gradient(batch, plan, grads)
    after = trained(before, summed, touched, OPTIMIZERS["adagrad"])
    for name, value in tables(update(state, host, grads)).items():
        np.testing.assert_allclose(value, after[name], rtol=1e-4, atol=1e-4)


def test_mini_batches_of_preprocess_do_not_change_the_step():
    plan = model(4, 1, "adagrad")
    values = {f.name: np.arange(32, dtype=np.int32).reshape(16, 2) % f.table.vocab for f in plan.features}
    limits = {name: Limits(4, 4) for name in plan.stacks}
    whole, cut = preprocess(values, plan), preprocess(values, plan, limits, allow_id_dropping=True)
    assert cut.num_minibatches > 1
    assert all(not s.dropped_ids.any() for s in cut.stats.values())
    state, grads = fresh(plan), gradients(plan, 16)
    one, other = update(state, whole, grads), update(state, cut, grads)
    for name, value in lookup(state, whole).items():
        np.testing.assert_allclose(lookup(state, cut)[name], value, rtol=1e-6, atol=1e-6)
    for name, value in tables(one).items():
        np.testing.assert_allclose(tables(other)[name], value, rtol=1e-6, atol=1e-6)


def test_features_may_have_batches_of_their_own():
    plan = model(4, 2, "adagrad")
    sizes = {"fa": 8, "fb": 16, "fc": 4, "fa2": 12}
    batch = {name: rows[: sizes[name]] for name, rows in draw(plan, 16, seed=9).items()}
    grads = {name: g[: sizes[name]] for name, g in gradients(plan, 16).items()}
    rows = {
        name: (
            np.array([v for row in each for v, _ in row], np.int32),
            np.cumsum([0, *map(len, each)]),
            np.array([w for row in each for _, w in row], np.float32),
        )
        for name, each in batch.items()
    }
    host, state = preprocess(rows, plan), fresh(plan)
    before = dense(tables(state))
    expected = dense_lookup(before, batch, plan)
    for name, value in lookup(state, host).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)
    after = trained(before, *dense_gradient(batch, plan, grads), OPTIMIZERS["adagrad"])
    for name, value in tables(update(state, host, grads)).items():
        np.testing.assert_allclose(value, after[name], rtol=1e-5, atol=1e-5)


def test_update_follows_jax_grad_of_a_dense_reference():
    plan = model(4, 1, SGD(1.0))
    batch = draw(plan, 16, seed=3)
    counts = {}
    for feature in plan.features:
        matrix = np.zeros((16, feature.table.vocab), np.float32)
        for sample, row in enumerate(batch[feature.name]):
            for value, weight in row:
                matrix[sample, value] += weight
        counts[feature.name] = matrix

    def loss_of(activations):
        return sum(jnp.sum(jnp.tanh(a) ** 2) for a in activations.values())

    def dense_loss(weights):
        return loss_of({f.name: counts[f.name] @ weights[f.table.name] for f in plan.features})

    state, host = fresh(plan), host_batch(batch, plan)
    before = tables(state)
    expected = jax.jit(jax.grad(dense_loss))(before)
    after = tables(update(state, host, jax.jit(jax.grad(loss_of))(lookup(state, host))))
    for name in before:
        np.testing.assert_allclose(before[name] - after[name], expected[name], rtol=1e-4, atol=1e-5)


def test_adagrad_gathers_over_steps_and_touches_a_row_once_a_step():
    """One id in every sample of both features on table a: its gradient is summed before it is squared."""
    plan = model(4, 1, "adagrad")
    batch = {f.name: [[(2, 1.0)]] * 8 for f in plan.features}
    host, grads = host_batch(batch, plan), {n: np.ones_like(g) for n, g in gradients(plan, 8).items()}
    state = fresh(plan)
    before = dense(tables(state))
    for _ in range(3):
        state = update(state, host, grads)
    summed, touched = dense_gradient(batch, plan, grads)
    assert summed["a"][2, 0] == 16
    after = trained(before, summed, touched, OPTIMIZERS["adagrad"], steps=3)
    np.testing.assert_allclose(tables(state)["a"], after["a"], rtol=1e-6)
    np.testing.assert_allclose(tables(state, "accumulator")["a"][2], 0.2 + 3 * 256.0)
    assert int(state.step) == 3


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_rows_are_updated_in_chunks(monkeypatch, chunk):
    monkeypatch.setattr(_step, "_CHUNK", chunk)
    optimizer = Adagrad(0.3 + chunk / 1000, 0.2)  # a stacking of its own, so that the step is traced anew
    plan = model(4, 1, optimizer)
    batch, grads = draw(plan, 16), gradients(plan, 16)
    state = fresh(plan)
    after = trained(dense(tables(state)), *dense_gradient(batch, plan, grads), optimizer)
    for name, value in tables(update(state, host_batch(batch, plan), grads)).items():
        np.testing.assert_allclose(value, after[name], rtol=1e-5, atol=1e-5)


def test_an_empty_batch_changes_nothing():
    plan = model(4, 1, "adagrad")
    host, state = host_batch({f.name: [[]] * 4 for f in plan.features}, plan), fresh(plan)
    assert all(not np.asarray(v).any() for v in lookup(state, host).values())
    before, after = tables(state), tables(update(state, host, gradients(plan, 4)))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_a_learning_rate_may_be_a_schedule():
    plan = model(4, 1, SGD(_falling))
    batch = {f.name: [[(1, 1.0)], [], [], []] for f in plan.features}
    host, grads = host_batch(batch, plan), {n: np.ones_like(g) for n, g in gradients(plan, 4).items()}
    state = fresh(plan)
    rows = [np.asarray(tables(state)["b"][1])]
    for _ in range(3):
        state = update(state, host, grads)
        rows.append(np.asarray(tables(state)["b"][1]))
    np.testing.assert_allclose(np.diff(rows, axis=0)[:, 0], [-1.0, -0.5, -0.25], rtol=1e-5)


def _falling(step):
    return 0.5**step


def test_padding_has_no_effect_even_beside_broken_rows():
    """Pads carry NaN gains and INT_MAX ids; a row that is NaN reaches only the samples that ask for it."""
    plan = model(4, 1, "sgd")
    batch = {f.name: [[(1, 1.0)], [(2, 1.0)], [], [(1, 1.0)]] for f in plan.features}
    rows = weights(plan)
    rows["a"][2] = np.nan
    state = from_tables(plan, rows)
    found = lookup(state, host_batch(batch, plan))
    assert np.isnan(np.asarray(found["fa"])).any(axis=1).tolist() == [False, True, False, False]
    assert np.isfinite(np.asarray(found["fb"])).all()
    after = tables(update(state, host_batch(batch, plan), {n: np.ones_like(v) for n, v in found.items()}))
    assert np.isnan(np.asarray(after["a"])).any(axis=1).nonzero()[0].tolist() == [2]


@pytest.mark.parametrize("minibatches", [False, True])
def test_the_update_is_in_place_when_the_state_is_donated(minibatches):
    plan = stack([Feature("f", Table("t", 40_000, 16, optimizer=Adagrad(0.1)))], Topology(1, 4))
    limits = {"t": Limits(8, 8)} if minibatches else None
    host = preprocess({"f": np.arange(64, dtype=np.int32).reshape(64, 1)}, plan, limits)
    state = fresh(plan)
    step = jax.jit(update, donate_argnums=0)
    compiled = step.lower(state, host, {"f": np.ones((64, 16), np.float32)}).compile()
    memory = compiled.memory_analysis()
    whole = sum(v.nbytes for v in [*state.stacks.values(), *(a for s in state.slots.values() for a in s.values())])
    assert memory.alias_size_in_bytes >= whole
    assert memory.temp_size_in_bytes < whole / 4, "scratch is four bytes per row and what the entries need"
    big = f"f32[{state.stacks['t'].shape[1] * 4},16]"
    assert not [line for line in compiled.as_text().splitlines() if f"= {big}" in line and " copy(" in line]


def test_host_batches_pass_through_jit_and_unused_buffers_are_cut():
    plan = model(4, 1, "sgd")
    batch = draw(plan, 8)
    host = host_batch(batch, plan, lambda col_id: col_id % 2, 2)
    small = device_batch(host)
    for name, index in small.index.items():
        entries = sum(len(ids) for f in plan.stacks[name].features for ids in batch[f.name])
        assert index.row_samples.shape[1] <= max(8, entries * 9 / 8)
    state = fresh(plan)
    direct, through = lookup(state, small), jax.jit(lookup)(state, host)
    for feature, value in direct.items():
        assert np.array_equal(value, through[feature])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda g: g.pop("fb"), "no gradient for fb"),
        (lambda g: g.update(fx=g["fa"]), "no feature called fx"),
        (lambda g: g.update(fa=g["fa"][:4]), "shape [4, 12], not [8, 12]"),
    ],
)
def test_wrong_gradients_are_refused(change, text):
    plan = model(4, 1, "sgd")
    grads = gradients(plan, 8)
    change(grads)
    with pytest.raises(UsageError) as error:
        update(fresh(plan), host_batch(draw(plan, 8), plan), grads)
    assert text in str(error.value)


def test_a_batch_of_another_stacking_is_refused():
    one, other = model(4, 1, "sgd"), model(4, 2, "sgd")
    with pytest.raises(UsageError, match="another stacking"):
        lookup(fresh(one), host_batch(draw(other, 8), other))


@pytest.mark.long
def test_what_needs_several_devices(root: Path, tmp_path: Path):
    """One process of eight for all of it: a start takes longer than most of these."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    eight = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    program = [sys.executable, "-m", "tests.embed.several_devices", str(tmp_path), *["night"] * by_night()]
    done = subprocess.run(program, cwd=root, env=eight, capture_output=True, text=True, check=False)
    names = ["under_shard_map_four_agree_with_one", "a_step_by_the_peers_rules", "checkpoints_go_from_mesh_to_mesh"]
    names += ["tables_are_made_where_the_knobs_say"]
    names += ["whole_numbers_train_to_the_same_bits_however_they_are_laid_out"]
    names += ["rows_held_everywhere_train_as_those_at_home"] * by_night()
    assert done.stdout.split() == names, done.stderr[-3000:]

"""Row updates by themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import by_night
from tilewright.embed import (
    F2A,
    FTRL,
    SGD,
    Adagrad,
    AdagradMomentum,
    Adam,
    EmbeddingState,
    Feature,
    LaProp,
    Limits,
    RowOptimizer,
    RowwiseAdagrad,
    Table,
    Topology,
    from_tables,
    preprocess,
    split_hot,
    stack,
    tables,
    take_hot,
    update,
    update_hot,
)
from tilewright.embed.model.optimizers import OPTIMIZERS, hyperparameters_at
from tilewright.errors import UsageError

numbers = st.floats(-100, 100, width=32)


@given(numbers, numbers, st.floats(0, 1))
def test_sgd(row, gradient, rate):
    assert SGD(rate).apply(row, {}, gradient, rate) == (row - rate * gradient, {})


@given(st.integers(0, 2**32))
def test_adagrad(seed):
    rng = np.random.default_rng(seed)
    row, gradient, start = rng.normal(size=8), rng.normal(size=8), rng.random(8) + 0.01
    new, slots = Adagrad(0.3).apply(row, {"accumulator": start}, gradient, 0.3)
    accumulator = start + gradient**2
    np.testing.assert_allclose(slots["accumulator"], accumulator, rtol=1e-6)
    np.testing.assert_allclose(new, row - 0.3 * gradient / np.sqrt(accumulator), rtol=1e-5, atol=1e-6)


def test_adagrad_from_zero_leaves_elements_without_gradient():
    new, slots = Adagrad(0.5, 0.0).apply(np.ones(2), {"accumulator": np.zeros(2)}, np.array([0.0, 2.0]), 0.5)
    assert new.tolist() == [1.0, 0.5]
    assert slots["accumulator"].tolist() == [0.0, 4.0]


def test_optimizers_are_values():
    assert {SGD(0.1), SGD(0.1), Adagrad(0.1)} == {SGD(0.1), Adagrad(0.1)}
    assert dict(SGD().slots) == {}
    assert dict(Adagrad().slots) == {"accumulator": 0.1}


def test_rates():
    assert hyperparameters_at(SGD(0.5), 7) == 0.5
    assert hyperparameters_at(Adagrad(lambda step: 1 / step), 4) == 0.25


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf"), "fast", None, True])
def test_wrong_rates(rate):
    for kind in (SGD, Adagrad):
        with pytest.raises(UsageError, match="learning_rate"):
            kind(rate)


def test_a_wrong_accumulator():
    with pytest.raises(UsageError, match="initial_accumulator"):
        Adagrad(0.1, -0.5)


ALL = [kind(learning_rate=0.05) for kind in OPTIMIZERS.values()]


def small_model(optimizer: Any, widths: tuple[int, int] = (12, 12), prefix: str = "") -> Any:
    """Two stacked tables of 30 rows, a batch that touches rows several times, and its gradients."""
    features = [
        Feature(f"{prefix}f{i}", Table(f"{prefix}t{i}", 30, width, optimizer=optimizer))
        for i, width in enumerate(widths)
    ]
    rng = np.random.default_rng(3)
    batch = {f.name: rng.integers(0, 20, (8, 3)) for f in features}
    gradients = {f.name: rng.normal(size=(8, f.table.width)).astype(np.float32) for f in features}
    rows = {f.table.name: rng.normal(size=(30, f.table.width)).astype(np.float32) for f in features}
    return stack(features, Topology(2, 2)), batch, gradients, rows


def logical(state: EmbeddingState) -> dict[tuple[str, str], Any]:
    """{(table, slot): values}, whichever slots the optimizers of the tables have."""
    found = {(name, ""): np.asarray(value) for name, value in tables(state).items()}
    for slot in {slot for slots in state.slots.values() for slot in slots}:
        kept = {name: slots.get(slot, state.stacks[name]) for name, slots in state.slots.items()}
        whole = tables(EmbeddingState(state.step, kept, state.slots, state.stacking))
        found |= {(name, slot): np.asarray(value) for name, value in whole.items()}
    return found


@pytest.mark.parametrize("limits", [None, Limits(2, 2)], ids=["whole", "mini-batches"])
def test_an_update_is_apply_on_every_touched_row(limits):
    """All optimizers in one plan, each with two stacked tables, so that they compile together.

    By day those with kernels of their own and one without; test_optimizers_golden.py steps every one.
    """
    by_day = (SGD, Adagrad, RowwiseAdagrad, Adam, AdagradMomentum)
    tried = [optimizer for optimizer in ALL if by_night() or isinstance(optimizer, by_day)]
    models = {type(optimizer).__name__: small_model(optimizer, prefix=type(optimizer).__name__) for optimizer in tried}
    stacking = stack([feature for model in models.values() for feature in model[0].features], Topology(2, 2))
    batch, gradients, rows = ({k: v for model in models.values() for k, v in model[at].items()} for at in (1, 2, 3))
    state = from_tables(stacking, rows)
    host = preprocess(batch, stacking, limits and dict.fromkeys(stacking.stacks, limits))
    after = update(state, host, gradients)
    assert len(stacking.stacks) == len(tried)
    before, found = logical(state), logical(after)
    for feature in stacking.features:
        name, optimizer = feature.table.name, feature.table.optimizer
        summed = np.zeros((30, 12), np.float32)
        np.add.at(summed, batch[feature.name], gradients[feature.name][:, None])
        touched = np.unique(batch[feature.name])
        slots = {slot: before[name, slot][touched] for slot in optimizer.slots}
        new, kept = optimizer.apply(rows[name][touched], slots, summed[touched], hyperparameters_at(optimizer, 0))
        expected = rows[name].copy()
        expected[touched] = new
        np.testing.assert_allclose(found[name, ""], expected, rtol=2e-5, atol=1e-6, err_msg=name)
        for slot, value in kept.items():
            whole = before[name, slot].copy()
            whole[touched] = value
            np.testing.assert_allclose(found[name, slot], whole, rtol=2e-5, atol=1e-6, err_msg=name)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))


def test_row_wise_slots_hold_one_number_per_row_whatever_the_padding():
    optimizer = RowwiseAdagrad(0.1)
    stacking, batch, gradients, rows = small_model(optimizer, widths=(12, 16))
    assert len(stacking.stacks) == 2, "rows of 12 and 16 floats have other means"
    assert len(small_model(Adagrad(0.1), widths=(12, 16))[0].stacks) == 1
    after = update(from_tables(stacking, rows), preprocess(batch, stacking), gradients)
    assert after.slots["t0"]["accumulator"].shape == (4, 8, 1)
    summed = np.zeros((30, 12), np.float32)
    np.add.at(summed, batch["f0"], gradients["f0"][:, None])
    expected = 0.1 + (summed.astype(np.float64) ** 2).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(tables(after, "accumulator")["t0"], expected, rtol=1e-6)
    np.testing.assert_allclose(tables(after)["t0"], rows["t0"] - 0.1 * summed / np.sqrt(expected), rtol=1e-5, atol=1e-6)


@dataclass(frozen=True)
class Signs:
    """A user's own, with what the protocol asks for and no more."""

    learning_rate: Any = 0.5
    slots: Any = field(default=(), hash=False)

    def apply(self, rows: Any, slots: Any, gradient: Any, rate: Any) -> tuple[Any, dict[str, Any]]:
        return rows - rate * jnp.sign(gradient), {}


def test_a_users_own_gets_the_learning_rate_alone():
    optimizer: RowOptimizer = Signs(lambda step: 0.5 / (step + 1), {})
    assert float(hyperparameters_at(optimizer, 1)) == 0.25
    stacking, batch, gradients, rows = small_model(optimizer)
    after = update(from_tables(stacking, rows), preprocess(batch, stacking), gradients)
    moved = np.asarray(tables(after)["t0"]) - rows["t0"]
    assert set(np.unique(np.abs(np.round(moved, 5))).tolist()) == {0.0, 0.5}


def test_hyperparameters_are_schedules_too():
    assert float(hyperparameters_at(SGD(lambda: 0.125), 3)) == 0.125, "a spec's schedule may have no parameter"
    rates = hyperparameters_at(FTRL(lambda step: 1 / step, l1_regularization=lambda step: 2 * step), 4)
    assert [float(rate) for rate in rates] == [0.25, -0.5, 8.0, 0.0, 0.0]
    traced = jax.jit(lambda step: hyperparameters_at(Adam(lambda step: 0.5 / step, b1=0.5), step))(jnp.int32(1))
    rate, b1, _, epsilon = (float(value) for value in traced)
    assert b1 == 0.5
    assert rate == pytest.approx(0.5 * np.sqrt(1 - 0.999**2) / 0.75, rel=1e-4)
    assert epsilon == pytest.approx(1e-8 * np.sqrt(1 - 0.999**2), rel=1e-4)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Adam, {"b1": 1.0}),
        (LaProp, {"b2": 1}),
        (AdagradMomentum, {"beta2": 1.5}),
        (AdagradMomentum, {"exponent": 0}),
        (FTRL, {"learning_rate_power": 0.5}),
        (FTRL, {"learning_rate": 0}),
        (F2A, {"rho": -1}),
        (Adam, {"epsilon": "small"}),
        (FTRL, {"initial_accumulator": abs}),
        (AdagradMomentum, {"use_nesterov": 1}),
    ],
)
def test_wrong_hyperparameters(kind, wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        kind(**wrong)


@pytest.mark.parametrize(
    "optimizer",
    [
        Adam(0.1, epsilon=0),
        LaProp(0.1, epsilon=0),
        AdagradMomentum(0.1, epsilon=0, initial_accumulator=0),
        FTRL(0.1, initial_accumulator=0),
        F2A(0.1, initial_accumulator=0),
        RowwiseAdagrad(0.1, 0),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_nothing_but_zeros_moves_nothing(optimizer):
    rows, slots = np.ones((1, 4), np.float32), {}
    for slot, start in optimizer.slots.items():
        slots[slot] = np.full((1, getattr(optimizer, "slot_widths", {}).get(slot, 4)), start, np.float32)
    new, after = optimizer.apply(rows, slots, np.zeros((1, 4), np.float32), hyperparameters_at(optimizer, 5))
    np.testing.assert_array_equal(new, rows)
    assert all(np.isfinite(value).all() for value in after.values())


@dataclass(frozen=True)
class Counting:
    """A user's optimizer, whose slots are not in the order of the alphabet."""

    learning_rate: float = 1.0

    @property
    def slots(self):
        return {"ups": 0.0, "downs": 100.0}

    def apply(self, rows, slots, gradient, rate):
        return rows, {"ups": slots["ups"] + 1, "downs": slots["downs"] - 1}


def test_a_users_slots_keep_their_names_whatever_their_order():
    stacking = stack([Feature("f", Table("t", 8, 8, optimizer=Counting()))], Topology(1, 2))
    state, host = from_tables(stacking, {"t": np.zeros((8, 8))}), preprocess({"f": [[0], [1]]}, stacking)
    for _ in range(2):
        state = update(state, host, {"f": np.ones((2, 8), np.float32)})
    assert [float(tables(state, slot)["t"][0, 0]) for slot in ("ups", "downs")] == [2, 98]
    held = take_hot(state, hot := {"t": np.array([0])})
    _, entries = split_hot({"f": [[0], [0]]}, stacking, hot)
    held, _ = jax.jit(lambda held: update_hot(state, held, entries, {"f": np.ones((2, 8), np.float32)}))(held)
    assert [float(held.slots["t"][slot][0, 0]) for slot in ("ups", "downs")] == [3, 97]

"""Where every row lives, and where it starts."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.embed.slow_batch import place
from tilewright.embed import SGD, Adagrad, Feature, Table, Topology, from_tables, init, stack, tables
from tilewright.errors import UsageError


def one_to_one(*tables_, chips=1, sparsecores=4, **options):
    return stack([Feature(f"f_{t.name}", t) for t in tables_], Topology(chips, sparsecores), **options)


@settings(max_examples=tries(10))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 20)), min_size=1, max_size=4),
    chips=st.integers(1, 3),
    sparsecores=st.integers(1, 5),
    stacking=st.booleans(),
)
def test_every_row_lies_where_the_specification_says(sizes, chips, sparsecores, stacking):
    plan = one_to_one(
        *(Table(f"t{i}", v, w) for i, (v, w) in enumerate(sizes)),
        chips=chips,
        sparsecores=sparsecores,
        table_stacking=stacking,
    )
    values = {f"t{i}": np.arange(v * w, dtype=np.float32).reshape(v, w) + 1000 * i for i, (v, w) in enumerate(sizes)}
    state = from_tables(plan, values)
    held = {name: np.asarray(stacked) for name, stacked in state.stacks.items()}
    used = {name: np.zeros(stacked.shape, bool) for name, stacked in held.items()}
    for name, table in plan.tables.items():
        for row in range(table.table.vocab):
            shard, local = place(table, row)
            at = (shard, local, slice(table.table.width))
            assert np.array_equal(held[table.stack][at], values[name][row])
            assert not used[table.stack][at].any()
            used[table.stack][at] = True
    for name, stacked in held.items():
        shards = plan.topology.sparsecores
        assert stacked.shape == (shards, plan.stacks[name].rows_per_shard, plan.stacks[name].padded_width)
        assert not stacked[~used[name]].any(), "padding is zero"
    for name, value in tables(state).items():
        assert np.array_equal(value, values[name])


def test_stacked_arrays_of_the_peer(vectors):
    """The peer filled table k with 1000 * (k + 1) + its running number, padding with -1."""
    checked = 0
    for case in vectors("embed_stacking")["cases"]:
        if case.get("stacked_array_pad_minus1") is None:
            continue
        per_device, devices = case["num_sc_per_device"], case["global_device_count"]
        plain = {t["name"]: Table(t["name"], t["vocab"], t["dim"]) for t in case["tables"]}
        features = [Feature(f["name"], plain[f["table"]]) for f in case["features"]]
        plan = stack(features, Topology(devices, per_device), rotation=case["rotation_arg"])
        expected = np.array(case["stacked_array_pad_minus1"], np.float32)
        values = {
            name: np.arange(t.vocab * t.width, dtype=np.float32).reshape(t.vocab, t.width) + 1000 * (k + 1)
            for k, (name, t) in enumerate(plain.items())
        }
        (found,) = from_tables(plan, values).stacks.values()
        assert found.shape == expected.shape
        assert np.array_equal(found, np.where(expected == -1, 0, expected))
        checked += 1
    assert checked > 0


def test_a_new_state_is_the_same_model_on_any_topology():
    a, b = Table("a", 60, 12, optimizer=Adagrad(0.1, 0.25)), Table("b", 20, 16, optimizer=Adagrad(0.1, 0.25))
    small, large = init(one_to_one(a, b), jax.random.key(3)), init(one_to_one(a, b, chips=2), jax.random.key(3))
    for name, value in tables(small).items():
        assert np.array_equal(value, tables(large)[name])
        deviation = 1 / np.sqrt(value.shape[1])
        assert np.abs(value).max() <= 2 * deviation
        assert 0.6 * deviation < value.std() < deviation
    assert not np.array_equal(tables(small)["a"], tables(init(one_to_one(a, b), jax.random.key(4)))["a"])
    assert np.array_equal(tables(small, "accumulator")["b"], np.full((20, 16), 0.25, np.float32))
    assert int(small.step) == 0


def test_new_rows_are_truncated_normal_and_independent():
    value = np.asarray(tables(init(one_to_one(Table("a", 4000, 16)), jax.random.key(1)))["a"], np.float64) * 4
    below = np.array([0.5 + math.erf(x / math.sqrt(2)) / 2 for x in (-2, *np.sort(value.ravel()), 2)])
    share = (below[1:-1] - below[0]) / (below[-1] - below[0])
    assert np.abs(share - (np.arange(share.size) + 0.5) / share.size).max() < 1.95 / math.sqrt(share.size), (
        "Kolmogorov and Smirnov: once in a thousand samples of that distribution"
    )
    for left, right in ((value[1:], value[:-1]), (value[:, 1:], value[:, :-1]), (value[::2], value[1::2])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.02


def test_a_table_may_bring_its_initializer():
    def ones(key, shape, dtype):
        return jnp.full(shape, 3, dtype)

    plan = one_to_one(Table("a", 10, 5, optimizer=SGD(0.1), initializer=ones), Table("b", 10, 5, optimizer=SGD(0.1)))
    found = tables(init(plan, jax.random.key(0)))
    assert np.array_equal(found["a"], np.full((10, 5), 3))
    assert not np.array_equal(found["b"], found["a"])
    traced = jax.jit(lambda key: init(plan, key))(jax.random.key(0))
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(traced), jax.tree.leaves(init(plan, jax.random.key(0))))
    )


def test_tables_under_jit():
    plan = one_to_one(Table("a", 10, 5))
    values = {"a": np.arange(50, dtype=np.float32).reshape(10, 5)}
    assert np.array_equal(jax.jit(tables)(from_tables(plan, values))["a"], values["a"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda v: v.pop("b"), "no b"),
        (lambda v: v.update(x=v["a"]), "unknown x"),
        (lambda v: v.update(a=v["a"][:3]), "table 'a': an array of shape [3, 5], not [10, 5]"),
    ],
)
def test_tables_that_do_not_match_are_refused(change, text):
    plan = one_to_one(Table("a", 10, 5), Table("b", 10, 5))
    values = {name: np.zeros((10, 5), np.float32) for name in ("a", "b")}
    change(values)
    with pytest.raises(UsageError) as error:
        from_tables(plan, values)
    assert text in str(error.value)


def test_a_slot_that_does_not_exist():
    with pytest.raises(UsageError, match="no slot 'momentum'"):
        tables(from_tables(one_to_one(Table("a", 8, 8)), {"a": np.zeros((8, 8))}), "momentum")

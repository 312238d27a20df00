"""Rows that share lines: lookups and updates as those of lines of their own, in less memory."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tilewright.embed import (
    FTRL,
    SGD,
    Adagrad,
    Adam,
    Clipped,
    Feature,
    LaProp,
    RowwiseAdagrad,
    SparseCoreConfig,
    Table,
    Topology,
    check_batches,
    from_tables,
    lookup,
    pack_narrow,
    plan,
    preprocess,
    stack,
    tables,
    update,
)
from tilewright.embed.host.tables import NarrowTables
from tilewright.errors import UsageError

TOPOLOGY = Topology(1, 4)


def model(combiner, optimizer):
    wide = [Table(f"w{w}", 37, w, combiner=combiner, optimizer=optimizer) for w in (1, 2, 3, 4, 5)]
    return [Feature(f"f{t.width}", t) for t in wide]


@pytest.mark.parametrize(("combiner", "optimizer"), [("mean", SGD(0.5)), ("sqrtn", Adagrad(0.5, 0.1))])
def test_packed_tables_train_as_the_others(combiner, optimizer):
    features = model(combiner, optimizer)
    rng = np.random.default_rng(3)
    value = {f.table.name: rng.normal(size=(37, f.table.width)).astype(np.float32) for f in features}
    batch, grads = {}, {}
    for f in features:
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, 16))])
        ids = rng.integers(0, 37, offsets[-1])
        batch[f.name] = (ids, offsets, rng.uniform(0.5, 2, ids.size).astype(np.float32))
        grads[f.name] = rng.normal(size=(16, f.table.width)).astype(np.float32)
    narrow = pack_narrow(features)
    plain, packed = stack(features, TOPOLOGY), stack(narrow.features, TOPOLOGY)
    one, other = from_tables(plain, value), from_tables(packed, narrow.pack(value))
    host, host_packed = preprocess(batch, plain), preprocess(narrow.batch(batch), packed)
    found = narrow.activations(lookup(other, host_packed))
    for name, expected in lookup(one, host).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-5)
    after = narrow.unpack(tables(update(other, host_packed, narrow.gradients(grads, jnp))))
    for name, expected in tables(update(one, host, grads)).items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=1e-5)
    assert [f.table.vocab for f in narrow.features] == [5, 10, 19, 19, 37]
    assert narrow.saved_bytes == 32 * (4 * 37 - 5 - 10 - 19 - 19)


def test_wrong_ids_and_initializers():
    narrow = pack_narrow([Feature("f", Table("t", 9, 2))])
    with pytest.raises(UsageError, match="id 9 of sample 1 is not in"):
        narrow.batch({"f": np.array([[0], [9]])})
    with pytest.raises(UsageError, match="no input for feature 'f'"):
        narrow.batch({})
    with pytest.raises(UsageError, match="initializer"):
        pack_narrow([Feature("f", Table("t", 9, 2, initializer=lambda key, shape, dtype: None))])
    mean = pack_narrow([Feature("f", Table("t", 9, 2, combiner="mean"))])
    with pytest.raises(UsageError, match="sample 0 have no mean"):
        mean.batch({"f": (np.array([1]), np.array([0, 1]), np.array([0.0]))})


def test_bad_ids_are_clipped_or_dropped_before_they_are_combined():
    narrow = pack_narrow([Feature("f", Table("t", 9, 2, combiner="mean"))])
    batch = {"f": [[0, 8, 9], [-1], [4]]}
    dropped = narrow.batch(batch, "drop")["f"]
    assert [np.asarray(x).tolist() for x in (dropped.row_ids, dropped.col_ids)] == [[0, 0, 8], [0, 2, 1]]
    assert dropped.weights.tolist() == [0.5, 0.5, 1.0]
    clipped = narrow.batch(batch, "clip")["f"]
    assert clipped.col_ids.tolist() == [0, 2, 2, 0, 1]
    np.testing.assert_allclose(clipped.weights, np.float32([1 / 3] * 3 + [1, 1]))
    with pytest.raises(UsageError, match=r'id 9 of sample 0 is not in 0 \.\. 8; pass bad_ids="clip"'):
        narrow.batch(batch)


def test_nothing_packed_gives_back_what_it_got():
    given = tuple(model("sum", SGD(0.1)))
    none, batch = NarrowTables(given, given), {"f1": [[1]]}
    assert (none.batch(batch), none.saved_bytes, none.rows_per_line) == (batch, 0, {})
    assert none.batch_sizes(4) == {f.name: 4 for f in given}
    assert none.unpack(none.pack(batch)) == none.gradients(none.activations(batch)) == batch


def logs(n, seed=0):
    rng = np.random.default_rng(seed)
    return [{f.name: rng.integers(0, 37, (16, 3)) for f in model("sum", SGD(0.1))} for _ in range(n)]


@pytest.mark.parametrize("topology", [Topology(1, 1), TOPOLOGY, Topology(2, 4), Topology(8, 2)])
def test_a_plan_of_packed_tables_agrees_with_check_and_batches(topology):
    features = model("sum", SGD(0.1))
    narrow, batches = pack_narrow(features), logs(3)
    made = plan(batches, features, topology, narrow_packing=True, target="tpu-v5p")
    assert (made.samples, made.batch) == (48, 16)
    assert made.stacking.features == narrow.features
    assert [t.rows_per_line for t in made.tables] == [8, 4, 2, 2, 1]
    for table, feature in zip(made.tables, features):
        assert (table.vocab, table.width) == (37, feature.table.width)
        assert table.padded_bytes == 4 * table.padded_vocab * table.padded_width == table.packed_bytes
    assert made.heap.tables * topology.chips == sum(t.packed_bytes for t in made.tables)
    found = check_batches(batches, made.stacking, made.limits, narrow=narrow)
    assert found.passed
    assert all(each.limit == -(-each.observed // 8) * 8 for each in found.limits)
    seen = [preprocess(narrow.batch(b), made.stacking, made.limits, overflow="error").stats for b in batches]
    for name, limits in {each.name: each.observed for each in made.stacks}.items():
        assert max(int(s[name].max_ids_per_partition.max()) for s in seen) == limits.max_ids_per_partition
        assert max(int(s[name].max_unique_ids_per_partition.max()) for s in seen) == limits.max_unique_ids_per_partition


def test_ids_of_a_sample_are_counted_over_its_parts():
    features = [Feature("f", Table("t", 64, 1))]
    narrow, topology = pack_narrow(features), Topology(1, 2)
    placed = stack(narrow.features, topology)
    knobs = SparseCoreConfig(max_ids_per_chip_per_sample=4)
    found = check_batches([{"f": [[0, 1, 2, 3, 9], [0]]}], placed, {}, knobs, narrow=narrow).limits[-1]
    assert (found.observed, found.place, found.over) == (5, "batch 0, sample 0, chip 0", True)


def test_tables_that_zero_gradients_move_are_not_packed():
    kept = [Adam(0.1), FTRL(0.1), LaProp(0.1), RowwiseAdagrad(0.1), Clipped(Adam(0.1), high=1.0)]
    for optimizer in kept:
        assert not pack_narrow(model("sum", optimizer)).rows_per_line
    for optimizer in (SGD(0.1), Clipped(Adagrad(0.1), high=1.0)):
        assert pack_narrow(model("sum", optimizer)).rows_per_line == {"w1": 8, "w2": 4, "w3": 2, "w4": 2}

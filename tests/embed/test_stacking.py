"""Stacking: the published vectors, the name rule, first fit under the caps, and one layout behind all of it."""

from __future__ import annotations

import hashlib
import pickle

import numpy as np
import pytest

from tilewright.embed import SGD, Adagrad, Feature, Limits, Table, Topology, stack
from tilewright.errors import UnsupportedError, UsageError


def golden_stacking(case):
    tables = {t["name"]: Table(t["name"], t["vocab"], t["dim"]) for t in case["tables"]}
    features = [Feature(f["name"], tables[f["table"]]) for f in case["features"]]
    topology = Topology(case["global_device_count"], case["num_sc_per_device"])
    return stack(features, topology, rotation=case["rotation_arg"], batch_size=32)


def test_golden_placements(vectors):
    for case in vectors("embed_stacking")["cases"]:
        plan = golden_stacking(case)
        (group,) = plan.stacks.values()
        assert (group.vocab, group.padded_width) == (case["stack_vocab_size"], case["stack_embedding_dim"])
        for want in case["tables"]:
            place = plan.tables[want["name"]]
            assert place.padded_vocab == want["padded_vocab"]
            assert (place.row_offset, place.rotation) == (want["row_offset_in_shard"], want["shard_rotation"])
        sizes = {f["name"]: 32 for f in case["features"]}
        assert group.samples_per_sparsecore(sizes) * plan.topology.sparsecores == case["total_sample_count"]
        for want in case["features"]:
            place = plan.tables[want["table"]]
            assert (place.col_offset, place.rotation) == (want["col_offset"], want["col_shift"])
            offset = group.sample_offsets(sizes)[want["name"]] * plan.topology.sparsecores
            assert offset == want["row_offset"]


def test_golden_rows_through_the_layout(vectors):
    for case in vectors("embed_stacking")["cases"]:
        plan = golden_stacking(case)
        shards = plan.topology.sparsecores
        for want in case["samples"]:
            at = plan.tables[want["table"]].layout().address(want["row"], 0)
            assert (at["shard"], at["row"]) == (want["shard"], want["local_row"])
            assert want["col_id"] == at["shard"] + shards * at["row"]


def test_golden_arrays(vectors):
    """The whole stacked array, filled through each table's layout, where the vectors have it."""
    cases = [c for c in vectors("embed_stacking")["cases"] if c["stacked_array_pad_minus1"]]
    assert len(cases) > 1
    for case in cases:
        plan = golden_stacking(case)
        (group,) = plan.stacks.values()
        got = np.full((group.shards, group.rows_per_shard, group.padded_width), -1.0)
        for k, table in enumerate(group.tables):
            layout = plan.tables[table.name].layout()
            values = 1000 * (k + 1) + np.arange(table.vocab * table.width).reshape(table.vocab, table.width)
            index = np.indices(values.shape).reshape(2, -1).T
            shard, row, column = layout.addresses(index).T
            got[shard, row, column] = values.reshape(-1)
        assert got.shape == tuple(case["stacked_array_shape"])
        assert np.array_equal(got, np.array(case["stacked_array_pad_minus1"]))


def two(a, b, **options):
    return stack([Feature("fa", a), Feature("fb", b)], Topology(1, 4), **options)


def test_a_table_left_alone_is_its_own_stack():
    plan = two(Table("a", 10, 8), Table("b", 10, 8), table_stacking=False)
    assert list(plan.stacks) == ["a", "b"]
    assert {p.stack for p in plan.placements} == {"a", "b"}
    assert all(p.rotation == 0 and p.row_offset == 0 for p in plan.placements)


@pytest.mark.parametrize(
    "other",
    [Table("b", 10, 9), Table("b", 10, 8, combiner="mean"), Table("b", 10, 8, optimizer=Adagrad(0.01))],
)
def test_unlike_tables_are_not_stacked(other):
    assert len(two(Table("a", 10, 8), other).stacks) == 2


def test_equal_padded_widths_are_stacked():
    assert list(two(Table("a", 10, 5), Table("b", 10, 8)).stacks) == ["a_b"]


def test_tables_stand_in_order_of_first_use():
    b, a, c = Table("b", 10, 8), Table("a", 10, 8), Table("c", 10, 16)
    plan = stack([Feature("1", b), Feature("2", c), Feature("3", a), Feature("4", b)], Topology(1, 2))
    assert list(plan.stacks) == ["b_a", "c"]
    assert [f.name for f in plan.stacks["b_a"].features] == ["1", "3", "4"]
    assert list(plan.tables) == ["b", "c", "a"]


def test_first_fit_under_the_activation_cap():
    """Width 8, S = 1: 32 bytes a sample; 60, 50 and 40 of 100 samples: the third fits beside the first."""
    tables = [Table(n, 10, 8) for n in "abc"]
    features = [Feature(t.name, t) for t in tables]
    sizes = {"a": 60, "b": 50, "c": 40}
    plan = stack(features, Topology(1, 1), batch_size=sizes, activation_bytes=32 * 100)
    assert list(plan.stacks) == ["a_c", "b"]
    assert list(stack(features, Topology(1, 1), activation_bytes=32 * 100).stacks) == ["a_b_c"]


def test_the_default_cap_is_two_mebibytes():
    a, b = Table("a", 10, 8), Table("b", 10, 8)
    features = [Feature("a", a), Feature("b", b)]
    assert len(stack(features, Topology(1, 1), batch_size=32768).stacks) == 1
    assert len(stack(features, Topology(1, 1), batch_size=32769).stacks) == 2
    assert len(stack(features, Topology(1, 2), batch_size=65536).stacks) == 1


def test_long_names_end_in_a_digest():
    tables = [Table(f"a_table_with_a_long_name_{k}", 10, 8) for k in range(3)]
    (name,) = stack([Feature(t.name, t) for t in tables], Topology(1, 1)).stacks
    whole = "_".join(t.name for t in tables)
    assert name == whole[:50] + "..." + hashlib.sha256(whole.encode()).hexdigest()[:12]
    fifty = Table("x" * 50, 10, 8)
    assert list(stack([Feature("f", fifty)], Topology(1, 1)).stacks) == [fifty.name]


def test_a_plan_is_a_hashable_value():
    plan, again = (two(Table("a", 10, 8), Table("b", 10, 8)) for _ in range(2))
    assert plan == again
    assert hash(plan) == hash(again)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan != two(Table("a", 11, 8), Table("b", 10, 8))


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 8, 12])
def test_rotation_uses_the_sparsecores_of_a_device(shards):
    tables = [Table(f"t{k}", 10, 8) for k in range(4)]
    plan = stack([Feature(t.name, t) for t in tables], Topology(2, shards))
    assert [plan.tables[t.name].rotation for t in tables] == [k * shards % (2 * shards) for k in range(4)]


def test_topology_for_a_target():
    topology = Topology.for_target("tpu-7x", chips=2)
    assert (topology.sparsecores, topology.devices, topology.sparsecores_per_device) == (8, 4, 2)
    with pytest.raises(UsageError, match="tpu-v5e has no SparseCores"):
        Topology.for_target("tpu-v5e")


A = Table("a", 10, 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Table("", 1, 1), "table name '' is not a non-empty text"),
        (lambda: Table("a", 0, 1), "table 'a': vocab = 0 is not a whole number of at least 1"),
        (lambda: Table("a", 10, 2.5), "table 'a': width = 2.5"),
        (lambda: Table("a", 10, 8, combiner="max"), "table 'a': unknown combiner 'max'; one of sum, mean, sqrtn"),
        (lambda: Feature("f", "a"), "feature 'f': table = 'a' is not a Table"),
        (lambda: Limits(0, 1), "limits: max_ids_per_partition = 0"),
        (lambda: Limits(1, None), "limits: max_unique_ids_per_partition = None"),
        (lambda: Topology(0, 4), "topology: chips = 0"),
        (lambda: Topology(1, 4, devices=3), "topology: 4 SparseCores do not divide over 3 devices"),
        (lambda: stack([], Topology(1, 1)), "stack: no features"),
        (lambda: stack([Feature("f", A)] * 2, Topology(1, 1)), "two features are called 'f'"),
        (lambda: two(A, Table("a", 11, 8)), "two different tables are called 'a'"),
        (lambda: two(A, A, batch_size=6), "feature 'fa': a batch of 6 does not divide over 4 SparseCores"),
        (lambda: two(A, A, batch_size={"fa": 4}), "feature 'fb': batch size = None"),
        (lambda: two(A, A, rotation=-1), "stack: rotation = -1"),
    ],
)
def test_bad_configurations(make, message):
    with pytest.raises(UsageError) as error:
        make()
    assert message in str(error.value)


def test_colliding_stack_names():
    tables = Table("a", 10, 8), Table("b", 10, 8), Table("a_b", 10, 16)
    with pytest.raises(UsageError, match="two stacks would be called 'a_b'"):
        stack([Feature(t.name, t) for t in tables], Topology(1, 1))


def test_column_ids_stay_in_32_bits():
    with pytest.raises(UnsupportedError, match="table 'a': a padded vocabulary of 2147483648 rows"):
        stack([Feature("f", Table("a", 2**31 - 1, 8))], Topology(1, 1))
    plan = two(Table("a", 2**30, 8, optimizer=SGD(1.0)), Table("b", 2**30, 8, optimizer=SGD(1.0)))
    assert list(plan.stacks) == ["a", "b"]


def test_a_rotation_of_its_own_for_a_stack():
    """Others keep the default; one number is of all, as before."""
    tables = [Table(f"t{k}", 64, 8 if k < 3 else 16) for k in range(6)]
    features = [Feature(t.name, t) for t in tables]
    topology = Topology(2, 2)
    made = stack(features, topology, rotation={"t0_t1_t2": 3})
    assert [p.rotation for p in made.placements] == [0, 3, 2, 0, 2, 0]
    assert made.rotations == {"t0_t1_t2": 3, "t3_t4_t5": 2}
    assert stack(features, topology, rotation=made.rotations) == made
    assert stack(features, topology, rotation={}) == stack(features, topology)
    assert stack(features, topology, rotation=1).rotations == {"t0_t1_t2": 1, "t3_t4_t5": 1}
    for wrong, message in (
        ({"t9": 1}, "a rotation of 't9', which is no stack"),
        ({"t0_t1_t2": -1}, "rotation of 't0_t1"),
    ):
        with pytest.raises(UsageError, match=message):
            stack(features, topology, rotation=wrong)

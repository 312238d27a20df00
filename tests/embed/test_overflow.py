"""Above a limit: errors that name everything, and drops that are counted and without bias to low ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.embed import batches, oracle
from tilewright.embed import Feature, Limits, Table, Topology, preprocess, stack
from tilewright.errors import LimitError

QUICK = settings(max_examples=tries(15))


def test_golden_drops_in_the_peers_order(vectors):
    cases = [c for c in vectors("embed_combiners_and_overflow")["cases"] if c["kind"] == "id_dropping"]
    assert len(cases) == 2
    for case in cases:
        topology = Topology(case["global_device_count"], case["num_sc_per_device"])
        plan = stack([Feature("f", Table("t", 16, 8))], topology)
        limits = {"t": Limits(case["max_ids_per_partition"], case["max_unique_ids_per_partition"])}
        host = preprocess({"f": case["batch"]}, plan, limits, overflow="drop", drop_order="lowest")
        pointers = host.row_pointers["t"].reshape(topology.sparsecores, -1)
        kept = 0
        for source, want in enumerate(case["per_sc"]):
            assert pointers[source].tolist() == want["row_pointers"]
            for shard, part in enumerate(want["partitions"]):
                got = [list(e) for e in zip(*(a.tolist() for a in host.partition("t", source, shard)))]
                assert got == part
                kept += len(got)
        stats = host.stats["t"]
        assert stats.max_ids_per_partition.tolist() == case["observed_max_ids"]
        assert stats.max_unique_ids_per_partition.tolist() == case["observed_max_unique"]
        merged = sum(len(set(row)) for row in case["batch"])
        repeats = sum(map(len, case["batch"])) - merged
        assert merged - repeats <= kept + stats.dropped_ids.sum() == merged
        assert case["dropped"] - repeats <= stats.dropped_ids.sum() <= case["dropped"]


def test_an_error_names_stack_source_shard_and_both_numbers():
    plan = stack([Feature("a", Table("a", 64, 8)), Feature("b", Table("b", 64, 8))], Topology(2, 2))
    batch = {"a": [[]] * 4, "b": [[], [0, 4, 8], [], [0, 4, 8, 12, 16]]}
    with pytest.raises(LimitError) as error:
        preprocess(batch, plan, {"a_b": Limits(2, 2)}, overflow="error")
    assert str(error.value) == (
        "stack 'a_b', source 1, shard 2: 3 ids in one partition, max_ids_per_partition is 2; "
        "set max_ids_per_partition of 'a_b' to at least 5, which this batch needs"
    )
    assert (error.value.table, error.value.shard, error.value.observed, error.value.limit) == ("a_b", 2, 3, 2)
    with pytest.raises(LimitError, match="3 distinct ids in one partition, max_unique_ids_per_partition is 2"):
        preprocess(batch, plan, {"a_b": Limits(8, 2)}, overflow="error")
    fine = preprocess(batch, plan, {"a_b": Limits(5, 5)}, overflow="error")
    assert fine.embedding_ids["a_b"].shape == (2, 2 * 4 * 8)
    assert not fine.minibatch_layout


def peers_choice(part, limit):
    """What stays of sorted entries: ranks of entries and of distinct rows within the limits, dropped ones counted."""
    rows = sorted({e[0] for e in part})[: limit.max_unique_ids_per_partition]
    return [e for e in part[: limit.max_ids_per_partition] if e[0] in rows]


@QUICK
@given(batches.stackings(), st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_kept_and_dropped_are_all(plan, seed, ids, unique, lowest):
    batch = batches.random_batch(plan, seed, most=6)
    shards = plan.topology.sparsecores
    limits = {name: Limits(ids, unique) for name in plan.stacks}
    host = preprocess(
        batches.given(batch, seed), plan, limits, overflow="drop", drop_order="lowest" if lowest else "scattered"
    )
    assert host.num_minibatches == 1
    for name, limit in limits.items():
        dropped = np.zeros(shards, int)
        for source in range(shards):
            found = oracle.source_entries(plan, name, batch, source)
            for shard in range(shards):
                kept = list(zip(*(a.tolist() for a in host.partition(name, source, shard))))
                dropped[shard] += len(found[shard]) - len(kept)
                assert set(kept) <= set(found[shard])
                assert kept == sorted(kept)
                assert len(kept) <= ids
                assert len({e[0] for e in kept}) <= unique
                if len(found[shard]) <= ids and len({e[0] for e in found[shard]}) <= unique:
                    assert kept == found[shard]
                elif lowest:
                    assert kept == peers_choice(found[shard], limit)
                elif len({e[0] for e in found[shard]}) <= unique:
                    assert len(kept) == ids
        assert host.stats[name].dropped_ids.tolist() == dropped.tolist()


@pytest.mark.parametrize("limit", [Limits(300, 1000), Limits(1000, 300)])
def test_drops_do_not_prefer_high_ids(limit):
    """1000 ids, 300 stay: over forty batches low and high ids go equally often, and no id always or never."""
    plan = stack([Feature("f", Table("t", 2000, 8))], Topology(1, 1))
    stayed = np.zeros(1000, int)
    for k in range(40):
        ids = np.append(np.arange(1000), 1000 + k)
        host = preprocess({"f": ids[None]}, plan, {"t": limit}, overflow="drop")
        kept = host.partition("t", 0, 0)[0]
        assert len(kept) == 300
        assert host.stats["t"].dropped_ids.tolist() == [701]
        stayed[kept[kept < 1000]] += 1
    assert stayed.min() > 0
    assert stayed.max() < 40
    halves = stayed[:500].sum() / stayed.sum()
    assert abs(halves - 0.5) < 0.02
    again = preprocess({"f": ids[None]}, plan, {"t": limit}, overflow="drop")
    assert np.array_equal(again.partition("t", 0, 0)[0], kept)


def test_stacks_without_a_limit_never_overflow():
    plan = stack([Feature("a", Table("a", 64, 8)), Feature("b", Table("b", 64, 16))], Topology(1, 1))
    batch = {"a": [list(range(40))], "b": [list(range(50))]}
    host = preprocess(batch, plan, {"a": Limits(8, 8)}, overflow="drop")
    assert host.stats["a"].dropped_ids.tolist() == [32]
    assert host.stats["b"].dropped_ids.tolist() == [0]
    assert (host.embedding_ids["a"].shape, host.embedding_ids["b"].shape) == ((1, 8), (1, 64))

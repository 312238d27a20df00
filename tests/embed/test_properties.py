"""The whole of preprocessing at once, over random models, topologies and batches."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.embed import batches, oracle
from tilewright.embed import (
    Agreement,
    Feature,
    Limits,
    Table,
    Topology,
    init,
    lookup,
    preprocess,
    preprocess_samples,
    sample_order,
    stack,
)
from tilewright.errors import LimitError, UsageError

SLOW = settings(max_examples=tries(8), suppress_health_check=list(HealthCheck))


def entries(host, name, source, shard):
    return sorted(zip(*(part.tolist() for part in host.partition(name, source, shard))))


def processes(plan, batch, limits, options, number):
    """The same batch on ``number`` processes that feed equal shares of the devices."""
    shards = plan.topology.sparsecores
    barrier, proposals, hosts = threading.Barrier(number), [None] * number, [None] * number

    def one(k):
        def agree(mine):
            proposals[k] = mine
            barrier.wait(60)
            return Agreement.join(proposals)

        mine = range(k * shards // number, (k + 1) * shards // number)
        hosts[k] = preprocess(batch, plan, limits, sources=mine, agree=agree, **options)

    threads = [threading.Thread(target=one, args=(k,)) for k in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return hosts


@SLOW
@given(batches.stackings(), st.integers(0, 2**32 - 1), st.integers(1, 12), st.sampled_from(["minibatch", "drop"]))
def test_partitions_mini_batches_drops_and_processes(plan, seed, most, overflow):
    batch = batches.random_batch(plan, seed, most=6)
    form = batches.given(batch, seed)
    limits = {name: Limits(most, most) for name in plan.stacks}
    options = {"overflow": overflow, "allow_id_dropping": True}
    whole, cut = preprocess(form, plan), preprocess(form, plan, limits, **options)
    shards = plan.topology.sparsecores
    for name in plan.stacks:
        lost = np.zeros(shards, int)
        for source in range(shards):
            expected = oracle.source_entries(plan, name, batch, source)
            for shard in range(shards):
                everything = sorted(expected[shard])
                assert entries(whole, name, source, shard) == everything, "partitions equal the oracle"
                kept = entries(cut, name, source, shard)
                assert set(kept) <= set(everything)
                assert len(set(kept)) == len(kept), "no entry is in two mini-batches"
                lost[shard] += len(everything) - len(kept)
                for m in range(cut.num_minibatches):
                    rows = cut.partition(name, source, shard, m)[0]
                    assert len(rows) <= most
        assert cut.stats[name].dropped_ids.tolist() == lost.tolist(), "kept + dropped = all"
        if overflow == "minibatch" and not lost.any():
            assert all(
                entries(cut, name, l, p) == entries(whole, name, l, p) for l in range(shards) for p in range(shards)
            )
    number = next(n for n in (4, 3, 2, 1) if plan.topology.devices % n == 0)
    hosts = processes(plan, form, limits, options, number)
    for kind in ("row_pointers", "embedding_ids", "sample_ids", "gains"):
        for name in plan.stacks:
            joined = np.concatenate([getattr(host, kind)[name] for host in hosts])
            np.testing.assert_array_equal(joined, getattr(cut, kind)[name])


@settings(max_examples=tries(4), suppress_health_check=list(HealthCheck))
@given(batches.stackings(), st.integers(0, 2**32 - 1))
def test_lookups_through_mini_batches_equal_lookups_without(plan, seed):
    import jax

    form = batches.given(batches.random_batch(plan, seed, most=3), seed)
    whole = preprocess(form, plan)
    limits = {n: Limits(*[max(4, int(s.max_ids_per_partition.max()) - 1)] * 2) for n, s in whole.stats.items()}
    cut = preprocess(form, plan, limits, allow_id_dropping=True)
    if any(s.dropped_ids.any() for s in cut.stats.values()):
        return
    state = init(plan, jax.random.key(1))
    without = lookup(state, whole)
    for name, value in lookup(state, cut).items():
        np.testing.assert_allclose(value, without[name], rtol=1e-5, atol=1e-6)


@SLOW
@given(batches.stackings(), st.integers(0, 2**32 - 1), st.integers(1, 10))
def test_parts_of_the_samples_hold_the_whole(plan, seed, most):
    batch = batches.random_batch(plan, seed, most=1)
    batch = {name: (ids * 4, None if w is None else w * 4) for name, (ids, w) in batch.items()}
    form, shards = batches.given(batch, seed), plan.topology.sparsecores
    limits = {name: Limits(most, most) for name in plan.stacks}
    try:
        parts = preprocess_samples(form, plan, limits)
    except LimitError:
        with pytest.raises(LimitError):
            preprocess_samples(form, plan, limits, parts=4)
        return
    for k, part in enumerate(parts):
        chosen = {}
        for name, (ids, weights) in batch.items():
            order = sample_order(len(ids), len(parts), shards).reshape(len(parts), -1)[k]
            chosen[name] = [ids[i] for i in order], None if weights is None else [weights[i] for i in order]
        for name in plan.stacks:
            assert not part.stats[name].dropped_ids.any()
            for source in range(shards):
                expected = oracle.source_entries(plan, name, chosen, source)
                for shard in range(shards):
                    assert entries(part, name, source, shard) == sorted(expected[shard])


def test_lookups_of_sample_parts_are_the_batchs():
    import jax

    plan = stack([Feature("f", Table("t", 40, 8, combiner="mean"))], Topology(2, 2))
    ids = np.random.default_rng(0).integers(0, 40, (32, 3))
    state = init(plan, jax.random.key(0))
    parts = preprocess_samples({"f": ids}, plan, {"t": Limits(8, 8)})
    assert len(parts) > 1
    found = np.concatenate([np.asarray(lookup(state, part)["f"]) for part in parts])
    whole = np.asarray(lookup(state, preprocess({"f": ids}, plan))["f"])
    np.testing.assert_allclose(found, whole[sample_order(32, len(parts), 4)], rtol=1e-6, atol=1e-6)
    with pytest.raises(UsageError, match="does not divide slices of 8 samples"):
        preprocess_samples({"f": ids}, plan, {"t": Limits(8, 8)}, parts=3)
    with pytest.raises(LimitError):
        preprocess_samples({"f": np.arange(32 * 40).reshape(32, 40) % 40}, plan, {"t": Limits(8, 8)})

"""Preprocessing against the published vectors and the slow oracle: merging, combiners, sorting, padding, counting."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.embed import batches, oracle
from tilewright.embed import COO, Feature, Limits, Table, Topology, preprocess, stack
from tilewright.errors import UsageError

QUICK = settings(max_examples=tries(20))


def one_table(vocab, topology, combiner="sum", width=8):
    return stack([Feature("f", Table("t", vocab, width, combiner=combiner))], topology)


def entries(host, stack_name, source, shard):
    return [tuple(x) for x in zip(*(a.tolist() for a in host.partition(stack_name, source, shard)))]


def assert_same_bits(a, b):
    assert a.dtype == b.dtype == np.float32
    assert np.array_equal(a.view(np.int32), b.view(np.int32))


def test_golden_merging(vectors):
    for case in vectors("embed_coo_dedup")["cases"]:
        letters = sorted({x for row in case["samples"] for x in row}, key=str)
        ids = [[letters.index(x) for x in row] for row in case["samples"]]
        host = preprocess({"f": ids}, one_table(max(len(letters), 1), Topology(1, 1)))
        rows, samples, gains = host.partition("t", 0, 0)
        got = sorted(zip(samples.tolist(), rows.tolist(), gains.tolist()))
        want = {}
        for i, row in enumerate(ids):
            for x in row:
                want[i, x] = want.get((i, x), 0) + 1
        assert got == sorted((i, x, gain) for (i, x), gain in want.items())
        assert sorted(gains.tolist()) == sorted(case["gains_if_merged"])


def test_golden_limits(vectors):
    for case in vectors("embed_limits")["cases"]:
        topology = Topology(case["global_device_count"], case["num_sc_per_device"])
        host = preprocess({"f": case["batch"]}, one_table(case["vocab"], topology))
        want = case["expected"]
        stats = host.stats["t"]
        assert stats.max_ids_per_partition.tolist() == want["max_ids_per_partition_vector"]
        assert stats.max_unique_ids_per_partition.tolist() == want["max_unique_ids_per_partition_vector"]
        assert stats.required_buffer_size.tolist() == want["required_buffer_size_per_sc"]
        for source in want["per_source_sc"]:
            parts = [entries(host, "t", source["sc"], shard) for shard in range(topology.sparsecores)]
            assert [len(p) for p in parts] == source["ids_per_sparse_core"]
            assert [len({e[0] for e in p}) for p in parts] == source["unique_ids_per_sparse_core"]


def test_golden_combiners(vectors):
    cases = [c for c in vectors("embed_combiners_and_overflow")["cases"] if c["kind"] == "combiner"]
    assert len(cases) == 3
    for case in cases:
        topology = Topology(case["global_device_count"], case["num_sc_per_device"])
        host = preprocess({"f": case["batch"]}, one_table(16, topology, case["combiner"]))
        pointers = host.row_pointers["t"].reshape(topology.sparsecores, -1)
        for source, want in enumerate(case["per_sc"]):
            assert pointers[source].tolist() == want["row_pointers"]
            for shard, part in enumerate(want["partitions"]):
                got = entries(host, "t", source, shard)
                assert [e[:2] for e in got] == [tuple(e[:2]) for e in part]
                assert [round(e[2], 7) for e in got] == [e[2] for e in part]


def check_against_oracle(plan, batch, host, bad_ids="drop"):
    """Every buffer of the plain layout, unused slots and all, and the statistics."""
    topology = plan.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    for name in plan.stacks:
        found = [oracle.source_entries(plan, name, batch, s, bad_ids) for s in range(shards)]
        slots = host.embedding_ids[name].shape[1] // per_device
        assert host.row_pointers[name].shape == (topology.devices, per_device * max(shards, 8))
        for device in range(topology.devices):
            mine = found[device * per_device : (device + 1) * per_device]
            ends, rows, samples, gains = oracle.buffers(mine, slots, shards)
            assert np.array_equal(host.row_pointers[name][device], ends)
            assert np.array_equal(host.embedding_ids[name][device], rows)
            assert np.array_equal(host.sample_ids[name][device], samples)
            assert_same_bits(host.gains[name][device], gains)
        counts = np.array([[len(f[p]) for p in range(shards)] for f in found])
        unique = np.array([[len({e[0] for e in f[p]}) for p in range(shards)] for f in found])
        stats = host.stats[name]
        assert stats.max_ids_per_partition.tolist() == counts.max(axis=0).tolist()
        assert stats.max_unique_ids_per_partition.tolist() == unique.max(axis=0).tolist()
        assert stats.required_buffer_size.tolist() == [sum(oracle.round8(n) for n in row) for row in counts.tolist()]
        assert not stats.dropped_ids.any()


@QUICK
@given(batches.stackings(), st.integers(0, 2**32 - 1))
def test_buffers_equal_the_oracle(plan, seed):
    batch = batches.random_batch(plan, seed)
    host = preprocess(batches.given(batch, seed), plan)
    assert (host.num_minibatches, host.minibatch_layout, host.split_bits) == (1, False, 0)
    check_against_oracle(plan, batch, host)


@QUICK
@given(batches.stackings(), st.integers(0, 2**32 - 1), st.sampled_from(["clip", "drop"]))
def test_bad_ids_are_clipped_or_dropped(plan, seed, bad_ids):
    batch = batches.random_batch(plan, seed, bad=0.3)
    host = preprocess(batches.given(batch, seed), plan, bad_ids=bad_ids)
    check_against_oracle(plan, batch, host, bad_ids)


@settings(max_examples=tries(8))
@given(batches.stackings(), st.integers(0, 2**32 - 1))
def test_many_ids_take_the_counting_sort(plan, seed):
    batch = batches.random_batch(plan, seed, most=30, hot=20)
    check_against_oracle(plan, batch, preprocess(batches.given(batch, seed), plan))


@pytest.mark.parametrize(("shards", "samples"), [(1, 3600), (3, 3600), (8, 20), (7, 3)])
def test_large_vocabularies_and_slices(shards, samples):
    """More keys than narrow digits are for, or few enough to be sorted in groups; ids up to 2**31, in either width."""
    rng = np.random.default_rng(shards)
    vocab = 2**31 - 64
    ids = rng.integers(0, vocab, (samples * shards, 1))
    ids[:: shards + 1] = vocab - 1
    plan = one_table(vocab, Topology(1, shards))
    batch = {"f": (ids.tolist(), None)}
    check_against_oracle(plan, batch, preprocess({"f": ids}, plan))
    check_against_oracle(plan, batch, preprocess({"f": ids.astype(np.int32)}, plan))


@given(st.data())
@settings(max_examples=tries(20))
def test_the_kernel_agrees_with_the_layout(data):
    """Shard and local row of single ids, against the one layout engine."""
    plan = data.draw(batches.stackings(combiners=("sum",)))
    shards = plan.topology.sparsecores
    feature = data.draw(st.sampled_from(plan.features))
    place = plan.tables[feature.table.name]
    chosen = data.draw(st.lists(st.integers(0, feature.table.vocab - 1), min_size=1, max_size=8))
    ids = chosen * shards
    batch = {f.name: np.zeros((shards, 0), np.int64) for f in plan.features}
    batch[feature.name] = np.array(ids)[:, None]
    host = preprocess(batch, plan)
    got = set()
    for source in range(shards):
        for shard in range(shards):
            got |= {(shard, row) for row in host.partition(place.stack, source, shard)[0].tolist()}
    layout = place.layout()
    assert got == {(a["shard"], a["row"]) for a in (layout.address(i, 0) for i in chosen)}


def test_equal_weights_of_one_give_the_same_bits():
    rng = np.random.default_rng(7)
    ids = [rng.integers(0, 5, rng.integers(1, 9)).tolist() for _ in range(64)]
    flat, offsets = np.concatenate(ids), np.cumsum([0, *map(len, ids)])
    for combiner in ("sum", "mean", "sqrtn"):
        plan = one_table(5, Topology(1, 4), combiner)
        plain = preprocess({"f": ids}, plan)
        ones = preprocess({"f": (flat, offsets, np.ones(flat.size))}, plan)
        assert_same_bits(plain.gains["t"], ones.gains["t"])
        assert np.array_equal(plain.sample_ids["t"], ones.sample_ids["t"])


def test_features_with_and_without_weights_may_share_a_table():
    table = Table("t", 9, 8)
    plan = stack([Feature("plain", table), Feature("weighted", table)], Topology(1, 1))
    batch = {"plain": [[3], [5]], "weighted": [[3, 3], [1]]}, {"weighted": [[0.5, 0.25], [2.0]]}
    host = preprocess({"plain": np.array([[3], [5]]), "weighted": ([3, 3, 1], [0, 2, 3], [0.5, 0.25, 2.0])}, plan)
    assert entries(host, "t", 0, 0) == [(1, 3, 2.0), (3, 0, 1.0), (3, 2, 0.75), (5, 1, 1.0)]
    check_against_oracle(plan, {n: (ids, batch[1].get(n)) for n, ids in batch[0].items()}, host)


def test_the_order_of_the_sums_shows_in_the_bits():
    """1 + 2**-24 + 2**-24 in float32 is 1; the small ones first make 1 + 2**-23."""
    plan = one_table(4, Topology(1, 1))
    tiny = 2.0**-24
    for weights, want in (([1, tiny, tiny], 1.0), ([tiny, tiny, 1], 1.0 + 2.0**-23)):
        host = preprocess({"f": ([2, 2, 2], [0, 3], weights)}, plan)
        assert host.partition("t", 0, 0)[2].tolist() == [want]


def test_every_kind_of_input_says_the_same():
    plan = one_table(10, Topology(1, 2))
    ids = [[3, 1], [9, 9], [0, 4], [3, 3]]
    flat = [i for row in ids for i in row]
    kinds = [
        ids,
        np.array(ids),
        np.array(ids, np.uint8),
        np.array(ids, ">i4"),
        (flat, [0, 2, 4, 6, 8]),
        (np.array(flat, np.uint64), np.array([0, 2, 4, 6, 8], np.int32)),
        COO([3, 0, 1, 2, 0, 1, 2, 3], [3, 3, 9, 0, 1, 9, 4, 3], batch_size=4),
        [np.array(row) for row in ids],
    ]
    hosts = [preprocess({"f": kind}, plan) for kind in kinds]
    for host in hosts[1:]:
        assert np.array_equal(host.embedding_ids["t"], hosts[0].embedding_ids["t"])
        assert_same_bits(host.gains["t"], hosts[0].gains["t"])


def test_one_id_per_sample_may_be_flat():
    plan = one_table(10, Topology(1, 2))
    flat, column = (preprocess({"f": x}, plan) for x in (np.arange(8), np.arange(8)[:, None]))
    assert np.array_equal(flat.sample_ids["t"], column.sample_ids["t"])


def test_without_limits_buffers_grow_by_powers_of_two():
    plan = one_table(64, Topology(1, 2))
    for n, per_partition in ((1, 8), (8, 8), (9, 16), (17, 32), (31, 32)):
        host = preprocess({"f": [list(range(0, 2 * n, 2)), []]}, plan)
        assert host.embedding_ids["t"].shape == (1, 2 * 2 * per_partition)


def test_slots_follow_the_published_sizes(vectors):
    for case in vectors("embed_memory_formulas")["coo_buffer_cases"]:
        if case["slots_per_device"] > 2**18:
            continue
        topology = Topology(case["global_device_count"], case["num_sc_per_device"])
        limits = {"t": Limits(case["max_ids_per_partition"], case["max_ids_per_partition"])}
        overflow = "minibatch" if case["minibatching"] else "error"
        host = preprocess({"f": [[]] * topology.sparsecores}, one_table(8, topology), limits, overflow)
        assert host.embedding_ids["t"].shape == (topology.devices, case["slots_per_device"])
        assert host.row_pointers["t"].shape == (topology.devices, case["row_pointers_per_device"])


def test_threads_change_nothing(monkeypatch):
    rng = np.random.default_rng(3)
    tables = [Table(f"t{k}", 1000 * (k + 1), 8, combiner="mean") for k in range(3)]
    batch = {t.name: rng.integers(0, t.vocab, (4096, 3)) for t in tables}
    for topology in (Topology(1, 1), Topology(2, 4)):
        plan = stack([Feature(t.name, t) for t in tables], topology)
        hosts = []
        for threads in ("1", "2", "5"):
            monkeypatch.setenv("TILEWRIGHT_THREADS", threads)
            hosts.append(preprocess(batch, plan))
        (name,) = plan.stacks
        for host in hosts[1:]:
            assert np.array_equal(host.row_pointers[name], hosts[0].row_pointers[name])
            assert np.array_equal(host.embedding_ids[name], hosts[0].embedding_ids[name])
            assert_same_bits(host.gains[name], hosts[0].gains[name])
    monkeypatch.setenv("TILEWRIGHT_THREADS", "none")
    with pytest.raises(UsageError, match="TILEWRIGHT_THREADS = 'none'"):
        preprocess(batch, plan)


def test_callers_in_many_threads_do_not_meet():
    plan = one_table(1000, Topology(1, 4))
    inputs = [np.random.default_rng(k).integers(0, 1000, (512 * (k + 1), 2)) for k in range(4)]
    want = [preprocess({"f": x}, plan) for x in inputs]
    failures = []

    def work(k):
        for _ in range(10):
            got = preprocess({"f": inputs[k]}, plan)
            if not np.array_equal(got.embedding_ids["t"], want[k].embedding_ids["t"]):
                failures.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_forked_process_works_on():
    """The parent's kernel threads do not exist in a fork; data loaders fork."""
    code = (
        "import os, sys, numpy as np\n"
        "from tilewright.embed import Feature, Table, Topology, preprocess, stack\n"
        "plan = stack([Feature('f', Table('t', 99, 8))], Topology(1, 4))\n"
        "ids = np.arange(40000)[:, None] % 99\n"
        "want = preprocess({'f': ids}, plan).embedding_ids['t']\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if np.array_equal(preprocess({'f': ids}, plan).embedding_ids['t'], want) else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    environment = {**os.environ, "TILEWRIGHT_THREADS": "2"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=600).returncode == 0


def test_a_later_batch_leaves_an_earlier_one_alone():
    plan = one_table(100, Topology(1, 2))
    first = preprocess({"f": np.arange(64)[:, None]}, plan)
    kept = first.embedding_ids["t"].copy()
    preprocess({"f": np.arange(64)[:, None] % 7}, plan)
    assert np.array_equal(first.embedding_ids["t"], kept)


def test_parts_of_the_sources_are_parts_of_the_whole():
    plan = stack([Feature("a", Table("a", 50, 8)), Feature("b", Table("b", 70, 8, combiner="mean"))], Topology(4, 2))
    batch = batches.random_batch(plan, 5)
    inputs = {name: ids for name, (ids, _) in batch.items()}
    whole = preprocess(inputs, plan)
    for first in range(0, 8, 4):
        sources = range(first, first + 4)
        local = {n: ids[first * len(ids) // 8 : (first + 4) * len(ids) // 8] for n, ids in inputs.items()}
        part = preprocess(inputs, plan, sources=sources)
        mine = preprocess(local, plan, sources=sources, local_batch=True)
        assert part.batch_sizes == mine.batch_sizes == whole.batch_sizes
        for name in plan.stacks:
            assert part.row_pointers[name].shape[0] == 2
            for source in sources:
                for shard in range(8):
                    want = entries(whole, name, source, shard)
                    assert entries(part, name, source, shard) == want
                    assert entries(mine, name, source, shard) == want


def test_neither_jax_nor_numba_is_needed_to_plan():
    code = (
        "import sys; from tilewright.embed import Feature, Table, Topology, stack;"
        "stack([Feature('f', Table('t', 9, 8))], Topology(1, 2));"
        "assert not {'jax', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


def test_buffers_are_used_again_only_when_nobody_holds_them():
    plan = one_table(100, Topology(1, 2))
    batch = {"f": np.arange(64)[:, None]}
    first = preprocess(batch, plan)
    view = first.embedding_ids["t"][0, 3:9]
    kept, where = view.copy(), first.embedding_ids["t"].ctypes.data
    second = preprocess({"f": batch["f"] % 7}, plan)
    assert second.embedding_ids["t"].ctypes.data != where
    del first, second
    third = preprocess({"f": batch["f"] % 5}, plan)
    assert third.embedding_ids["t"].ctypes.data != where
    assert np.array_equal(view, kept)
    del view, third
    fourth, fifth = preprocess(batch, plan), preprocess(batch, plan)
    assert where in (fourth.embedding_ids["t"].ctypes.data, fifth.embedding_ids["t"].ctypes.data)


def test_arguments_of_another_type_are_told_by_name():
    plan = stack([Feature("f", Table("t", vocab=200, width=8))], Topology(1, 1))
    good = {"f": [[1], [2]]}
    texts = [b"ab", b"cd"]  # bytes are sequences of integers, but no ids
    masked = np.ma.masked_array([[1], [2]], mask=[[True], [False]])
    for batch, options, text in (
        (None, {}, "batch is of type NoneType"),
        (good, {"limits": [1]}, "limits is of type list"),
        (good, {"agree": 3}, "agree is of type int"),
        (good, {"agree": lambda mine: None}, "agree returned NoneType"),
        (good, {"sparsecore": {}}, "sparsecore is of type dict"),
        ({"f": texts}, {}, "texts where ids should stand"),
        ({"f": masked}, {}, "masked array"),
    ):
        with pytest.raises(UsageError, match=text):
            preprocess(batch, plan, **options)
        assert preprocess(good, plan).partition("t", 0, 0)[0].tolist() == [1, 2]

"""Hash buckets, the split tree, and mini-batches whose union is the whole batch."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.embed import batches, oracle
from tilewright.embed import (
    Agreement,
    Feature,
    Limits,
    SparseCoreConfig,
    Table,
    Topology,
    check_batches,
    preprocess,
    stack,
)
from tilewright.embed.host.batch import minibatch_starts
from tilewright.embed.host.preprocess import Replay
from tilewright.embed.host.write_kernels import hash_ids, split_bits
from tilewright.errors import LimitError, UsageError

QUICK = settings(max_examples=tries(15))


def test_published_buckets():
    want = [7, 39, 13, 35, 34, 53, 9, 54, 14, 43, 17, 51, 23, 60, 14, 12]
    assert hash_ids(np.arange(16)).tolist() == want
    assert hash_ids(np.array([1_000_000])).tolist() == [23]


def test_the_oracle_is_highwayhash():
    """The test vectors of google/highwayhash: bytes 0, 1, 2, ... under the key 00 01 .. 1f."""
    key = [int.from_bytes(range(8 * i, 8 * i + 8), "little") for i in range(4)]
    want = [0x907A56DE22C26E53, 0x7EAB43AAC7CDDD78, 0xB8D0569AB0B53D62, 0x5C6BEFAB8A463D80, 0xF205A46893007EDA]
    assert [oracle.highway64(bytes(range(n)), key) for n in range(5)] == want


@given(st.lists(st.integers(0, 2**31 - 2), min_size=1, max_size=20))
@QUICK
def test_buckets_equal_the_oracle(ids):
    assert hash_ids(np.array(ids)).tolist() == [oracle.bucket(i) for i in ids]


def test_golden_splits(vectors):
    for case in vectors("embed_minibatch_split")["cases"]:
        counts = np.array(case["unique_ids_per_bucket"], np.int64)
        bits = int(split_bits.py_func(counts, case["max"], np.empty(counts.size, np.int64)))
        assert bits == case["split_bits_lsb_first"]
        assert len(minibatch_starts(bits, counts.size)) == case["minibatches"]


@given(st.lists(st.integers(0, 9), min_size=64, max_size=64), st.integers(1, 60))
@QUICK
def test_splits_equal_the_definition_and_keep_the_limit(counts, limit):
    bits = int(split_bits.py_func(np.array(counts), limit, np.empty(64, np.int64)))
    starts = minibatch_starts(bits)
    assert set(starts) == {0} | oracle.splits(counts, limit)
    for begin, end in zip(starts, [*starts[1:], 64]):
        assert sum(counts[begin:end]) <= limit or end - begin == 1
    assert (bits == 0) == (sum(counts) <= limit)


def test_golden_minibatches(vectors):
    cases = [c for c in vectors("embed_combiners_and_overflow")["cases"] if c["kind"] == "minibatching"]
    assert [c["num_minibatches"] for c in cases] == [2, 14]
    for case in cases:
        topology = Topology(case["global_device_count"], case["num_sc_per_device"])
        plan = stack([Feature("f", Table("t", 64, 8))], topology)
        limits = {"t": Limits(case["max_ids_per_partition"], case["max_unique_ids_per_partition"])}
        host = preprocess({"f": case["batch"]}, plan, limits)
        assert host.num_minibatches == case["num_minibatches"]
        segments = host.row_pointers["t"].reshape(-1, 8)
        for i, want in enumerate(case["segments_sc_major"]):
            assert segments[i].tolist() == want["row_pointers"]
            source, minibatch = divmod(i, host.num_minibatches)
            for shard, part in enumerate(want["partitions"]):
                got = [list(e) for e in zip(*(a.tolist() for a in host.partition("t", source, shard, minibatch)))]
                assert got == part
        assert (segments[len(case["segments_sc_major"]) :] == segments[i, -1]).all()


def expected_device(found, starts, shards, slots):
    """One device's buffers in the mini-batch layout; found: [{shard: entries}] of its sources."""
    ends, rows, samples, gains = [], [], [], []
    for entries in found:
        for begin, stop in zip(starts, [*starts[1:], 64]):
            for shard in range(shards):
                part = entries[shard]
                if len(starts) > 1:
                    part = [(oracle.bucket(shard + shards * e[0]), *e) for e in part]
                    part = [e[1:] for e in sorted(part, key=lambda e: e[:3]) if begin <= e[0] < stop]
                for row, sample, gain in part:
                    rows.append(row), samples.append(sample), gains.append(gain)
                ends.append(len(rows))
                pads = oracle.round8(len(rows)) - len(rows)
                rows += [oracle.INT_MAX] * pads
                samples += [oracle.INT_MAX] * pads
                gains += [np.nan] * pads
            ends += [len(rows)] * (max(shards, 8) - shards)
    pads = slots - len(rows)
    ends += [ends[-1]] * (64 * len(found) * max(shards, 8) - len(ends))
    return ends, rows + [oracle.INT_MAX] * pads, samples + [oracle.INT_MAX] * pads, gains + [np.nan] * pads


def expected_starts(plan, found, limits):
    """Where mini-batches begin: the cuts of all partitions above their limits, joined."""
    shards = plan.topology.sparsecores
    cuts = {0}
    for name, limit in limits.items():
        for entries in found[name]:
            for shard in range(shards):
                ids, unique = [0] * 64, [0] * 64
                rows = [e[0] for e in entries[shard]]
                for row in rows:
                    ids[oracle.bucket(shard + shards * row)] += 1
                for row in set(rows):
                    unique[oracle.bucket(shard + shards * row)] += 1
                cuts |= oracle.splits(ids, limit.max_ids_per_partition)
                cuts |= oracle.splits(unique, limit.max_unique_ids_per_partition)
    return sorted(cuts)


@QUICK
@given(batches.stackings(), st.integers(0, 2**32 - 1), st.data())
def test_buffers_equal_the_oracle(plan, seed, data):
    """In the mini-batch layout, cut or not, unused slots and segments and all."""
    topology = plan.topology
    shards, per_device = topology.sparsecores, topology.sparsecores_per_device
    batch = batches.random_batch(plan, seed, most=6)
    found = {n: [oracle.source_entries(plan, n, batch, s) for s in range(shards)] for n in plan.stacks}
    limits = {}
    for name in plan.stacks:
        biggest = max(len(part) for entries in found[name] for part in entries.values())
        if data.draw(st.booleans()):
            limits[name] = Limits(data.draw(st.integers(1, max(1, biggest))), data.draw(st.integers(1, 20)))
    try:
        host = preprocess(batches.given(batch, seed), plan, limits)
    except LimitError:
        host = preprocess(batches.given(batch, seed), plan, limits, allow_id_dropping=True)
        assert sum(s.dropped_ids.sum() for s in host.stats.values()) > 0
        return
    starts = expected_starts(plan, found, limits)
    assert (host.minibatch_layout, host.num_minibatches) == (True, len(starts))
    assert minibatch_starts(host.split_bits) == starts
    for name in plan.stacks:
        slots = host.embedding_ids[name].shape[1]
        for device in range(topology.devices):
            mine = found[name][device * per_device : (device + 1) * per_device]
            ends, rows, samples, gains = expected_device(mine, starts, shards, slots)
            assert host.row_pointers[name][device].tolist() == ends
            assert host.embedding_ids[name][device].tolist() == rows
            assert host.sample_ids[name][device].tolist() == samples
            assert np.array_equal(host.gains[name][device], np.array(gains, np.float32), equal_nan=True)
        for source in range(shards):
            for shard in range(shards):
                union = zip(*(a.tolist() for a in host.partition(name, source, shard)))
                assert sorted(union) == found[name][source][shard]


def test_limits_nobody_exceeds_still_give_the_minibatch_layout():
    plan = stack([Feature("f", Table("t", 8, 8))], Topology(1, 2))
    host = preprocess({"f": [[1], [2]]}, plan, {"t": Limits(3, 3)})
    assert (host.num_minibatches, host.minibatch_layout) == (1, True)
    assert host.embedding_ids["t"].shape == (1, 64 * 8 * 4)
    assert host.row_pointers["t"].shape == (1, 64 * 2 * 8)


@QUICK
@given(batches.stackings(), st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_only_what_is_cut_is_laid_out_for_mini_batches_where_asked(stacking, seed, most):
    """A batch that is cut equals the one that always is laid out so; another one the plain batch."""
    batch = batches.given(batches.random_batch(stacking, seed), seed)
    limits = {name: Limits(most, most) for name in stacking.stacks}
    try:
        always = preprocess(batch, stacking, limits)
    except LimitError:
        with pytest.raises(LimitError):
            preprocess(batch, stacking, limits, minibatch_layout="needed")
        return
    needed = preprocess(batch, stacking, limits, minibatch_layout="needed")
    assert needed.minibatch_layout == (always.num_minibatches > 1) == (needed.num_minibatches > 1)
    want = always if needed.minibatch_layout else preprocess(batch, stacking, limits, "error")
    for kind in ("row_pointers", "embedding_ids", "sample_ids", "gains"):
        for name in stacking.stacks:
            np.testing.assert_array_equal(getattr(needed, kind)[name], getattr(want, kind)[name])


def test_a_batch_that_is_not_cut_takes_64_times_less_where_asked():
    """What a recommender saw: 174 MiB a device for 2.7."""
    stacking = stack([Feature("f", Table("t", 10**6, 8))], Topology(1, 4))
    batch = {"f": np.random.default_rng(0).integers(0, 10**6, (4096, 4))}
    limits = {"t": Limits(1200, 1200)}
    sizes = [
        preprocess(batch, stacking, limits, minibatch_layout=how).embedding_ids["t"].nbytes
        for how in ("always", "needed")
    ]
    assert sizes[0] == 64 * sizes[1]
    with pytest.raises(UsageError, match="minibatch_layout = 'never'"):
        preprocess(batch, stacking, limits, minibatch_layout="never")


def test_a_bucket_that_no_cut_helps():
    """One id in every sample: all entries share a bucket."""
    plan = stack([Feature("f", Table("t", 8, 8))], Topology(1, 1))
    batch = {"f": [[3]] * 5}
    with pytest.raises(LimitError) as error:
        preprocess(batch, plan, {"t": Limits(4, 4)})
    assert (error.value.table, error.value.shard, error.value.observed, error.value.limit) == ("t", 0, 5, 4)
    assert "they share one hash bucket, which mini-batches cannot cut: id 3 of t (5))" in str(error.value)
    host = preprocess(batch, plan, {"t": Limits(4, 4)}, allow_id_dropping=True)
    assert host.stats["t"].dropped_ids.tolist() == [1]
    assert host.stats["t"].max_ids_per_partition.tolist() == [5]
    assert len(host.partition("t", 0, 0)[0]) == 4


@settings(max_examples=tries(50))
@given(batches.stackings(), st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_plan_check_and_diagnose_say_what_preprocess_does(stacking, seed, ids, unique, dropping):
    """Into how many mini-batches batches are cut, and which are refused, in the same words."""
    batch = batches.random_batch(stacking, seed, most=4)
    logs = [batches.given(batch, seed), batches.given(reversed_batch(batch), seed)]
    limits = {name: Limits(max(ids, unique), unique) for name in stacking.stacks}
    cut, refused, dropped = [], [], dict.fromkeys(stacking.stacks, 0)
    for batch in logs:
        try:
            host = preprocess(batch, stacking, limits, allow_id_dropping=dropping)
        except LimitError as error:
            refused.append(str(error))
        else:
            cut.append(host.num_minibatches)
            dropped = {name: n + int(host.stats[name].dropped_ids.sum()) for name, n in dropped.items()}
    knobs = SparseCoreConfig(allow_id_dropping=dropping, max_ids_per_chip_per_sample=2**31 - 1)
    check = check_batches(logs, stacking, limits, knobs)
    assert (check.minibatches, check.uncut) == (max(cut, default=1), len(refused))
    assert check.uncut_because == next(iter(refused), "")
    under = Replay(stacking, [limits], "error", drop=dropping, allow_id_dropping=dropping)
    planned = Replay(stacking, [limits], "error")
    for batch in logs:
        under.add(batch)
        planned.add(batch)
    assert (under.minibatches, under.refused) == ([cut], [refused])
    assert not dropping or dict(zip(stacking.stacks, under.dropped[0].tolist())) == dropped
    assert dropping or (planned.minibatches, planned.refused) == ([cut], [refused])


def reversed_batch(batch):
    """The same samples, the last first."""
    return {name: (ids[::-1], None if weights is None else weights[::-1]) for name, (ids, weights) in batch.items()}


def test_processes_agree():
    """Four processes that share their proposals cut, and size their buffers, as one process does."""
    tables = [Table("a", 300, 8), Table("b", 200, 8, combiner="mean")]
    plan = stack([Feature(t.name, t) for t in tables], Topology(4, 2))
    rng = np.random.default_rng(11)
    batch = {t.name: rng.integers(0, t.vocab, (64 * 8, 3)) for t in tables}
    batch["a"][: 2 * 64] %= 17
    limits = {"a": Limits(24, 24)}
    whole = preprocess(batch, plan, limits)
    assert whole.num_minibatches > 1
    barrier, proposals, hosts = threading.Barrier(4), [None] * 4, [None] * 4

    def process(k):
        def agree(mine):
            proposals[k] = mine
            barrier.wait()
            return Agreement.join(proposals)

        hosts[k] = preprocess(batch, plan, limits, sources=range(2 * k, 2 * k + 2), agree=agree)

    threads = [threading.Thread(target=process, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({p.split_bits for p in proposals}) > 1
    for k, host in enumerate(hosts):
        assert host.split_bits == whole.split_bits
        for name in plan.stacks:
            assert np.array_equal(host.row_pointers[name][0], whole.row_pointers[name][k])
            assert np.array_equal(host.embedding_ids[name][0], whole.embedding_ids[name][k])
            assert np.array_equal(host.gains[name][0], whole.gains[name][k], equal_nan=True)

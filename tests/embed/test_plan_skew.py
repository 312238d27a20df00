"""Why partitions are uneven and what changes would give, against brute force; padding, packing and feeding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.embed.slow_batch import partitions
from tilewright import targets
from tilewright.embed import SGD, Adam, Feature, Limits, Table, Topology, gather_seconds, plan, stack
from tilewright.embed.planning.plan import Observed, permuted, shuffled, skew_of, unweighted

TOPOLOGY = Topology(2, 2)
TABLES = [Table(n, v, 8, optimizer=SGD(0.1)) for n, v in (("a", 100), ("b", 41), ("c", 7))]
FEATURES = [Feature(f"f{t.name}", t) for t in TABLES]


def logs(batches=4, samples=16, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {f.name: (f.table.vocab * rng.random((samples, 2)) ** 4).astype(np.int32) for f in FEATURES}
        for _ in range(batches)
    ]


def brute(batches, stacking):
    """Stack -> (most entries, most distinct ids, imbalance) by the slow reference."""
    found = {}
    for name in stacking.stacks:
        most, unique, per_shard = 0, 0, Counter()
        for batch in batches:
            rows = {n: [[(int(i), 1.0) for i in row] for row in values] for n, values in batch.items()}
            for (_, shard, _), part in partitions(rows, stacking, name).items():
                most, unique = max(most, len(part)), max(unique, len({row for row, _, _ in part}))
                per_shard[shard] += len(part)
        loads = [per_shard[s] for s in range(stacking.topology.sparsecores)]
        found[name] = (most, unique, max(loads) / np.mean(loads))
    return found


def work(batches, stacking, name, each=None):
    """What a step waits for, by the slow reference: work, rows and ids of the fullest shard over the average one's.

    ``each``: what a row and an entry take, by default their bytes.
    """
    group, shards = stacking.stacks[name], stacking.topology.sparsecores
    row, entry = each or (4 * (3 * group.padded_width + 2 * group.slot_floats), 8 * (group.padded_width + 3))
    fullest, average = np.zeros(3), np.zeros(3)
    for batch in batches:
        ids, distinct = np.zeros(shards), np.zeros(shards)
        rows = {n: [[(int(i), 1.0) for i in r] for r in values] for n, values in batch.items()}
        for (_, shard, _), part in partitions(rows, stacking, name).items():
            ids[shard] += len(part)
            distinct[shard] += len({r for r, _, _ in part})
        kinds = distinct * row + ids * entry, distinct, ids
        fullest += [kind.max() for kind in kinds]
        average += [kind.mean() for kind in kinds]
    return fullest / average


def observed(batches, stacking):
    seen = Observed(stacking)
    for batch in batches:
        seen.add(batch)
    return seen


def remedy(skew, change):
    return next(r for r in skew.remedies if r.change == change)


def test_rotations_tables_alone_and_the_state_of_things_equal_brute_force():
    batches = logs()
    stacking = stack(FEATURES, TOPOLOGY, batch_size=16)
    skew = skew_of(observed(batches, stacking))
    (name,) = stacking.stacks
    now = brute(batches, stacking)[name]
    found = remedy(skew, "as it is")
    assert (found.limits, found.imbalance) == (Limits(now[0], now[1]), pytest.approx(now[2]))
    assert found.wait == pytest.approx(work(batches, stacking, name)[0])
    made = plan(batches, FEATURES, TOPOLOGY, stacking=stacking).stacks[0]
    assert (made.wait, made.wait_rows, made.wait_ids) == pytest.approx(tuple(work(batches, stacking, name)))
    apart = brute(batches, stack(FEATURES, TOPOLOGY, table_stacking=False))
    assert skew.alone == {n: Limits(ids, unique) for n, (ids, unique, _) in apart.items()}
    rotations = [r for r in skew.remedies if "rotation" in r.change]
    assert "no rotation" in {r.change for r in rotations}
    for each in rotations:
        step = 0 if each.change == "no rotation" else int(each.change.split()[-1])
        most, load = turned(batches, step)
        assert each.limits.max_ids_per_partition == most
        assert each.imbalance == pytest.approx(load)


@pytest.mark.parametrize("target", ["tpu-v6e", "tpu-v5p"])
def test_what_a_step_takes_equals_a_sum_by_hand(target):
    """Rows by the time that gathers of their width take, ids and sums by their bytes, launches, exchanges; the plan
    says which of them a step waits for."""
    batches, table = logs(3), Table("a", 100, 1024, optimizer=Adam(0.1))
    [group] = (stacking := stack([Feature("fa", table)], TOPOLOGY, batch_size=16)).groups
    made = plan([{"fa": b["fa"]} for b in batches], stacking.features, TOPOLOGY, stacking=stacking, target=target)
    chip, floats = targets.target(target), (1024, 1024 + group.slot_floats)
    per_device, byte = 2, 1 / (chip.memory("hbm").bytes_per_second * 0.8)

    def gathers(rows):
        return sum(gather_seconds(rows=rows, width=w, dtype="f32", target=target) for w in floats)

    cores = chip.sparse.per_chip
    row, entry = (gathers(1) - gathers(0)) * cores, 8 * (1024 + 3) * byte * cores
    wait = work([{"fa": b["fa"]} for b in batches], stacking, group.name, (row, entry))[0]
    assert made.stacks[0].wait == pytest.approx(wait)
    parts = [partitions({"fa": [[(int(i), 1.0) for i in r] for r in b["fa"]]}, stacking, group.name) for b in batches]
    ids, rows = (
        sum(len(kind(part)) for batch in parts for part in batch.values()) / 3 / TOPOLOGY.sparsecores
        for kind in (list, lambda part: {r for r, _, _ in part})
    )
    traffic, samples = made.traffic, group.samples_per_sparsecore({"fa": 16})
    assert traffic.row_work == pytest.approx(rows * row * wait)
    assert traffic.id_work == pytest.approx(ids * entry * wait + samples * 8 * 1024 * byte * cores)
    assert traffic.launches == pytest.approx(gathers(0))
    assert traffic.waited == pytest.approx(traffic.row_work + traffic.id_work + traffic.launches)
    exchanged = rows * per_device * (4 + 8 * 1024) / 2
    assert traffic.links == pytest.approx(exchanged / chip.links.bytes_per_second + 3e-9 * chip.links.hop_ns)
    assert traffic.waits_for() == "launches"
    assert traffic.waits_for(host_seconds=1.0) == made.waits_for == "host"
    for name in ("rows", "ids", "links"):
        longer = replace(traffic, **{{"rows": "row_work", "ids": "id_work"}.get(name, name): 1.0})
        assert longer.waits_for() == name


def test_duplicates_of_one_row_are_no_skew_of_rows():
    """Half of all samples have one id: its shard receives most entries, and fetches hardly more rows than others."""
    ids = np.random.default_rng(0).integers(0, 1 << 16, (4096, 1))
    ids[::2] = 5
    table = Table("t", 1 << 16, 64, optimizer=Adam(0.1))
    made = plan([{"t": ids}], [Feature("t", table)], Topology(4, 4)).stacks[0]
    assert made.imbalance > 8
    assert made.wait_rows < 1.3
    assert made.wait_rows < made.wait < made.wait_ids == pytest.approx(made.imbalance)


def turned(batches, step):
    """Fullest partition and imbalance where row r of table k lives on shard (r + k * step) % 4."""
    counts = np.zeros((len(batches), 4, 4), int)
    for b, batch in enumerate(batches):
        for k, table in enumerate(TABLES):
            for sample, ids in enumerate(batch[f"f{table.name}"].tolist()):
                for i in set(ids):
                    counts[b, sample // 4, (i + k * step) % 4] += 1
    loads = counts.sum(axis=(0, 1))
    return counts.max(), loads.max() / loads.mean()


def test_the_hot_ids_are_those_of_the_fullest_shard():
    batches = logs(3)
    batches[0]["fb"][:, 0] = 5
    stacking = stack(FEATURES, TOPOLOGY, batch_size=16)
    skew = skew_of(observed(batches, stacking))
    shard = skew.hot[0].shard
    entries = Counter()
    for batch in batches:
        for table in TABLES:
            rotation = stacking.tables[table.name].rotation
            for ids in batch[f"f{table.name}"].tolist():
                entries.update((table.name, i) for i in set(ids) if (i + rotation) % 4 == shard)
    for hot, (_, n) in zip(skew.hot, entries.most_common(3), strict=True):
        assert entries[hot.table, hot.id] == hot.entries == n
        assert hot.share == pytest.approx(n / entries.total())
    apart = remedy(skew, "hottest id held apart")
    assert apart.limits.max_ids_per_partition <= remedy(skew, "as it is").limits.max_ids_per_partition


def test_hashing_mends_strides_and_a_shuffle_mends_time_order():
    """Ids that are multiples of 16 all live on one shard; sorted logs fill one source's slice with one user's rows."""
    table = Table("t", 4096, 8)
    strided = [{"t": (np.arange(256, dtype=np.int32) * 16 % 4096).reshape(-1, 1)}]
    skew = skew_of(observed(strided, stack([Feature("t", table)], Topology(4, 4))))
    assert remedy(skew, "as it is").imbalance == 16
    assert remedy(skew, "ids hashed").imbalance < 3
    ordered = [{"t": (np.arange(256, dtype=np.int32) // 64 + 4 * b).reshape(-1, 1)} for b in range(8)]
    skew = skew_of(observed(ordered, stack([Feature("t", table)], Topology(1, 4))))
    assert remedy(skew, "as it is").limits.max_ids_per_partition == 64
    assert remedy(skew, "log shuffled").limits.max_ids_per_partition < 40


@given(st.integers(1, 3000))
def test_mixed_ids_are_a_permutation(vocab):
    assert np.array_equal(np.sort(permuted(np.arange(vocab), vocab)), np.arange(vocab))


def test_a_shuffle_keeps_samples_whole_and_features_together():
    table = Table("t", 1000, 8)
    stacking = stack([Feature("dense", table), Feature("ragged", table)], Topology(1, 4))
    batches = []
    for b in range(3):
        lengths = (np.arange(8) + b) % 4
        ids = np.repeat(np.arange(8) + 8 * b, lengths)
        dense = np.arange(8 * b, 8 * b + 8).reshape(-1, 1)
        batches.append({"dense": dense, "ragged": (ids, np.cumsum([0, *lengths]))})
    mixed = shuffled([unweighted(b, stacking) for b in batches])
    seen = []
    for batch in mixed:
        for k, i in enumerate(batch["dense"].values.tolist()):
            begin, end = batch["ragged"].offsets[k : k + 2]
            assert batch["ragged"].values[begin:end].tolist() == [i] * ((i % 8 + i // 8) % 4)
            seen.append(i)
    assert sorted(seen) == list(range(24))
    assert seen != list(range(24))


def test_savings_exchange_and_feeding():
    narrow = Table("n", 1000, 1, optimizer=SGD(0.1))
    features = [*FEATURES, Feature("n", narrow)]
    batches = [{**b, "n": np.arange(16, dtype=np.int64).reshape(-1, 1)} for b in logs(3)]
    made = plan(batches, features, TOPOLOGY, target="tpu-v5p")
    packing, saved = made.to_json()["savings"], made.savings
    assert packing["packed_tables"] == ["n"]
    assert packing["table_bytes"] == sum(t.padded_bytes for t in made.tables)
    assert packing["table_bytes"] - packing["packed_table_bytes"] == (1024 - 128) * 32
    assert saved.stacked_buffer_bytes < saved.separate_buffer_bytes
    assert saved.stacked_buffer_bytes == sum(s.buffer_bytes for s in made.stacks)
    assert made.heap.exchange == 2 * 2 * 4 * sum(s.padded_width * s.samples_per_sparsecore for s in made.stacks)
    assert made.feeding.host_seconds > 0
    assert made.feeding.step_bytes > 0
    assert made.feeding.step_seconds == made.traffic.waited > made.traffic.least > 0
    quantiles = [q for q, _ in made.stacks[0].quantiles]
    assert quantiles == sorted(quantiles)
    assert made.stacks[0].quantiles[-1] == (1.0, made.stacks[0].observed)
    assert plan(batches, features, TOPOLOGY).feeding.step_seconds == 0.0


def test_savings_rows_speak_of_the_tables_that_gain():
    narrow = Table("n", 1000, 1, optimizer=SGD(0.1))
    batches = [{**b, "n": np.arange(16, dtype=np.int64).reshape(-1, 1)} for b in logs(2)]
    planned = [*FEATURES, Feature("n", narrow)]
    together, apart = (plan(batches, planned, TOPOLOGY, table_stacking=on) for on in (True, False))
    rows = together.arrangements()
    assert rows[1] == ("narrow rows sharing lines: 1 table", 1024 * 32, 128 * 32)
    assert apart.arrangements() == rows, "what stacking would save, where it is off"


def test_ids_that_share_a_factor_with_the_shards_are_named_and_divided_by_it():
    """What is advised evens the shards out; nothing is said of such ids where hardly any are in use."""
    table, topology = Table("t", 48_000, 8, optimizer=SGD(0.1)), Topology(4, 4)
    ids = np.random.default_rng(0).integers(0, 2000, (2, 1024, 4), dtype=np.int32)

    def stack_of(values):
        return plan([{"f": batch} for batch in values], [Feature("f", table)], topology).counters().stacks["t"]

    strided, divided = stack_of(24 * ids + 5), stack_of((24 * ids + 5) // 24)
    assert strided.common == ("t", 24)
    assert (strided.imbalance > 7, divided.imbalance < 1.2, divided.common) == (True, True, None)
    assert stack_of(16 * (ids % 7)).common is None
    tables = plan([{"f": 16 * (ids[0] % 7)}], [Feature("f", table)], topology).counters().tables
    assert tables["t"].used == 7

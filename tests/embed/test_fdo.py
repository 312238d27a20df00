"""FDO statistics as jax-tpu-embedding's clients write them, and sharding plans in TorchRec's form.

Files of the package itself are read in peer_package.py, under Python 3.12.
"""

from __future__ import annotations

import json
from importlib.util import find_spec

import numpy as np
import pytest

from tilewright.embed import (
    SGD,
    FdoStats,
    Feature,
    Limits,
    Table,
    Topology,
    as_specs,
    preprocess,
    read_fdo,
    read_torchrec,
    stack,
    torchrec_plan,
)
from tilewright.embed.logs.exchange import FDO_SUFFIXES
from tilewright.errors import UsageError


def same(one, two):
    for kind in FDO_SUFFIXES:
        mine, theirs = getattr(one, kind), getattr(two, kind)
        assert list(mine) == list(theirs)
        for name in mine:
            assert mine[name].dtype == theirs[name].dtype == np.int64
            np.testing.assert_array_equal(mine[name], theirs[name])


def drawn(seed=0, records=3, stacks=("t", "a_max_ids", "b,c")):
    random = np.random.default_rng(seed)
    sizes = dict(zip(FDO_SUFFIXES, (8, 8, 4, 1)))
    return FdoStats(**{k: {s: random.integers(0, 1 << 40, (records, n)) for s in stacks} for k, n in sizes.items()})


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_nothing_is_lost(tmp_path, suffix):
    stats = drawn()
    assert stats.write(tmp_path / f"x{suffix}") == tmp_path / f"x{suffix}"
    same(read_fdo(tmp_path / f"x{suffix}"), stats)


def test_one_record(tmp_path):
    stats = FdoStats({"t": np.array([3, 0])}, {"t": np.array([2, 0])}, {}, {"t": np.array(7)})
    same(read_fdo(stats.write(tmp_path / "x.npz")), stats)
    read = read_fdo(stats.write(tmp_path / "x.csv"))
    assert read.id_drop_counters["t"].tolist() == [7]
    assert read.limits() == {"t": Limits(3, 2)}


def test_the_newest_file_of_every_process_counts(tmp_path):
    files = {"0_5": drawn(1), "0_40": drawn(2), "1_7": drawn(3, records=1), "10_1": drawn(4)}
    for name, stats in files.items():
        stats.write(tmp_path / f"fdo_stats_{name}.npz")
    (tmp_path / "notes.txt").write_text("not looked at")
    found = read_fdo(tmp_path)
    newest = [files[name] for name in ("0_40", "1_7", "10_1")]
    for kind in FDO_SUFFIXES:
        for name, values in getattr(found, kind).items():
            every = np.vstack([getattr(stats, kind)[name] for stats in newest])
            np.testing.assert_array_equal(values, every.max(axis=0))
    written = found.write(tmp_path)
    assert written.name.startswith("fdo_stats_0_")
    same(read_fdo(written), found)


def test_of_batches():
    table = Table("t", 40, 8, optimizer=SGD(0.1))
    plan = stack([Feature("f", table), Feature("g", Table("u", 9, 8, optimizer=SGD(0.1)))], Topology(1, 4))
    random = np.random.default_rng(0)
    batches = [
        preprocess({"f": random.integers(0, 40, (16, 3)), "g": random.integers(0, 9, (16, 2))}, plan) for _ in range(3)
    ]
    stats, (name,) = FdoStats.of_batches(iter(batches)), plan.stacks
    for record, batch in enumerate(batches):
        assert np.array_equal(stats.max_ids_per_partition[name][record], batch.stats[name].max_ids_per_partition)
        assert np.array_equal(stats.required_buffer_size_per_sc[name][record], batch.stats[name].required_buffer_size)
    assert stats.id_drop_counters[name].tolist() == [[0]] * 3
    bound = max(int(batch.stats[name].max_ids_per_partition.max()) for batch in batches)
    assert stats.limits()[name].max_ids_per_partition == bound == stats.most("max_ids_per_partition", name)
    assert stats.most("max_ids_per_partition", "other") is None


def cut(data):
    return data[: len(data) // 2]


BAD = {
    "cut.npz": (None, "no FDO statistics can be read"),
    "empty.npz": (b"", "no FDO statistics can be read"),
    "one.npz": (b"\x93NUMPY", "no FDO statistics can be read"),
    "head.csv": (b"a,b\n", "its first line is not key,values"),
    "cells.csv": (b"key,values\nt_max_ids,1,2\n", "line 2 has 3 cells"),
    "word.csv": (b"key,values\nt_max_ids,1 x\n", "invalid literal"),
    "kind.csv": (b"key,values\nt_ids,1\n", "unknown key 't_ids'"),
    "below.csv": (b"key,values\nt_max_ids,-1\n", "'t_max_ids' holds no counts"),
    "ragged.csv": (b"key,values\nt_max_ids,1 2\nt_max_ids,1\n", "must match"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_file_of_statistics(tmp_path, name):
    data, problem = BAD[name]
    path = tmp_path / name
    if data is None:
        path.write_bytes(cut(drawn().write(tmp_path / "whole.npz").read_bytes()))
    else:
        path.write_bytes(data)
    with pytest.raises(UsageError, match=problem) as error:
        read_fdo(path)
    assert name in str(error.value)


def test_what_cannot_be_read_or_written(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        read_fdo(tmp_path / "none.npz")
    with pytest.raises(UsageError, match="no fdo_stats_"):
        read_fdo(tmp_path)
    with pytest.raises(UsageError, match=r"end it in \.npz or \.csv"):
        drawn().write(tmp_path / "x.txt")
    np.savez(tmp_path / "floats.npz", t_max_ids=np.ones(3))
    with pytest.raises(UsageError, match="holds no counts"):
        read_fdo(tmp_path / "floats.npz")
    other = FdoStats({"t": np.arange(4)})
    with pytest.raises(UsageError, match="8 and 4 counts"):
        drawn().merged(other)


def two_tables():
    return stack([Feature("f", Table("t", 10, 12)), Feature("g", Table("u", 1000, 16))], Topology(4, 4))


def test_a_plan_in_torchrecs_form(tmp_path):
    plan = two_tables()
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(torchrec_plan(plan)))
    tables = read_torchrec(path)
    assert [table.sharding_type for table in tables.values()] == ["row_wise"] * 2
    assert [(s.rank, s.first_row, s.rows, s.columns) for s in tables["t"].shards] == [
        (0, 0, 3, 12), (1, 3, 3, 12), (2, 6, 3, 12), (3, 9, 1, 12)
    ]  # fmt: skip
    both = tables["t"].rank_bytes + tables["u"].rank_bytes
    assert both == {k: 4 * (12 * (3 if k < 3 else 1) + 16 * 250) for k in range(4)}
    assert plan.chip_bytes == 4 * 16 * (128 + 1024) // 4


TORCHREC = {
    "not a TorchRec plan": {"kind": "embedding_plan"},
    "no shardingPlan": {"plan": {"m": {}}},
    "not a table's sharding": {"plan": {"m": {"shardingPlan": {"t": {"shardingType": "row_wise"}}}}},
    "a count below 0": {
        "plan": {"m": {"shardingPlan": {"t": {
            "shardingType": "row_wise", "computeKernel": "fused",
            "shardingSpec": [{"shardOffsets": [-1, 0], "shardSizes": [1, 1], "placement": {"rank": 0}}],
        }}}}
    },
}  # fmt: skip


@pytest.mark.parametrize("problem", TORCHREC)
def test_what_is_no_torchrec_plan(tmp_path, problem):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(TORCHREC[problem]))
    with pytest.raises(UsageError, match=problem):
        read_torchrec(path)


def test_tables_without_shards_are_on_every_rank(tmp_path):
    entry = {"shardingType": "data_parallel", "computeKernel": "dense", "ranks": [0, 1], "shardingSpec": None}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"plan": {"m": {"shardingPlan": {"t": entry}}, "n": {"shardingPlan": {"t": entry}}}}))
    assert list(read_torchrec(path)) == ["t", "n.t"]
    assert read_torchrec(path)["t"].rank_bytes == {}


def test_specs_want_the_package(monkeypatch):
    if find_spec("jax_tpu_embedding") is not None:
        monkeypatch.setitem(__import__("sys").modules, "jax_tpu_embedding.sparsecore.lib.nn.embedding_spec", None)
    with pytest.raises(UsageError, match="jax-tpu-embedding is not installed"):
        as_specs(two_tables(), {"f": 16, "g": 16})

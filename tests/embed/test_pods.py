"""Plans for pods: the peaks the full plan finds, in any order, by any engine; how sure they are; memory and speed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from tests.cli.conftest import completed
from tests.conftest import ROOT
from tilewright.embed import (
    Feature,
    LogBatches,
    Table,
    Topology,
    plan,
    plan_pod,
    read_limits,
    read_log,
)
from tilewright.embed.host import tally
from tilewright.embed.logs.log import log_part
from tilewright.embed.planning.confidence import Confidence
from tilewright.embed.pods import plan as pods_plan
from tilewright.embed.pods.plan import PartitionPeaks, batch_peaks, mixed
from tilewright.errors import UsageError

USER = Table("user", 300, 8)
FEATURES = (Feature("user", USER), Feature("item", Table("item", 70, 8, combiner="mean")), Feature("friend", USER))
TOPOLOGY = Topology(2, 2)


def made_batch(number, size=32):
    draw = np.random.default_rng(number)
    ends = np.concatenate([[0], np.cumsum(draw.integers(0, 40, size))])
    return {
        "user": draw.zipf(1.3, (size, 1)) % 300,
        "item": (draw.integers(0, 70, ends[-1]), ends),
        "friend": (draw.zipf(1.5, (size, 3)) % 300).astype(np.int32),
    }


def logs_of(folder):
    """The same rows as two Parquet files of uneven row groups and as a TSV whose last line has no end."""
    draw = np.random.default_rng(0)
    rows = 500
    columns = {"user": draw.zipf(1.3, rows) % 300, "friend": draw.zipf(1.5, rows) % 300}
    columns["item"] = [draw.integers(0, 70, draw.integers(0, 5)).tolist() for _ in range(rows)]
    table = pyarrow.table(columns)
    (folder / "days").mkdir(exist_ok=True)
    parquet.write_table(table.slice(0, 277), folder / "days" / "a.parquet", row_group_size=61)
    parquet.write_table(table.slice(277), folder / "days" / "b.parquet", row_group_size=100)
    lines = ["user\titem\tfriend"]
    lines += [
        f"{u}\t{'|'.join(map(str, i))}\t{f}" for u, i, f in zip(*(columns[n] for n in ("user", "item", "friend")))
    ]
    (folder / "days.tsv").write_text("\n".join(lines))
    return folder / "days", folder / "days.tsv"


@pytest.mark.parametrize("together", [2048, 40])
def test_peaks_are_those_of_the_full_plan(monkeypatch, together):
    monkeypatch.setattr(tally, "_GROUP", together)
    batches = [made_batch(number) for number in range(12)]
    full = plan(batches, FEATURES, TOPOLOGY)
    pod = plan_pod(batches, FEATURES, TOPOLOGY, 32)
    assert (pod.limits, pod.confidence) == (full.limits, full.confidence)
    assert [s.buffer_bytes for s in pod.stacks] == [s.buffer_bytes for s in full.stacks]
    assert [s.mean_ids for s in pod.stacks] == pytest.approx([s.mean_ids for s in full.stacks])


def test_a_stack_of_several_tables_is_counted_whole():
    features = [Feature(name, Table(name, 5000, 8)) for name in "abc"]
    stacking = plan_pod(None, features, TOPOLOGY, 512).stacking
    draw = np.random.default_rng(3)
    batch = {feature.name: draw.zipf(1.2, (512, 7)) % 5000 for feature in features}
    counts = tally.tally(batch, stacking)
    assert len(counts.counts) == 3 > len(stacking.groups), "kernel 1 alone sorts the tables apart"
    whole = np.concatenate([counts.per_stack.max(axis=(2, 3)), counts.per_stack.sum(axis=(2, 3))], axis=1)
    assert batch_peaks(batch, stacking)[0].tolist() == whole.tolist()


@pytest.mark.parametrize("bad_ids", ["clip", "drop"])
def test_bad_ids_are_treated_as_everywhere(bad_ids):
    batch = made_batch(0)
    batch["user"] = batch["user"] - 5
    assert (
        plan_pod([batch], FEATURES, TOPOLOGY, 32, bad_ids=bad_ids).limits
        == plan([batch], FEATURES, TOPOLOGY, bad_ids=bad_ids).limits
    )
    with pytest.raises(UsageError, match=r"batch 2, table 'user', feature 'user': id -2 of sample 1 is not in"):
        plan_pod([made_batch(0), batch], FEATURES, TOPOLOGY, 32)


def test_parts_join_in_any_order():
    pod = plan_pod([made_batch(number) for number in range(14)], FEATURES, TOPOLOGY, 32)
    joined = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        whole = PartitionPeaks(pod.stacking)
        for k in order:
            part = PartitionPeaks(pod.stacking)
            for number in range(k * 5, min(14, k * 5 + 5)):
                part.add(number, made_batch(number))
            whole.merge(part)
        rounded = {name: limits.with_headroom(0) for name, limits in whole.limits().items()}
        assert (rounded, whole.batches, sorted(whole.held_out)) == (pod.limits, 14, [4, 9])
        joined.append([vars(whole)[name].tolist() for name in ("most", "second", "holder", "learnt", "totals")])
    assert joined[0] == joined[1] == joined[2]


def test_only_the_batches_with_the_smallest_hashes_are_kept(monkeypatch):
    monkeypatch.setattr(pods_plan, "KEPT", 3)
    one, two = (PartitionPeaks(plan_pod(None, FEATURES, TOPOLOGY, 32).stacking) for _ in range(2))
    for number in range(4, 60, 5):
        (one if number % 2 else two).add(number, made_batch(number))
    one.merge(two)
    assert sorted(one.held_out, key=mixed) == sorted(range(4, 60, 5), key=mixed)[:3]
    assert one.held_out_batches == 12


def test_fresh_batches_exceed_as_often_as_said():
    """Over many logs: the share of fresh batches above the limits is what was expected, and within the bound."""
    stacking = plan_pod(None, FEATURES[:1], TOPOLOGY, 32).stacking
    peaks = np.array([batch_peaks({"user": made_batch(n)["user"]}, stacking)[0][:, :2] for n in range(1200)])
    expected, exceeded, within = [], [], 0
    fresh = peaks[1000:]
    for log in range(25):
        batches = ({"user": made_batch(n)["user"]} for n in range(40 * log, 40 * log + 40))
        pod = plan_pod(batches, FEATURES[:1], TOPOLOGY, 32)
        limit = pod.limits["user"]
        share = (fresh > (limit.max_ids_per_partition, limit.max_unique_ids_per_partition)).any(axis=(1, 2)).mean()
        expected.append(pod.confidence.expected)
        exceeded.append(share)
        within += share <= pod.confidence.at_most
    assert np.mean(exceeded) == pytest.approx(np.mean(expected), abs=0.02)
    assert within >= 24


def test_confidence_says_what_it_does_not_know():
    assert "not known" in plan([made_batch(0)], FEATURES, TOPOLOGY).confidence.sentence
    assert plan([made_batch(0)] * 2, FEATURES, TOPOLOGY, 0.9).confidence is None
    assert "not known" in plan_pod([made_batch(0)], FEATURES, TOPOLOGY, 32).confidence.sentence
    few = plan_pod([made_batch(n) for n in range(3)], FEATURES, TOPOLOGY, 32).confidence
    assert (few.held_out, few.at_most) == (0, 1.0)
    assert "held-out" not in few.sentence
    assert Confidence(100, 2, 20, 1).at_least < 0.05 < Confidence(100, 2, 20, 1).at_most


def test_headroom_makes_limits_surer():
    batches = [made_batch(n) for n in range(20)]
    plain, roomy = (plan_pod(batches, FEATURES, TOPOLOGY, 32, headroom=h) for h in (0.0, 1.0))
    assert roomy.confidence.records <= plain.confidence.records
    assert roomy.limits["item"].max_ids_per_partition > plain.limits["item"].max_ids_per_partition


def test_a_log_is_read_in_parts(tmp_path):
    """Whatever its row groups and lines: the batches of the parts are those of the whole."""

    def same(one, two):
        flat = [json.dumps([np.asarray(x).tolist() for x in part]) for part in (one, two)]
        return flat[0] == flat[1]

    for path in logs_of(tmp_path):
        log = read_log(path, FEATURES, 32)
        whole = [batch.features for batch in log if batch.rows == 32]
        for first, last in itertools.pairwise((0, 1, 6, 15)):
            parts = [batch.features for batch in log_part(log, first, last)]
            assert len(parts) == last - first
            for mine, theirs in zip(parts, whole[first:last]):
                assert all(same(mine[name], theirs[name]) for name in mine), (path, first)
        pod = plan_pod(LogBatches([log]), FEATURES, TOPOLOGY, 32)
        assert (pod.confidence.batches, pod.limits) == (15, plan(whole, FEATURES, TOPOLOGY).limits)


def test_logs_that_break_off_are_one_error(tmp_path):
    folder, text = logs_of(tmp_path)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes((folder / "a.parquet").read_bytes()[:-700])
    words = ("embed", "plan", broken, "--engine", "local", "--batch", "32", "--chips", "1")
    done = completed(*words)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    data = bytearray((folder / "b.parquet").read_bytes())
    data[4:400] = bytes(396)  # the first row group's pages, behind an intact footer
    broken.write_bytes(data)
    with pytest.raises(UsageError, match="it breaks off"):
        plan_pod(LogBatches([read_log(broken, FEATURES, 32)]), FEATURES, TOPOLOGY, 32)
    archive = tmp_path / "log.npz"
    np.savez(archive, user=np.zeros((64, 1), int), item=np.zeros((64, 1), int), friend=np.zeros((64, 1), int))
    with pytest.raises(UsageError, match="is not read in parts"):
        plan_pod(LogBatches([read_log(archive, FEATURES, 32)]), FEATURES, TOPOLOGY, 32)
    with pytest.raises(UsageError, match="less than one batch"):
        plan_pod(LogBatches([read_log(text, FEATURES, 1024)]), FEATURES, TOPOLOGY, 1024)


@pytest.mark.nightly
def test_ray_gives_the_same_bits(tmp_path):
    """Two workers on this machine, one of which is killed; an error in one is ours, as it is.

    By day test_parts_join_in_any_order and test_a_log_is_read_in_parts do what the workers do, without Ray.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_DEDUP_LOGS": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.embed.ray_workers", str(tmp_path)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("error").startswith("batch 8, feature 'user': id 999 of sample 0 is not in 0 .. 299")
    assert found == {"logs": True, "logs_batches": 30, "killed": True, "killed_batches": 20, "died": True}


def test_a_whole_pod_in_seconds(tmp_path):
    words = ("embed", "plan", "--tables", "1000", "--rows-per-table", "1000000000", "--chips", "4096")
    words += ("--target", "tpu-v5p", "--batch", "1048576")
    done = completed(*words, "--json")
    value = json.loads(done.stdout)
    assert (value["kind"], value["topology"]["sparsecores"], value["basis"]) == (
        *("embedding_plan", 16384, "uniform ids"),
    )
    assert sum(table["vocab"] for table in value["tables"]) == 10**12
    assert value["hbm_per_chip"]["tables_bytes"] == sum(table["padded_bytes"] for table in value["tables"]) // 4096
    assert len(value["stacks"]) == 500
    assert not {"imbalance", "wait", "drop_rate", "quantiles"} & set(value["stacks"][0]), "not counted on a pod"
    assert (value["fits"], value["num_serialized_tables_that_fit"]) == (False, 93)
    assert [finding["bottleneck"] for finding in value["findings"]] == ["hbm-stack-overflow"], (
        "no stack holds more rows"
    )
    flags = {"LIBTPU_INIT_ARGS": ""}
    assert b"with which it fits" in completed(*words, **flags).stdout
    out = tmp_path / "limits.json"
    small = (*words[:3], "3", *words[4:7], "4", *words[8:10], "--batch", "4096")
    assert completed(*small[:10], "--batch", "4096", "-o", out).returncode == 0
    assert set(read_limits(out)) == {"t0_t1", "t2"}


def test_memory_does_not_grow_with_the_pod():
    """16,384 SparseCores: S x S counters of one stack would be two gigabytes."""
    topology = Topology.for_target("tpu-v5p", 4096)
    features = [Feature("f", Table("t", 10**9, 8))]

    def batches(number):
        yield from ({"f": np.random.default_rng(k).integers(0, 10**9, (1 << 15, 1))} for k in range(number))

    plan_pod(batches(1), features, topology, 1 << 15)
    tracemalloc.start()
    plan_pod(batches(3), features, topology, 1 << 15)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--tables", "2", "--config", "x.toml"), "--tables beside a log or a model"),
        (("--tables", "0"), "--tables 0"),
        (("--tables", "2", "--quantile", "0.9"), "--quantile on a pod"),
        (("--tables", "2", "-o", "x.html"), "-o .html on a pod"),
        (("--tables", "2", "--engine", "spark"), "one of local, ray"),
        (("--engine", "ray"), "--engine ray without a log"),
        (("--hot", "0.1"), "--hot without a log"),
    ],
)
def test_options_that_do_not_go_together(words, text):
    done = completed("embed", "plan", *words)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert text in done.stderr.decode()

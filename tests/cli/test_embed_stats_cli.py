"""`tilewright embed stats`, as a user runs it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tilewright.embed import FdoStats, read_fdo, read_limits, read_torchrec

MODEL = """
target = "tpu-v6e"
chips = 2
batch = 16

[[table]]
name = "user"
vocab = 100
width = 8

[[table]]
name = "item"
vocab = 40
width = 16

[[feature]]
name = "user"
table = "user"

[[feature]]
name = "item"
table = "item"
"""


@pytest.fixture
def fdo(tmp_path):
    counts = np.array([[4, 1], [3, 7]])
    stats = FdoStats({"t": counts}, {"t": counts - 1}, {"t": counts * 8}, {"t": np.array([[0], [2]])})
    return str(stats.write(tmp_path / "fdo.npz"))


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.toml"
    path.write_text(MODEL)
    return str(path)


def test_statistics_on_the_terminal(run, fdo):
    code, out, _ = run("embed", "stats", fdo)
    assert code == 0
    for word in ("stack", "records", "max unique", "fullest shard", "1.27 x", "56"):
        assert word in out
    code, out, _ = run("embed", "stats", fdo, "--json")
    value = json.loads(out)
    assert (value["kind"], value["schema_version"]) == ("embedding_statistics", 1)
    assert value["stacks"]["t"] == {
        "records": 2,
        "max_ids_per_partition": 7,
        "max_unique_ids_per_partition": 6,
        "required_buffer_size_per_sc": 56,
        "id_drop_counters": 2,
        "imbalance": pytest.approx(7 / 5.5),
    }


def test_from_one_form_to_another(run, fdo, tmp_path):
    csv, limits, again = (str(tmp_path / name) for name in ("fdo.csv", "limits.json", "again.npz"))
    assert run("embed", "stats", fdo, "-o", csv)[0] == 0
    assert np.array_equal(read_fdo(csv).max_ids_per_partition["t"], [[4, 1], [3, 7]])
    code, _, err = run("embed", "stats", csv, "-o", limits)
    assert (code, f"wrote {limits}" in err) == (0, True)
    assert vars(read_limits(limits)["t"]) == {"max_ids_per_partition": 8, "max_unique_ids_per_partition": 8}
    assert run("embed", "stats", limits, "-o", again)[0] == 0
    assert read_fdo(again).limits() == read_limits(limits)


def test_a_log_is_counted(run, model, tmp_path):
    log = tmp_path / "log.csv"
    random = np.random.default_rng(0)
    rows = [f"{random.integers(100)},{random.integers(40)}" for _ in range(48)]
    log.write_text("\n".join(["user,item", *rows]) + "\n")
    out, limits = str(tmp_path / "fdo.npz"), str(tmp_path / "limits.json")
    code, printed, _ = run("embed", "stats", str(log), "--config", model, "-o", out)
    assert (code, "user" in printed) == (0, True)
    counted = read_fdo(out)
    assert {name: values.shape for name, values in counted.max_ids_per_partition.items()} == {
        "user": (3, 4),
        "item": (3, 4),
    }
    assert run("embed", "stats", str(log), "--config", model, "-o", limits)[0] == 0
    assert run("embed", "check", str(log), limits, "--config", model)[0] == 0


def test_a_torchrec_plan(run, model, fdo, tmp_path):
    plan = str(tmp_path / "plan.torchrec.json")
    log = tmp_path / "log.csv"
    log.write_text("user,item\n" + "1,2\n" * 16)
    assert run("embed", "stats", str(log), "--config", model, "-o", plan)[0] == 0
    assert list(read_torchrec(plan)) == ["user", "item"]
    code, out, _ = run("embed", "stats", plan, "--config", model)
    assert code == 0
    for word in ("row_wise", "rows of a rank, 2 ranks", "rows of a chip, planned here"):
        assert word in out
    value = json.loads(run("embed", "stats", plan, "--json")[1])
    assert value["rank_bytes"] == {"0": 4 * (50 * 8 + 20 * 16), "1": 4 * (50 * 8 + 20 * 16)}
    assert value["chip_bytes"] is None
    for given, problem in (
        ((fdo, "-o", plan), "a sharding plan is of a model"),
        ((plan, "-o", "x.json"), "a TorchRec plan is read, not written again"),
        ((fdo, "-o", "x.txt"), "no writer for 'x.txt'"),
    ):
        code, _, err = run("embed", "stats", *given)
        assert (code, problem in err) == (2, True)


def test_a_trace_as_counters(run, tmp_path):
    from tests.embed.test_xprof import written

    written(tmp_path / "profile", "xspace")
    code, out, _ = run("embed", "diagnose", str(tmp_path / "profile"))
    assert "host-bound" in out
    assert code == 1

"""`tilewright embed check`, and plans of a model in a file, as a user runs them."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest

from tilewright.embed import Limits, SparseCoreConfig, Topology, read_limits

MODEL = """
target = "tpu-v6e"
batch = 8
[[table]]
name = "user"
vocab = 100
width = 16
[[table]]
name = "item"
vocab = 20
width = 16
[[feature]]
name = "user"
[[feature]]
name = "seen"
table = "item"
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A model and a log of 20 rows in the working folder; returns a writer of more logs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.toml").write_text(MODEL)

    def write(name="log.npz", **change):
        offsets = np.arange(21) * 2
        arrays = {"user": np.arange(20) % 7, "seen.values": np.arange(40) % 9, "seen.offsets": offsets, **change}
        np.savez(tmp_path / name, **arrays)
        return name

    write()
    return write


def test_a_plan_its_limits_and_a_check(run, files, tmp_path):
    code, out, err = run("embed", "plan", "log.npz", "--config", "model.toml", "-o", "limits.json")
    assert (code, out) == (0, "")
    assert "compiles and fits on tpu-v6e" in err
    code, out, err = run("embed", "check", "log.npz", "limits.json", "--config", "model.toml")
    assert code == 0
    assert "2 batches against the limits" in out
    limits = json.loads((tmp_path / "limits.json").read_text())
    (entry,) = limits["stacks"].values()
    entry["max_ids_per_partition"] -= 1
    entry["max_unique_ids_per_partition"] = 1
    (tmp_path / "limits.json").write_text(json.dumps(limits))
    code, out, err = run("embed", "check", "log.npz", "limits.json", "--config", "model.toml", "--json")
    assert code == 1
    assert "log.npz: 2 of 2 batches overflow; set max_unique_ids_per_partition of 'user_item' to at least" in err
    value = json.loads(out)
    assert (value["kind"], value["passed"], value["batches_over"]) == ("embedding_check", False, 2)


def test_a_short_log_is_checked_in_the_batch_it_was_planned_in(run, files, tmp_path):
    """Nothing but the files is said twice: the limits know their batch."""
    rows = [["0", *map(str, range(13)), *(f"{(i * 7 + k) % 5:x}" for k in range(26))] for i in range(62)]
    (tmp_path / "short.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    code, _, err = run("embed", "plan", "short.tsv", "-o", "limits.json")
    assert code == 0
    assert "so the batch is 60" in err
    code, out, err = run("embed", "check", "short.tsv", "limits.json", "--json")
    assert code == 0
    assert "limits.json: learnt with batches of 60, which are taken here" in err
    planned = json.loads((tmp_path / "limits.json").read_text())
    (stack,) = planned["stacks"].values()
    partitions = [each for each in json.loads(out)["limits"] if each["knob"] in stack]
    assert [(each["limit"], -(-each["observed"] // 8) * 8) for each in partitions] == [(n, n) for n in stack.values()]
    code, _, err = run("embed", "diagnose", "short.tsv", "--limits", "limits.json")
    assert code == 0
    assert "learnt with batches of 60" in err
    assert "short.tsv: 1 batch on 4 SparseCores" in err
    code, _, err = run("embed", "check", "short.tsv", "limits.json", "--batch", "20")
    assert "learnt with batches of 60, these are of 20, whose partitions are others" in err
    del planned["batch"]  # a file of an older version
    (tmp_path / "limits.json").write_text(json.dumps(planned))
    code, _, err = run("embed", "check", "short.tsv", "limits.json")
    assert code == 0
    assert "less than a batch of 4096, so the batch is 60" in err
    (tmp_path / "limits.json").write_text(json.dumps({**planned, "batch": "60"}))
    code, _, err = run("embed", "check", "short.tsv", "limits.json")
    assert (code, err.strip()) == (2, "tilewright: limits.json: batch = '60' is not a whole number of at least 1")


def test_what_flags_paste_is_the_plans_limits_file(run, files, tmp_path):
    """A shell runs the lines; the file they write is that of -o, reads back, holds the log and knows its chips."""
    words = ("embed", "plan", "log.npz", "--config", "model.toml", "--headroom", "0.25")
    assert run(*words, "-o", "written.json")[0] == 0
    code, out, _ = run(*words, "--flags")
    assert code == 0
    shell = subprocess.run(
        ["sh", "-c", out + '\nprintf %s "$LIBTPU_INIT_ARGS"'], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    knobs, rest = SparseCoreConfig().with_flags(shell.stdout)
    assert (knobs.max_ids_file, rest) == ("limits.json", ())
    assert (tmp_path / knobs.max_ids_file).read_text() == (tmp_path / "written.json").read_text()
    _, text, _ = run(*words, "--json")
    planned = {s["name"]: Limits(*s["limits"].values()) for s in json.loads(text)["stacks"]}
    assert read_limits(tmp_path / "limits.json", Topology.for_target("tpu-v6e")) == planned
    assert run("embed", "check", "log.npz", "limits.json", "--config", "model.toml")[0] == 0
    code, _, err = run("embed", "check", "log.npz", "limits.json", "--config", "model.toml", "--chips", "2")
    assert code == 2
    assert "limits for 1 chip of 2, not for 2 chips of 2 SparseCores" in err


def test_packed_tables_from_plan_to_check(run, files, tmp_path):
    """The file's key, the option over it, and limits that know which tables they are of."""
    model = MODEL.replace("vocab = 20\nwidth = 16", "vocab = 20\nwidth = 2")
    (tmp_path / "model.toml").write_text(model)
    (tmp_path / "packed.toml").write_text("narrow_packing = true" + model)
    with_model = ("log.npz", "--config", "model.toml")
    code, out, _ = run("embed", "plan", *with_model, "--narrow-packing")
    assert code == 0
    assert "packed: 4 rows of item share a line" in out
    assert "narrow rows sharing lines: 1 table" in out
    code, by_option, _ = run("embed", "plan", *with_model, "--narrow-packing", "--json")
    code, by_key, _ = run("embed", "plan", "log.npz", "--config", "packed.toml", "--json", "-o", "limits.json")
    plans = [json.loads(text) for text in (by_option, by_key)]
    assert plans[0]["stacks"] == plans[1]["stacks"]
    assert [(t["vocab"], t["rows_per_line"]) for t in plans[1]["tables"]] == [(100, 1), (20, 4)]
    code, out, _ = run("embed", "check", "log.npz", "limits.json", "--config", "packed.toml", "--json")
    assert code == 0
    partitions = [each for each in json.loads(out)["limits"] if each["what"] != "all tables"]
    assert len(partitions) == 4
    assert all(each["limit"] == -(-each["observed"] // 8) * 8 for each in partitions)
    code, _, err = run("embed", "diagnose", "log.npz", "--config", "packed.toml", "--limits", "limits.json")
    assert code == 0
    assert "2 batches on 2 SparseCores" in err
    for command in (("check", "log.npz", "limits.json"), ("diagnose", "log.npz", "--limits", "limits.json")):
        code, _, err = run("embed", *command, "--config", "model.toml")
        assert code == 2
        assert "limits.json: limits of packed tables, not of unpacked ones; give --narrow-packing" in err
    code, plain, _ = run("embed", "plan", "log.npz", "--config", "packed.toml", "--no-narrow-packing", "--json")
    assert [t["rows_per_line"] for t in json.loads(plain)["tables"]] == [1, 1]
    code, _, err = run("embed", "plan", "log.npz", "--config", "packed.toml", "--bad-ids", "drop")
    assert code == 0


def test_limits_of_the_file_itself(run, files, tmp_path):
    text = MODEL + "[limits.user_item]\nmax_ids_per_partition = 3\nmax_unique_ids_per_partition = 3\n"
    (tmp_path / "model.toml").write_text(text)
    code, out, err = run("embed", "check", "log.npz", "--config", "model.toml")
    assert code == 1
    assert "batches overflow" in err
    assert "max_ids_per_chip_per_sample" in out


HIGH = "[limits.user_item]\nmax_ids_per_partition = 90\nmax_unique_ids_per_partition = 90\n"


def test_what_mini_batches_cannot_do_is_not_promised(run, files, tmp_path):
    """A bound of a whole table, which no mini-batch cuts, and a hash bucket that holds one id."""
    bound = "[sparsecore]\nmax_ids_per_table = { user = 3 }\n"
    (tmp_path / "model.toml").write_text(MODEL + HIGH + bound)
    code, out, err = run("embed", "check", "log.npz", "--config", "model.toml")
    assert code == 1
    assert err.endswith(
        "set max_ids_per_table of 'user' to at least 8; max_ids_per_table does not bound partitions, so mini-batches "
        "do not help\n"
    )
    assert "mini-batch" not in out
    files(user=np.full(20, 5))
    (tmp_path / "model.toml").write_text(MODEL + HIGH.replace("90", "2"))
    code, out, err = run("embed", "check", "log.npz", "--config", "model.toml")
    assert code == 1
    assert "mini-batches do not hold 2 of them: stack 'user_item', source 0, shard 1: 4 ids in one partition" in err
    assert "which mini-batches cannot cut: id 5 of user (4))" in err
    assert "severe: mini-batching: one hash bucket alone exceeds a limit" in out
    code, out, _ = run("embed", "check", "log.npz", "--config", "model.toml", "--json")
    assert json.loads(out)["uncut"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("log.npz", "--config", "model.toml"), "no limits; name a limits file"),
        (("log.npz", "none.json", "--config", "model.toml"), "none.json: cannot read it"),
        (("none.npz", "good.json", "--config", "model.toml"), "none.npz: cannot read it"),
        (("log.npz", "other.json", "--config", "model.toml"), "limits of 'x', which is not a stack"),
        (("log.npz", "empty.json", "--config", "model.toml"), "no limits of stack 'user_item'"),
        (
            ("log.npz", "good.json", "--config", "model.toml", "--chips", "2"),
            "limits for 1 chip of 2, not for 2 chips of 2",
        ),
        (("log.npz", "swapped.json", "--config", "model.toml"), "max_unique_ids_per_partition 9 is above"),
        (("log.npz", "good.json", "--config", "model.toml", "--batch", "7"), "7 does not divide over 2"),
        (("log.npz", "good.json", "--config", "model.toml", "--width", "8"), "--width beside --config"),
        (("log.npz", "good.json", "--config", "model.toml", "--bad-ids", "x"), "bad_ids = 'x'"),
        (("falls.npz", "good.json", "--config", "model.toml"), "offsets decrease"),
        (("float.npz", "good.json", "--config", "model.toml"), "ids of type float64"),
        (("wild.npz", "good.json", "--config", "model.toml"), "id 100 of sample 0 is not in 0 .. 99"),
    ],
)
def test_what_cannot_be_checked_is_one_line(run, files, tmp_path, words, message):
    limits = {"max_ids_per_partition": 8, "max_unique_ids_per_partition": 8}
    head = {"schema_version": 1, "kind": "embedding_limits", "topology": {"chips": 1, "sparsecores_per_chip": 2}}
    for name, stacks in (
        ("good", {"user_item": limits}),
        ("other", {"user_item": limits, "x": limits}),
        ("empty", {}),
        ("swapped", {"user_item": {**limits, "max_unique_ids_per_partition": 9}}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps({**head, "stacks": stacks}))
    files("falls.npz", **{"seen.offsets": np.array([0, 4, 2, *range(6, 42, 2)])})
    files("float.npz", user=np.arange(20) / 2)
    files("wild.npz", user=np.arange(20) + 100)
    code, out, err = run("embed", "check", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_plan_of_a_model_counts_existing_flags(run, files, monkeypatch):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_sc_detect_nan=perhaps")
    code, _, err = run("embed", "plan", "log.npz", "--config", "model.toml")
    assert code == 2
    assert "not true or false" in err


def test_a_model_without_a_log(run, files):
    code, _, err = run("embed", "plan", "--config", "model.toml")
    assert code == 2
    assert "no log; name a file" in err

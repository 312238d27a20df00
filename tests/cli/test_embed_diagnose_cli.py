"""`tilewright embed diagnose`, and the findings that plan and check print, as a user runs them."""

from __future__ import annotations

import json

import numpy as np
import pytest

MODEL = """
target = "tpu-v6e"
batch = 64
[[table]]
name = "user"
vocab = 1000
width = 16
[[feature]]
name = "user"
[limits.user]
max_ids_per_partition = {ids}
max_unique_ids_per_partition = {ids}
[sparsecore]
allow_id_dropping = {drop}
"""
MEASURED = """
[seconds]
step = 0.010
wait = 0.004
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A log of 256 rows, half of them one id, in the working folder; returns a writer of models."""
    monkeypatch.chdir(tmp_path)
    ids = np.where(np.arange(256) % 2, 8, np.random.default_rng(0).integers(0, 1000, 256))
    np.savez("log.npz", user=ids)

    def write(ids, drop="false"):
        (tmp_path / "model.toml").write_text(MODEL.format(ids=ids, drop=drop))

    write(16)
    return write


def names(value):
    return {found["bottleneck"]: found for found in value["findings"]}


def test_a_counters_file(run, files, tmp_path):
    (tmp_path / "run.toml").write_text(MEASURED)
    code, out, err = run("embed", "diagnose", "run.toml")
    assert code == 1
    assert "severe: host-bound" in out
    assert "6.00 ms instead of 10.0 ms, 1.67 times as many" in out
    assert err.startswith("tilewright: run.toml: host-bound; ")
    code, out, _ = run("embed", "diagnose", "run.toml", "--json")
    value = json.loads(out)
    assert (code, value["kind"], value["severe"]) == (1, "embedding_diagnosis", True)
    assert value["findings"][0]["evidence"]["lost share of the step"] == 0.4


def test_a_log_under_the_models_limits(run, files):
    code, out, err = run("embed", "diagnose", "log.npz", "--config", "model.toml", "--json")
    found = names(json.loads(out))
    assert {"limits-too-low", "mini-batching"} <= set(found)
    assert found["mini-batching"]["evidence"]["mini-batches per step"] > 1
    assert code == (1 if json.loads(out)["severe"] else 0)
    assert "4 batches on 2 SparseCores (tpu-v6e)" in err
    files(16, drop="true")
    dropped = names(json.loads(run("embed", "diagnose", "log.npz", "--config", "model.toml", "--json")[1]))
    assert dropped["id-dropping"]["evidence"]["entries dropped"] > 0
    assert "cannot be cut" not in dropped["mini-batching"]["cause"], "its bucket is cut out and dropped"
    files(64)
    assert "limits-too-low" not in names(
        json.loads(run("embed", "diagnose", "log.npz", "--config", "model.toml", "--json")[1])
    )


def test_a_log_a_limits_file_and_measured_times(run, files, tmp_path):
    assert run("embed", "plan", "log.npz", "--config", "model.toml", "-o", "limits.json")[0] == 0
    (tmp_path / "run.toml").write_text(MEASURED)
    words = ("--config", "model.toml", "--limits", "limits.json", "--counters", "run.toml", "--json")
    code, out, _ = run("embed", "diagnose", "log.npz", *words)
    value = json.loads(out)
    assert code == 1
    assert value["findings"][0]["bottleneck"] == "host-bound"
    assert "limits-too-low" in value["clear"]
    assert "spmem-overflow" in value["clear"]


def test_what_a_plan_found_can_be_diagnosed_again(run, files, tmp_path):
    code, out, _ = run("embed", "plan", "log.npz", "--config", "model.toml", "--json")
    (tmp_path / "plan.json").write_text(out)
    again = json.loads(run("embed", "diagnose", "plan.json", "--json")[1])
    assert again["findings"] == json.loads(out)["findings"]
    assert code == 0


def test_plan_and_check_print_findings(run, files, tmp_path):
    np.savez("skewed.npz", user=np.arange(256) * 2)  # of wide rows, so that a step waits for them
    (tmp_path / "wide.toml").write_text((tmp_path / "model.toml").read_text().replace("width = 16", "width = 4096"))
    _, out, _ = run("embed", "plan", "skewed.npz", "--config", "wide.toml")
    assert "\nwarning: skew, user: one shard combines more ids" in out
    assert run("embed", "plan", "skewed.npz", "--config", "wide.toml", "-o", "plan.html")[0] == 0
    page = (tmp_path / "plan.html").read_text()
    assert page.index("one shard combines more ids") < page.index("<table")
    assert "guide section 10, data distribution skew" in page
    code, out, _ = run("embed", "check", "log.npz", "--config", "model.toml")
    assert code == 1
    assert "warning: limits-too-low, user: partitions exceed" in out
    files(640)
    code, out, _ = run("embed", "check", "log.npz", "--config", "model.toml")
    assert code == 0
    assert "note: limits-too-high, user: " in out


def test_flags_in_use_count(run, files, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text('target = "tpu-v5p"\n')
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_sc_detect_nan=true --xla_other=1")
    code, out, _ = run("embed", "diagnose", "run.toml")
    assert code == 0
    assert "warning: checks-left-on" in out


def test_the_template_is_complete(run, files, tmp_path):
    code, out, _ = run("embed", "diagnose", "--template")
    (tmp_path / "filled.toml").write_text(out)
    assert code == 0
    assert run("embed", "diagnose", "filled.toml")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "nothing to judge; name a log or a counters file"),
        (("none.toml",), "none.toml: cannot read it"),
        (("none.npz",), "none.npz: cannot read it"),
        (("run.toml", "--config", "model.toml"), "run.toml: --config beside a counters file"),
        (("run.toml",), "run.toml: seconds: unknown key 'stepp'; did you mean step?"),
        (("log.npz", "--config", "model.toml", "--limits", "none.json"), "none.json: cannot read it"),
    ],
)
def test_wrong_words(run, files, tmp_path, words, message):
    (tmp_path / "run.toml").write_text("[seconds]\nstepp = 1\n")
    code, _, err = run("embed", "diagnose", *words)
    assert code == 2
    assert err.startswith(f"tilewright: {message}")
    assert err.count("\n") == 1


def test_several_logs_make_one_plan_and_headroom_raises_it(run, files, tmp_path):
    np.savez("more.npz", user=np.full(200, 8))
    code, out, err = run("embed", "plan", "log.npz", "more.npz", "--config", "model.toml", "--json")
    both = json.loads(out)
    assert (code, both["batches"]) == (0, 7)
    assert "more.npz: the last 8 rows are less than a batch" in err
    assert both["stacks"][0]["limits"]["max_ids_per_partition"] == 32
    out = run("embed", "plan", "log.npz", "more.npz", "--config", "model.toml", "--rows", "320", "--json")[1]
    assert json.loads(out)["batches"] == 5
    raised = run("embed", "plan", "log.npz", "more.npz", "--config", "model.toml", "--headroom", "0.1", "--json")[1]
    assert json.loads(raised)["stacks"][0]["limits"]["max_ids_per_partition"] == 40
    assert json.loads(raised)["stacks"][0]["observed"]["max_ids_per_partition"] == 32
    code, _, err = run("embed", "plan", "log.npz", "--config", "model.toml", "--headroom", "-1")
    assert code == 2
    assert "headroom -1" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "model.toml"), "model.toml: a model, not a log; name the log, and this file as --config model.toml"),
        (("plan", "other.csv"), "a log of other columns needs its model: --config model.toml"),
        (("check", "limits.json", "log.npz", "--config", "model.toml"), "the limits stand where the batches should"),
        (("plan", "log.npz", "--config", "model.toml", "--rows", "8"), "8 rows are less than one batch of 64"),
        (
            ("plan", "bad.npz", "--config", "model.toml"),
            'mend the data, hash them (ids = "hash" of the feature in --config), or give',
        ),
        (("diagnose", "model.toml"), "model.toml: a model, not counters"),
        (("diagnose", "bad.npz", "--config", "model.toml"), "give --bad-ids clip"),
    ],
)
def test_natural_mistakes_are_one_line_that_helps(run, files, tmp_path, words, message):
    (tmp_path / "other.csv").write_text("user,item\n1,2\n" * 70)
    (tmp_path / "limits.json").write_text("{}")
    np.savez("bad.npz", user=np.full(64, 5000))
    code, _, err = run("embed", *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_whole_numbers_in_a_csv_are_hashed_and_a_remark_says_so(run, files, tmp_path):
    rows = "\n".join(f"{k},t{k}" for k in range(64))
    (tmp_path / "log.csv").write_text(f"user,name\n{rows}\n")
    words = ("embed", "plan", "log.csv", "--config", "model.toml")
    assert "log.csv: user holds whole numbers, which are hashed" in run(*words)[2]
    for ids in ("direct", "hash"):
        text = MODEL.format(ids=16, drop="false").replace("[[feature]]", f'[[feature]]\nids = "{ids}"')
        (tmp_path / "model.toml").write_text(text)
        assert "whole numbers" not in run(*words)[2]
    (tmp_path / "model.toml").write_text(MODEL.format(ids=16, drop="false").replace("1000", "10"))
    assert "whole numbers" not in run(*words)[2], "numbers beyond the table are no rows"

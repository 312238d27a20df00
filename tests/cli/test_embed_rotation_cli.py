"""The line that a plan gives for a stack's rotation, pasted: plan, limits, check, diagnose and train take it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tilewright.embed import CATEGORICAL, LimitsFile, read_config
from tilewright.errors import UsageError
from tilewright.machine.fitting import FitJob, _prepared

MODEL = """
target = "tpu-v5p"
chips = 2
batch = 512
{tables}
"""
TABLE = """
[[table]]
name = "t{k}"
vocab = 4096
width = {width}
optimizer = "adagrad"
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Two stacks of four tables, whose most frequent ids the default rotation by 4 of 8 shards brings together.

    Rows are wide, so that a step waits for them."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    ids = draw.integers(0, 4096, (8, 2048))
    ids = np.where(draw.random(ids.shape) < 0.6, ids // 8 * 8, ids)
    np.savez("log.npz", **{f"t{k}": ids[k] for k in range(8)})
    tables = "".join(TABLE.format(k=k, width=1024 if k < 4 else 2048) for k in range(8))
    (tmp_path / "model.toml").write_text(MODEL.format(tables=tables))
    return "log.npz"


def test_the_plans_line_is_pasted(run, log, tmp_path):
    plan = ("embed", "plan", log, "--config", "model.toml")
    value = json.loads(run(*plan, "--json")[1])
    skew = [f for f in value["findings"] if f["bottleneck"] == "skew"]
    assert {f["subject"] for f in skew} == {"t0_t1_t2_t3", "t4_t5_t6_t7"}
    text = next(line for f in skew for line in f["advice"] if "rotation.t0" in line)
    promised = re.match(r"rotation by (\d): wait ([\d.]+) .*\(at the top of the model's file: (rotation.*)\)$", text)
    step, wait, line = promised.groups()
    model = (tmp_path / "model.toml").read_text()
    (tmp_path / "model.toml").write_text(f"{line}\n{model}")
    assert read_config("model.toml").rotation == {"t0_t1_t2_t3": int(step)}
    after = json.loads(run(*plan, "--json", "-o", "limits.json")[1])
    waits = {s["name"]: s["wait"] for s in after["stacks"]}
    before = {s["name"]: s["wait"] for s in value["stacks"]}
    assert f"{waits['t0_t1_t2_t3']:.2f}" == wait
    assert waits["t4_t5_t6_t7"] == before["t4_t5_t6_t7"], "the other stack keeps its own"
    learnt = json.loads((tmp_path / "limits.json").read_text())["rotation"]
    assert learnt == {"t0_t1_t2_t3": int(step), "t4_t5_t6_t7": 4}
    check = ("embed", "check", log, "limits.json", "--config", "model.toml")
    assert run(*check)[0] == 0
    (tmp_path / "model.toml").write_text(model)  # the limits bring their rotation
    checked = json.loads(run(*check, "--json")[1])
    of_stacks = [each for each in checked["limits"] if each["what"] != "all tables"]
    assert all(each["limit"] == -(-each["observed"] // 8) * 8 for each in of_stacks)
    assert run("embed", "diagnose", log, "--config", "model.toml", "--limits", "limits.json", "--json")[0] == 0
    (tmp_path / "model.toml").write_text(f"rotation.t0_t1_t2_t3 = {int(step) + 1}\n{model}")
    code, _, err = run(*check)
    assert code == 2
    assert f"limits of t0_t1_t2_t3 rotated by {step}, not by {int(step) + 1}; plan again" in err
    (tmp_path / "model.toml").write_text(f"rotation.t9 = 1\n{model}")
    code, _, err = run(*plan)
    assert (code, "a rotation of 't9', which is no stack" in err) == (2, True)


def test_training_turns_its_stacks_as_the_limits_say(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from tests.conftest import ROOT

    model = str(ROOT / "examples" / "dlrm.py")
    name = next(iter(_prepared(FitJob(model, None, "tpu-v5p", 1, 1, 512))[1].stacking().rotations))
    head = {"schema_version": 1, "kind": "embedding_limits", "stacks": {}}
    (tmp_path / "limits.json").write_text(json.dumps({**head, "rotation": {name: 3}}))
    stacking = _prepared(FitJob(model, None, "tpu-v5p", 1, 1, 512, "limits.json"))[1].stacking()
    assert stacking.rotations[name] == 3
    assert len(stacking.features) == len(CATEGORICAL)
    (tmp_path / "limits.json").write_text(json.dumps({**head, "rotation": {name: "3"}}))
    with pytest.raises(UsageError, match=r"limits\.json: rotation"):
        LimitsFile("limits.json").rotation([name])

"""`tilewright embed train` from the outside."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.embed import saved_steps

MODEL = """
import jax.numpy as jnp
import optax
from tilewright.embed import Adagrad, Feature, Table

NUMERIC, LABEL = ["age"], "rating"

def features(scale):
    return [Feature(n, Table(n, v, 8, optimizer=Adagrad(0.1))) for n, v in (("user", 40), ("item", 30))]

def optimizer():
    return optax.adam(0.01)

def init(key):
    return {"age": jnp.zeros(1), "bias": jnp.zeros(())}

def loss(params, numeric, vectors, labels):
    score = (vectors["user"] * vectors["item"]).sum(1) + numeric @ params["age"] + params["bias"]
    return ((score - labels) ** 2).mean(), score
"""


@pytest.fixture
def log(tmp_path):
    draw = np.random.default_rng(0)
    rows = [f"{draw.integers(40)},{draw.integers(30)},{draw.random():.3f},{draw.integers(1, 6)}" for _ in range(100)]
    (tmp_path / "log.csv").write_text("user,item,age,rating\n" + "\n".join(rows) + "\n")
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def words(folder, *more):
    given = ("--data", str(folder / "log.csv"), "--batch", "16", "--checkpoint", str(folder / "steps"))
    return ("embed", "train", str(folder / "model.py"), *given, *more)


DESCRIBED = """
target = "tpu-v5p"
chips = 2
batch = 32
stacks = [["user", "item"]]
rotation = { user_item = 3 }

[[table]]
name = "user"
vocab = 40
width = 8
optimizer = { kind = "adagrad", learning_rate = 0.1 }

[[table]]
name = "item"
vocab = 30
width = 8
optimizer = { kind = "adagrad", learning_rate = 0.1 }

[[feature]]
name = "user"
column = "who"
weights = "how_much"
ids = "direct"

[[feature]]
name = "item"
ids = "direct"

[sparsecore]
allow_id_dropping = true
"""


def test_one_description_serves_plan_check_diagnose_and_train(run, tmp_path, monkeypatch):
    """Columns, weights, stacks, rotation, knobs and hot rows of a TOML file, and the limits a plan learnt of it."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    users = np.where(draw.random(320) < 0.4, 5, draw.integers(0, 40, 320))
    rows = [f"{u},{draw.random():.3f},{draw.integers(30)},{draw.random():.3f},{draw.integers(1, 6)}" for u in users]
    Path("log.csv").write_text("who,how_much,item,age,rating\n" + "\n".join(rows) + "\n")
    Path("model.toml").write_text(DESCRIBED)
    Path("model.py").write_text(MODEL.replace("def features", "def unused"))
    described = ("log.csv", "--config", "model.toml")
    train = ("embed", "train", "model.py", "--config", "model.toml", "--data", "log.csv", "--steps", "10", "--json")
    assert run("embed", "plan", *described, "--hot", "0.2", "-o", "limits.json")[0] == 0
    learnt = json.loads(Path("limits.json").read_text())
    assert (learnt["hot_rows"], learnt["rotation"]) == ({"user": [5]}, {"user_item": 3})
    code, out, err = run("embed", "check", "log.csv", "limits.json", "--config", "model.toml", "--json")
    assert (code, json.loads(out)["batches_over"]) == (0, 0), err
    code, out, err = run("embed", "diagnose", *described, "--limits", "limits.json", "--json")
    assert json.loads(out)["counters"]["steps_over"] == 0, err
    losses = {}
    for name, more in {"learnt": (), "apart": ("--limits", "limits.json")}.items():
        code, out, err = run(*train, *more)
        assert code == 0, err
        value = json.loads(out)
        assert (value["chips"], value["batch"], value["num_minibatches"]) == (2, 32, 1)
        asked = value["recorded"]["user_item"]  # of ten batches, as the plan counted them
        if name == "apart":
            assert all(learnt["stacks"]["user_item"][knob] == -(-most // 8) * 8 for knob, most in asked.items())
        losses[name] = value["losses"]
    np.testing.assert_allclose(losses["apart"], losses["learnt"], rtol=1e-5)
    # what the model says of hot rows, limits and stacks counts without a limits file, too
    stack = "max_ids_per_partition = 32\nmax_unique_ids_per_partition = 32"
    Path("model.toml").write_text(f"{DESCRIBED}[hot_rows]\nuser = [5]\n[limits.user_item]\n{stack}\n")
    code, out, err = run(*train)
    np.testing.assert_allclose(json.loads(out)["losses"], losses["learnt"], rtol=1e-5)
    for wrong, problem in (
        ("[hot_rows]\nuser = [40]", "hot rows of 'user' that do not rise inside its 40 rows"),
        ("[hot_rows]\nusers = [4]", "hot rows of 'users', which is not a table: they are user, item"),
    ):
        Path("model.toml").write_text(DESCRIBED + wrong)
        code, _, err = run(*train)
        assert (code, problem in err) == (2, True), err
    Path("model.toml").write_text(f"{DESCRIBED}[hot_rows]\nuser = [6]\n")
    code, _, err = run(*train, "--limits", "limits.json")
    assert (code, "limits for other hot rows of user" in err) == (2, True), err


def test_train_resume_and_what_is_refused(run, log):
    code, out, err = run(*words(log, "--steps", "8", "--save-every", "4", "--json"))
    assert code == 0, err
    assert [line for line in err.splitlines() if "saved" in line] == ["step 4 is saved", "step 8 is saved"]
    whole = json.loads(out)
    expected = {"schema_version": 1, "kind": "training", "steps": 8, "checkpoints": [4, 8], "resumed_from": None}
    assert whole.items() >= expected.items()
    assert len(whole["losses"]) == 8
    assert 0 <= whole["hidden"] <= 1
    assert whole["examples_per_second"] > 0

    code, _, err = run(*words(log, "--steps", "12"))
    assert (code, err.count("\n")) == (2, 1)
    assert "there are checkpoints already, up to step 8; give --resume" in err
    code, out, err = run(*words(log, "--steps", "12", "--resume"))
    assert code == 0, err
    assert "steps 9 to 12 of 16 samples, in turn, on 1 device" in out
    assert saved_steps(log / "steps") == [4, 8, 12]
    code, _, err = run(*words(log, "--steps", "4", "--resume"))
    assert code == 2
    assert "the last checkpoint is of step 12, beyond the 4 asked for" in err

    table = next((log / "steps" / "12" / "tables").glob("*/rows/c.0.0.0"))
    table.write_bytes(table.read_bytes()[:-1])
    code, _, err = run(*words(log, "--steps", "12", "--resume"))
    assert (code, err.count("\n")) == (2, 1)
    assert str(table) in err
    assert err.endswith("restore step 8, the newest that is whole\n")
    code, out, err = run(*words(log, "--steps", "12", "--resume", "--skip-damaged"))
    assert code == 0, err
    (aside,) = (log / "steps").glob("12.damaged-*")
    assert f"step 12 is damaged, kept as {aside.name}: " in err
    assert "step 8 is whole: going on from it\nstep 12 is saved\n" in err
    assert "steps 9 to 12" in out
    owner = {"host": "elsewhere", "boot": "another", "process": 7, "started": "1", "since": "yesterday"}
    (log / "steps" / "lock").write_text(json.dumps(owner))
    code, _, err = run(*words(log, "--steps", "16", "--resume"))
    assert (code, err.count("\n")) == (2, 1)
    assert "process 7 on elsewhere, since yesterday owns this folder" in err


@pytest.mark.long
def test_two_processes_train_as_one_and_a_killed_one_is_one_error(run, log, tmp_path):
    """On the same two chips; then one is killed, and one process goes on from what was saved.

    Ids in numpy's own file, since every process would begin with hashing texts.
    """
    draw = np.random.default_rng(0)
    columns = {"user": draw.integers(40, size=100), "item": draw.integers(30, size=100)}
    np.savez(log / "log.npz", age=draw.random(100), rating=draw.integers(1, 6, 100), **columns)
    given = words(log, "--data", str(log / "log.npz"), "--chips", "2", "--save-every", "2", "--steps")
    code, out, err = run(*given, "6", "--json")
    assert code == 0, err
    (log / "steps").rename(tmp_path / "alone")
    command = [sys.executable, "-m", "tilewright", *given, "100000", "--processes", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert [process.stderr.readline() for _ in range(2)] == ["step 2 is saved\n", "step 4 is saved\n"]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[1]), signal.SIGKILL)
        *_, last = process.stderr
    assert process.returncode == 1
    assert last.startswith("tilewright: embed train: process 1 of 2 was ended by SIGKILL; finished checkpoints")
    steps = saved_steps(log / "steps")
    assert steps[:2] == [2, 4]
    for step in steps[2:]:
        shutil.rmtree(log / "steps" / str(step))
    code, again, err = run(*given, "6", "--resume", "--json")
    assert code == 0, err
    np.testing.assert_allclose(json.loads(again)["losses"], json.loads(out)["losses"][4:], rtol=1e-5)


@pytest.mark.nightly
def test_three_processes_train_as_one(run, log, tmp_path):
    """Each with two chips of its own. By day: the test of two processes."""
    given = words(log, "--chips", "6", "--batch", "48", "--steps", "2", "--json")
    code, out, err = run(*given)
    assert code == 0, err
    shutil.rmtree(log / "steps", ignore_errors=True)
    command = [sys.executable, "-m", "tilewright", *given, "--processes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    np.testing.assert_allclose(json.loads(out)["losses"], json.loads(done.stdout)["losses"], rtol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("pipelined", [False, True])
def test_two_processes_with_hot_rows_and_renewed_limits_train_as_one(run, log, pipelined):
    """By day: hot rows and renewed limits, each on one device and several (embed/test_training, embed/test_loop); two
    processes without them."""
    draw = np.random.default_rng(1)
    users = np.where(draw.random(160) < 0.4, 5, draw.integers(40, size=160))
    users[100:] = draw.integers(0, 40, 60) // 8 * 8  # the last batches ask one shard for more
    columns = {"user": users, "item": draw.integers(30, size=160), "age": draw.random(160)}
    np.savez(log / "log.npz", rating=draw.integers(1, 6, 160), **columns)
    tables = "".join(
        f'[[table]]\nname = "{name}"\nvocab = {vocab}\nwidth = 8\noptimizer = "adagrad"\n'
        f'[[feature]]\nname = "{name}"\nids = "direct"\n'
        for name, vocab in (("user", 40), ("item", 30))
    )
    (log / "model.toml").write_text(f"chips = 2\nhot_rows.user = [5]\n{tables}")
    more = ("--renew-limits", "3", "--headroom", "0.1", "--steps", "10", *["--pipelined"] * pipelined)
    given = words(log, "--data", str(log / "log.npz"), "--config", str(log / "model.toml"), *more, "--json")
    code, out, err = run(*given)
    assert code == 0, err
    assert err.count("the limits are renewed") == 3, err
    shutil.rmtree(log / "steps", ignore_errors=True)
    command = [sys.executable, "-m", "tilewright", *given, "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    alone, together = json.loads(out), json.loads(done.stdout)
    assert (together["processes"], len(together["losses"])) == (2, 10)
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-6)
    assert together["recorded"] == alone["recorded"], "of all processes"
    shutil.rmtree(log / "steps", ignore_errors=True)
    code, _, err = run(*given[:-1], "-o", str(log / "limits.json"))
    assert code == 0, err
    written = json.loads((log / "limits.json").read_text())
    assert (written["basis"], written["batches"], written["hot_rows"]) == ("training", 10, {"user": [5]})
    asked = alone["recorded"]["user_item"]
    assert written["stacks"]["user_item"] == {n: -(-math.ceil(most * 1.1) // 8) * 8 for n, most in asked.items()}
    shutil.rmtree(log / "steps", ignore_errors=True)
    code, out, err = run(*given, "--limits", str(log / "limits.json"))
    assert code == 0, err
    np.testing.assert_allclose(json.loads(out)["losses"], alone["losses"], rtol=1e-6)


def test_a_page_shows_both_curves(run, log):
    page = log / "page.html"
    code, out, err = run(*words(log, "--steps", "6", "--pipelined", "-o", str(page)))
    assert code == 0, err
    assert "pipelined, on 1 device" in out
    text = page.read_text()
    assert len(re.findall(r"<(?:path|polyline)", text)) >= 2
    assert ">in turn<" in text
    assert ">pipelined<" in text
    trace = log / "phases.pftrace"
    code, _, err = run(*words(log, "--steps", "8", "--resume", "-o", str(trace)))
    assert code == 0, err
    assert trace.stat().st_size > 100


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--data", "absent.csv"), "cannot read it"),
        (("--batch", "18"), "does not divide over 4 SparseCores; take a multiple of them, such as 16"),
        (("--batch", "400"), "fewer rows than one batch"),
        (("--resume",), "no finished checkpoint to resume"),
        (("--steps", "0"), "0 steps"),
        (("--target", "tpu-v5e"), "has no SparseCores"),
        (("--processes", "2"), "1 devices do not divide over 2 processes"),
        (("-o", "x.pdf"), "no writer"),
    ],
)
def test_bad_input_is_one_line(run, log, more, message):
    code, out, err = run(*words(log, "--steps", "2", *more))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_columns_that_are_missing_or_no_numbers(run, log):
    model = log / "model.py"
    for columns, message in (
        ('["salary"], "rating"', "no column salary"),
        ('"age", "rating"', "NUMERIC is a list of columns"),
    ):
        model.write_text(MODEL.replace('["age"], "rating"', columns))
        code, _, err = run(*words(log, "--steps", "2"))
        assert code == 2
        assert message in err
    model.write_text(MODEL)
    (log / "log.csv").write_text("user,item,age,rating\n" + "1,2,old,3\n" * 16)
    code, _, err = run(*words(log, "--steps", "2"))
    assert code == 2
    assert "column 'age': not a column of numbers" in err


def test_a_model_that_is_no_number_any_more(run, log):
    (log / "model.py").write_text(MODEL.replace("optax.adam(0.01)", "optax.sgd(1e30)"))
    code, _, err = run(*words(log, "--steps", "8", "--save-every", "2"))
    assert code == 1
    assert re.search(r"the loss of step \d or one of its gradients is not a finite number", err)

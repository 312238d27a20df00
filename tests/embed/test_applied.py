"""What findings write into a model's file: lines that can be read again, and what the plan then says."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from tests.cli.conftest import completed
from tests.conftest import by_night
from tilewright.embed import Adagrad, EmbedConfig, Feature, Table, diagnose, plan, read_config
from tilewright.embed.logs.config import change_text
from tilewright.embed.planning.types import AS_IT_IS
from tilewright.errors import UsageError

TABLES = """
[[table]]
name = "user"
vocab = 50
width = 1024
[[table]]
name = "item"
vocab = 60
width = 1024
"""


def skewed(seed: int) -> tuple[EmbedConfig, list[dict[str, np.ndarray]]]:
    """Tables of one kind, some with a hot id or hot low rows, and a log of eight batches of them."""
    draw = np.random.default_rng(seed)
    tables = [Table(f"t{k}", int(draw.integers(200, 5000)), 1024, optimizer=Adagrad(0.1)) for k in range(3)]
    config = EmbedConfig(tuple(Feature(t.name, t) for t in tables), chips=int(draw.integers(2, 5)), batch=512 * 3)
    config = (
        config if config.batch % config.topology.sparsecores == 0 else EmbedConfig(config.features, chips=2, batch=1536)
    )
    log = []
    hot = [int(draw.integers(0, t.vocab)) if draw.random() < 0.6 else None for t in tables]
    for _ in range(8):
        batch = {}
        for table, one in zip(tables, hot, strict=True):
            ids = draw.zipf(1.2 + draw.random(), (config.batch, 4)) % table.vocab
            if one is not None:
                ids[draw.random(ids.shape) < 0.3] = one
            batch[table.name] = ids
        log.append(batch)
    return config, log


def planned(config: EmbedConfig, log: list[dict[str, np.ndarray]]):
    return plan(
        log, config.features, config.topology, target=config.target, stacking=config.stacking(), apart=config.hot_rows
    )


@pytest.mark.parametrize("seed", range(20) if by_night() else range(6))
def test_what_is_applied_comes_as_said_and_makes_no_step_longer(seed):
    """Every batch of the log is among those run again, so the waits are those that the advice names. Rows are wide, so
    that a small log makes a step that does not wait for launches alone."""
    config, log = skewed(seed)
    before = planned(config, log)
    for finding in diagnose(before.counters()).findings:
        if not finding.change:
            continue
        after = planned(config.changed(finding.change), log)
        shorter = 1 - after.traffic.waited / before.traffic.waited
        assert shorter >= -1e-4, finding
        if finding.bottleneck == "skew":
            said = {r.change: r for r in before.skew.remedies if r.stack == finding.subject}
            change = "hottest id held apart"
            if "rotation" in finding.change:
                step = finding.change["rotation"][finding.subject]
                change = f"rotation by {step}" if step else "no rotation"
            [now] = [s for s in after.stacks if s.name == finding.subject]
            assert now.wait == pytest.approx(said[change].wait, rel=1e-6)
            assert now.imbalance == pytest.approx(said[change].imbalance, rel=1e-6)
            assert now.observed == said[change].limits
            assert now.wait < said[AS_IT_IS].wait
            assert shorter >= 0.02, "what gains less is no advice"


def test_most_logs_have_something_to_apply():
    assert (
        sum(bool([f for f in diagnose(planned(*skewed(seed)).counters()).findings if f.change]) for seed in range(6))
        >= 3
    )


@pytest.mark.parametrize(
    "head",
    [
        "",
        "batch = 64 # samples\n",
        "rotation.user_item = 2\n",
        "[rotation]\nuser_item = 2\nother = 1\n[sparsecore]\nallow_id_dropping = true\n",
        "hot_rows.user = [3]\n",
        "[hot_rows] # of Monday\nuser = [3, 4]\n",
    ],
)
def test_a_change_is_written_into_the_lines_that_are_there(tmp_path, head):
    """The other lines and their comments stay, and reading the file gives the changed model."""
    text = head + TABLES if "[" not in head.split("#")[0].split("=")[0] else TABLES + head
    text = text.replace("[rotation]\nuser_item = 2\nother = 1", "[rotation]\nuser_item = 2")
    change = {"rotation": {"user_item": 5}, "hot_rows": {"user": [7], "item": [1]}, "activation_bytes": 1 << 22}
    change["sparsecore"] = {"detect_nan": True, "assert_level": "bounds"}
    file = tmp_path / "model.toml"
    file.write_text(text)
    expected = read_config(file).changed(change)
    file.write_text(EmbedConfig.changed_text(text, change))
    found = read_config(file)
    assert {name: ids.tolist() for name, ids in found.hot_rows.items()} == {
        name: ids.tolist() for name, ids in expected.hot_rows.items()
    }
    for name in ("rotation", "activation_bytes", "sparsecore", "features", "batch"):
        assert getattr(found, name) == getattr(expected, name), name
    assert all(line in file.read_text() for line in TABLES.splitlines())
    again = EmbedConfig.changed_text(file.read_text(), change)
    assert tomllib.loads(again) == tomllib.loads(file.read_text())


def test_keys_over_several_lines_are_left_to_the_user():
    with pytest.raises(UsageError, match=r"more than one line.*hot_rows\.user = \[7\]"):
        EmbedConfig.changed_text(TABLES + "[hot_rows]\nuser = [\n  3,\n]\n", {"hot_rows": {"user": [7]}})
    assert change_text({"rotation": {"a b": 1}}) == 'rotation."a b" = 1'


def test_the_command_plans_again_and_writes_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    users = np.where(draw.random(6400) < 0.8, 5, draw.integers(0, 50, 6400))
    rows = [f"{user},{item}" for user, item in zip(users, draw.integers(0, 60, 6400), strict=True)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    ids = "".join(f'[[feature]]\nname = "{name}"\nids = "direct"\n' for name in ("user", "item"))
    (tmp_path / "model.toml").write_text(f"batch = 3200\nchips = 1\n{TABLES}{ids}")
    command = ("embed", "plan", "log.csv", "--config", "model.toml")
    done = completed(*command)
    assert b"--apply 1 writes hot_rows.user = [5]" in done.stdout, done.stderr
    done = completed(*command, "--apply", "1", "-o", "applied.toml")
    assert done.returncode == 0, done.stderr
    assert b"applied: skew: hot_rows.user = [5]" in done.stderr
    assert b"wait, largest" in done.stdout
    assert read_config("applied.toml").hot_rows["user"].tolist() == [5]
    done = completed("embed", "plan", "log.csv", "--config", "applied.toml", "-o", "limits.json")
    assert b"hot_rows" in (tmp_path / "limits.json").read_bytes(), done.stderr
    done = completed("embed", "plan", "log.csv", "--config", "applied.toml", "--apply", "all", "-o", "again.toml")
    assert b"nothing to apply: no finding of this plan changes" in done.stderr
    assert b"before and after" not in done.stdout
    assert (tmp_path / "again.toml").read_bytes() == (tmp_path / "applied.toml").read_bytes()
    done = completed(*command, "--apply", "9")
    assert done.returncode == 2
    assert b"no finding 9 that can be written" in done.stderr

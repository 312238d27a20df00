"""From a log to served rows, at small scale, and the commands on what came of it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.cli.conftest import completed
from tests.conftest import ROOT
from tilewright.embed import open_export

SCRIPT = ROOT / "examples" / "served_clicks.py"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clicks")
    spec = importlib.util.spec_from_file_location("served_clicks", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return folder, module.run(folder, 8192, 32)


def test_the_whole_way_keeps_its_promises(made):
    folder, found = made
    assert found["rows_equal"]
    assert found["auc"] > 0.6
    assert found["auc_served"] == pytest.approx(found["auc"], rel=1e-3)
    assert found["losses"][1] < found["losses"][0]
    assert {path.name for path in folder.iterdir()} == {
        *("clicks.parquet", "held_out.parquet", "limits.json", "checkpoints", "model.tables"),
    }


def test_the_commands_say_the_same(made):
    folder, found = made
    words = ("--checkpoint", folder / "checkpoints", "--data", folder / "held_out.parquet", "--json")
    done = completed("embed", "quantise", SCRIPT, *words)
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert (value["before"]["auc"], value["after"]["auc"]) == pytest.approx((found["auc"], found["auc_served"]))
    assert [table["name"] for table in value["export"]["tables"]] == ["user", "item", "tag"]
    out = folder / "again.tables"
    done = completed("embed", "export", folder / "checkpoints", "-o", out)
    assert done.stdout.decode().startswith("int8: 57"[:6])
    one, two = open_export(out), open_export(folder / "model.tables")
    assert one.header == two.header
    np.testing.assert_array_equal(one.table("item"), two.table("item"))
    out.unlink()


def test_what_cannot_be_exported_is_one_line(made, tmp_path):
    folder, _ = made
    for words, text in (
        (("export", tmp_path / "none", "-o", tmp_path / "x"), "no such folder"),
        (("export", folder / "checkpoints", "-o", tmp_path / "no" / "x"), "cannot write it"),
        (("export", folder / "checkpoints", "-o", tmp_path / "x", "--dtype", "int2"), "one of int8, bf16, int4"),
        (("quantise", SCRIPT, "--checkpoint", tmp_path), "no finished checkpoint"),
    ):
        done = completed("embed", *words)
        assert done.returncode == 2
        assert text in done.stderr.decode()
        assert done.stderr.count(b"\n") == 1, done.stderr


@pytest.mark.nightly
def test_a_tenth_of_a_recommenders_week(tmp_path):
    """By day: each command of it, on one description, in cli/test_embed_train_cli and embed/test_applied."""
    command = [sys.executable, ROOT / "examples" / "recommender_week.py", tmp_path, "--rows", "200000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "hold on 4 of 4 later days" in done.stdout
    assert "on 8 devices" in done.stdout
    assert "on 4 devices" in done.stdout

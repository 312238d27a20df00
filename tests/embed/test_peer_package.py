"""jax-tpu-embedding itself, unmodified, on CPU: the cases of tests/embed/peer_package.py, where it is installed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

CASES = "lookups minibatches optimizers limits custom by_hand meshes platforms pipelining layers statistics specs"


@pytest.mark.peer
@pytest.mark.parametrize("case", CASES.split())
def test_the_package_runs(case, root):
    program = [sys.executable, "-m", "tests.embed.peer_package", case]
    done = subprocess.run(program, cwd=root, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1:] == [f"done: {case}"]


@pytest.mark.peer
def test_the_tutorials_script(root, tmp_path):
    page = (root / "docs" / "tutorial_tpu_embedding.md").read_text()
    (script,), (printed,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "text"))
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    first, *_, last = re.findall(r"loss ([\d.]+)", done.stdout)
    assert done.stdout.count("\n") == printed.count("\n")
    assert float(last) < 0.1 < 0.6 < float(first)

"""docs/optimize.md prints what it says it prints."""

from __future__ import annotations

import re

from tests.conftest import by_night
from tilewright.hlo import REWRITES
from tilewright.hlo.proving.trials import INPUTS


def test_the_tutorial(root, tmp_path, monkeypatch, capsys):
    """By day its two programs are compared on normal inputs and under jit alone; op by op takes seconds."""
    text = (root / "docs" / "optimize.md").read_text()
    first, second = re.findall(r"```python\n(.*?)```", text, re.S)
    promised = re.search(r"`python norm.py` prints\n\n((?:    .*\n)+)", text)[1]
    monkeypatch.chdir(tmp_path)
    names, trials = {}, f"(jit, op by op; {', '.join(INPUTS)} inputs)"
    assert trials in promised
    if not by_night():
        first = first.replace("done.program))", "done.program, eager=False, inputs=['normal']))")
        assert "['normal']" in first
        promised = promised.replace(trials, "(jit; normal inputs)")
    exec(compile(first, "norm.py", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    wanted = [line[4:] for line in promised.splitlines()]
    assert printed[:3] == wanted[:3]
    assert re.sub(r"[\d.e-]+", "", printed[3]) == re.sub(r"[\d.e-]+", "", wanted[3])
    exec(compile(second, "step.py", "exec"), names)
    assert names["gradient"].shape == (256, 27, 32)
    assert names["batched"].shape == (4, 64, 27, 32)
    assert "rewritten: f32[256,27,4,8]" in capsys.readouterr().out


def test_the_table_of_passes(root):
    section = (root / "docs" / "optimize.md").read_text().partition("## The passes")[2].partition("## The gate")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \|$", section, re.M)
    assert rows == [(name, rewrite.summary) for name, rewrite in REWRITES.items()]

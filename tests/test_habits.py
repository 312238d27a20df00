"""The project's papers agree with its code: version, workflow, hooks, what CONTRIBUTING names."""

from __future__ import annotations

import re

import pytest

import tilewright
from tests.conftest import ROOT


def test_one_version():
    assert f"\nversion: {tilewright.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {tilewright.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_runs_what_a_contributor_runs():
    assert "run: bash .ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    hooks = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert len(hooks) == 3
    for hook in hooks:
        assert hook in script


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "src/tilewright/README.md"])
def test_places_are_there(page):
    """Files and folders in backticks, from the root or from the package."""
    for name in re.findall(r"`([\w./]+/[\w./]+)`", (ROOT / page).read_text()):
        if "NAME" not in name and name != "./run":
            assert (ROOT / name).exists() or (ROOT / "src" / "tilewright" / name).exists(), name

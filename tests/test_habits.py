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
    text = (ROOT / page).read_text().partition("## Three walks")[0]
    for name in re.findall(r"`([\w./]+/[\w./]+)`", text):
        if "NAME" not in name and name != "./run":
            assert (ROOT / name).exists() or (ROOT / "src" / "tilewright" / name).exists(), name


WALKS = re.findall(r"^### (.*) \((src/[\w/]+)\)\n\n((?:.+\n)+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)


def test_the_walks_are_there():
    assert len(WALKS) == len(re.findall("^### ", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)) > 0


@pytest.mark.parametrize(("title", "room", "text"), WALKS, ids=[title for title, _, _ in WALKS])
def test_a_walk_goes_through_the_code_as_it_is(title, room, text):
    """A step is `file.py` and the names it meets there; at most six files, none entered again more than twice."""
    entered = []
    for step in re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]:
        name, *words = re.findall(r"`([^`]+)`", step)
        assert name.endswith(".py"), step
        code = (ROOT / room / name).read_text()
        for word in words:
            for part in word.split("."):
                assert re.search(rf"\b{re.escape(part)}\b", code), f"{name} has no {word}"
        if entered[-1:] != [name]:
            entered.append(name)
    assert len(set(entered)) <= 6, set(entered)
    assert max(entered.count(name) for name in entered) <= 3, entered

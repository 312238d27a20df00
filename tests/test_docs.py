"""The docs are true: commands as they are, links that lead somewhere, the README's two commands."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def test_the_commands_page_is_generated():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert (ROOT / "docs" / "commands.md").read_text() == generate.reference(), "run: ./run python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_listed():
    listed = (ROOT / "docs" / "README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in listed, page.name


def commands(text):
    """The arguments of every `./run tilewright ...` in a page."""
    return re.findall(r"\./run tilewright ([a-z-]+)", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_pages_exist(page):
    known = {line.split()[2] for line in (ROOT / "docs" / "commands.md").read_text().splitlines() if "## " in line[:3]}
    assert set(commands(page.read_text())) <= known


def test_the_readme_keeps_its_two_commands_and_its_picture():
    text = (ROOT / "README.md").read_text()
    assert "./run tilewright run examples/dlrm.py" in text
    assert "./run pytest" in text
    assert (ROOT / "run").stat().st_mode & 0o111
    assert (ROOT / "examples" / "dlrm.py").is_file()
    picture = re.search(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert picture
    assert (ROOT / picture[1]).read_bytes().startswith(b"\x89PNG")


def test_the_readme_prints_what_the_commands_print(capsys, monkeypatch, tmp_path):
    """Each console block of the README: its first lines are what its command prints today."""
    from tilewright.cli import app

    monkeypatch.chdir(ROOT)
    blocks = re.findall(
        r"```console\n\$ \./run tilewright (.*)\n((?:(?!```).*\n)*)```", (ROOT / "README.md").read_text()
    )
    assert len(blocks) >= 4
    for command, shown in blocks:
        if not shown:
            continue
        arguments = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
        if "-o" in arguments:
            arguments[arguments.index("-o") + 1] = str(tmp_path / "out.mlir")
        app(args=arguments, standalone_mode=False)
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        expected = shown.rstrip("\n").split("\n")
        assert printed[: len(expected)] == expected, command


def test_nothing_names_the_machine_it_was_made_on():
    for path in [
        *PAGES,
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "src").rglob("*.toml"),
        *(ROOT / "docs").rglob("*.svg"),
    ]:
        assert "/work/" not in path.read_text(encoding="utf-8"), path

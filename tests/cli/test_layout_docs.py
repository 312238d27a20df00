"""docs/layout.md shows what the commands print today."""

import re
import shlex

import pytest

PICTURES = [f"layout-{name}.svg" for name in ["figure-1", "figure-2", "ruler", "offsets", "compare", "lanes", "plan"]]


def examples(root):
    """(command, what it prints) of every console block; the text behind `./run tilewright` or `./run python -c`."""
    text = (root / "docs" / "layout.md").read_text(encoding="utf-8")
    return re.findall(r"```console\n\$ \./run (.*)\n((?:(?!```).*\n)*)```", text)


def test_commands_and_their_output(root, run, tmp_path, monkeypatch):
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    (tmp_path / "examples").symlink_to(root / "examples")
    monkeypatch.chdir(tmp_path)
    found = examples(root)
    assert len(found) >= 25
    for command, shown in found:
        program, *words = shlex.split(command)
        if program == "python":
            exec(words[1], {})
            continue
        _, out, err = run(*words)
        printed = [line.rstrip() for line in (out + err).rstrip("\n").split("\n")]
        assert printed == shown.rstrip("\n").split("\n"), command
    for picture in (tmp_path / "docs" / "pictures").iterdir():
        assert picture.read_text() == (root / "docs" / "pictures" / picture.name).read_text(), picture.name


def test_python_examples_give_what_their_comments_say(root):
    text = (root / "docs" / "layout.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    checked = 0
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for line in block.splitlines():
            code, _, comment = line.partition("  #")
            if comment and not comment.strip().startswith("in a notebook"):
                expected = comment.strip().partition(":")[0] if comment.strip().startswith("None") else comment.strip()
                assert eval(code, names) == eval(expected), line
                checked += 1
            else:
                exec(code, names)
    assert checked == 8


def test_the_table_of_presets_is_whole(root, run):
    """The page and the command's help name the presets there are."""
    text = (root / "docs" / "layout.md").read_text(encoding="utf-8")
    table = text[text.index("| name | of | what |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z0-9_]+)`", row.split("|")[1])}
    known = run("layout", "preset", "?", "f32[3,5]")[2].partition("known presets: ")[2].strip().split(", ")
    assert named == set(known)
    shown = " ".join(run("layout", "preset", "--help")[1].replace("│", " ").split())
    assert all(name in shown for name in known)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_shown(root, name):
    assert f"(pictures/{name})" in (root / "docs" / "layout.md").read_text(encoding="utf-8")

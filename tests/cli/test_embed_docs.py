"""docs/embedding_plan.md shows what the commands print today, and its Python runs."""

from __future__ import annotations

import re
import shlex


def text_of(root):
    return (root / "docs" / "embedding_plan.md").read_text(encoding="utf-8")


def examples(root):
    blocks = re.findall(r"```console\n\$ \./run tilewright (.*)\n((?:(?!```).*\n)*)```", text_of(root))
    return [(command, shown) for command, shown in blocks if shown]


def timeless(line):
    """A measured line without what this machine makes of it."""
    if not line.startswith("feeding: "):
        return line
    known = re.sub(r"[0-9.]+ (m|µ)?s|[0-9]+ threads?", "_", line)
    return re.sub(r": (it keeps up with any step|a step shorter than _ waits)$", ": _", known)


def test_commands_and_their_output(root, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    found = examples(root)
    assert len(found) == 5
    for command, shown in found:
        words, _, head = command.partition(" | head -")
        _, out, err = run(*shlex.split(words))
        printed = [timeless(line.rstrip()) for line in (out + err).rstrip("\n").split("\n")]
        assert printed[: int(head or len(printed))] == [timeless(line) for line in shown.rstrip("\n").split("\n")], (
            command
        )


def test_python_examples_give_what_their_comments_say(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    checked = 0
    for block in re.findall(r"```python\n(.*?)```", text_of(root), re.DOTALL):
        code = re.sub(r"^(?!def)(\S.*?)  # (.*)$", r"claim(\1, \2)", block, flags=re.MULTILINE)

        def claim(value, expected):
            nonlocal checked
            assert value == expected
            checked += 1

        names["claim"] = claim
        exec(code, names)
    assert checked == 6

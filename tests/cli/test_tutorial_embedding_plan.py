"""docs/tutorial_embedding_plan.md, pasted: every command, what it prints, its exit code, its Python."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest


@pytest.fixture
def text(root):
    return (root / "docs" / "tutorial_embedding_plan.md").read_text(encoding="utf-8")


def commands(text):
    """(command, the pieces it shows in order: `...` parts them)."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            pieces = [piece.strip("\n") for piece in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)]
            yield command, [piece for piece in pieces if piece]


def run_command(command, run, root):
    """(exit code, what is printed)."""
    words = shlex.split(command)
    if words[:2] == ["./run", "tilewright"]:
        code, out, err = run(*words[2:])
        return code, out + err
    if words[:2] == ["./run", "python"]:
        words = [sys.executable, str(root / words[2]), *words[3:]]
        done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    else:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=240, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_newcomer_who_pastes_everything(text, root, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.toml").write_text(re.search(r"cat > model.toml <<'EOF'\n(.*?)EOF\n", text, re.DOTALL)[1])
    code = 0
    for command, pieces in commands(text):
        if command == "echo $?":
            assert pieces == [str(code)]
            continue
        code, printed = run_command(command, run, root)
        lines = "\n".join(line.rstrip() for line in printed.splitlines())
        at = 0
        for piece in pieces:
            found = lines.find(piece, at)
            assert found >= 0, f"{command}: not printed (here):\n{piece}\n--- but\n{lines[at:]}"
            at = found + len(piece)
    assert (tmp_path / "plan.html").read_text().startswith("<!")
    paste_python(text)


def paste_python(text):
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    checked = []

    def claim(value, expected):
        assert value == expected
        checked.append(value)

    code = re.sub(r"^(?!limits =)(\S.*?)  # (.*)$", r"claim(\1, \2)", block, flags=re.MULTILINE)
    exec(code, {"claim": claim})
    assert len(checked) == 3


def test_it_shows_something_of_all_it_runs(text):
    shown = list(commands(text))
    assert len(shown) >= 12
    assert all(pieces for _, pieces in shown)

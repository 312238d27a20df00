"""Without the optional packages every command works, or says before work begins which extra to install."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.cli.every_command import COMMANDS, OPTIONAL
from tests.conftest import ROOT

#: What takes minutes.
LEFT_OUT = {"warm"}


@pytest.mark.long
def test_it_works_or_names_its_extra():
    script = ROOT / "tests" / "cli" / "every_command.py"
    command = [sys.executable, script, "--without", ",".join(OPTIONAL), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for words, needs, code, said in json.loads(done.stdout):
        if needs:
            assert code == 2, words
            assert re.search(r"needs .*, which (is|are) not installed; pip install 'tilewright\[[\w,]+\]'", said), words
            assert len(re.findall("needs", said)) == 1, said
        elif words:
            assert code == (1 if words[:2] == ["embed", "check"] else 0), (words, said)


def test_no_command_is_left_out():
    named = set(re.findall(r"^## tilewright (.+)", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE))
    tried = {" ".join(words[:2]) for words, _ in COMMANDS} | {words[0] for words, _ in COMMANDS if words}
    assert named - tried <= LEFT_OUT


def test_the_command_alone_shows_the_roads(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    tried = {" ".join(words[:2]) for words, _ in COMMANDS} | {words[0] for words, _ in COMMANDS if words}
    shown = re.findall(r"tilewright ((?:layout|isa|embed) [\w-]+|[a-z][\w-]*)", out)
    assert len(shown) == 12
    assert set(shown) <= tried


def test_completion_is_installed_on_request_alone(tmp_path):
    command = f"'{sys.executable}' -m tilewright"
    asked = subprocess.run(
        ["bash", "-c", f"{command} --install-completion; true"], env=os.environ | {"HOME": str(tmp_path)}, check=True
    )
    assert asked.returncode == 0
    assert "tilewright" in (tmp_path / ".bashrc").read_text()

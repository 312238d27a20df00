"""The commands of docs/report.md print what the page says they print."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

BLOCK = re.compile(r"```console\n(.*?)```", re.S)


def commands(page: str):
    """(command, expected output) of every console block; a here-document belongs to its command."""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            head, _, rest = part.partition("\n")
            if head.endswith("<<'END'"):
                body, _, rest = rest.partition("END\n")
                head = f"{head}\n{body}END"
            yield head, rest


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a ``./run`` that uses this environment."""
    folder = tmp_path_factory.mktemp("docs")
    run = folder / "run"
    run.write_text(f'#!/bin/sh\nPATH="{Path(sys.executable).parent}:$PATH" exec "$@"\n')
    run.chmod(0o755)
    return folder


def test_commands_of_the_page(place, root):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "100", "NO_COLOR": "1"}
    ran = 0
    for command, expected in commands((root / "docs" / "report.md").read_text()):
        if command.startswith("XLA_FLAGS"):
            continue
        done = subprocess.run(["bash", "-c", command], cwd=place, env=environment, capture_output=True, timeout=60)
        errors = [line for line in done.stderr.decode().splitlines() if not line.startswith(("note:", "wrote"))]
        printed = done.stdout.decode() + "".join(f"{line}\n" for line in errors)
        printed, expected = printed.replace(f"{place}/", "").strip(), expected.strip()
        if ".py:" in command and not version("jax").startswith("0.10."):  # the page was made with 0.10; names differ
            printed, expected = printed.splitlines()[0], expected.splitlines()[0]
        assert printed == expected, command
        ran += 1
    assert ran >= 9

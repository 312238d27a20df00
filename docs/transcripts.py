"""Run the commands a page shows and write what they print today: ./run python docs/transcripts.py docs/PAGE.md ...

A block of text that follows a name such as `first.tasm`: is that file. Commands run in a folder of their own, one after
the other. A test replays the pages of the matrix unit.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from tilewright.cli import main

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"`(\w+\.\w+)`:\n\n```text\n(.*?)```|```console\n(.*?)```", re.DOTALL)
PROMPT = "$ ./run tilewright "


def printed(command: str) -> str:
    """What a command prints: stdout, then stderr."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        patch.object(sys, "argv", ["tilewright", *shlex.split(command)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.suppress(SystemExit),
    ):
        main()
    return "".join(each.buffer.getvalue().decode() for each in (out, err))  # type: ignore[attr-defined]


def replayed(page: str) -> str:
    """The page's text with what its commands print today."""

    def block(found: re.Match[str]) -> str:
        if found[1]:
            Path(found[1]).write_text(found[2], encoding="utf-8")
            return found[0]
        commands = [line for line in found[3].splitlines() if line.startswith(PROMPT)]
        shown = "".join(f"{line}\n{printed(line.removeprefix(PROMPT))}" for line in commands)
        return f"```console\n{shown}```"

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        os.chdir(folder)
        try:
            return BLOCK.sub(block, page)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        path.write_text(replayed(path.read_text(encoding="utf-8")), encoding="utf-8")

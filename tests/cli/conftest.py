"""The command line in this process."""

import contextlib
import io
import subprocess
import sys
from unittest.mock import patch

import pytest

from tilewright.cli import main, streams

# How far a command is it says only where the machine is slow: what tests compare is the same on any.
streams.EVERY = 1e6


def completed(*words, stdin=b"", **environment) -> subprocess.CompletedProcess:
    """What a process of the command would have been, in bytes, without the start of one."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(raw), "utf-8", write_through=True) for raw in (stdin, b"", b""))
    code = 0
    with (
        patch.dict("os.environ", environment),
        patch.object(sys, "argv", ["tilewright", *map(str, words)]),
        patch.object(sys, "stdin", given),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return subprocess.CompletedProcess(words, code, out.buffer.getvalue(), err.buffer.getvalue())


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*words) -> (exit code, stdout, stderr) of the command in this process."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tilewright", *words])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        return (code, *capsys.readouterr())

    return call

"""The command line in this process."""

import sys

import pytest

from tilewright.cli import main


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

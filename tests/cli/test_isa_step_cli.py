"""`isa step` and `isa explain` on the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.cli import main

PRODUCT = str(Path(__file__).parents[2] / "examples" / "product.tasm")
SHAPES = ("--iota", "A=s8[4,4]", "--iota", "B=s8[4,4]", "--zeros", "C=s32[4,4]")


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*words) -> (exit code, stdout, stderr) of the command in this process."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tilewright", "isa", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code or 0, *capsys.readouterr())

    return call


def test_commands_from_the_option(run):
    code, out, err = run("step", PRODUCT, *SHAPES, "-x", "step 5; run; print C[0]; zork; quit; step")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "0000  segment ur3, $A"
    assert "ended after 17 instructions, 529 cycles by the model" in lines
    assert "[14 38 62 86]" in lines
    assert "no command 'zork'; help lists them" in lines
    assert lines[-1] == "> quit"


def test_commands_from_standard_input():
    command = [sys.executable, "-c", "from tilewright.cli import main; main()", "isa", "step", PRODUCT, *SHAPES]
    done = subprocess.run(command, input="until 11\nprint ur4\n", capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].startswith("> until 11")
    assert done.stdout.splitlines()[-1].startswith("ur4 = ")


def test_program_and_commands_cannot_share_standard_input(run):
    code, _, err = run("step", "-")
    assert code == 2
    assert "-x" in err


def test_explain_text_line_and_file(run):
    code, out, _ = run("explain", "@p1,mm8.ka2.sa.ub.r0,ur4:rf290:0x00,r256")
    assert code == 0
    assert "(signed A, unsigned B)" in out
    assert "column j by thread j's (pred_scope=loader)" in out
    whole = run("explain", PRODUCT)[1]
    number = next(
        n for n, line in enumerate(Path(PRODUCT).read_text().splitlines(), 1) if line.strip().startswith("mm")
    )
    assert run("explain", f"{PRODUCT}:{number}")[1].strip() in whole
    rows = json.loads(run("explain", "tid r3", "--json")[1])["instructions"]
    assert rows[0]["text"] == "tid r3"


def test_a_mistake_is_shown_with_its_column(run):
    code, _, err = run("explain", "mm8.kx r0")
    assert code == 2
    assert "unknown suffix .kx" in err
    assert run("explain", f"{PRODUCT}:9999")[0] == 2

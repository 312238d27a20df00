"""`isa step` and `isa explain` on the command line."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.conftest import completed
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
    assert (code, err) == (2, "")
    lines = out.splitlines()
    assert lines[0] == "0000  segment ur3, $A"
    assert "ended after 17 instructions, 529 cycles by the model" in lines
    assert "[14 38 62 86]" in lines
    assert "no command 'zork'; help lists them" in lines
    assert lines[-1] == "> quit"


def test_commands_from_standard_input():
    done = completed("isa", "step", PRODUCT, *SHAPES, stdin=b"until 11\nprint ur4\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[1].startswith(b"> until 11")
    assert done.stdout.splitlines()[-1].startswith(b"ur4 = ")


@pytest.mark.nightly
def test_a_program_may_drive_it(tmp_path):
    """By day: the conversation on a terminal, below, and answers as JSON in this process, above."""
    program = tmp_path / "sum.tasm"
    program.write_text("add ur1, ur1, 1\nadd ur1, ur1, 1\nadd ur1, ur1, 1\nhalt\n")
    command = [sys.executable, "-c", "from tilewright.cli import main; main()", "isa", "step", str(program), "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as step:
        late = threading.Timer(240, step.kill)  # an answer that never comes must not hold the suite up
        late.start()
        answers = []
        for line in ("until 2", "print ur1", "step"):
            step.stdin.write(line + "\n")
            step.stdin.flush()
            answers.append(json.loads(step.stdout.readline()))
        step.stdin.close()
        assert step.wait(timeout=240) == 0
        late.cancel()
    assert [(each["command"], each["pc"]) for each in answers] == [("until 2", 2), ("print ur1", 2), ("step", 3)]
    assert answers[1]["value"] == 2


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


def test_json_is_an_object_for_every_command(run):
    code, out, err = run(
        "step", PRODUCT, *SHAPES, "--json", "-x", "until 12; print r256[0:2]; print C; run; print tokens"
    )
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["command"] for row in rows] == ["until 12", "print r256[0:2]", "print C", "run", "print tokens"]
    assert all(row["schema_version"] == 1 and row["ok"] for row in rows)
    assert (rows[0]["pc"], rows[0]["text"].split()[0], rows[0]["done"]) == (12, "0012", False)
    assert rows[1]["value"] == [0x03020100, 0x07060504]
    assert rows[2]["value"] == [[0] * 4] * 4
    assert (rows[3]["pc"], rows[3]["done"], rows[3]["executed"], rows[3]["cycles"]) == (None, True, 17, 529)


def test_how_it_ended_is_the_exit_code(run, tmp_path):
    endless = tmp_path / "endless.tasm"
    endless.write_text("again:\nadd ur1, ur1, 1\njump again\n")
    stopped = run("step", str(endless), "--set", "max_instructions=50", "-x", "run")
    assert stopped[0] == 1
    assert "stopped: the program ran 50 instructions" in stopped[1]
    rows = run("step", str(endless), "--set", "max_instructions=50", "--json", "-x", "run")
    assert (rows[0], json.loads(rows[1])["stopped"][:7]) == (1, "stopped")
    assert run("step", str(endless), "-x", "step 3; print ur1")[0] == 0
    wrong = run("step", str(endless), "--json", "-x", "step 3; print zork")
    assert (wrong[0], [json.loads(line)["ok"] for line in wrong[1].splitlines()]) == (2, [True, False])
    recorded = run("step", PRODUCT, "-x", "run")
    assert recorded[0] == 1
    assert "unknown_segment" in recorded[2]


def test_every_processing_element_or_the_first(run, tmp_path):
    program = tmp_path / "pe.tasm"
    program.write_text("peid ur1\nmov r0, ur1\nhalt\n")
    code, out, err = run("step", str(program), "--set", "pes=2", "-x", "step 2; print ur1")
    assert (code, out.splitlines()[-1]) == (0, "ur1 = 0")
    assert "PE 0 of 2 runs the program, as in isa run" in err
    code, out, err = run("step", str(program), "--set", "pes=2", "--every-pe", "-x", "step 2; pe 1; print ur1; run")
    assert (code, err) == (0, "")
    assert "  PE 0  0002  halt\n> PE 1  0002  halt\n> print ur1\nur1 = 1\n" in out
    assert run("step", PRODUCT, *SHAPES, "--set", "pes=2", "--every-pe", "-x", "run; print C[0]")[1].endswith("86]\n")


def test_explain_with_tensors_is_explained_in_the_run(run):
    number = next(
        n for n, line in enumerate(Path(PRODUCT).read_text().splitlines(), 1) if line.strip().startswith("mm")
    )
    code, out, _ = run("explain", f"{PRODUCT}:{number}", *SHAPES)
    assert code == 0
    assert "of which 4 are active (setmm)" in out
    assert "math: 4 steps of 1 cycle, 64 multiplications" in out
    row = json.loads(run("explain", f"{PRODUCT}:{number}", *SHAPES, "--json")[1])["instructions"][0]
    counted = json.loads(run("run", PRODUCT, *SHAPES, "--json")[1])["counts"]
    assert (row["line"], row["in_a_run"], row["errors"]) == (number, True, [])
    assert {k: v for k, v in row["counts"].items() if k != "a_bytes_loaded"} == {
        k: v for k, v in counted.items() if k != "a_bytes_loaded"
    }
    assert len(json.loads(run("explain", PRODUCT, *SHAPES, "--json")[1])["instructions"]) == 17


def test_explain_what_no_run_comes_to(run, tmp_path):
    program = tmp_path / "skip.tasm"
    program.write_text("jump end\ntid r0\n\nend:\nhalt\n")
    code, out, _ = run("explain", str(program), "--zeros", "C=s8[4]")
    assert code == 0
    assert "0001  tid r0\nthis run never comes to it; in general:\nD = the thread's number" in out
    assert "no instruction on line 3; the next is on line 5" in run("explain", f"{program}:3")[2]
    program.write_text("again:\njump again\ntid r0\n")
    code, _, err = run("explain", str(program), "--zeros", "C=s8[4]", "--set", "max_instructions=9")
    assert code == 1
    assert "did not end" in err


def test_explain_of_a_described_segment(run):
    bare = "mm r0, ur4:rf290:0x00, r256"
    out = run("explain", bare, "--segment", "bf16[24,200]", "--columns", "8", "--rows", "2")[1]
    assert "floats of 16 bits (bfloat16): TYPE is absent, so the elements are the segment's, bf16" in out
    assert "columns: 8; products of 8 of them in r0 to r7" in out
    assert "of which 2 are active" in out
    assert run("explain", bare, "--segment", "s8[24,200]", *SHAPES)[0] == 2
    assert run("explain", bare, "--columns", "257")[0] == 2
    refused = run("explain", "mm8 r0, ur4:rf290:0x00, r511", "--json")
    assert json.loads(refused[1])["instructions"][0]["errors"][0]["kind"] == "operand_out_of_range"


@pytest.mark.parametrize(
    "what", ["nobody.tasm:3", "nobody.tasm", "x" * 5000, "tid r0\0", "nop:" + "9" * 5000, "²", "", "-5:3"]
)
def test_explain_answers_any_text(run, what):
    code, out, err = run("explain", what)
    assert (code, out) == (2, "")
    assert "a fault in tilewright" not in err


def test_settings_that_are_no_numbers(run):
    for value in ("--5", "9" * 5000, "²", "1:", ":", "1:2:3"):
        code, _, err = run("explain", "tid r0", "--set", f"threads={value}")
        assert code == 2
        assert "a fault in tilewright" not in err


def processor_time(pid):
    """Seconds that a process has worked."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def test_a_conversation_on_a_terminal(tmp_path):
    pty = pytest.importorskip("pty")
    program = tmp_path / "endless.tasm"
    program.write_text("again:\nadd ur1, ur1, 1\njump again\n")
    here, there = pty.openpty()
    command = [sys.executable, "-c", "from tilewright.cli import main; main()", "isa", "step", str(program)]
    step = subprocess.Popen(command, stdin=there, stdout=there, stderr=there, start_new_session=True)
    os.close(there)
    seen = b""

    def until(text):
        nonlocal seen
        while text not in seen:
            assert step.poll() is None, seen
            if select.select([here], [], [], 1)[0]:
                seen += os.read(here, 65536)
        seen = seen.split(text, 1)[1]

    try:
        until(b"(isa) ")
        os.write(here, b"step\n")
        until(b"0001  jump again")
        until(b"(isa) ")
        os.write(here, b"\x1b[A\n")  # the line before, from the history, where there is a readline
        if importlib.util.find_spec("readline"):
            until(b"0000  add ur1, ur1, 1")
        until(b"(isa) ")
        before = processor_time(step.pid)
        os.write(here, b"run\n")
        while processor_time(step.pid) < before + 0.1:  # nothing else in it would take that long
            select.select([], [], [], 0.01)
        step.send_signal(signal.SIGINT)
        until(b"interrupted")
        until(b"(isa) ")
        os.write(here, b"print ur1\n")
        until(b"ur1 = ")
        until(b"(isa) ")
        os.write(here, b"\x04")
        assert step.wait(timeout=240) == 0
    finally:
        step.kill()
        step.wait()
        os.close(here)

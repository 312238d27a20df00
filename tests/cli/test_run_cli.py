"""`tilewright run` from the outside: exit codes and one-line errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tilewright.errors import UsageError
from tilewright.targets import target_names

EXAMPLE = "examples/dlrm.py"


@pytest.fixture
def few_columns(tmp_path):
    path = tmp_path / "few.tsv"
    path.write_text("1\t2\t3\n")
    return str(path)


def test_bad_input_is_one_line_and_exit_code_2(run, tmp_path, few_columns, monkeypatch):
    monkeypatch.chdir(ROOT)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    model = tmp_path / "model.py"
    model.write_text("x = 1\n")
    out = ["--out", str(tmp_path / "out")]
    for arguments, message in [
        ((EXAMPLE, "--data", str(tmp_path / "absent.csv")), "cannot read it"),
        ((EXAMPLE, "--data", str(empty)), "the file is empty"),
        ((EXAMPLE, "--data", few_columns), "3 columns where 40 are expected"),
        ((EXAMPLE, "--target", "tpu-v5q"), "did you mean tpu-v5p"),
        ((str(model),), "does not define features"),
        ((EXAMPLE, "--steps", "0"), "0 steps"),
        (
            (EXAMPLE, "--batch", "30"),
            "--batch: a batch of 30 does not divide over 4 SparseCores; take a multiple of them, such as 32",
        ),
    ]:
        code, printed, said = run("run", *arguments, *out)
        lines = [line for line in said.splitlines() if line.startswith("tilewright: ")]
        assert (code, printed) == (2, ""), (arguments, said)
        assert len(lines) == 1, said
        assert message in lines[0]
        assert "Traceback" not in said


def test_a_program_on_an_npu(run, tmp_path):
    code, printed, said = run("run", str(ROOT / "examples/int8_mlp.py"), "--target", "bm1684x", "--out", str(tmp_path))
    assert code == 0, said
    assert "No time is modelled for bm1684x" in printed
    assert "everything fits" in printed
    assert "the program has no embedding tables" in printed
    found = json.loads((tmp_path / "report.json").read_text())
    assert (found["kind"], found["step"], found["memory"]["fits"]) == ("program_run", None, True)
    assert [layer["name"] for layer in found["layers"]] == found["memory"]["steps"]
    assert {"name", "layout", "base", "end", "banks"} <= set(found["layers"][0]["plan"]["tensors"][0])
    report = str(tmp_path / "report.json")
    assert "0 better, 0 worse, 7 the same" in run("diff", report, report)[1]


def test_only_the_matrix_unit_has_settings(run, tmp_path):
    model = str(ROOT / "examples/int8_mlp.py")
    code, _, said = run("run", model, "--target", "tpu-v5e", "--set", "pes=2", "--out", str(tmp_path))
    assert code == 2
    assert "is no matrix unit" in said


def test_debug_shows_the_traceback(run, few_columns, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(UsageError, match="3 columns"):
        run("run", EXAMPLE, "--data", few_columns, "--out", str(tmp_path), "--debug")


def test_help_and_version_answer_without_jax():
    code = (
        "import sys; from tilewright.cli import app\n"
        "try: app(['--help'], standalone_mode=False)\n"
        "finally: sys.exit(3 if 'jax' in sys.modules or 'numba' in sys.modules else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert "run" in ended.stdout


@pytest.mark.nightly
def test_an_interrupt_leaves_at_once_with_one_line(tmp_path):
    """By day: test_interrupts.test_a_command_gives_the_cursor_back."""
    code = "import sys; from tilewright.cli import main; sys.argv[0] = 'tilewright'; main()"
    command = [sys.executable, "-c", code, "run", EXAMPLE, "--out", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes) as running:
        for line in running.stderr:  # the first stage has passed: the work is under way
            if line.startswith("model:"):
                break
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=600)
    assert running.returncode == 130
    assert said.rstrip().endswith("tilewright: interrupted")
    assert "Traceback" not in said


def test_a_fault_of_ours_is_one_line_too(run, monkeypatch, tmp_path):
    def broken(name):
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr("tilewright.targets.target", broken)
    code, printed, said = run("targets", "cpu")
    assert (code, printed) == (1, "")
    assert said == "tilewright: a fault in tilewright itself, ZeroDivisionError: two lines; --debug shows where\n"
    with pytest.raises(ZeroDivisionError):
        run("targets", "cpu", "--debug")


@pytest.mark.parametrize("name", target_names())
def test_every_target_is_printed_with_its_sources(run, name):
    code, printed, _ = run("targets", name)
    assert code == 0
    assert "source" in printed.splitlines()[1]
    code, printed, _ = run("targets", name, "--json")
    assert code == 0
    assert json.loads(printed)["name"] == name


@pytest.mark.parametrize("words", [("isa",), ("layout",), ("embed",)])
def test_a_group_alone_shows_its_help(run, words):
    code, printed, said = run(*words)
    assert (code, printed) == (2, "")
    assert said.startswith(f"Usage: {' '.join(('tilewright', *words))} [OPTIONS] COMMAND")
    assert "\nCommands:\n" in said
    code, printed, said = run(*words, "--help")
    assert (code, said) == (0, "")
    assert "..." not in printed.partition("Commands:")[2]  # no summary is cut off

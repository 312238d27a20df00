"""`tilewright isa profile`, as a user runs it."""

import csv
import io
import json
import re
import sys

import numpy as np
import pytest

from tests.isa.test_docs import script
from tilewright.cli import main

GIVEN = ("--iota", "A=s8[16,16]", "--iota", "B=s8[16,16]", "--zeros", "C=s32[16,16]", "--set", "threads=16")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """run(*words) -> (exit code, stdout, stderr) of the command, in a folder with a product's program."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tilewright", "isa", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code or 0, *capsys.readouterr())

    call("matmul", "--m", "16", "--n", "16", "--k", "16", "--set", "threads=16", "-o", "p.tasm")
    return call


def test_every_instruction_and_the_whole_run(run):
    code, out, err = run("profile", "p.tasm", *GIVEN)
    assert (code, err) == (0, "")
    program = (run("asm", "p.tasm")[1]).splitlines()
    rows = out.split("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows[:-1]] == [str(pc) for pc in range(len(rows) - 1)]
    assert len(program) >= len(rows) - 1
    plain = json.loads(run("run", "p.tasm", *GIVEN, "--json")[1])
    whole = re.split(r"  +", rows[-1].strip())
    assert whole[1:4] == ["the whole run", f"{plain['executed']:,}", f"{plain['cycles']:,}"]
    assert sum(int(re.split(r"  +", row.strip())[2].replace(",", "")) for row in rows[:-1]) == plain["executed"]


def test_top_takes_the_most_cycles(run):
    rows = run("profile", "p.tasm", *GIVEN, "--top", "2")[1].split("\n\n")[0].splitlines()
    assert len(rows) == 4
    every = json.loads(run("profile", "p.tasm", *GIVEN, "--json")[1])["lines"]
    most = sorted((line["cycles"] for line in every), reverse=True)
    assert [int(re.split(r"  +", row.strip())[3].replace(",", "")) for row in rows[1:3]] == most[:2]


def test_json_and_files_have_the_same_numbers(run, tmp_path):
    value = json.loads(run("profile", "p.tasm", *GIVEN, "--json", "--heat", "B")[1])
    plain = json.loads(run("run", "p.tasm", *GIVEN, "--json")[1])
    assert value["totals"]["counts"] == plain["counts"]
    assert value["schema_version"] == 1
    assert sum(row[1] for row in value["heat"]["lines"]) == plain["counts"]["l1_touches"]
    for name in ("p.json", "p.csv", "p.html", "b.svg"):
        code, _, err = run("profile", "p.tasm", *GIVEN, "--heat", "B", "-o", name)
        assert (code, err) == (0, f"wrote {name}\n")
    assert json.loads((tmp_path / "p.json").read_text()) == value
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    assert sum(int(row["cycles"]) for row in rows) == plain["cycles"]
    assert run("profile", "p.tasm", *GIVEN, "-o", "-")[1] == (tmp_path / "p.csv").read_text()
    svg = (tmp_path / "b.svg").read_text()
    assert svg.startswith("<svg")
    assert svg.count("touches by mm") >= 256
    page = (tmp_path / "p.html").read_text()
    assert "Lines of B" in page
    assert "Lines of A" not in page
    assert "<svg" in page


def test_the_picture_in_a_terminal(run):
    out = run("profile", "p.tasm", *GIVEN, "--heat", "B")[1]
    assert "B s8[16,16]: accesses by line" in out
    assert re.search(r"\n +0 \|( +2){16} \|\n", out)  # two rounds, each of which asks for every row's line once
    out = run("profile", "p.tasm", *GIVEN, "--heat", "B", "--misses")[1]
    assert re.search(r"\n +0 \|( +1){16} \|\n", out)
    out = run("profile", "p.tasm", *GIVEN, "--heat", "C", "--misses")[1]
    assert re.search(r"\n +0 \|( +·){16} \|\n", out)


def test_every_element_has_a_row_and_all_add_up(run, tmp_path):
    given = (*GIVEN, "--set", "pes=3", "--every-pe")
    code, out, err = run("profile", "p.tasm", *given, "--top", "1")
    assert (code, err) == (0, "")
    head, *rows = out.split("\n\n")[1].splitlines()
    assert head.split()[0] == "PE"
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    value = json.loads(run("profile", "p.tasm", *given, "--json", "--heat", "B")[1])
    for name in ("executed", "cycles", "math_cycles"):
        assert sum(each["totals"][name] for each in value["pes"]) == value["totals"][name]
    assert sum(row[1] for row in value["heat"]["lines"]) == value["totals"]["counts"]["l1_touches"]
    one = json.loads(run("profile", "p.tasm", *given, "--pe", "1", "--json", "--heat", "B")[1])
    assert one["totals"] == value["pes"][1]["totals"]
    assert 3 * sum(row[1] for row in one["heat"]["lines"]) == sum(row[1] for row in value["heat"]["lines"])
    assert run("profile", "p.tasm", *given, "-o", "p.html")[0] == 0
    assert "Every processing element" in (tmp_path / "p.html").read_text()
    assert len(run("profile", "p.tasm", *given, "-o", "-")[1].splitlines()) == 1 + 3 * len(value["lines"])


def test_without_every_pe_the_first_one_runs_and_says_so(run):
    code, out, err = run("profile", "p.tasm", *GIVEN, "--set", "pes=3")
    assert (code, err) == (0, "PE 0 of 3 runs the program, as in isa run; --every-pe starts it on all\n")
    assert out == run("profile", "p.tasm", *GIVEN)[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--pe", "0"), "--pe 0 of 1"),
        (("--pe", "2", "--every-pe", "--set", "pes=2"), "--pe 2 of 2"),
        (("--heat", "Z"), "unknown tensor 'Z'; known: "),
        (("-o", "p.svg"), "a picture of which tensor"),
        (("-o", "p.png", "--heat", "B"), "no writer for 'p.png'"),
        (("-o", "-", "--json"), "both want stdout"),
    ],
)
def test_bad_input(run, words, message):
    code, out, err = run("profile", "p.tasm", *GIVEN, *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_record_is_exit_code_1_and_its_cost_is_there(run, tmp_path):
    (tmp_path / "bad.tasm").write_text("mm8.ka1.kb1.t0.sa.sb r0, ur9:rf290:0x00, r256\nhalt\n")
    np.save(tmp_path / "A.npy", np.ones((4, 4), np.int8))
    code, out, err = run("profile", "bad.tasm", "--data", "A.npy")
    assert code == 1
    assert "unknown_segment" in err
    assert "the whole run" in out


def test_the_pages_picture_is_drawn_anew():
    draw = script("draw_matrix_heat")
    assert draw.PICTURE.read_text() == draw.drawing(), "run: ./run python docs/draw_matrix_heat.py"

"""`tilewright report` as a user runs it."""

import json
import subprocess
import sys

import pytest

ZOO = "data/hlo_tpu/v5e_reshape_zoo"


def tilewright(*arguments, stdin=None, width=100):
    environment = {"COLUMNS": str(width), "NO_COLOR": "1", "PATH": ""}
    command = [sys.executable, "-c", "from tilewright.cli import main; main()", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, input=stdin, env=environment, check=False, timeout=60)


def test_a_real_dump_in_a_terminal(shared):
    done = tilewright(shared / f"{ZOO}.after.hlo")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert "1.89 MiB moved by 9 operations" in lines[0]
    assert lines[1] == "reshape 968 KiB, copy 644 KiB, copy-start 168 KiB, slice 150 KiB, broadcast 8.50 KiB"
    first = next(line for line in lines if line.lstrip().startswith("1 "))
    assert "copy copy.5  models/aot3.py:47" in first
    assert "f32[48,7,50]{0,1,2:T(8,128)S(1)} -> f32[48,7,50]{2,1,0:T(8,128)S(1)}" in done.stdout.decode()
    assert max(map(len, lines)) <= 100
    assert lines[2] == "peak of main memory 198 KiB, 15.7 % of it padding, at broadcast in main.2"


def test_rankings_can_be_chosen_and_cut(shared):
    done = tilewright(shared / f"{ZOO}.after.hlo", "--by", "padding", "--top", "1").stdout.decode()
    assert "reshape reshape.12" in done
    assert "10 more with 331 KiB (--top 11 shows all)" in done
    assert "moved  share" not in done


def test_stdin_json_and_a_target(shared):
    text = (shared / f"{ZOO}.stablehlo.mlir").read_bytes()
    done = tilewright("-", "--target", "tpu-v5e", "--json", stdin=text)
    plain = json.loads(done.stdout)
    assert (plain["schema_version"], plain["predicted"], plain["target"]) == (2, True, "tpu-v5e")


@pytest.mark.parametrize("suffix", ["html", "json"])
def test_files_by_suffix(shared, tmp_path, suffix):
    out = tmp_path / f"report.{suffix}"
    done = tilewright(shared / f"{ZOO}.after.hlo", "-o", out)
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"wrote {out}" in done.stderr.decode()
    text = out.read_text()
    assert text.startswith("<!DOCTYPE html>") if suffix == "html" else json.loads(text)["rows"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (["no/such/file"], None, 2, "no/such/file: cannot read it"),
        (["-"], b"", 2, "neither HLO text"),
        (["-"], b"module {\n}", 2, "has no function"),
        (["-"], b"func.func @main(%x: tensor<4xf32>) {\n  return\n}", 2, "add --target"),
        (["-", "--target", "tpu-v55"], b"", 2, "tpu-v5e"),
        (["-", "-o", "x.pdf"], b"", 2, "no writer for '.pdf'"),
        (["-"], b"ML\xefR0", 3, "bytecode"),
        (["-"], b"HloModule m\nENTRY e {\n  a = f32[4] copy(b)\n}", 2, "line 3, column 19"),
    ],
)
def test_bad_input_is_one_line_and_a_code(arguments, stdin, code, words):
    done = tilewright(*arguments, stdin=stdin)
    error = done.stderr.decode()
    assert done.returncode == code
    assert words in error.splitlines()[0]
    assert "Traceback" not in error


def test_a_caret_stands_under_the_bad_column():
    done = tilewright("-", stdin=b"HloModule m\nENTRY e {\n  a = f32[4] copy(b)\n}")
    _, line, caret = done.stderr.decode().splitlines()
    assert line[caret.index("^")] == "b"

"""`tilewright report` as a user runs it."""

import json
import re
import subprocess
import sys

import pytest

from tests.cli.conftest import completed

ZOO = "hlo_tpu/v5e_reshape_zoo"


def tilewright(*arguments, stdin=b""):
    return completed("report", *arguments, stdin=stdin, COLUMNS="100", NO_COLOR="1")


def test_a_process_says_what_this_one_says(data_folder):
    command = [sys.executable, "-c", "from tilewright.cli import main; main()", "report", "-", "--by", "moved"]
    text = (data_folder / f"{ZOO}.after.hlo").read_bytes()
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "PATH": ""}
    done = subprocess.run(command, capture_output=True, input=text, env=environment, check=False, timeout=600)
    here = tilewright("-", "--by", "moved", stdin=text)
    assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr) != (0, b"", b"")


def test_a_real_dump_in_a_terminal(data_folder):
    done = tilewright(data_folder / f"{ZOO}.after.hlo")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert "1.89 MiB moved by 9 operations" in lines[0]
    assert lines[1] == "reshape 968 KiB, copy 644 KiB, copy-start 168 KiB, slice 150 KiB, broadcast 8.50 KiB"
    ranked = lines[next(number for number, line in enumerate(lines) if "moved  share" in line) :]
    first = next(line for line in ranked if line.lstrip().startswith("1 "))
    assert "copy copy.5  models/aot3.py:47" in first
    assert "f32[48,7,50]{0,1,2:T(8,128)S(1)} -> f32[48,7,50]{2,1,0:T(8,128)S(1)}" in done.stdout.decode()
    assert max(map(len, lines)) <= 100
    assert lines[2] == "relayout 1.57 MiB, transfer 168 KiB, part 150 KiB, repeat 8.50 KiB"
    assert lines[3] == "peak of main memory 282 KiB, 17.7 % of it padding, at reshape.12 in main.2"


@pytest.mark.parametrize("name", ["x.sarif", "x.html"])
def test_a_working_folder_that_was_deleted(data_folder, tmp_path, monkeypatch, name):
    (gone := tmp_path / "gone").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(gone)
        gone.rmdir()
        done = tilewright(data_folder / f"{ZOO}.after.hlo", "-o", name)
    assert done.returncode == 2
    assert b"fault" not in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_rankings_can_be_chosen_and_cut(data_folder):
    done = tilewright(data_folder / f"{ZOO}.after.hlo", "--by", "padding", "--top", "1").stdout.decode()
    assert "reshape reshape.12" in done
    assert "10 more with 331 KiB (--top 11 shows all)" in done
    assert "moved  share" not in done


def test_one_category_can_be_ranked(data_folder):
    done = tilewright(
        data_folder / f"{ZOO}.after.hlo", "--by", "moved", "--only", "transfer", "--only", "part"
    ).stdout.decode()
    ranked = done[done.index("moved  share") :]
    entries = [line for line in ranked.splitlines() if re.match(r" +\d+ ", line)]
    assert [line.split("  ")[-2] for line in entries] == [
        "copy-start copy-start",
        "slice slice.2",
    ]


def test_stdin_json_and_a_target(data_folder):
    text = (data_folder / f"{ZOO}.stablehlo.mlir").read_bytes()
    done = tilewright("-", "--target", "tpu-v5e", "--json", stdin=text)
    plain = json.loads(done.stdout)
    assert (plain["schema_version"], plain["predicted"], plain["target"]) == (2, True, "tpu-v5e")


def test_files_of_other_tools(data_folder, tmp_path):
    dump = data_folder / f"{ZOO}.after.hlo"
    done = tilewright(dump, "-o", tmp_path / "found.sarif")
    assert (done.returncode, done.stdout) == (0, b"")
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    done = tilewright(dump, "-o", tmp_path / "found.modelexplorer.json")
    written = ["found.modelexplorer.json", "found.moved_bytes.nodedata.json"]
    assert done.stderr.decode().splitlines()[-2:] == [f"wrote {tmp_path / name}" for name in written]
    graphs, figures = (json.loads((tmp_path / name).read_text()) for name in written)
    assert figures.keys() <= {graph["id"] for graph in graphs["graphs"]}


@pytest.mark.parametrize("suffix", ["html", "json"])
def test_files_by_suffix(data_folder, tmp_path, suffix):
    out = tmp_path / f"report.{suffix}"
    done = tilewright(data_folder / f"{ZOO}.after.hlo", "-o", out)
    assert (done.returncode, done.stdout) == (0, b"")
    assert f"wrote {out}" in done.stderr.decode()
    text = out.read_text()
    assert text.startswith("<!DOCTYPE html>") if suffix == "html" else json.loads(text)["rows"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "words"),
    [
        (["no/such/file"], b"", 2, "no/such/file: cannot read it"),
        (["-"], b"", 2, "neither HLO text"),
        (["-"], b"module {\n}", 2, "has no"),
        (["-"], b"func.func @main(%x: tensor<4xf32>) {\n  return\n}", 2, "add --target"),
        (["-", "--target", "tpu-v55"], b"", 2, "tpu-v5e"),
        (["-", "-o", "x.pdf"], b"", 2, "no writer for 'x.pdf'"),
        (["-"], b"ML\xefR0", 2, "bytecode"),
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


TURN = b"HloModule m\nENTRY e {\n p = f32[8,128]{1,0} parameter(0)\n ROOT c = f32[8,128]{0,1} copy(p)\n}"
TWICE = TURN.replace(b" ROOT c", b" b = f32[8,128]{0,1} copy(p)\n ROOT c")


@pytest.fixture
def programs(tmp_path):
    """Two programs and the report of the first."""
    one, two, old = tmp_path / "one.hlo", tmp_path / "two.hlo", tmp_path / "old.json"
    one.write_bytes(TURN)
    two.write_bytes(TWICE)
    assert tilewright(one, "-o", old).returncode == 0
    return one, two, old


def test_a_baseline_guards_a_build(programs):
    one, two, old = programs
    assert tilewright(one, "--baseline", old).returncode == 0
    worse = tilewright(two, "--baseline", old, "--fail-on", "5%")
    assert worse.returncode == 1
    assert "bytes moved +100.0%: 8192 -> 16384" in worse.stderr.decode()
    assert "against the baseline" in worse.stdout.decode()
    assert tilewright(two, "--baseline", old, "--fail-on", "100%").returncode == 0
    assert tilewright(two, "--baseline", old, "--json").returncode == 1


def test_a_baseline_of_another_target_or_kind_is_refused(tmp_path):
    program, old = tmp_path / "p.mlir", tmp_path / "old.json"
    line = "%y = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x128xf32>) -> tensor<128x8xf32>"
    kind = "(%x: tensor<8x128xf32>) -> tensor<128x8xf32>"
    program.write_text(f"func.func @main{kind} {{\n{line}\nreturn %y : tensor<128x8xf32>\n}}")
    assert tilewright(program, "-t", "tpu-v5e", "-o", old).returncode == 0
    done = tilewright(program, "-t", "vector8x128", "--baseline", old)
    assert done.returncode == 2
    assert b"predicted for" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "not a movement report"),
        ('{"kind": "movement_report", "schema_version": 1}', "schema_version 1, but this version reads 2"),
        ('{"kind": "movement_report", "schema_version": 2}', "not a whole movement report: no field 'program'"),
    ],
)
def test_a_bad_baseline_is_one_error(programs, tmp_path, text, words):
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    done = tilewright(programs[0], "--baseline", bad)
    assert done.returncode == 2
    assert words in done.stderr.decode().splitlines()[0]
    assert "Traceback" not in done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-on", "5%"], "add --baseline"),
        (["--by", "time"], "add --profile"),
        (["--baseline", "OLD", "--fail-on", "x"], "'x' is not a share"),
        (["--baseline", "OLD", "--fail-on", "-5%"], "'-5%' is not a share"),
        (["--profile", "OLD"], "no traceEvents"),
    ],
)
def test_options_that_need_others(programs, arguments, words):
    given = [str(programs[2]) if word == "OLD" else word for word in arguments]
    done = tilewright(programs[0], *given)
    assert done.returncode == 2
    assert words in done.stderr.decode().splitlines()[0]


def test_a_profile_ranks_by_time(programs, tmp_path):
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 250.0, "name": "c", "args": {"hlo_op": "c"}}
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"traceEvents": [event, {**event, "args": {"hlo_op": "dot.1"}, "dur": 750.0}]}))
    done = tilewright(programs[0], "--profile", trace, "--by", "time")
    lines = done.stdout.decode().splitlines()
    assert done.returncode == 0
    assert any("250 µs 25.0 %        1   8.00 KiB  copy c" in line for line in lines)
    assert "75.0% of the profile's time belongs to no operation" in done.stderr.decode()
    plain = json.loads(tilewright(programs[0], "--profile", trace, "--json").stdout)
    assert (plain["rows"][0]["measured_us"], plain["profile"]["unmatched"]) == (250.0, ["dot.1"])


def difference(*arguments):
    return completed("diff", *arguments, COLUMNS="100", NO_COLOR="1")


def test_diff_of_programs_and_reports(programs, tmp_path):
    one, two, old = programs
    done = difference(one, two)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[1].split() == ["moved", "8.00", "KiB", "16.0", "KiB", "+100.0%"]
    assert "rows: 1 new, 0 gone, 0 changed, 1 same" in lines
    assert difference(old, two).stdout == done.stdout
    plain = json.loads(difference(one, two, "--json").stdout)
    assert (plain["schema_version"], plain["counts"]["new"], plain["rows"][0]["change"]) == (1, 1, 8192)
    page = tmp_path / "d.html"
    assert difference(one, two, "-o", page).returncode == 0
    assert "Operations that differ" in page.read_text()
    assert difference(one, tmp_path / "none").returncode == 2


def test_json_and_pages_say_what_was_read_and_who_wrote_them(run, tmp_path):
    from tilewright import __version__

    (tmp_path / "mine.hlo").write_text("HloModule m\nENTRY e {\n  ROOT p = f32[4,2]{1,0:T(8,128)} parameter(0)\n}\n")
    name = str(tmp_path / "mine.hlo")
    plain = json.loads(run("report", name, "--json")[1])
    assert (plain["input"], plain["tilewright"]) == (name, __version__)
    for command in (("report", name), ("diff", name, name)):
        assert run(*command, "-o", str(tmp_path / "page.html"))[0] == 0
        assert "mine.hlo" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("command", ["report", pytest.param("targets", marks=pytest.mark.nightly)])
def test_a_reader_that_goes_away_ends_it_quietly(command, tmp_path):
    """By day the longer output alone."""
    lines = "".join(f"  c{k} = f32[512,512]{{{k % 2},{1 - k % 2}}} copy(p)\n" for k in range(2000))
    text = f"HloModule m, is_scheduled=true\nENTRY e {{\n  p = f32[512,512]{{1,0}} parameter(0)\n{lines}}}\n"
    (tmp_path / "long.hlo").write_text(text)
    words = ["report", str(tmp_path / "long.hlo"), "--top", "2000"] if command == "report" else ["targets"]
    with open(tmp_path / "err", "wb") as err:
        command_line = [sys.executable, "-c", "from tilewright.cli import main; main()", *words]
        child = subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=err)
        child.stdout.close()
        assert child.wait(120) == 0
    assert b"tilewright:" not in (tmp_path / "err").read_bytes()
    assert b"Traceback" not in (tmp_path / "err").read_bytes()

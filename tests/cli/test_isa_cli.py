"""`tilewright isa`, as a user runs it."""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tilewright.cli import main
from tilewright.isa import MatrixUnitConfig, assemble, expected_counts
from tilewright.isa.multiply.matmul import matmul as real_matmul
from tilewright.isa.study.reference import reference

SIZES = ("--m", "20", "--n", "24", "--k", "30")


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*words) -> (exit code, stdout, stderr) of the command in this process."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["tilewright", "isa", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code or 0, *capsys.readouterr())

    return call


def test_counts_beside_the_closed_forms(run):
    code, out, err = run("matmul", "--m", "64", "--n", "64", "--k", "64", "--dtype", "s8")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[1:15]}
    assert rows["macs"] == ["262,144", "262,144", "equal"]
    assert rows["steps"] == ["512", "512", "equal"]
    assert len(rows) == 14
    assert "value equals numpy's" in out


@pytest.mark.parametrize(
    "words",
    [
        ("--dtype", "u8", "--dtype-b", "s8", "--ka", "3"),
        ("--dtype", "f32", "--kb", "2"),
        ("--dtype", "bf16", "--transpose-b"),
        ("--dtype", "s32", "--order", "column_outer", "--set", "threads=32", "--set", "kb_acc=last"),
    ],
)
def test_json_says_the_same(run, words):
    code, out, err = run("matmul", *SIZES, *words, "--json")
    value = json.loads(out)
    assert (code, err, value["schema_version"]) == (0, "", 1)
    assert value["value_equals_numpy"]
    assert all(row["holds"] for row in value["counts"].values())
    assert value["counts"]["macs"]["machine"] == 20 * 24 * 30


MACHINE = ("--set", "threads=16", "--set", "pes=3")


@pytest.mark.parametrize(
    "words",
    [
        ("--split", "rows"),
        ("--split", "columns", "--line", "4x16", "--page", "8x32"),
        ("--segments", "2", "--transpose-b"),
        ("--segments", "2", "--no-double-buffer", "--line", "2,32"),
        (),
    ],
)
def test_several_elements_segments_lines_and_pages(run, words):
    code, out, err = run("matmul", *SIZES, *MACHINE, *words, "--json")
    value = json.loads(out)
    assert (code, err) == (0, "")
    assert all(row["holds"] for row in value["counts"].values())
    assert [row["pe"] for row in value["pes"]] == [0, 1, 2]
    for name, row in value["counts"].items():
        assert sum(each["counts"][name] for each in value["pes"]) == row["machine"]
    assert value["cycles"] == max(each["cycles"] for each in value["pes"])
    given = {name: value[name] for name in ("split", "segments", "page", "line", "double_buffer", "transpose_b")}
    given |= {name: tuple(given[name]) for name in ("page", "line") if given[name]}
    rng, config = np.random.default_rng(0), MatrixUnitConfig(threads=16, pes=3)
    plain = real_matmul(np.zeros((20, 30), np.int8), rng.integers(0, 9, (30, 24)).astype(np.int8), config, **given)
    assert (plain.cycles, plain.dma_bytes, plain.buffering) == tuple(
        value[name] for name in ("cycles", "dma_bytes", "buffering")
    )


def test_every_elements_row_is_printed(run):
    code, out, _ = run("matmul", *SIZES, *MACHINE, "--split", "columns", "--segments", "2")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line[:2].strip().isdecimal()}
    assert (code, sorted(rows)) == (0, ["0", "1", "2"])
    assert sum(int(row[4].replace(",", "")) for row in rows.values()) == 20 * 24 * 30
    assert "segments of B: 1,536 bytes by DMA, the next one while one is worked on" in out
    assert "the last one done" in out


def test_programs_of_several_elements_are_files_where_they_differ(run, tmp_path):
    same, other = str(tmp_path / "same.tasm"), str(tmp_path / "other.tasm")
    assert run("matmul", *SIZES, *MACHINE, "--split", "columns", "-o", same)[0] == 0
    code, out, err = run("matmul", *SIZES, *MACHINE, "--split", "rows", "--listing", "-o", other)
    assert code == 0
    assert err.splitlines()[1] == f"wrote {tmp_path}/other-pe1.tasm, what PEs 1, 2 run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other-pe0.tasm", "other-pe1.tasm", "same.tasm"]
    assert "sub ur10, 7, ur0" in (tmp_path / "other-pe1.tasm").read_text()
    assert out.startswith("what PE 0 runs:\n0000")
    assert run("matmul", *SIZES, *MACHINE, "--split", "rows", "-o", "-")[0] == 2


def test_matrices_of_files(run, tmp_path):
    rng = np.random.default_rng(5)
    a, b = rng.integers(-9, 9, (20, 30)).astype(np.int8), rng.integers(0, 9, (30, 24)).astype(np.uint8)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    files = ("--data", f"A={tmp_path / 'a.npy'}", "--data", f"B={tmp_path / 'b.npy'}")
    code, out, err = run("matmul", *files, "-o", str(tmp_path / "c.npy"), "--json")
    assert (code, err) == (0, f"wrote {tmp_path / 'c.npy'}\n")
    assert (np.load(tmp_path / "c.npy") == a.astype(int) @ b.astype(int)).all()
    value = json.loads(out)
    assert [value[name] for name in ("m", "n", "k", "dtype", "dtype_b")] == [20, 24, 30, "s8", "u8"]
    assert json.loads(run("matmul", *files[:2], "--n", "7", "--json")[1])["n"] == 7
    np.save(tmp_path / "a.npy", a.astype(ml_dtypes.bfloat16))
    value = json.loads(run("matmul", *files[:2], "--n", "7", "--dtype", "bf16", "--json")[1])
    assert (value["dtype"], value["value_equals_numpy"]) == ("bf16", True)
    wild = np.array([[np.inf, 1], [np.nan, 2], [3e38, 3e38]], np.float32)
    np.save(tmp_path / "a.npy", wild)
    np.save(tmp_path / "b.npy", np.ones((2, 2), np.float32))
    value = json.loads(run("matmul", *files, "--json")[1])
    assert (value["value_equals_numpy"], value["difference"]) == (True, 0.0)


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ((*SIZES, "-o", "-", "--json"), 2, "both want stdout"),
        ((*SIZES, "--line", "4"), 2, "as 4x16"),
        ((*SIZES, "--line", "4xq"), 2, "as 4x16"),
        ((*SIZES, "--line", "4x4"), 2, "64 elements"),
        ((*SIZES, "--line", "4x16", "--page", "6x16"), 2, "does not divide the page size"),
        ((*SIZES, "--page", "0x64"), 2, "page"),
        ((*SIZES, "--split", "diagonals"), 2, "rows or columns"),
        ((*SIZES, "--segments", "0"), 2, "segments = 0"),
        ((*SIZES, "--segments", "2", "--split", "rows", "--set", "pes=2"), 3, "shared by"),
        ((*SIZES, "--segments", "1", "--set", "l2_bytes=64"), 2, "take 1536 bytes of L2 at once"),
        (("--m", "3", "--n", "4"), 2, "the size of A is not given; --m and --k, or --data A=FILE.npy"),
        ((*SIZES, "--data", "A={f64}"), 2, "A has elements of type float64"),
        ((*SIZES, "--data", "A={cube}"), 2, "a matrix has two dims"),
        ((*SIZES, "--data", "A={small}"), 2, "A has shape [2, 3], not 20 x 30"),
        (("--data", "A={small}", "--data", "B={small}"), 2, "B has shape [2, 3], not 3 x any"),
        (("--data", "X={small}"), 2, "unknown matrix in --data X"),
    ],
)
def test_bad_options_of_a_product_are_one_line(run, tmp_path, words, code, reason):
    arrays = {"f64": np.ones((20, 30)), "cube": np.ones((2, 2, 2), np.int8), "small": np.ones((2, 3), np.int8)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    got, out, err = run("matmul", *(word.format(**{n: tmp_path / f"{n}.npy" for n in arrays}) for word in words))
    assert (got, out, len(err.splitlines())) == (code, "", 1)
    assert reason in err


def test_a_wrong_count_or_value_is_exit_code_1(run, monkeypatch):
    def wrong(*args, **kwargs):
        result = real_matmul(*args, **kwargs)
        result.value[0, 0] += 1
        result.counts.steps += 1
        return result

    monkeypatch.setattr("tilewright.isa.matmul", wrong)
    code, out, _ = run("matmul", *SIZES)
    assert code == 1
    assert "value DIFFERS from numpy's in 1 elements" in out
    assert next(line for line in out.splitlines() if line.endswith("DIFFERS")).startswith("steps")


def test_errors_of_the_run_are_remarks_and_exit_code_1(run):
    code, _, err = run("matmul", "--m", "2", "--n", "300", "--k", "8", "--columns", "300", "--set", "threads=300")
    assert code == 1
    assert "register_out_of_range (column 256, r256)" in err
    assert "and 39 more" in err


def test_the_program_can_be_listed_saved_and_run_again(run, tmp_path):
    code, out, _ = run("matmul", *SIZES, "--listing", "-o", str(tmp_path / "p.tasm"))
    assert code == 0
    assert "mm8.ka1.kb1.t0.sa.sb r0, ur4:rf290:0x00, r256" in out
    text = (tmp_path / "p.tasm").read_text()
    assert str(assemble(text)) + "\n" == text
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (20, 30)).astype(np.int8), rng.integers(-9, 9, (30, 24)).astype(np.int8)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", np.ascontiguousarray(b.T))
    tensors = ("--tensor", f"A={tmp_path / 'a.npy'}", "--tensor", f"B={tmp_path / 'b.npy'}", "--zeros", "C=s32[20,24]")
    code, out, err = run("run", str(tmp_path / "p.tasm"), *tensors, "--save", f"C={tmp_path / 'c.npy'}", "--json")
    assert (code, err) == (0, "")
    assert (np.load(tmp_path / "c.npy") == a.astype(int) @ b.astype(int)).all()
    assert json.loads(out)["tensors"]["C"] == np.load(tmp_path / "c.npy").tolist()
    assert json.loads(out)["counts"] == expected_counts(20, 24, 30).to_dict()
    assert "C =" in run("run", str(tmp_path / "p.tasm"), *tensors)[1]


def test_a_timeline(run, tmp_path):
    code, _, err = run("matmul", *SIZES, "-o", str(tmp_path / "t.pftrace"))
    assert code == 0
    assert err.startswith(f"wrote {tmp_path / 't.pftrace'}: ")
    assert b"mm8.ka1" in (tmp_path / "t.pftrace").read_bytes()


def test_a_run_writes_its_timeline_and_its_accounts(run, tmp_path):
    shapes = ("--iota", "A=s8[4,4]", "--iota", "B=s8[4,4]", "--zeros", "C=s32[4,4]")
    program = str(Path(__file__).parents[2] / "examples" / "product.tasm")
    code, out, err = run("run", program, *shapes, "-o", str(tmp_path / "t.pftrace"))
    assert (code, "26 events" in err) == (0, True)
    assert "the issue queue: A 395" in out
    assert b"issue queue waits" in (tmp_path / "t.pftrace").read_bytes()
    assert run("run", program, *shapes, "-o", str(tmp_path / "t.png"))[0] == 2


@pytest.mark.parametrize("command", ["run", "profile"])
def test_tensors_that_are_not_given_are_named(run, command):
    program = str(Path(__file__).parents[2] / "examples" / "product.tasm")
    code, out, err = run(command, program, "--iota", "A=s8[4,4]")
    assert (code, out) == (2, "")
    assert "names B, C, and no such tensor is given; add --tensor B=B.npy --zeros 'C=s32[4,4]'" in err


def test_every_element_runs_a_program(run, tmp_path):
    program, out = tmp_path / "p.tasm", str(tmp_path / "c.npy")
    program.write_text("segment ur1, $X\npeid ur2\ntid r1\nmov r0, ur2\nadd r2, r1, 10\nst r2, ur1:rf0:0\nhalt\n")
    given = ("--zeros", "X=s32[4,3]", "--set", "threads=4", "--set", "pes=3")
    code, text, err = run(
        "run", str(program), *given, "--every-pe", "--save", f"X={out}", "-o", str(tmp_path / "t.pftrace")
    )
    assert (code, "wrote" in err) == (0, True)
    assert np.load(out).tolist() == [[10] * 3, [11] * 3, [12] * 3, [13] * 3]
    assert "21 instructions executed" in text
    assert [
        row.split()[0] for row in text.splitlines() if row[:2].strip().isdecimal() and "instructions" not in row
    ] == list("012")
    value = json.loads(run("run", str(program), *given, "--every-pe", "--json")[1])
    assert [each["executed"] for each in value["pes"]] == [7, 7, 7]
    assert value["cycles"] == max(each["cycles"] for each in value["pes"])
    assert value["traffic"]["store_lines"] == sum(each["traffic"]["store_lines"] for each in value["pes"]) > 0
    one = json.loads(run("run", str(program), *given, "--json")[1])
    assert (one["executed"], one["pes"]) == (7, [])
    assert one["tensors"]["X"] == [[10, 0, 0], [11, 0, 0], [12, 0, 0], [13, 0, 0]]


def test_an_array_file_names_its_tensor(run, tmp_path):
    np.save(tmp_path / "A.npy", np.arange(16, dtype=np.int8).reshape(4, 4))
    program = str(Path(__file__).parents[2] / "examples" / "product.tasm")
    given = ("--data", str(tmp_path / "A.npy"), "--iota", "B=s8[4,4]", "--zeros", "C=s32[4,4]")
    assert "[ 14  38  62  86]" in run("run", program, *given)[1]


def test_asm_lists_with_addresses(run, tmp_path):
    program = tmp_path / "p.tasm"
    program.write_text("again:\n@p1,mm8.sa.ub.r0,ur4:rf290:0x00,r256\njump again\n")
    assert run("asm", str(program))[1].splitlines()[1] == "0000      @p1, mm8.ka1.kb1.t0.sa.ub r0, ur4:rf290:0x00, r256"
    value = json.loads(run("asm", str(program), "--json")[1])
    assert [row["name"] for row in value["instructions"]] == ["mm", "jump"]
    assert value["labels"] == {"again": 0}
    assert run("asm", str(program), "-o", "-")[1].startswith("again:\n    @p1, mm8")


def test_a_bad_program_is_one_line_and_a_caret(run, tmp_path):
    program = tmp_path / "p.tasm"
    program.write_text("halt\nmm8.kx r0, ur4:rf1:0, r2\n")
    code, out, err = run("asm", str(program))
    assert (code, out) == (2, "")
    assert "line 2, column 4: unknown suffix .kx" in err
    assert err.splitlines()[-2:] == ["mm8.kx r0, ur4:rf1:0, r2", "   ^"]


def test_floats_that_json_has_no_number_for(run, tmp_path):
    program = tmp_path / "p.tasm"
    program.write_text("segment ur1, $X\nmov r2, 0x7fc00000\nst r2, ur1:rf0:0\n")
    code, out, _ = run("run", str(program), "--zeros", "X=f32[2]", "--json")
    assert code == 0
    assert json.loads(out)["tensors"]["X"] == [None, 0.0]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("matmul", *SIZES, "--dtype", "s8", "--dtype-b", "s16"), 2, "different widths"),
        (("matmul", *SIZES, "--dtype", "q7"), 2, "no element type"),
        (("matmul", *SIZES, "--ka", "999"), 2, "more than 256 threads"),
        (("matmul", *SIZES, "--set", "spin=3"), 2, "unknown field in --set spin=3"),
        (("matmul", *SIZES, "-o", "x.svg"), 2, "no writer for 'x.svg'"),
        (("matmul", "--m", "-1", "--n", "1", "--k", "1"), 2, "--m"),
        (("matmul", "--m", "100000", "--n", "100000", "--k", "1"), 2, "more than"),
        (("matmul", *SIZES, "--set", "threads=99999999"), 2, "too many to simulate"),
        (("matmul", *SIZES, "--set", "l2_bytes=999999999999999999"), 2, "no room"),
        (("matmul", *SIZES, "--set", f"l2_bytes={'9' * 5000}"), 2, "is not an integer"),
        (("asm", "nowhere.tasm"), 2, "cannot read it"),
        (("run", "nowhere.tasm"), 2, "cannot read it"),
    ],
)
def test_bad_input_is_one_line(run, words, code, reason):
    got, out, err = run(*words)
    assert (got, out) == (code, "")
    assert reason in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--tensor", "A"),
        ("--tensor", "A=none.npy"),
        ("--zeros", "A=f99[2]"),
        ("--iota", "A=s8[99999999999]"),
        ("--zeros", "A=f64[2]"),
        ("--save", "Q=q.npy"),
    ],
)
def test_bad_tensors_are_one_line(run, tmp_path, words):
    (tmp_path / "p.tasm").write_text("halt")
    code, _, err = run("run", str(tmp_path / "p.tasm"), *words)
    assert code == 2
    assert err.startswith("tilewright: ")


def test_the_reference_is_printed(run):
    assert run("reference")[1] == reference() + "\n"

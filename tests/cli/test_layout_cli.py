"""`tilewright layout`, as a user runs it."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.conftest import ROOT

FIGURE = "f32[3,5]{1,0:T(2,2)}"


def test_the_derivation_ends_in_17(run):
    code, out, err = run("layout", "explain", FIGURE, "--index", "2,3")
    assert (code, err) == (0, "")
    assert "(1*3+1)*4+1 = 17" in out


def test_explain_json(run):
    _, out, _ = run("layout", "explain", FIGURE, "--index", "2,3", "--json")
    value = json.loads(out)
    assert value["schema_version"] == 1
    assert (value["offset"], value["expression"], value["bit"]) == (17, "(1*3+1)*4+1", 544)
    assert [c["value"] for c in value["coordinates"]] == [1, 1, 0, 1]


def test_what_lies_at_an_offset(run):
    assert "element (2,3)" in run("layout", "explain", FIGURE, "--offset", "17")[1]
    assert "padding" in run("layout", "explain", FIGURE, "--offset", "9")[1]
    assert json.loads(run("layout", "explain", FIGURE, "--offset", "9", "--json")[1])["index"] is None


def test_summary(run):
    out = run("layout", "explain", "bf16[1000]{0:T(1024)(128)(2,1)S(1)}")[1]
    assert "(1024) then (128) then (2,1)" in out
    assert "1, vector memory" in out
    assert "1.02×" in out
    value = json.loads(run("layout", "explain", "(f32[3,5]{1,0:T(2,2)}, s32[])", "--json")[1])
    assert [e["size_bytes"] for e in value["elements"]] == [96, 4]


def test_rare_parts_of_a_text_are_said(run):
    text = "f32[150,<=200,100]{0,1,2:T(8,128)L(256)S(1)SC(0:30)(1:40,130)M(4)}"
    out = run("layout", "explain", text)[1]
    assert not any(line.endswith(" ") for line in out.splitlines())
    for said in ("multiple of 256", "d1 up to 200", "d2 cut at 30; d1 cut at 40, 130", "(150,90,70)", "4 bytes of dyn"):
        assert said in out
    value = json.loads(run("layout", "explain", text, "--json")[1])
    assert value["bounds"] == {"d1": 200}
    assert value["splits"] == {"d2": [30], "d1": [40, 130]}
    assert (value["tail_alignment"], value["metadata_prefix"]) == (256, 4)
    out = run("layout", "explain", "b(f32[3]{0:#(u32)*(u16)})")[1]
    assert "a buffer" in out
    assert "u32, the type of a sparse array's indices" in out
    assert "u16, the type of a sparse array's pointers" in out
    plain = json.loads(run("layout", "explain", FIGURE, "--json")[1])
    assert not {"bounds", "tail_alignment", "splits", "metadata_prefix", "buffer"} & set(plain)


def test_an_unbounded_dim_leaves_the_sizes_open(run):
    out = run("layout", "explain", "f32[?,5]{1,0:T(8,128)}")[1]
    assert "(?,5)" in out
    assert "not known" in out
    value = json.loads(run("layout", "explain", "f32[?,5]", "--json")[1])
    assert value["shape"] == ["?", 5]
    assert "size_bytes" not in value


def test_a_tuple_is_a_table_of_its_arrays(run):
    out = run(
        "layout", "explain", "(f32[3,5]{1,0:T(2,2)}, (s32[2], (f32[]), token[]), bf16[8,128]{1,0:T(8,128)(2,1)})"
    )[1]
    assert [" ".join(line.split()) for line in out.splitlines()] == [
        "element layout size in memory padding ratio",
        "0 f32[3,5]{1,0:T(2,2)} 96 bytes 1.60×",
        "1,0 s32[2]{0} 8 bytes 1.00×",
        "1,1,0 f32[] 4 bytes 1.00×",
        "1,2 token[] 0 bytes 1.00×",
        "2 bf16[8,128]{1,0:T(8,128)(2,1)} 2,048 bytes (2.00 KiB) 1.00×",
        "pointers 56 bytes",
        f"together {96 + 8 + 4 + 2048 + 56:,} bytes (2.16 KiB) 1.02×",
    ]
    out = run("layout", "explain", "(f32[?], s32[2])")[1]
    assert out.splitlines()[1].split() == ["0", "f32[?]{0}", "not", "known"]
    assert out.splitlines()[-1].split() == ["together", "not", "known"]
    assert run("layout", "explain", "()")[1].splitlines()[-1].split() == ["together", "0", "bytes"]


def test_arrays_of_a_tuple(run):
    text = "(f32[3,5]{1,0:T(2,2)}, (s32[2], f32[0,3], token[]))"
    out = run("layout", "draw", text)[1]
    assert [line for line in out.splitlines() if line.startswith("element")] == [
        "element 0",
        "element 1,0",
        "element 1,1",
        "element 1,2",
    ]
    assert out.count("f32[3,5]{1,0:T(2,2)}") == 1
    one = run("layout", "draw", text, "--leaf", "0")[1]
    assert one == run("layout", "draw", "f32[3,5]{1,0:T(2,2)}")[1]
    assert one in out
    assert "s32[2]{0}, element (1)" in run("layout", "explain", text, "--leaf", "1,0", "--index", "1")[1]
    assert json.loads(run("layout", "draw", text, "--leaf", "1,0", "--json")[1])["layout"] == "s32[2]{0}"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("explain", "f32[3,5]{1,0:T(2,0)}"), 2, "column"),
        (("explain", FIGURE, "--index", "3,0"), 2, "index 3 is outside dim 0"),
        (("explain", FIGURE, "--index", "2"), 2, "1 indices for 2 dims"),
        (("explain", FIGURE, "--index", "a,b"), 2, "whole numbers"),
        (("explain", FIGURE, "--offset", "24"), 2, "outside the memory"),
        (("explain", FIGURE, "--offset", "1", "--index", "0,0"), 2, "one at a time"),
        (("explain", "(f32[2], f32[3])", "--index", "0"), 2, "tuple"),
        (("explain", "f32[?,5]", "--index", "0,0"), 3, "unbounded"),
        (("draw", "f32[?,5]"), 3, "unbounded"),
        (("predict", "f32[?,5]", "--target", "tpu-v5e"), 3, "unbounded"),
        (("preset", "tpu", "f32[?,5]"), 3, "unbounded"),
        (("sharded", "f32[?,5]", "--shards", "2"), 3, "unbounded"),
        (("draw", "(f32[2], f32[3])", "-o", "x.svg"), 2, "tuple"),
        (("draw", "(f32[2], f32[3])", "--leaf", "2"), 2, "2 elements"),
        (("draw", "(f32[2], f32[3])", "--leaf", "0,0"), 2, "is not a tuple"),
        (("draw", "(f32[2], f32[3])", "--leaf", "a"), 2, "whole numbers"),
        (("draw", FIGURE, "-o", "fig.png"), 2, "end the name in .svg"),
        (("draw", FIGURE, "-o", "-", "--json"), 2, "stdout"),
        (("draw", FIGURE, "-o", "/no/such/folder/fig.svg"), 2, "cannot write it"),
    ],
)
def test_bad_input_is_one_line_and_a_code(run, words, code, message):
    got, out, err = run("layout", *words)
    assert (got, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == (3 if "column" in err.splitlines()[0] else 1)


def test_a_bad_text_has_a_caret_under_the_column(run):
    _, _, err = run("layout", "draw", "f32[3,5")
    line, text, caret = err.splitlines()
    assert line.startswith("tilewright: column 8")
    assert (text, caret) == ("f32[3,5", "       ^")


def test_draw_to_a_file_and_to_stdout(run, tmp_path):
    target = tmp_path / "fig.svg"
    code, out, err = run("layout", "draw", FIGURE, "-o", str(target))
    assert (code, out) == (0, "")
    assert "fig.svg" in err
    ElementTree.fromstring(target.read_text())
    assert run("layout", "draw", FIGURE, "-o", "-")[1] == target.read_text()


def test_draw_in_the_terminal_and_as_json(run):
    assert "|  12  13 |  16  17 |  20 ·21 |" in run("layout", "draw", FIGURE)[1]
    value = json.loads(run("layout", "draw", FIGURE, "--json")[1])
    assert value["panels"][0]["cells"][2] == ["12", "13", "16", "17", "20", "21"]
    assert sum(map(sum, value["panels"][0]["padding"])) == 9


def test_stdin_and_start_up_without_jax_or_numba():
    code = "import sys; from tilewright.cli import main\n"
    code += "try: main()\nfinally: assert not {'jax', 'numba'} & set(sys.modules)"
    command = [sys.executable, "-c", code, "layout", "explain", "-", "--index", "2,3"]
    done = subprocess.run(command, input=FIGURE + "\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "= 17" in done.stdout


def test_a_file_has_three_names_for_its_option(run, tmp_path):
    for option in ("-o", "--out", "--output"):
        assert run("layout", "draw", FIGURE, option, str(tmp_path / f"{option}.svg"))[0] == 0
        code, out, _ = run(
            "report",
            str(ROOT / "tests/data/hlo_tpu/v5e_reshape_zoo.after.hlo"),
            option,
            str(tmp_path / f"{option}.json"),
        )
        assert (code, out) == (0, "")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 2

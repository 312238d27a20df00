"""`tilewright layout` compare, predict, lanes, paged, sharded and the pictures' options, as a user runs them."""

import json
import re
from xml.etree import ElementTree

import pytest

A, B = "f32[3,5]{1,0:T(2,2)}", "f32[3,5]{1,0:T(4,2)}"
LANES = ("lanes", "f16[2,3,4,5]", "--lanes", "4", "--eu-bytes", "64", "--start", "2")


def as_json(run, *words):
    code, out, err = run("layout", *words, "--json")
    assert (code, err) == (0, "")
    value = json.loads(out)
    assert value["schema_version"] == 1
    return value


def test_compare_says_what_moves(run):
    code, out, err = run("layout", "compare", A, B)
    assert (code, err) == (0, "")
    assert "10 of 15" in out
    assert "no: element (0, 2) of the result moves from offset 4 to 8" in out
    assert "element (0,2): offset 4 to offset 8" in out
    assert "yes: every element keeps its byte" in run("layout", "compare", "f32[6]", "f32[2,3]")[1]


def test_compare_json(run):
    value = as_json(run, "compare", A, B)
    assert (value["bitcast"], value["moved_elements"], value["elements"]) == (False, 10, 15)
    assert (value["bytes_read"], value["bytes_written"]) == (96, 96)
    first = {"from_index": [0, 2], "from": {"offset": 4}, "to_index": [0, 2], "to": {"offset": 8}}
    assert value["first_moves"][0] == first
    value = as_json(run, "compare", "f32[3,5]", "f32[5,3]{0,1}", "--permutation", "1,0")
    assert (value["bitcast"], value["permutation"], value["moved_elements"]) == (True, [1, 0], 0)


def test_large_arrays_are_compared_at_once(run):
    a, b = (f"f32[1024,1024,1024]{{{order}:T(8,128)}}" for order in ("2,1,0", "0,1,2"))
    out = run("layout", "compare", a, b)[1]
    assert "some of 1,073,741,824, too many to look at each" in out
    assert "67,108,864 read, 67,108,864 written" in out
    assert as_json(run, "compare", a, b)["moved_elements"] is None


def test_elements_of_another_width_are_told_in_bytes(run):
    out = run("layout", "compare", "bf16[4,8]", "f32[4,8]{1,0:T(2,4)}")[1]
    assert "no: elements of 16 bits differ from elements of 32 bits" in out
    assert "element (0,4): byte 8 to byte 32" in out


def test_compare_fails_where_asked_to(run):
    code, out, err = run("layout", "compare", A, B, "--fail-if-moved")
    assert code == 1
    assert "10 of 15" in out
    assert err.startswith("tilewright: not a bitcast")
    assert run("layout", "compare", A, A, "--fail-if-moved")[0] == 0


def test_compare_draws(run, tmp_path):
    target = tmp_path / "moves.svg"
    code, out, err = run("layout", "compare", A, B, "-o", str(target))
    assert (code, err) == (0, f"wrote {target}\n")
    assert "10 of 15" in out
    ElementTree.fromstring(target.read_text())
    assert run("layout", "compare", A, B, "-o", "-")[1] == target.read_text()


def test_predict(run):
    out = run("layout", "predict", "bf16[32,224,224,3]", "--target", "tpu-v5e")[1]
    assert "bf16[32,224,224,3]{2,1,3,0:T(8,128)(2,1)}" in out
    assert "42.7×" in out
    assert "1.14×" in out
    assert "as given" not in out
    value = as_json(run, "predict", "f32[1048576,1]{1,0:T(8,128)}")
    assert value["predicted"]["layout"] == "f32[1048576,1]{0,1:T(1,128)}"
    assert value["default"]["padding_ratio"] == 128
    assert value["given"]["layout"] == "f32[1048576,1]{1,0:T(8,128)}"


def test_lanes(run):
    out = run("layout", *LANES)[1]
    assert "(64,32,5,1)" in out
    assert "bytes per NPU" in out
    found = as_json(run, *LANES, "--index", "0,2,0,0")
    assert (found["npu"], found["offset"], found["address"]) == (0, 32, {"npu": 0, "offset": 32})
    assert as_json(run, *LANES, "--npu", "0", "--offset", "32")["index"] == [0, 2, 0, 0]
    assert as_json(run, *LANES, "--npu", "0", "--offset", "0")["index"] is None
    assert "padding" in run("layout", *LANES, "--npu", "0", "--offset", "0")[1]
    compact = as_json(run, "lanes", "f16[2,3,4,5]", "--chip", "bm1684x", "--mode", "compact")
    assert compact["strides"] == [20, 20, 5, 1]
    free = as_json(run, "lanes", "f16[2,3,4,5]", "--chip", "bm1684x", "--mode", "100,50,10,2")
    assert free["strides"] == [100, 50, 10, 2]


def test_paged_and_sharded(run):
    words = ("paged", "s8[8,8]", "--page", "4,4", "--line", "1,4")
    assert as_json(run, *words, "--index", "5,6")["address"] == {"page": 3, "offset": 6}
    assert as_json(run, *words, "--at", "3,6")["index"] == [5, 6]
    assert as_json(run, *words)["axes"] == {"page": 4, "offset": 16}
    words = ("sharded", "f32[100,12]", "--shards", "4", "--rotation", "1", "--row-offset", "16")
    assert as_json(run, *words, "--index", "6,3")["address"] == {"shard": 3, "row": 17, "column": 3}
    assert as_json(run, *words)["rows_per_shard"] == 32


@pytest.mark.parametrize(
    ("words", "shows"),
    [
        (("draw", A, "--ruler"), "byte    +0"),
        (("draw", A, "--unit", "tile"), "a cell is one tile, 16 B"),
        (("draw", A, "--colour", "offset"), "colours from offset 0 to 23"),
        ((*LANES, "--draw"), "npu\\offset"),
        ((*LANES, "--ruler"), "one colour per channel"),
        ((*LANES, "--draw", "--colour", "npu"), "one colour per NPU"),
        (("paged", "s8[8,8]", "--page", "4,4", "--line", "1,4", "--draw"), "outlined: page (4,4)"),
        (("sharded", "f32[20,4]", "--shards", "2", "--ruler", "--colour", "line"), "one colour per cache line"),
    ],
)
def test_pictures_in_the_terminal(run, words, shows):
    code, out, err = run("layout", *words)
    assert (code, err) == (0, "")
    assert shows in out


@pytest.mark.parametrize("words", [("draw", A, "--ruler"), (*LANES, "--colour", "line"), (*LANES, "--ruler")])
def test_pictures_in_files_and_json(run, words, tmp_path):
    target = tmp_path / "memory.svg"
    assert run("layout", *words, "-o", str(target))[::2] == (0, f"wrote {target}\n")
    ElementTree.fromstring(target.read_text())
    if "--ruler" in words:
        assert as_json(run, *words)["panels"][0]["cells"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("compare", A, "f32[3,6]"), 2, "not a reshape"),
        (("compare", A, B, "--permutation", "0,0"), 2, "not an order"),
        (("compare", A, B, "--permutation", "x"), 2, "--permutation: 'x' is not a list of whole numbers"),
        (("compare", "-", "-"), 2, "cannot come from stdin"),
        (("compare", A, B, "-o", "x.png"), 2, "end the name in .svg"),
        (("compare", "(f32[2], s32[])", B), 2, "is a tuple"),
        (("compare", A, "f32[3,"), 2, "column"),
        (("predict", "f32[3,5]", "--target", "tpu-v9"), 2, "tpu-v9"),
        (("predict", "f32[3,5]", "--target", "bm1684x"), 3, "no predictor"),
        (("lanes", "f16[2,3,4,5]"), 2, "needs chip="),
        (("lanes", "f16[2,3,4,5]", "--chip", "tpu-v5e"), 2, "no lane memories"),
        (("lanes", "f16[2,3,4]", "--chip", "mars3"), 2, "four sizes"),
        (("lanes", "f16[2,3,4,5]", "--chip", "mars3", "--mode", "tight"), 2, "no lane mode"),
        (("lanes", "f16[2,3,4,5]", "--chip", "mars3", "--npu", "1"), 2, "both --npu and --offset"),
        ((*LANES, "--index", "0,0,0,0", "--npu", "1", "--offset", "0"), 2, "one at a time"),
        (("paged", "s8[8,8]", "--page", "4"), 2, "2 sizes"),
        (("paged", "s8[8,8]", "--at", "0"), 2, "1 values for the axes page, offset"),
        (("sharded", "f32[8]", "--shards", "2"), 2, "two sizes"),
        (("sharded", "f32[8,8]", "--shards", "0"), 2, "shards"),
        (("draw", A, "--colour", "npu"), 2, "cannot be coloured by 'npu'"),
        (("draw", "f32[3,5]", "--unit", "tile"), 2, "no tiles of whole elements"),
        (
            ("lanes", "f16[2,3,4,5]", "--chip", "mars3", "--mode", "0,0,0,0", "--draw"),
            2,
            "several elements in one place",
        ),
    ],
)
def test_bad_input_is_one_line_and_a_code(run, words, code, message):
    got, out, err = run("layout", *words)
    assert (got, out) == (code, "")
    assert message in err
    assert len(err.splitlines()) == (3 if "column" in err.splitlines()[0] else 1)


def test_the_lane_family(run):
    words = ("lanes", "s8[5,100]", "--chip", "bm1684x", "--mode", "matrix", "--columns-per-npu", "16")
    assert as_json(run, *words, "--index", "4,99")["address"] == {"npu": 6, "offset": 259}
    assert as_json(run, *words)["tensor"] == [5, 7, 1, 16]
    words = ("lanes", "f16[5,100]", "--chip", "bm1684x", "--mode", "matrix2", "--start", "1")
    assert as_json(run, *words, "--index", "4,99")["address"] == {"npu": 5, "offset": 99}
    words = ("lanes", "s8[67,70,3,3]", "--chip", "bm1684x", "--mode", "weights")
    assert as_json(run, *words, "--index", "66,69,2,2")["address"] == {"npu": 2, "offset": 2245}
    small = ("lanes", "s8[5,9,1,1]", "--lanes", "4", "--eu-bytes", "16", "--mode", "weights", "--ic-parallel", "4")
    assert as_json(run, *small)["tensor"] == [1, 5, 3, 4]
    text = run("layout", *words, "--index", "66,69,2,2")[1]
    assert "ic: 69 = 1*64 + 5    block 1 of 2 (ceil 70/64), place 5 of 64" in text
    assert "oc: 66 = 1*64 + 2    row 1 of 2 (ceil 67/64), NPU 2 of 64" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("s8[5,100]", "--mode", "matrix"), "--columns-per-npu goes with"),
        (("s8[5,100]", "--mode", "matrix2", "--columns-per-npu", "4"), "--columns-per-npu goes with"),
        (("s8[5,100,2]", "--mode", "matrix2"), "a matrix has two sizes"),
        (("s8[5,100,3,3]", "--mode", "weights", "--start", "1"), "weights begin at NPU 0"),
        (("s8[5,100]", "--mode", "weights"), "four sizes"),
        (("s8[5,100,3,3]", "--ic-parallel", "4"), "--ic-parallel goes with"),
    ],
)
def test_what_the_lane_family_refuses(run, words, message):
    code, out, err = run("layout", "lanes", *words, "--chip", "bm1684x")
    assert (code, out) == (2, "")
    assert message in err


def test_convert(run):
    forms = as_json(run, "convert", "f32[4,6]{1,0:T(2,3)}")["forms"]
    assert forms["CuTe"] == {"text": "((2,2),(3,2)):((3,12),(1,6))", "refusal": ""}
    assert "inner_tiles = [2, 3]" in forms["linalg.pack"]["text"]
    assert forms["oneDNN"]["text"] == "AB2a3b"
    forms = as_json(run, "convert", "f32[3,5]{1,0:T(2,2)}")["forms"]
    assert forms["CuTe"]["text"] is None
    assert "CuTe has no padding" in forms["CuTe"]["refusal"]
    assert forms["CuTe, padded"]["text"] == "((2,2),(2,3)):((2,12),(1,4))"
    out = run("layout", "convert", "f32[2,7,8]{2,1,0:T(*,3)}")[1]
    assert "none: f32[2,7,8]{2,1,0:T(*,3)} merges dims by a `*`" in out
    assert "no pack: the array as it is" in run("layout", "convert", "f32[3,5]")[1]


def test_presets(run):
    value = as_json(run, "preset", "ascend_nz", "f16[33,20]")
    assert (value["layout"], value["size_bytes"]) == ("f16[33,20]{1,0:T(48,16)}", 3072)
    words = ("preset", "hexagon_crouton", "f16[1,16,8,32]")
    assert as_json(run, *words, "--index", "0,9,5,7")["offset"] == 3215
    assert as_json(run, *words, "--offset", "3215")["index"] == [0, 9, 5, 7]
    assert "outlined: T(8,4,32)" in run("layout", *words, "--draw")[1]
    assert "known presets" in run("layout", "preset", "nz", "f16[3,3]")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("sharded", "f32[8,8]"), "tilewright: missing option '--shards'; see tilewright layout sharded --help\n"),
        (("pack", "x.npy"), "missing argument 'TEXT'"),
        (("draw",), "missing argument 'TEXT'"),
        (("draw", A, "--color", "tile"), "no such option"),
    ],
)
def test_what_is_missing_is_named(run, words, message):
    code, out, err = run("layout", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_what_takes_no_memory_has_no_picture(run):
    assert run("layout", "draw", "opaque[]", "--ruler")[0] == 3
    assert "takes no memory" in run("layout", "draw", "token[]", "--unit", "line")[2]
    assert "takes no memory" in run("layout", "predict", "token[]")[2]


LINALG = (
    "%1 = linalg.pack %0 inner_dims_pos = [0, 1] inner_tiles = [8, 128] into %e "
    ": tensor<16x256xf32> -> tensor<2x2x8x128xf32>"
)


@pytest.mark.parametrize(
    ("arguments", "index", "offset"),
    [
        (("cute", "((2,2),8):((1,16),2)", "--dtype", "bf16"), (3, 5), 27),
        (("cute", "(_4,_8):(_1,_4)"), (3, 5), 23),
        (("linalg", LINALG), (9, 130), 3202),
        (("onednn", "nChw16c", "f32[2,40,3,5]"), (1, 17, 2, 4), 1185),
        (("onednn", "aBcd16b", "s8[2,40,3,5]"), (1, 17, 2, 4), 1185),
    ],
)
def test_other_tools_layouts_are_read(run, arguments, index, offset):
    there = as_json(run, *arguments, "--index", ",".join(map(str, index)))
    assert there["offset"] == offset
    back = as_json(run, *arguments, "--offset", str(offset))
    assert tuple(back["index"]) == index


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("cute", "(2,(2,2):(1,2"), "expected ')' or ','"),
        (("cute", "4:1", "--dtype", "q7"), "no element type called 'q7'"),
        (("linalg", LINALG.replace("2x2x8", "2x3x8")), "the packed tensor has the sizes 2x2x8x128"),
        (("onednn", "nChw16q", "f32[2,40,3,5]"), "the letters name no known set of dims"),
        (("onednn", "nChw16c", "f32[2,40]"), "has 4 dims"),
    ],
)
def test_what_is_no_layout_of_another_tool_is_refused(run, arguments, what):
    code, _, remarks = run("layout", *arguments)
    assert code == 2
    assert what in remarks


def test_the_table_of_presets_is_whole(root, run):
    """The page and the command's help name the presets there are."""
    text = (root / "docs" / "layout.md").read_text(encoding="utf-8")
    table = text[text.index("| name | of | what |") :].partition("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z0-9_]+)`", row.split("|")[1])}
    known = run("layout", "preset", "?", "f32[3,5]")[2].partition("known presets: ")[2].strip().split(", ")
    assert named == set(known)
    shown = " ".join(run("layout", "preset", "--help")[1].replace("│", " ").split())
    assert all(name in shown for name in known)

"""Shapes as they come out of dumps, and the prediction of many of them at once."""

import io
import json
import re
import sys

import pytest

from tilewright.errors import ParseError
from tilewright.layout import parse

COPY = '  ROOT %copy.5 = f32[48,7,50]{2,1,0:T(8,128)S(1)} copy(%bitcast.5), metadata={op_name="jit(f)/transpose"}'


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        (COPY, "f32[48,7,50]{2,1,0:T(8,128)S(1)}"),
        ("copy.5 = f32[48]{0} copy(x)", "f32[48]{0}"),
        ("%fusion = (f32[2]{0}, /*index=1*/ s32[]) fusion(%a, %b), kind=kLoop", "(f32[2]{0}, s32[])"),
        ("bf16[8,128]{1,0:T(8,128)(2,1)} %param_1.657,", "bf16[8,128]{1,0:T(8,128)(2,1)}"),
        ("param_1.3: s4[3,5]{1,0:E(4)}", "s4[3,5]{1,0:E(4)}"),
        (" %x = f32[3,5] add(%a, %b), metadata={}", "f32[3,5]{1,0}"),
        ("tensor<3x5xbf16>", "bf16[3,5]{1,0}"),
        (" tensor<f32> ", "f32[]"),
        ("tensor<?x4xi1>", "pred[?,4]{1,0}"),
        ("tensor<2xui8>", "u8[2]{0}"),
        ("tensor<2xi4>", "s4[2]{0}"),
        ("tensor<2x3xcomplex<f64>>", "c128[2,3]{1,0}"),
        ("tensor<7xf8E4M3FN>", "f8e4m3fn[7]{0}"),
        ("f32[ 3, 5 ] /* rows, columns */ { 1, 0 : T( 2, 2 ) }", "f32[3,5]{1,0:T(2,2)}"),
    ],
)
def test_what_is_pasted_is_read(text, canonical):
    assert parse(text) == parse(canonical)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("%copy = f32[3,5]{1,0:S(1)T(8,128)} copy(%x)", 25),
        ("%copy = g32[3,5]", 8),
        ("f32[3,5] param", 9),
        ("f32[3,5] %a %b", 9),
        ("tensor<3x5xf33>", 0),
        ("tensor<3x5>", 0),
        ("x = ", 4),
        ("", 0),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_stands(text, column):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.column == column


def test_every_instruction_of_the_dumps_can_be_pasted(data_folder):
    read = 0
    for path in data_folder.glob("hlo_tpu/*.after.hlo"):
        for line in path.read_text().splitlines():
            if found := re.match(r"\s+(?:ROOT )?%[\w.-]+ = (\w+\[[0-9,]*\](?:\{[^}]*\})?) ", line):
                assert parse(line) == parse(found[1])
                read += 1
    assert read > 1000


def test_commands_take_what_is_pasted(run):
    assert run("layout", "explain", COPY)[1] == run("layout", "explain", "f32[48,7,50]{2,1,0:T(8,128)S(1)}")[1]
    code, out, err = run("layout", "compare", COPY, "%bitcast.5 = f32[48,7,50]{0,1,2:T(8,128)S(1)} bitcast(%r)")
    assert (code, err) == (0, "")
    assert out.startswith(
        "from                f32[48,7,50]{2,1,0:T(8,128)S(1)}\nto                  f32[48,7,50]{0,1,2:T(8,"
    )


@pytest.mark.parametrize("index", ["(2,3)", "[2, 3]", " 2 , 3 ", "(2,3,)"])
def test_an_index_may_be_written_as_it_is_printed(run, index):
    assert "= 17" in run("layout", "explain", "f32[3,5]{1,0:T(2,2)}", "--index", index)[1]


@pytest.mark.parametrize("index", ["(2,3", "2;3", "((2,3))", "2,,3"])
def test_what_is_no_index(run, index):
    code, out, err = run("layout", "explain", "f32[3,5]{1,0:T(2,2)}", "--index", index)
    assert (code, out) == (2, "")
    assert "not a list of whole numbers" in err


@pytest.mark.parametrize(("name", "xla"), [("float32", "f32"), ("bfloat16", "bf16"), ("i8", "s8"), ("uint4", "u4")])
def test_names_of_types_elsewhere_are_read(run, name, xla):
    assert run("layout", "explain", f"{name}[3]")[1] == run("layout", "explain", f"{xla}[3]")[1]


# -- many shapes -------------------------------------------------------------------------------------------------------

MANY = ("f32[1048576,1]", "bf16[32,224,224,3]{3,2,1,0:T(8,128)(2,1)}", "tensor<8x512x16x64xf32>")


def test_many_shapes_are_predicted_a_line_each(run):
    code, out, err = run("layout", "predict", *MANY)
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert re.split(r"  +", head.strip()) == [
        "tpu-v5e",
        "size in memory",
        "padding ratio",
        "in default order",
        "as given",
    ]
    assert [line.split()[0] for line in lines] == [
        "f32[1048576,1]{0,1:T(1,128)}",
        "bf16[32,224,224,3]{2,1,3,0:T(8,128)(2,1)}",
        "f32[8,512,16,64]{1,3,2,0:T(8,128)}",
    ]
    assert [re.findall(r"[0-9.]+×", line) for line in lines] == [
        ["1.00×", "128×"],
        ["1.14×", "42.7×", "42.7×"],
        ["1.00×", "2.00×"],
    ]
    value = json.loads(run("layout", "predict", *MANY, "--json")[1])
    assert [each["shape"] for each in value["shapes"]] == [[1048576, 1], [32, 224, 224, 3], [8, 512, 16, 64]]
    assert value["shapes"][1]["given"]["padding_ratio"] > 42
    assert "given" not in value["shapes"][2]


def test_shapes_from_stdin_one_a_line(run, monkeypatch):
    def piped(text, *words):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run("layout", "predict", "-", *words)

    assert piped("\n" + "\n\n".join(MANY) + "\n")[1] == run("layout", "predict", *MANY)[1]
    assert piped(MANY[1])[1] == run("layout", "predict", MANY[1])[1]
    assert "as given" in piped(MANY[1])[1]
    code, out, err = piped("f32[3]\nf32[3\n")
    assert (code, out) == (2, "")
    assert err.splitlines()[0].startswith("tilewright: stdin, line 2: column 6: expected ']'")
    assert "stdin: no shape is given" in piped(" \n")[2]


def test_every_array_of_a_tuple_is_predicted(run):
    fusion = "%fusion = (f32[300,1]{1,0:T(8,128)}, (s8[9,9]{1,0}, token[])) fusion(%a)"
    code, out, err = run("layout", "predict", fusion)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:]] == [
        "f32[300,1]{0,1:T(1,128)}",
        "s8[9,9]{1,0:T(8,128)(4,1)}",
    ]
    assert "takes no memory" in run("layout", "predict", "token[]")[2]


def test_a_file_is_no_shape(run, tmp_path):
    (tmp_path / "dump.hlo").write_text("HloModule m")
    code, out, err = run("layout", "explain", str(tmp_path / "dump.hlo"))
    assert (code, out) == (2, "")
    assert "this is a file, not a shape; give a shape's text" in err
    assert len(err.splitlines()) == 1


def test_the_boundary_of_a_program(run):
    inside, outside = (
        json.loads(run("layout", "predict", "s8[256,512]", "--json", *words)[1])["predicted"]["layout"]
        for words in ((), ("--boundary",))
    )
    assert (inside, outside) == ("s8[256,512]{1,0:T(8,128)(4,1)}", "s8[256,512]{1,0:T(32,128)(4,1)}")


def test_transposed_faces(run):
    words = ("layout", "preset", "tenstorrent", "bf16[64,64]")
    layouts = {
        json.loads(run(*words, *flags, "--json")[1])["layout"]
        for flags in ((), ("--transpose-within-face",), ("--transpose-of-faces",))
    }
    tails = {"(32,32)(16,16)", "(32,32)(16,16)(16,1)", "(32,32)(32,16)(16,16)"}
    assert layouts == {f"bf16[64,64]{{1,0:T{tail}}}" for tail in tails}
    assert "no option" in run("layout", "preset", "tpu", "bf16[64,64]", "--transpose-of-faces")[2]


def test_the_command_counts_conflicts_of_a_swizzle(run):
    code, out, err = run(
        "layout", "cute", "Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)", "--threads", "(8,8):(1,8)"
    )
    assert code == 0
    assert out.startswith("layout          f16[8,64] as Sw<3,4,3>")
    assert err == "bank conflicts: 0: 1 passes over the banks where 1 would do, 16 bytes at once, 1-way at most\n"


def test_a_message_is_explained_allocation_by_allocation(run, data_folder):
    text = next((data_folder / "allocator_messages").glob("10_*.txt")).read_text()
    code, out, err = run("layout", "explain", text)
    assert (code, len(out.splitlines())) == (0, 4)
    assert "allocation 3  f32[4,8192,1]{1,0,2:T(4,128)}" in out
    assert "explain-error" in err
    names = [shape["name"] for shape in json.loads(run("layout", "explain", text, "--json")[1])["shapes"]]
    assert names == ["allocation 1", "allocation 2", "allocation 3"]


def test_a_layout_alone_says_what_it_lacks(run):
    code, out, err = run("layout", "explain", "{1,0:T(8,128)}")
    assert (code, out.split()[1]) == (0, "f32[?,?]{1,0:T(8,128)}")
    assert "no sizes and no element type" in err
    assert "tilewright report" in run("layout", "explain", "HloModule m\n")[2]


def test_global_memory_of_an_npu(run):
    code, out, err = run("layout", "lanes", "f16[2,2,3,2]", "--mode", "global")
    assert (code, err) == (0, "")
    assert "strides         (12,6,2,1), in elements" in out
    assert "belongs to no NPU" in run("layout", "lanes", "f16[2,2,3,2]", "--mode", "global", "--npu", "1")[2]

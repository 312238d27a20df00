"""`tilewright layout plan`: a file of tensors, placed; what is wrong with a file in one line."""

import json
from xml.etree import ElementTree

import pytest

CONV = """
chip = "bm1684x"
instructions = [["x", "y"], ["y", "z"]]
[[tensor]]
name = "x"
shape = "f16[1,64,28,28]"
[[tensor]]
name = "y"
shape = "s8[5,100]"
mode = "matrix"
columns_per_npu = 16
start = 2
base = 16384
[[tensor]]
name = "z"
shape = "f32[1,64,1,1]"
mode = [1, 1, 1, 1]
base = 17408
"""


@pytest.fixture
def plan(run, tmp_path):
    """plan(text, *words) -> (exit code, stdout, stderr) for a file of this text."""

    def call(text, *words):
        (tmp_path / "plan.toml").write_text(text)
        return run("layout", "plan", str(tmp_path / "plan.toml"), *words)

    return call


def test_tensors_are_placed(plan):
    code, out, err = plan(CONV)
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert lines["x"][-7:] == ["1,600", "0", "1,600", "0", "0", "0", "2,048"]
    assert lines["y"][-7:-3] == ["320", "16,384", "16,704", "1"]
    assert "y and z share bank 1" in out


def test_json(plan):
    value = json.loads(plan(CONV, "--json")[1])
    assert (value["schema_version"], value["chip"], value["npu_num"]) == (1, "bm1684x", 64)
    assert [t["base"] for t in value["tensors"]] == [0, 16384, 17408]
    assert [t["bytes_per_npu"] for t in value["tensors"]] == [1600, 320, 4]
    assert value["conflicts"] == [{"instruction": 1, "operands": ["y", "z"], "banks": [1]}]


def test_conflicts_can_fail(plan):
    code, out, err = plan(CONV, "--fail-on-conflict")
    assert code == 1
    assert "share bank 1" in out
    assert "1 pairs of operands share a bank" in err
    assert plan(CONV.replace("17408", "32768"), "--fail-on-conflict")[0] == 0


def test_another_chip_and_a_picture(plan, tmp_path):
    code, out, err = plan(CONV, "--chip", "bm1690", "-o", str(tmp_path / "plan.svg"))
    assert (code, err) == (0, f"wrote {tmp_path / 'plan.svg'}\n")
    assert out.startswith("bm1690")
    root = ElementTree.fromstring((tmp_path / "plan.svg").read_text())
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"x", "y", "z", "instruction 1: y and z share bank 1"} <= set(texts)
    tips = [t.text for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(tip.startswith("y: bytes 16384 to 16703 of every NPU") for tip in tips)


TENSOR = '[[tensor]]\nname = "x"\nshape = "f16[1,64,28,28]"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chip = ", "not TOML"),
        ("", "no chip is named"),
        ('chip = "bm1684x"', "no tensors are given"),
        ('chip = "bm1684x"\ntensor = 3', "write [[tensor]]"),
        ('chip = "bm16"\n' + TENSOR, "bm16"),
        ('chip = "tpu-v5e"\n' + TENSOR, "no lane memories"),
        ('chips = "bm1684x"\n' + TENSOR, "unknown key 'chips'"),
        ('chip = "bm1684x"\n' + TENSOR + "banks = 3", "unknown key 'banks'"),
        ('chip = "bm1684x"\n' + TENSOR + "start = true", "start = True: expected a whole number"),
        ('chip = "bm1684x"\n' + TENSOR + 'mode = ["a"]', "no lane mode"),
        ('chip = "bm1684x"\n' + TENSOR + "start = 64", "start"),
        ('chip = "bm1684x"\n' + TENSOR + "base = 7", "use 64"),
        ('chip = "bm1684x"\n' + TENSOR + TENSOR, "two tensors are called 'x'"),
        ('chip = "bm1684x"\n[[tensor]]\nname = "x"', "shape missing"),
        (
            'chip = "bm1684x"\n[[tensor]]\nname = "x"\nshape = "f16[64,64,128,128]"',
            "overflow the local memory of 262144 bytes by",
        ),
        ('chip = "bm1684x"\ninstructions = [["x", "q"]]\n' + TENSOR, "'q'"),
        ('chip = "bm1684x"\ninstructions = ["x"]\n' + TENSOR, "lists of names"),
    ],
)
def test_a_bad_file_is_one_line(plan, text, message):
    code, out, err = plan(text)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_compilers_file(run, data_folder, tmp_path):
    file = str(data_folder / "tpu_mlir" / "two_groups_final.mlir")
    code, out, err = run("layout", "plan", file)
    assert (code, err) == (0, "")
    assert "layer group %4, line 15" in out
    assert "tpu.Conv2D %9  %7 and %8 share bank 1" in out
    value = json.loads(run("layout", "plan", file, "--group", "%5", "--json")[1])
    assert [(group["group"], group["bytes_used"]) for group in value["groups"]] == [("%5", 28928)]
    assert run("layout", "plan", file, "--fail-on-conflict")[0] == 1
    assert "there are %4, %5" in run("layout", "plan", file, "--group", "%9")[2]
    assert run("layout", "plan", file, "-o", str(tmp_path / "plan.svg"))[0] == 0
    assert "%9 buffer" in (tmp_path / "plan.svg").read_text()

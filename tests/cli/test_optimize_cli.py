"""`tilewright optimize` as a user runs it."""

import json

import pytest

PROGRAM = """module @m {
  func.func public @main(%x: tensor<256x27x32xf32>) -> tensor<256x4xf32> {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.reshape %x : (tensor<256x27x32xf32>) -> tensor<256x27x4x8xf32>
    %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [1, 3] :
      (tensor<256x27x4x8xf32>, tensor<f32>) -> tensor<256x4xf32>
    return %z : tensor<256x4xf32>
  }
}
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "sums.mlir"
    path.write_text(PROGRAM)
    return path


def test_explain_diff_and_output(run, program, tmp_path):
    code, out, err = run(
        "optimize", str(program), "-t", "vector8x128", "--diff", "--explain", "-o", str(tmp_path / "out.mlir")
    )
    assert code == 0
    assert "reduce-of-reshape: reshapes and transposes move 1.12 MiB instead of 31.0 MiB on vector8x128" in out
    assert "-    %0 = stablehlo.reshape %arg0 : (tensor<256x27x32xf32>) -> tensor<256x27x4x8xf32>" in out
    assert "+    %1 = stablehlo.reshape %0 : (tensor<256x32xf32>) -> tensor<256x4x8xf32>" in out
    assert "wrote" in err
    assert "tensor<256x4x8xf32>" in (tmp_path / "out.mlir").read_text()


def test_json(run, program):
    code, out, _ = run("optimize", str(program), "-t", "vector8x128", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema_version"] == 1
    assert found["moved_before"] == found["rewrites"][0]["moved_before"] == 32_505_856
    assert found["moved_after"] == found["rewrites"][0]["moved_after"] == 1_179_648


def test_a_refusal_leaves_the_file_as_it_was(run, program):
    code, out, err = run("optimize", str(program), "-t", "tpu-v5e", "-o", "-")
    assert (code, out) == (0, PROGRAM)
    assert "XLA:TPU performs these rewrites itself" in err


def test_verify_and_bit_exact(run, program):
    code, _, err = run("optimize", str(program), "-t", "vector8x128", "--verify")
    assert code == 0
    assert "verified on random inputs" in err
    code, out, _ = run("optimize", str(program), "-t", "vector8x128", "--bit-exact", "--diff")
    assert out == "no change\n"


def test_passes(run, program):
    code, out, err = run("optimize", str(program), "--passes", "reduce-of-reshape,dead-code")
    assert code == 0
    assert "tensor<256x32xf32>" in out
    assert "reduce-of-reshape: 1 changes" in err
    code, out, _ = run("optimize", "--list-passes")
    assert "P1: reduce the dims a reshape leaves alone" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "no program given"),
        (["{file}"], 2, "no target given"),
        (["{file}", "-t", "tpu-v5q"], 2, "did you mean"),
        (["nowhere.mlir", "-t", "cpu"], 2, "cannot read it"),
        (["{file}", "-t", "bm1684x"], 3, "rule"),
        (["{file}", "--passes", "reduce-of-tea"], 2, "no rewrite called 'reduce-of-tea'"),
        (["{broken}", "-t", "cpu"], 2, "line 5"),
    ],
)
def test_mistakes_are_one_line(run, program, tmp_path, words, code, message):
    broken = tmp_path / "broken.mlir"
    broken.write_text(PROGRAM.replace("tensor<256x27x4x8xf32>\n", "tensor<256x27x4x9xf32>\n"))
    words = [word.format(file=program, broken=broken) for word in words]
    found, out, err = run("optimize", *words)
    assert (found, out) == (code, "")
    assert message in err.splitlines()[0]

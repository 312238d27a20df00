"""`tilewright optimize` as a user runs it."""

import json
import re

import pytest

from tilewright.hlo import DEFAULT_PIPELINE, REWRITES

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
    program.write_text(PROGRAM.replace("256", "4").replace("27", "3"))  # the interpreter takes each element by itself
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
    assert "reduce the dims a reshape leaves alone before the reshape" in out


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
        (["{file}", "--passes", "reduce-of-reshape{tea=true}"], 2, "no option called 'tea'"),
        (["{file}", "--passes", "reduce-of-reshape{allow_reassociation=1}"], 2, "not a value of allow_reassociation"),
        (["{file}", "--passes", "inline{limit=few}"], 2, "it takes a number"),
        (["{file}", "--passes", "inline,"], 2, "after the comma"),
        (["{file}", "--passes", "inline", "--bit-exact"], 2, "do not go together"),
        (["{file}", "--passes", "inline", "--products"], 2, "--products and --passes do not go together"),
        (["{file}", "-t", "cpu", "--bit-exact", "--products"], 2, "--bit-exact and --products do not go together"),
        (["{file}", "-t", "cpu", "-o", "{folder}"], 2, "it is a folder"),
    ],
)
def test_mistakes_are_one_line(run, program, tmp_path, words, code, message):
    broken = tmp_path / "broken.mlir"
    broken.write_text(PROGRAM.replace("tensor<256x27x4x8xf32>\n", "tensor<256x27x4x9xf32>\n"))
    names = {"{file}": program, "{broken}": broken, "{folder}": tmp_path}
    words = [str(names.get(word, word)) for word in words]
    found, out, err = run("optimize", *words)
    assert (found, out) == (code, "")
    assert message in err.splitlines()[0]


def test_passes_are_listed_with_their_options(run):
    _, out, _ = run("optimize", "--list-passes")
    assert "allow_reassociation=true  take floating sums apart too" in out
    assert out.splitlines()[-1] == DEFAULT_PIPELINE
    _, out, _ = run("optimize", "--list-passes", "--json")
    found = {each["name"]: each["options"] for each in json.loads(out)["passes"]}
    assert list(found) == list(REWRITES)
    assert found["inline"][0]["name"] == "limit"
    assert found["inline"][0]["default"] == "1000000"


def test_passes_one_by_one(run, program):
    """--diff shows what each pass changed and marks those that changed nothing; --json has the same."""
    words = ["optimize", str(program), "--passes", "inline,reduce-of-reshape{allow_reassociation=true},dead-code"]
    code, out, _ = run(*words, "--diff")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "# round 1, inline: unchanged"
    assert lines[1] == "# round 1, reduce-of-reshape: 1 change"
    assert "+++ after reduce-of-reshape" in lines
    assert "# round 1, dead-code: 1 change" in lines
    assert "-    %0 = stablehlo.reshape %arg0 : (tensor<256x27x32xf32>) -> tensor<256x27x4x8xf32>" in lines
    found = json.loads(run(*words, "--json")[1])
    assert found["pipeline"] == "inline,reduce-of-reshape,dead-code"
    assert [each["changes"] for each in found["passes"]] == [0, 1, 1]


def test_programs_after_all_passes(run, program, tmp_path):
    words = ["optimize", str(program), "--passes", "inline,reduce-of-reshape,dead-code", "--print-after-all"]
    code, out, err = run(*words)
    assert (code, out) == (0, "")
    assert "// ----- after round 1, inline: unchanged\n// ----- after round 1, reduce-of-reshape: 1 change\n" in err
    assert err.count("module @m") == 2
    folder = tmp_path / "after"
    code, _, err = run(*words, "-o", f"{folder}/")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["02-reduce-of-reshape.mlir", "03-dead-code.mlir", "result.mlir"]
    assert (folder / "result.mlir").read_text() == (folder / "03-dead-code.mlir").read_text()
    assert "tensor<256x27x4x8xf32>" in (folder / "02-reduce-of-reshape.mlir").read_text()
    assert "tensor<256x27x4x8xf32>" not in (folder / "result.mlir").read_text()


def test_passes_under_a_gate(run, program, tmp_path):
    """With a target the passes are tried on regions; the diff begins with what each of them did."""
    code, out, _ = run("optimize", str(program), "-t", "vector8x128", "--diff")
    lines = out.splitlines()
    assert code == 0
    marks = dict(line.removeprefix("# ").split(None, 1) for line in lines if line.startswith("# "))
    assert list(marks) == list(REWRITES)
    assert marks["reduce-of-reshape"] == "1 change"
    assert marks["reshape-of-loop"] == "unchanged"
    _, out, _ = run("optimize", str(program), "-t", "vector8x128", "--diff", "--passes", "canonicalize,dead-code")
    assert out == "no change\n"
    code, out, _ = run("optimize", str(program), "-t", "vector8x128", "--print-after-all", "-o", f"{tmp_path}/all/")
    assert code == 0
    assert "rewritten: f32[256,27,4,8]" in out
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["02-regions.mlir", "result.mlir"]


def test_a_python_file(run, tmp_path):
    (tmp_path / "sums_of_groups.py").write_text(
        "import jax.numpy as jnp\n\ndef sums(x):\n    return x.reshape(256, 27, 4, 8).sum((1, 3))\n\n"
        "EXAMPLES = {'sums': lambda: (jnp.ones((256, 27, 32)),)}\n"
    )
    code, out, _ = run("optimize", str(tmp_path / "sums_of_groups.py"), "-t", "vector8x128", "--explain", "--diff")
    assert code == 0
    assert "rewritten: f32[256,27,4,8]" in out
    assert "sums_of_groups.py:4" in out
    code, out, _ = run("optimize", f"{tmp_path}/sums_of_groups.py:sums", "-t", "cpu", "-a", "f32[256,27,32]", "--json")
    assert json.loads(out)["rewrites"][0]["charged_before"] > json.loads(out)["rewrites"][0]["charged_after"]


def test_the_page_on_passes(root, tmp_path, monkeypatch, run):
    text = (root / "docs" / "optimize.md").read_text()
    program, passes, printed = re.search(
        r"<<'END'\n(.*?)END\n\$ ./run tilewright optimize sums.mlir --passes \"(.*?)\" --diff\n(.*?)```", text, re.S
    ).groups()
    (tmp_path / "sums.mlir").write_text(program)
    monkeypatch.chdir(tmp_path)
    assert run("optimize", "sums.mlir", "--passes", passes, "--diff")[1] == printed

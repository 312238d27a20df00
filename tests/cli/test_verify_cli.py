"""`tilewright verify` as a user runs it."""

import json
import re
from importlib import import_module

import numpy as np
import pytest

SQUARE = """module @m {{
  func.func public @main(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {{
    %c = stablehlo.constant dense<{0}> : tensor<16x8xf32>
    %y = stablehlo.multiply %x, {1} : tensor<16x8xf32>
    %z = stablehlo.add %y, %c : tensor<16x8xf32>
    return %z : tensor<16x8xf32>
  }}
}}
"""


@pytest.fixture
def files(tmp_path):
    texts = {
        "a": SQUARE.format("0.0", "%x"),
        "same": SQUARE.format("0.0", "%x").replace("%z", "%w"),
        "other": SQUARE.format("0.5", "%x"),
        "python.py": "import jax.numpy as jnp\n\ndef square(x):\n    return x * x + 0.0\n",
        "wider": SQUARE.format("0.0", "%x").replace("16x8", "16x9"),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_long_command_says_how_far_it_is_where_there_is_no_terminal(run, files, monkeypatch):
    monkeypatch.setattr("tilewright.cli.streams.EVERY", 0.001)
    _, _, err = run("verify", str(files / "a"), str(files / "same"))
    assert re.search(r"^still at \w+ inputs, (jit|op by op) \d+/14 \(\d+ s\)$", err, re.MULTILINE)


def test_what_a_large_run_takes_is_said_beforehand(run, files, monkeypatch):
    monkeypatch.setattr(import_module("tilewright.cli.programs.optimize"), "_LARGE", 1)
    _, _, err = run("verify", str(files / "a"), str(files / "same"), "--within", "1")
    assert re.search(r"a run computes .* of arrays \(modelled\), .* \d+ GiB are allowed", err)


def test_programs_that_agree(run, files):
    code, out, err = run("verify", str(files / "a"), str(files / "same"))
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split()[:4] == ["inputs", "seed", "run", "verdict"]
    assert sum("same bits" in line for line in lines) == 14
    assert lines[-1] == (
        "equal bit for bit in 14 trials (jit, op by op; normal, wide, zeros, denormal, large, lowest, special inputs), "
        "reference: StableHLO's interpreter"
    )


def test_programs_that_differ_exit_with_1_and_show_the_inputs(run, files):
    saved = files / "worst.npz"
    code, out, err = run(
        "verify", str(files / "a"), str(files / "other"), "--no-eager", "--seeds", "2", "--save", str(saved)
    )
    assert code == 1
    assert "DIFFER" in out
    assert "normal inputs, jit: output 0: 128 of 128 elements that differ are wrong: at (0, 0) original" in out
    assert err.splitlines()[-1] == "tilewright: the programs differ"  # the reason stands in the table's last lines
    with np.load(saved) as arrays:
        assert arrays["argument_0"].shape == (16, 8)
    assert [line.split()[1] for line in out.splitlines() if line.startswith("normal  ")] == ["0", "1"]


def test_json_and_functions_of_python_files(run, files):
    code, out, _ = run(
        *("verify", str(files / "a"), f"{files / 'python.py'}:square", "--arg", "f32[16,8]"),
        *("--no-eager", "--inputs", "normal", "--inputs", "special", "--json"),
    )
    found = json.loads(out)
    assert code == 0
    assert found["schema_version"] == 1
    assert found["ok"]
    assert [trial["inputs"] for trial in found["trials"]] == ["normal", "special"]
    assert found["tpu"] is None


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["{a}"], 2, "missing argument"),
        (["{a}", "{wider}"], 2, "arguments or results of different types"),
        (["{a}", "{a}", "--inputs", "huge"], 2, "no kind of inputs called 'huge'"),
        (["{a}", "{a}", "--save", "x.txt"], 2, "written as .npz"),
        (["{a}", "{a}", "--tpu", "v5q"], 2, "no TPU called 'v5q'"),
        (["{a}", "nowhere"], 2, "cannot read it"),
    ],
)
def test_mistakes_are_one_line(run, files, words, code, message):
    found, out, err = run("verify", *(word.format(a=files / "a", wider=files / "wider") for word in words))
    assert (found, out) == (code, "")
    assert message in err.splitlines()[0]


def test_without_the_tpu_compiler(run, files, monkeypatch):
    from tilewright.hlo.proving import tpu as _tpu_compare

    monkeypatch.setattr(_tpu_compare, "find_spec", lambda name: None)
    code, out, err = run("verify", str(files / "a"), str(files / "a"), "--tpu", "v5e")
    assert (code, out) == (3, "")
    assert "the TPU compiler is not installed; pip install 'jax[tpu]" in err

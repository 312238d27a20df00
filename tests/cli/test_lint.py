"""`tilewright lint`: lines, exit codes, JSON, annotations, the pytest plugin, the pre-commit hook."""

from __future__ import annotations

import json
import tomllib

import pytest

from tests.conftest import ROOT, VECTORS
from tilewright.hlo import catalogue

pytest_plugins = ["pytester"]

MODEL = """
import jax
import jax.numpy as jnp


def scores(q, k):
    keys = jnp.repeat(k, 8, axis=2)
    return jnp.einsum("bhd,bkhd->bhk", q, keys)


def plain(q, k):
    return q * 2


def example_args():
    return jax.ShapeDtypeStruct((8, 64, 64), jnp.bfloat16), jax.ShapeDtypeStruct((8, 2048, 8, 64), jnp.bfloat16)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "linted.py").write_text(MODEL)
    return "linted.py:scores"


def test_a_line_per_finding_and_exit_code_1(run, model):
    code, out, err = run("lint", model)
    assert code == 1
    assert out.startswith("linted.py:7:12 grouped-query-attention ")
    _finding, *instead = out.splitlines()
    assert instead == [f"    {line}" for line in catalogue()["grouped-query-attention"].instead]
    assert "or run tilewright optimize --target tpu-v5e" in out
    assert "1 finding, 1 of a factor of 1.05 or more, on tpu-v5e" in err


def test_what_pays_less_than_the_threshold_does_not_fail(run, model):
    assert run("lint", model, "--threshold", "1000")[0] == 0
    assert run("lint", model, "--exit-zero")[0] == 0
    code, out, err = run("lint", "linted.py:plain")
    assert (code, out) == (0, "")
    assert err.startswith("0 findings")


UNTIL = """
import jax
import jax.numpy as jnp


def until(x):
    step = lambda x: jax.nn.softmax(x @ x.swapaxes(-1, -2)).astype(x.dtype) @ x
    return jax.lax.while_loop(lambda x: x.astype(jnp.float32).sum() < 1, step, x)


EXAMPLES = {"until": (jax.ShapeDtypeStruct((32, 2048, 128), jnp.bfloat16),)}
"""


def test_how_often_a_loop_runs_is_stated_as_for_time(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").write_text(UNTIL)

    def saved(*trips):
        code, out, _ = run("lint", "loop.py", "--target", "tpu-v6e", "--exit-zero", "--json", *trips)
        assert code == 0
        return next(e["saved_us"] for e in json.loads(out)["findings"] if e["rule"] == "fused-attention")

    assert saved("--assume", "trips=12") == pytest.approx(6 * saved("--assume", "trips=2"), rel=0.05)
    assert "nothing called 'laps' can be assumed" in run("lint", "loop.py", "--assume", "laps=2")[2]


def test_a_chip_that_there_is_not_is_said_once(run, model):
    code, out, err = run("lint", "linted.py", "--target", "tpu-v6")
    assert (code, out) == (2, "")
    assert "no target called 'tpu-v6'; did you mean tpu-v6e" in err
    assert "left out" not in err


def test_a_file_stands_for_all_its_functions_and_what_is_left_out_is_named(run, model, tmp_path):
    (tmp_path / "linted.py").write_text(MODEL.replace("def plain(q, k)", "def plain(q)"))
    code, out, err = run("lint", "linted.py", "--arg", "bf16[8,64,64]", "--arg", "bf16[8,2048,8,64]")
    assert code == 1
    assert out.startswith("linted.py:7:12 grouped-query-attention ")
    assert "left out: linted.py:plain: too many positional arguments" in err
    assert "linted 1 function of linted.py: scores" in err
    code, _, err = run("lint", "linted.py", "--arg", "f32[8]", "--arg", "f32[8]", "--arg", "f32[8]")
    assert code == 2
    assert "no function that can be linted" in err


def test_a_confirmed_factor_says_at_which_shapes_and_what_the_model_has(run):
    _, out, _ = run("lint", f"{VECTORS}/lint/flax_style.py:conv_in_groups")
    assert "at the example's shapes; the time model sees no difference here" in out


def test_what_model_and_compiler_dispute_is_left_to_a_judge(run, tmp_path):
    path = tmp_path / "pooled.py"
    path.write_text(
        "import jax\nimport jax.numpy as jnp\n\n\ndef pooled(x):\n"
        "    x = jnp.pad(jax.nn.relu(x), ((0, 0), (1, 1), (1, 1), (0, 0)))\n"
        '    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")\n'
    )
    arguments = ["--arg", "f32[4,80,80,64]"]
    code, out, err = run("lint", f"{path}:pooled", *arguments)
    assert (code, out) == (0, "")
    assert err.startswith("0 findings")
    _, out, _ = run("optimize", f"{path}:pooled", *arguments, "--target", "tpu-v5e", "--explain")
    assert "but the time model has 0." in out
    assert "only a compiler can tell, with --judge tpu:v5e" in out


def test_json_and_annotations(run, model):
    code, out, _ = run("lint", model, "linted.py:plain", "--target", "cpu", "--json")
    plain = json.loads(out)
    assert (code, plain["failing"], plain["target"]) == (1, 1, "cpu")
    (found,) = plain["findings"]
    assert (found["file"], found["line"], found["column"], found["kind"]) == ("linted.py", 7, 12, "confirmed")
    _, out, _ = run("lint", model, "--format", "github", "--target", "cpu")
    assert out.startswith("::warning file=linted.py,line=7,col=12,title=grouped-query-attention::")
    _, out, _ = run("lint", model, "--format", "sarif", "--target", "cpu")
    (result,) = json.loads(out)["runs"][0]["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert (result["ruleId"], result["level"], region) == (
        found["rule"],
        "warning",
        {"startLine": 7, "startColumn": 12},
    )


def test_arguments_belong_to_one_function_and_dumps_are_no_models(run, model, data_folder):
    code, _, err = run("lint", model, model, "--arg", "f32[8]")
    assert code == 2
    assert "--arg goes with one function" in err
    assert run("lint", str(data_folder / "hlo_tpu" / "v5e_reshape_zoo.after.hlo"))[0] == 2


def test_pytest_has_a_test_for_each_program(pytester, model):
    pytester.makepyfile(linted=MODEL)
    done = pytester.runpytest_inprocess("--tilewright-lint", model, "--tilewright-lint", "linted.py:plain", "-v")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["linted.py:7:12 grouped-query-attention *"])


def test_the_hooks_are_there():
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text()
    assert "entry: tilewright lint" in hooks
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert plugins == {"tilewright": "tilewright.cli.programs.pytest_hook"}

"""`model.py:step`: functions of Python files with example arguments, and what their faults look like."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from tests.conftest import ROOT
from tilewright.errors import ParseError, UsageError
from tilewright.hlo import estimate, from_jax, from_python, names_python
from tilewright.hlo.execute import callable_of
from tilewright.hlo.reading.python_source import example_arguments

MODEL = """\
from dataclasses import dataclass
import jax, jax.numpy as jnp
import beside

@dataclass
class Config:
    width: int = 4

class Net:
    @staticmethod
    def apply(x):
        return x.T

def step(params, x, scale=1.0):
    return (x @ params["w"]).reshape(-1) * scale + beside.OFFSET

def plain():
    return jnp.zeros(3)

def breaks(x):
    return helper(x)

def helper(x):
    return x.reshape(7)

def leaves(x):
    raise SystemExit(3)

loss = jax.jit(lambda x, flag: x if flag else -x, static_argnums=1)
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    (tmp_path / "beside.py").write_text("OFFSET = 1\n")

    def write(text=MODEL, name="model.py"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def shapes(program):
    return [op.shape for op in program.entry.operations if op.opcode == "parameter"]


def test_arguments_on_the_command_line(model):
    program = from_python(f"{model()}:step", ["{w: bf16[16,4]}", "bf16[8,16]"])
    assert (program.kind, program.name) == ("stablehlo", "jit_step")
    assert shapes(program) == ["bf16[16,4]", "bf16[8,16]"]
    assert shapes(from_python(f"{model()}:step", ["x=f32[8,16]", "params={'w': f32[16,4]}"])) == shapes(
        from_python(f"{model()}:step", ['{"w": f32[16,4]}', "f32[8,16]"])
    )


def test_members_and_static_arguments(model):
    assert shapes(from_python(f"{model()}:Net.apply", ["f32[2,3]"])) == ["f32[2,3]"]
    opcodes = [[op.opcode for op in from_python(f"{model()}:loss", ["s32[3]", flag]).entry.operations]
               for flag in ("true", "false")]  # fmt: skip
    assert ["negate" in codes for codes in opcodes] == [False, True]
    assert shapes(from_python(f"{model()}:plain")) == []


@pytest.mark.parametrize(
    "example",
    [
        "step_example_args = ({'w': S((16, 4), f32)}, S((8, 16), f32))",
        "def step_example_args(): return dict(x=S((8, 16), f32), params={'w': S((16, 4), f32)})",
        "example_args = [{'w': jnp.zeros((16, 4))}, jnp.zeros((8, 16))]",
        "EXAMPLES = {'step': lambda: ({'w': S((16, 4), f32)}, S((8, 16), f32))}",
    ],
)
def test_arguments_that_the_file_gives(model, example):
    path = model(f"{MODEL}\nS, f32 = jax.ShapeDtypeStruct, jnp.float32\n{example}\n")
    assert sorted(shapes(from_python(f"{path}:step"))) == ["f32[16,4]", "f32[8,16]"]
    assert sorted(shapes(from_python(f"{path}:step", ["{w: f32[2,2]}", "f32[2,2]"]))) == ["f32[2,2]"] * 2


def test_without_a_name(model):
    assert from_python(model("def only(x=1.0):\n    return x + 1\n")).name == "jit_only"
    examples = "EXAMPLES = {'b': (1.0,), 'a': (1.0,)}\ndef a(x): return x\ndef b(x): return x\n"
    assert from_python(model(examples)).name == "jit_b"
    assert from_python(str(ROOT / "examples" / "int8_mlp.py")).name == "jit_forward"


def test_modules_by_name(model, monkeypatch):
    model("def double(x):\n    return 2 * x\n", "some_module.py")
    monkeypatch.chdir(model().rpartition("/")[0])
    assert shapes(from_python("some_module:double", ["f32[3]"])) == ["f32[3]"]


def test_the_callers_modules_stay_as_they_are(model):
    path = model("def f(x):\n    return x\n", "json.py")
    import json

    assert shapes(from_python(f"{path}:f", ["f32[3]"])) == ["f32[3]"]
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("source", "arguments", "reason"),
    [
        ("model.py:step", [], r"step needs arguments \(params, x\).*--arg f32\[8,128\].*step_example_args"),
        ("model.py:stpe", [], "it has no stpe; its functions: step, plain"),
        ("model.py", [], r"it defines \d functions; name one"),
        ("model.py:Config.width", [], "Config.width is of type int, not a function"),
        ("nothing.py:f", [], "no such Python file"),
        ("model.py:breaks", ["f32[3]"], r"model\.py:24: tracing breaks fails: TypeError: cannot reshape"),
        ("model.py:leaves", ["f32[3]"], r"model\.py:27: tracing leaves fails: SystemExit: 3"),
        ("model.py:step", ["f32[3]"], "tracing step fails: TypeError"),
        ("model.py:step", ["f99[3]", "f32[2]"], "no element type called 'f99'"),
        ("model.py:step", ["f64[3]", "f32[2]"], "32-bit mode; set JAX_ENABLE_X64=1"),
        ("raises.py:f", [], r"raises\.py:2: importing it fails: ZeroDivisionError: division by zero; --debug"),
        ("syntax.py:f", [], r"syntax\.py:1: importing it fails: SyntaxError"),
        ("no_such_module_here:f", [], "importing it fails: ModuleNotFoundError"),
        ("examples.py:f", [], r"examples\.py:2: making the arguments of f fails: KeyError: 'x'"),
    ],
)
def test_faults_are_one_line_with_the_users_place(model, source, arguments, reason):
    folder = model().rpartition("/")[0]
    model("\n1 / 0\n", "raises.py")
    model("def f(:\n", "syntax.py")
    model("def f(x): return x\ndef f_example_args(): return {}['x']\n", "examples.py")
    with pytest.raises(UsageError, match=reason) as caught:
        from_python(f"{folder}/{source}" if ".py" in source else source, arguments)
    assert "\n" not in str(caught.value)


def test_what_names_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert all(map(names_python, ("model.py", "a/model.py:f", "package.module:f", "/x/y.py:Class.method")))
    assert not any(map(names_python, ("model.hlo", "dump", "-", "a/b:c", "C:/x.hlo", "x.mlir.gz", "")))
    (tmp_path / "odd:name").write_text("HloModule m")
    assert not names_python("odd:name")


def test_argument_texts():
    positional, named = example_arguments(
        ["f32[8,128]", "bfloat16[ 2 , 3 ]", "s32[]", "[pred[4], (u8[0], 3)]", '{"a": -1.5e3, b: none}', "n=true", "'s'"]
    )
    assert [(x.shape, x.dtype) for x in positional[:3]] == [
        ((8, 128), np.float32), ((2, 3), jnp.bfloat16), ((), np.int32),
    ]  # fmt: skip
    assert (positional[3][0].shape, positional[3][1][0].shape, positional[3][1][1]) == ((4,), (0,), 3)
    assert isinstance(positional[3][1], tuple)
    assert (positional[4:], named) == (({"a": -1500.0, "b": None}, "s"), {"n": True})
    (key,), _ = example_arguments(["key"])
    assert (key.shape, str(key.dtype)) == ((), "key<fry>")


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        ("f32[2,3]{1,0}", 9, "no layout"),
        ("f32[2,3] f32[2]", 10, "one --arg per argument"),
        ("f32[2", 1, "expected an argument"),
        ("[f32[2]", 8, r"expected ',' or '\]'"),
        ("{f32[2]}", 5, "expected ':' after f32"),
        ("{3: f32[2]}", 2, "expected a name"),
        ("", 1, "expected an argument"),
        ("x=", 3, "expected an argument"),
        ("3x", 1, "expected an argument"),
        ("[" * 80, 52, "nested deeper"),
    ],
)
def test_malformed_arguments_name_the_column(text, column, reason):
    with pytest.raises(ParseError, match=f"column {column}: .*{reason}"):
        example_arguments([text])


def test_arguments_that_cannot_be():
    with pytest.raises(UsageError, match="given twice"):
        example_arguments(["x=1", "x=2"])
    with pytest.raises(UsageError, match="more than 2"):
        example_arguments(["f32[99999999999,99999999999]"])


def test_functions_are_lowered_as_for_a_tpu():
    """A grouped product is one operation there; where there is no TPU, XLA computes it as a masked product."""
    x, w, sizes = jnp.arange(32.0).reshape(8, 4), jnp.arange(36.0).reshape(3, 4, 3), jnp.array([5, 0, 3], jnp.int32)
    program = from_jax(jax.lax.ragged_dot, x, w, sizes)
    assert [op.opcode for op in program.entry.operations][-2:] == ["ragged_dot", "return"]
    wanted = np.concatenate([x[:5] @ w[0], x[5:] @ w[2]])
    assert np.array_equal(callable_of(program)(x, w, sizes), wanted)


def test_a_pallas_kernel_has_a_place_in_a_function():
    def double(x_ref, y_ref):
        y_ref[...] = x_ref[...] * 2

    def step(x):
        block = pl.BlockSpec((512, 1024), lambda i: (i, 0))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(double, out, grid=(64,), in_specs=[block], out_specs=block, name="double")(x) + 1

    found = estimate(from_jax(step, jax.ShapeDtypeStruct((32768, 1024), jnp.float32)), "tpu-v6e")
    kernel = next(row for row in found.rows if row.kernel == "double")
    assert kernel.bytes == 2 * 32768 * 1024 * 4
    assert kernel.seconds >= kernel.bytes / 1.64e12

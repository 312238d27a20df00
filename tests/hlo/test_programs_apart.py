"""Programs from texts: what they may call, where they run, and what becomes of those that end the process."""

from __future__ import annotations

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tilewright.child import ChildDied
from tilewright.errors import CheckFailed, ParseError, UnsupportedError
from tilewright.hlo import XlaValues, from_jax, load, optimize, verify
from tilewright.hlo.execute import CHILD, check_custom_calls
from tilewright.hlo.ir import custom_calls, parse_module

KIND = "tensor<4xf32>"


def module(line):
    return f"module {{\nfunc.func public @main(%x: {KIND}) -> {KIND} {{\n%y = {line}\nreturn %y : {KIND}\n}}\n}}\n"


ADD = module(f"stablehlo.add %x, %x : {KIND}")


def calling(name, attributes="api_version = 4 : i32"):
    return module(f'stablehlo.custom_call @"{name}"(%x) {{{attributes}}} : ({KIND}) -> {KIND}')


@pytest.mark.parametrize("index", [0, 2**63 - 1])
@pytest.mark.parametrize("name", ["xla_ffi_python_cpu_callback", "xla_python_cpu_callback", "dce_sink", "anything", ""])
def test_a_text_calls_only_what_is_known(name, index):
    text = calling(name, f"mhlo.backend_config = {{index = {index} : ui64}}, api_version = 4 : i32")
    program = load(text)
    with pytest.raises(UnsupportedError, match="a custom call to"):
        verify(program, program)
    with pytest.raises(UnsupportedError, match="a custom call to"):
        XlaValues(apart=True).run_text(text, [((4,), np.float32)], [((4,), np.dtype("f4"))], [np.ones(4, "f4")])


def test_calls_are_found_wherever_they_stand():
    inner = f"stablehlo.custom_call @hidden(%x) : ({KIND}) -> {KIND}\nfunc.return %z : {KIND}\n}}"
    text = ADD.replace("}\n}\n", f"}}\nfunc.func private @other(%x: {KIND}) -> {KIND} {{\n%z = {inner}\n}}\n")
    assert custom_calls(parse_module(text)) == {"hidden"}
    check_custom_calls(calling("Sharding"))
    check_custom_calls(calling("tpu_custom_call"), "tpu")
    with pytest.raises(UnsupportedError):
        check_custom_calls(calling("tpu_custom_call"))


def test_a_function_that_calls_back_is_refused_not_run():
    """Also the user's own: the text holds no object, only the number of one."""
    shape = jax.ShapeDtypeStruct((4,), jnp.float32)
    program = from_jax(lambda x: jax.pure_callback(lambda a: a, shape, x) + 1, shape)
    with pytest.raises(UnsupportedError, match="calls back into Python"):
        verify(program, program)


def test_a_death_is_a_finding():
    program = load(ADD)
    with pytest.raises(ChildDied, match="SIGSEGV") as died:
        verify(program, program, advance=lambda *_: os.kill(CHILD.pid, signal.SIGSEGV))
    assert isinstance(died.value, CheckFailed)
    assert verify(program, program, inputs=["normal"]).bit_equal


def test_apart_and_here_give_the_same():
    given = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    own = from_jax(lambda x: (jnp.tanh(x).T @ x, x > 0), given)
    text = load(own.text)
    arguments = [given]
    assert verify(own, own, arguments) == verify(text, text, arguments)
    kinds = [((4, 4), np.dtype("f4")), ((3, 4), np.dtype(bool))]
    one, other = (XlaValues(apart=way).run_text(own.text, [((3, 4), given.dtype)], kinds, arguments) for way in (0, 1))
    assert all((a == b).all() and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def test_too_much_memory_is_said():
    wide = load(ADD.replace("4x", "99999999999x"))
    with pytest.raises(UnsupportedError, match="memory"):
        verify(wide, wide, inputs=["normal"])


@pytest.mark.parametrize("sign", ["[]", "<>", "()", "{}"])
def test_nesting_that_ends_the_parser_is_refused(sign):
    deep = sign[0] * 100_000 + sign[1] * 100_000
    with pytest.raises(ParseError, match="nested deeper"):
        parse_module(f"module attributes {{a.a = {deep}}} {{}}")
    strings = ", ".join(f'a.s{n} = "{sign[0]}->"' for n in range(3000))  # in quotes they open nothing
    assert parse_module(f"module attributes {{{strings}}} {{}}")


def test_optimize_proves_in_the_same_way():
    summed = "stablehlo.reduce(%r init: %c) applies stablehlo.add across dimensions = [1, 3] : "
    text = f"""module {{
  func.func public @main(%x: tensor<256x27x32xf32>) -> tensor<256x4xf32> {{
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %d = stablehlo.custom_call @foreign(%x) : (tensor<256x27x32xf32>) -> tensor<256x27x32xf32>
    %r = stablehlo.reshape %d : (tensor<256x27x32xf32>) -> tensor<256x27x4x8xf32>
    %s = {summed}(tensor<256x27x4x8xf32>, tensor<f32>) -> tensor<256x4xf32>
    return %s : tensor<256x4xf32>
  }}
}}"""
    assert optimize(load(text), "vector8x128").rewrites
    with pytest.raises(UnsupportedError, match="'foreign'"):
        optimize(load(text), "vector8x128", verify=True)

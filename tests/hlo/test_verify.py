"""verify finds what is wrong, and the float64 reference agrees with numpy."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.hlo.norms import struct
from tests.hlo.numpy_values import evaluate
from tests.hlo.stablehlo_values import executed, module, values
from tilewright.errors import UnsupportedError, UsageError
from tilewright.hlo import XlaValues, from_jax, operations_of, verify
from tilewright.hlo.proving.reference import Reference
from tilewright.hlo.proving.trials import missed, tolerance
from tilewright.hlo.reading.mlir_reader import read_stablehlo

# How results are compared is the same one operation at a time, which compiles each of them.
under_jit = partial(verify, eager=False)


def test_a_wrong_program_is_found():
    x = struct(64, 32)
    right, wrong = from_jax(lambda x: x.sum(0), x), from_jax(lambda x: x.sum(0) * 1.001, x)
    proof = verify(right, wrong)
    assert not proof.ok
    assert not proof.bit_equal
    assert proof.max_difference == pytest.approx(1e-3, rel=0.01)
    assert proof.error_after > 100 * proof.error_before
    assert verify(right, right).bit_equal


def test_integers_must_agree_exactly():
    x = struct(64, dtype=jnp.int32)
    assert not under_jit(from_jax(lambda x: x, x), from_jax(lambda x: x + (x == 2), x)).ok


def test_a_result_that_is_not_a_number_on_one_side_is_found():
    x = struct(8)
    proof = under_jit(from_jax(lambda x: x, x), from_jax(lambda x: x / jnp.where(x > 0, 1.0, 0.0), x))
    assert not proof.ok
    assert proof.max_difference == float("inf")


def far_off(x):
    return (x * x / 1e30).sum(1)


def test_an_original_that_overflows_excuses_nothing():
    x, big = struct(4, 8), [np.full((4, 8), 1e30, np.float32)]
    original, wrong = from_jax(far_off, x), from_jax(lambda x: (x * 0 + 7).sum(1), x)
    proof = under_jit(original, wrong, big)
    assert not proof.ok
    assert proof.error_before == float("inf")
    assert proof.reason.startswith(
        "given inputs, jit: output 0: 4 of 4 elements that differ are wrong: at (0,) original inf"
    )
    assert "result 56.0, float64 reference 8.0" in proof.reason
    assert under_jit(original, original, big).ok
    assert under_jit(original, from_jax(lambda x: (x / 1e30 * x).sum(1), x), big).ok


def test_an_overflow_does_not_hide_what_stands_beside_it():
    x, given = struct(2), [np.array([1e30, 2.0], np.float32)]
    proof = under_jit(from_jax(lambda x: x * x, x), from_jax(lambda x: x * x + jnp.array([0.0, 1.0]), x), given)
    assert not proof.ok
    assert "1 of 1 elements that differ are wrong: at (1,) original 4.0, result 5.0" in proof.reason


def test_a_better_program_is_accepted_and_an_equally_bad_one_is_not():
    """Cancellation: the original is far off, which proves only a result that is right."""
    shapes, given = (struct(8), struct()), [np.full(8, 3.0, np.float32), np.float32(1e8)]
    original = from_jax(lambda x, big: (x + big) - big, *shapes)
    right = from_jax(lambda x, big: x + 0 * big, *shapes)
    wrong = from_jax(lambda x, big: -2 * x / 3 + 0 * big, *shapes)
    assert under_jit(original, right, given).ok
    proof = under_jit(original, wrong, given)
    assert not proof.ok
    assert proof.error_after < 2 * proof.error_before


def test_of_a_deep_float32_program_errors_are_compared_by_rank():
    """Chance moves an error to another element; it makes none larger than the original's of its rank."""
    draw = np.random.default_rng(0)
    exact, near = draw.normal(size=2000), 1e-4
    original, result = (exact + near * draw.normal(size=2000) for _ in range(2))
    lone = exact + 1e-9 * draw.normal(size=2000)
    lone[7] += near  # the original's only large error

    def judged(before, after):
        before, after = before.astype(np.float32), after.astype(np.float32)
        return missed(before, after, exact, 1000, tolerance(np.dtype(np.float32)), list)

    assert not judged(original, result)
    assert "are wrong" in judged(original, exact + 4 * (result - exact))
    for planted, where in ((3 * np.abs(original - exact).max(), 100), (0.05, 3)):
        wrong = result.copy()
        wrong[where] += planted
        assert "are wrong" in judged(original, wrong)
    moved = lone.copy()
    moved[500] += near
    assert "are wrong" in judged(lone, moved)  # one such error excuses one, not two


def test_doubles_and_wide_integers_are_compared_as_they_are():
    text = (
        "module {{func.func public @main(%x: tensor<3x{0}>) -> tensor<3x{0}> {{\n{1}\nreturn %y : tensor<3x{0}> }} }}"
    )
    add = "%c = stablehlo.constant dense<{1}> : tensor<3x{0}>\n%y = stablehlo.add %x, %c : tensor<3x{0}>"
    programs = {
        (kind, by): read_stablehlo(text.format(kind, add.format(kind, by)))
        for kind, by in [("f64", "1.0"), ("f64", "1.000001"), ("i64", "0"), ("i64", "1"), ("i4", "0"), ("i4", "1")]
    }
    for kind, same, other in (("f64", "1.0", "1.000001"), ("i64", "0", "1"), ("i4", "0", "1")):
        given = [np.full(3, 2**62)] if kind == "i64" else None
        eager = kind == "i64"
        assert verify(programs[kind, same], programs[kind, same], given, eager=eager).ok
        assert not verify(programs[kind, same], programs[kind, other], given, eager=eager).ok


def test_where_the_interpreter_stops_xla_in_float64_goes_on():
    def mixed(x, half):
        return jnp.sort(x, 0) @ x.T, jnp.where(half > 0, half, -jnp.inf).max(0), jnp.cumsum(half, 0)

    program = from_jax(mixed, struct(128, 96), struct(64, dtype=jnp.bfloat16))
    proof = verify(program, program, eager=False)
    assert proof.ok
    assert proof.reference == "XLA in float64"
    assert 1e-8 < proof.error_before < 0.05


def test_without_a_reference_the_two_are_compared_with_each_other():
    def bits(x):
        return jax.lax.bitcast_convert_type(jnp.sort(x), jnp.int32)

    proof = under_jit(from_jax(bits, struct(16)), from_jax(bits, struct(16)))
    assert proof.ok
    assert proof.error_before is None
    assert proof.reference.startswith("none: the float64 reference does not know")


def test_programs_of_different_types_are_refused():
    with pytest.raises(UsageError, match="different types"):
        verify(from_jax(jnp.sin, struct(3)), from_jax(jnp.sin, struct(4)))


def test_the_reference_evaluates_what_users_write():
    def mixture(x, n):
        y = jnp.where(x > 0, jnp.log1p(jnp.abs(x)), jnp.tanh(x)) + jnp.arange(5.0)
        return y.max(0), jnp.clip(x, -0.5, 0.5).T, (n // 3) % 2, (x * 1j).imag, jnp.exp(-(x**2)) / jnp.sqrt(1 + x**2)

    program = from_jax(mixture, struct(4, 5), struct(6, dtype=jnp.int32))
    x, n = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32), np.arange(-3, 3, dtype=np.int32)
    proof = under_jit(program, program, [x, n])
    assert proof.reference == "StableHLO's interpreter"
    assert proof.error_before < 1e-6


OPERATIONS = {
    "dot_general": lambda x: jnp.einsum("abc,acd->abd", x, x.transpose(0, 2, 1)),
    "convolution": lambda x: jax.lax.conv_general_dilated(
        x[:, None], x[:2, None, :2, :2], (1, 2), ((1, 0), (0, 1)), rhs_dilation=(2, 1)
    ),
    "gather": lambda x: x[:, jnp.array([[3, 0], [1, 2]])],
    "scatter": lambda x: x.at[jnp.array([1, 0, 1]), 2].add(x[0, :3]),
    "reduce_window": lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2), (1, 1, 2), "SAME"),
    "pad": lambda x: jax.lax.pad(x, 2.5, ((0, 0, 0), (1, -1, 1), (0, 2, 0))),
    "dynamic_slice": lambda x: jax.lax.dynamic_slice(x, (1, x.sum().astype(int) % 7, 0), (1, 2, 3)),
    "reduce": lambda x: (x.max((0, 2)), x.prod(1), jnp.abs(x).min(), (x > 0).all(2), (x > 1).any(0)),
    "elementwise": lambda x: (jnp.cbrt(x), jnp.arctan2(x, 2 - x), jnp.round(x), jax.nn.sigmoid(x), x % 0.5, x**2.5),
    "chlo": lambda x: (jnp.square(x), jax.lax.erf(x)),
    "convert": lambda x: ((100 * x).astype(jnp.int8), (x > 0).astype(jnp.uint16), x.astype(jnp.bfloat16) * 3),
    "moves": lambda x: (x[::-1, :, 1::2], jnp.concatenate([x, x.transpose(0, 1, 2)], 2), jnp.tile(x, (2, 1, 1))),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_interpreter_and_numpy_agree(name):
    """Two references that owe nothing to each other: one in the package, one in these tests."""
    program = from_jax(OPERATIONS[name], struct(3, 4, 5))
    body = operations_of(program)
    reference = Reference(program.text, body, XlaValues())
    for given in (np.linspace(-2, 3, 60, dtype=np.float32).reshape(3, 4, 5), np.full((3, 4, 5), np.nan, np.float32)):
        found = reference.results([given])
        assert reference.kind == "StableHLO's interpreter"
        for a, b in zip(found, evaluate(body, [given]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7)


def test_what_the_interpreter_is_not_asked():
    """Loops, many steps, and arrays it does not take; what it dies of is left to XLA from then on."""
    counted = from_jax(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * 2, x), struct(4))
    large = from_jax(lambda x: x @ x, struct(128, 128))
    division = from_jax(jax.lax.div, struct(2, dtype=jnp.int32), struct(2, dtype=jnp.int32))
    for program in (counted, large, from_jax(lambda x: x * 1j, struct(4))):
        assert verify(program, program, eager=False, inputs=["normal"]).reference == "XLA in float64"
    arrays = [np.array([7, -7], np.int32), np.array([2, 0], np.int32)]
    assert verify(division, division, arrays, eager=False).reference == "XLA in float64"


def by_xla(text, *arrays):
    program = read_stablehlo(text)
    proof = under_jit(program, program, arrays)
    assert proof.reference == "StableHLO's interpreter"
    return proof


@pytest.mark.parametrize("kind", ["i8", "ui8", "i16", "i32", "ui32", "i64", "ui64"])
def test_the_reference_saturates_as_xla_does(kind):
    x = np.array([np.nan, np.inf, -np.inf, 1e20, -1e20, 2.7, -2.7, 300, -1], np.float32)
    line = f"%y = stablehlo.convert %x : (tensor<9xf32>) -> tensor<9x{kind}>"
    assert by_xla(module({"x": "tensor<9xf32>"}, line, {"y": f"tensor<9x{kind}>"}), x).error_before == 0


def corners(name):
    a, b = np.array(np.meshgrid([-(2**31), -3, -2, -1, 0, 1, 2, 3], [-3, -2, -1, 0, 1, 2, 3]), np.int32).reshape(2, -1)
    line = f"%y = stablehlo.{name} %a, %b : tensor<56xi32>"
    text = module({"a": "tensor<56xi32>", "b": "tensor<56xi32>"}, line, {"y": "tensor<56xi32>"})
    assert np.array_equal(executed(text, a, b)[0], values(text, a, b)[0])


@pytest.mark.parametrize("name", ["remainder", "divide"])
def test_the_reference_knows_the_corners_of_integers(name):
    """Remainders and quotients by zero, the lowest integer by -1."""
    corners(name)


def test_integers_to_any_power():
    """A negative exponent gives 0, except of 1 and -1."""
    pairs = [(a, b) for a in (-(2**31), -3, -2, -1, 0, 1, 2, 3) for b in (-3, -2, -1, 0, 1, 2, 3)]
    wanted = [a**b if b >= 0 else {1: 1, -1: -1 if b % 2 else 1}.get(a, 0) for a, b in pairs]
    given = np.array(pairs, np.int32).T
    line = "%y = stablehlo.power %a, %b : tensor<56xi32>"
    text = module({"a": "tensor<56xi32>", "b": "tensor<56xi32>"}, line, {"y": "tensor<56xi32>"})
    wrapped = [(each + 2**31) % 2**32 - 2**31 for each in wanted]
    assert values(text, *given)[0].tolist() == wrapped


@pytest.mark.nightly
def test_the_reference_knows_the_corners_of_powers(root):
    """Negative exponents, as XLA takes them for users: unoptimised it takes other powers of the lowest integer.

    By day: the same powers without XLA, above.
    """
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""}
    code = "from tests.hlo.test_verify import corners; corners('power')"
    subprocess.run([sys.executable, "-c", code], env=environment, cwd=root, check=True, timeout=600)


def test_the_reference_reads_complex_constants_with_infinities():
    line = "%y = stablehlo.constant dense<(0x7F800000,-1.5)> : tensor<2xcomplex<f32>>"
    assert values(module({}, line, {"y": "tensor<2xcomplex<f32>>"}))[0].tolist() == [complex(np.inf, -1.5)] * 2


def test_what_numpy_cannot_do_is_unsupported():
    """An operation on no elements that numpy's vectorize refuses."""
    line = "%y = chlo.erf %x : tensor<0xf32> -> tensor<0xf32>"
    with pytest.raises(UnsupportedError, match=r"cannot evaluate this chlo\.erf"):
        values(module({"x": "tensor<0xf32>"}, line, {"y": "tensor<0xf32>"}), np.zeros(0))


@pytest.mark.parametrize(
    "dtype",
    [jnp.float8_e4m3fn, jnp.bfloat16]
    + [pytest.param(each, marks=pytest.mark.nightly) for each in (jnp.float8_e5m2, jnp.float8_e4m3b11fnuz)],
)
def test_narrow_floats_do_not_excuse_everything(dtype):
    """By day: one type of eight bits, one of sixteen."""
    x = struct(8, 16, dtype=dtype)
    one, two, same = (from_jax(lambda x, c=c: x + dtype(c), x) for c in (1, 2, 1))
    assert verify(one, same, eager=False).ok
    assert not verify(one, two, eager=False).ok


def test_recursion_and_what_xla_cannot_compile_are_unsupported():
    kind = "tensor<8xf32>"
    call = "func.func private @{}(%x: {k}) -> {k} {{\n%y = func.call @{}(%x) : ({k}) -> {k}\nreturn %y : {k}\n}}\n"
    main = call.format("main", "a", k=kind).replace("private", "public")
    circle = read_stablehlo("module {\n" + call.format("a", "b", k=kind) + call.format("b", "a", k=kind) + main + "}")
    with pytest.raises(UnsupportedError, match="calls itself"):
        verify(circle, circle)
    foreign = read_stablehlo(
        module({"x": kind}, f"%y = stablehlo.custom_call @none(%x) : ({kind}) -> {kind}", {"y": kind})
    )
    with pytest.raises(UnsupportedError, match="custom call to 'none'"):
        verify(foreign, foreign)


@pytest.mark.parametrize("order", [(0, 1), pytest.param((1, 0), marks=pytest.mark.nightly)])
def test_a_small_column_beside_a_large_one_hides_nothing(order):
    """Wrong by half in a column a million times smaller: below the rounding of the largest element.

    By day: columns as they are; rows (turned) at night.
    """
    x, given = struct(256, 2), np.random.default_rng(0).uniform(1, 2, (256, 2)).astype(np.float32)
    given[:, 1] *= 1e-6
    original = from_jax(lambda x: (x * 3).transpose(order), x)
    wrong = from_jax(lambda x: jnp.where(x < 1e-3, x * 1.5, x * 3).transpose(order), x)
    proof = under_jit(original, wrong, [given])
    assert not proof.ok
    assert f"of 256 elements with index 1 in dim {order.index(1)} that the original has right, 256 are" in proof.reason
    assert f"at {(0, 1) if order == (0, 1) else (1, 0)} original" in proof.reason
    assert under_jit(original, from_jax(lambda x: (x + x + x).transpose(order), x), [given]).ok


def test_small_sums_that_cancel_may_be_wrong_in_either_program():
    """The rows' sums cancel to a millionth, beside a column that does not: rounding, whichever program has it."""
    x, rng = struct(512, 2, 64), np.random.default_rng(1)
    half = rng.normal(size=(512, 1, 64)).astype(np.float32)
    given = np.concatenate([half, -half + 1e-6 * rng.normal(size=half.shape).astype(np.float32)], 1)

    def beside(sums):
        return lambda x: jnp.stack([sums(x), jnp.abs(x).sum((1, 2))], 1)

    one, other = (from_jax(beside(f), x) for f in (lambda x: x.sum((1, 2)), lambda x: x.sum(2).sum(1)))
    assert under_jit(one, other, [given]).ok
    assert under_jit(other, one, [given]).ok


def test_the_place_of_a_wrong_element_is_told_with_all_its_digits():
    x, given = struct(2, 3, dtype=jnp.int32), [np.full((2, 3), 123456789, np.int32)]
    proof = under_jit(from_jax(lambda x: x, x), from_jax(lambda x: x.at[1, 2].add(1), x), given)
    assert "1 of 1 elements that differ are wrong: at (1, 2) original 123456789, result 123456790" in proof.reason


def test_an_output_that_is_zero_but_for_rounding_is_held_to_rounding():
    """Deviations from the mean sum up to zero; whichever way they are summed, rounding is all there is."""
    x, given = struct(3, 4096), np.random.default_rng(2).normal(1, 1, (3, 4096)).astype(np.float32)

    def deviations(x, sums):
        return sums(x - x.mean(1, keepdims=True))

    one = from_jax(partial(deviations, sums=lambda d: d.sum(1)), x)
    other = from_jax(partial(deviations, sums=lambda d: d.reshape(3, 64, 64).sum(1).sum(1) * 1.5), x)
    proof = under_jit(one, other, [given])
    assert proof.ok, proof.reason
    assert proof.remarks == ("output 0 is zero but for rounding, in both programs",)
    off = from_jax(partial(deviations, sums=lambda d: d.sum(1) + 0.1), x)
    assert not under_jit(one, off, [given]).ok
    assert not under_jit(off, one, [given]).ok


def test_an_output_that_jumps_is_not_zero_but_for_rounding():
    """One unit decides between 0 and 1 here, so a nudge changes all of it; that excuses no other value."""
    x, given = struct(2), np.float32([1, 1])
    original = from_jax(lambda x: jnp.where(x == 1, 1.0, 0.0), x)
    assert not under_jit(original, from_jax(lambda x: jnp.where(x == 1, 2.0, 0.0), x), [given]).ok


def test_no_trial_begins_that_would_end_too_late_and_what_is_left_out_is_said():
    x = struct(8, 8)
    program = from_jax(jnp.tanh, x)
    proof = verify(program, program, within=0)
    assert [(trial.inputs, trial.run) for trial in proof.trials] == [("normal", "jit")]
    assert "13 of 14 trials were left out" in proof.remarks[-1]


def test_own_functions_run_apart_unless_they_call_what_only_this_process_has():
    x = struct(8, 8)
    plain = from_jax(jnp.tanh, x)
    assert under_jit(plain, plain, inputs=["normal"], apart=True).ok
    called = from_jax(lambda x: jax.pure_callback(np.tanh, x, x), x)
    with pytest.raises(UnsupportedError, match="Python"):
        under_jit(called, called, inputs=["normal"], apart=True)


MESH = """  sdy.mesh @empty = <[]>
  func.func @main(%x: TYPE) -> TYPE {
    %0 = sdy.sharding_constraint %x <@empty, [{}]> : TYPE
"""
LENT = """  func.func private @made(%x: TYPE) -> TYPE {
    %0 = stablehlo.multiply %x, %x : TYPE
    return %0 : TYPE
  }
  func.func @main(%x: TYPE) -> TYPE {
    %0 = stablehlo.composite "mine.square" %x {decomposition = @made} : (TYPE) -> TYPE
"""


@pytest.mark.parametrize("head", [MESH, LENT], ids=["a mesh", "what it is made of"])
def test_a_program_whose_operations_name_what_stands_beside_them_is_compared_op_by_op(head):
    text = f"module {{\n{head}    %1 = stablehlo.tanh %0 : TYPE\n    return %1 : TYPE\n  }}\n}}\n"
    program = read_stablehlo(text.replace("TYPE", "tensor<4xf32>"))
    found = verify(program, program)
    assert found.bit_equal
    assert {trial.run for trial in found.trials} == {"jit", "op by op"}

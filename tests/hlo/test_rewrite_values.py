"""Every legality condition of the rewrites, both ways and on values: rewritten where legal, left alone where not."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright
from tests.conftest import tries
from tests.hlo.stablehlo_values import big_reshapes, module, reduce_line, rewritten, tensor, values
from tests.hlo.test_dims import reshapes

NUMPY = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def reduction(source, target, dims, monoid, dtype):
    kept = tuple(n for d, n in enumerate(target) if d not in dims)
    body = f"%y = stablehlo.reshape %x : ({tensor(source, dtype)}) -> {tensor(target, dtype)}\n"
    body += reduce_line("z", "y", tensor(target, dtype), "init", monoid, dims, tensor(kept, dtype))
    arguments = {"x": tensor(source, dtype), "init": tensor((), dtype)}
    return module(arguments, body, {"z": tensor(kept, dtype)})


@settings(max_examples=tries(30))
@given(reshapes(), st.data())
def test_reductions_of_reshapes(pair, data):
    """Any grouping, axes, monoid and element type; the init is a run-time value other than the identity."""
    source, target = pair
    monoid = data.draw(st.sampled_from(sorted(NUMPY)))
    logical = monoid in ("and", "or", "xor")
    dtype = data.draw(st.sampled_from(["i32", "i8", "ui8", "i1"] if logical else ["f32", "i32", "ui8", "i8"]))
    dims = data.draw(st.lists(st.sampled_from(range(len(target))), unique=True)) if target else []
    text = reduction(source, target, dims, monoid, dtype)
    kind = {"f32": np.float64, "i32": np.int32, "i8": np.int8, "ui8": np.uint8, "i1": bool}[dtype]
    x = (
        np.random.default_rng(7)
        .integers(0 if dtype in ("ui8", "i1") else -3, 2 if dtype == "i1" else 4, source)
        .astype(kind)
    )
    init = np.asarray(1 if dtype == "i1" else 3).astype(kind)
    expected = NUMPY[monoid](init, NUMPY[monoid].reduce(
        x.reshape(target), axis=tuple(dims), dtype=kind, initial=init if monoid in ("maximum", "minimum") else None
    ))  # fmt: skip
    found = rewritten(text)
    np.testing.assert_array_equal(values(found, x, init)[0], expected)
    np.testing.assert_array_equal(values(text, x, init)[0], expected)


@settings(max_examples=tries(30))
@given(reshapes(), st.data())
def test_trees_over_reshaped_and_broadcast_leaves(pair, data):
    """reshape(f(reshape(x), broadcast(y), constants)): unsorted and expanding broadcasts, comparisons, selects."""
    source, target = pair
    dims = data.draw(st.lists(st.sampled_from(range(len(target))), unique=True)) if target else []
    operand = tuple(data.draw(st.sampled_from([1, target[d]])) for d in dims)
    big, flat = tensor(target), tensor(source)
    bits = np.random.default_rng(8).integers(0, 2, target)
    body = f"""
    %a = stablehlo.reshape %x : ({flat}) -> {big}
    %mask = stablehlo.constant dense<{str(bits.astype(bool).tolist()).lower()}> : {tensor(target, "i1")}
    %b = stablehlo.broadcast_in_dim %y, dims = {dims} : ({tensor(operand)}) -> {big}
    %k = stablehlo.constant dense<0.5> : {big}
    %bk = stablehlo.multiply %b, %k : {big}
    %g = stablehlo.compare GT, %a, %bk : ({big}, {big}) -> {tensor(target, "i1")}
    %p = stablehlo.xor %g, %mask : {tensor(target, "i1")}
    %m = stablehlo.multiply %a, %b : {big}
    %s = stablehlo.select %p, %m, %a : {tensor(target, "i1")}, {big}
    %r = stablehlo.reshape %s : ({big}) -> {flat}"""
    text = module({"x": flat, "y": tensor(operand)}, body, {"r": flat})
    x, y = np.random.default_rng(7).normal(size=source), np.random.default_rng(7).normal(size=operand)
    found = rewritten(text)
    np.testing.assert_array_equal(values(found, x, y)[0], values(text, x, y)[0])
    if sum(n != 1 for n in operand) < sum(n != 1 for n in target) and dims == sorted(dims):
        assert big_reshapes(found, math.prod(source)) <= big_reshapes(text, math.prod(source))


def group_sum(dtype="f32", monoid="add", init="init"):
    return reduction((6, 8, 12), (6, 8, 3, 4), (1, 3), monoid, dtype)


@pytest.mark.parametrize(
    ("monoid", "dtype", "when_exact"),
    [
        ("add", "f32", False), ("multiply", "f32", False), ("maximum", "f32", True), ("minimum", "f64", True),
        ("add", "i32", True), ("multiply", "ui8", True), ("xor", "i8", True), ("add", "complex<f32>", False),
    ],
)  # fmt: skip
def test_reassociation_can_be_forbidden(monoid, dtype, when_exact):
    text = group_sum(dtype, monoid)
    free = rewritten(text, "reduce-of-reshape{allow_products=true},dead-code")
    bound = rewritten(text, "reduce-of-reshape{allow_reassociation=false},dead-code")
    assert big_reshapes(free, 6 * 8 * 12) == 0
    assert (big_reshapes(bound, 6 * 8 * 12) == 0) == when_exact


@pytest.mark.parametrize(("dtype", "stages"), [("f64", "f64"), ("f32", "f32"), ("bf16", "f32"), ("f16", "f32")])
@pytest.mark.parametrize("monoid", ["add", "multiply"])
def test_only_narrow_floats_are_accumulated_in_f32(monoid, dtype, stages):
    text = rewritten(group_sum(dtype, monoid), "reduce-of-reshape{allow_products=true},dead-code")
    accumulated = re.findall(rf"applies stablehlo.{monoid} .*-> tensor<[\dx]*x(\w+)>", text)
    assert accumulated == [stages, stages]
    assert ("stablehlo.convert" in text) == (stages != dtype)


def test_sums_and_products_of_doubles_keep_their_accuracy():
    """Against exact sums and products (rationals)."""
    x = np.random.default_rng(7).normal(size=(6, 8, 12)) + 2
    with jax.enable_x64(True):
        for fold, exact in ((jnp.sum, sum), (jnp.prod, math.prod)):
            fast = tilewright.optimize(
                lambda x, f=fold: f(x.reshape(6, 8, 3, 4), (1, 3)), target="vector8x128", allow_products=True
            )
            groups = x.reshape(6, 8, 3, 4).transpose(0, 2, 1, 3).reshape(6, 3, 32)
            wanted = [[float(exact(map(Fraction, group))) for group in row] for row in groups.tolist()]
            assert fast.fallback(x) == ""
            np.testing.assert_allclose(fast(x), wanted, rtol=1e-14)


def test_the_neighbour_of_an_integer_identity_is_no_identity():
    """In floating point 2**63 - 2 and 2**63 - 1 are the same number."""
    for init, last in ((2**63 - 1, 2**63 - 1), (2**63 - 2, 2**63 - 2)):
        body = f"%init = stablehlo.constant dense<{init}> : tensor<i64>\n" + reduce_line(
            "z", "x", "tensor<1x3xi64>", "init", "minimum", [0], "tensor<3xi64>"
        )
        text = module({"x": "tensor<1x3xi64>"}, body, {"z": "tensor<3xi64>"})
        given = np.array([[2**63 - 1, 0, 2**63 - 1]])
        assert values(rewritten(text), given)[0].tolist() == [last, 0, last]


def test_multiplication_of_complex_numbers_has_no_identity_to_start_from():
    """Infinity times 1 + 0i is not a number, so the first stage has nothing to start from."""
    passes = "reduce-of-reshape{allow_products=true},dead-code"
    assert big_reshapes(rewritten(group_sum("complex<f32>", "multiply"), passes), 6 * 8 * 12) == 1


def test_negative_zero_survives():
    text = reduction((2, 4), (2, 2, 2), (0, 1), "add", "f32")
    x = np.full((2, 4), -0.0)
    assert np.signbit(values(rewritten(text), x, np.asarray(-0.0))[0]).all()


LOOK_ALIKES = {
    "subtract": "%c = stablehlo.subtract %a, %b : tensor<f32>",
    "twice the second": "%c = stablehlo.add %b, %b : tensor<f32>",
    "sum of absolutes": "%d = stablehlo.abs %a : tensor<f32>\n%e = stablehlo.abs %b : tensor<f32>\n"
    "%c = stablehlo.add %d, %e : tensor<f32>",
}


@pytest.mark.parametrize("body", LOOK_ALIKES.values(), ids=LOOK_ALIKES.keys())
def test_bodies_that_only_look_like_monoids_are_left_alone(body):
    text = module(
        {"x": "tensor<6x8xf32>"},
        f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
        %z = stablehlo.reduce(%y init: %zero) across dimensions = [0, 1] :
            (tensor<6x4x2xf32>, tensor<f32>) -> tensor<2xf32> reducer(%a: tensor<f32>, %b: tensor<f32>) {{
          {body}
          stablehlo.return %c : tensor<f32>
        }}""",
        {"z": "tensor<2xf32>"},
    )
    assert big_reshapes(rewritten(text), 48) == 1


@pytest.mark.parametrize(("operand", "wide"), [("bf16", "f32"), ("i8", "i32")])
def test_a_reduction_that_accumulates_in_another_type_is_left_alone(operand, wide):
    """StableHLO lets the body promote its operand; a first stage in the operand's type would overflow or round."""
    text = module(
        {"x": f"tensor<6x8x{operand}>"},
        f"""%zero = stablehlo.constant dense<0{".0" if wide == "f32" else ""}> : tensor<{wide}>
        %y = stablehlo.reshape %x : (tensor<6x8x{operand}>) -> tensor<6x4x2x{operand}>
        %z = stablehlo.reduce(%y init: %zero) across dimensions = [0, 1] :
            (tensor<6x4x2x{operand}>, tensor<{wide}>) -> tensor<2x{wide}>
            reducer(%a: tensor<{wide}>, %b: tensor<{wide}>) {{
          %c = stablehlo.add %a, %b : tensor<{wide}>
          stablehlo.return %c : tensor<{wide}>
        }}""",
        {"z": f"tensor<2x{wide}>"},
    )
    assert rewritten(text).count("stablehlo.reduce") == 1
    assert big_reshapes(rewritten(text), 48) == 1


def test_a_swapped_monoid_body_is_a_monoid():
    text = module(
        {"x": "tensor<6x8xf32>"},
        """%zero = stablehlo.constant dense<0.0> : tensor<f32>
        %y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
        %z = stablehlo.reduce(%y init: %zero) across dimensions = [0, 1] :
            (tensor<6x4x2xf32>, tensor<f32>) -> tensor<2xf32> reducer(%a: tensor<f32>, %b: tensor<f32>) {
          %c = stablehlo.add %b, %a : tensor<f32>
          stablehlo.return %c : tensor<f32>
        }""",
        {"z": "tensor<2xf32>"},
    )
    assert big_reshapes(rewritten(text), 48) == 0


def test_reductions_of_several_arrays_are_left_alone():
    """An argmax reduces values and indices together."""
    text = module(
        {"x": "tensor<6x8xf32>", "i": "tensor<6x4x2xi32>"},
        """%low = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
        %z:2 = stablehlo.reduce(%y init: %low), (%i init: %zero) across dimensions = [0, 1] :
            (tensor<6x4x2xf32>, tensor<6x4x2xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)
            reducer(%a: tensor<f32>, %c: tensor<f32>) (%b: tensor<i32>, %d: tensor<i32>) {
          %m = stablehlo.maximum %a, %c : tensor<f32>
          %n = stablehlo.maximum %b, %d : tensor<i32>
          stablehlo.return %m, %n : tensor<f32>, tensor<i32>
        }""",
        {"z#0": "tensor<2xf32>", "z#1": "tensor<2xi32>"},
    )
    assert big_reshapes(rewritten(text), 48) == 1


def test_a_transpose_between_reshape_and_reduction_is_composed():
    text = module(
        {"x": "tensor<6x8x12xf32>", "init": "tensor<f32>"},
        """%y = stablehlo.reshape %x : (tensor<6x8x12xf32>) -> tensor<6x8x3x4xf32>
        %t = stablehlo.transpose %y, dims = [2, 1, 3, 0] : (tensor<6x8x3x4xf32>) -> tensor<3x8x4x6xf32>
        %z = stablehlo.reduce(%t init: %init) applies stablehlo.add across dimensions = [2, 1] :
            (tensor<3x8x4x6xf32>, tensor<f32>) -> tensor<3x6xf32>""",
        {"z": "tensor<3x6xf32>"},
    )
    x = np.random.default_rng(7).normal(size=(6, 8, 12))
    found = rewritten(text)
    assert big_reshapes(found, 6 * 8 * 12) == 0
    np.testing.assert_allclose(values(found, x, 2.5)[0], values(text, x, 2.5)[0], rtol=1e-12)


@pytest.mark.parametrize(
    "line",
    [
        "%s = stablehlo.reverse %y, dims = [2] : tensor<6x4x2xf32>",
        "%s = stablehlo.optimization_barrier %y : tensor<6x4x2xf32>",
        '%s = stablehlo.custom_call @Sharding(%y) : (tensor<6x4x2xf32>) -> tensor<6x4x2xf32>',
        '%s = stablehlo.negate %y {mhlo.sharding = "{replicated}"} : tensor<6x4x2xf32>',
    ],
    ids=["reverse", "barrier", "sharding constraint", "sharded operation"],
)  # fmt: skip
def test_what_is_not_elementwise_stops_a_reshape(line):
    text = module(
        {"x": "tensor<6x8xf32>"},
        f"""%y = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
        {line}
        %z = stablehlo.reshape %s : (tensor<6x4x2xf32>) -> tensor<6x8xf32>""",
        {"z": "tensor<6x8xf32>"},
    )
    assert big_reshapes(rewritten(text), 48) == 2


def test_empty_and_dynamic_shapes_are_left_alone():
    empty = reduction((0, 8), (0, 4, 2), (0, 1), "add", "f32")
    assert big_reshapes(rewritten(empty), 0) == 1
    assert values(rewritten(empty), np.zeros((0, 8)), 3.0)[0].tolist() == [3.0, 3.0]
    dynamic = module(
        {"x": "tensor<?x8xf32>", "init": "tensor<f32>"},
        reduce_line("z", "x", "tensor<?x8xf32>", "init", "add", [0], "tensor<8xf32>"),
        {"z": "tensor<8xf32>"},
    )
    assert "tensor<?x8xf32>" in rewritten(dynamic)


def test_loop_bodies_are_rewritten_too():
    text = module(
        {"x": "tensor<6x8xi32>", "n": "tensor<i32>"},
        """%zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %start = stablehlo.constant dense<0> : tensor<2xi32>
        %r:2 = stablehlo.while(%i = %zero, %acc = %start) : tensor<i32>, tensor<2xi32>
         cond {
          %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        } do {
          %y = stablehlo.reshape %x : (tensor<6x8xi32>) -> tensor<6x4x2xi32>
          %z = stablehlo.reduce(%y init: %zero) applies stablehlo.add across dimensions = [0, 1] :
            (tensor<6x4x2xi32>, tensor<i32>) -> tensor<2xi32>
          %a = stablehlo.add %acc, %z : tensor<2xi32>
          %j = stablehlo.add %i, %one : tensor<i32>
          stablehlo.return %j, %a : tensor<i32>, tensor<2xi32>
        }""",
        {"r#1": "tensor<2xi32>"},
    )
    assert big_reshapes(text, 48) == 1
    assert big_reshapes(rewritten(text), 48) == 0


def test_every_operation_of_a_tree_keeps_its_own_attributes():
    """The inner comparison is re-expressed together with the outer one, which points the other way."""
    text = module(
        {"x": "tensor<6x8xf32>", "u": "tensor<6xf32>", "v": "tensor<2xf32>"},
        """%a = stablehlo.reshape %x : (tensor<6x8xf32>) -> tensor<6x4x2xf32>
        %b = stablehlo.broadcast_in_dim %u, dims = [0] : (tensor<6xf32>) -> tensor<6x4x2xf32>
        %c = stablehlo.broadcast_in_dim %v, dims = [2] : (tensor<2xf32>) -> tensor<6x4x2xf32>
        %p = stablehlo.compare LT, %b, %c : (tensor<6x4x2xf32>, tensor<6x4x2xf32>) -> tensor<6x4x2xi1>
        %q = stablehlo.convert %p : (tensor<6x4x2xi1>) -> tensor<6x4x2xf32>
        %s = stablehlo.compare GE, %a, %q : (tensor<6x4x2xf32>, tensor<6x4x2xf32>) -> tensor<6x4x2xi1>
        %r = stablehlo.reshape %s : (tensor<6x4x2xi1>) -> tensor<6x8xi1>""",
        {"r": "tensor<6x8xi1>"},
    )
    rng = np.random.default_rng(7)
    given = rng.normal(size=(6, 8)), rng.normal(size=6), rng.normal(size=2)
    found = rewritten(text)
    assert big_reshapes(found, 48) == 0
    np.testing.assert_array_equal(values(found, *given)[0], values(text, *given)[0])

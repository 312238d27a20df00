"""When a reduction may pass a reshape or a transpose: every condition both ways, on values that numpy computes."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tries
from tests.hlo.stablehlo_values import (
    big_reshapes,
    executed,
    executed_together,
    module,
    reduce_line,
    rewritten,
    tensor,
    values,
)
from tests.hlo.test_dims import reshapes
from tilewright.errors import UnsupportedError
from tilewright.hlo import from_jax, optimize, verify

ALL = "inline,canonicalize,reduce-of-transpose,reduce-of-reshape,reduces-of-reshapes,reshape-of-elementwise,dead-code"
EXACT = (
    "inline,canonicalize,reduce-of-transpose{allow_reassociation=false},reduce-of-reshape{allow_reassociation=false},"
    "reshape-of-elementwise,"
    "reduces-of-reshapes{allow_reassociation=false},dead-code"
)
PRODUCTS = ALL.replace("reduce-of-reshape,", "reduce-of-reshape{allow_products=true},")
RNG = np.random.default_rng(11)


def check(program, arrays, expected, moves, passes=ALL, rtol=0.0):
    """The rewritten program keeps so many reshapes and transposes of a whole input, and gives the expected values.

    The values are numpy's in float64 where it knows the operations: XLA may count an init other than the identity any
    number of times (its simplifier does), so it cannot tell whether a rewrite counts it once.
    """
    text = program if isinstance(program, str) else from_jax(program, *arrays).text
    found = rewritten(text, passes)
    assert big_reshapes(found, max(a.size for a in arrays) if arrays[0].size else 0) == moves
    try:
        results = values(found, *arrays)
    except UnsupportedError:
        results = executed(found, *arrays)
    for got, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(got.astype(wanted.dtype), wanted, rtol=rtol, atol=rtol)


def integers(*shape, dtype=np.int32):
    return RNG.integers(-9, 9, shape).astype(dtype)


RUNS = [  # source, target, reduced dims, whether a run is reduced whole
    ((4, 4, 4), (4, 4, 2, 2), (0,), True),  # ambiguous by size alone: the last 4 splits
    ((4, 4, 4), (4, 4, 2, 2), (1, 3), True),
    ((4, 4, 4), (4, 4, 2, 2), (2,), False),
    ((4, 4, 4), (4, 4, 2, 2), (3,), False),
    ((4, 4, 4), (2, 2, 4, 4), (3,), True),
    ((4, 4, 4), (2, 2, 4, 4), (1,), False),
    ((10, 24), (5, 48), (0, 1), True),  # dims that straddle are one run
    ((10, 24), (5, 48), (1,), True),  # 48 is 2 * 24
    ((10, 24), (5, 48), (0,), False),
    ((6, 4, 5), (2, 60), (1,), True),  # channels and pixels -> groups and the rest
    ((6, 4, 5), (2, 60), (0,), False),
    ((3, 6, 4, 5), (6, 60), (1,), True),
    ((4, 6, 5), (8, 15), (1,), True),
    ((4, 6, 5), (8, 15), (0,), True),  # 8 is 4 * 2
    ((8, 9, 5), (6, 60), (0,), False),
    ((7, 10, 24), (7, 5, 48), (0, 2), True),
    ((7, 10, 24), (7, 5, 48), (1,), False),
    ((2, 6), (6, 2), (0,), True),  # x.sum(0).reshape(3, 2).sum(0)
    ((3, 4, 20), (48, 5), (0,), True),  # the front of a run
    ((3, 4, 20), (48, 5), (1,), False),
    ((4, 3, 10), (2, 12, 5), (1,), True),  # the middle of one
    ((2, 6), (6, 2), (1,), False),
    ((8, 1, 6), (2, 4, 1, 6), (3,), True),  # unit dims belong to no run
    ((8, 1, 6), (2, 4, 1, 6), (2, 0), False),
    ((8, 6), (8, 2, 1, 3), (2,), False),
    ((8, 6), (8, 2, 1, 3), (2, 0), True),
    ((6, 8, 12), (6, 8, 3, 4), (3, 1), True),  # reduced dims listed unsorted
    ((6, 8, 12), (6, 8, 3, 4), (3, 2), True),
    ((0, 8), (0, 4, 2), (0,), False),  # a dim of size 0 makes every run ambiguous
    ((3, 8), (3, 4, 2), (0,), True),
]


def reshaped_and_summed(source, target, dims):
    """A sum of a reshape, from an init that is known only at run time."""
    kept = tuple(n for d, n in enumerate(target) if d not in dims)
    body = f"%y = stablehlo.reshape %x : ({tensor(source, 'i32')}) -> {tensor(target, 'i32')}\n"
    body += reduce_line("z", "y", tensor(target, "i32"), "init", "add", dims, tensor(kept, "i32"))
    return module({"x": tensor(source, "i32"), "init": tensor((), "i32")}, body, {"z": tensor(kept, "i32")})


@pytest.mark.parametrize(("source", "target", "dims", "legal"), RUNS)
def test_dims_are_matched_by_prefix_products(source, target, dims, legal):
    """The init is a run-time 3, which must count once."""
    x = integers(*source)
    text = reshaped_and_summed(source, target, dims)
    check(text, [x, np.int32(3)], [x.reshape(target).sum(dims) + 3], 0 if legal else 1)


@pytest.mark.parametrize(
    ("source", "target", "dims", "stages"),
    [
        ((4, 6, 3), (2, 2, 3, 2, 3), (1, 3), 2),  # a pooling by 2 x 2
        ((4, 6, 3), (2, 2, 3, 2, 3), (3, 0), 2),
        ((4, 6, 8), (2, 2, 3, 2, 4, 2), (1, 3, 5), 3),
        ((4, 1, 6), (2, 2, 1, 3, 1, 2), (1, 5, 2), 2),  # unit dims belong to no split
        ((4, 5, 6), (2, 2, 5, 3, 2), (1, 2, 4), 2),  # what is not split is summed with the last
        ((4, 6, 3), (2, 2, 3, 2, 3), (1,), 1),
        ((4, 6), (2, 12), (1,), 1),  # dims that straddle are no split
    ],
)
def test_dims_that_are_split_are_summed_one_by_one(source, target, dims, stages):
    """The init is a run-time 3, which must count once."""
    x = integers(*source)
    text, passes = reshaped_and_summed(source, target, dims), "reduce-of-splits,dead-code"
    assert rewritten(text, passes).count("stablehlo.reduce(") == stages
    check(text, [x, np.int32(3)], [x.reshape(target).sum(dims) + 3], 1, passes)


def folded(source, target, dims, body, dtype="f32", init="0.0"):
    """A reduction whose body is given in lines that make %c of %a and %b."""
    kept, element = tuple(n for d, n in enumerate(target) if d not in dims), tensor((), dtype)
    lines = f"""%init = stablehlo.constant dense<{init}> : {element}
    %y = stablehlo.reshape %x : ({tensor(source, dtype)}) -> {tensor(target, dtype)}
    %z = stablehlo.reduce(%y init: %init) across dimensions = {list(dims)} :
        ({tensor(target, dtype)}, {element}) -> {tensor(kept, dtype)} reducer(%a: {element}, %b: {element}) {{
      {body}
      stablehlo.return %c : {element}
    }}"""
    return module({"x": tensor(source, dtype)}, lines, {"z": tensor(kept, dtype)})


@pytest.mark.parametrize(
    ("body", "legal"),
    [
        ("%c = stablehlo.add %a, %b : tensor<i32>", True),
        ("%c = stablehlo.add %b, %a : tensor<i32>", True),
        ("%c = stablehlo.multiply %a, %b : tensor<i32>", True),
        ("%c = stablehlo.maximum %a, %b : tensor<i32>", True),
        ("%c = stablehlo.minimum %b, %a : tensor<i32>", True),
        ("%c = stablehlo.and %a, %b : tensor<i32>", True),
        ("%c = stablehlo.or %a, %b : tensor<i32>", True),
        ("%c = stablehlo.xor %a, %b : tensor<i32>", True),
        ("%c = stablehlo.subtract %a, %b : tensor<i32>", False),
        ("%c = stablehlo.add %b, %b : tensor<i32>", False),
        ("%c = stablehlo.add %a, %a : tensor<i32>", False),
        ("%d = stablehlo.abs %a : tensor<i32>\n%e = stablehlo.abs %b : tensor<i32>\n"
         "%c = stablehlo.add %d, %e : tensor<i32>", False),
        ("%d = stablehlo.add %a, %b : tensor<i32>\n%c = stablehlo.negate %d : tensor<i32>", False),
        ("%k = stablehlo.constant dense<1> : tensor<i32>\n%c = stablehlo.add %a, %k : tensor<i32>", False),
    ],
)  # fmt: skip
def test_the_body_is_exactly_one_monoid_operation(body, legal):
    """What is left alone keeps its text; what is rewritten gives what XLA makes of the original."""
    init = {"multiply": 1, "maximum": -(2**31), "minimum": 2**31 - 1, "and": -1}
    start = next((value for name, value in init.items() if name in body), 0)
    text = folded((6, 8), (6, 4, 2), (0, 1), body, "i32", start)
    x = integers(6, 8)
    check(text, [x], executed(text, x), 0 if legal else 1)
    if legal:
        name = next(n for n in ("add", "multiply", "maximum", "minimum", "and", "or", "xor") if f".{n} " in body)
        ufunc = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}.get(name) or getattr(np, name)
        check(text, [x], [ufunc.reduce(x.reshape(6, 4, 2), axis=(0, 1), dtype=np.int32)], 0)


TYPES = [  # fold, element type, exact without reassociation
    (jnp.sum, "int32", True), (jnp.prod, "uint8", True), (jnp.max, "float32", True), (jnp.min, "bfloat16", True),
    (jnp.any, "bool", True), (jnp.all, "bool", True), (jnp.sum, "float32", False), (jnp.prod, "float32", False),
    (jnp.sum, "bfloat16", False), (jnp.sum, "complex64", False), (jnp.prod, "complex64", False),
]  # fmt: skip


@pytest.mark.parametrize(("fold", "dtype", "exact"), TYPES, ids=lambda v: getattr(v, "__name__", str(v)))
def test_floating_sums_and_products_are_taken_apart_only_if_allowed(fold, dtype, exact):
    x = jnp.asarray(RNG.integers(0 if dtype in ("uint8", "bool") else -2, 3, (6, 8, 12))).astype(dtype)
    if dtype.startswith("complex"):
        x = x + 1j * x[::-1]
    wide = np.asarray(x).astype({"b": bool, "c": complex}.get(np.asarray(x).dtype.kind, np.float64))
    wide = np.asarray(x) if dtype in ("int32", "uint8") else wide
    expected = np.asarray(getattr(np, fold.__name__)(wide.reshape(6, 8, 3, 4), axis=(1, 3)))
    if dtype == "uint8":
        expected = expected.astype(np.uint8)  # products of bytes wrap around, as XLA's do

    def grouped(x):
        return fold(x.reshape(6, 8, 3, 4), (1, 3)).astype(x.dtype)

    asked_for = fold is jnp.prod and not exact
    check(grouped, [x], [expected], 1 if asked_for else 0, rtol=1e-2 if dtype == "bfloat16" else 1e-6)
    check(grouped, [x], [expected], 0, PRODUCTS, rtol=1e-2 if dtype == "bfloat16" else 1e-6)
    check(grouped, [x], [expected], 0 if exact else 1, EXACT, rtol=1e-2 if dtype == "bfloat16" else 1e-6)


@pytest.mark.parametrize("monoid", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("init", ["run time", "constant"])
def test_an_init_counts_once(monoid, init):
    source, target, dims, start = (6, 4, 8), (6, 4, 2, 4), (0, 3), 3
    given = {"x": tensor(source, "i32"), "init": tensor((), "i32")}
    body = f"%y = stablehlo.reshape %x : ({tensor(source, 'i32')}) -> {tensor(target, 'i32')}\n"
    if init == "constant":
        body += "%three = stablehlo.constant dense<3> : tensor<i32>\n"
    name = "init" if init == "run time" else "three"
    body += reduce_line("z", "y", tensor(target, "i32"), name, monoid, dims, tensor((4, 2), "i32"))
    x = RNG.integers(-2, 3, source).astype(np.int32)
    ufunc = getattr(np, monoid)
    expected = ufunc(ufunc.reduce(x.reshape(target).astype(np.int64), axis=dims), start).astype(np.int32)
    check(module(given, body, {"z": tensor((4, 2), "i32")}), [x, np.int32(start)], [expected], 0)


def test_products_of_complex_numbers_start_from_one_only_if_the_user_does():
    source, target, dims, kind = (6, 4, 8), (6, 4, 2, 4), (0, 3), "complex<f32>"
    x = (RNG.normal(size=source) + 1j * RNG.normal(size=source)).astype(np.complex64)
    wanted = x.astype(complex).reshape(target).prod(dims)

    def text(lines, name, reduced=dims, out=(4, 2)):
        body = f"{lines}\n%y = stablehlo.reshape %x : ({tensor(source, kind)}) -> {tensor(target, kind)}\n"
        body += reduce_line("z", "y", tensor(target, kind), name, "multiply", reduced, tensor(out, kind))
        return module({"x": tensor(source, kind), "init": tensor((), kind)}, body, {"z": tensor(out, kind)})

    one = "%one = stablehlo.constant dense<(1.0,0.0)> : tensor<complex<f32>>"
    two = one.replace("1.0", "2.0")
    given = [x, np.complex64(2)]
    check(text(one, "one"), given, [wanted], 0, PRODUCTS, rtol=1e-5)
    check(text(two, "one"), given, [2 * wanted], 1, PRODUCTS, rtol=1e-5)
    check(text("", "init"), given, [2 * wanted], 1, PRODUCTS, rtol=1e-5)
    # one stage does it all: it starts from any init
    whole = x.astype(complex).reshape(target).prod(0)
    check(text("", "init", (0,), (4, 2, 4)), given, [2 * whole], 0, PRODUCTS, rtol=1e-5)


def test_a_product_that_stays_in_range_as_written_is_taken_apart_only_if_asked_for():
    """1e30 and 1e-30 side by side: grouped as written each product is 1, by columns infinity times 0."""
    x = np.repeat(np.array([[1e30, 1e-30]], np.float32), 4, 0)

    def grouped(x):
        return x.reshape(4, 1, 2).prod((0, 2))

    as_written, apart = (values(rewritten(from_jax(grouped, x).text, passes), x)[0] for passes in (ALL, PRODUCTS))
    assert np.isfinite(as_written).all()
    program = from_jax(lambda x: x.reshape(8, 16, 16, 32, 8).prod((1, 2, 4)), np.zeros((8, 16, 16, 256), np.float32))
    kept, taken = optimize(program, "vector8x128"), optimize(program, "vector8x128", allow_products=True)
    assert not kept.rewrites
    assert taken.rewrites
    assert "may become infinite or no number on the way; if that does no harm (with --products" in kept.explain()
    assert not optimize(program, "vector8x128", allow_reassociation=False, allow_products=True).rewrites
    assert not verify(program, taken.program, inputs=["wide"], eager=False).ok  # and that is why
    assert verify(program, kept.program, inputs=["wide"], eager=False).ok
    assert apart.shape == as_written.shape


def test_unit_dims_are_no_reason_to_keep_a_product():
    """Nothing is multiplied in another order where only dims of size 1 are reduced."""
    x = np.float32(RNG.normal(size=(4, 6)))
    check(lambda x: x.reshape(4, 6, 1).prod(2), [x], [x], 0)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e4m3fn])
def test_narrow_floats_are_accumulated_in_f32(dtype):
    """Against float64: the error of every element is at most the original's, up to one rounding of the result."""
    x = RNG.uniform(0.5, 1, (64, 8, 12)).astype(dtype)
    kind = {"bfloat16": "bf16", "float16": "f16", "float8_e4m3fn": "f8E4M3FN"}[x.dtype.name]
    text = folded((64, 8, 12), (64, 8, 3, 4), (1, 3), f"%c = stablehlo.add %a, %b : {tensor((), kind)}", kind)
    exact = x.astype(np.float64).reshape(64, 8, 3, 4).sum((1, 3))
    found = rewritten(text, ALL)
    assert "f32" in found
    before, after = (results[0].astype(np.float64) for results in executed_together([text, found], x))
    rounding = float(ml_dtypes.finfo(dtype).eps) / 2 * np.abs(exact)
    assert (np.abs(after - exact) <= np.abs(before - exact) + rounding).all()
    assert np.abs(after - exact).max() <= rounding.max()


def argmax_text(index, kind="f32", direction="GT", dims=(0,), given="", arguments=None):
    """JAX's argmax of x reshaped [8,32] -> [8,4,8], with the second operand given as a line that makes %i."""
    kept = tuple(n for d, n in enumerate((8, 4, 8)) if d not in dims)
    low = {"f32": "0xFF800000", "i32": "-2147483648"}[kind]
    mode, big = "FLOAT" if kind == "f32" else "SIGNED", tensor((8, 4, 8), kind)
    body = f"""%low = stablehlo.constant dense<{low}> : tensor<{kind}>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %y = stablehlo.reshape %x : (tensor<8x32x{kind}>) -> {big}
    {index}
    %z:2 = stablehlo.reduce(%y init: %low), (%i init: %zero) across dimensions = {list(dims)} :
        ({big}, tensor<8x4x8xi32>, tensor<{kind}>, tensor<i32>) -> ({tensor(kept, kind)}, {tensor(kept, "i32")})
        reducer(%a: tensor<{kind}>, %c: tensor<{kind}>) (%b: tensor<i32>, %d: tensor<i32>) {{
      %0 = stablehlo.compare {direction}, %a, %c, {mode} : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
      %1 = stablehlo.compare NE, %a, %a, {mode} : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
      %2 = stablehlo.or %0, %1 : tensor<i1>
      %3 = stablehlo.compare EQ, %a, %c, {mode} : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
      %4 = stablehlo.compare LT, %b, %d, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %5 = stablehlo.and %3, %4 : tensor<i1>
      %6 = stablehlo.or %2, %5 : tensor<i1>
      %7 = stablehlo.select %2, %a, %c : tensor<i1>, tensor<{kind}>
      %8 = stablehlo.select %6, %b, %d : tensor<i1>, tensor<i32>
      stablehlo.return %7, %8 : tensor<{kind}>, tensor<i32>
    }}"""
    results = {"z#0": tensor(kept, kind), "z#1": tensor(kept, "i32")}
    return module({"x": f"tensor<8x32x{kind}>", **(arguments or {})}, body, results)


IOTA = "%i = stablehlo.iota dim = {} : tensor<8x4x8xi32>"


def test_an_argmax_moves_values_and_indices_together():
    x = RNG.integers(0, 4, (8, 32)).astype(np.float32)  # many ties: the first of equals counts
    y = x.reshape(8, 4, 8)
    check(argmax_text(IOTA.format(0)), [x], [y.max(0), y.argmax(0)], 0)
    check(argmax_text(IOTA.format(1)), [x], [y.max(0), np.indices(y.shape)[1][0]], 0)
    x[3, 5] = x[6, 5] = np.nan  # in one stage even the first of several NaNs stays the first
    y = x.reshape(8, 4, 8)
    check(argmax_text(IOTA.format(0)), [x], [y.max(0), y.argmax(0)], 0)


def test_an_argmax_whose_indices_cannot_move_stays_whole():
    x, i = RNG.normal(size=(8, 32)).astype(np.float32), integers(8, 4, 8)
    text = argmax_text("", arguments={"i": "tensor<8x4x8xi32>"})
    first = x.reshape(8, 4, 8).argmax(0)
    check(text, [x, i], [x.reshape(8, 4, 8).max(0), np.take_along_axis(i, first[None], 0)[0]], 1)


def test_an_argmax_in_two_stages_is_moved_for_integers_alone():
    x = RNG.integers(0, 4, (8, 32)).astype(np.int32)
    y = x.reshape(8, 4, 8)
    place = np.indices(y.shape)[0]
    wanted = np.where(y == y.max((0, 2), keepdims=True), place, 99).min((0, 2))
    check(argmax_text(IOTA.format(0), "i32", dims=(0, 2)), [x], [y.max((0, 2)), wanted], 0)
    floats = x.astype(np.float32)
    check(argmax_text(IOTA.format(0), dims=(0, 2)), [floats], [y.max((0, 2)), wanted], 1)


def test_a_body_that_looks_like_an_argmax_stays_whole():
    """The last of equals instead of the first: the order would matter."""
    x = RNG.integers(0, 3, (8, 32)).astype(np.int32)
    text = argmax_text(IOTA.format(0), "i32").replace("LT, %b, %d", "GT, %b, %d")
    check(text, [x], executed(text, x), 1)


@pytest.mark.parametrize(
    ("fold", "dtype"),
    [
        (jnp.argmax, np.float32),
        (jnp.argmax, np.int32),
        (jnp.argmin, np.bool_),
        pytest.param(jnp.argmin, np.float32, marks=pytest.mark.nightly),
        pytest.param(jnp.argmin, np.int32, marks=pytest.mark.nightly),
        pytest.param(jnp.argmax, np.bool_, marks=pytest.mark.nightly),
    ],
)
def test_jax_argmax(fold, dtype):
    """Axes 0 and 1 are whole runs, 2 and 3 parts of one; each in the same program, of an argument of its own.

    By day: each type with one of the two.
    """
    given = RNG.integers(0, 2, (4, 6, 8, 12)).astype(dtype)
    expected = [getattr(np, fold.__name__)(x.reshape(6, 8, 3, 4), axis) for axis, x in enumerate(given)]

    def folds(*given):
        return [fold(x.reshape(6, 8, 3, 4), axis) for axis, x in enumerate(given)]

    check(folds, [*given], expected, 2)


@pytest.mark.parametrize(
    ("dtype", "passes", "moves"), [("float32", ALL, 0), ("float32", EXACT, 1), ("int32", EXACT, 0)]
)
def test_several_monoids_at_once_move_together_or_not_at_all(dtype, passes, moves):
    """A sum, whose run-time init counts once, and a maximum; the sum decides for both."""
    x = RNG.integers(-4, 4, (6, 8, 12)).astype(dtype)

    def both(x, init):
        y = x.reshape(6, 8, 3, 4)
        start = (init, jnp.asarray(-99, x.dtype))
        return jax.lax.reduce((y, y), start, lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), (1, 3))

    y = x.reshape(6, 8, 3, 4)
    check(both, [x, np.asarray(3, dtype)], [y.sum((1, 3)) + 3, y.max((1, 3))], moves, passes)


PERMUTATIONS = [(2, 1, 3, 0), (0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)]


@pytest.mark.parametrize("permutation", PERMUTATIONS)
@pytest.mark.parametrize("kept", [(0, 2), (2,), (0, 3)])
def test_transposes_between_reshape_and_reduction_are_composed(permutation, kept):
    """Whatever the order, of [6,8,3,4] dims 0, 2 and 3 are never all reduced together with a kept part of their run."""
    x = RNG.normal(size=(6, 8, 12)).astype(np.float64)
    dims = tuple(k for k, d in enumerate(permutation) if d not in kept)

    def fold(x):
        return x.reshape(6, 8, 3, 4).transpose(permutation).sum(dims)

    with jax.enable_x64(True):
        check(fold, [x], [x.reshape(6, 8, 3, 4).transpose(permutation).sum(dims)], 0, rtol=1e-12)


@settings(max_examples=tries(15))
@given(reshapes(), st.data())
def test_transposed_reductions_of_reshapes(pair, data):
    """Any shapes, groupings, orders and axes in exact integers: a reshape, a transpose, a reduction."""
    source, target = pair
    permutation = data.draw(st.permutations(range(len(target))))
    dims = data.draw(st.lists(st.sampled_from(range(len(target))), unique=True)) if target else []
    turned = tuple(target[d] for d in permutation)
    kept = tuple(n for d, n in enumerate(turned) if d not in dims)
    body = f"%y = stablehlo.reshape %x : ({tensor(source, 'i32')}) -> {tensor(target, 'i32')}\n"
    body += f"%t = stablehlo.transpose %y, dims = {list(permutation)} : ({tensor(target, 'i32')}) -> "
    body += f"{tensor(turned, 'i32')}\n" + reduce_line(
        "z", "t", tensor(turned, "i32"), "init", "add", dims, tensor(kept, "i32")
    )
    text = module({"x": tensor(source, "i32"), "init": tensor((), "i32")}, body, {"z": tensor(kept, "i32")})
    x = np.arange(math.prod(source), dtype=np.int32).reshape(source) ** 2
    expected = x.reshape(target).transpose(permutation).sum(tuple(dims), dtype=np.int32) + 3
    np.testing.assert_array_equal(values(rewritten(text), x, np.int32(3))[0], expected)

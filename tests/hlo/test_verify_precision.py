"""verify holds a result to the precision that the program computes in, and no result to less than that."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.hlo.norms import struct
from tilewright.hlo import from_jax, verify
from tilewright.hlo.proving.trials import coarsest, tolerance
from tilewright.hlo.proving.verify import _main

BF16, F32 = jnp.bfloat16, jnp.float32
UNIT = 2.0**-7  # of bfloat16
ROWS, KEYS, WIDTH = 64, 128, 32
under_jit = partial(verify, eager=False)


def logits(weighted, out):
    return jnp.matmul(weighted, out, preferred_element_type=F32)


def attention(scores, values, out):
    return logits(jax.nn.softmax(scores).astype(BF16) @ values, out)


def sums_from_the_product(scores, values, out):
    """What the rule softmax-sum makes of it: rounded elsewhere, and as good."""
    weights = jnp.exp(scores - scores.max(-1, keepdims=True)).astype(BF16)
    product = jnp.matmul(weights, jnp.concatenate([values, jnp.ones((KEYS, 1), BF16)], 1), preferred_element_type=F32)
    return logits((product[:, :-1] / product[:, -1:]).astype(BF16), out)


@pytest.fixture(scope="module")
def original():
    return from_jax(attention, struct(ROWS, KEYS), struct(KEYS, WIDTH, dtype=BF16), struct(WIDTH, WIDTH, dtype=BF16))


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    scores, *weights = (rng.normal(size=shape) for shape in ((ROWS, KEYS), (KEYS, WIDTH), (WIDTH, WIDTH)))
    return [scores.astype(np.float32), *(each.astype(BF16) for each in weights)]


def changed(change):
    """The rewritten program with its result changed."""
    types = struct(ROWS, KEYS), struct(KEYS, WIDTH, dtype=BF16), struct(WIDTH, WIDTH, dtype=BF16)
    return from_jax(lambda *arrays: change(sums_from_the_product(*arrays)), *types)


def test_a_rewrite_of_what_rounds_to_bfloat16_inside_is_accepted(original, given):
    proof = under_jit(original, changed(lambda y: y), given)
    assert proof.ok, proof.reason
    assert tolerance(np.dtype(np.float32)) < proof.max_difference < UNIT
    assert proof.remarks == (
        "output 0 of float32 is rounded to bfloat16 inside the original, and is held to that rounding",
    )


@pytest.mark.parametrize(
    "places",
    [pytest.param("largest", marks=pytest.mark.nightly), "half as large",
     pytest.param("a row", marks=pytest.mark.nightly), "all"],
)  # fmt: skip
def test_four_units_of_bfloat16_are_wrong_there(original, given, places):
    """By day: one element, and all."""
    exact = np.asarray(jax.jit(attention)(*given))
    top = np.abs(exact).max()
    target = top if places == "largest" else top / 2
    at = np.unravel_index(np.argmin(np.abs(np.abs(exact) - target)), exact.shape)
    where = {"a row": at[0], "all": ...}.get(places, at)
    proof = under_jit(original, changed(lambda y: y.at[where].multiply(1 + 4 * UNIT)), given)
    assert not proof.ok
    assert "are wrong: at" in proof.reason


def test_a_small_column_is_still_held_to_itself():
    """A column of the result a million times smaller, rounded to bfloat16 by itself, is wrong by half."""
    x, columns = struct(256, 2), np.array([1, 1e-6], np.float32)
    rounded = from_jax(lambda x: (x.astype(BF16) * BF16(3)).astype(F32) * columns, x)
    wrong = from_jax(lambda x: (x.astype(BF16) * BF16(3)).astype(F32) * columns * np.float32([1, 1.5]), x)
    given = [np.random.default_rng(0).uniform(1, 2, (256, 2)).astype(np.float32)]
    assert under_jit(rounded, rounded, given).ok
    assert "elements with index 1 in dim 1" in under_jit(rounded, wrong, given).reason


def test_one_number_that_the_original_has_by_luck():
    """A loss: its own error says little, so one unit of bfloat16 is allowed, and not four."""
    x, given = struct(), [np.float32(1.5)]
    lucky = from_jax(lambda x: x.astype(BF16).astype(F32), x)
    for units, ok in ((0.9, True), (4, False)):
        other = from_jax(lambda x, c=1 + units * UNIT: x * c, x)
        assert under_jit(lucky, other, given).ok == ok


def test_an_overflow_inside_excuses_nothing():
    x, given = struct(2), [np.float32([1e30, 2.0])]
    original = from_jax(lambda x: jnp.square(x.astype(BF16)).astype(F32) * 1e-30, x)
    right, wrong = (from_jax(lambda x, by=by: x * np.float32(by) * x, x) for by in ((1e-30, 1e-30), (9e-31, 1.03e-30)))
    proof = under_jit(original, right, given)
    assert proof.ok, proof.reason
    assert proof.error_before == float("inf")
    assert "2 of 2 elements that differ are wrong" in under_jit(original, wrong, given).reason


def test_an_output_that_is_zero_but_for_its_rounding_to_bfloat16():
    x, given = struct(3, 4096), [np.random.default_rng(2).normal(1, 1, (3, 4096)).astype(np.float32)]

    def deviations(x, sums):
        return sums((x - x.mean(1, keepdims=True)).astype(BF16).astype(F32))

    one, other, off = (
        from_jax(partial(deviations, sums=sums), x)
        for sums in (lambda d: d.sum(1), lambda d: d.reshape(3, 64, 64).sum(1).sum(1) * 1.5, lambda d: d.sum(1) + 50)
    )
    proof = verify(one, other, given)
    assert proof.ok, proof.reason
    assert "output 0 is zero but for rounding, in both programs" in proof.remarks
    assert not under_jit(one, off, given).ok


def test_bfloat16_that_rounds_nothing_leaves_float32_as_strict_as_it_was():
    x, moved = struct(64, 8, dtype=BF16), lambda x: jnp.maximum(x.T.reshape(8, 64), BF16(0.5)).astype(F32)
    right = from_jax(lambda x: (moved(x) * 3.1, x * BF16(3.1)), x)
    for off, ok in ((1 + 2e-6, True), (1 + 2e-5, False)):
        other = from_jax(lambda x, off=off: (moved(x) * (3.1 * off), x * BF16(3.1)), x)
        assert under_jit(right, other, inputs=["normal"]).ok == ok


def scanned(x):
    return jax.lax.scan(lambda c, _: ((c * c).astype(BF16), None), x.astype(BF16), None, 3)[0].astype(F32)


@pytest.mark.parametrize(
    ("function", "types", "expected"),
    [
        (lambda x: jnp.sin(x), [F32], [F32]),
        (lambda x: x.astype(BF16).astype(F32), [F32], [BF16]),
        (lambda x: jnp.sin(x.astype(F32)), [BF16], [F32]),
        (lambda x: jnp.sin(x.astype(BF16).astype(F32)), [jnp.float8_e4m3fn], [F32]),
        (lambda x: (jnp.sin(x), jnp.sin(x.astype(F32))), [BF16], [BF16, F32]),
        (lambda x: (x > jnp.sin(x)).astype(F32), [BF16], [BF16]),
        (lambda x: x.max().astype(F32), [BF16], [None]),
        (lambda x: x + 1, [jnp.int32], [None]),
        (scanned, [F32], [BF16]),
        (lambda x: jax.lax.cond(x[0] > 0, lambda: jnp.sin(x).astype(F32), lambda: x.astype(F32)), [BF16], [BF16]),
        (lambda x, w: jnp.matmul(x, w, preferred_element_type=F32), [BF16, BF16], [F32]),
    ],
)
def test_the_coarsest_type_that_is_rounded_to(function, types, expected):
    body = _main(from_jax(function, *(struct(4, dtype=dtype) for dtype in types)))
    assert coarsest(body) == [each and np.dtype(each) for each in expected]


def test_an_error_that_arguments_one_unit_off_make_too_is_rounding():
    """A phase of ten thousand radians: half of its rounding is in the argument already. More than that is wrong."""
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    steep = from_jax(lambda x: jnp.sin(x * 1e4), x)
    proof = verify(steep, from_jax(lambda x: jnp.sin((x * 1e2) * 1e2), x), inputs=["normal"])
    assert proof.ok, proof.reason
    wrong = verify(steep, from_jax(lambda x: jnp.sin(x * 1e4) + 0.05, x), inputs=["normal"])
    assert "are wrong" in wrong.reason


def test_a_remark_says_where_rounding_decides():
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    before, after = (from_jax(lambda x, add=add: (x + x * 3e6) - x * 3e6 + add, x) for add in (0.0, 0.005))
    proof = verify(before, after, inputs=["normal"])
    assert not proof.ok
    assert any("rounding decides there" in remark for remark in proof.remarks)

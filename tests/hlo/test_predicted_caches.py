"""Decoding steps with a cache of keys and values, as people write them: bytes and times of compiled modules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tilewright.hlo import estimate, from_jax, load

LAYERS, BATCH, LENGTH, HEADS, DEPTH = 4, 16, 2048, 8, 128
WIDTH = HEADS * DEPTH
S = jax.ShapeDtypeStruct
BF16 = jnp.bfloat16
CACHE = S((LAYERS, BATCH, LENGTH, HEADS, DEPTH), BF16)
APART = [S((BATCH, LENGTH, HEADS, DEPTH), BF16)] * LAYERS
X, WEIGHTS, PLACE = S((BATCH, WIDTH), BF16), S((LAYERS, 4, WIDTH, WIDTH), BF16), S((), jnp.int32)


def projected(x, w):
    return [(x @ w[j]).reshape(BATCH, HEADS, DEPTH) for j in range(3)]


def attended(q, keys, values, place):
    scores = jnp.einsum("bhd,blhd->bhl", q, keys).astype(jnp.float32) * 0.1
    scores = jnp.where(jnp.arange(LENGTH) <= place, scores, -1e9)
    return jnp.einsum("bhl,blhd->bhd", jax.nn.softmax(scores, -1).astype(q.dtype), values).reshape(BATCH, WIDTH)


def layer(x, w, keys, values, place):
    q, k, v = projected(x, w)
    keys = lax.dynamic_update_slice(keys, k[:, None], (0, place, 0, 0))
    values = lax.dynamic_update_slice(values, v[:, None], (0, place, 0, 0))
    return x + attended(q, keys, values, place) @ w[3], keys, values


def apart(x, weights, keys, values, place):
    """A cache of each layer's own."""
    made = []
    for k in range(LAYERS):
        x, *own = layer(x, weights[k], keys[k], values[k], place)
        made.append(own)
    return x, [own[0] for own in made], [own[1] for own in made]


def stacked(x, weights, keys, values, place):
    """One cache, cut into layers and stacked again."""
    x, keys, values = apart(x, weights, keys, values, place)
    return x, jnp.stack(keys), jnp.stack(values)


def written(x, w, k, keys, values, place):
    q, own, more = projected(x, w)
    keys = lax.dynamic_update_slice(keys, own[None, :, None], (k, 0, place, 0, 0))
    values = lax.dynamic_update_slice(values, more[None, :, None], (k, 0, place, 0, 0))
    return x + attended(q, keys[k], values[k], place) @ w[3], keys, values


def in_place(x, weights, keys, values, place):
    """One cache, written where a layer's part lies."""
    for k in range(LAYERS):
        x, keys, values = written(x, weights[k], k, keys, values, place)
    return x, keys, values


def scanned(x, weights, keys, values, place):
    """A loop over layers that takes each one's cache and gives it."""

    def body(x, given):
        x, *own = layer(x, *given, place)
        return x, own

    x, (keys, values) = lax.scan(body, x, (weights, keys, values))
    return x, keys, values


def carried(x, weights, keys, values, place):
    """A loop over layers that carries the whole cache."""

    def body(carry, given):
        return written(carry[0], *given, *carry[1:], place), None

    return lax.scan(body, (x, keys, values), (weights, jnp.arange(LAYERS)))[0]


@pytest.mark.parametrize(
    ("function", "cache", "donated", "megabytes", "us"),
    [
        (apart, APART, False, 1464, 1321),
        (apart, APART, True, 963, 941),
        (stacked, CACHE, False, 2739, 2466),
        (in_place, CACHE, False, 1644, 1567),
        (in_place, CACHE, True, 579, 819),
        (scanned, CACHE, False, 1921, 2028),
        (scanned, CACHE, True, 2995, 2800),
        (carried, CACHE, False, 2727, 2394),
        (carried, CACHE, True, 2727, 2394),
    ],
)
def test_a_step_with_a_cache_passes_what_its_module_does(function, cache, donated, megabytes, us):
    """Modules made for v6e by libtpu 0.0.42, megabytes through HBM and their modelled time.

    A loop's cache lies with its positions outside: turned before, and back behind. What a loop gives in place of a
    donated array that it still reads is copied there. Bytes of some arrays come in early, and are not among ours.
    """
    jitted = jax.jit(function, donate_argnums=(2, 3) if donated else ())
    step = estimate(from_jax(jitted, X, WEIGHTS, cache, cache, PLACE), "tpu-v6e")
    if not (function is apart and donated):  # there the compiler keeps copies near the core, and cuts weights twice
        assert step.bytes / 1e6 == pytest.approx(megabytes, rel=0.15)
    assert step.device_seconds * 1e6 == pytest.approx(us, rel=0.25)


@pytest.mark.parametrize(("chip", "sums"), [("tpu-v6e", True), ("tpu-v5p", True), ("tpu-7x", False)])
def test_a_product_with_one_row_a_batch_is_a_sum_where_another_product_makes_the_row(chip, sums):
    """As modules of libtpu 0.0.42 have it: 83 us on v6e, where sums along the lanes turn registers, and 18 alone."""

    def scores(q, keys):
        return jnp.einsum("bhd,blhd->bhl", q.reshape(BATCH, HEADS, DEPTH), keys)

    def behind(x, w, keys):
        return scores(x @ w, keys)

    keys = S((BATCH, LENGTH, HEADS, DEPTH), BF16)
    steps = [from_jax(scores, X, keys), from_jax(behind, X, S((WIDTH, WIDTH), BF16), keys)]
    alone, made = (max(estimate(step, chip).rows, key=lambda row: row.seconds) for step in steps)
    assert (alone.bound == "vector", made.bound == "vector") == (False, sums)
    if chip == "tpu-v6e":
        assert alone.seconds * 1e6 == pytest.approx(18.3, rel=0.1)
        assert made.seconds * 1e6 == pytest.approx(83, rel=0.1)


@pytest.mark.parametrize("shape", [(64, 1024), (8, 64, 512), (1, 64, 1, 512), (64, 1, 128)])
@pytest.mark.parametrize("chip", ["tpu-v4", "tpu-7x"])
def test_a_loop_may_write_any_place_and_read_it_without_its_dim(shape, chip):
    """Columns, too: what is cut out has fewer dims, and none of them need be the lanes of what it is cut out of."""
    place = (0,) * (len(shape) - 1)

    def body(k, carry):
        array, column = carry
        array = lax.dynamic_update_slice(array, 2 * column[..., None], (*place, k))
        return array, lax.dynamic_slice(array, (*place, k), (*shape[:-1], 1)).reshape(shape[:-1])

    def written(array, column):
        return lax.fori_loop(0, shape[-1], body, (array, column))

    step = estimate(from_jax(written, S(shape, BF16), S(shape[:-1], BF16)), chip)
    assert step.priced == 1
    assert step.device_seconds > 0


@pytest.mark.parametrize("spec", ["bik,bkj->bij", "ibk,bkj->bij", "bki,kbj->bij", "bk,bjk->bj"])
def test_batched_products_of_single_rows_and_columns_have_a_time(spec):
    sizes = {"b": 8, "i": 1, "j": 1, "k": 64, "n": 8}
    left, right = ([sizes[dim] for dim in dims] for dims in spec.partition("->")[0].split(","))

    def function(x, w, y):
        row = jnp.broadcast_to((x @ w).reshape(-1)[:1], left)
        return jax.nn.softmax(jnp.einsum(spec, row, y).astype(jnp.float32), -1)

    for chip in ("tpu-v5e", "tpu-7x"):
        assert estimate(from_jax(function, S((8, 8), BF16), S((8, 8), BF16), S(tuple(right), BF16)), chip).priced == 1


def test_a_loop_that_carries_more_than_it_is_given_ends_no_step():
    array, column, number = "tensor<64x1024xf32>", "tensor<64x1xf32>", "tensor<i32>"
    text = f"""func.func @main(%a: {array}, %i: {number}, %c: {column}) -> {number} {{
  %0 = "stablehlo.while"(%i) ({{
  ^bb0(%k: {number}, %x: {array}):
    %n = stablehlo.constant dense<8> : {number}
    %p = stablehlo.compare LT, %k, %n : ({number}, {number}) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  }}, {{
  ^bb0(%k: {number}, %x: {array}):
    %z = stablehlo.constant dense<0> : {number}
    %y = stablehlo.dynamic_update_slice %x, %c, %z, %k : ({array}, {column}, {number}, {number}) -> {array}
    stablehlo.return %k, %y : {number}, {array}
  }}) : ({number}) -> {number}
  return %0 : {number}
}}"""
    assert estimate(load(text), "tpu-v6e").device_seconds >= 0

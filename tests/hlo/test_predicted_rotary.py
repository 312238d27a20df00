"""Rotary embeddings as people write them: bytes and times of compiled modules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tilewright.hlo import estimate, from_jax

BATCH, LENGTH, HEADS, DEPTH = 8, 1024, 16, 128
S = jax.ShapeDtypeStruct
BF16, F32 = jnp.bfloat16, jnp.float32


def given(depth=DEPTH, whole=False, kind=BF16, angles=BF16):
    table = S((LENGTH, depth if whole else depth // 2), angles)
    return S((BATCH, LENGTH, HEADS, depth), kind), table, table


def along(table):
    return table[None, :, None]


def halves(x, cos, sin):
    first, second = jnp.split(x, 2, -1)
    c, s = along(cos), along(sin)
    return jnp.concatenate([first * c - second * s, second * c + first * s], -1)


def turned_half(x, cos, sin):
    """As Hugging Face writes it, with tables of the whole depth."""
    first, second = jnp.split(x, 2, -1)
    return x * along(cos) + jnp.concatenate([-second, first], -1) * along(sin)


def widened(x, cos, sin):
    return halves(x.astype(F32), cos, sin).astype(x.dtype)


def pairs(x, cos, sin):
    """As Llama's own code has it: neighbours are a pair."""
    both = x.reshape(*x.shape[:-1], -1, 2)
    first, second, c, s = both[..., 0], both[..., 1], along(cos), along(sin)
    return jnp.stack([first * c - second * s, first * s + second * c], -1).reshape(x.shape)


def widened_pairs(x, cos, sin):
    return pairs(x.astype(F32), cos, sin).astype(x.dtype)


@pytest.mark.parametrize(
    ("function", "asked", "us"),
    [
        (halves, given(), {"v5e": 228.6, "v6e": 102.4, "v4": 102.7, "7x": 52.7}),
        (halves, given(256), {"v5e": 251.9, "v6e": 117.2, "7x": 53.1}),
        (halves, given(64), {"v5e": 64.2, "v6e": 30.2, "v4": 35.2}),
        (turned_half, given(whole=True), {"v5e": 208.5, "v4": 144.9}),
        (turned_half, given(whole=True, kind=F32, angles=F32), {"v4": 383.6, "7x": 150.5}),
        (widened, given(angles=F32), {"v5e": 285.0, "v6e": 178.5}),
        (pairs, given(), {"v5e": 264.1, "v6e": 129.4, "v4": 179.6}),
        (widened_pairs, given(angles=F32), {"v5e": 296.1, "v6e": 189.9, "v4": 269.4, "7x": 124.3}),
    ],
)
def test_a_rotary_embedding_takes_what_its_module_does(function, asked, us):
    """Modules made by libtpu 0.0.42. What is joined is padded, in registers and in memory; pairs lie across neither."""
    step = from_jax(function, *asked)
    for chip, wanted in us.items():
        assert estimate(step, f"tpu-{chip}").device_seconds * 1e6 == pytest.approx(wanted, rel=0.25), chip


@pytest.mark.parametrize(("depth", "heads", "us"), [(64, 16, 930.4), (128, 16, 1628.3), (256, 8, 1012.9)])
@pytest.mark.parametrize("how", ["plain", "halves", "pairs"])
def test_attention_behind_an_embedding_takes_what_its_module_does(how, depth, heads, us):
    """Modules for v6e: a softmax in float32 reads scores of bfloat16 where they are made of 128 numbers or more."""
    us += {"plain": 0, "halves": {64: 39, 128: 436, 256: 217}[depth], "pairs": {64: 129, 128: 236, 256: 237}[depth]}[
        how
    ]
    turned = {"plain": lambda x, cos, sin: x, "halves": halves, "pairs": pairs}[how]

    def block(x, q, k, v, out, cos, sin):
        q, k, v = ((x @ w).reshape(BATCH, LENGTH, heads, depth) for w in (q, k, v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * 0.088
        scores = jnp.where(jnp.tril(jnp.ones((LENGTH, LENGTH), bool)), scores, -1e9)
        made = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(x.dtype), v)
        return made.reshape(BATCH, LENGTH, -1) @ out

    weights, table = S((heads * depth, heads * depth), BF16), S((LENGTH, depth // 2), BF16)
    step = from_jax(block, S((BATCH, LENGTH, heads * depth), BF16), *[weights] * 4, table, table)
    assert estimate(step, "tpu-v6e").device_seconds * 1e6 == pytest.approx(us, rel=0.2)


@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (4, 4, 1, 4), (2, 1, 3, 6), (1, 7, 1, 14), (3, 5, 2, 260)])
@pytest.mark.parametrize("function", [halves, turned_half, widened, pairs, widened_pairs])
def test_any_shape_of_an_embedding_has_a_time(function, shape):
    table = S((shape[1], shape[-1] if function is turned_half else shape[-1] // 2), F32)
    step = from_jax(function, S(shape, BF16), table, table)
    for chip in ("v5e", "7x"):
        assert estimate(step, f"tpu-{chip}").priced == 1


@pytest.mark.parametrize("chip", ["tpu-v5e", "tpu-v6e"])
def test_what_is_cut_twice_is_written_between(chip):
    """Weights of a layer, and of these each: as modules of both chips have it, for eight rows as for thousands."""

    def layers(x, w):
        for k in range(4):
            x = jax.nn.relu(x @ w[k][0]) @ w[k][1]
        return x

    rows = estimate(from_jax(layers, S((16, 2048), BF16), S((4, 2, 2048, 2048), BF16)), chip).rows
    assert [row.op for row in rows].count("reshape") == 4
    straight = estimate(from_jax(lambda x, w: x @ w[0] @ w[1], S((16, 2048), BF16), S((2, 2048, 2048), BF16)), chip)
    assert "reshape" not in [row.op for row in straight.rows]

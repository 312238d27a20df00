"""Sizes and shapes at which the TPU compiler showed no gain, or harm: no rule acts there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tilewright.hlo import from_jax, optimize

BF16, F32 = jnp.bfloat16, jnp.float32


def turned(x, cos, sin):
    """Rotary embedding of neighbours."""
    a, b, c, s = x[..., ::2], x[..., 1::2], cos[None, :, None], sin[None, :, None]
    return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


def product(a, b):
    return a @ b


def largest_of_blocks(x):
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))


def shares(x):
    groups = x.reshape(x.shape[0], -1, 128)
    return (groups / groups.sum(-1, keepdims=True)).reshape(x.shape)


def larger(x):
    return jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)


def pixels(x):
    b, h, w, c = x.shape
    return x.reshape(b, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5).reshape(b, 2 * h, 2 * w, c // 4)


def pixels_behind(x, kernel):
    dims = ("NHWC", "HWIO", "NHWC")
    return pixels(jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=dims))


def dequantised(x, w, s):
    return x @ (w.astype(s.dtype) * jnp.repeat(s, 128, axis=1)).astype(x.dtype).T


AWAY = {
    "products of tiny matrices and vectors": (
        lambda a, x: jnp.einsum("nij,nj->ni", a, x), ((65536, 4, 4), F32), ((65536, 4), F32)
    ),
    "a batch of matrices of 32": (product, ((4096, 32, 32), F32), ((4096, 32, 32), F32)),
    "a small batch of tiny matrices": (product, ((128, 8, 8), BF16), ((128, 8, 8), BF16)),
    "a small rotary embedding": (turned, ((1, 256, 4, 64), BF16), ((256, 32), BF16), ((256, 32), BF16)),
    "one of each pair": (lambda x: x.reshape(16384, 256, 2)[..., 0], ((16384, 512), F32)),
    "rows repeated eight times": (lambda x: jnp.repeat(x, 8, axis=1), ((8, 512, 1024), BF16)),
    "rows repeated, not by 32": (lambda x: jnp.repeat(x, 2, axis=1), ((8, 49, 512), F32)),
    "a small image": (largest_of_blocks, ((32, 32, 32, 4), BF16)),
    "groups that fill the lanes": (shares, ((16384, 1024), BF16)),
    # no gain: the compiler does it by itself
    "columns of one": (lambda x, y: (x * y + 1) / jnp.abs(x).max(), ((65536, 1), F32), ((65536, 1), F32)),
    "26 columns side by side": (lambda *x: jnp.concatenate(x, -1), *[((4096, 16), F32)] * 26),
    "26 columns, then a product": (
        lambda w, *x: jnp.concatenate(x, -1) @ w, ((416, 256), F32), *[((4096, 16), F32)] * 26
    ),
    "a softmax over ten": (lambda x: jax.nn.softmax(x), ((65536, 10), F32)),
    "a transposed operand": (lambda x, y: x.T @ y, ((16384, 256), BF16), ((16384, 512), BF16)),
    "a mean with keepdims": (lambda x: x - x.mean(-1, keepdims=True), ((16384, 1024), F32)),
    "a convolution with channels first": (
        lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "SAME"),
        ((8, 64, 56, 56), BF16), ((64, 64, 3, 3), BF16),
    ),
    "skinny column sums": (lambda x: x.sum(0), ((1_000_000, 8), F32)),
    "grouped queries, many at once": (
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, 4, axis=2)),
        ((4, 512, 32, 64), BF16), ((4, 512, 8, 64), BF16),
    ),
    "unaligned halves of a gated unit": (
        lambda x, w: (lambda h: jax.nn.silu(h[:, :1000]) * h[:, 1000:])(x @ w),
        ((4096, 1024), BF16), ((1024, 2000), BF16),
    ),
    # and where a rewrite of another kind would do harm
    "narrow rows, element by element": (lambda x: jnp.tanh(x) * 2 + 1, ((1_000_000, 8), F32)),
    "the state of an optimizer": (
        lambda *x: [a - 0.1 * b for a, b in zip(x[:3], x[3:])], *[((257, 33), F32), ((65,), F32), ((7, 5, 3), F32)] * 2
    ),
    "a sum of 26 outer products": (
        lambda *x: sum(a[:, None] * b[None] for a, b in zip(x[:26], x[26:])), *[((512,), F32)] * 52
    ),
    "every other column": (lambda x: x[..., ::2], ((16384, 512), F32)),
    "three coordinates": (lambda x: x / jnp.sqrt((x * x).sum(-1, keepdims=True)), ((1_000_000, 3), F32)),
    "windows, then a projection": (
        lambda x, w: x.reshape(8, 8, 7, 8, 7, 96).transpose(0, 1, 3, 2, 4, 5).reshape(512, 49, 96) @ w,
        ((8, 56, 56, 96), BF16), ((96, 96), BF16),
    ),
    "heads split off a product": (
        lambda x, w: (x @ w).reshape(8, 512, 16, 64).transpose(0, 2, 1, 3), ((8, 512, 1024), BF16), ((1024, 1024), BF16)
    ),
    "the sum of everything": (lambda x: x.reshape(8, 512, 4, 1024).sum(), ((8, 2048, 1024), F32)),
    "a decode step's rotary embedding": (turned, ((8, 1, 16, 128), BF16), ((1, 64), BF16), ((1, 64), BF16)),
    "a larger image of few channels": (larger, ((16, 64, 64, 32), BF16)),
    "one small image made larger": (larger, ((1, 16, 16, 256), BF16)),
    "a pixel shuffle of 128 channels": (pixels, ((16, 64, 64, 128), BF16)),
    "a pixel shuffle behind a convolution": (
        pixels_behind, ((16, 64, 64, 64), BF16), ((3, 3, 64, 256), BF16)
    ),
    "weights with scales in f32": (dequantised, ((16, 4096), BF16), ((4096, 4096), jnp.int8), ((4096, 32), F32)),
}  # fmt: skip


@pytest.mark.parametrize("name", AWAY)
def test_no_rule_acts(name):
    function, *arguments = AWAY[name]
    program = from_jax(function, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arguments))
    done = optimize(program, "tpu-v5e", assume_finite=True)
    assert not [verdict.rule for verdict in done.rewrites if verdict.rule]

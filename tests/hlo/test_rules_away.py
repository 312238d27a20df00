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
    "the sum of everything": (lambda x: x.reshape(8, 512, 4, 1024).sum(), ((8, 2048, 1024), F32)),
}  # fmt: skip


@pytest.mark.parametrize("name", AWAY)
def test_no_rule_acts(name):
    function, *arguments = AWAY[name]
    program = from_jax(function, *(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arguments))
    done = optimize(program, "tpu-v5e", assume_finite=True)
    assert not [verdict.rule for verdict in done.rewrites if verdict.rule]

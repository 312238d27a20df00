"""Normalisations as users write them, for the tests of the gate."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def struct(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def normalised(y, axes):
    mean, var = y.mean(axes, keepdims=True), y.var(axes, keepdims=True)
    return (y - mean) * jax.lax.rsqrt(var + 1e-5)


def group_norm(x, scale, bias, groups=32):
    """[B, H, W, C] in groups along C, statistics over H, W and C / G; the order is (G, C / G)."""
    y = x.reshape(*x.shape[:3], groups, -1)
    return normalised(y, (1, 2, 4)).reshape(x.shape) * scale + bias


def group_norm_minor(x, scale, bias, groups=32):
    """The same in the patent's order (C / G, G)."""
    y = x.reshape(*x.shape[:3], -1, groups)
    return normalised(y, (1, 2, 3)).reshape(x.shape) * scale + bias


def group_norm_rest(x, scale, bias, groups=32):
    """[B, C, H, W] in groups along C, all the rest in one dim, as ports from torch write it."""
    y = x.reshape(x.shape[0], groups, -1)
    return normalised(y, 2).reshape(x.shape) * scale[:, None, None] + bias[:, None, None]


def field_norm(x, scale, bias, groups=4):
    """[B, F, D] in groups along D, statistics over the F fields and D / G."""
    y = x.reshape(*x.shape[:2], groups, -1)
    return normalised(y, (1, 3)).reshape(x.shape) * scale + bias


def grouped_layer_norm(x, scale, bias):
    y = x.reshape(*x.shape[:2], 16, -1)
    return normalised(y, -1).reshape(x.shape) * scale + bias


def ghost_batch_norm(x, scale, bias):
    y = x.reshape(-1, 8, *x.shape[1:])
    return normalised(y, (1, 2, 3)).reshape(x.shape) * scale + bias


def attention(x, w, v):
    q = (x @ w).reshape(*x.shape[:2], 16, -1).transpose(0, 2, 1, 3)
    p = jax.nn.softmax(q @ q.transpose(0, 1, 3, 2))
    return (p @ q).transpose(0, 2, 1, 3).reshape(x.shape) @ v


def gradient(norm):
    return jax.value_and_grad(lambda *args: (norm(*args) ** 2).sum(), argnums=(0, 1, 2))


def arguments(norm, small=False):
    """ShapeDtypeStructs of the sizes the reference figures are for, or small ones of the same kind."""
    shapes = {
        "group_norm": (8, 32, 32, 256), "group_norm_minor": (8, 32, 32, 256), "field_norm": (256, 27, 32),
        "grouped_layer_norm": (8, 512, 1024), "ghost_batch_norm": (64, 32, 32, 256), "attention": (8, 512, 1024),
    }  # fmt: skip
    x = shapes[norm.__name__]
    x = (x[0] // 8, *(8 if n > 100 and len(x) == 3 else 5 for n in x[1:-1]), x[-1]) if small else x
    width = (x[-1], x[-1]) if norm is attention else (x[-1],)
    return struct(*x), struct(*width), struct(*width)

"""Norms, pooling, patches and heads as people write them, each beside the form that a hand would give it.

By hand nothing large is reshaped: what can be summed before a reshape is, statistics are reshaped instead of images,
and a full operand once. Where a hand knows no better, the program stands twice.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.hlo.norms import normalised, struct

NHWC, NCHW, TOKENS, ODD = struct(8, 16, 16, 256), struct(8, 256, 10, 10), struct(8, 100, 256), struct(8, 10, 10, 256)
SPLIT = (8, 16, 16, 32, 8)
EPS = 1e-5


def scaled(y, axes):
    return y * jax.lax.rsqrt((y * y).mean(axes, keepdims=True) + EPS)


def by_hand(x, axes, groups, kept, rms=False):
    """A norm by sums over ``axes``, which leave [batch, channels]: ``groups`` of these share ``kept`` statistics.

    ``groups`` is the shape of the channels in groups, ``kept`` the dim of it that is kept.
    """
    count = x.size // (x.shape[0] * groups[kept])
    channels = next(d for d in range(1, x.ndim) if d not in axes)

    def mean(y):
        return y.sum(axes).reshape(-1, *groups).sum(2 - kept) / count

    def back(s):
        shape = (x.shape[0], *groups)
        small = jax.lax.broadcast_in_dim(s, shape, (0, 1 + kept)).reshape(shape[0], -1)
        return jax.lax.broadcast_in_dim(small, x.shape, (0, channels))

    y = x if rms else x - back(mean(x))
    return y * back(jax.lax.rsqrt(mean(y * y) + EPS))


def minor(x):
    return by_hand(x, (1, 2), (32, 8), 0)


def patent(x):
    return by_hand(x, (1, 2), (8, 32), 1)


def nchw(x):
    return by_hand(x, (2, 3), (32, 8), 0)


# Group norms.


def fast_variance(x):
    y = x.reshape(SPLIT)
    mean = y.mean((1, 2, 4), keepdims=True)
    var = (y * y).mean((1, 2, 4), keepdims=True) - mean * mean
    return ((y - mean) * jax.lax.rsqrt(var + EPS)).reshape(x.shape)


def fast_variance_by_hand(x):
    def mean(y):
        return y.sum((1, 2)).reshape(8, 32, 8).sum(2) / 2048

    def back(s):
        small = jax.lax.broadcast_in_dim(s, (8, 32, 8), (0, 1)).reshape(8, 256)
        return jax.lax.broadcast_in_dim(small, x.shape, (0, 3))

    average = mean(x)
    return (x - back(average)) * back(jax.lax.rsqrt(mean(x * x) - average * average + EPS))


def transposed(x):
    y = normalised(x.reshape(SPLIT).transpose(0, 3, 1, 2, 4).reshape(8, 32, -1), 2)
    return y.reshape(8, 32, 16, 16, 8).transpose(0, 2, 3, 1, 4).reshape(x.shape)


def as_torch(x):
    y = x.transpose(0, 3, 1, 2)
    return normalised(y.reshape(8, 32, -1), 2).reshape(y.shape).transpose(0, 2, 3, 1)


def as_torch_split(x):
    y = x.transpose(0, 3, 1, 2)
    return normalised(y.reshape(8, 32, 8, 16, 16), (2, 3, 4)).reshape(y.shape).transpose(0, 2, 3, 1)


def of_one_image(x):
    return jax.vmap(lambda image: normalised(image.reshape(-1, 32, 8), (0, 2)).reshape(image.shape))(x)


def scaled_in_groups(x, s):
    return jax.nn.relu(normalised(x.reshape(SPLIT), (1, 2, 4)) * s.reshape(32, 8)).reshape(x.shape)


def of_masked(x, mask):
    return normalised((x * mask).reshape(8, -1, 32, 8), (1, 3)).reshape(x.shape)


def statistics(x):
    y = x.reshape(8, -1, 32, 8)
    return y.mean((1, 3)), (y * y).mean((1, 3))


def statistics_by_hand(x):
    return tuple(y.sum((1, 2)).reshape(8, 32, 8).sum(2) / 2048 for y in (x, x * x))


GROUP_NORMS = {
    "split": (lambda x: normalised(x.reshape(SPLIT), (1, 2, 4)).reshape(x.shape), minor, NHWC),
    "split, the patent's order": (
        lambda x: normalised(x.reshape(8, 16, 16, 8, 32), (1, 2, 3)).reshape(x.shape), patent, NHWC,
    ),
    "pixels merged": (lambda x: normalised(x.reshape(8, -1, 32, 8), (1, 3)).reshape(x.shape), minor, NHWC),
    "pixels and groups merged": (lambda x: normalised(x.reshape(8, -1, 32), 1).reshape(x.shape), patent, NHWC),
    "fast variance": (fast_variance, fast_variance_by_hand, NHWC),
    "transposed and merged": (transposed, minor, NHWC),
    "as torch, all the rest merged": (as_torch, minor, NHWC),
    "as torch, split": (as_torch_split, minor, NHWC),
    "of one image, batched": (of_one_image, minor, NHWC),
    "scaled in groups": (scaled_in_groups, lambda x, s: jax.nn.relu(minor(x) * s), NHWC, struct(256)),
    "of masked pixels": (of_masked, lambda x, mask: minor(x * mask), NHWC, struct(8, 16, 16, 1)),
    "statistics alone": (statistics, statistics_by_hand, NHWC),
    "channels first, all the rest merged": (lambda x: normalised(x.reshape(8, 32, -1), 2).reshape(x.shape), nchw, NCHW),
    "channels first, split": (
        lambda x: normalised(x.reshape(8, 32, 8, 10, 10), (2, 3, 4)).reshape(x.shape),
        lambda x: normalised(x.reshape(8, 32, 8, 10, 10), (2, 3, 4)).reshape(x.shape), NCHW,
    ),
}  # fmt: skip

OTHER_NORMS = {
    "layer norm of rows": (
        lambda x: normalised(x.reshape(-1, 256), 1).reshape(x.shape), lambda x: normalised(x, 2), TOKENS,
    ),
    "layer norm of images": (
        lambda x: normalised(x.reshape(8, -1), 1).reshape(x.shape), lambda x: normalised(x, (1, 2, 3)), ODD,
    ),
    "layer norm of heads": (
        lambda x: normalised(x.reshape(8, 100, 4, 64), 3).reshape(x.shape),
        lambda x: normalised(x.reshape(8, 100, 4, 64), 3).reshape(x.shape), TOKENS,
    ),
    "layer norm of channels first": (
        lambda x: normalised(x.transpose(0, 2, 3, 1), 3).transpose(0, 3, 1, 2), lambda x: normalised(x, 1), NCHW,
    ),
    "instance norm, pixels merged": (
        lambda x: normalised(x.reshape(8, -1, 256), 1).reshape(x.shape), lambda x: normalised(x, (1, 2)), ODD,
    ),
    "instance norm, channels first": (
        lambda x: normalised(x.reshape(8, 256, -1), 2).reshape(x.shape), lambda x: normalised(x, (2, 3)), NCHW,
    ),
    "instance norm, batch and channels merged": (
        lambda x: normalised(x.reshape(2048, -1), 1).reshape(x.shape), lambda x: normalised(x, (2, 3)), NCHW,
    ),
    "instance norm, a group a channel": (
        lambda x: normalised(x.reshape(8, 10, 10, 256, 1), (1, 2, 4)).reshape(x.shape),
        lambda x: normalised(x, (1, 2)), ODD,
    ),
    "batch norm of rows": (
        lambda x: normalised(x.reshape(-1, 256), 0).reshape(x.shape), lambda x: normalised(x, (0, 1, 2)), ODD,
    ),
    "batch statistics, channels first": (
        lambda x: x.transpose(0, 2, 3, 1).reshape(-1, 256).mean(0), lambda x: x.mean((0, 2, 3)), NCHW,
    ),
    "ghost batch norm": (
        lambda x: normalised(x.reshape(4, 2, 10, 10, 256), (1, 2, 3)).reshape(x.shape),
        lambda x: normalised(x.reshape(4, 2, 10, 10, 256), (1, 2, 3)).reshape(x.shape), ODD,
    ),
    "RMS norm of rows": (lambda x: scaled(x.reshape(-1, 256), 1).reshape(x.shape), lambda x: scaled(x, 2), TOKENS),
    "RMS norm of rows, 16 bits": (
        lambda x: scaled(x.reshape(-1, 256).astype(jnp.float32), 1).astype(x.dtype).reshape(x.shape),
        lambda x: scaled(x.astype(jnp.float32), 2).astype(x.dtype), struct(8, 100, 256, dtype=jnp.bfloat16),
    ),
    "RMS norm of groups and pixels": (
        lambda x: scaled(x.reshape(8, -1, 32), 1).reshape(x.shape),
        lambda x: by_hand(x, (1, 2), (8, 32), 1, rms=True), NHWC,
    ),
    "RMS norm of images": (lambda x: scaled(x.reshape(8, -1), 1).reshape(x.shape), lambda x: scaled(x, (1, 2, 3)), ODD),
}  # fmt: skip

# Pooling, patches and heads.


def pooled_by_hand(x):
    """Rows first, which is free; then the columns, of half the size."""
    return x.reshape(8, 8, 2, 16, 256).sum(2).reshape(8, 8, 8, 2, 256).sum(3) / 4


def patches(x):
    return x.reshape(8, 4, 8, 4, 8, 16).transpose(0, 1, 3, 2, 4, 5).reshape(8, 16, -1)


def patches_and_back(x):
    y = jnp.tanh(patches(x)) * 2
    return y.reshape(8, 4, 4, 8, 8, 16).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)


def mean_of_patches(x):
    return x.reshape(8, 4, 8, 4, 8, 16).mean((2, 4))


def mean_of_patches_by_hand(x):
    return x.reshape(8, 4, 8, 32, 16).sum(2).reshape(8, 4, 4, 8, 16).sum(3) / 64


def heads(x):
    return x.reshape(8, 100, 4, 64).transpose(0, 2, 1, 3)


def merged(y):
    return y.transpose(0, 2, 1, 3).reshape(8, 100, 256)


IMAGES = struct(8, 32, 32, 16)
OTHERS = {
    "global average": (lambda x: x.reshape(8, -1, 256).mean(1), lambda x: x.mean((1, 2)), ODD),
    "global maximum, channels first": (lambda x: x.reshape(8, 256, -1).max(2), lambda x: x.max((2, 3)), NCHW),
    "average of everything": (lambda x: x.reshape(-1).mean(), lambda x: x.mean(), ODD),
    "pooling by 2 x 2": (lambda x: x.reshape(8, 8, 2, 8, 2, 256).mean((2, 4)), pooled_by_hand, NHWC),
    "patches": (patches, patches, IMAGES),
    "patches and back": (patches_and_back, lambda x: jnp.tanh(x) * 2, IMAGES),
    "mean of patches": (mean_of_patches, mean_of_patches_by_hand, IMAGES),
    "heads and back": (lambda x: merged(jnp.exp(heads(x)) - 1), lambda x: jnp.exp(x) - 1, TOKENS),
    "a scale for every head": (
        lambda x, s: merged(heads(x) * s[:, None, None]),
        lambda x, s: x * jnp.broadcast_to(s[:, None], (4, 64)).reshape(256), TOKENS, struct(4),
    ),
    "mean of tokens by head": (lambda x: heads(x).mean(2), lambda x: (x.sum(1) / 100).reshape(8, 4, 64), TOKENS),
    "heads gated by a full array": (
        lambda x, z: (x.reshape(8, 100, 4, 64) * z).reshape(x.shape),
        lambda x, z: x * z.reshape(x.shape), TOKENS, struct(8, 100, 4, 64),
    ),
}  # fmt: skip

SPELLINGS = {
    **{f"group norm: {name}": case for name, case in GROUP_NORMS.items()}, **OTHER_NORMS, **OTHERS,
}  # fmt: skip

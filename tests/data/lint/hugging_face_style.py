"""Functions as transformers' Flax models write them; `# finds: RULE` as in flax_style.py."""

import jax
import jax.numpy as jnp
from jax import lax


def S(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def repeat_kv(hidden, n_rep):
    batch, heads, length, width = hidden.shape
    shape = (batch, heads, n_rep, length, width)
    hidden = jnp.broadcast_to(hidden[:, :, None], shape)  # finds: grouped-query-attention, 1325 -> 29
    return hidden.reshape(batch, heads * n_rep, length, width)


def scores_of_repeat_kv(query, key):
    return jnp.matmul(query, repeat_kv(key, 8).transpose(0, 1, 3, 2))


def scores_repeat_transpose_matmul(query, key):
    key = jnp.repeat(key, 8, axis=2)  # finds: grouped-query-attention, 1503 -> 42
    return jnp.matmul(query.transpose(0, 2, 1, 3), key.transpose(0, 2, 3, 1))


def output_repeat_transpose_matmul(weights, value):
    value = jnp.repeat(value, 8, axis=2).transpose(0, 2, 1, 3)  # finds: grouped-query-attention, 5613 -> 23
    return jnp.matmul(weights, value).transpose(0, 2, 1, 3)


def scores_all_heads(query, key):
    return jnp.matmul(query.transpose(0, 2, 1, 3), key.transpose(0, 2, 3, 1))


def rotate_half(x):
    half = x.shape[-1] // 2
    return jnp.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def apply_rotary_halves(x, sin, cos):
    return x * cos + rotate_half(x) * sin


def rotate_every_two(x):
    turned = jnp.stack((-x[..., 1::2], x[..., ::2]), axis=-1)  # finds: interleaved-rotary, 3853 -> 884
    return turned.reshape(x.shape)


def apply_rotary_every_two(x, sin, cos):
    sin = sin[:, None, :].repeat(2, axis=-1)
    cos = cos[:, None, :].repeat(2, axis=-1)
    return x * cos + rotate_every_two(x) * sin


def rms_norm(x, weight):
    variance = jnp.square(x.astype(jnp.float32)).mean(-1, keepdims=True)
    return weight * (x * lax.rsqrt(variance + 1e-6)).astype(x.dtype)


def gelu_new(x):
    return 0.5 * x * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (x + 0.044715 * x**3)))


def relative_position_bias(table, buckets):
    return jnp.transpose(table[buckets], (2, 0, 1))[None]  # finds: small-table-gather, 582 -> 406


def position_embedding(table):
    return table[jnp.arange(1024)][None]


def token_loss_gather(logits, labels):
    logp = jax.nn.log_softmax(logits)  # finds: take-along-minor, 15235 -> 7325
    picked = jnp.take_along_axis(logp, labels[..., None], axis=-1)
    return -picked.mean()


def token_loss_one_hot(logits, labels):
    logp = jax.nn.log_softmax(logits)  # finds: one-hot-loss, 14155 -> 7323
    return -(logp * jax.nn.one_hot(labels, logits.shape[-1])).sum(-1).mean()


def token_loss_logsumexp(logits, labels):
    hit = jnp.arange(logits.shape[-1]) == labels[..., None]
    return (jax.nn.logsumexp(logits, axis=-1) - jnp.where(hit, logits, 0).sum(-1)).mean()


def patch_embedding(pixels, kernel):
    b, h, w = pixels.shape[0], pixels.shape[1] // 16, pixels.shape[2] // 16
    patches = pixels.reshape(b, h, 16, w, 16, 3)  # finds: patches-as-convolution, 939 -> 281
    patches = patches.transpose(0, 1, 3, 2, 4, 5)
    return patches.reshape(b, h * w, 768) @ kernel


def patch_convolution(pixels, kernel):
    return lax.conv_general_dilated(pixels, kernel, (16, 16), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def feed_forward(x, gate, up, down):
    return (jax.nn.silu(x @ gate) * (x @ up)) @ down


EXAMPLES = {
    "scores_of_repeat_kv": (S(8, 64, 1, 128), S(8, 8, 2048, 128)),
    "scores_repeat_transpose_matmul": (S(8, 1, 64, 128), S(8, 2048, 8, 128)),
    "output_repeat_transpose_matmul": (S(8, 64, 1, 2048), S(8, 2048, 8, 128)),
    "scores_all_heads": (S(8, 1, 64, 128), S(8, 2048, 64, 128)),
    "apply_rotary_halves": (S(8, 2048, 32, 64), S(2048, 1, 64), S(2048, 1, 64)),
    "apply_rotary_every_two": (S(8, 2048, 32, 64), S(2048, 32), S(2048, 32)),
    "rms_norm": (S(8192, 2048), S(2048)),
    "gelu_new": (S(8192, 4096),),
    "relative_position_bias": (S(32, 64), S(512, 512, dtype=jnp.int32)),
    "position_embedding": (S(1024, 768),),
    "token_loss_gather": (S(4, 2048, 32000), S(4, 2048, dtype=jnp.int32)),
    "token_loss_one_hot": (S(4, 2048, 32000), S(4, 2048, dtype=jnp.int32)),
    "token_loss_logsumexp": (S(4, 2048, 32000), S(4, 2048, dtype=jnp.int32)),
    "patch_embedding": (S(32, 224, 224, 3), S(768, 768)),
    "patch_convolution": (S(32, 224, 224, 3), S(16, 16, 3, 768)),
    "feed_forward": (S(2048, 1024), S(1024, 4096), S(1024, 4096), S(4096, 1024)),
}

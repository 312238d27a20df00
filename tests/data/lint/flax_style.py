"""Functions as flax.linen's users write them. `# finds: RULE` stands on the line that `tilewright lint` must name.

A function without such a line must stay silent.
"""

import jax
import jax.numpy as jnp
from jax import lax


def S(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def attention_repeated_heads(query, key):
    key = jnp.repeat(key, 8, axis=2)  # finds: grouped-query-attention, 1503 -> 42
    return jnp.einsum("bhd,bkhd->bhk", query, key)


def attention_grouped_heads(query, key):
    query = query.reshape(8, 8, 8, 128)
    return jnp.einsum("bghd,bkgd->bghk", query, key)


def attention_prefill(query, key):
    key = jnp.repeat(key, 8, axis=2)
    return jnp.einsum("bqhd,bkhd->bhqk", query, key)


def dot_product_attention(query, key, value):
    weights = jnp.einsum("bqhd,bkhd->bhqk", query * 128**-0.5, key)  # finds: fused-attention
    weights = jax.nn.softmax(weights)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def masked_attention(query, key, value, mask):
    weights = jnp.einsum("bqhd,bkhd->bhqk", query, key)  # finds: fused-attention
    weights = jnp.where(mask, weights, -1e9)
    weights = jax.nn.softmax(weights)  # finds: softmax-sum, 515 -> 356
    return jnp.einsum("bhqk,bkhd->bqhd", weights, value)


def layer_norm_two_passes(x, scale, bias):
    x = x.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.var(x, axis=-1, keepdims=True)  # finds: one-pass-variance, 714 -> 477
    return (x - mean) * lax.rsqrt(var + 1e-6) * scale + bias


def layer_norm_one_pass(x, scale, bias):
    x = x.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.mean(jnp.square(x), axis=-1, keepdims=True) - jnp.square(mean)
    return (x - mean) * lax.rsqrt(var + 1e-6) * scale + bias


def group_norm(x, kernel):
    y = x.reshape(4, 32, 32, 32, 8)
    mean = y.mean((1, 2, 4), keepdims=True)
    var = (y * y).mean((1, 2, 4), keepdims=True) - mean * mean
    y = ((y - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)
    return conv(jax.nn.silu(y), kernel)


def group_norms_in_a_block(x, kernel):
    def norm(x):
        y = x.reshape(4, 32, 32, 32, 8)
        mean = y.mean((1, 2, 4), keepdims=True)
        var = y.var((1, 2, 4), keepdims=True)  # finds: one-pass-variance, 642 -> 364
        return ((y - mean) * lax.rsqrt(var + 1e-5)).reshape(x.shape)

    y = conv(jax.nn.silu(norm(x)), kernel)
    return x + conv(jax.nn.silu(norm(y)), kernel)


def batch_norm(x, mean, var, scale, bias):
    return (x - mean) * (lax.rsqrt(var + 1e-5) * scale) + bias


def conv(x, kernel, strides=(1, 1), padding="SAME", groups=1):
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )


def stem(x, kernel):
    return lax.conv_general_dilated(x, kernel, (2, 2), [(3, 3), (3, 3)], dimension_numbers=("NHWC", "HWIO", "NHWC"))


def conv_wide(x, kernel):
    return jax.nn.relu(conv(x, kernel))


def conv_in_groups(x, kernel):
    return lax.conv_general_dilated(  # finds: grouped-convolution, 761 -> 238
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=32
    )


def average_pool_by_reshape(x):
    b, h, w, c = x.shape
    return x.reshape(b, h // 2, 2, w // 2, 2, c).mean((2, 4))  # finds: average-pool, 3079 -> 271


def average_pool_by_window(x):
    total = lax.reduce_window(x, jnp.bfloat16(0), lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return total / 4


def max_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def embed(ids, embedding):
    return jnp.take(embedding, ids, axis=0)


def embed_one_hot(ids, embedding):
    return jnp.dot(jax.nn.one_hot(ids, 32000, dtype=embedding.dtype), embedding)  # finds: one-hot-lookup, 8384 -> 158


def dense(x, kernel, bias):
    return jax.nn.gelu(x @ kernel + bias)


F32 = jnp.float32
EXAMPLES = {
    "attention_repeated_heads": (S(8, 64, 128), S(8, 2048, 8, 128)),
    "attention_grouped_heads": (S(8, 64, 128), S(8, 2048, 8, 128)),
    "attention_prefill": (S(1, 2048, 64, 128), S(1, 2048, 8, 128)),
    "dot_product_attention": (S(2, 1024, 8, 128), S(2, 1024, 8, 128), S(2, 1024, 8, 128)),
    "masked_attention": (
        *(S(2, 1024, 8, 128), S(2, 1024, 8, 128), S(2, 1024, 8, 128)),
        S(1, 1, 1024, 1024, dtype=bool),
    ),
    "layer_norm_two_passes": (S(8192, 2048), S(2048), S(2048)),
    "layer_norm_one_pass": (S(8192, 2048), S(2048), S(2048)),
    "group_norm": (S(4, 32, 32, 256), S(3, 3, 256, 256)),
    "group_norms_in_a_block": (S(4, 32, 32, 256), S(3, 3, 256, 256)),
    "batch_norm": (S(32, 28, 28, 256), *[S(256)] * 4),
    "conv": (S(32, 28, 28, 256), S(3, 3, 256, 256)),
    "stem": (S(32, 224, 224, 3), S(7, 7, 3, 64)),
    "conv_wide": (S(32, 28, 28, 256), S(1, 1, 256, 512)),
    "conv_in_groups": (S(32, 28, 28, 256), S(3, 3, 8, 256)),
    "average_pool_by_reshape": (S(32, 56, 56, 256),),
    "average_pool_by_window": (S(32, 56, 56, 256),),
    "max_pool": (S(32, 112, 112, 64),),
    "embed": (S(8, 2048, dtype=jnp.int32), S(32000, 1024)),
    "embed_one_hot": (S(8, 2048, dtype=jnp.int32), S(32000, 1024)),
    "dense": (S(8192, 1024), S(1024, 4096), S(4096)),
}

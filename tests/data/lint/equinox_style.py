"""Functions as equinox' users write them, for one example under `jax.vmap`; `# finds: RULE` as in flax_style.py."""

import jax
import jax.numpy as jnp
from jax import lax


def S(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


@jax.vmap
def query_heads_repeated(query, key):
    key = jnp.repeat(key, 8, axis=0)  # finds: grouped-query-attention, 1325 -> 29
    return jax.vmap(lambda q, k: k @ q)(query, key)


@jax.vmap
def multi_query(query, key):
    return jax.vmap(lambda q: key @ q)(query)


@jax.vmap
def norm_each(x):
    mean = jnp.mean(x)
    return (x - mean) * lax.rsqrt(jnp.var(x) + 1e-5)  # finds: one-pass-variance, 1121 -> 614


@jax.vmap
def rms_each(x):
    return x * lax.rsqrt(jnp.mean(x * x) + 1e-5)


@jax.vmap
def relu_each(x):
    return jax.nn.relu(x)


def conv2d(x, kernel):
    return jax.vmap(lambda image: lax.conv(image[None], kernel, (1, 1), "SAME")[0])(x)


def linear_each(w, b, x):
    return jax.vmap(lambda v: w @ v + b)(x)


def embedding_each(table, ids):
    return jax.vmap(lambda i: table[i])(ids)


def embedding_one_hot(table, ids):
    hot = jax.vmap(lambda i: jax.nn.one_hot(i, 50257, dtype=table.dtype))(ids)  # finds: one-hot-lookup, 4953 -> 60
    return hot @ table


def small_embedding(table, ids):
    return jax.vmap(lambda i: table[i])(ids)  # misses: small-table-gather, 146 -> 64


def global_norm_flat(a, b, c):
    flat = jnp.concatenate([x.reshape(-1) for x in (a, b, c)])  # misses: flattened-sum, 123 -> 48
    return jnp.sqrt(jnp.sum(flat * flat))


def global_norm_tree(a, b, c):
    return jnp.sqrt(sum(jnp.sum(x * x) for x in (a, b, c)))


def sgd_tree(params, grads):
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)


def windows_by_mean(x):
    return x.reshape(x.shape[0], -1, 4, x.shape[-1]).mean(2)  # finds: window-sum, 1235 -> 69


EXAMPLES = {
    "query_heads_repeated": (S(8, 64, 128), S(8, 8, 2048, 128)),
    "multi_query": (S(8, 64, 128), S(8, 2048, 128)),
    "norm_each": (S(8192, 2048, dtype=jnp.float32),),
    "rms_each": (S(8192, 2048, dtype=jnp.float32),),
    "relu_each": (S(32, 64, 28, 28),),
    "conv2d": (S(32, 256, 28, 28), S(256, 256, 3, 3)),
    "linear_each": (S(1024, 1024), S(1024), S(8192, 1024)),
    "embedding_each": (S(50257, 768), S(8192, dtype=jnp.int32)),
    "embedding_one_hot": (S(50257, 768), S(8192, dtype=jnp.int32)),
    "small_embedding": (S(100, 64), S(65536, dtype=jnp.int32)),
    "global_norm_flat": (S(2048, 1024), S(1024), S(1024, 1024)),
    "global_norm_tree": (S(2048, 1024), S(1024), S(1024, 1024)),
    "sgd_tree": ({"w": S(1024, 1024), "b": S(1024)}, {"w": S(1024, 1024), "b": S(1024)}),
    "windows_by_mean": (S(8, 2048, 1024),),
}

"""A transformer of two layers in bfloat16, weights at random: attention with softmax, GELU, layer norms, logits.

`tilewright isa compile examples/transformer.py:forward --run` runs it on the matrix unit and holds every layer against
XLA.
"""

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, HIDDEN, WORDS = 2, 256, 4, 1024, 1000
BATCH, LENGTH = 2, 128


def layer_norm(layer, x):
    """Over the last dim, in float32."""
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    centred = wide - mean
    variance = (centred * centred).mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(variance + 1e-5) * layer["gain"] + layer["bias"]).astype(x.dtype)


def attention(layer, x):
    """Every position looks at itself and those before it."""
    batch, length, width = x.shape
    heads = (batch, length, HEADS, width // HEADS)
    queries, keys, values = ((x @ layer[name]).reshape(heads) for name in ("queries", "keys", "values"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys, preferred_element_type=jnp.float32)
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores * (width // HEADS) ** -0.5, -1e9)).astype(x.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values).reshape(x.shape) @ layer["out"]


def forward(params, tokens):
    """tokens int32[B, L] -> float32[B, L, WORDS]."""
    x = params["words"][tokens] + params["positions"]
    for layer in params["layers"]:
        x = x + attention(layer, layer_norm(layer["before"], x))
        hidden = jax.nn.gelu(layer_norm(layer["between"], x) @ layer["up"])
        x = x + hidden @ layer["down"]
    return jnp.matmul(layer_norm(params["norm"], x), params["words"].T, preferred_element_type=jnp.float32)


def arguments(seed=0):
    """Weights and tokens at random."""
    rng = np.random.default_rng(seed)

    def weights(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(jnp.bfloat16)

    def norm():
        return {"gain": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)}

    layers = []
    for _ in range(LAYERS):
        layer = {name: weights(WIDTH, WIDTH) for name in ("queries", "keys", "values", "out")}
        layer |= {"up": weights(WIDTH, HIDDEN), "down": weights(HIDDEN, WIDTH), "before": norm(), "between": norm()}
        layers.append(layer)
    words, positions = weights(WORDS, WIDTH) * 4, weights(LENGTH, WIDTH)
    params = {"words": words, "positions": positions, "layers": layers, "norm": norm()}
    return params, rng.integers(0, WORDS, (BATCH, LENGTH), np.int32)


EXAMPLES = {"forward": arguments}

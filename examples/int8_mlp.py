"""A perceptron in int8, as it is served: products in int32, brought back to int8 by a scale for every channel.

`tilewright isa compile examples/int8_mlp.py:forward --run` compiles it for the matrix unit, runs it there, and holds
every layer against XLA.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

SIZES = (784, 512, 256, 16)
BATCH = 64


def requantise(sums, scale):
    """int32 -> int8: scaled, rounded to the nearest, ends of the type."""
    return jnp.clip(jnp.round(sums.astype(jnp.float32) * scale), -128, 127).astype(jnp.int8)


def dense(layer, x):
    """x[B, in] int8 by weights [in, out] int8, and a bias, in int32."""
    return jax.lax.dot(x, layer["weights"], preferred_element_type=jnp.int32) + layer["bias"]


def forward(layers, x):
    """Rectified layers; the last one gives its sums."""
    for layer in layers[:-1]:
        x = requantise(jnp.maximum(dense(layer, x), 0), layer["scale"])
    return dense(layers[-1], x)


def arguments(seed=0):
    """Weights and images at random."""
    rng, layers = np.random.default_rng(seed), []
    for fan_in, fan_out in pairwise(SIZES):
        weights = rng.integers(-64, 65, (fan_in, fan_out), np.int8)
        bias = rng.integers(-5000, 5000, fan_out, np.int32)
        scale = rng.uniform(0.5, 1.5, fan_out).astype(np.float32) / (37 * np.sqrt(fan_in, dtype=np.float32))
        layers.append({"weights": weights, "bias": bias, "scale": scale})
    return layers, rng.integers(-128, 128, (BATCH, SIZES[0]), np.int8)


EXAMPLES = {"forward": arguments}

"""A transformer block in bfloat16 with grouped-query attention, weights at random.

    x -> RMS norm -> queries of 8 heads, keys and values of 2 -> rotary positions -> softmax -> out -> + x
      -> RMS norm -> SiLU(gate) * up -> down -> + x

Four query heads share the keys and values of one. `tilewright run examples/gqa_block.py --target simt` runs it on the
matrix unit and holds every layer against XLA; `--target tpu-v5e` models its time.
"""

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, SHARED, HIDDEN = 256, 8, 2, 704
BATCH, LENGTH = 2, 128


def rms_norm(gain, x):
    """Over the last dim, in float32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * gain).astype(x.dtype)


def rotary(x):
    """x[B, L, heads, D]: the halves of every head turned by an angle that grows with the position."""
    half = x.shape[-1] // 2
    turns = np.arange(x.shape[1])[:, None] * 10_000.0 ** (-np.arange(half) / half)
    cos, sin = (jnp.asarray(f(turns), x.dtype)[:, None, :] for f in (np.cos, np.sin))
    low, high = x[..., :half], x[..., half:]
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1)


def attention(layer, x):
    """Every position looks at itself and those before it; HEADS / SHARED query heads share keys and values."""
    batch, length, width = x.shape
    depth = width // HEADS
    queries = rotary((x @ layer["queries"]).reshape(batch, length, HEADS, depth))
    keys = rotary((x @ layer["keys"]).reshape(batch, length, SHARED, depth))
    values = (x @ layer["values"]).reshape(batch, length, SHARED, depth)
    grouped = queries.reshape(batch, length, SHARED, HEADS // SHARED, depth)
    scores = jnp.einsum("bqgrd,bkgd->bgrqk", grouped, keys, preferred_element_type=jnp.float32)
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores * depth**-0.5, -1e9)).astype(x.dtype)
    return jnp.einsum("bgrqk,bkgd->bqgrd", weights, values).reshape(x.shape) @ layer["out"]


def block(layer, x):
    """x bf16[B, L, WIDTH] -> the same."""
    x = x + attention(layer, rms_norm(layer["before"], x))
    between = rms_norm(layer["between"], x)
    return x + (jax.nn.silu(between @ layer["gate"]) * (between @ layer["up"])) @ layer["down"]


def arguments(seed=0):
    """Weights and activations at random."""
    rng = np.random.default_rng(seed)

    def weights(*shape):
        return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(jnp.bfloat16)

    narrow = WIDTH * SHARED // HEADS
    shapes = {
        "queries": (WIDTH, WIDTH),
        "keys": (WIDTH, narrow),
        "values": (WIDTH, narrow),
        "out": (WIDTH, WIDTH),
        "gate": (WIDTH, HIDDEN),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    layer = {name: weights(*shape) for name, shape in shapes.items()}
    layer |= {name: np.ones(WIDTH, np.float32) for name in ("before", "between")}
    return layer, rng.standard_normal((BATCH, LENGTH, WIDTH)).astype(jnp.bfloat16)


EXAMPLES = {"block": arguments}

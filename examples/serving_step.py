"""One decoding step of a language model on 8 chips, compiled ahead of time for a TPU slice that nobody has at hand.

pip install "jax[tpu]" and python examples/serving_step.py write serving_step.hlo, for tilewright time and report.
"""

import functools
import os
import sys
from pathlib import Path

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}  # no TPU here, and no question for one

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, WIDTH, HIDDEN, HEADS, KV, DIM, VOCAB = 32, 4096, 14336, 32, 8, 128, 128256
SEQUENCES, LENGTH = 64, 2048

SHAPES = {
    "q": ((WIDTH, HEADS, DIM), P(None, "model", None)),
    "k": ((WIDTH, KV, DIM), P(None, "model", None)),
    "v": ((WIDTH, KV, DIM), P(None, "model", None)),
    "o": ((HEADS, DIM, WIDTH), P("model", None, None)),
    "gate": ((WIDTH, HIDDEN), P(None, "model")),
    "up": ((WIDTH, HIDDEN), P(None, "model")),
    "down": ((HIDDEN, WIDTH), P("model", None)),
}
CACHE = ((SEQUENCES, KV, LENGTH, DIM), P(None, "model", None, None))


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x.astype(jnp.float32)), -1, keepdims=True) + 1e-5).astype(x.dtype)


def attention(x, layer, keys, values, at):
    """The new token's keys and values go into the cache; it looks at all that stand there."""
    h = norm(x)
    queries = jnp.einsum("bw,whd->bhd", h, layer["q"]).reshape(SEQUENCES, KV, HEADS // KV, DIM)
    keys = jax.lax.dynamic_update_slice(keys, jnp.einsum("bw,whd->bhd", h, layer["k"])[:, :, None], (0, 0, at, 0))
    values = jax.lax.dynamic_update_slice(values, jnp.einsum("bw,whd->bhd", h, layer["v"])[:, :, None], (0, 0, at, 0))
    scores = jnp.einsum("bkgd,bktd->bkgt", queries, keys) * DIM**-0.5
    seen = jax.nn.softmax(jnp.where(jnp.arange(LENGTH) <= at, scores, -jnp.inf))
    out = jnp.einsum("bkgt,bktd->bkgd", seen, values).reshape(SEQUENCES, HEADS, DIM)
    return x + jnp.einsum("bhd,hdw->bw", out, layer["o"]), keys, values


def feed_forward(x, layer):
    h = norm(x)
    return x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]


@functools.partial(jax.jit, donate_argnames="cache")
def step(tokens, embedding, layers, cache, at):
    x = embedding[tokens]
    for number, (layer, (keys, values)) in enumerate(zip(layers, cache, strict=True)):
        x, keys, values = attention(x, layer, keys, values, at)
        cache[number] = keys, values
        x = feed_forward(x, layer)
    return jnp.argmax(norm(x) @ embedding.T, -1), cache


def main(path="serving_step.hlo"):
    slice_ = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x4")
    mesh = topologies.make_mesh(slice_, (8,), ("model",))

    def array(shape, spec, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    layers = [{name: array(*SHAPES[name]) for name in SHAPES} for _ in range(LAYERS)]
    cache = [(array(*CACHE), array(*CACHE)) for _ in range(LAYERS)]
    tokens, at = array((SEQUENCES,), P(), jnp.int32), array((), P(), jnp.int32)
    compiled = step.lower(tokens, array((VOCAB, WIDTH), P("model", None)), layers, cache, at).compile()
    Path(path).write_text(compiled.as_text())


if __name__ == "__main__":
    main(*sys.argv[1:])

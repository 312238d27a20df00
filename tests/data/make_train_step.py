"""Writes hlo_written/train_step.hlo: one training step of a small language model, before XLA's passes.

    ./run python tests/data/make_train_step.py

Four layers in a scan, recomputed on the way back, AdamW with clipping: about two thousand operations, with while loops,
gather and scatter, arrays cut over devices and tuples of more than thirty values. Another jax may print it otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import _hlo

ROOT = Path(__file__).resolve().parents[2]
LAYERS, WIDTH, HEADS, HIDDEN, VOCAB, BATCH, LENGTH = 8, 2048, 16, 8192, 32000, 16, 1024
MESH = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))


def cut(x):
    """The batch lies on eight devices."""
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, PartitionSpec("data")))


def norm(x, scale):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale.astype(x.dtype)


def turned(x):
    """Rotary positions."""
    half = x.shape[-1] // 2
    angles = jnp.arange(LENGTH)[:, None] / 10_000 ** (jnp.arange(half) / half)
    sine, cosine = jnp.sin(angles)[:, None].astype(x.dtype), jnp.cos(angles)[:, None].astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def attention(x, weights):
    query, key, value = (
        jnp.einsum("bsd,dhk->bshk", x, weights[name].astype(x.dtype)) for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bshk,bthk->bhst", turned(query), turned(key)).astype(jnp.float32)
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    share = jax.nn.softmax(jnp.where(seen, scores / query.shape[-1] ** 0.5, -1e9)).astype(x.dtype)
    return jnp.einsum("bhst,bthk,hkd->bsd", share, value, weights["out"].astype(x.dtype))


@jax.checkpoint
def layer(x, weights):
    x = cut(x)
    x = x + cut(attention(norm(x, weights["before_attention"]), weights))
    inner = norm(x, weights["before_mlp"])
    gate, up = inner @ weights["gate"].astype(x.dtype), inner @ weights["up"].astype(x.dtype)
    return x + cut((jax.nn.silu(gate) * up) @ weights["down"].astype(x.dtype)), None


def loss(params, tokens):
    x = params["embedding"].astype(jnp.bfloat16)[tokens[:, :-1]]
    x, _ = jax.lax.scan(layer, cut(x), params["layers"])
    logits = (norm(x, params["last"]) @ params["embedding"].T.astype(x.dtype)).astype(jnp.float32)
    right = jax.nn.one_hot(tokens[:, 1:], VOCAB)
    return -jnp.mean(jnp.sum(right * jax.nn.log_softmax(logits), -1))


OPTIMIZER = optax.chain(
    optax.clip_by_global_norm(1.0), optax.adamw(optax.warmup_cosine_decay_schedule(0, 1e-3, 100, 1000))
)


def train_step(params, state, tokens):
    value, gradient = jax.value_and_grad(loss)(params, tokens)
    updates, state = OPTIMIZER.update(gradient, state, params)
    measures = {"loss": value, "gradient": optax.global_norm(gradient), "params": optax.global_norm(params)}
    return optax.apply_updates(params, updates), state, measures


def main():
    head = WIDTH // HEADS
    shapes = {
        **dict.fromkeys(("query", "key", "value"), (WIDTH, HEADS, head)),
        "out": (HEADS, head, WIDTH),
        **dict.fromkeys(("before_attention", "before_mlp"), (WIDTH,)),
        **dict.fromkeys(("gate", "up"), (WIDTH, HIDDEN)),
        "down": (HIDDEN, WIDTH),
    }
    params = {
        "layers": {name: jax.ShapeDtypeStruct((LAYERS, *shape), jnp.float32) for name, shape in shapes.items()},
        "embedding": jax.ShapeDtypeStruct((VOCAB, WIDTH), jnp.float32),
        "last": jax.ShapeDtypeStruct((WIDTH,), jnp.float32),
    }
    state = jax.eval_shape(OPTIMIZER.init, params)
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32)
    lowered = jax.jit(train_step, donate_argnums=(0, 1)).lower(params, state, tokens)
    options = _hlo.HloPrintOptions()
    options.print_operand_shape = True
    text = _hlo.hlo_module_from_text(lowered.as_text("hlo", debug_info=True)).to_string(options)
    Path(__file__).with_name("hlo_written").joinpath("train_step.hlo").write_text(text.replace(f"{ROOT}/", ""))


main()

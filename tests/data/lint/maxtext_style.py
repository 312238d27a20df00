"""Functions as MaxText's users write them; `# finds: RULE` as in flax_style.py."""

import jax
import jax.numpy as jnp


def S(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def heads_by_take(query, key):
    key = jnp.take(key, jnp.arange(64) // 8, axis=2)  # finds: grouped-query-attention, 5915 -> 42
    return jnp.einsum("bthd,bshd->bhts", query, key)


def heads_by_reshape(query, key):
    b, t, n, d = query.shape
    return jnp.einsum("btkgd,bskd->bkgts", query.reshape(b, t, 8, n // 8, d), key)


def values_repeated(weights, value):
    value = jnp.repeat(value, 8, axis=2)  # finds: grouped-query-attention, 1350 -> 101
    return jnp.einsum("bhts,bshd->bthd", weights, value)


def rotary_split(x, sin, cos):
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotary_interleaved(x, sin, cos):
    first, second = x[..., ::2], x[..., 1::2]  # finds: interleaved-rotary, 3075 -> 884
    out = jnp.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return out.reshape(x.shape)  # finds: rotary-in-halves, 3075 -> 478


def rotary_complex(x, angles):
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)  # finds: interleaved-rotary, 4521 -> 893
    turned = jax.lax.complex(pairs[..., 0], pairs[..., 1])
    turned = turned * jnp.exp(1j * angles)[:, None]
    return jnp.stack([turned.real, turned.imag], axis=-1).reshape(x.shape).astype(x.dtype)


def router(x, gate):
    weights, experts = jax.lax.top_k(jax.nn.softmax(x @ gate), 2)
    return weights / weights.sum(-1, keepdims=True), experts


def queue_places(expert):
    return jnp.cumsum(jax.nn.one_hot(expert, 64), axis=0)


def dispatch_one_hot(x, expert, place):
    mask = jax.nn.one_hot(expert, 8, dtype=x.dtype)[:, :, None] * jax.nn.one_hot(place, 512, dtype=x.dtype)[:, None]
    return jnp.einsum("sec,sd->ecd", mask, x)  # finds: one-hot-dispatch


def combine_one_hot(mixed, expert, place):
    dtype = mixed.dtype
    mask = jax.nn.one_hot(expert, 8, dtype=dtype)[:, :, None] * jax.nn.one_hot(place, 512, dtype=dtype)[:, None]
    return jnp.einsum("sec,ecd->sd", mask, mixed)  # finds: one-hot-dispatch


def dispatch_sorted(x, expert):
    order = jnp.argsort(expert)
    return x[order], jnp.bincount(expert, length=8)


def unsort(mixed, order):
    return mixed[jnp.argsort(order)]


def experts_by_ragged_dot(x, w, sizes):
    return jax.lax.ragged_dot(x, w, sizes)


def experts_in_einsum(x, w):
    return jnp.einsum("ecd,edf->ecf", x, w)


def balance_loss(probabilities, expert):
    hot = jax.nn.one_hot(expert, 64)
    return 64 * (hot.mean(0) * probabilities.mean(0)).sum()


def loss_one_hot_targets(logits, targets):
    hot = jax.nn.one_hot(targets, 32000)  # finds: one-hot-loss, 14156 -> 10523
    shifted = logits - logits.max(-1, keepdims=True)
    return (jnp.log(jnp.exp(shifted).sum(-1)) - (shifted * hot).sum(-1)).mean()


def loss_with_z(logits, targets):
    total = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    return (total - picked + 1e-4 * total**2).mean()


def quantised_dense(x, w, scale):
    weights = w.astype(scale.dtype) * jnp.repeat(scale, 128, axis=1)  # finds: repeated-scales, 414 -> 90
    return x @ weights.T


def quantised_by_channel(x, w, scale):
    return (x @ w.astype(x.dtype)) * scale


def decoder_layer(x, up, down):
    def layer(x, weights):
        return x + jax.nn.gelu(x @ weights[0]) @ weights[1], None

    return jax.lax.scan(layer, x, (up, down))[0]


I32 = jnp.int32
EXAMPLES = {
    "heads_by_take": (S(8, 1, 64, 128), S(8, 2048, 8, 128)),
    "heads_by_reshape": (S(8, 1, 64, 128), S(8, 2048, 8, 128)),
    "values_repeated": (S(8, 64, 1, 2048), S(8, 2048, 8, 128)),
    "rotary_split": (S(8, 2048, 32, 64), S(2048, 1, 32), S(2048, 1, 32)),
    "rotary_interleaved": (S(8, 2048, 32, 64), S(2048, 1, 32), S(2048, 1, 32)),
    "rotary_complex": (S(8, 2048, 32, 64), S(2048, 32, dtype=jnp.float32)),
    "router": (S(8192, 1024), S(1024, 64)),
    "queue_places": (S(8192, dtype=I32),),
    "dispatch_one_hot": (S(4096, 1024), S(4096, dtype=I32), S(4096, dtype=I32)),
    "combine_one_hot": (S(8, 512, 1024), S(4096, dtype=I32), S(4096, dtype=I32)),
    "dispatch_sorted": (S(4096, 1024), S(4096, dtype=I32)),
    "unsort": (S(4096, 1024), S(4096, dtype=I32)),
    "experts_by_ragged_dot": (S(4096, 1024), S(8, 1024, 2048), S(8, dtype=I32)),
    "experts_in_einsum": (S(8, 512, 1024), S(8, 1024, 2048)),
    "balance_loss": (S(8192, 64, dtype=jnp.float32), S(8192, dtype=I32)),
    "loss_one_hot_targets": (S(8192, 32000), S(8192, dtype=I32)),
    "loss_with_z": (S(8192, 32000), S(8192, dtype=I32)),
    "quantised_dense": (S(16, 4096), S(4096, 4096, dtype=jnp.int8), S(4096, 32)),
    "quantised_by_channel": (S(16, 4096), S(4096, 4096, dtype=jnp.int8), S(4096)),
    "decoder_layer": (S(1024, 1024), S(4, 1024, 4096), S(4, 4096, 1024)),
}

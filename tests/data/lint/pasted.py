"""Functions of the files beside this one after pasting what `tilewright lint` prints, with the names in them.

`@pasted` says where the function comes from, which of its names stands for a name or letter of the printed text, and
small arguments to compare both on.
"""

import equinox_style
import flax_style
import hugging_face_style
import jax
import jax.numpy as jnp
import maxtext_style
from jax import lax

PASTED = []


def pasted(function, rule, small, **names):
    def keep(mended):
        PASTED.append((function, mended, rule, small.split(), names))
        return mended

    return keep


@pasted(flax_style.attention_repeated_heads, "grouped-query-attention", "2,64,8 2,5,8,8", q="query", k="key")
def attention_repeated_heads(query, key):
    b, s, g, d = key.shape
    grouped = query.reshape(b, g, 8, d)
    return jnp.einsum("bghd,bkgd->bghk", grouped, key).reshape(b, 8 * g, s)


@pasted(hugging_face_style.scores_of_repeat_kv, "grouped-query-attention", "2,64,1,8 2,8,5,8", q="queries", k="keys")
def scores_of_repeat_kv(query, key):
    queries, keys = query[:, :, 0], key.swapaxes(1, 2)
    b, s, g, d = keys.shape
    grouped = queries.reshape(b, g, 8, d)
    return jnp.einsum("bghd,bkgd->bghk", grouped, keys).reshape(b, 8 * g, s)[:, :, None]


@pasted(flax_style.masked_attention, "softmax-sum", "2,8,2,4 2,8,2,4 2,8,2,4 bool:1,1,8,8", x="weights", v="value")
def masked_attention(query, key, value, mask):
    weights = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    weights = jnp.where(mask, weights, -1e9)
    e = jnp.exp(weights - weights.max(-1, keepdims=True))
    o = jnp.einsum("bhqk,bkhd->bqhd", e, jnp.concatenate([value, jnp.ones_like(value[..., :1])], -1))
    return o[..., :-1] / o[..., -1:]


@pasted(flax_style.layer_norm_two_passes, "one-pass-variance", "8,16 16 16")
def layer_norm_two_passes(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    var = (x * x).mean(-1, keepdims=True) - mean * mean
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale + bias


@pasted(flax_style.embed_one_hot, "one-hot-lookup", "i:2,3 32000,4", table="embedding")
def embed_one_hot(ids, embedding):
    return embedding[ids]


@pasted(hugging_face_style.token_loss_one_hot, "one-hot-loss", "2,3,9 i:2,3", c="logits.shape[-1]", labels="label")
def token_loss_one_hot(batch, labels):
    def rows(logits, label):
        hit = jnp.arange(logits.shape[-1]) == label[:, None]
        return jax.nn.logsumexp(logits, axis=-1) - jnp.where(hit, logits, 0).sum(-1)

    return jax.vmap(rows)(batch, labels).mean()


@pasted(hugging_face_style.token_loss_gather, "take-along-minor", "2,3,9 i:2,3", c="logits.shape[-1]", labels="label")
def token_loss_gather(batch, labels):
    def rows(logits, label):
        hit = jnp.arange(logits.shape[-1]) == label[:, None]
        loss = jax.nn.logsumexp(logits, axis=-1) - jnp.where(hit, logits, 0).sum(-1)
        return loss.astype(jnp.float32).mean()

    return jax.vmap(rows)(batch, labels).mean()


@pasted(hugging_face_style.relative_position_bias, "small-table-gather", "32,4 i:5,5", t="table", i="flat", v="rows")
def relative_position_bias(table, buckets):
    flat, rows = buckets.reshape(-1), table.shape[0]
    bias = jnp.dot(jax.nn.one_hot(flat, rows, dtype=table.dtype), table, precision="highest")
    return bias.reshape(*buckets.shape, -1).transpose(2, 0, 1)[None]


@pasted(
    maxtext_style.rotary_interleaved, "interleaved-rotary", "2,6,3,8 6,1,4 6,1,4", cos="cosine", sin="sine", d="half"
)
def rotary_interleaved(x, sin, cos):
    sine, cosine, half = sin[:, 0], cos[:, 0], x.shape[-1] // 2
    i, j = jnp.arange(2 * half)[:, None], jnp.arange(2 * half)
    signed = jnp.where(i == (j ^ 1), jnp.where(j % 2 == 0, -1, 1), 0).astype(x.dtype)
    c, s = (jnp.repeat(table, 2, axis=-1)[:, None] for table in (cosine, sine))
    return x * c + jnp.dot(x, signed, precision="highest") * s


@pasted(maxtext_style.quantised_dense, "repeated-scales", "3,512 i8:5,512 5,4", s="scale", k="count", g="128")
def quantised_dense(x, w, scale):
    count = scale.shape[1]
    groups = (jnp.arange(count)[:, None] == jnp.arange(count * 128) // 128).astype(scale.dtype)
    return x @ (w.astype(scale.dtype) * jnp.dot(scale, groups, precision="highest")).T


@pasted(equinox_style.windows_by_mean, "window-sum", "2,256,8")
def windows_by_mean(x):
    b, n, d = x.shape[0], x.shape[1] // 4, x.shape[2]
    rows = min(128, 4 * n)
    means = (jnp.arange(rows)[:, None] // 4 == jnp.arange(rows // 4)).astype(x.dtype) / 4
    return jnp.einsum("bnkd,kj->bnjd", x.reshape(b, -1, rows, d), means, precision="highest").reshape(b, n, d)


@pasted(flax_style.conv_in_groups, "grouped-convolution", "2,4,4,64 3,3,2,64", k="kernel", g="32", c="width")
def conv_in_groups(x, kernel):
    width = kernel.shape[2]
    blocks = jnp.zeros((3, 3, 32, width, 32, width), kernel.dtype)
    blocks = blocks.at[:, :, jnp.arange(32), :, jnp.arange(32)].set(
        jnp.moveaxis(kernel.reshape(3, 3, width, 32, width), 3, 0)
    )
    return lax.conv_general_dilated(
        x,
        blocks.reshape(3, 3, 32 * width, 32 * width),
        (1, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


@pasted(flax_style.average_pool_by_reshape, "average-pool", "2,6,6,4")
def average_pool_by_reshape(x):
    total = lax.reduce_window(x.astype("float32"), 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return (total / 4).astype(x.dtype)


@pasted(
    hugging_face_style.patch_embedding, "patches-as-convolution", "2,32,48,3 768,4", x="pixels", k="weights", p="16"
)
def patch_embedding(pixels, weights):
    b, h, w, c, o = len(pixels), pixels.shape[1] // 16, pixels.shape[2] // 16, 3, weights.shape[-1]
    kernel = weights.reshape(16, 16, c, o)
    y = lax.conv_general_dilated(pixels, kernel, (16, 16), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y.reshape(b, h * w, o)

"""Whole steps in plain JAX and optax, models of the sizes of their papers: trained, or one token decoded.

Layers are scanned, unrolled or computed again; products of experts are ragged; caches are written in place.
"""

import functools
import itertools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax import lax
from writing import Case, cross_entropy

PACKAGE = "optax"
PLATFORMS = ("tpu",)


def shapes(tree, dtype=jnp.bfloat16):
    """Arrays of these sizes that were never made."""
    return jax.tree.map(lambda size: jax.ShapeDtypeStruct(size, dtype), tree, is_leaf=lambda x: isinstance(x, tuple))


def integers(*size):
    return jax.ShapeDtypeStruct(size, jnp.int32)


def trained(weights, loss, inputs, optimizer=None):
    """A step: the gradient, the optimizer's update, the new weights."""
    optimizer = optimizer or optax.adamw(1e-4)
    state = jax.eval_shape(optimizer.init, weights)

    def step(weights, state, *inputs):
        value, gradients = jax.value_and_grad(loss)(weights, *inputs)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    return Case(step, weights, (state, *inputs), None, "step", PLATFORMS)


def norm(x, scale):
    kept = x.astype(jnp.float32)
    return (kept * lax.rsqrt(jnp.mean(kept * kept, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def attention(q, k, v, mask=None):
    """Softmax attention; several heads of ``q`` share one of ``k``."""
    batch, length, _, kept = q.shape
    q = q.reshape(batch, length, k.shape[2], -1, kept)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(jnp.float32) * kept**-0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    return jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores).astype(v.dtype), v).reshape(batch, length, -1)


def rotated(x, positions):
    half = x.shape[-1] // 2
    angle = positions[..., None, None] * 1e4 ** (-jnp.arange(half) / half)
    a, b = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@dataclass(frozen=True)
class Decoder:
    """A language model; ``remat``: "" keeps all, "all" keeps nothing, "dots" keeps products of weights."""

    layers: int
    width: int
    heads: int
    kv: int
    kept: int
    inner: int
    vocabulary: int
    gated: bool = True
    parallel: bool = False
    scanned: bool = True
    remat: str = ""
    window: int = 0
    experts: int = 0
    chosen: int = 2
    latent: int = 0

    def weights(self):
        w, q, kv = self.width, self.heads * self.kept, self.kv * self.kept
        layer = {"q": (w, q), "k": (w, kv), "v": (w, kv), "o": (q, w), "norm": (w,), "norm2": (w,)}
        if self.latent:  # keys and values of all heads come from one small vector
            layer |= {"down": (w, self.latent), "k": (self.latent, kv), "v": (self.latent, kv)}
        experts = (self.experts,) if self.experts else ()
        layer |= {"up": (*experts, w, self.inner), "out": (*experts, self.inner, w)}
        layer |= {"gate": (*experts, w, self.inner)} if self.gated else {}
        layer |= {"router": (w, self.experts)} if self.experts else {}
        stacked = {name: (self.layers, *size) for name, size in layer.items()}
        return shapes({"layers": stacked, "table": (self.vocabulary, w), "head": (w, self.vocabulary), "norm": (w,)})

    def feed(self, x, w):
        if not self.experts:
            inner = jax.nn.silu(x @ w["gate"]) * (x @ w["up"]) if self.gated else jax.nn.gelu(x @ w["up"])
            return inner @ w["out"]
        rows = x.reshape(-1, self.width)
        shares, which = lax.top_k(jax.nn.softmax((rows @ w["router"]).astype(jnp.float32)), self.chosen)
        order = jnp.argsort(which.reshape(-1))
        sizes = jnp.bincount(which.reshape(-1), length=self.experts).astype(jnp.int32)
        sorted_ = rows[order // self.chosen]
        inner = jax.nn.silu(lax.ragged_dot(sorted_, w["gate"], sizes)) * lax.ragged_dot(sorted_, w["up"], sizes)
        out = jnp.zeros((*which.shape, self.width), x.dtype).reshape(-1, self.width)
        out = out.at[order].set(lax.ragged_dot(inner, w["out"], sizes)).reshape(*which.shape, self.width)
        return (out * shares[..., None].astype(x.dtype)).sum(1).reshape(x.shape)

    def layer(self, x, w, positions, cache=None):
        batch, length, _ = x.shape
        y = norm(x, w["norm"])
        source = y @ w["down"] if self.latent else y
        q, k, v = y @ w["q"], source @ w["k"], source @ w["v"]
        q, k, v = (a.reshape(batch, length, -1, self.kept) for a in (q, k, v))
        q, k = rotated(q, positions), rotated(k, positions)
        if cache is not None:
            at = positions[0, 0]
            k, v = (lax.dynamic_update_slice(old, new, (0, at, 0, 0)) for old, new in zip(cache, (k, v)))
            mask = jnp.arange(k.shape[1]) <= at
        else:
            rows, columns = positions[0][:, None], positions[0][None]
            mask = (rows >= columns) & (rows - columns < (self.window or length))
        mixed = attention(q, k, v, mask) @ w["o"]
        if self.parallel:
            return x + mixed + self.feed(y, w), (k, v)
        x = x + mixed
        return x + self.feed(norm(x, w["norm2"]), w), (k, v)

    def logits(self, weights, tokens):
        x = weights["table"][tokens]
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

        def body(x, w):
            return self.layer(x, w, positions)[0], None

        if self.remat:
            policies = jax.checkpoint_policies
            body = jax.checkpoint(
                body, policy=policies.dots_with_no_batch_dims_saveable if self.remat == "dots" else None
            )
        if self.scanned:
            x, _ = lax.scan(body, x, weights["layers"])
        else:
            for k in range(self.layers):
                x, _ = body(x, jax.tree.map(lambda w: w[k], weights["layers"]))  # noqa: B023
        return norm(x, weights["norm"]) @ weights["head"]

    def train(self, batch, length, optimizer=None):
        def loss(weights, tokens):
            return cross_entropy(self.logits(weights, tokens)[:, :-1], tokens[:, 1:])

        return lambda: trained(self.weights(), loss, (integers(batch, length),), optimizer)

    def decode(self, batch, room):
        cache = shapes([(self.layers, batch, room, self.kv, self.kept)] * 2)

        def step(weights, cache, tokens, at):
            positions = jnp.broadcast_to(at, (batch, 1))

            def body(x, layer):
                w, k, v = layer
                return self.layer(x, w, positions, (k, v))

            x = weights["table"][tokens][:, None]
            if self.scanned:
                x, cache = lax.scan(body, x, (weights["layers"], *cache))
            else:
                made = []
                for k in range(self.layers):
                    x, new = body(x, jax.tree.map(lambda a: a[k], (weights["layers"], *cache)))  # noqa: B023
                    made.append(new)
                cache = jax.tree.map(lambda *each: jnp.stack(each), *made)
            logits = norm(x, weights["norm"]) @ weights["head"]
            return jnp.argmax(logits[:, 0], -1), cache

        return lambda: Case(step, self.weights(), (cache, integers(batch), integers()), None, "decode", PLATFORMS)


def block(x, w, heads, mask=None, other=None):
    """A layer of an encoder; with ``other`` it looks at that instead of itself."""
    y = norm(x, w["norm"])
    seen = y if other is None else other
    q, k, v = (a.reshape(*a.shape[:2], heads, -1) for a in (y @ w["q"], seen @ w["k"], seen @ w["v"]))
    x = x + attention(q, k, v, mask) @ w["o"]
    return x + jax.nn.gelu(norm(x, w["norm2"]) @ w["up"]) @ w["out"]


def block_weights(width, inner):
    square = dict.fromkeys("qkvo", (width, width))
    return square | {"up": (width, inner), "out": (inner, width), "norm": (width,), "norm2": (width,)}


def encoder(layers, width, heads, inner, vocabulary, batch, length):
    """A masked language model of the BERT family, unrolled."""
    weights = shapes({"layers": [block_weights(width, inner)] * layers, "table": (vocabulary, width)}, jnp.float32)

    def loss(weights, tokens, labels):
        x = weights["table"][tokens]
        for w in weights["layers"]:
            x = block(x, w, heads)
        return cross_entropy(x @ weights["table"].T, labels)

    inputs = (integers(batch, length), integers(batch, length))
    return lambda: trained(weights, loss, inputs, optax.lamb(1e-3))


def translator(layers, width, heads, inner, vocabulary, batch, length):
    """An encoder and a decoder that looks at it, as T5 and Whisper have them, each scanned."""
    many = jax.tree.map(
        lambda size: (layers, *size), block_weights(width, inner), is_leaf=lambda x: isinstance(x, tuple)
    )
    weights = shapes({"in": many, "own": many, "cross": many, "table": (vocabulary, width)}, jnp.float32)

    def loss(weights, source, tokens):
        kept, _ = lax.scan(lambda x, w: (block(x, w, heads), None), weights["table"][source], weights["in"])
        mask = jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool))

        def layer(x, w):
            return block(block(x, w[0], heads, mask), w[1], heads, None, kept), None

        x, _ = lax.scan(layer, weights["table"][tokens], (weights["own"], weights["cross"]))
        return cross_entropy(x[:, :-1] @ weights["table"].T, tokens[:, 1:])

    inputs = (integers(batch, length), integers(batch, length))
    return lambda: trained(weights, loss, inputs, optax.adafactor(1e-3))


def convolved(x, w, stride=1, groups=1, dilation=1):
    dims = ("NHWC", "HWIO", "NHWC") if x.ndim == 4 else ("NWC", "WIO", "NWC")
    spatial = x.ndim - 2
    return lax.conv_general_dilated(
        *(x, w, (stride,) * spatial, "SAME"), None, (dilation,) * spatial, dims, feature_group_count=groups
    )  # fmt: skip


def patches(width, layers, heads, size, patch, batch, classes=1000, mixer=False):
    """A vision transformer; or a mixer, whose tokens are mixed by products."""
    count = (size // patch) ** 2
    layer = block_weights(width, 4 * width)
    if mixer:
        layer = {"up": (width, 4 * width), "out": (4 * width, width), "norm": (width,), "norm2": (width,)}
        layer |= {"mix": (count, count // 2), "mix2": (count // 2, count)}
    many = jax.tree.map(lambda each: (layers, *each), layer, is_leaf=lambda x: isinstance(x, tuple))
    weights = shapes({"cut": (patch, patch, 3, width), "layers": many, "head": (width, classes)})

    def body(x, w):
        if not mixer:
            return block(x, w, heads), None
        y = jnp.swapaxes(norm(x, w["norm"]), 1, 2)
        x = x + jnp.swapaxes(jax.nn.gelu(y @ w["mix"]) @ w["mix2"], 1, 2)
        return x + jax.nn.gelu(norm(x, w["norm2"]) @ w["up"]) @ w["out"], None

    def loss(weights, pictures, labels):
        x = lax.conv_general_dilated(
            pictures, weights["cut"], (patch,) * 2, "VALID", None, None, ("NHWC", "HWIO", "NHWC")
        )
        x, _ = lax.scan(jax.checkpoint(body), x.reshape(batch, count, width), weights["layers"])
        return cross_entropy(x.mean(1) @ weights["head"], labels)

    inputs = (jax.ShapeDtypeStruct((batch, size, size, 3), jnp.bfloat16), integers(batch))
    return lambda: trained(weights, loss, inputs, optax.lion(1e-4))


def images(kind, batch, size):
    """Residual networks of three kinds: bottlenecks, depthwise (ConvNeXt), inverted with squeezes (EfficientNet)."""
    widths, weights = (64, 128, 256, 512), {"stem": (7, 7, 3, 64), "head": (512, 1000)}
    for k, width in enumerate(widths):
        before = widths[max(0, k - 1)]
        weights[f"down{k}"] = (2, 2, before, width)
        weights |= {
            "bottleneck": {f"a{k}": (1, 1, width, width // 4), f"b{k}": (3, 3, width // 4, width // 4),
                           f"c{k}": (1, 1, width // 4, width)},
            "depthwise": {f"a{k}": (7, 7, 1, width), f"b{k}": (1, 1, width, 4 * width),
                          f"c{k}": (1, 1, 4 * width, width)},
            "inverted": {f"a{k}": (1, 1, width, 6 * width), f"b{k}": (5, 5, 1, 6 * width),
                         f"s{k}": (6 * width, width // 4), f"t{k}": (width // 4, 6 * width),
                         f"c{k}": (1, 1, 6 * width, width)},
        }[kind]  # fmt: skip
    weights = shapes(weights, jnp.float32)

    def loss(weights, pictures, labels):
        x = convolved(pictures, weights["stem"], 2)
        for k in range(4):
            x = convolved(x, weights[f"down{k}"], 2)
            y = convolved(x, weights[f"a{k}"], 1, x.shape[-1] if kind == "depthwise" else 1)
            y = convolved(jax.nn.relu(y), weights[f"b{k}"], 1, y.shape[-1] if kind == "inverted" else 1)
            if kind == "inverted":
                y *= jax.nn.sigmoid(jax.nn.silu(y.mean((1, 2)) @ weights[f"s{k}"]) @ weights[f"t{k}"])[:, None, None]
            x = x + convolved(jax.nn.gelu(y), weights[f"c{k}"])
        return cross_entropy(x.mean((1, 2)) @ weights["head"], labels)

    inputs = (jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32), integers(batch))
    return lambda: trained(weights, loss, inputs, optax.sgd(0.1, 0.9))


def denoiser(batch=8, size=64):
    """A U-Net that takes noise away: down, attention in the middle, up over transposed convolutions."""
    widths = (64, 128, 256)
    weights = {"in": (3, 3, 3, 64), "out": (3, 3, 64, 3), **{f"m{name}": (256, 256) for name in "qkvo"}}
    for k, (a, b) in enumerate(itertools.pairwise(widths)):
        weights |= {f"d{k}": (3, 3, a, b), f"e{k}": (3, 3, b, b), f"u{k}": (2, 2, b, a), f"v{k}": (3, 3, 2 * a, a)}
    weights = shapes(weights, jnp.float32)

    def loss(weights, noisy, noise):
        x, kept = convolved(noisy, weights["in"]), []
        for k in range(2):
            kept.append(x)
            x = convolved(jax.nn.silu(convolved(x, weights[f"d{k}"], 2)), weights[f"e{k}"])
        flat = x.reshape(batch, -1, 256)
        q, k, v = ((flat @ weights[f"m{name}"]).reshape(batch, -1, 4, 64) for name in "qkv")
        x = x + (attention(q, k, v) @ weights["mo"]).reshape(x.shape)
        for k in (1, 0):
            x = lax.conv_transpose(x, weights[f"u{k}"], (2, 2), "SAME")
            x = jax.nn.silu(convolved(jnp.concatenate([x, kept[k]], -1), weights[f"v{k}"]))
        return jnp.mean((convolved(x, weights["out"]) - noise) ** 2)

    picture = jax.ShapeDtypeStruct((batch, size, size, 3), jnp.float32)
    return trained(weights, loss, (picture, picture))


def recurrent(cell, width, batch, length, vocabulary=10_000):
    """Language models of an LSTM, a GRU, RWKV's and a state space's layer, a scan over time."""
    gates = {"lstm": 4, "gru": 3, "rwkv": 3}.get(cell, 2)
    weights = {
        "table": (vocabulary, width),
        "x": (width, gates * width),
        "h": (width, gates * width),
        "o": (width, width),
    }
    weights = shapes(weights, jnp.float32)

    def lstm(w, carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x + h @ w["h"], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def gru(w, carry, x):
        h, c = carry
        a, b = jnp.split(x, [2 * width], -1)
        z, r = jnp.split(jax.nn.sigmoid(a + h @ w["h"][:, : 2 * width]), 2, -1)
        h = (1 - z) * h + z * jnp.tanh(b + r * (h @ w["h"][:, 2 * width :]))
        return (h, c), h

    def rwkv(w, carry, x):
        top, below = carry
        r, k, v = jnp.split(x, 3, -1)
        out = jax.nn.sigmoid(r) * (top + jnp.exp(k) * v) / (below + jnp.exp(k))
        return (top * 0.9 + jnp.exp(k) * v, below * 0.9 + jnp.exp(k)), out

    def states(w, xs):  # all steps at once, as a tree
        kept, taken = jnp.split(xs, 2, -1)
        both = lax.associative_scan(
            lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (jax.nn.sigmoid(kept), taken), axis=0
        )
        return both[1]

    def loss(weights, tokens):
        xs = jnp.swapaxes(weights["table"][tokens], 0, 1) @ weights["x"]
        if cell == "states":
            out = states(weights, xs)
        else:
            start = (jnp.zeros((batch, width)), jnp.ones((batch, width)))
            step = functools.partial({"lstm": lstm, "gru": gru, "rwkv": rwkv}[cell], weights)
            _, out = lax.scan(step, start, xs)
        logits = jnp.swapaxes(out, 0, 1) @ weights["o"] @ weights["table"].T
        return cross_entropy(logits[:, :-1], tokens[:, 1:])

    return lambda: trained(weights, loss, (integers(batch, length),), optax.adagrad(0.1))


def wavenet(batch=4, length=8192, width=128, layers=10):
    """Dilated convolutions over sound."""
    layer = {"f": (2, width, 2 * width), "o": (1, width, width)}
    weights = shapes({"in": (1, 1, width), "layers": [layer] * layers, "out": (1, width, 256)}, jnp.float32)

    def loss(weights, sound, labels):
        x = convolved(sound, weights["in"])
        for k, w in enumerate(weights["layers"]):
            a, b = jnp.split(convolved(x, w["f"], dilation=2**k), 2, -1)
            x = x + convolved(jnp.tanh(a) * jax.nn.sigmoid(b), w["o"])
        return cross_entropy(convolved(x, weights["out"]), labels)

    return trained(weights, loss, (jax.ShapeDtypeStruct((batch, length, 1), jnp.float32), integers(batch, length)))


def recommender(batch=4096, tables=26, vocabulary=100_000, width=64):
    """DLRM: lookups, the products of all pairs, two towers."""
    sizes = {"bottom": [(13, 512), (512, 256), (256, width)], "top": [(64 + 351, 512), (512, 256), (256, 1)]}
    weights = shapes({"tables": (tables, vocabulary, width), **sizes}, jnp.float32)

    def loss(weights, dense, ids, clicks):
        for w in weights["bottom"]:
            dense = jax.nn.relu(dense @ w)
        rows = jax.vmap(lambda table, each: table[each])(weights["tables"], ids)
        every = jnp.concatenate([dense[:, None], jnp.swapaxes(rows, 0, 1)], 1)
        pairs = jnp.einsum("bid,bjd->bij", every, every)[:, *jnp.triu_indices(tables + 1, 1)]
        x = jnp.concatenate([dense, pairs], -1)
        for k, w in enumerate(weights["top"]):
            x = x @ w if k == 2 else jax.nn.relu(x @ w)
        return optax.sigmoid_binary_cross_entropy(x[:, 0], clicks).mean()

    floats = [jax.ShapeDtypeStruct(size, jnp.float32) for size in ((batch, 13), (batch,))]
    return trained(weights, loss, (floats[0], integers(tables, batch), floats[1]), optax.adagrad(0.01))


def graph(nodes=10_000, edges=100_000, width=256, layers=3):
    """A graph network: messages over edges are summed at their nodes."""
    weights = shapes(
        {"m": [(2 * width, width)] * layers, "n": [(2 * width, width)] * layers, "o": (width, 40)}, jnp.float32
    )

    def loss(weights, x, ends, labels):
        for m, n in zip(weights["m"], weights["n"]):
            sent = jax.nn.relu(jnp.concatenate([x[ends[0]], x[ends[1]]], -1) @ m)
            got = jax.ops.segment_sum(sent, ends[1], nodes)
            x = jax.nn.relu(jnp.concatenate([x, got], -1) @ n)
        return cross_entropy(x @ weights["o"], labels)

    return trained(
        weights, loss, (jax.ShapeDtypeStruct((nodes, width), jnp.float32), integers(2, edges), integers(nodes))
    )


def triangles(length=256, width=128):
    """AlphaFold's pair stack: triangles multiplied, attention along rows."""
    weights = dict.fromkeys(("a", "b", "g", "c", "q", "k", "v", "o"), (width, width)) | {
        "norm": (width,),
        "norm2": (width,),
    }
    weights = shapes({"layers": {name: (4, *size) for name, size in weights.items()}}, jnp.bfloat16)

    def layer(x, w):
        y = norm(x, w["norm"])
        mixed = jnp.einsum("ikc,jkc->ijc", jax.nn.sigmoid(y @ w["g"]) * (y @ w["a"]), y @ w["b"])
        x = x + mixed @ w["c"]
        y = norm(x, w["norm2"])
        q, k, v = ((y @ w[name]).reshape(length, length, 4, -1) for name in "qkv")
        return x + attention(q, k, v) @ w["o"], None

    def loss(weights, pairs):
        out, _ = lax.scan(jax.checkpoint(layer), pairs, weights["layers"])
        return jnp.mean(out.astype(jnp.float32) ** 2)

    return trained(weights, loss, (jax.ShapeDtypeStruct((length, length, width), jnp.bfloat16),))


def contrastive(batch=256, width=512):
    """CLIP's loss over two towers of products."""
    weights = shapes({"a": [(768, width), (width, width)], "b": [(512, width), (width, width)]}, jnp.float32)

    def tower(x, layers):
        x = jax.nn.gelu(x @ layers[0]) @ layers[1]
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    def loss(weights, pictures, texts):
        logits = 100 * tower(pictures, weights["a"]) @ tower(texts, weights["b"]).T
        return cross_entropy(logits, jnp.arange(batch)) + cross_entropy(logits.T, jnp.arange(batch))

    inputs = [jax.ShapeDtypeStruct((batch, size), jnp.float32) for size in (768, 512)]
    return trained(weights, loss, inputs)


def radiance(rays=1024, samples=64, width=256):
    """NeRF: a small network at every point of every ray."""
    weights = shapes([(60, width), *[(width, width)] * 7, (width, 4)], jnp.float32)

    def loss(weights, points, colours):
        x = points
        for k, w in enumerate(weights):
            x = x @ w if k == 8 else jax.nn.relu(x @ w)
        alpha = 1 - jnp.exp(-jax.nn.relu(x[..., 3]))
        share = alpha * jnp.cumprod(jnp.concatenate([jnp.ones((rays, 1)), 1 - alpha[:, :-1]], 1), 1)
        return jnp.mean(((share[..., None] * jax.nn.sigmoid(x[..., :3])).sum(1) - colours) ** 2)

    inputs = [jax.ShapeDtypeStruct(size, jnp.float32) for size in ((rays, samples, 60), (rays, 3))]
    return trained(weights, loss, inputs)


def chunked_loss(batch=2, length=2048, width=2048, vocabulary=128_256, chunk=256):
    """A loss over a large vocabulary in chunks of tokens, as memory asks for it."""
    weights = shapes({"w": (width, width), "head": (width, vocabulary)})

    def loss(weights, x, labels):
        x = (x @ weights["w"]).reshape(-1, chunk, width)

        @jax.checkpoint
        def part(total, each):
            x, y = each
            return total + cross_entropy(x @ weights["head"], y), None

        total, _ = lax.scan(part, jnp.float32(0), (x, labels.reshape(-1, chunk)))
        return total

    inputs = (jax.ShapeDtypeStruct((batch, length, width), jnp.bfloat16), integers(batch, length))
    return trained(weights, loss, inputs)


def adapted(base):
    """LoRA: small matrices beside frozen ones are trained."""
    rank = 16

    def make():
        weights = base.weights()
        small = {"a": (base.layers, base.width, rank), "b": (base.layers, rank, base.heads * base.kept)}

        def loss(small, weights, tokens):
            added = jnp.einsum("lir,lro->lio", small["a"], small["b"])
            layers = weights["layers"] | {"q": weights["layers"]["q"] + added}
            logits = base.logits(weights | {"layers": layers}, tokens)
            return cross_entropy(logits[:, :-1], tokens[:, 1:])

        return trained(shapes(small), loss, (weights, integers(1, 1024)))

    return make


GPT2 = Decoder(12, 768, 12, 12, 64, 3072, 50_257, gated=False, scanned=False)
LLAMA = Decoder(32, 4096, 32, 8, 128, 14_336, 128_256, remat="all")
MISTRAL = Decoder(32, 4096, 32, 8, 128, 14_336, 32_000, window=1024, remat="dots")
GEMMA = Decoder(18, 2048, 8, 1, 256, 16_384, 256_128)
MIXTRAL = Decoder(32, 4096, 32, 8, 128, 14_336, 32_000, experts=8, remat="all")
FALCON = Decoder(32, 4544, 71, 1, 64, 18_176, 65_024, gated=False, parallel=True)
QWEN = Decoder(28, 1536, 12, 2, 128, 8960, 151_936, remat="dots")
LATENT = Decoder(27, 2048, 16, 16, 128, 1408, 102_400, experts=64, chosen=6, latent=512)
PYTHIA = Decoder(6, 512, 8, 8, 64, 2048, 50_304, gated=False, parallel=True, scanned=False, remat="all")
PHI = Decoder(32, 2560, 32, 32, 80, 10_240, 51_200, gated=False, parallel=True)
MODELS = {
    "gpt2_adamw": GPT2.train(8, 1024),
    "gpt2_muon": GPT2.train(8, 1024, optax.contrib.muon(0.02)),
    "llama3_8b": LLAMA.train(1, 2048),
    "mistral_7b": MISTRAL.train(1, 2048, optax.lion(1e-4)),
    "gemma_2b": GEMMA.train(1, 1024, optax.adafactor(1e-3)),
    "mixtral": MIXTRAL.train(1, 2048, optax.sgd(0.1)),
    "falcon_7b": FALCON.train(1, 1024, optax.sgd(0.1)),
    "qwen2_1_5b": QWEN.train(2, 2048),
    "deepseek_lite": LATENT.train(1, 1024),
    "pythia_70m": PYTHIA.train(4, 512),
    "phi2": PHI.train(1, 1024),
    "llama3_lora": adapted(LLAMA),
    "gpt2_token": GPT2.decode(16, 1024),
    "llama3_token": LLAMA.decode(8, 4096),
    "mistral_token": MISTRAL.decode(16, 2048),
    "phi2_token": PHI.decode(16, 2048),
    "pythia_token": PYTHIA.decode(32, 512),
    "gemma_token": GEMMA.decode(32, 1024),
    "mixtral_token": MIXTRAL.decode(8, 2048),
    "falcon_token": FALCON.decode(8, 2048),
    "qwen2_token": QWEN.decode(64, 1024),
    "deepseek_token": LATENT.decode(16, 1024),
    "bert_base": encoder(12, 768, 12, 3072, 30_522, 16, 512),
    "distilbert": encoder(6, 768, 12, 3072, 30_522, 32, 256),
    "whisper_tiny": translator(4, 384, 6, 1536, 51_865, 8, 448),
    "t5_small": translator(6, 512, 8, 2048, 32_128, 8, 512),
    "vit_b16": patches(768, 12, 12, 224, 16, 64),
    "vit_l14": patches(1024, 24, 16, 224, 14, 32),
    "mixer_b16": patches(768, 12, 12, 224, 16, 64, mixer=True),
    "bottlenecks": images("bottleneck", 64, 224),
    "convnext": images("depthwise", 32, 224),
    "efficientnet": images("inverted", 32, 224),
    "denoiser": denoiser,
    "lstm": recurrent("lstm", 1024, 32, 128),
    "gru": recurrent("gru", 1024, 32, 128),
    "rwkv": recurrent("rwkv", 1024, 32, 256),
    "states": recurrent("states", 1024, 8, 512),
    "wavenet": wavenet,
    "dlrm": recommender,
    "graph": graph,
    "triangles": triangles,
    "clip": contrastive,
    "nerf": radiance,
    "chunked_loss": chunked_loss,
}

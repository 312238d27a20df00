"""A residual network's bottleneck block with group normalisation, its pooling head, loss and gradient, in plain JAX.

    images [8,32,32,256]
       |-> norm, relu, 1x1 conv -> norm, relu, 3x3 conv -> norm, relu, 1x1 conv -> + images     (pre-activation block)
       '-> keys per head, each normalised -> softmax over the pixels -> weighted mean -> logits (attention pooling)

Two kinds of normalisation meet here. The group norm takes its statistics over height, width and the channels of a
group: a rewrite can reduce height and width before the channels are split, and no large reshape remains. The norm of
the keys takes its statistics within a head alone: the split is needed before anything can be reduced, so it stays.

`tilewright optimize examples/resnet_groupnorm.py --target cpu --explain` shows both. A file of JAX functions tells the
commands what to call them with in `EXAMPLES`, from a function's name to something that makes its arguments; the first
one is taken if no name is given (`examples/resnet_groupnorm.py:group_norm` gives one).

`python examples/resnet_groupnorm.py` measures each of them on this machine, as it is and rewritten.
"""

import time

import jax
import jax.numpy as jnp

BATCH, SIDE, CHANNELS, NARROW = 8, 32, 256, 64
GROUPS, HEADS, CLASSES = 32, 8, 10


def group_norm(x, scale, bias):
    """[B, H, W, C] in groups of neighbouring channels, statistics over H, W and the C / GROUPS channels of a group."""
    grouped = x.reshape(*x.shape[:3], GROUPS, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = grouped.var((1, 2, 4), keepdims=True)
    normed = (grouped - mean) * jax.lax.rsqrt(variance + 1e-5)
    return normed.reshape(x.shape) * scale + bias


def conv(x, kernel):
    """A convolution of NHWC images that keeps their size."""
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def block(params, x):
    """Three times norm, relu and convolution, and the input added: the images get their own shape back."""
    y = x
    for layer in params:
        y = conv(jax.nn.relu(group_norm(y, layer["scale"], layer["bias"])), layer["kernel"])
    return x + y


def attention_pool(params, x):
    """One learned query per head looks at the normalised keys of all pixels and takes a mean of the values."""
    pixels = x.reshape(x.shape[0], -1, x.shape[-1])
    keys = (pixels @ params["keys"]).reshape(*pixels.shape[:2], HEADS, -1)
    mean, variance = keys.mean(-1, keepdims=True), keys.var(-1, keepdims=True)
    keys = (keys - mean) * jax.lax.rsqrt(variance + 1e-5)
    values = (pixels @ params["values"]).reshape(keys.shape)
    weights = jax.nn.softmax(jnp.einsum("hd,bnhd->bhn", params["queries"], keys))
    return jnp.einsum("bhn,bnhd->bhd", weights, values).reshape(x.shape[0], -1)


def loss(params, images, labels):
    """Mean cross entropy of the logits."""
    logits = attention_pool(params["pool"], block(params["block"], images)) @ params["logits"]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def train_step(params, images, labels):
    """One step of gradient descent: (loss, new parameters)."""
    value, gradient = jax.value_and_grad(loss)(params, images, labels)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)


def init(key):
    """Parameters of the block and its head."""
    shapes = [(1, 1, CHANNELS, NARROW), (3, 3, NARROW, NARROW), (1, 1, NARROW, CHANNELS)]
    kernels, (keys, values, queries, logits) = jax.random.split(key, 3), jax.random.split(key, 4)
    return {
        "block": [
            {
                "scale": jnp.ones(shape[2]),
                "bias": jnp.zeros(shape[2]),
                "kernel": jax.nn.initializers.he_normal()(k, shape),
            }
            for k, shape in zip(kernels, shapes)
        ],
        "pool": {
            "keys": jax.random.normal(keys, (CHANNELS, CHANNELS)) / 16,
            "values": jax.random.normal(values, (CHANNELS, CHANNELS)) / 16,
            "queries": jax.random.normal(queries, (HEADS, CHANNELS // HEADS)),
        },
        "logits": jax.random.normal(logits, (CHANNELS, CLASSES)) / 16,
    }


def batch(key):
    """Images and labels."""
    return jax.random.normal(key, (BATCH, SIDE, SIDE, CHANNELS)), jnp.arange(BATCH) % CLASSES


def training_arguments():
    """What train_step and loss are called with."""
    return init(jax.random.key(0)), *batch(jax.random.key(1))


def norm_arguments():
    """What group_norm is called with."""
    return batch(jax.random.key(1))[0], jnp.ones(CHANNELS), jnp.zeros(CHANNELS)


EXAMPLES = {"train_step": training_arguments, "loss": training_arguments, "group_norm": norm_arguments}


def fastest(functions, arguments, rounds=20):
    """The best time of each function in seconds, taken in turns so that all see the same machine."""
    best = dict.fromkeys(functions, float("inf"))
    for function in functions:
        jax.block_until_ready(function(*arguments))
    for _ in range(rounds):
        for function in functions:
            start = time.perf_counter()
            jax.block_until_ready(function(*arguments))
            best[function] = min(best[function], time.perf_counter() - start)
    return best.values()


def main():
    """Original and rewritten, side by side."""
    import tilewright

    for name, make in EXAMPLES.items():
        arguments = jax.block_until_ready(make())
        original, rewritten = jax.jit(globals()[name]), tilewright.optimize(globals()[name], target="cpu")
        before, after = fastest([original, rewritten], arguments)
        print(f"{name:14} {before * 1e3:7.2f} ms -> {after * 1e3:7.2f} ms, {before / after:.2f} times as fast")


if __name__ == "__main__":
    main()

"""ResNet-50 in int8, weights at random: 53 convolutions in int32, brought back to int8 by a scale for every channel.

    image [1,224,224,3] -> 7x7 -> max pool -> 3, 4, 6, 3 blocks (1x1, 3x3, 1x1, + shortcut) -> mean -> classes

`tilewright isa compile examples/resnet50_int8.py:forward --run` runs it on the matrix unit and holds every layer
against XLA.
"""

import jax
import jax.numpy as jnp
import numpy as np

BLOCKS = (3, 4, 6, 3)
SIDE, CLASSES = 224, 1000


def int8(values):
    """float32 -> int8: rounded to the nearest, ends of the type."""
    return jnp.clip(jnp.round(values), -128, 127).astype(jnp.int8)


def conv(layer, x, stride=1):
    """A convolution of NHWC images that keeps their size (or halves it), scaled to float32."""
    pad = (layer["weights"].shape[0] - 1) // 2
    sums = jax.lax.conv_general_dilated(
        x, layer["weights"], (stride, stride), ((pad, pad), (pad, pad)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"), preferred_element_type=jnp.int32,
    )  # fmt: skip
    return (sums + layer["bias"]).astype(jnp.float32) * layer["scale"]


def block(layers, x, stride):
    """1x1, 3x3 and 1x1 convolutions, and the input (or a convolution of it) added."""
    y = int8(jax.nn.relu(conv(layers["narrow"], x)))
    y = int8(jax.nn.relu(conv(layers["middle"], y, stride)))
    shortcut = int8(conv(layers["shortcut"], x, stride)) if "shortcut" in layers else x
    return int8(jax.nn.relu(conv(layers["wide"], y) + shortcut.astype(jnp.float32)))


def forward(params, images):
    """images int8[n, h, w, 3] -> the classes' sums, int32[n, CLASSES]."""
    x = int8(jax.nn.relu(conv(params["stem"], images, 2)))
    pad = ((0, 0), (1, 1), (1, 1), (0, 0))
    x = jax.lax.reduce_window(x, np.int8(-128), jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pad)
    for stage, blocks in enumerate(params["stages"]):
        for number, layers in enumerate(blocks):
            x = block(layers, x, 2 if stage and not number else 1)
    pixels = x.shape[1] * x.shape[2]
    mean = int8(x.astype(jnp.int32).sum((1, 2)).astype(jnp.float32) / pixels)
    return jax.lax.dot(mean, params["classes"], preferred_element_type=jnp.int32)


def stage(blocks, x):
    """One stage alone: blocks at one size, the first of them halving it. x int8[n, h, w, depth]."""
    for number, layers in enumerate(blocks):
        x = block(layers, x, 1 if number else 2)
    return x


def arguments(seed=0, side=SIDE, blocks=BLOCKS):
    """Weights and an image at random; scales keep the numbers' spread from layer to layer."""
    rng = np.random.default_rng(seed)

    def layer(kernel, depth, outs):
        weights = rng.integers(-32, 33, (kernel, kernel, depth, outs), np.int8)
        bias = rng.integers(-2000, 2000, outs, np.int32)
        scale = rng.uniform(0.8, 1.6, outs).astype(np.float32) / (18 * np.sqrt(weights[..., 0].size, dtype=np.float32))
        return {"weights": weights, "bias": bias, "scale": scale}

    params, depth = {"stem": layer(7, 3, 64), "stages": []}, 64
    for stage, count in enumerate(blocks):
        narrow, stage_blocks = 64 << stage, []
        for number in range(count):
            made = {"narrow": layer(1, depth, narrow), "middle": layer(3, narrow, narrow)}
            made["wide"] = layer(1, narrow, 4 * narrow)
            if not number:
                made["shortcut"] = layer(1, depth, 4 * narrow)
            stage_blocks.append(made)
            depth = 4 * narrow
        params["stages"].append(stage_blocks)
    params["classes"] = rng.integers(-32, 33, (depth, CLASSES), np.int8)
    return params, rng.integers(-128, 128, (1, side, side, 3), np.int8)


def stage_arguments(seed=0, number=1, side=56, count=BLOCKS[1]):
    """Weights of the second stage, whose blocks have 28 x 28 pixels, and activations of the first."""
    params, _ = arguments(seed, blocks=tuple(count if k == number else 1 for k in range(number + 1)))
    depth = 128 << number
    return params["stages"][number], np.random.default_rng(seed).integers(-128, 128, (1, side, side, depth), np.int8)


EXAMPLES = {"forward": arguments, "stage": stage_arguments}

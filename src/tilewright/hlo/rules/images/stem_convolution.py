"""The first convolution of an image model: three channels leave lanes empty; blocks of four pixels fill more."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule


def _stem(node: Node) -> bool:
    """Two spatial dims, stride 2, few channels, an odd or even window of at least 3, even image sizes, no dilation."""
    own, (image, kernel) = node.attributes, node.operands
    if own["numbers"] != ("b01f", "01io", "b01f") or own["strides"] != (2, 2) or own["groups"] != 1:
        return False
    plain = (
        own["lhs_dilation"] == own["rhs_dilation"] == (1, 1) and own["batch_groups"] == 1 and not any(own["reversal"])
    )
    even = image.sizes[1] % 2 == 0 and image.sizes[2] % 2 == 0
    return plain and even and image.sizes[3] <= 4 and min(kernel.sizes[:2]) >= 3 and min(own["padding"][0]) >= 0


def _build(match: Match, root: Node, make: Maker) -> Value:
    """Blocks of 2 x 2 pixels become channels of a convolution of stride 1; the kernel is padded to whole blocks.

    Tap ``u`` of the kernel meets pixel ``2 i + u - low``. With ``s = low mod 2`` rows of zeros before the kernel the
    shift is even, so tap ``u + s = 2 a + r`` meets row r of block ``i + a - (low + s) / 2``.
    """
    own, (image, kernel) = root.attributes, root.operands
    batch, high, wide, channels = image.sizes
    blocks = make.transpose(make.reshape(image, (batch, high // 2, 2, wide // 2, 2, channels)), (0, 1, 3, 2, 4, 5))
    blocks = make.reshape(blocks, (batch, high // 2, wide // 2, 4 * channels))
    before = [low % 2 for low, _ in own["padding"]]
    after = [(kernel.sizes[k] + before[k]) % 2 for k in range(2)]
    zero = make.constant("0.0", kernel.dtype)
    whole = make.pad(kernel, zero, (*before, 0, 0), (*after, 0, 0))
    taps = [whole.sizes[k] // 2 for k in range(2)]
    split = make.reshape(whole, (taps[0], 2, taps[1], 2, channels, kernel.sizes[3]))
    folded = make.reshape(make.transpose(split, (0, 2, 1, 3, 4, 5)), (*taps, 4 * channels, kernel.sizes[3]))
    padding = []
    for k in range(2):
        low = (own["padding"][k][0] + before[k]) // 2
        padding.append((low, root.result.sizes[k + 1] - 1 + taps[k] - low - blocks.sizes[k + 1]))
    return make.convolution(
        blocks, folded, own["numbers"], (1, 1), padding, dtype=root.result.dtype, precision=own["precision"]
    )


def _pays(match: Match, root: Node) -> bool:
    """Large batches in bf16 only: in f32, and for a few images, whole models took up to twice the estimated cycles."""
    image: Value = match.image
    large = image.sizes[0] >= 16 and image.sizes[1] >= 128
    return image.dtype == "bf16" and large and bool(match.kernel.sizes[0] >= 7)


RULE = Rule(
    name="stem-convolution",
    phase="shape",
    summary="a convolution of stride 2 on at most 4 channels: blocks of 2 x 2 pixels as channels",
    finding="the image has so few channels that the matrix unit is mostly empty",
    change="give the model images with blocks of 2 x 2 pixels as channels, and a kernel folded the same way",
    source="the TPU compiler's estimate (specs/rules.md, 23)",
    pattern=op("convolution", anything("image"), anything("kernel"), where=_stem),
    roots=frozenset({"convolution"}),
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="""
            return lax.conv_general_dilated(
                x, k, (2, 2), [(3, 3), (3, 3)], dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        after="""
            blocks = x.reshape(b, h, 2, w, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, h, w, 4 * c)
            whole = jnp.pad(k, ((1, 0), (1, 0), (0, 0), (0, 0))).reshape(4, 2, 4, 2, c, o)
            folded = whole.transpose(0, 2, 1, 3, 4, 5).reshape(4, 4, 4 * c, o)
            return lax.conv_general_dilated(
                blocks, folded, (1, 1), [(2, 1), (2, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        shapes="x: T[b,2*h,2*w,c]\nk: T[7,7,c,o]",
        sizes="b=32 h=112 w=112 c=3 o=64",
        small="b=2 h=4 w=5 c=3 o=4",
        draw="b=1..2 h=3..5 w=3..5 c=1..4 o=1..3",
        types=("bf16", "f32"),
        away="""
            return lax.conv_general_dilated(
                x, k, (1, 1), [(3, 3), (3, 3)], dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
    ),
)

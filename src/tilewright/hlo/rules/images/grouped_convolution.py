"""A convolution in narrow groups of channels: each fills a few rows of the matrix unit, one group after the other."""

from __future__ import annotations

from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule


def _grouped(node: Node) -> bool:
    own = node.attributes
    return own["groups"] > 1 and own["batch_groups"] == 1 and _width(node) > 1


def _width(node: Node) -> int:
    """Channels that one group reads."""
    letters: str = node.attributes["numbers"][1]
    return node.operands[1].sizes[letters.index("i")]


def _build(match: Match, root: Node, make: Maker) -> Value:
    """The groups' kernels as blocks on the diagonal of one kernel; zeros elsewhere."""
    own, kernel = root.attributes, match.kernel
    letters, groups, width = own["numbers"][1], own["groups"], _width(root)
    spatial = sorted(letter for letter in letters if letter.isdigit())
    turned = make.transpose(kernel, [letters.index(letter) for letter in (*spatial, "i", "o")])
    rank, outputs = len(spatial), turned.sizes[-1]
    window = turned.sizes[:rank]
    stacked = make.broadcast(turned, (*window, groups, width, outputs), [*range(rank), rank + 1, rank + 2])
    stacked = make.reshape(stacked, (*window, groups * width, outputs))
    of_channel, of_output = (
        make.binary("divide", make.along(stacked.sizes, rank + k, "i32"), make.full(str(size), "i32", stacked.sizes))
        for k, size in enumerate((width, outputs // groups))
    )
    blocks = make.select(
        make.compare(of_channel, of_output, "EQ"), stacked, make.full("0.0", kernel.dtype, stacked.sizes)
    )
    numbers = (own["numbers"][0], "".join((*spatial, "i", "o")), own["numbers"][2])
    attributes = {**own, "numbers": numbers, "groups": 1}
    return make.operation("convolution", [match.image, blocks], root.result.sizes, root.result.dtype, attributes)


def _pays(match: Match, root: Node) -> bool:
    """Images in as many channels as the zeros are cheap for; a gradient needs the groups anyhow, and lost by it."""
    channels, kernel = root.attributes["groups"] * _width(root), match.kernel
    taps = prod(kernel.sizes) // (kernel.sizes[root.attributes["numbers"][1].index("o")] * _width(root))
    if channels > 384 or taps > 25 or len(root.result.sizes) != 4 or not 4 <= _width(root) <= 32:
        return False
    return all(user is root or user.block is not root.block for user in match.image.users)


RULE = Rule(
    name="grouped-convolution",
    phase="work",
    summary="a convolution in narrow groups of channels: one convolution with the groups' kernels on a diagonal",
    finding="each group of channels fills a few of the matrix unit's 128 rows, and the groups take turns",
    change="write the groups' kernels as blocks on the diagonal of one kernel: feature_group_count=1",
    source="the TPU compiler's estimate: 1.5 to 2.5 for groups of 8 and 16 channels",
    pattern=op("convolution", anything("image"), anything("kernel"), where=_grouped),
    roots=frozenset({"convolution"}),
    pays=_pays,
    build=_build,
    finite=("image", "kernel"),
    exact=False,
    families=("tpu",),
    example=Example(
        before="""
            return lax.conv_general_dilated(
                x, k, (1, 1), "SAME", feature_group_count=g, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        after="""
            blocks = jnp.zeros((3, 3, g, c, g, c), k.dtype)
            blocks = blocks.at[:, :, jnp.arange(g), :, jnp.arange(g)].set(jnp.moveaxis(k.reshape(3, 3, c, g, c), 3, 0))
            return lax.conv_general_dilated(
                x, blocks.reshape(3, 3, g * c, g * c), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        shapes="x: T[b,s,s,g*c]\nk: T[3,3,c,g*c]",
        sizes="b=32 s=28 g=32 c=8",
        small="b=1 s=3 g=2 c=2",
        draw="b=1..2 s=2..4 g=2..3 c=2..3",
        types=("bf16", "f32"),
        away="""
            return lax.conv_general_dilated(
                x, k[:, :, :1], (1, 1), "SAME", feature_group_count=g * c, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
    ),
)

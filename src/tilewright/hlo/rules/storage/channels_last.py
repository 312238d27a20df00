"""Images that come in with their channels first and are turned at every call: only the caller can store them turned."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule


def _turns_an_argument(match: Match, root: Node) -> bool:
    images, outermost = match.images, root.block is not None and root.block.owner is None
    return outermost and images.operation is None and len(images.sizes) == 4


RULE = Rule(
    name="channels-last",
    phase="advice",
    summary="images given as [N,C,H,W] and turned at every call: hand them over as [N,H,W,C]",
    finding="the images come in with their channels first and are turned to channels last at every call",
    change="store the images as [N,H,W,C] where they are loaded, and drop the transpose",
    source="the TPU compiler's estimate; where it lays the argument out as the convolution wants it, nothing is gained",
    pattern=op("transpose", anything("images"), permutation=(0, 2, 3, 1)),
    roots=frozenset({"transpose"}),
    where=_turns_an_argument,
    build=None,
    example=Example(
        before="""
            images = jnp.transpose(x, (0, 2, 3, 1))
            return lax.conv_general_dilated(images, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        after="""
            return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        shapes="x: T[n,c,s,s]\nw: T[7,7,c,k]",
        after_shapes="x: T[n,s,s,c]\nw: T[7,7,c,k]",
        sizes="n=32 c=3 s=224 k=64",
        small="n=2 c=3 s=8 k=4",
        away="""
            images = jnp.transpose(x * 2, (0, 2, 3, 1))
            return lax.conv_general_dilated(images, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        types=("bf16", "f32"),
    ),
)

"""Every other pixel of a convolution's result: three quarters of the work is thrown away."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Pattern, made_by
from tilewright.hlo.rules.rule import Example, Rule


class _Strided(Pattern):
    """A slice with strides in spatial dims of a convolution that has no other user."""

    def accepts(self, value: Value, match: Match) -> bool:
        cut = made_by(value, "slice")
        made = made_by(cut.operands[0], "convolution") if cut is not None else None
        if cut is None or made is None or len(made.result.users) != 1:
            return False
        letters = made.attributes["numbers"][2]
        own = cut.attributes
        for d, letter in enumerate(letters):
            step, start = own["strides"][d], own["start"][d]
            plain = step == 1 and start == 0 and own["limit"][d] == made.result.sizes[d]
            if not plain and (not letter.isdigit() or start >= step or own["limit"][d] <= made.result.sizes[d] - step):
                return False
        match.found.update(cut=cut, made=made)
        return max(own["strides"]) > 1 and not any(made.attributes["reversal"])


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    own, cut = match.made.attributes, match.cut.attributes
    letters = own["numbers"][2]
    strides, padding = list(own["strides"]), [list(pair) for pair in own["padding"]]
    image, kernel = match.made.operands
    for d, letter in enumerate(letters):
        if not letter.isdigit():
            continue
        k = int(letter)
        padding[k][0] -= cut["start"][d] * strides[k]
        strides[k] *= cut["strides"][d]
        size = (image.sizes[own["numbers"][0].index(letter)] - 1) * own["lhs_dilation"][k] + 1
        window = (kernel.sizes[own["numbers"][1].index(letter)] - 1) * own["rhs_dilation"][k] + 1
        padding[k][1] = (root.result.sizes[d] - 1) * strides[k] + window - size - padding[k][0]
    attributes = {**own, "strides": tuple(strides), "padding": tuple((low, high) for low, high in padding)}
    return make.operation("convolution", [image, kernel], root.result.sizes, root.result.dtype, attributes)


RULE = Rule(
    name="strided-convolution-result",
    phase="work",
    summary="conv(x)[:, ::2, ::2] becomes a convolution of stride 2",
    finding="a convolution computes every pixel, and only every other one is used",
    change="give the convolution the stride: window_strides=(2, 2)",
    source="the TPU compiler's estimate",
    pattern=_Strided(),
    roots=frozenset({"slice"}),
    build=_build,
    example=Example(
        before="""
            y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return y[:, ::2, ::2]
        """,
        after="""
            return lax.conv_general_dilated(
                x, k, (2, 2), [(1, h % 2), (1, w % 2)], dimension_numbers=("NHWC", "HWIO", "NHWC"))
        """,
        shapes="x: T[b,h,w,c]\nk: T[3,3,c,o]",
        sizes="b=32 h=56 w=56 c=64 o=64",
        small="b=2 h=4 w=5 c=3 o=4",
        draw="b=1..2 h=2..6 w=2..6 c=1..3 o=1..3",
        types=("bf16", "f32"),
        away="""
            y = lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            return y[:, 1:, :2]
        """,
    ),
)

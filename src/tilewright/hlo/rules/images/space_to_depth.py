"""Blocks of pixels into channels, written as reshape, transpose, reshape: strided slices side by side move less."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Pattern, Regroup, regroup_of
from tilewright.hlo.rules.rule import Example, Rule


class _Blocks(Pattern):
    """[b, H, p, W, q, c] -> [b, H, W, p, q, c], the last three joined."""

    def accepts(self, value: Value, match: Match) -> bool:
        cut = regroup_of(value)
        if cut is None or len(value.sizes) != 4 or len(cut.source.sizes) != 4:
            return False
        if [len(sizes) for sizes in cut.parts] != [1, 2, 2, 1] or cut.order != (0, 1, 3, 2, 4, 5):
            return False
        batch, high, down, wide, across, channels = cut.flat
        match.found["cut"] = cut
        return value.sizes == (batch, high, wide, down * across * channels)


def _build(match: Match, root: Node, make: Maker) -> Value:
    cut: Regroup = match.cut
    down, across = cut.parts[1][1], cut.parts[2][1]
    parts = []
    for i in range(down):
        for j in range(across):
            sizes = cut.source.sizes
            parts.append(make.slice(cut.source, (0, i, j, 0), sizes, (1, down, across, 1)))
    return make.concatenate(parts, 3)


RULE = Rule(
    name="space-to-depth",
    phase="movement",
    summary="space to depth by reshape and transpose: strided slices and one concatenation",
    finding="pixels change places with channels through a transpose of an array with tiny inner dims",
    change="jnp.concatenate([x[:, i::2, j::2] for i in range(2) for j in range(2)], axis=-1)",
    source="the TPU compiler's estimate (specs/rules.md, 12)",
    pattern=_Blocks(),
    roots=frozenset({"reshape"}),
    pays=lambda match, root: match.cut.flat[5] <= 64 and match.cut.flat[2] * match.cut.flat[4] <= 4,
    build=_build,
    example=Example(
        before="""
            y = x.reshape(b, h, 2, w, 2, c).transpose(0, 1, 3, 2, 4, 5)
            return y.reshape(b, h, w, 4 * c)
        """,
        after="""
            return jnp.concatenate([x[:, i::2, j::2] for i in range(2) for j in range(2)], axis=-1)
        """,
        shapes="x: T[b,2*h,2*w,c]",
        sizes="b=12 h=112 w=112 c=3",
        small="b=2 h=2 w=3 c=3",
        draw="b=2..3 h=2..3 w=2..3 c=2..4",
        types=("bf16", "f32"),
        away="""
            y = x.reshape(b, h, 2, w, 2, c).transpose(0, 1, 3, 2, 4, 5)
            return y.reshape(b * h * w, 2, 2, c)
        """,
    ),
)

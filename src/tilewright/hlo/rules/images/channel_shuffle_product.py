"""A channel shuffle by itself: a transpose of the minor dims, whose tiles are mostly padding, as a product instead."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.images.channel_shuffle import shuffle_of
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes, precision_for


def _where(match: Match, root: Node) -> bool:
    cut = shuffle_of(root.result)
    if cut is None or root.result.dtype not in ("bf16", "f32"):
        return False
    match.found["x"] = cut.source
    return True


def _pays(match: Match, root: Node) -> bool:
    return 64 <= root.result.sizes[-1] <= 1024 and megabytes(root.result) >= 0.5


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    cut = shuffle_of(root.result)
    if cut is None:
        return None
    (groups, size), channels, last = cut.parts[-1], root.result.sizes[-1], len(root.result.sizes) - 1
    shape = (channels, channels)
    columns, count = make.along(shape, 1), make.full(str(groups), "i32", shape)
    first = make.binary("multiply", make.binary("remainder", columns, count), make.full(str(size), "i32", shape))
    origin = make.binary("add", first, make.binary("divide", columns, count))
    matrix = make.convert(make.compare(make.along(shape, 0), origin, "EQ"), cut.source.dtype)
    return make.dot(cut.source, matrix, ((last,), (0,)), precision=precision_for(cut.source.dtype))


RULE = Rule(
    name="channel-shuffle",
    phase="movement",
    summary="a channel shuffle: a product with a permutation instead of a transpose of the minor dims",
    finding="channels are shuffled by a transpose whose last dim is the number of groups, and a tile is mostly padding",
    change="shuffle the rows of the weights that follow, or multiply by a permutation matrix",
    source="the TPU compiler's estimate (specs/rules.md, 14)",
    pattern=op("reshape", anything("turned")),
    roots=frozenset({"reshape"}),
    where=_where,
    pays=_pays,
    build=_build,
    finite=("x",),
    example=Example(
        before="return x.reshape(b, h, w, g, n).swapaxes(-1, -2).reshape(b, h, w, g * n)",
        after="""
            i = jnp.arange(g * n)
            permutation = (i[:, None] == i % g * n + i // g).astype(x.dtype)
            return jnp.dot(x, permutation, precision="highest")
        """,
        shapes="x: T[b,h,w,g*n]",
        sizes="b=32 h=28 w=28 g=4 n=60",
        small="b=2 h=2 w=2 g=2 n=3",
        draw="b=1..2 h=1..3 g=2..3 n=2..4",
        types=("bf16", "f32"),
        away="return x.reshape(b, g * n, h, w).swapaxes(-1, -2).reshape(b, h, w, g * n)",
    ),
)

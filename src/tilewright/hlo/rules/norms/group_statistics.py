"""Statistics over groups of the minor dim: grouped layer norm, a norm a head, shares of a group's sum."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.groups import Groups
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes


def _pays(match: Match, root: Node) -> bool:
    """Groups that leave lanes empty, in arrays large enough that the products are not the longer part."""
    sizes = root.operands[0].sizes
    return 8 <= sizes[-1] <= 64 and root.result.sizes[-1] <= 1024 and megabytes(root.result) >= 8


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    plan = Groups(root).plan
    return plan(make) if plan is not None else None


RULE = Rule(
    name="group-statistics",
    phase="shape",
    summary="sums over groups of the minor dim, spread again: products with a 0/1 matrix instead of reshapes",
    finding="the minor dim is taken apart into groups: each fills part of a tile's lanes, and the array is copied",
    change="leave the columns as they are: sum by x @ m with m[i, i // n] = 1, spread again by @ m.T",
    source="the TPU compiler's estimate (specs/rules.md, 8)",
    pattern=op("reshape", anything("groups")),
    roots=frozenset({"reshape"}),
    where=lambda match, root: Groups(root).plan is not None,
    pays=_pays,
    build=_build,
    finite=("groups",),
    exact=False,
    example=Example(
        before="""
            y = x.astype("float32").reshape(n, g, 64)
            y = (y - y.mean(-1, keepdims=True)) * lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
            return y.reshape(n, 64 * g).astype(x.dtype)
        """,
        after="""
            m = (jnp.arange(64 * g)[:, None] // 64 == jnp.arange(g)).astype("float32")
            y, dot = x.astype("float32"), lambda a, b: jnp.dot(a, b, precision="highest")
            y = y - dot(dot(y, m) / 64, m.T)
            return (y * dot(lax.rsqrt(dot(y * y, m) / 64 + 1e-5), m.T)).astype(x.dtype)
        """,
        shapes="x: T[n,64*g]",
        sizes="n=16384 g=16",
        small="n=2 g=2",
        draw="n=1..3 g=2..3",
        types=("bf16", "f32"),
        away="""
            y = x.reshape(n, g, 64)
            return (y / y.max(-1, keepdims=True)).reshape(n, 64 * g)
        """,
    ),
)

"""Block quantisation: each group of columns is divided by its largest magnitude and rounded."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.groups import Groups
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes


def _where(match: Match, root: Node) -> bool:
    groups = Groups(root, largest=True)
    if groups.plan is None or len(groups.maxima) != 1 or groups.sums:
        return False
    match.found["largest"] = groups.maxima[0].result
    return True


def _together(match: Match, root: Node) -> Sequence[Node]:
    """The maxima are wanted by themselves, too: they are the scales."""
    return root, match.largest.operation


def _pays(match: Match, root: Node) -> bool:
    return 16 <= root.operands[0].sizes[-1] <= 64 and megabytes(match.largest) >= 0.03


def _build(match: Match, root: Node, make: Maker) -> list[Value] | None:
    groups = Groups(root, largest=True)
    largest = groups.narrow(match.largest)
    return [groups.plan(make), largest(make)] if groups.plan is not None and largest is not None else None


RULE = Rule(
    name="block-quantisation",
    phase="shape",
    summary="groups of columns divided by their largest magnitude: windows, and scales spread by a 0/1 product",
    finding="the columns are taken apart into blocks: each fills part of a tile's lanes, and the array is copied",
    change="leave the columns as they are: lax.reduce_window for the maxima, scales @ m to spread them",
    source="the TPU compiler's estimate (specs/rules.md, 15)",
    pattern=op("reshape", anything("blocks")),
    roots=frozenset({"reshape"}),
    where=_where,
    pays=_pays,
    build=_build,
    together=_together,
    finite=("largest",),
    exact=False,
    example=Example(
        before="""
            y = x.reshape(n, d, g)
            s = jnp.abs(y).max(-1, keepdims=True) / 127
            return jnp.round(y / s).astype("int8").reshape(n, d * g), s[..., 0]
        """,
        after="""
            s = lax.reduce_window(jnp.abs(x), -jnp.inf, lax.max, (1, g), (1, g), "VALID") / 127
            blocks = (jnp.arange(d)[:, None] == jnp.arange(d * g) // g).astype(x.dtype)
            return jnp.round(x / jnp.dot(s, blocks, precision="highest")).astype("int8"), s
        """,
        shapes="x: T[n,d*g]",
        sizes="n=4096 d=128 g=32",
        small="n=3 d=2 g=4",
        draw="n=1..3 d=2..3 g=2..5",
        types=("f32", "bf16"),
        away="""
            y = x.reshape(n, g, d)
            s = jnp.abs(y).max(1, keepdims=True) / 127
            return jnp.round(y / s).astype("int8").reshape(n, d * g), s[:, 0]
        """,
    ),
)

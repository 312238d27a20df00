"""Rotary embeddings of interleaved pairs: neighbouring columns are swapped by a product, nothing is taken apart.

For heads of at most 128 columns the product with a permutation is faster than shifts (``interleaved-pairs``).
"""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.products.pairs import Pairs
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes


def _where(match: Match, root: Node) -> bool:
    """One array whose pairs change places; its name is ``x``, for the guard."""
    pairs = Pairs(root, product=True)
    if pairs.build is None or len(pairs.moved) != 1:
        return False
    match.found["x"] = pairs.moved[0]
    return match.x.dtype in ("bf16", "f32") and pairs.full[-1] <= 256


def _pays(match: Match, root: Node) -> bool:
    """Not the few rows of a decode step, where the product costs more than all the rest."""
    return root.result.sizes[-1] <= 128 and megabytes(root.result) >= 1


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    build = Pairs(root, product=True).build
    return build(make) if build is not None else None


RULE = Rule(
    name="interleaved-rotary",
    phase="shape",
    summary="rotary embeddings of interleaved pairs: the pairs are swapped by a product with a permutation",
    finding="neighbouring columns are taken apart and interleaved again, through arrays whose minor dim is 2",
    change="write x * C + (x @ P) * S with repeated tables and a signed permutation P, or rotate halves of the heads",
    source="the TPU compiler's estimate (specs/rules.md, 7)",
    pattern=op("reshape add", anything("stack")),
    roots=frozenset({"reshape", "add"}),
    where=_where,
    pays=_pays,
    build=_build,
    finite=("x",),
    over=("interleaved-pairs",),
    example=Example(
        before="""
            y = x.reshape(b, t, h, d, 2)
            a, b_ = y[..., 0], y[..., 1]
            c, s = cos[:, None], sin[:, None]
            return jnp.stack([a * c - b_ * s, b_ * c + a * s], -1).reshape(x.shape)
        """,
        after="""
            i, j = jnp.arange(2 * d)[:, None], jnp.arange(2 * d)
            signed = jnp.where(i == (j ^ 1), jnp.where(j % 2 == 0, -1, 1), 0).astype(x.dtype)
            c, s = (jnp.repeat(table, 2, axis=-1)[:, None] for table in (cos, sin))
            return x * c + jnp.dot(x, signed, precision="highest") * s
        """,
        shapes="x: T[b,t,h,2*d]\ncos: T[t,d]\nsin: T[t,d]",
        sizes="b=8 t=2048 h=32 d=32",
        small="b=2 t=3 h=3 d=4",
        draw="b=1..2 t=1..3 h=2..4 d=2..5",
        types=("bf16", "f32"),
        away="""
            a, b_ = x[..., :d], x[..., d:]
            c, s = cos[:, None], sin[:, None]
            return jnp.concatenate([a * c - b_ * s, b_ * c + a * s], -1)
        """,
    ),
)

"""Pairs interleaved in the minor dim: complex numbers as (re, im, re, im, ...), rotary embeddings of neighbours.

Taking the pairs apart gives arrays with a minor dim of 2. Instead every column is computed as if it were a first one
and as if it were a second one: where a formula needs the other column of the pair, the array shifted by one has it.
"""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.products.pairs import Pairs
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes


def _pays(match: Match, root: Node) -> bool:
    """In smaller arrays a table that has to be repeated costs as much as all the rest."""
    return megabytes(root.result) >= 0.5


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    build = Pairs(root).build
    return build(make) if build is not None else None


RULE = Rule(
    name="interleaved-pairs",
    phase="shape",
    summary="pairs interleaved in the minor dim, taken apart and put together: shifts by one column instead",
    finding="neighbouring columns are taken apart and interleaved again, through arrays whose minor dim is 2",
    change="compute in place with the array shifted by one column, and choose by the parity of the column",
    source="the TPU compiler's estimate (specs/rules.md, 7 and 17)",
    pattern=op("reshape add", anything("pairs")),
    roots=frozenset({"reshape", "add"}),
    where=lambda match, root: Pairs(root).build is not None,
    pays=_pays,
    build=_build,
    example=Example(
        before="""
            re, im, re2, im2 = x[:, ::2], x[:, 1::2], y[:, ::2], y[:, 1::2]
            return jnp.stack([re * re2 - im * im2, re * im2 + im * re2], -1).reshape(n, 2 * d)
        """,
        after="""
            left, right = (lambda v: jnp.roll(v, -1, 1)), (lambda v: jnp.roll(v, 1, 1))
            even = jnp.arange(2 * d) % 2 == 0
            return jnp.where(even, x * y - left(x) * left(y), right(x) * y + x * right(y))
        """,
        shapes="x: T[n,2*d]\ny: T[n,2*d]",
        sizes="n=16384 d=256",
        small="n=2 d=3",
        draw="n=1..4 d=2..5",
        types=("f32", "bf16"),
        away="""
            re, im, re2, im2 = x[:, :d], x[:, d:], y[:, :d], y[:, d:]
            return jnp.stack([re * re2 - im * im2, re * im2 + im * re2], -1).reshape(n, 2 * d)
        """,
    ),
)

"""Variances in two passes: the mean first, then the distances from it. One pass changes the numerics."""

from __future__ import annotations

from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rules.matching import Match, anything, either, made_by, op
from tilewright.hlo.rules.rule import Example, Rule

_SPREAD = ("reshape", "broadcast_in_dim", "convert", "divide", "multiply")
_SMALL = 1 << 20


def _mean_of(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """(array, reduced dims) where ``value`` is a sum of the array, scaled and spread again."""
    while (node := made_by(value, *_SPREAD)) is not None:
        value = node.operands[0]
    total = made_by(value, "reduce")
    if total is None or total.attributes.get("monoid") != "add":
        return None
    return total.operands[0], tuple(total.attributes["dims"])


def _two_passes(match: Match, root: Node) -> bool:
    mean = _mean_of(match.mean)
    return mean is not None and mean[0] is match.x and mean[1] == tuple(root.attributes["dims"])


_DISTANCE = op("subtract", anything("x"), anything("mean"))

RULE = Rule(
    name="one-pass-variance",
    phase="advice",
    summary="a variance in two passes over the array: sums of x and of x * x in one",
    finding="the variance reads the array a second time, after the mean",
    change="take jnp.mean(x) and jnp.mean(x * x) together and use mean(x * x) - mean(x) ** 2 in f32, if the mean is "
    "not far larger than the deviation (the numerics change)",
    source="the TPU compiler's estimate, 1.3 to 1.9 times in norms",
    pattern=op("reduce", either(op("multiply", _DISTANCE, _DISTANCE), op("chlo.square", _DISTANCE)), monoid="add"),
    roots=frozenset({"reduce"}),
    where=_two_passes,
    pays=lambda match, root: prod(match.x.sizes) >= _SMALL,
    build=None,
    opt_in=True,
    example=Example(
        before="""
            mean = x.mean(-1, keepdims=True)
            return (x - mean) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        """,
        after="""
            mean = x.mean(-1, keepdims=True)
            var = (x * x).mean(-1, keepdims=True) - mean * mean
            return (x - mean) * lax.rsqrt(var + 1e-5)
        """,
        shapes="x: T[n,d]",
        sizes="n=8192 d=2048",
        small="n=4 d=8",
        away="""
            return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        """,
        types=("f32",),
    ),
)

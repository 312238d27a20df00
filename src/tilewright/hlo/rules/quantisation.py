"""Dequantised weights whose scales are repeated, one for each group of rows or columns.

The copies of a scale become a dim of their own, in an array as large as the weights. A product of the scales with a 0/1
matrix is fused with what follows.
"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by, precision_for_zero_one
from tilewright.hlo.rules.matching import Repeat, megabytes, repeat_of, repeat_under
from tilewright.hlo.rules.rule import Example, Rule


class _Scaled(NamedTuple):
    """``weights``, an array of small integers in two dims, times the repeated scales."""

    result: Value
    weights: Value
    scales: Repeat


def _scaled(root: Node) -> _Scaled | None:
    """``w.astype(t) * jnp.repeat(s, g, 1)``, or the product in a dim of groups, reshaped."""
    product = root if root.name == "multiply" else made_by(root.operands[0], "multiply")
    if product is None or len(root.result.sizes) != 2 or root.result.dtype not in ("bf16", "f32"):
        return None
    for wide, factor in (product.operands, product.operands[::-1]):
        scales = repeat_of(factor) if product is root else repeat_under(factor, root)
        weights = _small_integers(wide, root.result.sizes)
        if weights is not None and scales is not None and scales.each and scales.times > 1:
            return _Scaled(root.result, weights, scales)
    return None


def _small_integers(value: Value, sizes: tuple[int, ...]) -> Value | None:
    """What a conversion of small integers begins with, before it is reshaped."""
    convert = None
    while (node := made_by(value, "convert", "reshape")) is not None and (convert is None or value.sizes != sizes):
        convert = node if node.name == "convert" else convert
        value = node.operands[0]
    return value if convert is not None and value.dtype in ("i8", "ui8", "i4", "ui4") and value.sizes == sizes else None


def _pays(found: _Scaled) -> bool:
    """In f32 the exact product takes as long as what it saves."""
    return found.result.dtype == "bf16" and found.scales.times >= 16 and megabytes(found.result) >= 2


def _repeat_by_product(found: _Scaled, make: Maker) -> Value:
    result, (scales, dim, times, _) = found.result, found.scales
    matrix = make.group_matrix(result.sizes[dim], times, scales.dtype, repeats=dim == 1)
    left, right = (scales, matrix) if dim == 1 else (matrix, scales)
    repeated = make.dot(left, right, ((1,), (0,)), precision=precision_for_zero_one(result.dtype))
    return make.binary("multiply", make.convert(found.weights, result.dtype), repeated)


REPEATED_SCALES = Rule(
    name="repeated-scales",
    phase="shape",
    summary="dequantised weights with a scale for each group: the scales are spread by a 0/1 product",
    finding="scales are repeated to the size of the weights: the copies become a dim of their own",
    change="multiply by the scales @ m, with m[i // group, i] = 1, instead of repeating them",
    source="the TPU compiler's estimate; a linear layer with int8 weights and a scale for every 128 of a column",
    roots=("multiply", "reshape"),
    find=_scaled,
    pays=_pays,
    build=_repeat_by_product,
    finite=lambda found: [found.scales.source],
    example=Example(
        before="""
            weights = w.astype(s.dtype) * jnp.repeat(s, g, axis=1)
            return x @ weights.T
        """,
        after="""
            groups = (jnp.arange(k)[:, None] == jnp.arange(k * g) // g).astype(s.dtype)
            return x @ (w.astype(s.dtype) * jnp.dot(s, groups, precision="highest")).T
        """,
        shapes="x: T[m,k*g]\nw: i8[n,k*g]\ns: T[n,k]",
        sizes="m=16 n=4096 k=32 g=128",
        small="m=2 n=3 k=2 g=4",
        draw="m=1..3 n=1..4 k=2..3 g=2..5",
        away="""
            weights = w.astype(s.dtype) * jnp.tile(s, (1, g))
            return x @ weights.T
        """,
    ),
)

RULES = (REPEATED_SCALES,)

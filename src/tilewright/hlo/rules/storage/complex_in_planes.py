"""Complex numbers made of pairs in the minor dim: only whoever stores them can keep two planes."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rules.matching import Match, anything, made_by, op, part_of
from tilewright.hlo.rules.rule import Example, Rule


def _element(value: Value) -> tuple[Value, int] | None:
    """(source, k) of ``source[..., k]`` with a last dim of two, or of every second element."""
    part = part_of(value)
    if part is not None and part.stride == 2 and part.dim == len(part.source.sizes) - 1:
        return part.source, part.start
    node = made_by(value, "reshape")
    pick = made_by(node.operands[0], "slice") if node is not None else None
    if pick is None or pick.operands[0].sizes[-1:] != (2,) or pick.result.sizes[-1] != 1:
        return None
    source = pick.operands[0]
    whole = pick.result.sizes[:-1] == source.sizes[:-1] == value.sizes
    return (source, pick.attributes["start"][-1]) if whole else None


def _pairs(match: Match, root: Node) -> bool:
    parts = [_element(value) for value in (match.real, match.imaginary)]
    return parts[0] is not None and parts[1] is not None and parts[0][0] is parts[1][0] and parts[0][1] != parts[1][1]


RULE = Rule(
    name="complex-in-planes",
    phase="advice",
    summary="complex numbers stored as pairs in the minor dim: two arrays instead",
    finding="real and imaginary parts lie beside each other, so every use takes pairs apart in the lanes",
    change="store the real and the imaginary parts as two arrays and pass both",
    source="the TPU compiler's estimate for products of such numbers",
    pattern=op("complex", anything("real"), anything("imaginary")),
    roots=frozenset({"complex"}),
    where=_pairs,
    build=None,
    example=Example(
        before="""
            z, w = (jax.lax.complex(p[..., 0], p[..., 1]) for p in (x, y))
            product = z * w
            return jnp.stack([product.real, product.imag], -1)
        """,
        after="""
            return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]  # x and y as pairs of arrays
        """,
        shapes="x: f32[n,k,2]\ny: f32[n,k,2]",
        after_shapes="x: f32[2,n,k]\ny: f32[2,n,k]",
        sizes="n=4096 k=512",
        small="n=4 k=3",
        away="""
            z, w = (jax.lax.complex(p[..., 0], p[..., 2]) for p in (x, y))
            return (z * w).real
        """,
        away_shapes="x: f32[n,k,3]\ny: f32[n,k,3]",
        types=("f32",),
    ),
)

"""x @ (W + A @ B): an adapter of low rank added to the weights before every product."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, number_of, op
from tilewright.hlo.rules.products.order import is_matrix_product
from tilewright.hlo.rules.rule import Example, Rule


def _adapter(root: Node) -> tuple[Value, Node, Value | None] | None:
    """(weights, the product of low rank, its scale) where the right operand is their sum."""
    added = made_by(root.operands[1], "add")
    if added is None or not is_matrix_product(root) or len(added.result.users) != 1:
        return None
    for weights, other in (added.operands, added.operands[::-1]):
        scaled = made_by(other, "multiply")
        scale = None
        if scaled is not None:
            scale = next((v for v in scaled.operands if number_of(v) is not None), None)
            other = next((v for v in scaled.operands if v is not scale), other)
            if scale is None:
                continue
        low = made_by(other, "dot_general")
        if low is not None and is_matrix_product(low) and len(low.operands[0].sizes) == 2:
            rank = low.operands[0].sizes[1]
            if 4 * rank <= min(low.result.sizes):
                return weights, low, scale
    return None


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    found = _adapter(root)
    if found is None:
        return None
    weights, low, scale = found
    value, exact = root.operands[0], root.attributes["precision"]
    wide = "f32" if root.result.dtype in ("bf16", "f16") else root.result.dtype
    axis = len(value.sizes) - 1
    dims = ((axis,), (0,))
    main = make.dot(value, weights, dims, dtype=wide, precision=exact)
    down = make.dot(value, low.operands[0], dims, dtype=value.dtype, precision=exact)
    side = make.dot(down, low.operands[1], dims, dtype=wide, precision=exact)
    if scale is not None:
        number = scale.operation
        assert number is not None
        while number.operands:
            inner = number.operands[0].operation
            assert inner is not None
            number = inner
        constant = make.relaid(number, ())
        side = make.binary("multiply", side, make.broadcast(make.convert(constant, wide), side.sizes, ()))
    return make.convert(make.binary("add", main, side), root.result.dtype)


RULE = Rule(
    name="low-rank-adapter",
    phase="work",
    summary="x @ (W + A @ B) becomes x @ W + (x @ A) @ B",
    finding="an adapter of low rank is multiplied out and added to the weights for every product",
    change="x @ w + (x @ a) @ b (or merge the adapter into the weights once)",
    source="the TPU compiler's estimate",
    pattern=op("dot_general", anything("left"), anything("right"), where=lambda node: _adapter(node) is not None),
    roots=frozenset({"dot_general"}),
    pays=lambda match, root: match.right.sizes[0] * match.right.sizes[1] >= 2**20,
    build=_build,
    finite=("left", "right"),
    exact=False,
    example=Example(
        before="""
            return x @ (w + 0.5 * (a @ b))
        """,
        after="""
            return x @ w + 0.5 * ((x @ a) @ b)
        """,
        shapes="x: T[n,k]\nw: T[k,m]\na: T[k,r]\nb: T[r,m]",
        sizes="n=2048 k=4096 m=4096 r=16",
        small="n=3 k=8 m=9 r=2",
        draw="n=1..4 k=8..9 m=8..9 r=1..2",
        types=("bf16", "f32"),
        away="""
            merged = w + a @ b
            return x @ merged + merged.sum()
        """,
    ),
)

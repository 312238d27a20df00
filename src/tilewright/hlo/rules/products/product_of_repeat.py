"""Rows are repeated and then multiplied: the product of each can be repeated instead."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Repeat, made_by, op, repeat_of
from tilewright.hlo.rules.rule import Example, Rule


def _repeats(root: Node) -> list[Repeat]:
    """The repeats of a product's left operand along free dims, outermost first."""
    own = root.attributes
    taken = (*own["lhs_batch"], *own["lhs_contract"])
    repeats: list[Repeat] = []
    value = root.operands[0]
    while True:
        repeat = repeat_of(value)
        if repeat is None or repeat.dim in taken:
            return repeats
        repeats.append(repeat)
        value = repeat.source


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    repeats = _repeats(root)
    if not repeats or made_by(root.result, "dot_general") is None:
        return None
    own, source = root.attributes, repeats[-1].source
    dims = (own["lhs_contract"], own["rhs_contract"]), (own["lhs_batch"], own["rhs_batch"])
    value = make.dot(source, root.operands[1], *dims, dtype=root.result.dtype, precision=own["precision"])
    free = [d for d in range(len(source.sizes)) if d not in (*own["lhs_batch"], *own["lhs_contract"])]
    for repeat in reversed(repeats):
        dim = len(own["lhs_batch"]) + free.index(repeat.dim)
        sizes, at = value.sizes, dim + 1 if repeat.each else dim
        wide = (*sizes[:at], repeat.times, *sizes[at:])
        spread = make.broadcast(value, wide, [d for d in range(len(wide)) if d != at])
        value = make.reshape(spread, (*sizes[:dim], sizes[dim] * repeat.times, *sizes[dim + 1 :]))
    return value


RULE = Rule(
    name="product-of-repeated-rows",
    phase="work",
    summary="repeat(x) @ W becomes repeat(x @ W)",
    finding="rows are repeated in memory and then every copy is multiplied",
    change="multiply first, repeat the result: jnp.repeat(x @ w, n, axis=1)",
    source="the TPU compiler's estimate",
    pattern=op("dot_general", where=lambda node: bool(_repeats(node))),
    roots=frozenset({"dot_general"}),
    pays=lambda match, root: root.result.sizes[-1] <= 2 * root.operands[0].sizes[-1],
    build=_build,
    example=Example(
        before="""
            return jnp.repeat(x, 4, axis=1) @ w
        """,
        after="""
            return jnp.repeat(x @ w, 4, axis=1)
        """,
        shapes="x: T[b,s,k]\nw: T[k,m]",
        sizes="b=8 s=512 k=1024 m=1024",
        small="b=2 s=3 k=4 m=5",
        draw="b=1..3 s=2..4 k=2..5 m=1..5",
        types=("bf16", "f32"),
        away="""
            return jnp.repeat(x, 4, axis=2) @ jnp.concatenate([w, w, w, w], axis=0)
        """,
    ),
)

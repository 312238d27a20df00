"""Grouped-query attention: keys and values are repeated in memory so that every query head has its own."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Repeat, anything, op, repeat_of
from tilewright.hlo.rules.rule import Example, Rule


def _repeated(match: Match) -> tuple[int, Repeat] | None:
    """Which operand of the product is repeated along one of its batch dims: (0 or 1, how)."""
    for side, value in enumerate((match.left, match.right)):
        repeat = repeat_of(value)
        batch = match.product.attributes[("lhs_batch", "rhs_batch")[side]]
        if repeat is not None and repeat.each and repeat.dim in batch:
            return side, repeat
    return None


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    """The repeats become a free dim of the other operand, which is only reshaped, and the result is reshaped back."""
    repeated = _repeated(match)
    if repeated is None:
        return None
    side, repeat = repeated
    own = root.attributes
    batch = [own["lhs_batch"], own["rhs_batch"]]
    contract = [own["lhs_contract"], own["rhs_contract"]]
    place = batch[side].index(repeat.dim)
    other = root.operands[1 - side]
    dim = batch[1 - side][place]  # the heads of the other operand: they become groups x heads of a group
    groups = repeat.source.sizes[repeat.dim]
    sizes = other.sizes
    split = make.reshape(other, (*sizes[:dim], groups, repeat.times, *sizes[dim + 1 :]))

    def moved(dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(d + (d > dim) for d in dims)

    left, right = (repeat.source, split) if side == 0 else (split, repeat.source)
    batch[1 - side], contract[1 - side] = moved(batch[1 - side]), moved(contract[1 - side])
    dims = (contract[0], contract[1]), (batch[0], batch[1])
    product = make.dot(left, right, *dims, dtype=root.result.dtype, precision=own["precision"])
    # The result: batch dims, the left's free dims, the right's. The heads of a group are a free dim now and go back
    # beside their group.
    count = len(batch[0])
    free_of_other = [d for d in range(len(split.sizes)) if d not in (*batch[1 - side], *contract[1 - side])]
    at = count + free_of_other.index(dim + 1)
    if side == 0:
        at += len([d for d in range(len(repeat.source.sizes)) if d not in (*batch[0], *contract[0])])
    order = [d for d in range(len(product.sizes)) if d != at]
    order.insert(place + 1, at)
    return make.reshape(make.transpose(product, order), root.result.sizes)


RULE = Rule(
    name="grouped-query-attention",
    phase="work",
    summary="a product with repeated keys or values: the queries are grouped instead",
    finding="keys or values are repeated in memory so that every query head has its own copy",
    change="reshape the queries to [..., groups, heads per group, ...] and contract with the keys as they are",
    source="the TPU compiler's estimate (specs/rules.md, 1)",
    pattern=op("dot_general", anything("left"), anything("right"), bind="product"),
    roots=frozenset({"dot_general"}),
    where=lambda match, root: _repeated(match) is not None,
    build=_build,
    example=Example(
        before="""
            keys = jnp.repeat(k, 8, axis=2)
            return jnp.einsum("bhd,bkhd->bhk", q, keys)
        """,
        after="""
            grouped = q.reshape(b, g, 8, d)
            return jnp.einsum("bghd,bkgd->bghk", grouped, k).reshape(b, 8 * g, s)
        """,
        shapes="q: T[b,8*g,d]\nk: T[b,s,g,d]",
        sizes="b=8 g=8 d=64 s=2048",
        small="b=2 g=2 d=4 s=6",
        draw="b=1..3 g=1..3 d=1..5 s=1..7",
        types=("bf16", "f32"),
        away="""
            keys = jnp.tile(k, (1, 1, 8, 1))
            return jnp.einsum("bhd,bkhd->bhk", q, keys)
        """,
    ),
)

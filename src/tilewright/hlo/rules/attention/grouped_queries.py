"""Grouped-query attention: keys and values are repeated in memory so that every query head has its own."""

from __future__ import annotations

from math import prod

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
    """The heads of a group become rows of one product with the keys as they are, and go back beside their group."""
    repeated = _repeated(match)
    if repeated is None:
        return None
    side, repeat = repeated
    own = root.attributes
    batch = [list(own["lhs_batch"]), list(own["rhs_batch"])]
    contract = [list(own["lhs_contract"]), list(own["rhs_contract"])]
    place = batch[side].index(repeat.dim)
    heads = root.operands[1 - side]  # the queries: heads of all groups in one dim
    dim, sizes = batch[1 - side][place], root.operands[1 - side].sizes
    groups, times = repeat.source.sizes[repeat.dim], repeat.times
    split = make.reshape(heads, (*sizes[:dim], groups, times, *sizes[dim + 1 :]))
    own_batch, own_contract = ([d + (d > dim) for d in dims[1 - side]] for dims in (batch, contract))
    free = [d for d in range(len(split.sizes)) if d not in (*own_batch, *own_contract, dim + 1)]
    # [batch dims, heads of a group and all free dims as one, contracted dims]
    rows = [times, *(split.sizes[d] for d in free)]
    turned = make.transpose(split, [*own_batch, dim + 1, *free, *own_contract])
    count = len(own_batch)
    lines = make.reshape(turned, (*turned.sizes[:count], prod(rows), *turned.sizes[count + len(rows) :]))
    of_lines = (list(range(count)), list(range(count + 1, len(lines.sizes))))
    of_keys = (batch[side], contract[side])
    left, right = (lines, repeat.source) if side == 1 else (repeat.source, lines)
    (left_batch, left_contract), (right_batch, right_contract) = (
        (of_lines, of_keys) if side == 1 else (of_keys, of_lines)
    )
    dims = (left_contract, right_contract), (left_batch, right_batch)
    product = make.dot(left, right, *dims, dtype=root.result.dtype, precision=own["precision"])
    at = count if side == 1 else len(product.sizes) - 1  # where the rows stand
    wide = make.reshape(product, (*product.sizes[:at], *rows, *product.sizes[at + 1 :]))
    order = [d for d in range(len(wide.sizes)) if d != at]
    order.insert(place + 1, at)  # each head of a group beside its group
    return make.reshape(make.transpose(wide, order), root.result.sizes)


def _few_queries(match: Match, root: Node) -> bool:
    """Decoding: with many queries the product itself takes the time, and the compiler's estimates show no gain."""
    repeated = _repeated(match)
    assert repeated is not None
    side = 1 - repeated[0]
    own, heads = root.attributes, root.operands[side]
    taken = (*own[("lhs_batch", "rhs_batch")[side]], *own[("lhs_contract", "rhs_contract")[side]])
    return prod(size for d, size in enumerate(heads.sizes) if d not in taken) <= 16


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
    pays=_few_queries,
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

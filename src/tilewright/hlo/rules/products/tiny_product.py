"""Batched products of tiny matrices: each fills 4 of 128 rows of the matrix unit, and a tile of memory."""

from __future__ import annotations

from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, op
from tilewright.hlo.rules.rule import Example, Rule


def _parts(match: Match) -> tuple[list[int], list[int], list[int], list[int]]:
    """Sizes of the batch, the left's rows, the right's columns and the contraction."""
    own, left, right = match.product.attributes, match.left, match.right
    batch = [left.sizes[d] for d in own["lhs_batch"]]
    contract = [left.sizes[d] for d in own["lhs_contract"]]
    rows = [size for d, size in enumerate(left.sizes) if d not in (*own["lhs_batch"], *own["lhs_contract"])]
    columns = [size for d, size in enumerate(right.sizes) if d not in (*own["rhs_batch"], *own["rhs_contract"])]
    return batch, rows, columns, contract


def _legal(match: Match, root: Node) -> bool:
    """Matrices of floats with at least two rows, columns and terms; a vector's product the compiler does well."""
    batch, *matrix = _parts(match)
    types = {match.left.dtype, match.right.dtype, root.result.dtype}
    return types <= {"f32", "bf16", "f16"} and prod(batch) > 1 and all(prod(sizes) > 1 for sizes in matrix)


def _pays(match: Match, root: Node) -> bool:
    """Smaller batches of bf16, and matrices of 16 in batches of a few thousand, the matrix unit does as fast."""
    batch, *matrix = (prod(sizes) for sizes in _parts(match))
    return batch >= (1024 if max(matrix) <= 8 else 65536) and max(matrix) <= 16


def _build(match: Match, root: Node, make: Maker) -> Value:
    """Rows, terms and columns become dims of one array of products, and the terms are summed up in f32."""
    own, (batch, rows, columns, contract) = root.attributes, _parts(match)
    shape = (*batch, *rows, *contract, *columns)
    count, after = len(batch), len(batch) + len(rows)

    def spread(value: Value, side: str, free_at: int) -> Value:
        places = dict(zip(own[f"{side}_batch"], range(count)))
        places |= dict(zip(own[f"{side}_contract"], range(after, len(shape))))
        free = [d for d in range(len(value.sizes)) if d not in places]
        places |= dict(zip(free, range(free_at, len(shape))))
        ordered = sorted(places, key=places.__getitem__)
        laid = make.convert(make.transpose(value, ordered), "f32")
        return make.broadcast(laid, shape, sorted(places.values()))

    terms = make.binary("multiply", spread(match.left, "lhs", count), spread(match.right, "rhs", after + len(contract)))
    total = make.reduce(terms, make.constant("0.0", "f32"), range(after, after + len(contract)), "add")
    return make.convert(total, root.result.dtype)


RULE = Rule(
    name="tiny-product",
    phase="shape",
    summary="a batch of products of tiny matrices: multiply and add instead, with the batch along the lanes",
    finding="a batch of tiny matrices is multiplied one by one, each in a pass of the matrix unit of its own",
    change="write (a[..., :, :, None] * b[..., None, :, :]).sum(-2)",
    source="the TPU compiler's estimate (specs/rules.md, 2)",
    pattern=op("dot_general", anything("left"), anything("right"), bind="product"),
    roots=frozenset({"dot_general"}),
    where=_legal,
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before='return jnp.einsum("nij,njk->nik", a, b, precision="highest")',
        after="return (a[:, :, :, None] * b[:, None]).sum(2)",
        shapes="a: T[n,i,j]\nb: T[n,j,k]",
        sizes="n=65536 i=4 j=4 k=4",
        small="n=3 i=2 j=3 k=4",
        draw="n=1..4 i=1..4 j=1..4 k=1..4",
        types=("f32", "bf16"),
        away='return jnp.einsum("nij,njk->nik", a, b[:, :, :1])',
    ),
)

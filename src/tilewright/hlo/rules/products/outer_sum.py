"""A product of matrices written as a broadcast, a multiplication and a sum: the matrix unit does not see it."""

from __future__ import annotations

from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import is_identity
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Pattern, made_by, only_used_by
from tilewright.hlo.rules.rule import Example, Rule


class _Outer(Pattern):
    """sum over dims of a * b, where each operand is spread along dims that the other has."""

    def accepts(self, value: Value, match: Match) -> bool:
        total = made_by(value, "reduce")
        if total is None or total.attributes.get("monoid") != "add" or not is_identity("add", total.operands[1], False):
            return False
        inner = total.operands[0]
        wider = made_by(inner, "convert")
        if (
            wider is not None
            and inner.dtype == "f32"
            and wider.operands[0].dtype == "bf16"
            and only_used_by(inner, total)
        ):
            return False  # each product is rounded to bf16 first
        times = made_by(inner, "multiply")
        if times is None or len(times.result.users) != 1 or value.dtype not in ("f32", "bf16"):
            return False
        sides = [_spread(operand) for operand in times.operands]
        if any(side is None for side in sides):
            return False
        match.found.update(left=sides[0], right=sides[1], shape=times.result.sizes, dims=total.attributes["dims"])
        own = [set(side[1]) for side in sides if side is not None]
        summed = set(total.attributes["dims"])
        return summed <= own[0] & own[1] and bool(own[0] - own[1]) and bool(own[1] - own[0])


def _spread(value: Value) -> tuple[Value, tuple[int, ...]] | None:
    """(the array, its dims in the whole): what a broadcast spreads, through broadcasts and reshapes of unit dims."""
    node = made_by(value, "broadcast_in_dim")
    if node is None:
        return value, tuple(range(len(value.sizes)))
    small, dims = node.operands[0], tuple(node.attributes["dims"])
    if list(dims) != sorted(dims):
        return None
    kept = tuple(d for k, d in enumerate(dims) if small.sizes[k] == value.sizes[d])
    if any(small.sizes[k] != 1 for k, d in enumerate(dims) if d not in kept):
        return None
    return small, kept


def _build(match: Match, root: Node, make: Maker) -> Value:
    (left, left_dims), (right, right_dims) = match.left, match.right
    shape = match.shape
    left = make.reshape(left, [shape[d] for d in left_dims])
    right = make.reshape(right, [shape[d] for d in right_dims])
    batch = [d for d in left_dims if d in right_dims and d not in match.dims]
    places = [left_dims.index, right_dims.index]
    contract = tuple([place(d) for d in match.dims] for place in places)
    batches = tuple([place(d) for d in batch] for place in places)
    exact = ("HIGHEST", "HIGHEST") if left.dtype == "f32" else ("DEFAULT", "DEFAULT")
    value = make.dot(
        left, right, (contract[0], contract[1]), (batches[0], batches[1]), dtype=root.result.dtype, precision=exact
    )
    now = [*batch, *(d for d in left_dims if d not in right_dims), *(d for d in right_dims if d not in left_dims)]
    kept = [d for d in range(len(shape)) if d not in match.dims]
    return make.transpose(value, [now.index(d) for d in kept])


def _pays(match: Match, root: Node) -> bool:
    """Large matrices only: small ones are better multiplied element by element."""
    (_, left), (_, right) = match.left, match.right
    shape = match.shape
    rows = prod(shape[d] for d in left if d not in right)
    columns = prod(shape[d] for d in right if d not in left)
    summed = prod(shape[d] for d in match.dims)
    return bool(min(rows, columns, summed) >= 64)


RULE = Rule(
    name="sum-of-outer-products",
    phase="work",
    summary="(x[:, :, None] * y[None]).sum(1) becomes x @ y",
    finding="a product of matrices is written as a multiplication and a sum, so the matrix unit stands still",
    change="write it as a product: jnp.einsum('ik,kj->ij', x, y) (in f32 with precision='highest')",
    source="the TPU compiler's estimate",
    pattern=_Outer(),
    roots=frozenset({"reduce"}),
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="""
            return (x[:, :, None] * y[None, :, :]).sum(1)
        """,
        after="""
            return jnp.dot(x, y, precision="highest")
        """,
        shapes="x: T[n,k]\ny: T[k,m]",
        sizes="n=1024 k=1024 m=1024",
        small="n=3 k=4 m=5",
        draw="n=2..4 k=2..5 m=2..4",
        types=("f32",),
        away="""
            return (x[:, :, None] * y[None, :, :]).max(1)
        """,
    ),
)

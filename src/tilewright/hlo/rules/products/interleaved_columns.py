"""Every other column of a product: sliced from the result they move all of it, from the weights nearly nothing."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, Part, Pattern, made_by, part_of
from tilewright.hlo.rules.rule import Example, Rule
from tilewright.hlo.rules.windows import megabytes


class _Columns(Pattern):
    """Every n-th column of a product, perhaps with a bias added, whose other users take columns too."""

    def accepts(self, value: Value, match: Match) -> bool:
        part = part_of(value)
        if part is None:
            return False
        product, bias = _product(part.source)
        if product is None or part.dim < _first_column(product) or not _all_parts(part):
            return False
        match.found.update(part=part, product=product, bias=bias)
        return True


def _product(value: Value) -> tuple[Node | None, Value | None]:
    """The product that makes ``value``, and the vector added to its columns."""
    product = made_by(value, "dot_general")
    if product is not None:
        return product, None
    added = made_by(value, "add")
    if added is None:
        return None, None
    for left, right in (added.operands, added.operands[::-1]):
        product, spread = made_by(left, "dot_general"), made_by(right, "broadcast_in_dim")
        if product is not None and spread is not None and len(product.result.users) == 1:
            return product, right
    return None, None


def _first_column(product: Node) -> int:
    """The first dim of the result that is a free dim of the right operand."""
    own = product.attributes
    return len(product.operands[0].sizes) - len(own["lhs_contract"])


def _all_parts(part: Part) -> bool:
    """Whether every user of the source only takes such columns, so that the whole product goes."""
    for user in part.source.users:
        ends = [user.result] if user.name == "slice" else []
        if user.name == "reshape":
            ends = [picked.result for picked in user.result.users]
            if any(picked.name != "slice" for picked in user.result.users):
                return False
            ends = [squeezed.result for end in ends for squeezed in end.users]
        parts = [part_of(end) for end in ends]
        if not parts or any(p is None or p.dim != part.dim or p.source is not part.source for p in parts):
            return False
    return True


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    part, product, bias = match.part, match.product, match.bias
    own, weights = product.attributes, product.operands[1]
    free = [d for d in range(len(weights.sizes)) if d not in (*own["rhs_batch"], *own["rhs_contract"])]
    column = free[part.dim - _first_column(product)]
    columns = make.part(weights, column, part.start, weights.sizes[column], part.stride)
    dims = (own["lhs_contract"], own["rhs_contract"]), (own["lhs_batch"], own["rhs_batch"])
    value = make.dot(product.operands[0], columns, *dims, dtype=product.result.dtype, precision=own["precision"])
    if bias is None:
        return value
    taken = make.part(bias, part.dim, part.start, bias.sizes[part.dim], part.stride)
    return make.binary("add", value, taken)


def _pays(match: Match, root: Node) -> bool:
    """Few rows, or experts of few tokens each, have weights larger than the result: taking those apart costs more.

    Estimated for v5e at results of 0.63, 1 and 2 times the weights: 0.88, 1.06 and 1.50 in bf16, 1.76 and 2.05 in f32.
    """
    part, product = match.part, match.product
    wide = part.stride == 2 and product.result.sizes[part.dim] >= 256
    least = 0.5 if root.result.dtype == "f32" else 1.0
    return wide and megabytes(product.result) >= least * megabytes(product.operands[1])


RULE = Rule(
    name="interleaved-columns",
    phase="shape",
    summary="(x @ W)[..., k::n] becomes x @ W[:, k::n]",
    finding="every n-th column of a product is taken apart in its result, which moves all of it between lanes",
    change="take the columns of the weights: gate, up = x @ w[:, ::2], x @ w[:, 1::2] (or store the halves apart)",
    source="the TPU compiler's estimate (specs/rules.md, 16)",
    pattern=_Columns(),
    roots=frozenset({"slice", "reshape"}),
    pays=_pays,
    build=_build,
    example=Example(
        before="""
            h = x @ w
            return jax.nn.silu(h[..., ::2]) * h[..., 1::2]
        """,
        after="""
            return jax.nn.silu(x @ w[:, ::2]) * (x @ w[:, 1::2])
        """,
        shapes="x: T[n,k]\nw: T[k,2*d]",
        sizes="n=4096 k=1024 d=4096",
        small="n=3 k=4 d=2",
        draw="n=1..4 k=1..5 d=1..4",
        types=("bf16", "f32"),
        away="""
            h = x @ w
            return jax.nn.silu(h[..., :d]) * h[..., d:]
        """,
    ),
)

"""(A @ B) @ v: the product of two large matrices only to multiply it by something narrow."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, op
from tilewright.hlo.rules.rule import Example, Rule

_NARROW = ("bf16", "f16")


def is_matrix_product(node: Node | None) -> bool:
    """``a @ b`` with a matrix on the right: the left's last dim meets the right's first, no batch dims."""
    if node is None or len(node.operands[1].sizes) != 2 or node.attributes["lhs_batch"]:
        return False
    own = node.attributes
    return bool(own["lhs_contract"] == (len(node.operands[0].sizes) - 1,) and own["rhs_contract"] == (0,))


def _chain(root: Node) -> Node | None:
    """The inner product of (a @ b) @ c, if it has no other user and all are matrices."""
    inner = made_by(root.operands[0], "dot_general")
    if inner is None or not is_matrix_product(root) or not is_matrix_product(inner) or len(inner.result.users) != 1:
        return None
    return inner if len(inner.operands[0].sizes) == 2 else None


def _pays(match: Match, root: Node) -> bool:
    """At least four times fewer multiplications the other way round, and enough of them to matter."""
    inner = _chain(root)
    assert inner is not None
    (m, k), n, p = inner.operands[0].sizes, inner.operands[1].sizes[1], root.result.sizes[1]
    as_written, other = m * k * n + m * n * p, k * n * p + m * k * p
    return as_written >= 4 * other and as_written >= 2**27


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    inner = _chain(root)
    if inner is None:
        return None
    wide = "f32" if root.result.dtype in _NARROW else root.result.dtype
    own = root.attributes
    later = make.dot(inner.operands[1], root.operands[1], ((1,), (0,)), dtype=wide, precision=own["precision"])
    later = make.convert(later, inner.operands[0].dtype)
    return make.dot(
        inner.operands[0], later, ((1,), (0,)), dtype=root.result.dtype, precision=inner.attributes["precision"]
    )


RULE = Rule(
    name="product-order",
    phase="work",
    summary="(A @ B) @ v becomes A @ (B @ v) where that is far fewer multiplications",
    finding="two large matrices are multiplied only to multiply the result by something narrow",
    change="set the brackets the other way: A @ (B @ v)",
    source="the TPU compiler's estimate",
    pattern=op("dot_general", anything("left"), anything("right"), where=lambda node: _chain(node) is not None),
    roots=frozenset({"dot_general"}),
    pays=_pays,
    build=_build,
    exact=False,
    example=Example(
        before="""
            return (x @ y) @ v
        """,
        after="""
            return x @ (y @ v)
        """,
        shapes="x: T[m,k]\ny: T[k,n]\nv: T[n,p]",
        sizes="m=4096 k=4096 n=4096 p=8",
        small="m=4 k=5 n=3 p=2",
        draw="m=1..5 k=1..5 n=1..5 p=1..3",
        types=("bf16", "f32"),
        away="""
            z = x @ y
            return z @ v + z.sum()
        """,
    ),
)

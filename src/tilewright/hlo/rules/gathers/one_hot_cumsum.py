"""The running count of a one-hot matrix (places in the queues of experts): blocks as products with a triangle."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, number, op, through
from tilewright.hlo.rules.rule import Example, Rule

_BLOCK = 256


def _running_sum(node: Node) -> bool:
    """A window that ends at each row and reaches back over all rows of the first of two dims."""
    own, rows = node.attributes, node.operands[0].sizes[0]
    if len(node.result.sizes) != 2 or own["window"] != (rows, 1) or own["padding"] != ((rows - 1, 0), (0, 0)):
        return False
    ones = {own[key] for key in ("strides", "base_dilation", "window_dilation")} == {(1, 1)}
    return ones and node.result.dtype in ("f32", "i32") and rows < 2**24


def _zero_or_one(value: Value) -> bool:
    """Converted from a comparison: every element is 0 or 1."""
    node = made_by(value, "convert")
    return node is not None and node.operands[0].dtype == "i1"


def _build(match: Match, root: Node, make: Maker) -> Value:
    """Sums in each block by a lower triangle (bf16 operands, f32 sums: exact), plus the totals of the blocks before."""
    hot = make.convert(match.hot.operation.operands[0], "bf16")
    rows, columns = hot.sizes
    block = _BLOCK if rows % _BLOCK == 0 else rows
    count = rows // block
    blocks = make.reshape(hot, (count, block, columns))
    inside = make.dot(
        _triangle(make, block, "GE", "bf16"), blocks, ((1,), (1,)), dtype="f32"
    )  # [block, count, columns]
    running = make.transpose(inside, (1, 0, 2))
    if count > 1:
        zero = make.constant("0.0", "f32")
        totals = make.reduce(make.convert(blocks, "f32"), zero, (1,), "add")
        exact = ("HIGHEST", "HIGHEST")
        before = make.dot(_triangle(make, count, "GT", "f32"), totals, ((1,), (0,)), precision=exact)
        running = make.binary("add", running, make.broadcast(before, running.sizes, (0, 2)))
    return make.convert(make.reshape(running, root.result.sizes), root.result.dtype)


def _triangle(make: Maker, size: int, direction: str, dtype: str) -> Value:
    shape = (size, size)
    return make.convert(make.compare(make.along(shape, 0), make.along(shape, 1), direction), dtype)


RULE = Rule(
    name="one-hot-cumsum",
    phase="shape",
    summary="the running sum of a one-hot matrix: blocked products with a triangle",
    finding="a running sum over all rows of a one-hot matrix is a window as long as the array",
    change="sum in blocks of 256 rows by a lower-triangular matrix, and add the totals of the blocks before",
    source="the TPU compiler's estimate (specs/rules.md, 24)",
    pattern=op(
        "reduce_window",
        anything("hot", _zero_or_one),
        through("broadcast_in_dim", number(is_=0.0)),
        monoid="add",
        where=_running_sum,
    ),
    roots=frozenset({"reduce_window"}),
    pays=lambda match, root: (
        root.result.sizes[0] % _BLOCK == 0
        and root.result.sizes[0] >= 2048
        and (root.result.sizes[1] <= 8 or (root.result.sizes[1] <= 64 and root.result.sizes[0] <= 16384))
    ),
    build=_build,
    example=Example(
        before="""
            return jnp.cumsum(jax.nn.one_hot(i, e), axis=0)
        """,
        after="""
            hot = jax.nn.one_hot(i, e).reshape(-1, block, e)
            inside = jnp.einsum("pq,nqe->npe", jnp.tril(jnp.ones((block, block))), hot)
            totals = jnp.cumsum(hot.sum(1), axis=0) - hot.sum(1)
            return (inside + totals[:, None]).reshape(-1, e)
        """,
        shapes="i: i32[n]",
        sizes="n=8192 e=64 block=256",
        small="n=512 e=3 block=256",
        draw="e=1..4",
        types=("f32",),
        away="""
            return jnp.cumsum(jax.nn.one_hot(i, e) * 0.5, axis=0)
        """,
    ),
)

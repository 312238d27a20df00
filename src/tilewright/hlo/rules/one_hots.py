"""Matrices with a single one in each row: products with them pick rows, or send rows to places."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by
from tilewright.hlo.rules.matching import number_of, one_hot_of, product_dims
from tilewright.hlo.rules.rule import Rule

# Rows of a large table: a product with a one-hot matrix reads every row for every index.

_FLOATS = ("bf16", "f16", "f32")


class _Lookup(NamedTuple):
    """A product of a one-hot matrix, whose ones stand at ``ids``, and the ``table`` whose rows it picks."""

    product: Node
    ids: Value
    table: Value


def _lookup(product: Node) -> _Lookup | None:
    (batch, _), (contract, rows) = product_dims(product)
    hot, table = one_hot_of(product.operands[0]), product.operands[1]
    if hot is None or batch or contract != (hot.dim,) or rows != (0,) or len(table.sizes) != 2:
        return None
    if hot.dim != len(product.operands[0].sizes) - 1 or table.dtype not in _FLOATS:
        return None
    return _Lookup(product, hot.ids, table) if product.result.dtype == table.dtype else None


def _gathered(found: _Lookup, make: Maker) -> Value:
    """An index out of range picks nothing: a row of zeros."""
    root, index, table = found
    sizes = root.result.sizes[:-1]
    index = make.reshape(make.part(index, len(sizes), 0, 1), sizes)
    rows, width = table.sizes
    own = {
        "offset_dims": (len(sizes),), "collapsed": (0,), "batch": (), "indices_batch": (), "index_map": (0,),
        "index_dim": len(sizes), "sizes": (1, width), "sorted": False,
    }  # fmt: skip
    picked = make.operation("gather", [table, index], root.result.sizes, table.dtype, own)
    inside = make.broadcast(make.in_range(index, rows), picked.sizes, range(len(sizes)))
    return make.select(inside, picked, make.full("0.0", picked.dtype, picked.sizes))


ONE_HOT_LOOKUP = Rule(
    name="one-hot-lookup",
    phase="work",
    summary="a product of a one-hot matrix and a table of many rows: the rows are gathered",
    finding="every row of a large table is read and multiplied for every index, to pick one of them",
    change="look the rows up by index (a one-hot matrix gives zeros for an index out of range)",
    source="the TPU compiler's estimate; embeddings of 32,000 words by jax.nn.one_hot",
    roots=("dot_general",),
    find=_lookup,
    pays=lambda found: found.table.sizes[0] >= 4096,
    build=_gathered,
    finite=lambda found: (found.table,),
    exact=False,
    before="return jax.nn.one_hot(ids, v, dtype=table.dtype) @ table",
    after="return table[ids]",
    shapes="table: T[v,d]\nids: i32[n]",
    sizes="v=32000 d=1024 n=8192",
    small="v=6(2..9) d=3(1..4) n=5(1..5)",
    away="return (0.5 * jax.nn.one_hot(ids, v, dtype=table.dtype)) @ table",
)

# The running count of a one-hot matrix (places in the queues of experts): blocks as products with a triangle.

_BLOCK = 256


def _one_hot_cumsum(node: Node) -> Node | None:
    """A window over zeros and ones that ends at each row and reaches back over all rows of the first of two dims."""
    own, hot = node.attributes, node.operands[0]
    rows = hot.sizes[0] if hot.sizes else 0
    if own.get("monoid") != "add" or len(node.operands) != 2 or number_of(node.operands[1]) != 0:
        return None
    if len(node.result.sizes) != 2 or own["window"] != (rows, 1) or own["padding"] != ((rows - 1, 0), (0, 0)):
        return None
    ones = {own[key] for key in ("strides", "base_dilation", "window_dilation")} == {(1, 1)}
    convert = made_by(hot, "convert")
    zero_or_one = convert is not None and convert.operands[0].dtype == "i1"
    return node if ones and zero_or_one and node.result.dtype in ("f32", "i32") and rows < 2**24 else None


def _sum_in_blocks(root: Node, make: Maker) -> Value:
    """Sums in each block by a lower triangle (bf16 operands, f32 sums: exact), plus the totals of the blocks before."""
    convert = made_by(root.operands[0], "convert")
    assert convert is not None
    hot = make.convert(convert.operands[0], "bf16")
    rows, columns = hot.sizes
    block = _BLOCK if rows % _BLOCK == 0 else rows
    count = rows // block
    blocks = make.reshape(hot, (count, block, columns))
    # [block, count, columns]
    inside = make.dot(_triangle(make, block, "GE", "bf16"), blocks, ((1,), (1,)), dtype="f32")
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
    return make.convert(make.compare(make.iota(shape, 0), make.iota(shape, 1), direction), dtype)


def _cumsum_pays(root: Node) -> bool:
    rows, columns = root.result.sizes
    return rows % _BLOCK == 0 and rows >= 2048 and (columns <= 8 or (columns <= 64 and rows <= 16384))


ONE_HOT_CUMSUM = Rule(
    name="one-hot-cumsum",
    phase="shape",
    summary="the running sum of a one-hot matrix: blocked products with a triangle",
    finding="a running sum over all rows of a one-hot matrix is a window as long as the array",
    change="sum in blocks of 256 rows by a lower-triangular matrix, and add the totals of the blocks before",
    source="the TPU compiler's estimate; Switch Transformer's places in the experts' queues",
    roots=("reduce_window",),
    find=_one_hot_cumsum,
    pays=_cumsum_pays,
    build=_sum_in_blocks,
    before="return jnp.cumsum(jax.nn.one_hot(i, e), axis=0)",
    after="""
        hot = jax.nn.one_hot(i, e).reshape(-1, block, e)
        inside = jnp.einsum("pq,nqe->npe", jnp.tril(jnp.ones((block, block))), hot)
        totals = jnp.cumsum(hot.sum(1), axis=0) - hot.sum(1)
        return (inside + totals[:, None]).reshape(-1, e)
    """,
    shapes="i: i32[n]",
    sizes="n=8192 e=64 block=256",
    small="n=512 e=3(1..4) block=256",
    types=("f32",),
    away="return jnp.cumsum(jax.nn.one_hot(i, e) * 0.5, axis=0)",
)

RULES = (ONE_HOT_CUMSUM, ONE_HOT_LOOKUP)

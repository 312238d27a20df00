"""Matrices with a single one in each row: products with them pick rows, or send rows to places."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import one_hot_of, product_dims
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
)

RULES = (ONE_HOT_LOOKUP,)

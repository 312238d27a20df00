"""Matrices with a single one in each row: products with them pick rows, or send rows to places."""

from __future__ import annotations

from math import prod
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

# A mixture of experts by one-hot matrices: every token is multiplied by every place of every expert.

#: Operations on the way from one-hot matrices to the matrix that sends tokens to places.
_ON_THE_WAY = ("multiply", "convert", "compare", "select", "broadcast_in_dim", "reshape", "transpose")
_MOST = 64


def _dispatch(product: Node) -> Value | None:
    """The operand that is made of several one-hot matrices."""
    return next((value for value in product.operands if len(value.sizes) > 2 and _one_hots(value) > 1), None)


def _one_hots(value: Value) -> int:
    """How many one-hot matrices are multiplied with each other to make ``value``."""
    open_, seen, found = [value], {value}, 0
    while open_ and len(seen) < _MOST:
        each = open_.pop()
        if one_hot_of(each) is not None:
            found += 1
            continue
        node = each.operation
        outer = node is not None and node.name == "dot_general" and not any(product_dims(node)[1])
        if node is None or (node.name not in _ON_THE_WAY and not outer):
            continue
        fresh = [operand for operand in node.operands if operand not in seen]
        seen.update(fresh)
        open_ += fresh
    return found


ONE_HOT_DISPATCH = Rule(
    name="one-hot-dispatch",
    phase="advice",
    summary="rows sent to places by a product with a matrix of zeros and ones: scatter and gather them",
    finding="every row is multiplied by every place that it could go to, by a matrix of zeros and ones",
    change="add the rows to their places by index, and read them back by index, times the gates: "
    'y.at[expert, place].get(mode="fill", fill_value=0); or sort them by expert for jax.lax.ragged_dot',
    source="the TPU compiler's estimate; a mixture of experts as GShard's einsums write it",
    roots=("dot_general",),
    find=_dispatch,
    pays=lambda matrix: prod(matrix.sizes) >= 1 << 20,
    build=None,
)

RULES = (ONE_HOT_LOOKUP, ONE_HOT_DISPATCH)

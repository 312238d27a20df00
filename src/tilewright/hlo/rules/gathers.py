"""Elements and rows picked by index or by a one-hot matrix, and what their gradients scatter back."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by, precision_for_zero_one
from tilewright.hlo.rules.matching import (
    behind,
    counts_along,
    megabytes,
    number_of,
    one_hot_of,
    product_dims,
)
from tilewright.hlo.rules.rule import Rule

_FLOATS = ("f32", "bf16", "f16")
_NAMES = {"gather": ("offset_dims", "collapsed"), "scatter": ("window_dims", "inserted")}
"""The attributes that name the dims of what is taken or put, and the dims of the array that it has not."""


class _Picked(NamedTuple):
    """A gather or scatter, and the column of the element that it picks, or writes, in each row."""

    node: Node
    column: Value


def _one_of_each_row(node: Node) -> Value | None:
    """Which element of each row a gather picks, or a scatter writes, where it is one of each; None for any other.

    The value has an element for each row (all dims but the last of the first operand), in their order. Rows are named
    by batch dims, or by the other coordinates of the index counting up.
    """
    own, array, indices = node.attributes, node.operands[0], node.operands[1]
    window, gone = _NAMES[node.name]
    last, rank = len(array.sizes) - 1, len(indices.sizes)
    if last < 1 or own[window] or (node.name == "gather" and set(own["sizes"]) != {1}):
        return None
    if own["batch"]:
        rows = tuple(range(last))
        one = own["batch"] == rows and own["indices_batch"] == rows and own["index_map"] == own[gone] == (last,)
        return indices if one and own["index_dim"] >= last and set(indices.sizes[last:]) <= {1} else None
    parts = made_by(indices, "concatenate")
    everywhere = tuple(range(last + 1))
    if parts is None or own["index_map"] != everywhere or own[gone] != everywhere or own["index_dim"] != rank - 1:
        return None
    if parts.attributes["dim"] != rank - 1 or [part.sizes[-1] for part in parts.operands] != [1] * (last + 1):
        return None
    if indices.sizes[:last] != array.sizes[:last] or set(indices.sizes[last:-1]) - {1}:
        return None
    named = all(counts_along(part, d) or array.sizes[d] == 1 for d, part in enumerate(parts.operands[:-1]))
    return parts.operands[-1] if named else None


# One element a row, picked by index: a masked sum reads the row where it is computed, a gather wants it in memory.


def _adds_to_zeros(node: Node) -> bool:
    return node.attributes.get("monoid") == "add" and number_of(node.operands[0]) == 0 and len(node.operands) == 3


def _along_minor(node: Node) -> _Picked | None:
    """``take_along_axis`` over the last dim with one index a row, or its gradient, a scatter into zeros."""
    if node.result.dtype not in _FLOATS or (node.name == "scatter" and not _adds_to_zeros(node)):
        return None
    index = _one_of_each_row(node)
    return _Picked(node, index) if index is not None else None


def _clamped(index: Value, size: int, make: Maker) -> Value:
    """Indices as a gather takes them: from 0 to ``size - 1``."""
    low, high = (make.constant(text, index.dtype) for text in ("0", str(size - 1)))
    return make.operation("clamp", [low, index, high], index.sizes, index.dtype)


def _hits(index: Value, shape: tuple[int, ...], make: Maker) -> Value:
    """Where an array of this shape is at the index of its row in the last dim."""
    there = make.broadcast(index, shape, range(len(shape) - 1))
    return make.compare(make.iota(shape, len(shape) - 1, index.dtype), there, "EQ")


def _masked_sum(found: _Picked, make: Maker) -> Value:
    """The gather clamps its indices; what is not picked counts as -0.0, the identity of a sum, so the bits stay."""
    values = found.node.operands[0]
    shape = values.sizes
    clamped = _clamped(make.reshape(found.column, shape[:-1]), shape[-1], make)
    return make.reshape(_picked_from(values, _hits(clamped, shape, make), make), found.node.result.sizes)


def _picked_from(values: Value, hit: Value, make: Maker) -> Value:
    """The picked element of each row. ``x - row`` is picked as ``picked(x) - row``: the logits are read, not a copy."""
    node = made_by(values, "subtract", "add", "multiply", "divide", "convert")
    if node is not None and node.name == "convert" and node.operands[0].dtype in _FLOATS:
        return make.convert(_picked_from(node.operands[0], hit, make), values.dtype)
    row = _row_of(node.operands[1], make) if node is not None and len(node.operands) == 2 else None
    if node is not None and row is not None:
        return make.binary(node.name, _picked_from(node.operands[0], hit, make), row)
    nothing = make.constant("-0.0", values.dtype)
    kept = make.select(hit, values, make.broadcast(nothing, values.sizes, ()))
    return make.reduce(kept, nothing, (len(values.sizes) - 1,), "add")


def _row_of(value: Value, make: Maker) -> Value | None:
    """What ``value`` broadcasts along the last dim, as an array of the other dims; None where it does not."""
    node = made_by(value, "broadcast_in_dim")
    if node is None:
        return None
    small, dims, last = node.operands[0], node.attributes["dims"], len(value.sizes) - 1
    if last in dims:
        at = dims.index(last)
        if small.sizes[at] != 1:
            return None
        small = make.reshape(small, (*small.sizes[:at], *small.sizes[at + 1 :]))
        dims = tuple(d for d in dims if d != last)
    return make.broadcast(small, value.sizes[:-1], dims)


def _is_large(values: Value) -> bool:
    """Of a few MB the compiler keeps all in fast memory: whole models showed no gain."""
    return values.sizes[-1] >= 128 and megabytes(values) >= 16


TAKE_ALONG_MINOR = Rule(
    name="take-along-minor",
    phase="work",
    summary="take_along_axis with one index a row: a masked sum",
    finding="one element of each row is gathered, so the rows (of a cross entropy, mostly) must be written to memory",
    change="jnp.where(jnp.arange(classes) == labels[:, None], values, 0).sum(-1), or logsumexp minus that",
    source="the TPU compiler's estimate; the loss of transformers' bert and gpt2, and of gemma",
    roots=("gather",),
    find=_along_minor,
    pays=lambda of: of.node.operands[0].operation is not None and _is_large(of.node.operands[0]),
    build=_masked_sum,
)

# The loss by a one-hot matrix: the same masked sum of the logits, where the product wants their log softmax in memory.


class _HitSum(NamedTuple):
    """A sum over the last dim of ``values`` times a one-hot matrix: where its ones are, and whose index they are."""

    node: Node
    values: Value
    hit: Value
    ids: Value


def _one_hot_sum(node: Node) -> _HitSum | None:
    own, last = node.attributes, len(node.operands[0].sizes) - 1
    product = made_by(behind(node.operands[0], "convert"), "multiply")
    if product is None or own.get("monoid") != "add" or own["dims"] != (last,) or number_of(node.operands[1]) != 0:
        return None
    for hot, values in ((one_hot_of(value), product.operands[1 - side]) for side, value in enumerate(product.operands)):
        if hot is not None and hot.dim == last and values.dtype in _FLOATS:
            return _HitSum(node, values, hot.hit, hot.ids)
    return None


def _sum_of_hits(found: _HitSum, make: Maker) -> Value | None:
    """An index out of range hits nothing: the product's row is zero there, and so is this."""
    index = _row_of(found.ids, make)
    if index is None:
        return None
    picked = _picked_from(found.values, found.hit, make)
    inside = make.in_range(index, found.values.sizes[-1])
    kept = make.select(inside, picked, make.full("0.0", picked.dtype, picked.sizes))
    return make.convert(kept, found.node.result.dtype)


def _hits_pay(found: _HitSum) -> bool:
    """Where a row is subtracted, as log softmax does: the array without it is read instead."""
    less = made_by(behind(found.values, "convert"), "subtract")
    spread = less is not None and made_by(less.operands[1], "broadcast_in_dim") is not None
    return spread and _is_large(found.values)


ONE_HOT_LOSS = Rule(
    name="one-hot-loss",
    phase="work",
    summary="a row of log softmax times a one-hot row, summed: a masked sum of the logits",
    finding="log softmax is written to memory only to be multiplied by a one-hot matrix, which picks one element a row",
    change="take logsumexp of the logits minus the logit that is hit, by jnp.where",
    source="the TPU compiler's estimate; losses of transformers and MaxText that multiply by jax.nn.one_hot",
    roots=("reduce",),
    find=_one_hot_sum,
    pays=_hits_pay,
    build=_sum_of_hits,
    finite=lambda found: (found.values,),
)

# The gradient of a cross entropy: one number a row goes into a matrix of zeros, which a scatter does row by row.


def _select_by_index(found: _Picked, make: Maker) -> Value:
    """An index out of range hits nothing, and a scatter leaves it out."""
    shape, updates = found.node.result.sizes, found.node.operands[2]
    hit = _hits(make.reshape(found.column, shape[:-1]), shape, make)
    given = make.broadcast(make.reshape(updates, shape[:-1]), shape, range(len(shape) - 1))
    return make.select(hit, given, make.full("0.0", given.dtype, shape))


SCATTER_ALONG_MINOR = Rule(
    name="scatter-along-minor",
    phase="work",
    summary="one number a row scattered into zeros: a selection by the row's index",
    finding="one element of each row is scattered into zeros (the gradient of take_along_axis), row by row",
    change="take the loss with jnp.where(jnp.arange(classes) == labels[:, None], values, 0).sum(-1)",
    source="the TPU compiler's estimate: 2.24 for 510 x 4,096 (where rows are batch dims it selects by itself); "
    "gradients of transformers' bert, gpt2 and mistral",
    roots=("scatter",),
    find=_along_minor,
    pays=lambda of: not of.node.attributes["batch"] and _is_large(of.node.result),
    build=_select_by_index,
)

# Rows of a small table picked by index: a product with a one-hot matrix is faster than a gather, and than the scatter
# that is its gradient.


def _is_of_rows(node: Node) -> bool:
    """Whether an index names whole rows of a table of two dims, the index in the last dim of the indices."""
    own, table, indices = node.attributes, node.operands[0], node.operands[1]
    window, gone = _NAMES[node.name]
    rows = node.result if node.name == "gather" else node.operands[2]
    if len(table.sizes) != 2 or own["batch"] or own[gone] != (0,) or own["index_map"] != (0,):
        return False
    rank = len(indices.sizes)
    last = own["index_dim"] == rank - 1 and indices.sizes[-1:] == (1,)
    whole = own[window] == (len(rows.sizes) - 1,) and rows.sizes[-1] == table.sizes[1]
    return whole and (last or own["index_dim"] == rank) and table.dtype in ("f32", "bf16")


def _is_small(table: Value, count: int, least: int) -> bool:
    """Whether rows of a table are so many, and it has so few of them, that a product may pay."""
    return table.sizes[0] <= 1024 and least <= count and count * table.sizes[0] <= 1 << 25


def _look_up_by_product(root: Node, make: Maker) -> Value:
    """A gather clamps its indices, so the one-hot rows are those of clamped indices."""
    table, indices = root.operands
    clamped = _clamped(make.reshape(indices, (prod(root.result.sizes[:-1]),)), table.sizes[0], make)
    hot = make.convert(_hits(clamped, (*clamped.sizes, table.sizes[0]), make), table.dtype)
    picked = make.dot(hot, table, ((1,), (0,)), precision=precision_for_zero_one(table.dtype))
    return make.reshape(picked, root.result.sizes)


SMALL_TABLE_GATHER = Rule(
    name="small-table-gather",
    phase="shape",
    summary="rows gathered from a table of at most 1,024 rows: a one-hot product",
    finding="rows of a small table are gathered one by one",
    change="jax.nn.one_hot(i, rows, dtype=t.dtype) @ t (in f32 with precision='highest')",
    source="the TPU compiler's estimate; the position biases of transformers' t5, DLRM's small tables",
    roots=("gather",),
    find=lambda node: node if _is_of_rows(node) else None,
    pays=lambda root: _is_small(root.operands[0], prod(root.result.sizes[:-1]), 4096),
    build=_look_up_by_product,
    finite=lambda root: [root.operands[0]],
)


def _add_by_product(root: Node, make: Maker) -> Value:
    """An index out of range has no row in the one-hot matrix, and a scatter leaves it out."""
    (rows, width), (_, indices, updates) = root.result.sizes, root.operands
    count = prod(updates.sizes[:-1])
    hot = make.convert(_hits(make.reshape(indices, (count,)), (count, rows), make), root.result.dtype)
    precision = precision_for_zero_one(root.result.dtype)
    return make.dot(hot, make.reshape(updates, (count, width)), ((0,), (0,)), precision=precision)


SMALL_TABLE_GRADIENT = Rule(
    name="small-table-gradient",
    phase="shape",
    summary="rows added into a table of at most 1,024 rows: a product with the one-hot matrix",
    finding="the gradient of a lookup adds rows into a small table one by one",
    change="look up with jax.nn.one_hot(i, rows) @ t, whose gradient is a product",
    source="the TPU compiler's estimate: 1.43 for 38,809 rows of 12 into 732, 1.02 for 512 of 1,024 into 4,096; "
    "gradients of eqxvision's swin and transformers' beit and t5",
    roots=("scatter",),
    find=lambda node: node if _adds_to_zeros(node) and _is_of_rows(node) else None,
    pays=lambda root: _is_small(root.result, prod(root.operands[2].sizes[:-1]), 2048),
    build=_add_by_product,
    finite=lambda root: [root.operands[2]],
    exact=False,
)

# Rows of a large table: a product with a one-hot matrix reads every row for every index.


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

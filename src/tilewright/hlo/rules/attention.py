"""Products of queries and keys, softmax between them, and the positions written into them."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tilewright.hlo.graphs.dims import only_unit_dims_differ
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, made_by
from tilewright.hlo.rules.matching import Repeat, behind, free_dims, number_of, only_used_by, product_dims, repeat_of
from tilewright.hlo.rules.rule import Rule

# Grouped-query attention: keys and values are repeated in memory so that every query head has its own.


class _RepeatedKeys(NamedTuple):
    """A product, which of its operands (0 or 1) is repeated along one of its batch dims, and along which.

    ``turned``: the permutation that the repeated array goes through on the way to the product, or None.
    """

    product: Node
    side: int
    repeat: Repeat
    dim: int
    turned: tuple[int, ...] | None

    @property
    def queries(self) -> Value:
        return self.product.operands[1 - self.side]


def _repeated_keys(product: Node) -> _RepeatedKeys | None:
    for side, value in enumerate(product.operands):
        turn = made_by(value, "transpose")
        repeat = repeat_of(turn.operands[0] if turn is not None else value)
        if repeat is None or not repeat.each:
            continue
        turned = turn.attributes["permutation"] if turn is not None else None
        dim = turned.index(repeat.dim) if turned is not None else repeat.dim
        if dim in product_dims(product)[0][side]:
            return _RepeatedKeys(product, side, repeat, dim, turned)
    return None


def _group_queries(found: _RepeatedKeys, make: Maker) -> Value:
    """The heads of a group become rows of one product with the keys as they are, and go back beside their group."""
    root, side, repeat, along, turned = found
    keys = repeat.source if turned is None else make.transpose(repeat.source, turned)
    both_batch, both_contract = product_dims(root)
    place = both_batch[side].index(along)
    heads = found.queries  # heads of all groups in one dim
    dim, sizes = both_batch[1 - side][place], heads.sizes
    groups, times = repeat.source.sizes[repeat.dim], repeat.times
    split = make.reshape(heads, (*sizes[:dim], groups, times, *sizes[dim + 1 :]))
    batch, contract = ([d + (d > dim) for d in dims[1 - side]] for dims in (both_batch, both_contract))
    free = [d for d in range(len(split.sizes)) if d not in (*batch, *contract, dim + 1)]
    # [batch dims, heads of a group and all free dims as one, contracted dims]
    rows = [times, *(split.sizes[d] for d in free)]
    ordered = make.transpose(split, [*batch, dim + 1, *free, *contract])
    count = len(batch)
    lines = make.reshape(ordered, (*ordered.sizes[:count], prod(rows), *ordered.sizes[count + len(rows) :]))
    order = -1 if side == 0 else 1  # the keys stay on their side
    left, right = (lines, keys)[::order]
    batches = (range(count), both_batch[side])[::order]
    contracts = (range(count + 1, len(lines.sizes)), both_contract[side])[::order]
    precision = root.attributes["precision"]
    product = make.dot(
        left, right, (contracts[0], contracts[1]), (batches[0], batches[1]), root.result.dtype, precision
    )
    at = count if side == 1 else len(product.sizes) - 1  # where the rows stand
    wide = make.reshape(product, (*product.sizes[:at], *rows, *product.sizes[at + 1 :]))
    dims = [d for d in range(len(wide.sizes)) if d != at]
    dims.insert(place + 1, at)  # each head of a group beside its group
    return make.reshape(make.transpose(wide, dims), root.result.sizes)


GROUPED_QUERIES = Rule(
    name="grouped-query-attention",
    phase="work",
    summary="a product with repeated keys or values: the queries are grouped instead",
    finding="keys or values are repeated in memory so that every query head has its own copy",
    change="reshape the queries to [..., groups, heads per group, ...] and contract with the keys as they are",
    source="the TPU compiler's estimate; llama, mistral, qwen and others of keras-hub and transformers",
    roots=("dot_general",),
    find=_repeated_keys,
    # Decoding: with many queries the product itself takes the time, and the compiler's estimates show no gain.
    pays=lambda of: prod(of.queries.sizes[d] for d in free_dims(of.product, 1 - of.side)) <= 16,
    build=_group_queries,
)

# Softmax before a product: the row sums come out of the product itself, from a column of ones.


class _Softmax(NamedTuple):
    """A product with softmax's result on one ``side``: ``weights / sum``, made by ``divide``.

    The weights are exp(scores - max): at most 1, so that nothing overflows before the division.
    """

    product: Node
    side: int
    scores: Value
    weights: Value
    divide: Node


def _unconverted(value: Value) -> Value:
    convert = made_by(value, "convert")
    return convert.operands[0] if convert is not None else value


def _scores(weights: Value, dim: int) -> Value | None:
    """The x of which ``weights`` is exp(x - max(x)), the maximum over ``dim``; None where it is something else."""
    exponential = made_by(_unconverted(weights), "exponential")
    subtract = made_by(_unconverted(exponential.operands[0]), "subtract") if exponential is not None else None
    spread = made_by(_unconverted(subtract.operands[1]), "broadcast_in_dim") if subtract is not None else None
    if subtract is None or spread is None:
        return None
    shifted, largest = _unconverted(subtract.operands[0]), spread.operands[0]
    for _ in range(3):  # a maximum with -inf, or a choice where that is no number, may stand behind the reduction
        node = made_by(behind(largest, "reshape", "broadcast_in_dim", "convert"), "reduce", "maximum", "select")
        if node is None:
            return None
        if node.name == "reduce":
            turn = made_by(shifted, "transpose")
            turned = turn is not None and _unconverted(node.operands[0]) is _unconverted(turn.operands[0])
            over = turn.attributes["permutation"][dim] if turn is not None and turned else dim
            is_maximum = node.attributes.get("monoid") == "maximum" and node.attributes["dims"] == (over,)
            return subtract.operands[0] if is_maximum else None
        others = [x for x in node.operands[-2:] if number_of(x) is None]
        if len(others) != 1:
            return None
        largest = others[0]
    return None


def _softmax(product: Node) -> _Softmax | None:
    batch, contract = product_dims(product)
    if product.result.dtype not in ("f32", "bf16"):
        return None
    for side, value in enumerate(product.operands):
        values = product.operands[1 - side]
        divide = made_by(_unconverted(value), "divide")
        if divide is None or len(contract[side]) != 1 or len(values.sizes) != len(batch[side]) + 2:
            continue
        weights, (over,) = divide.operands[0], contract[side]
        scores = _scores(weights, over)
        if scores is not None and _is_sum(divide.operands[1], weights, over):
            return _Softmax(product, side, scores, weights, divide)
    return None


def _is_sum(value: Value, weights: Value, over: int) -> bool:
    """Whether ``value`` is the sum of the weights over one dim, broadcast along it."""
    spread = made_by(value, "broadcast_in_dim")
    if spread is None:
        return False
    dims = [place for d, place in enumerate(spread.attributes["dims"]) if spread.operands[0].sizes[d] > 1]
    total = spread.operands[0]
    while (node := made_by(total, "reshape", "convert", "broadcast_in_dim")) is not None:
        if not only_unit_dims_differ(node.operands[0].sizes, total.sizes):
            break
        total = node.operands[0]
    reduce = made_by(total, "reduce")
    return (
        reduce is not None
        and reduce.attributes.get("monoid") == "add"
        and reduce.attributes["dims"] == (over,)
        and number_of(reduce.operands[1]) == 0
        and _unconverted(reduce.operands[0]) in (weights, _unconverted(weights))
        and dims == [d for d, size in enumerate(weights.sizes) if d != over and size > 1]
    )


def _divide_afterwards(found: _Softmax, make: Maker) -> Value:
    """[values, 1] instead of the values; the last column of the product divides the others."""
    root, side = found.product, found.side
    batch, contract = product_dims(root)
    given, values = root.operands[side], root.operands[1 - side]
    [column] = free_dims(root, 1 - side)
    one = [size if d != column else 1 for d, size in enumerate(values.sizes)]
    wide = make.concatenate([values, make.full("1.0", values.dtype, one)], column)
    weights = make.convert(found.weights, given.dtype)
    left, right = (weights, wide) if side == 0 else (wide, weights)
    product = make.dot(left, right, contract, batch, dtype="f32", precision=root.attributes["precision"])
    at = len(product.sizes) - 1 if side == 0 else len(batch[0])
    count = values.sizes[column]
    total = make.part(product, at, count, count + 1)
    spread = make.broadcast(total, root.result.sizes, range(len(root.result.sizes)))
    return make.convert(make.binary("divide", make.part(product, at, 0, count), spread), root.result.dtype)


def _softmax_pays(found: _Softmax) -> bool:
    """Many rows and columns, and nobody else reads softmax's result: a gradient does."""
    root, result = found.product, found.divide.result
    if made_by(behind(found.scores, "convert", "transpose", "reshape"), "dot_general") is not None:
        return False  # no mask, no scale: the compiler makes one fusion of the product's softmax
    given = root.operands[found.side]
    columns = given.sizes[product_dims(root)[1][found.side][0]]
    rows = prod(given.sizes[d] for d in free_dims(root, found.side))
    alone = only_used_by(given, root) and (given is result or len(result.users) == 1)
    return alone and columns >= 128 and rows >= 128


SOFTMAX_SUM = Rule(
    name="softmax-sum",
    phase="work",
    summary="softmax before a product: a column of ones in the values yields the row sums, divided by afterwards",
    finding="softmax's exponentials are computed twice, once to sum up their rows and once for the product",
    change="leave the exponentials undivided, give the values a column of ones, and divide by what it yields",
    source="the TPU compiler's estimate; diffusers' unet, transformers' gpt2 and t5, penzai's mistral and others",
    roots=("dot_general",),
    find=_softmax,
    pays=_softmax_pays,
    build=_divide_afterwards,
    exact=False,
    families=("tpu",),
)

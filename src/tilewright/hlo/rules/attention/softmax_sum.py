"""Softmax before a product: the row sums come out of the product itself, from a column of ones."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rules.matching import Match, anything, made_by, number_of, only_used_by, op
from tilewright.hlo.rules.rule import Example, Rule


@dataclass(frozen=True)
class Weighted:
    """A product with softmax's result: on which side, and what softmax is made of before the division."""

    side: int
    weights: Value  # exp(x - max): at most 1, so that nothing overflows before the division
    divide: Node

    @property
    def dtype(self) -> str:
        """The element type that the product reads."""
        return self.divide.result.dtype


def _plain(value: Value) -> Value:
    convert = made_by(value, "convert")
    return convert.operands[0] if convert is not None else value


def _long(value: Value) -> list[int]:
    return [size for size in value.sizes if size > 1]


def _shifted(value: Value, dim: int) -> bool:
    """Whether ``value`` is exp(x - max(x)), the maximum over ``dim``."""
    exponential = made_by(_plain(value), "exponential")
    subtract = made_by(_plain(exponential.operands[0]), "subtract") if exponential is not None else None
    spread = made_by(_plain(subtract.operands[1]), "broadcast_in_dim") if subtract is not None else None
    if subtract is None or spread is None:
        return False
    shifted, largest = _plain(subtract.operands[0]), spread.operands[0]
    for _ in range(6):
        node = largest.operation
        if node is None or not node.plain:
            return False
        if node.name == "reduce":
            turn = made_by(shifted, "transpose")
            turned = turn is not None and _plain(node.operands[0]) is _plain(turn.operands[0])
            over = turn.attributes["permutation"][dim] if turn is not None and turned else dim
            return node.attributes.get("monoid") == "maximum" and node.attributes["dims"] == (over,)
        if node.name in ("reshape", "broadcast_in_dim", "convert"):
            largest = node.operands[0]
        elif node.name in ("maximum", "select"):  # with -inf, or of what is no number
            others = [x for x in node.operands[-2:] if number_of(x) is None]
            if len(others) != 1:
                return False
            largest = others[0]
        else:
            return False
    return False


def _weighted(product: Node) -> Weighted | None:
    own = product.attributes
    for side, value in enumerate(product.operands):
        contract = own[("lhs_contract", "rhs_contract")[side]]
        values = product.operands[1 - side]
        divide = made_by(_plain(value), "divide")
        if divide is None or len(contract) != 1 or len(values.sizes) != len(own[("lhs_batch", "rhs_batch")[side]]) + 2:
            continue
        weights, spread = divide.operands[0], made_by(divide.operands[1], "broadcast_in_dim")
        if spread is None or not _shifted(weights, contract[0]):
            continue
        dims = [place for d, place in enumerate(spread.attributes["dims"]) if spread.operands[0].sizes[d] > 1]
        total = spread.operands[0]
        while (node := made_by(total, "reshape", "convert", "broadcast_in_dim")) is not None:
            if _long(node.operands[0]) != _long(total):
                break
            total = node.operands[0]
        reduce = made_by(total, "reduce")
        kept = [d for d in range(len(weights.sizes)) if d != contract[0]]
        if (
            reduce is not None
            and reduce.attributes.get("monoid") == "add"
            and reduce.attributes["dims"] == (contract[0],)
            and number_of(reduce.operands[1]) == 0
            and _plain(reduce.operands[0]) in (weights, _plain(weights))
            and dims == [d for d in kept if weights.sizes[d] > 1]
        ):
            return Weighted(side, weights, divide)
    return None


def _build(match: Match, root: Node, make: Maker) -> Value | None:
    """[values, 1] instead of the values; the last column of the product divides the others."""
    weighted = _weighted(root)
    if weighted is None:
        return None
    own, side = root.attributes, weighted.side
    given, values = root.operands[side], root.operands[1 - side]
    batch, contract = [own["lhs_batch"], own["rhs_batch"]], [own["lhs_contract"], own["rhs_contract"]]
    column = next(d for d in range(len(values.sizes)) if d not in (*batch[1 - side], *contract[1 - side]))
    one = [size if d != column else 1 for d, size in enumerate(values.sizes)]
    wide = make.concatenate([values, make.full("1.0", values.dtype, one)], column)
    weights = make.convert(weighted.weights, given.dtype)
    pair = (weights, wide) if side == 0 else (wide, weights)
    product = make.dot(*pair, (contract[0], contract[1]), (batch[0], batch[1]), dtype="f32", precision=own["precision"])
    at = len(product.sizes) - 1 if side == 0 else len(batch[0])
    count = values.sizes[column]
    total = make.part(product, at, count, count + 1)
    spread = make.broadcast(total, root.result.sizes, range(len(root.result.sizes)))
    return make.convert(make.binary("divide", make.part(product, at, 0, count), spread), root.result.dtype)


def _straight(weights: Value) -> bool:
    """Whether softmax is of a product as it is: no mask, no scale between. The compiler makes one fusion of that."""
    exponential = made_by(_plain(weights), "exponential")
    subtract = made_by(_plain(exponential.operands[0]), "subtract") if exponential is not None else None
    value = subtract.operands[0] if subtract is not None else weights
    while (node := made_by(value, "convert", "transpose", "reshape")) is not None:
        value = node.operands[0]
    return made_by(value, "dot_general") is not None


def _pays(match: Match, root: Node) -> bool:
    """Many rows and columns, and nobody else reads softmax's result: a gradient does."""
    weighted = _weighted(root)
    assert weighted is not None
    if _straight(weighted.weights):
        return False
    given = root.operands[weighted.side]
    own = root.attributes
    (contract,), batch = (own[(f"lhs_{what}", f"rhs_{what}")[weighted.side]] for what in ("contract", "batch"))
    columns = given.sizes[contract]
    rows = prod(size for d, size in enumerate(given.sizes) if d not in (contract, *batch))
    alone = only_used_by(given, root) and (given is weighted.divide.result or len(weighted.divide.result.users) == 1)
    return alone and columns >= 128 and rows >= 128


RULE = Rule(
    name="softmax-sum",
    phase="work",
    summary="softmax before a product: a column of ones in the values yields the row sums, divided by afterwards",
    finding="softmax's exponentials are computed twice, once to sum up their rows and once for the product",
    change="write e = jnp.exp(x - x.max(-1, keepdims=True)); "
    "o = e @ jnp.concatenate([v, jnp.ones_like(v[..., :1])], -1); o[..., :-1] / o[..., -1:]",
    source="the TPU compiler's estimate",
    pattern=op("dot_general", anything("left"), anything("right")),
    roots=frozenset({"dot_general"}),
    where=lambda match, root: root.result.dtype in ("f32", "bf16") and _weighted(root) is not None,
    pays=_pays,
    build=_build,
    exact=False,
    families=("tpu",),
    example=Example(
        before="""
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / d**0.5, axis=-1)
            return jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        """,
        after="""
            x = jnp.einsum("bqhd,bkhd->bhqk", q, k) / d**0.5
            e = jnp.exp(x - x.max(-1, keepdims=True))
            o = jnp.einsum("bhqk,bkhd->bqhd", e, jnp.concatenate([v, jnp.ones_like(v[..., :1])], -1))
            return o[..., :-1] / o[..., -1:]
        """,
        shapes="q: T[b,s,h,d]\nk: T[b,s,h,d]\nv: T[b,s,h,d]",
        sizes="b=2 s=1024 h=8 d=128",
        small="b=1 s=4 h=2 d=2",
        draw="b=1..2 s=2..5 h=1..2 d=1..3",
        types=("bf16", "f32"),
        away="""
            weights = jnp.exp(jnp.einsum("bqhd,bkhd->bhqk", q, k))
            return jnp.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
        """,
    ),
)

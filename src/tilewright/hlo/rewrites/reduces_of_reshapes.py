"""P1 for reductions of several arrays at once, such as argmax: all of them move together or none does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import plan_reduce
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite, is_exact, may_regroup, products, reassociation, starts
from tilewright.hlo.rewriting.maker import Maker, is_static, made_by
from tilewright.hlo.rewriting.relay import Relay, ReshapeMove, TransposeMove


@dataclass(frozen=True)
class ReducesOfReshapes(LocalRewrite):
    """reduce(reshape(X), Y, ...) -> reduce(reshape(reduce(X, Y', ...))) for all operands together.

    One operand is a reshape or a transpose; the others must be reshapes, transposes, broadcasts, constants, an iota, or
    elementwise trees of them, re-expressed in its shape. Bodies: a monoid operation for each array apart, or JAX's
    choice of the largest or smallest value and its first index. A choice among floats is only moved where one stage
    does it all: taken apart, it could name another one of several elements that are not numbers.
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reduce"})
    name: ClassVar[str] = "reduces-of-reshapes"
    summary: ClassVar[str] = "P1 for reductions of several arrays (argmax): all of them move together or none"
    allow_reassociation: bool = reassociation()
    allow_products: bool = products()

    def rewrite_all(self, op: Node, make: Maker) -> list[Value] | None:
        """The results of the reduction before its operands were reshaped or transposed, each moved behind it."""
        if len(op.results) == 1 or not op.plain or not is_static(*op.operands, *op.results):
            return None
        return (self._below_reshape(op, make) or self._below_transpose(op, make)) if self._is_understood(op) else None

    def _is_understood(self, op: Node) -> bool:
        """Whether the body may take its elements in the order of another shape."""
        if "chooses" in op.attributes:
            return True
        pairs = zip(op.attributes.get("monoids", ()), op.operands)
        allowed = self.allow_reassociation, self.allow_products
        return "monoids" in op.attributes and all(may_regroup(monoid, v.dtype, *allowed) for monoid, v in pairs)

    def _below_reshape(self, op: Node, make: Maker) -> list[Value] | None:
        inputs = op.operands[: len(op.results)]
        reshape = _maker(inputs, "reshape")
        if reshape is None:
            return None
        source, target = reshape.operands[0].sizes, reshape.result.sizes
        plan = plan_reduce(source, target, op.attributes["dims"])
        relay = Relay(ReshapeMove(source, target))
        if plan is None or not all(map(relay.can, inputs)):
            return None
        if not plan.second:
            values = make.reduces(op, [relay.build(v, make) for v in inputs], _inits(op), plan.first)
            return [make.reshape(value, plan.final) for value in values]
        begin = _begin(op, make)
        if begin is None:
            return None
        wide = [make.convert(relay.build(v, make), init.dtype) for v, (init, _) in zip(inputs, begin)]
        small = make.reduces(op, wide, [init for init, _ in begin], plan.first)
        middle = [make.reshape(value, plan.middle) for value in small]
        values = make.reduces(op, middle, [init for _, init in begin], plan.second)
        kinds = [result.dtype for result in op.results]
        return [make.reshape(make.convert(value, kind), plan.final) for value, kind in zip(values, kinds)]

    def _below_transpose(self, op: Node, make: Maker) -> list[Value] | None:
        inputs, dims = op.operands[: len(op.results)], op.attributes["dims"]
        transpose = _maker(inputs, "transpose")
        if transpose is None or ("chooses" in op.attributes and len(dims) > 1):
            return None
        permutation = transpose.attributes["permutation"]
        relay = Relay(TransposeMove(transpose.operands[0].sizes, permutation))
        if not all(map(relay.can, inputs)):
            return None
        reduced = {permutation[d] for d in dims}
        kept = [p for p in permutation if p not in reduced]
        small = make.reduces(op, [relay.build(v, make) for v in inputs], _inits(op), sorted(reduced))
        return [make.transpose(value, [sorted(kept).index(p) for p in kept]) for value in small]


def _inits(op: Node) -> list[Value]:
    return op.operands[len(op.results) :]


def _maker(values: list[Value], name: str) -> Node | None:
    """The first operation called ``name`` that makes one of the values."""
    return next((op for value in values if (op := made_by(value, name)) is not None), None)


def _begin(op: Node, make: Maker) -> list[tuple[Value, Value]] | None:
    """What the two stages start from, for each array; None if one of them has nothing to start from."""
    inits = _inits(op)
    if "chooses" in op.attributes:  # the choice of an extreme: its init counts twice like once
        return [(init, init) for init in inits] if is_exact("add", inits[0].dtype) else None
    pairs = [starts(monoid, init, make) for monoid, init in zip(op.attributes["monoids"], inits)]
    return [pair for pair in pairs if pair is not None] if None not in pairs else None

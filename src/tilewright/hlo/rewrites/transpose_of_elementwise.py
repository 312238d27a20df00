"""Let a transpose sink below elementwise operations until it meets its inverse, a reduction or the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static, made_by
from tilewright.hlo.rewriting.relay import Relay, TransposeMove


@dataclass(frozen=True)
class TransposeOfElementwise(LocalRewrite):
    """f(transpose(X), broadcast(Y)) -> transpose(f(X, broadcast(transpose(Y)))), f any tree of elementwise operations.

    So a reshape in front of the transpose meets the reductions, broadcasts and reshapes behind it. Where an inverse
    transpose follows, the two cancel (``canonicalize``); a reduction takes the transpose in (``reduce-of-transpose``).
    Left alone: trees with another leaf of the transposed shape.
    """

    name: ClassVar[str] = "transpose-of-elementwise"
    summary: ClassVar[str] = (
        "sink a transpose below elementwise operations, so that reshapes behind it meet their users"
    )

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The elementwise operation on what its operands were before they were transposed."""
        if not is_elementwise(op) or not is_static(op.result):
            return None
        before = next((t for t in map(_transpose, op.operands) if t is not None), None)
        if before is None or before.result.shape != op.result.shape:
            return None
        permutation = before.attributes["permutation"]
        relay = Relay.of_sweep(make, TransposeMove, before.operands[0].sizes, permutation)
        return make.transpose(relay.build(op.result, make), permutation) if relay.can(op.result) else None


def _transpose(value: Value) -> Node | None:
    """The transpose that makes ``value``, if it moves more than unit dims."""
    op = made_by(value, "transpose")
    if op is None:
        return None
    moved = [d for d in op.attributes["permutation"] if op.operands[0].sizes[d] != 1]
    return op if moved != sorted(moved) else None

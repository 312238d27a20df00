"""P2: let a reshape sink below elementwise operations until it meets its inverse or a reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Operation, Value
from tilewright.hlo.rewriting.base import LocalRewrite, Maker, is_elementwise, is_static
from tilewright.hlo.rewriting.relay import Relay, ReshapeMove

__all__ = ["ReshapeOfElementwise"]


@dataclass(frozen=True)
class ReshapeOfElementwise(LocalRewrite):
    """f(reshape(X), broadcast(Y)) -> reshape(f(X, broadcast(reshape(broadcast(Y))))), the patent's second rewrite.

    f is any tree of elementwise operations over several reshaped, broadcast and constant leaves. Where an outer
    reshape leads back to X's shape the two cancel (``canonicalize``); where a reduction follows, ``reduce-of-reshape``
    goes on. Left alone: trees with another leaf of the reshaped shape.
    """

    name: ClassVar[str] = "reshape-of-elementwise"
    summary: ClassVar[str] = "P2: sink a reshape below elementwise operations, re-expressing broadcasts as small ones"

    def rewrite(self, op: Operation, make: Maker) -> Value | None:
        """The elementwise operation in the shape its operands had before they were reshaped."""
        if not is_elementwise(op) or not is_static(op.result):
            return None
        target = op.result.shape
        source = next((s for s in map(_before, op.operands) if s is not None and s != target), None)
        if source is None or target is None:
            return None
        relay = Relay.of_sweep(make, ReshapeMove, source, target)
        return make.reshape(relay.build(op.result, make), target) if relay.can(op.result) else None


def _before(value: Value) -> tuple[int, ...] | None:
    """The shape of ``value`` before it was reshaped."""
    op = value.operation
    if op is None or op.name != "reshape" or not op.plain or not is_static(op.operands[0]):
        return None
    return op.operands[0].shape

"""A broadcast that is reshaped: reshape the small operand and broadcast that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import plan_broadcast
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import Maker, is_static
from tilewright.hlo.rewriting.relay import broadcast_at, spread


@dataclass(frozen=True)
class ReshapeOfBroadcast(LocalRewrite):
    """reshape(broadcast(Y)) -> broadcast(reshape(broadcast(Y))), where some whole run of dims comes from the outside.

    [8,32] -> [8,9,9,32,8] -> [8,9,9,256]      becomes      [8,32] -> [8,32,8] -> [8,256] -> [8,9,9,256]

    An iota counts as the broadcast of a vector.
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reshape"})
    name: ClassVar[str] = "reshape-of-broadcast"
    summary: ClassVar[str] = "reshape the operand of a broadcast instead of its result"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The broadcast of a small reshape."""
        inner = op.operands[0].operation
        if inner is None or not inner.plain or not is_static(op.result, op.operands[0]):
            return None
        small_shape, shape = spread(inner), op.result.sizes
        plan = plan_broadcast(*small_shape, inner.result.sizes, shape) if small_shape else None
        if plan is None or sum(n != 1 for n in plan.folded) == sum(n != 1 for n in shape):
            return None  # every dim comes from the operand: nothing would be smaller
        return broadcast_at(inner, shape, make)

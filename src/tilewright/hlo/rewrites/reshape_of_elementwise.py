"""P2: let a reshape sink below elementwise operations until it meets its inverse or a reduction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static, made_by
from tilewright.hlo.rewriting.relay import Relay, ReshapeMove


@dataclass(frozen=True)
class ReshapeOfElementwise(LocalRewrite):
    """f(reshape(X), broadcast(Y)) -> reshape(f(X, broadcast(reshape(broadcast(Y))))), the patent's second rewrite.

    f is any tree of elementwise operations over several reshaped, broadcast and constant leaves. Where an outer
    reshape leads back to X's shape the two cancel (``canonicalize``); where a reduction follows, ``reduce-of-reshape``
    goes on. Left alone: trees with another leaf of the reshaped shape.
    """

    name: ClassVar[str] = "reshape-of-elementwise"
    summary: ClassVar[str] = "P2: sink a reshape below elementwise operations, re-expressing broadcasts as small ones"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The elementwise operation in the shape its operands had before they were reshaped."""
        if not is_elementwise(op) or not is_static(op.result):
            return None
        target = op.result.sizes
        reshapes = (made_by(value, "reshape") for value in op.operands)
        sources = (reshape.operands[0].sizes for reshape in reshapes if reshape is not None)
        source = next((sizes for sizes in sources if sizes != target), None)
        if source is None:
            return None
        relay = Relay.of_sweep(make, ReshapeMove, source, target)
        return make.reshape(relay.build(op.result, make), target) if relay.can(op.result) else None

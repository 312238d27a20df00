"""Conditionals that hand on or take in a reshaped array: the reshape moves to the side where its users are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tilewright.hlo.graphs.graph import Block, Node, Value, walk
from tilewright.hlo.rewriting.base import Rewrite
from tilewright.hlo.rewriting.maker import Maker
from tilewright.hlo.rewriting.relay import (
    Relay,
    ReshapeMove,
    insert,
    real_reshape,
    reshape_return,
    reshape_users,
    unreshaped,
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ReshapeOfBranch(Rewrite):
    """case(i, {reshape(X)}, {Y}) -> reshape(case(i, {X}, {reshape(Y)})), and reshapes that branches use go inside.

    A result changes its shape where some branch makes it of a reshape and the others can follow (the residuals that the
    gradient of a ``cond`` keeps for its way back, zeros where the other branch was taken). A reshape outside that a
    branch uses is made again inside it.
    """

    name: ClassVar[str] = "reshape-of-branch"
    summary: ClassVar[str] = "hand results of a conditional on as they were before a reshape, which goes inside"

    def apply(self, block: Block) -> int:
        """Change the conditionals of ``block``, each result at most once."""
        count = 0
        for op in [op for op in block.operations if op.name in ("case", "if") and op.plain]:
            count += _take_in(op, block)
            for k in range(len(op.results)):
                shape = _before(op, k)
                if shape is not None:
                    for inner in op.blocks:
                        reshape_return(inner, k, shape)
                    reshape_users(op.results[k], shape, block, block.operations.index(op) + 1, op)
                    count += 1
        return count


def _before(op: Node, k: int) -> Shape | None:
    """The shape in which every branch could give the ``k``-th result, because one makes it of a reshape."""
    values = [inner.operations[-1].operands[k] for inner in op.blocks]
    for shape in filter(None, map(unreshaped, values)):
        target = op.results[k].shape
        relay = Relay(ReshapeMove(shape, target)) if target is not None else None
        if relay is not None and all(map(relay.can, values)):
            return shape
    return None


def _take_in(op: Node, block: Block) -> int:
    """Make the reshapes of ``block`` that the branches use inside of them."""
    count = 0
    for branch in op.blocks:
        inside: dict[Value, Value] = {}
        blocks = list(walk(branch))
        users = [(user, k, v) for inner in blocks for user in inner.operations for k, v in enumerate(user.operands)]
        for user, k, value in users:
            if value.operation is None or value.operation.block is not block or real_reshape(value) is None:
                continue
            if value not in inside:
                reshape = partial(Maker.reshape, value=value.operation.operands[0], shape=value.sizes)
                inside[value] = insert(branch, 0, value.operation, reshape)
            user.set_operand(k, inside[value])
        for inner in blocks if inside else ():
            inner.changed = True
        count += len(inside)
    return count

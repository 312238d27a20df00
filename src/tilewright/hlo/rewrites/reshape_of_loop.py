"""Loops that carry a reshaped array: carry it as it was, and reshape it inside, where its users are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Block, Node
from tilewright.hlo.rewrites.reshape_of_dynamic_slice import ReshapeOfDynamicSlice
from tilewright.hlo.rewriting.base import Rewrite
from tilewright.hlo.rewriting.maker import is_static
from tilewright.hlo.rewriting.relay import (
    Relay,
    ReshapeMove,
    follows,
    insert,
    real_reshape,
    reshape_return,
    reshape_users,
    unreshaped,
    without_unit_steps,
)

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ReshapeOfLoop(Rewrite):
    """while(reshape(X), ...) -> reshape(while(X, ...)), with the reshape inside the body and its inverse at its end.

    Two kinds of carried arrays change their shape: those that come from a reshape and are not changed by the body or
    by elementwise operations alone, and the stacks of a scan whose rows
    are made of a reshape (the residuals that a gradient keeps for its way back). The rows are then stacked unreshaped,
    and the reshape moves to where the stack is read; there ``reshape-of-loop`` takes it into the next loop.
    """

    name: ClassVar[str] = "reshape-of-loop"
    summary: ClassVar[str] = "carry arrays and stacks of rows through a loop as they were before a reshape"

    def apply(self, block: Block) -> int:
        """Change the carried shapes of the loops of ``block``, each carried array at most once."""
        count = 0
        for op in [op for op in block.operations if op.name == "while" and op.plain and len(op.blocks) == 2]:
            for k in range(len(op.results)):
                shape = _from_reshape(op, k) or _from_rows(op, k)
                if shape is not None:
                    _change(op, k, shape)
                    count += 1
        return count


def _from_reshape(op: Node, k: int) -> Shape | None:
    """What a carried array was before it was reshaped, if the body can hand it on like that."""
    reshape = real_reshape(op.operands[k])
    if reshape is None or follows(reshape):
        return None
    body = op.blocks[1]
    shape, argument, new = reshape.operands[0].sizes, body.arguments[k], body.operations[-1].operands[k]
    update = new.operation
    if update is not None and update.name == "dynamic_update_slice" and update.operands[0] is argument:
        return shape
    relay = Relay(ReshapeMove(shape, argument.sizes))
    relay.possible[argument] = True
    return shape if relay.can(new) else None


def _from_rows(op: Node, k: int) -> Shape | None:
    """For a stack whose only use in the body is an update of one row: the stack of rows before they were reshaped."""
    argument, end = op.blocks[1].arguments[k], op.blocks[1].operations[-1]
    update = end.operands[k].operation
    if update is None or update.name != "dynamic_update_slice" or not update.plain or op.blocks[0].arguments[k].users:
        return None
    row, stack = update.operands[1], argument.shape
    only = update.operands[0] is argument and list(argument.users.values()) == [1] == list(update.result.users.values())
    if not only or not is_static(argument, row) or not stack or row.shape != (1, *stack[1:]):
        return None
    shape = unreshaped(without_unit_steps(row))
    return None if shape is None else (stack[0], *shape)


def _change(op: Node, k: int, shape: Shape) -> None:
    """Carry the ``k``-th array in another shape of the same size."""
    block, old = op.block, op.operands[k]
    assert block is not None
    place = block.operations.index(op)
    op.set_operand(k, insert(block, place, op, lambda make: make.reshape(old, shape)))
    reshape_users(op.results[k], shape, block, block.operations.index(op) + 1, op)
    for inner in op.blocks:
        reshape_users(inner.arguments[k], shape, inner, 0, inner.operations[-1])
    reshape_return(op.blocks[1], k, shape)
    ReshapeOfDynamicSlice().apply(op.blocks[1])
    _cancel_return(op.blocks[1], k)


def _cancel_return(body: Block, k: int) -> None:
    """A reshape and its inverse before the end of the body, which an update has left behind."""
    end = body.operations[-1]
    last = end.operands[k].operation
    before = last.operands[0].operation if last is not None and last.name == "reshape" else None
    if before is not None and before.name == "reshape" and before.operands[0].shape == end.operands[k].shape:
        end.set_operand(k, before.operands[0])

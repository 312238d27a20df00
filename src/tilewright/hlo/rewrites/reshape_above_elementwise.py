"""A reshape that rises: above a tree of elementwise operations whose leaves then need fewer reshapes than before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import plan_broadcast
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static, made_by
from tilewright.hlo.rewriting.relay import ReshapeMove, spread


@dataclass(frozen=True)
class ReshapeAboveElementwise(LocalRewrite):
    """reshape(f(reshape(X), Z)) -> f(X, reshape(Z)), where the outer reshape leads back to the shape of X.

    f is a tree of elementwise operations that nobody else uses. Z, an array that is no reshape, keeps the inner reshape
    from sinking (``reshape-of-elementwise``). It is done where fewer reshapes are made than fall away, so a reshape of
    f(Z) alone stays where it is, and one of f(broadcast(Y)) becomes f(broadcast(reshape(Y))).
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reshape"})
    name: ClassVar[str] = "reshape-above-elementwise"
    summary: ClassVar[str] = "raise a reshape above elementwise operations where fewer reshapes are left"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The tree in the shape that the reshape gives it."""
        if not is_static(op.result, op.operands[0]) or op.result.shape == op.operands[0].shape:
            return None
        tree = _tree(op)
        leaves = dict.fromkeys(value for node in tree for value in node.operands if value.operation not in tree)
        arrays = [value for value in leaves if value.shape == op.operands[0].shape]
        if not tree or any(value.shape not in ((), op.operands[0].shape) for value in leaves):
            return None
        move = ReshapeMove(op.result.sizes, op.operands[0].sizes)
        falls = 1 + sum(_is_only_in(value, tree) for value in arrays if made_by(value, "reshape"))
        if sum(_needs_reshape(value, move) for value in arrays) >= falls:
            return None
        made = {value: value if value.shape == () else _leaf(value, move, make) for value in leaves}
        for node in reversed(tree):
            made[node.result] = make.same(node, [made[value] for value in node.operands], move.source)
        return made[op.operands[0]]


def _tree(reshape: Node) -> dict[Node, None]:
    """The elementwise operations that only lead to the reshape, users before what they use."""
    tree: dict[Node, None] = {}
    open_ = [reshape.operands[0]]
    while open_:
        value = open_.pop()
        op = value.operation
        if op is None or op in tree or not op.plain or len(op.results) != 1 or not is_elementwise(op):
            continue
        if value.shape != reshape.operands[0].shape or any(
            user not in tree and user is not reshape for user in value.users
        ):
            continue  # it is looked at again from its last user
        tree[op] = None
        open_ += op.operands
    return tree


def _is_only_in(value: Value, tree: dict[Node, None]) -> bool:
    return all(user in tree for user in value.users)


def _needs_reshape(value: Value, move: ReshapeMove) -> bool:
    """Whether a leaf in the new shape takes a reshape as large as itself."""
    op = value.operation
    if op is None or not op.plain or not move.takes(op):
        return True
    if op.name == "reshape":
        return op.operands[0].shape != move.source
    if op.name == "constant":
        return False
    small = spread(op)
    plan = plan_broadcast(*small, move.target, move.source) if small is not None else None
    return plan is None or sum(n != 1 for n in plan.folded) == sum(n != 1 for n in move.source)


def _leaf(value: Value, move: ReshapeMove, make: Maker) -> Value:
    """A leaf in the new shape."""
    op = value.operation
    return make.reshape(value, move.source) if op is None or _needs_reshape(value, move) else move.leaf(op, make)

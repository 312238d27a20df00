"""Reshapes and transposes around elementwise operations and broadcasts: they sink, and rise where fewer are left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import plan_broadcast
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import ELEMENTWISE, Maker, is_elementwise, is_static, made_by
from tilewright.hlo.rewriting.sinking import Move, Sinking, broadcast_source, reshaped_broadcast


@dataclass(frozen=True)
class TransposeOfElementwise(LocalRewrite):
    """f(transpose(X), broadcast(Y)) -> transpose(f(X, broadcast(transpose(Y)))), f any tree of elementwise operations.

    So a reshape in front of the transpose meets the reductions, broadcasts and reshapes behind it. Where an inverse
    transpose follows, the two cancel (``canonicalize``); a reduction takes the transpose in (``reduce-of-transpose``).
    Left alone: trees with another leaf of the transposed shape.
    """

    roots: ClassVar[frozenset[str]] = ELEMENTWISE | {"bitcast_convert"}
    takes: ClassVar[frozenset[str]] = frozenset({"transpose"})
    summary: ClassVar[str] = (
        "sink a transpose below elementwise operations, so that reshapes behind it meet their users"
    )

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        if not is_elementwise(op) or not is_static(op.result):
            return None
        before = next((t for t in map(_transpose, op.operands) if t is not None), None)
        if before is None or before.result.shape != op.result.shape:
            return None
        return Sinking.sunk(op, Move.of(before), make)


def _transpose(value: Value) -> Node | None:
    """The transpose that makes ``value``, if it moves more than unit dims."""
    op = made_by(value, "transpose")
    if op is None:
        return None
    moved = [d for d in op.attributes["permutation"] if op.operands[0].sizes[d] != 1]
    return op if moved != sorted(moved) else None


@dataclass(frozen=True)
class ReshapeOfElementwise(LocalRewrite):
    """f(reshape(X), broadcast(Y)) -> reshape(f(X, broadcast(reshape(broadcast(Y))))), the second rewrite of the patent.

    f is any tree of elementwise operations over several reshaped, broadcast and constant leaves. Where an outer
    reshape leads back to X's shape the two cancel (``canonicalize``); where a reduction follows, ``reduce-of-reshape``
    goes on. Left alone: trees with another leaf of the reshaped shape.
    """

    roots: ClassVar[frozenset[str]] = ELEMENTWISE | {"bitcast_convert"}
    takes: ClassVar[frozenset[str]] = frozenset({"reshape"})
    summary: ClassVar[str] = "sink a reshape below elementwise operations, re-expressing broadcasts as small ones"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        if not is_elementwise(op) or not is_static(op.result):
            return None
        target = op.result.sizes
        reshapes = (made_by(value, "reshape") for value in op.operands)
        sources = (reshape.operands[0].sizes for reshape in reshapes if reshape is not None)
        source = next((sizes for sizes in sources if sizes != target), None)
        return Sinking.sunk(op, Move(source, target), make) if source is not None else None


@dataclass(frozen=True)
class MoveAboveElementwise(LocalRewrite):
    """reshape(f(reshape(X), Z)) -> f(X, reshape(Z)), where the outer reshape leads back to the shape of X.

    f is a tree of elementwise operations that nobody else uses. Z, an array that is no reshape, keeps the inner reshape
    from sinking (``reshape-of-elementwise``). It is done where fewer reshapes are made than fall away, so a reshape of
    f(Z) alone stays where it is, and one of f(broadcast(Y)) becomes f(broadcast(reshape(Y))). Transposes likewise.
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reshape", "transpose"})
    summary: ClassVar[str] = "raise a reshape or a transpose above elementwise operations where fewer of them are left"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        if not is_static(op.result, op.operands[0]):
            return None
        tree, outer = _tree(op), Move.of(op)
        undone = outer.inverse  # the move that the outer one undoes
        leaves = list(dict.fromkeys(v for node in tree for v in node.operands if v.operation not in tree))
        if not tree or any(value.shape not in ((), outer.source) for value in leaves):
            return None
        arrays = [value for value in leaves if value.shape == outer.source]
        fall = (made_by(leaf, op.name) and all(user in tree for user in leaf.users) for leaf in arrays)
        if sum(_needs(leaf, undone) for leaf in arrays) >= 1 + sum(map(bool, fall)):
            return None
        made = {leaf: _risen(leaf, outer, undone, make) if leaf in arrays else leaf for leaf in leaves}
        for node in reversed(tree):
            made[node.result] = make.elementwise(node, [made[value] for value in node.operands], outer.target)
        return made[op.operands[0]]


def _needs(leaf: Value, undone: Move) -> bool:
    """Whether a leaf comes to be as it was before the move only by a move as large as itself."""
    op = leaf.operation
    if op is None or not op.plain or not undone.takes(op):
        return True
    if op.name == undone.kind:
        return Move.of(op) != undone
    small = broadcast_source(op)
    if small is None or undone.order is not None:
        return False
    plan = plan_broadcast(*small, undone.target, undone.source)
    return plan is None or sum(n != 1 for n in plan.folded) == sum(n != 1 for n in undone.source)


def _risen(leaf: Value, outer: Move, undone: Move, make: Maker) -> Value:
    op = leaf.operation
    return outer.moved(leaf, make) if op is None or _needs(leaf, undone) else undone.leaf(op, make)


def _tree(outer: Node) -> dict[Node, None]:
    """The elementwise operations that only lead to ``outer``, users before what they use."""
    tree: dict[Node, None] = {}
    open_ = [outer.operands[0]]
    while open_:
        value = open_.pop()
        op = value.operation
        if op is None or op in tree or not op.plain or len(op.results) != 1 or not is_elementwise(op):
            continue
        same_shape = value.shape == outer.operands[0].shape
        if same_shape and all(user in tree or user is outer for user in value.users):  # else its last user comes later
            tree[op] = None
            open_ += op.operands
    return tree


@dataclass(frozen=True)
class ReshapeOfBroadcast(LocalRewrite):
    """reshape(broadcast(Y)) -> broadcast(reshape(broadcast(Y))), where some whole run of dims comes from the outside.

    [8,32] -> [8,9,9,32,8] -> [8,9,9,256]      becomes      [8,32] -> [8,32,8] -> [8,256] -> [8,9,9,256]

    An iota counts as the broadcast of a vector.
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reshape"})
    near: ClassVar[bool] = True
    summary: ClassVar[str] = "reshape the operand of a broadcast instead of its result"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        inner = op.operands[0].operation
        if inner is None or not inner.plain or not is_static(op.result, op.operands[0]):
            return None
        small_shape, shape = broadcast_source(inner), op.result.sizes
        plan = plan_broadcast(*small_shape, inner.result.sizes, shape) if small_shape else None
        if plan is None or sum(n != 1 for n in plan.folded) == sum(n != 1 for n in shape):
            return None  # every dim comes from the operand: nothing would be smaller
        return reshaped_broadcast(inner, shape, make)

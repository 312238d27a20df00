"""Sink a reshape or a transpose below a tree of elementwise operations: compute the tree in the operand's shape.

The leaves of the tree, which are reshapes, broadcasts or constants, are expressed in that shape without moving anything
large; a tree with any other leaf stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.hlo.graphs.dims import plan_broadcast, runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static


def broadcast_source(op: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shape that a ``broadcast_in_dim`` or an ``iota`` broadcasts, and the dims it becomes; None for others."""
    shape = op.result.shape
    if op.name == "iota" and shape is not None:
        return (shape[op.attributes["dim"]],), (op.attributes["dim"],)
    if op.name == "broadcast_in_dim" and op.operands[0].shape is not None and is_static(op.operands[0]):
        return op.operands[0].shape, op.attributes["dims"]
    return None


def _broadcast_operand(op: Node, make: Maker) -> Value:
    """What a ``broadcast_in_dim`` or an ``iota`` broadcasts."""
    if op.name != "iota":
        return op.operands[0]
    return make.iota((op.result.sizes[op.attributes["dim"]],), 0, op.result.dtype)


def reshaped_broadcast(op: Node, shape: tuple[int, ...], make: Maker) -> Value | None:
    """A ``broadcast_in_dim`` or ``iota`` reshaped to ``shape``, as a broadcast of a small array; None if there is none.

    Only the operand is reshaped and transposed.
    """
    small_shape, target = broadcast_source(op), op.result.shape
    plan = plan_broadcast(*small_shape, target, shape) if small_shape is not None and target is not None else None
    if plan is None:
        return None
    small = make.transpose(make.reshape(_broadcast_operand(op, make), plan.dropped), plan.order)
    small = make.reshape(make.broadcast(small, plan.expanded, plan.expand_dims), plan.folded)
    return make.broadcast(small, shape, plan.dims)


def transposed_leaf(op: Node, permutation: tuple[int, ...], make: Maker) -> Value | None:
    """``numpy.transpose`` of a constant, a broadcast or an iota, without a transpose of anything large; else None."""
    shape = op.result.shape
    if op.name == "constant":
        return make.transposed_constant(op, permutation) if op.attributes["literal"].movable else None
    small_shape = broadcast_source(op)
    if small_shape is None or shape is None:
        return None
    dims = [permutation.index(d) for d in small_shape[1]]
    order = sorted(range(len(dims)), key=dims.__getitem__)
    small = make.transpose(_broadcast_operand(op, make), order)
    return make.broadcast(small, [shape[d] for d in permutation], [dims[k] for k in order])


@dataclass(frozen=True)
class Move:
    """A reshape, or by ``order`` a transpose, that is to sink: it turns values of one shape into such of another."""

    source: tuple[int, ...]
    target: tuple[int, ...]
    order: tuple[int, ...] | None = None

    @classmethod
    def of(cls, node: Node) -> Move:
        """The move that a reshape or a transpose makes."""
        return cls(node.operands[0].sizes, node.result.sizes, node.attributes.get("permutation"))

    @property
    def kind(self) -> str:
        """The name of its operation."""
        return "reshape" if self.order is None else "transpose"

    @property
    def inverse(self) -> Move:
        """The move that undoes it."""
        order = self.order
        back = None if order is None else tuple(sorted(range(len(order)), key=order.__getitem__))
        return Move(self.target, self.source, back)

    @cached_property
    def _takes_broadcasts(self) -> bool:
        """Whether dims can be matched, so that broadcasts can be expressed."""
        return self.order is not None or runs(self.source, self.target) is not None

    def moved(self, value: Value, make: Maker) -> Value:
        """``value``, of shape ``source``, moved."""
        return make.reshape(value, self.target) if self.order is None else make.transpose(value, self.order)

    def takes(self, op: Node) -> bool:
        """Whether :meth:`leaf` can express the result of ``op``: its own kind, constants in the text, broadcasts."""
        if op.name == self.kind:
            return is_static(op.operands[0])
        if op.name == "constant":
            return bool(op.attributes["literal"].movable)
        return self._takes_broadcasts and broadcast_source(op) is not None

    def leaf(self, op: Node, make: Maker) -> Value:
        """The value of shape ``source`` that the move would turn into the result of ``op``, without moving it."""
        back = self.inverse
        if op.name == self.kind:
            return back.moved(op.result, make)
        if back.order is not None:
            leaf = transposed_leaf(op, back.order, make)
        elif op.name == "constant":
            return make.reshaped_constant(op, self.source)
        else:
            leaf = reshaped_broadcast(op, self.source, make)
        assert leaf is not None
        return leaf


class Sinking:
    """Expresses trees of elementwise operations in the shape of a move's operand, each value once.

    A tree may hold the move's leaves, operands that are scalars by definition (the bounds of a clamp, the predicate of
    a select), and between them any elementwise operations. A tree with anything else in it cannot be expressed.
    """

    def __init__(self, move: Move) -> None:
        self.move = move
        self.possible: dict[Value, bool] = {}
        self.made: dict[Value, Value] = {}

    @classmethod
    def sunk(cls, op: Node, move: Move, make: Maker) -> Value | None:
        """The result of ``op``, the move sunk below the tree that makes it; None where that cannot be expressed.

        All operations of a sweep share what is known of a move, so that a deep tree that cannot be expressed is walked
        once, and not from each of its operations.
        """
        sinking: Sinking = make.sweep.get(move) or make.sweep.setdefault(move, cls(move))
        return move.moved(sinking.build(op.result, make), make) if sinking.can(op.result) else None

    def can(self, value: Value) -> bool:
        """Whether ``value`` and the tree it is made by can be expressed."""
        for each, parts in self._leaves_first(value, self.possible):
            self.possible[each] = parts is not None and all(self.possible[part] for part in parts)
        return self.possible[value]

    def build(self, value: Value, make: Maker) -> Value:
        """The value in the operand's shape; to be called only where :meth:`can` says True."""
        for each, parts in self._leaves_first(value, self.made):
            self.made[each] = self._one(each, [self.made[part] for part in parts or ()], make)
        return self.made[value]

    def _leaves_first(self, value: Value, done: Mapping[Value, Any]) -> Iterator[tuple[Value, list[Value] | None]]:
        """What of a tree is not ``done``, each with its parts, which are by then; iterative, as trees may be deep."""
        stack = [value]
        while stack:
            top = stack[-1]
            parts = [] if top in done else self._parts(top)
            if missing := [part for part in parts or () if part not in done]:
                stack += missing
                continue
            stack.pop()
            if top not in done:
                yield top, parts

    def _is_scalar(self, value: Value) -> bool:
        return value.shape == () and self.move.target != ()

    def _parts(self, value: Value) -> list[Value] | None:
        """The operands that must be expressed for ``value`` to be; None where it cannot be."""
        op = value.operation
        if self._is_scalar(value):
            return []
        if value.shape != self.move.target or op is None or not op.plain or len(op.results) != 1:
            return None
        if is_elementwise(op):
            return list(op.operands)
        return [] if self.move.takes(op) else None

    def _one(self, value: Value, operands: list[Value], make: Maker) -> Value:
        op = value.operation
        if self._is_scalar(value):
            return value
        assert op is not None
        return make.elementwise(op, operands, self.move.source) if is_elementwise(op) else self.move.leaf(op, make)

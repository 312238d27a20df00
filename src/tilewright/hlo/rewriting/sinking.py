"""Sink a reshape or a transpose below a tree of elementwise operations: compute the tree in the operand's shape.

The leaves of the tree, which are reshapes, broadcasts or constants, are expressed in that shape without moving anything
large; a tree with any other leaf stays as it is.
"""

from __future__ import annotations

from typing import ClassVar

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


class Move:
    """A reshape or transpose that is to sink: it turns values of shape ``source`` into values of shape ``target``."""

    kind: ClassVar[str]
    source: tuple[int, ...]
    target: tuple[int, ...]

    def takes(self, op: Node) -> bool:
        """Whether :meth:`leaf` can express the result of ``op``: its own kind, constants in the text, broadcasts."""
        if op.name == self.kind:
            return is_static(op.operands[0])
        if op.name == "constant":
            return bool(op.attributes["literal"].movable)
        return broadcast_source(op) is not None

    def leaf(self, op: Node, make: Maker) -> Value:
        """The value of shape ``source`` that the move would turn into the result of ``op``."""
        raise NotImplementedError


class ReshapeMove(Move):
    """A reshape. Leaves: another reshape (its operand), a constant (in another shape), a broadcast or iota."""

    kind = "reshape"

    def __init__(self, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        self.source, self.target = source, target
        self._matched = runs(source, target) is not None

    def takes(self, op: Node) -> bool:
        """As every move, but only broadcasts whose dims can be matched."""
        return super().takes(op) and (self._matched or op.name in ("reshape", "constant"))

    def leaf(self, op: Node, make: Maker) -> Value:
        if op.name == "reshape":
            return make.reshape(op.operands[0], self.source)
        if op.name == "constant":
            return make.reshaped_constant(op, self.source)
        broadcast = reshaped_broadcast(op, self.source, make)
        assert broadcast is not None
        return broadcast


class TransposeMove(Move):
    """A transpose. Leaves: another transpose (composed), a constant (transposed now), a broadcast or iota."""

    kind = "transpose"

    def __init__(self, source: tuple[int, ...], permutation: tuple[int, ...]) -> None:
        self.source = source
        self.target = tuple(source[d] for d in permutation)
        self._inverse = tuple(sorted(range(len(permutation)), key=permutation.__getitem__))

    def leaf(self, op: Node, make: Maker) -> Value:
        if op.name == "transpose":
            return make.transpose(op.result, self._inverse)
        transposed = transposed_leaf(op, self._inverse, make)
        assert transposed is not None
        return transposed


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
    def of_sweep(cls, make: Maker, kind: type[ReshapeMove | TransposeMove], *how: tuple[int, ...]) -> Sinking:
        """The one for the move ``kind(*how)`` that all operations of a sweep share.

        So a deep tree that cannot be expressed is walked once, and not from each of its operations.
        """
        key = (kind, *how)
        if key not in make.sweep:
            make.sweep[key] = cls(kind(*how))
        sinking: Sinking = make.sweep[key]
        return sinking

    def can(self, value: Value) -> bool:
        """Whether ``value`` and the tree it is made by can be expressed; iterative, as trees may be deep."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self.possible:
                stack.pop()
                continue
            inner = self._parts(top)
            if inner is None:
                self.possible[top] = False
            elif missing := [part for part in inner if part not in self.possible]:
                stack += missing
                continue
            else:
                self.possible[top] = all(self.possible[part] for part in inner)
            stack.pop()
        return self.possible[value]

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

    def build(self, value: Value, make: Maker) -> Value:
        """The value in the operand's shape; to be called only where :meth:`can` says True."""
        stack = [value]
        while stack:
            top = stack[-1]
            if top in self.made:
                stack.pop()
                continue
            inner = self._parts(top) or []
            if missing := [part for part in inner if part not in self.made]:
                stack += missing
                continue
            self.made[top] = self._one(top, [self.made[part] for part in inner], make)
            stack.pop()
        return self.made[value]

    def _one(self, value: Value, operands: list[Value], make: Maker) -> Value:
        op = value.operation
        if self._is_scalar(value):
            return value
        assert op is not None
        return make.elementwise(op, operands, self.move.source) if is_elementwise(op) else self.move.leaf(op, make)

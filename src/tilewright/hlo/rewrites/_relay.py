"""Express a value of one shape in another, without moving anything big: the heart of P2."""

from __future__ import annotations

from tilewright.hlo._dims import plan_broadcast, runs
from tilewright.hlo._graph import Operation, Value
from tilewright.hlo.rewrites._base import ELEMENTWISE, Maker, is_static

__all__ = ["Relay", "broadcast_at"]


def broadcast_at(op: Operation, shape: tuple[int, ...], make: Maker) -> Value | None:
    """A ``broadcast_in_dim`` as one of ``shape``; every reshape and transpose on the way is of the small operand."""
    operand, target = op.operands[0], op.result.shape
    if not is_static(operand) or operand.shape is None or target is None:
        return None
    plan = plan_broadcast(operand.shape, op.attributes["dims"], target, shape)
    if plan is None:
        return None
    small = make.transpose(make.reshape(operand, plan.dropped), plan.order)
    small = make.reshape(make.broadcast(small, plan.expanded, plan.expand_dims), plan.folded)
    return make.broadcast(small, shape, plan.dims)


class Relay:
    """Re-expresses values of shape ``target`` at shape ``source``, each once.

    Leaves it can re-express: a reshape (its operand), a constant (laid out anew), a broadcast (of a small reshape), an
    operand that is a scalar on purpose (the bounds of a clamp, the predicate of a select). Between them any tree of
    elementwise operations. Everything else is a reason to leave the tree as it is.
    """

    def __init__(self, source: tuple[int, ...], target: tuple[int, ...]) -> None:
        self.source, self.target = source, target
        self.possible: dict[Value, bool] = {}

    def can(self, value: Value) -> bool:
        """Whether ``value`` and everything it is made of can be re-expressed; iterative, as trees may be deep."""
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

    def _parts(self, value: Value) -> list[Value] | None:
        """What must be re-expressed for ``value`` to be; None where it cannot be."""
        op = value.operation
        if value.shape == () and self.target != ():
            return []
        if value.shape != self.target or op is None or not op.plain:
            return None
        if op.name == "reshape":
            return [] if is_static(op.operands[0]) else None
        if op.name == "constant":
            return [] if op.attributes["literal"].movable else None
        if op.name == "broadcast_in_dim":
            return [] if is_static(op.operands[0]) and runs(self.source, self.target) is not None else None
        return list(op.operands) if op.name in ELEMENTWISE and len(op.results) == 1 else None

    def build(self, value: Value, make: Maker) -> Value:
        """The re-expressed value; only after :meth:`can`."""
        made: dict[Value, Value] = {}
        stack = [value]
        while stack:
            top = stack[-1]
            op = top.operation
            if top in made:
                stack.pop()
                continue
            inner = self._parts(top) or []
            if missing := [part for part in inner if part not in made]:
                stack += missing
                continue
            made[top] = self._one(top, op, [made[part] for part in inner], make)
            stack.pop()
        return made[value]

    def _one(self, value: Value, op: Operation | None, operands: list[Value], make: Maker) -> Value:
        if value.shape == () and self.target != ():
            return value
        assert op is not None
        if op.name == "reshape":
            return make.reshape(op.operands[0], self.source)
        if op.name == "constant":
            return make.relaid(op, self.source)
        if op.name == "broadcast_in_dim":
            found = broadcast_at(op, self.source, make)
            assert found is not None
            return found
        return make.same(op, operands, self.source)

"""Express a value of one shape in another, without moving anything big: the heart of P2."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tilewright.hlo.graphs.dims import only_unit_dims_differ, plan_broadcast, runs
from tilewright.hlo.graphs.graph import Block, Node, Value
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static, made_by


def spread(op: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The small shape that a ``broadcast_in_dim`` or an ``iota`` spreads, and the dims it becomes; None for others."""
    shape = op.result.shape
    if op.name == "iota" and shape is not None:
        return (shape[op.attributes["dim"]],), (op.attributes["dim"],)
    if op.name == "broadcast_in_dim" and op.operands[0].shape is not None and is_static(op.operands[0]):
        return op.operands[0].shape, op.attributes["dims"]
    return None


def _small(op: Node, make: Maker) -> Value:
    """What a ``broadcast_in_dim`` or an ``iota`` spreads."""
    if op.name != "iota":
        return op.operands[0]
    return make.iota(op.result.sizes[op.attributes["dim"]], op.result.dtype)


def broadcast_at(op: Node, shape: tuple[int, ...], make: Maker) -> Value | None:
    """A ``broadcast_in_dim`` or ``iota`` as one of ``shape``; what is reshaped and transposed on the way is small."""
    small_shape, target = spread(op), op.result.shape
    plan = plan_broadcast(*small_shape, target, shape) if small_shape is not None and target is not None else None
    if plan is None:
        return None
    small = make.transpose(make.reshape(_small(op, make), plan.dropped), plan.order)
    small = make.reshape(make.broadcast(small, plan.expanded, plan.expand_dims), plan.folded)
    return make.broadcast(small, shape, plan.dims)


def turned_leaf(op: Node, permutation: tuple[int, ...], make: Maker) -> Value | None:
    """``numpy.transpose`` of a constant, a broadcast or an iota, without a transpose of anything big."""
    shape = op.result.shape
    if op.name == "constant":
        return make.turned(op, permutation) if op.attributes["literal"].movable else None
    small_shape = spread(op)
    if small_shape is None or shape is None:
        return None
    dims = [permutation.index(d) for d in small_shape[1]]
    order = sorted(range(len(dims)), key=dims.__getitem__)
    small = make.transpose(_small(op, make), order)
    return make.broadcast(small, [shape[d] for d in permutation], [dims[k] for k in order])


class Move:
    """A reshape or transpose that is to sink: it turns values of shape ``source`` into values of shape ``target``."""

    kind: ClassVar[str]
    source: tuple[int, ...]
    target: tuple[int, ...]

    def takes(self, op: Node) -> bool:
        """Whether :meth:`leaf` can re-express the result of ``op``: its own kind, constants in the text, broadcasts."""
        if op.name == self.kind:
            return is_static(op.operands[0])
        if op.name == "constant":
            return bool(op.attributes["literal"].movable)
        return spread(op) is not None

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
        """The leaf at the reshape's operand."""
        if op.name == "reshape":
            return make.reshape(op.operands[0], self.source)
        if op.name == "constant":
            return make.relaid(op, self.source)
        broadcast = broadcast_at(op, self.source, make)
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
        """The leaf at the transpose's operand."""
        if op.name == "transpose":
            return make.transpose(op.result, self._inverse)
        turned = turned_leaf(op, self._inverse, make)
        assert turned is not None
        return turned


class Relay:
    """Re-expresses values at the operand of a move, each once.

    The tree may hold the move's leaves, an operand that is a scalar on purpose (the bounds of a clamp, the predicate of
    a select), and between them any elementwise operations. Everything else is a reason to leave the tree as it is.
    """

    def __init__(self, move: Move) -> None:
        self.move = move
        self.possible: dict[Value, bool] = {}
        self.made: dict[Value, Value] = {}

    @classmethod
    def of_sweep(cls, make: Maker, kind: type[ReshapeMove | TransposeMove], *how: tuple[int, ...]) -> Relay:
        """The relay of a sweep for the move ``kind(*how)``: what one operation found out about a tree holds for the
        next, so that a deep tree that cannot follow is walked once and not from each of its operations."""
        key = (kind, *how)
        if key not in make.sweep:
            make.sweep[key] = cls(kind(*how))
        relay: Relay = make.sweep[key]
        return relay

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

    def _is_scalar(self, value: Value) -> bool:
        return value.shape == () and self.move.target != ()

    def _parts(self, value: Value) -> list[Value] | None:
        """What must be re-expressed for ``value`` to be; None where it cannot be."""
        op = value.operation
        if self._is_scalar(value):
            return []
        if value.shape != self.move.target or op is None or not op.plain or len(op.results) != 1:
            return None
        if is_elementwise(op):
            return list(op.operands)
        return [] if self.move.takes(op) else None

    def build(self, value: Value, make: Maker) -> Value:
        """The re-expressed value; only after :meth:`can`."""
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
        return make.same(op, operands, self.move.source) if is_elementwise(op) else self.move.leaf(op, make)


# Give what loops and branches hand on another shape: a value changes its shape, its users get it reshaped back.

Shape = tuple[int, ...]
#: How far a tree is searched for a reshape; a longer one is left alone.
_REACH = 256


def insert(block: Block, index: int, like: Node, build: Callable[[Maker], Value]) -> Value:
    """What ``build`` makes, its operations placed before the one that stands at ``index``."""
    end = len(block.operations)
    value = build(Maker(block, like))
    inserted = block.operations[end:]
    del block.operations[end:]
    block.operations[index:index] = inserted
    block.changed = True
    return value


def reshape_users(value: Value, shape: Shape, block: Block, index: int, like: Node) -> None:
    """Change the shape of ``value``; its users get a reshape of it instead, made at ``index`` of ``block``."""
    old, users = value.shape, list(value.users)
    value.shape = shape
    block.changed = True
    if not users or old is None:
        return
    back = insert(block, index, like, lambda make: make.reshape(value, old))
    for user in users:
        for k, operand in enumerate(user.operands):
            if operand is value:
                user.set_operand(k, back)


def reshape_return(block: Block, k: int, shape: Shape) -> None:
    """Let a body hand on its ``k``-th result in another shape."""
    end = block.operations[-1]
    old = end.operands[k]
    new = insert(block, len(block.operations) - 1, end, lambda make: make.reshape(old, shape))
    end.set_operand(k, new)


def real_reshape(value: Value) -> Node | None:
    """The static reshape that makes ``value``, if it splits or merges dims."""
    op = made_by(value, "reshape")
    if op is None or not is_static(value) or only_unit_dims_differ(op.operands[0].sizes, value.sizes):
        return None
    return op


def _reshaped_leaf(value: Value) -> Node | None:
    """A reshape at the end of a tree of elementwise operations."""
    open_, seen = [value], {value}
    while open_ and len(seen) < _REACH:
        op = open_.pop(0).operation
        if op is None or not op.plain or not is_static(*op.results):
            continue
        if reshape := real_reshape(op.result):
            return reshape
        inner = op.operands if is_elementwise(op) else []
        fresh = [v for v in inner if v not in seen and v.shape]
        open_ += fresh
        seen.update(fresh)
    return None


def unreshaped(value: Value) -> Shape | None:
    """The shape in which a tree of elementwise operations could be computed instead, because a leaf is a reshape of it.

    None where some leaf cannot follow, and for a reshape of what could be computed in the new shape as well (it has
    been reshaped back already, or is a constant).
    """
    back, leaf = real_reshape(value), _reshaped_leaf(value)
    if leaf is None or (back is not None and follows(back)):
        return None
    source, target = leaf.operands[0].shape, leaf.result.shape
    if source is None or target is None or value.shape != target:
        return None
    return source if Relay(ReshapeMove(source, target)).can(value) else None


def follows(reshape: Node) -> bool:
    """Whether what is reshaped could be computed in the new shape just as well: a reshape back, or of a constant."""
    source, shape = reshape.operands[0], reshape.result.shape
    return shape is not None and source.shape is not None and Relay(ReshapeMove(shape, source.shape)).can(source)


def without_unit_steps(value: Value) -> Value:
    """What ``value`` was before unit dims were added or dropped."""
    while value.operation is not None and value.operation.plain and _is_unit_step(value.operation):
        value = value.operation.operands[0]
    return value


def _is_unit_step(op: Node) -> bool:
    if op.name not in ("reshape", "broadcast_in_dim") or not is_static(op.operands[0]):
        return False
    dims = op.attributes.get("dims", ())
    return list(dims) == sorted(dims) and only_unit_dims_differ(op.operands[0].shape or (), op.result.shape or ())

"""Give what loops and branches hand on another shape: a value changes its shape, its users get it reshaped back."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.hlo.graphs.dims import only_unit_dims_differ
from tilewright.hlo.graphs.graph import Block, Node, Value
from tilewright.hlo.rewriting.base import Maker, is_elementwise, is_static, made_by
from tilewright.hlo.rewriting.relay import Relay, ReshapeMove

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

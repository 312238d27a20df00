"""Reshapes of what loops and conditionals hand on, and of the slices in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tilewright.hlo.graphs.dims import only_unit_dims_differ, runs
from tilewright.hlo.graphs.graph import Block, Node, Value, walk
from tilewright.hlo.program import reached
from tilewright.hlo.rewriting.base import LocalRewrite, Rewrite
from tilewright.hlo.rewriting.maker import Maker, is_elementwise, is_static, made_by
from tilewright.hlo.rewriting.sinking import Move, Sinking

Shape = tuple[int, ...]
#: How many values of a tree are searched for a reshape; a larger tree is left alone.
_REACH = 256


@dataclass(frozen=True)
class ReshapeOfDynamicSlice(LocalRewrite):
    """dynamic_slice(reshape(X), i) -> reshape(dynamic_slice(X, i)), and the same for dynamic_update_slice.

        [5,9,32] -> [5,9,4,8], row i: [1,9,4,8]      becomes      row i: [1,9,32], [1,9,32] -> [1,9,4,8]
        update of row i of [5,9,32] -> [5,9,4,8]     becomes      reshape of the update, update of row i, reshape

    Every dim is either sliced, and then the reshape leaves it alone, or taken whole, and then its start counts for
    nothing (StableHLO clamps it to 0).
    """

    roots: ClassVar[frozenset[str]] = frozenset({"dynamic_slice", "dynamic_update_slice"})
    takes: ClassVar[frozenset[str]] = frozenset({"reshape"})
    summary: ClassVar[str] = "slice and update the rows of a stack before a reshape that leaves the rows' number alone"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        if not is_static(op.result):
            return None
        reshape = made_by(op.operands[0], "reshape")
        if reshape is None or op.result.shape == () or reshape.operands[0].shape == ():
            return None  # a scalar has no dims to slice, and MLIR prints such a slice so that it cannot be read again
        source, updates = reshape.operands[0], op.name == "dynamic_update_slice"
        part, starts = (op.operands[1], op.operands[2:]) if updates else (op.result, op.operands[1:])
        place = _sliced_dims(source.sizes, op.operands[0].sizes, part.sizes) if is_static(part) else None
        if place is None:
            return None
        sizes = _slice_sizes(source.sizes, part.sizes, place)
        if not updates:
            places = _start_indices(starts, len(source.sizes), place, make)
            small = make.operation("dynamic_slice", [source, *places], sizes, source.dtype, {"sizes": sizes})
            return make.reshape(small, part.sizes)
        row = make.reshape(_without_unit_steps(part), sizes)
        places = _start_indices(starts, len(source.sizes), place, make)
        stack = make.operation("dynamic_update_slice", [source, row, *places], source.sizes, source.dtype)
        return make.reshape(stack, op.result.sizes)


def _sliced_dims(source: Shape, target: Shape, sizes: Shape) -> dict[int, int] | None:
    """Where each sliced dim of ``target`` is in ``source``; None if the reshape touches one of them."""
    matched = runs(source, target)
    if matched is None:
        return None
    alone = {run.target[0]: run.source[0] for run in matched if len(run.target) == len(run.source) == 1}
    cut = [d for d, size in enumerate(sizes) if size != target[d]]
    return {d: alone[d] for d in cut} if all(d in alone for d in cut) else None


def _slice_sizes(source: Shape, sizes: Shape, place: dict[int, int]) -> Shape:
    where = {i: d for d, i in place.items()}
    return tuple(sizes[where[i]] if i in where else size for i, size in enumerate(source))


def _start_indices(starts: list[Value], rank: int, place: dict[int, int], make: Maker) -> list[Value]:
    where = {i: starts[d] for d, i in place.items()}
    zero = make.constant("0", starts[0].dtype) if len(where) < rank else starts[0]
    return [where.get(i, zero) for i in range(rank)]


@dataclass(frozen=True)
class ReshapeOfBranch(Rewrite):
    """case(i, {reshape(X)}, {Y}) -> reshape(case(i, {X}, {reshape(Y)})), and reshapes that branches use go inside.

    A result changes its shape where some branch makes it of a reshape and the others can follow (the residuals that the
    gradient of a ``cond`` keeps for its way back, zeros where the other branch was taken). A reshape outside that a
    branch uses is made again inside it.
    """

    summary: ClassVar[str] = "hand results of a conditional on as they were before a reshape, which goes inside"

    def apply(self, block: Block) -> int:
        """Change the conditionals of ``block``, each result at most once."""
        count = 0
        for op in [op for op in block.operations if op.name in ("case", "if") and op.plain]:
            count += _reshape_inside(op, block)
            for k in range(len(op.results)):
                shape = _shape_before(op, k)
                if shape is not None:
                    for inner in op.blocks:
                        _reshape_return(inner, k, shape)
                    _reshape_users(op.results[k], shape, block, block.operations.index(op) + 1, op)
                    count += 1
        return count


def _shape_before(op: Node, k: int) -> Shape | None:
    """The shape in which every branch could give the ``k``-th result, because one makes it of a reshape."""
    values = [inner.operations[-1].operands[k] for inner in op.blocks]
    for shape in filter(None, map(_unreshaped, values)):
        target = op.results[k].shape
        sinking = Sinking(Move(shape, target)) if target is not None else None
        if sinking is not None and all(map(sinking.can, values)):
            return shape
    return None


def _reshape_inside(op: Node, block: Block) -> int:
    """Make the reshapes of ``block`` that the branches use inside of them."""
    count = 0
    for branch in op.blocks:
        inside: dict[Value, Value] = {}
        blocks = list(walk(branch))
        users = [(user, k, v) for inner in blocks for user in inner.operations for k, v in enumerate(user.operands)]
        for user, k, value in users:
            if value.operation is None or value.operation.block is not block or _splitting_reshape(value) is None:
                continue
            if value not in inside:
                reshape = partial(Maker.reshape, value=value.operation.operands[0], shape=value.sizes)
                inside[value] = _insert(branch, 0, value.operation, reshape)
            user.set_operand(k, inside[value])
        for inner in blocks if inside else ():
            inner.changed = True
        count += len(inside)
    return count


@dataclass(frozen=True)
class ReshapeOfLoop(Rewrite):
    """while(reshape(X), ...) -> reshape(while(X, ...)), with the reshape inside the body and its inverse at its end.

    Two kinds of carried arrays change their shape: those that come from a reshape and that the body leaves alone or
    changes by elementwise operations only, and the stacks of a scan whose rows are made by a reshape (the residuals
    that a gradient keeps for its way back). The rows are then stacked unreshaped, and the reshape moves to where the
    stack is read; there ``reshape-of-loop`` takes it into the next loop.
    """

    summary: ClassVar[str] = "carry arrays and stacks of rows through a loop as they were before a reshape"

    def apply(self, block: Block) -> int:
        """Change the carried shapes of the loops of ``block``, each carried array at most once."""
        count = 0
        for op in [op for op in block.operations if op.name == "while" and op.plain and len(op.blocks) == 2]:
            for k in range(len(op.results)):
                shape = _shape_from_reshape(op, k) or _shape_from_rows(op, k)
                if shape is not None:
                    _change_carried(op, k, shape)
                    count += 1
        return count


def _shape_from_reshape(op: Node, k: int) -> Shape | None:
    """What a carried array was before it was reshaped, if the body can hand it on like that."""
    reshape = _splitting_reshape(op.operands[k])
    if reshape is None or _reshapes_back(reshape):
        return None
    body = op.blocks[1]
    shape, argument, new = reshape.operands[0].sizes, body.arguments[k], body.operations[-1].operands[k]
    update = new.operation
    if update is not None and update.name == "dynamic_update_slice" and update.operands[0] is argument:
        return shape
    sinking = Sinking(Move(shape, argument.sizes))
    sinking.possible[argument] = True
    return shape if sinking.can(new) else None


def _shape_from_rows(op: Node, k: int) -> Shape | None:
    """For a stack whose only use in the body is an update of one row: the stack of rows before they were reshaped."""
    argument, end = op.blocks[1].arguments[k], op.blocks[1].operations[-1]
    update = end.operands[k].operation
    if update is None or update.name != "dynamic_update_slice" or not update.plain or op.blocks[0].arguments[k].users:
        return None
    row, stack = update.operands[1], argument.shape
    only = update.operands[0] is argument and list(argument.users.values()) == [1] == list(update.result.users.values())
    if not only or not is_static(argument, row) or not stack or row.shape != (1, *stack[1:]):
        return None
    shape = _unreshaped(_without_unit_steps(row))
    return None if shape is None else (stack[0], *shape)


def _change_carried(op: Node, k: int, shape: Shape) -> None:
    """Carry the ``k``-th array in another shape of the same size."""
    block, old = op.block, op.operands[k]
    assert block is not None
    place = block.operations.index(op)
    op.set_operand(k, _insert(block, place, op, lambda make: make.reshape(old, shape)))
    _reshape_users(op.results[k], shape, block, block.operations.index(op) + 1, op)
    for inner in op.blocks:
        _reshape_users(inner.arguments[k], shape, inner, 0, inner.operations[-1])
    _reshape_return(op.blocks[1], k, shape)
    ReshapeOfDynamicSlice().apply(op.blocks[1])
    _cancel_reshapes_at_end(op.blocks[1], k)


def _cancel_reshapes_at_end(body: Block, k: int) -> None:
    """A reshape and its inverse before the end of the body, which an update has left behind."""
    end = body.operations[-1]
    last = end.operands[k].operation
    before = last.operands[0].operation if last is not None and last.name == "reshape" else None
    if before is not None and before.name == "reshape" and before.operands[0].shape == end.operands[k].shape:
        end.set_operand(k, before.operands[0])


# How a value that a loop or a conditional hands on changes its shape: its users get it reshaped back.


def _insert(block: Block, index: int, like: Node, build: Callable[[Maker], Value]) -> Value:
    """What ``build`` makes, its operations placed before the one that stands at ``index``."""
    end = len(block.operations)
    value = build(Maker(block, like))
    inserted = block.operations[end:]
    del block.operations[end:]
    block.operations[index:index] = inserted
    block.changed = True
    return value


def _reshape_users(value: Value, shape: Shape, block: Block, index: int, like: Node) -> None:
    """Change the shape of ``value``; its users get a reshape of it instead, made at ``index`` of ``block``."""
    old, users = value.shape, list(value.users)
    value.shape = shape
    if value.operation is not None:
        value.operation.said = None
    block.changed = True
    if not users or old is None:
        return
    back = _insert(block, index, like, lambda make: make.reshape(value, old))
    for user in users:
        for k, operand in enumerate(user.operands):
            if operand is value:
                user.set_operand(k, back)


def _reshape_return(block: Block, k: int, shape: Shape) -> None:
    """Let a body hand on its ``k``-th result in another shape."""
    end = block.operations[-1]
    old = end.operands[k]
    new = _insert(block, len(block.operations) - 1, end, lambda make: make.reshape(old, shape))
    end.set_operand(k, new)


def _splitting_reshape(value: Value) -> Node | None:
    """The static reshape that makes ``value``, if it splits or merges dims."""
    op = made_by(value, "reshape")
    if op is None or not is_static(value) or only_unit_dims_differ(op.operands[0].sizes, value.sizes):
        return None
    return op


def _reshaped_leaf(value: Value) -> Node | None:
    def inner(value: Value) -> list[Value]:
        op = value.operation
        passes = op is not None and op.plain and is_static(*op.results) and is_elementwise(op)
        return [v for v in op.operands if v.shape] if op is not None and passes else []

    return next(filter(None, map(_splitting_reshape, reached([value], inner, _REACH))), None)


def _unreshaped(value: Value) -> Shape | None:
    """The shape in which a tree of elementwise operations could be computed instead, because a leaf is a reshape of it.

    None where some leaf cannot follow, and for a reshape of what could be computed in the new shape as well (it has
    been reshaped back already, or is a constant).
    """
    back, leaf = _splitting_reshape(value), _reshaped_leaf(value)
    if leaf is None or (back is not None and _reshapes_back(back)):
        return None
    source, target = leaf.operands[0].shape, leaf.result.shape
    if source is None or target is None or value.shape != target:
        return None
    return source if Sinking(Move(source, target)).can(value) else None


def _reshapes_back(reshape: Node) -> bool:
    """Whether what is reshaped could be computed in the new shape just as well: a reshape back, or of a constant."""
    source, shape = reshape.operands[0], reshape.result.shape
    return shape is not None and source.shape is not None and Sinking(Move(shape, source.shape)).can(source)


def _without_unit_steps(value: Value) -> Value:
    """What ``value`` was before unit dims were added or dropped."""
    while value.operation is not None and value.operation.plain and _is_unit_step(value.operation):
        value = value.operation.operands[0]
    return value


def _is_unit_step(op: Node) -> bool:
    if op.name not in ("reshape", "broadcast_in_dim") or not is_static(op.operands[0]):
        return False
    dims = op.attributes.get("dims", ())
    return list(dims) == sorted(dims) and only_unit_dims_differ(op.operands[0].shape or (), op.result.shape or ())

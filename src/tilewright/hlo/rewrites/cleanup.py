"""Clean up: canonical forms of what moves data, equal operations computed once, operations without users dropped."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import only_unit_dims_differ, runs
from tilewright.hlo.graphs.graph import Block, Node, Value, replace_value
from tilewright.hlo.rewriting.base import LocalRewrite, Rewrite
from tilewright.hlo.rewriting.maker import PURE, Maker, is_static, made_by
from tilewright.hlo.rewriting.sinking import transposed_leaf


@dataclass(frozen=True)
class Canonicalize(LocalRewrite):
    """Cancel and compose reshapes, transposes and broadcasts; every step is exact.

    reshape(reshape(x)) -> reshape(x)                   transpose(transpose(x)) -> transpose(x)
    reshape of x to its own shape -> x                  a transpose that only moves unit dims -> reshape
    broadcast(broadcast(x)) -> broadcast(x)             a broadcast that only adds unit dims -> reshape
    broadcast(reshape that adds unit dims(x)) -> broadcast(x)          reshape(constant) -> constant
    transpose(broadcast(x)) -> broadcast(transpose(x))  transpose(constant) -> constant
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reshape", "transpose", "broadcast_in_dim"})
    near: ClassVar[bool] = True
    summary: ClassVar[str] = "cancel and compose reshapes, transposes and broadcasts"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        step = _STEPS.get(op.name)
        if step is None or not is_static(op.result, op.operands[0]):
            return None
        return step(op, make)


def _reshape(op: Node, make: Maker) -> Value | None:
    value, shape = op.operands[0], op.result.sizes
    if value.shape == shape or made_by(value, "reshape"):
        return make.reshape(value, shape)
    constant = made_by(value, "constant")
    if constant is not None and constant.attributes["literal"].movable:
        return make.reshaped_constant(constant, shape)
    return None


def _transpose(op: Node, make: Maker) -> Value | None:
    value, permutation = op.operands[0], op.attributes["permutation"]
    moved = [d for d in permutation if value.sizes[d] != 1]
    if moved == sorted(moved):
        return make.reshape(value, op.result.sizes)
    if inner := made_by(value, "transpose"):
        first = inner.attributes["permutation"]
        return make.transpose(inner.operands[0], [first[d] for d in permutation])
    leaf = value.operation
    return transposed_leaf(leaf, permutation, make) if leaf is not None and leaf.plain else None


def _broadcast(op: Node, make: Maker) -> Value | None:
    value, dims = op.operands[0], op.attributes["dims"]
    shape, result = value.sizes, op.result.sizes
    if shape != () and list(dims) == sorted(dims) and only_unit_dims_differ(shape, result):
        return make.reshape(value, result)
    if inner := made_by(value, "broadcast_in_dim"):
        return make.broadcast(inner.operands[0], result, [dims[d] for d in inner.attributes["dims"]])
    inner = made_by(value, "reshape")
    if inner is not None and only_unit_dims_differ(shape, inner.operands[0].sizes):
        return _broadcast_of_unit_dims(op, inner.operands[0], make)
    return None


def _broadcast_of_unit_dims(op: Node, source: Value, make: Maker) -> Value | None:
    """broadcast(reshape(source)) where the reshape only adds or drops unit dims of ``source``."""
    value, dims, sizes = op.operands[0], op.attributes["dims"], source.sizes
    if 1 in sizes and sizes.count(1) >= value.sizes.count(1):
        return None  # only ever towards fewer unit dims, so that this ends
    matched = runs(sizes, value.sizes)
    assert matched is not None
    place = {run.source[0]: dims[run.target[0]] for run in matched}
    bare = make.reshape(source, [size for size in sizes if size != 1]) if 1 in sizes else source
    return make.broadcast(bare, op.result.sizes, [place[i] for i in range(len(sizes)) if i in place])


_STEPS: dict[str, Callable[[Node, Maker], Value | None]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
}


@dataclass(frozen=True)
class CommonSubexpressions(Rewrite):
    """Replace an operation by an earlier equal one (mean and variance compute the same mean twice)."""

    summary: ClassVar[str] = "compute equal operations once"

    def apply(self, block: Block) -> int:
        """One pass; operands are merged before their users, so one is enough.

        Of two that are equal now, and were not when this was done last, one was edited since.
        """
        if block.merged == block.edits:
            return 0
        seen: dict[Hashable, Node] = {}
        count, firsts = 0, {op.operands[0] for op in block.operations if op.operands and op.edited > block.seen}
        for op in block.operations:
            if op.operands and op.operands[0] not in firsts:
                continue
            key = merging_key(op, op.operands)
            first = op if key is None else seen.setdefault(key, op)
            if first is not op:
                firsts.update([first.result, *[user.operands[0] for user in op.result.users]])
                replace_value(op.result, first.result)
                op.drop()
                count += 1
        if count:
            block.operations = [op for op in block.operations if op.block is block]
            block.changed = True
        return count


def merging_key(op: Node, operands: Sequence[Value]) -> tuple[Hashable, ...] | None:
    """Equal for what surely computes the same of these operands; None where name and attributes do not say what."""
    unsaid = op.name == "reduce" and "monoid" not in op.attributes
    if unsaid or op.name not in PURE or not op.plain or len(op.results) > 1:
        return None
    return (op.said or op.key, *operands)


@dataclass(frozen=True)
class DeadCode(Rewrite):
    """Drop pure operations without users."""

    summary: ClassVar[str] = "drop operations nobody uses"

    def apply(self, block: Block) -> int:
        """Whole chains go, from their ends; what had users the last time, and has them still, is not looked at."""
        count, open_, block.loose = 0, block.operations[:] if block.loose is None else block.loose, []
        while open_:
            op = open_.pop()
            if op.block is block and op.name in PURE and not [value for value in op.results if value.users]:
                op.drop()
                count += 1
                open_ += block.loose
                block.loose.clear()
        if count:
            block.operations = [op for op in block.operations if op.block is block]
            block.changed = True
        return count

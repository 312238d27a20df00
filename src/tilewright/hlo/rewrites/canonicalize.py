"""Canonical form of the data-moving operations, so that the other rewrites find their patterns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import only_unit_dims_differ, runs
from tilewright.hlo.graphs.graph import Operation, Value
from tilewright.hlo.rewriting.base import LocalRewrite, Maker, is_static
from tilewright.hlo.rewriting.relay import turned_leaf

__all__ = ["Canonicalize"]


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
    name: ClassVar[str] = "canonicalize"
    summary: ClassVar[str] = "cancel and compose reshapes, transposes and broadcasts"

    def rewrite(self, op: Operation, make: Maker) -> Value | None:
        """One simplification of ``op``, if there is one."""
        rule = _RULES.get(op.name)
        if rule is None or not is_static(op.result, op.operands[0]):
            return None
        return rule(op, make)


def _source(op: Operation, name: str) -> Operation | None:
    """The operation that makes the first operand, if it is called ``name`` and its own operand is static."""
    inner = op.operands[0].operation
    return inner if inner is not None and inner.name == name and inner.plain and is_static(*inner.operands) else None


def _reshape(op: Operation, make: Maker) -> Value | None:
    value, shape = op.operands[0], op.result.shape
    assert shape is not None
    if value.shape == shape or _source(op, "reshape"):
        return make.reshape(value, shape)
    constant = _source(op, "constant")
    if constant is not None and constant.attributes["literal"].movable:
        return make.relaid(constant, shape)
    return None


def _transpose(op: Operation, make: Maker) -> Value | None:
    value, permutation = op.operands[0], op.attributes["permutation"]
    shape, result = value.shape, op.result.shape
    assert shape is not None
    assert result is not None
    moved = [d for d in permutation if shape[d] != 1]
    if moved == sorted(moved):
        return make.reshape(value, result)
    if inner := _source(op, "transpose"):
        first = inner.attributes["permutation"]
        return make.transpose(inner.operands[0], [first[d] for d in permutation])
    leaf = value.operation
    return turned_leaf(leaf, permutation, make) if leaf is not None and leaf.plain else None


def _broadcast(op: Operation, make: Maker) -> Value | None:
    value, dims = op.operands[0], op.attributes["dims"]
    shape, result = value.shape, op.result.shape
    assert shape is not None
    assert result is not None
    if list(dims) == sorted(dims) and only_unit_dims_differ(shape, result) and value.shape != ():
        return make.reshape(value, result)
    if inner := _source(op, "broadcast_in_dim"):
        return make.broadcast(inner.operands[0], result, [dims[d] for d in inner.attributes["dims"]])
    inner = _source(op, "reshape")
    if inner is not None and only_unit_dims_differ(shape, inner.operands[0].shape or ()):
        return _broadcast_of_unit_dims(op, inner.operands[0], make)
    return None


def _broadcast_of_unit_dims(op: Operation, source: Value, make: Maker) -> Value | None:
    """broadcast(reshape(source)) where the reshape only adds or drops unit dims of ``source``."""
    value, dims, result = op.operands[0], op.attributes["dims"], op.result.shape
    assert value.shape is not None
    assert result is not None
    assert source.shape is not None
    if 1 in source.shape and source.shape.count(1) >= value.shape.count(1):
        return None  # only ever towards fewer unit dims, so that this ends
    matched = runs(source.shape, value.shape)
    assert matched is not None
    place = {run.source[0]: dims[run.target[0]] for run in matched}
    if 1 not in source.shape:
        return make.broadcast(source, result, [place[i] for i in range(len(source.shape))])
    bare = make.reshape(source, [n for n in source.shape if n != 1])
    return make.broadcast(bare, result, [place[i] for i in range(len(source.shape)) if i in place])


_RULES: dict[str, Callable[[Operation, Maker], Value | None]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
}

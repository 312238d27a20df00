"""Slices along a dim that a reshape leaves alone, such as those of a scan: slice first, reshape the slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite
from tilewright.hlo.rewriting.maker import Maker, is_static, made_by
from tilewright.hlo.rewriting.relay import without_unit_steps

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ReshapeOfDynamicSlice(LocalRewrite):
    """dynamic_slice(reshape(X), i) -> reshape(dynamic_slice(X, i)), and the same for dynamic_update_slice.

        [5,9,32] -> [5,9,4,8], row i: [1,9,4,8]      becomes      row i: [1,9,32], [1,9,32] -> [1,9,4,8]
        update of row i of [5,9,32] -> [5,9,4,8]     becomes      reshape of the update, update of row i, reshape

    Every dim is either sliced, and then the reshape leaves it alone, or taken whole, and then its start counts for
    nothing (StableHLO clamps it to 0).
    """

    name: ClassVar[str] = "reshape-of-dynamic-slice"
    summary: ClassVar[str] = "slice and update the rows of a stack before a reshape that leaves the rows' number alone"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The slice or update of the reshape's operand, reshaped."""
        if op.name not in ("dynamic_slice", "dynamic_update_slice") or not is_static(op.result):
            return None
        reshape = made_by(op.operands[0], "reshape")
        if reshape is None or op.result.shape == () or reshape.operands[0].shape == ():
            return None  # a scalar has no dims to slice, and MLIR prints such a slice so that it cannot be read again
        if op.name == "dynamic_slice":
            return _slice(op, reshape.operands[0], make)
        return _update(op, reshape.operands[0], make)


def _slice(op: Node, source: Value, make: Maker) -> Value | None:
    sizes = op.result.sizes
    place = _places(source.sizes, op.operands[0].sizes, sizes)
    if place is None:
        return None
    inner = _sizes(source.sizes, sizes, place)
    starts = _starts(op.operands[1:], len(source.sizes), place, make)
    small = make.operation("dynamic_slice", [source, *starts], inner, source.dtype, {"sizes": inner})
    return make.reshape(small, sizes)


def _update(op: Node, source: Value, make: Maker) -> Value | None:
    update = op.operands[1]
    place = _places(source.sizes, op.result.sizes, update.sizes) if is_static(update) else None
    if place is None:
        return None
    small = make.reshape(without_unit_steps(update), _sizes(source.sizes, update.sizes, place))
    starts = _starts(op.operands[2:], len(source.sizes), place, make)
    new = make.operation("dynamic_update_slice", [source, small, *starts], source.sizes, source.dtype)
    return make.reshape(new, op.result.sizes)


def _places(source: Shape, target: Shape, sizes: Shape) -> dict[int, int] | None:
    """Where each sliced dim of ``target`` is in ``source``; None if the reshape touches one of them."""
    matched = runs(source, target)
    if matched is None:
        return None
    alone = {run.target[0]: run.source[0] for run in matched if len(run.target) == len(run.source) == 1}
    cut = [d for d, size in enumerate(sizes) if size != target[d]]
    return {d: alone[d] for d in cut} if all(d in alone for d in cut) else None


def _sizes(source: Shape, sizes: Shape, place: dict[int, int]) -> Shape:
    where = {i: d for d, i in place.items()}
    return tuple(sizes[where[i]] if i in where else size for i, size in enumerate(source))


def _starts(starts: list[Value], rank: int, place: dict[int, int], make: Maker) -> list[Value]:
    where = {i: starts[d] for d, i in place.items()}
    zero = make.constant("0", starts[0].dtype) if len(where) < rank else starts[0]
    return [where.get(i, zero) for i in range(rank)]

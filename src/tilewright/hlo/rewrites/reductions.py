"""Reduce before a reshape or a transpose, so that only what is left of the array has to be moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.hlo.graphs.dims import plan_reduce, runs
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import (
    LocalRewrite,
    identity,
    is_exact,
    is_identity,
    may_regroup,
    option,
    regroups,
    starts,
)
from tilewright.hlo.rewriting.maker import Maker, is_static, made_by
from tilewright.hlo.rewriting.sinking import Move, Sinking


@dataclass(frozen=True)
class _Reduction(LocalRewrite):
    """What the rewrites of reductions share: their root and their options."""

    roots: ClassVar[frozenset[str]] = frozenset({"reduce"})
    allow_reassociation: bool = option(
        True, "take floating sums apart too, which may round otherwise, and overflow otherwise"
    )
    allow_products: bool = option(
        False, "take products of reals apart too, which may become infinite or no number on the way"
    )


@dataclass(frozen=True)
class ReduceOfReshape(_Reduction):
    """reduce(reshape(X)) -> reduce(reshape(reduce(X))), the first rewrite of the patent.

        [8,32,32,256] -> [8,32,32,32,8], sum over [1,2,4]      becomes
        sum over [1,2], [8,256] -> [8,32,8], sum over [2]

    The first reduction starts from the monoid's identity, the second from the user's init, so that the init counts
    once; where the first does it all it starts from the init itself. Sums and products of narrow floats are accumulated
    in f32. Left alone: products of reals unless asked for, bodies that are not exactly one monoid operation, shapes
    with dynamic or empty dims, reshapes that free no dim. ``reduces-of-reshapes`` does the same for reductions of
    several arrays.
    """

    summary: ClassVar[str] = "reduce the dims a reshape leaves alone before the reshape"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        if regroups(op, True, True) and (bare := _over_unit_dims(op, make, self.allow_reassociation)) is not None:
            return bare
        values = _below_reshape(op, make) if regroups(op, self.allow_reassociation, self.allow_products) else None
        return values[0] if values else None


@dataclass(frozen=True)
class ReduceOfSplits(_Reduction):
    """reduce(reshape(X)) -> reduce(reshape(reduce(reshape(X)))), where the reshape splits several dims to reduce parts.

        [8,16,16,256] -> [8,8,2,8,2,256], sum over [2,4] (a pooling of 2 x 2)      becomes
        [8,16,16,256] -> [8,8,2,16,256], sum over [2], [8,8,16,256] -> [8,8,8,2,256], sum over [3]

    The outermost dim is split and reduced first: in tiles of the last two dims that often moves nothing, and what the
    inner split moves is smaller by then. Left alone: what ``reduce-of-reshape`` leaves alone, and single splits.
    """

    summary: ClassVar[str] = "where a reshape splits several dims to reduce parts of them, split and reduce one by one"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        reshape = made_by(op.operands[0], "reshape")
        if reshape is None or not regroups(op, self.allow_reassociation, self.allow_products):
            return None
        source, target, dims = reshape.operands[0], reshape.result.sizes, set(op.attributes["dims"])
        matched = runs(source.sizes, target) or ()
        splits = [run.target for run in matched if len(run.source) < len(run.target) and dims & set(run.target)]
        monoid = op.attributes["monoid"]
        begin = starts(monoid, op.operands[1], make) if len(splits) > 1 else None
        if begin is None:
            return None
        outer = splits[0]
        before = [source.sizes[d] for run in matched if run.target < outer for d in run.source]
        after = [source.sizes[d] for run in matched if run.target > outer for d in run.source]
        split = [*before, *(target[d] for d in outer), *after]
        first = [len(before) + k for k, d in enumerate(outer) if d in dims]
        part = make.reduce(make.reshape(make.convert(source, begin[0].dtype), split), begin[0], first, monoid)
        left = [d for d in range(len(target)) if d not in outer or d not in dims]
        second = [k for k, d in enumerate(left) if d in dims]
        total = make.reduce(make.reshape(part, [target[d] for d in left]), begin[1], second, monoid)
        return make.convert(total, op.result.dtype)


@dataclass(frozen=True)
class ReduceOfTranspose(_Reduction):
    """reduce(transpose(X), dims) -> transpose(reduce(X, permuted dims)): only what is left is transposed."""

    summary: ClassVar[str] = "reduce before a transpose, so that reduce-of-reshape sees the reshape behind it"

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        values = _below_transpose(op, make) if regroups(op, self.allow_reassociation, self.allow_products) else None
        return values[0] if values else None


@dataclass(frozen=True)
class ReducesOfReshapes(_Reduction):
    """reduce(reshape(X), Y, ...) -> reduce(reshape(reduce(X, Y', ...))) for all operands together.

    One operand is a reshape or a transpose; the others must be reshapes, transposes, broadcasts, constants, an iota, or
    elementwise trees of them, expressed in its shape. Bodies: a monoid operation for each array apart, or JAX's
    choice of the largest or smallest value and its first index. A choice among floats is only moved where one stage
    does it all: taken apart, it could name another one of several elements that are not numbers.
    """

    summary: ClassVar[str] = "the same for reductions of several arrays (argmax): all of them move together or none"

    def rewrite_all(self, op: Node, make: Maker) -> list[Value] | None:
        if len(op.results) == 1 or not op.plain or not is_static(*op.operands, *op.results):
            return None
        return (_below_reshape(op, make) or _below_transpose(op, make)) if self._is_understood(op) else None

    def _is_understood(self, op: Node) -> bool:
        """Whether the body may take its elements in the order of another shape."""
        if "chooses" in op.attributes:
            return True
        pairs = zip(op.attributes.get("monoids", ()), op.operands)
        allowed = self.allow_reassociation, self.allow_products
        return "monoids" in op.attributes and all(may_regroup(monoid, v.dtype, *allowed) for monoid, v in pairs)


def _over_unit_dims(op: Node, make: Maker, allow_reassociation: bool) -> Value | None:
    """A reduction over dims of size 1 from the identity only drops them."""
    if any(op.operands[0].sizes[d] != 1 for d in op.attributes["dims"]):
        return None
    if not is_identity(op.attributes["monoid"], op.operands[1], exact=not allow_reassociation):
        return None
    return make.reshape(op.operands[0], op.result.sizes)


def _below_reshape(op: Node, make: Maker) -> list[Value] | None:
    """The results of a reduction, its operands reduced as far as possible before they are reshaped."""
    inputs, inits = op.operands[: len(op.results)], op.operands[len(op.results) :]
    reshape = _first_made_by(inputs, "reshape")
    if reshape is None:
        return None
    move = Move.of(reshape)
    plan, sinking = plan_reduce(move.source, move.target, op.attributes["dims"]), Sinking(move)
    if plan is None or not all(map(sinking.can, inputs)):
        return None
    if not plan.second:
        values = make.reduce_several(op, [sinking.build(v, make) for v in inputs], inits, plan.first)
        return [make.reshape(value, plan.final) for value in values]
    begin = _begin(op, inits, make)
    if begin is None:
        return None
    wide = [make.convert(sinking.build(v, make), init.dtype) for v, (init, _) in zip(inputs, begin)]
    small = make.reduce_several(op, wide, [init for init, _ in begin], plan.first)
    middle = [make.reshape(value, plan.middle) for value in small]
    values = make.reduce_several(op, middle, [init for _, init in begin], plan.second)
    return [make.reshape(make.convert(value, old.dtype), plan.final) for value, old in zip(values, op.results)]


def _below_transpose(op: Node, make: Maker) -> list[Value] | None:
    """The results of a reduction of what its operands were before they were transposed, transposed."""
    inputs, inits, dims = op.operands[: len(op.results)], op.operands[len(op.results) :], op.attributes["dims"]
    transpose = _first_made_by(inputs, "transpose")
    if transpose is None or ("chooses" in op.attributes and len(dims) > 1):
        return None
    permutation, sinking = transpose.attributes["permutation"], Sinking(Move.of(transpose))
    if not all(map(sinking.can, inputs)):
        return None
    reduced = {permutation[d] for d in dims}
    kept = [p for p in permutation if p not in reduced]
    small = make.reduce_several(op, [sinking.build(v, make) for v in inputs], inits, sorted(reduced))
    return [make.transpose(value, [sorted(kept).index(p) for p in kept]) for value in small]


def _first_made_by(values: list[Value], name: str) -> Node | None:
    return next((op for value in values if (op := made_by(value, name)) is not None), None)


def _begin(op: Node, inits: list[Value], make: Maker) -> list[tuple[Value, Value]] | None:
    """What the two stages start from, for each array; None if one of them has nothing to start from."""
    if "chooses" in op.attributes:  # the choice of an extreme: its init counts twice like once
        return [(init, init) for init in inits] if is_exact("add", inits[0].dtype) else None
    monoids = op.attributes["monoids"] if len(inits) > 1 else [op.attributes["monoid"]]
    pairs = [starts(monoid, init, make) for monoid, init in zip(monoids, inits)]
    return [pair for pair in pairs if pair is not None] if None not in pairs else None


@dataclass(frozen=True)
class SumsOfBlocks(LocalRewrite):
    """A running sum (``cumsum``) along a dim -> running sums in blocks of 128, and of what the blocks before come to.

        [8192,512], windows of 8192      becomes
        [64,128,512], windows of 128; their ends [64,1,512], windows of 64, moved on by one; the two added

    In no pipeline: the TPU's compiler does it before it cuts a program, so that where the dim is sharded only the ends
    of blocks travel. Any monoid, from either side.
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reduce_window"})

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        (value, start), own = op.operands[:2], op.attributes
        dims = [k for k, size in enumerate(own["window"]) if size > 1]
        neutral = identity(own["monoid"], value.dtype) if "monoid" in own else None
        if len(dims) != 1 or neutral is None or not is_static(value):
            return None
        (dim,), shape, rank = dims, value.sizes, len(value.sizes) + 1
        n, sides, steps = shape[dim], own["padding"][dim], ("strides", "base_dilation", "window_dilation")
        whole = own["window"][dim] == n and sorted(sides) == [0, n - 1] and sum(map(sum, own["padding"])) == n - 1
        if n <= _BLOCK or n % _BLOCK or not whole or any({*own[name]} != {1} for name in steps):
            return None
        first, several, by = sides[0] > 0, n // _BLOCK, 1 if sides[0] else -1

        def along(at: int, one: Any, other: Any = 0) -> tuple[Any, ...]:
            return tuple(one if k == at else other for k in range(rank))

        def summed(array: Value, at: int, over: int, begin: Value) -> Value:
            pads = along(at, (over - 1, 0) if first else (0, over - 1), (0, 0))
            windows = {"window": along(at, over, 1), "padding": pads, "monoid": own["monoid"]}
            return make.reduce_window(array, begin, windows | dict.fromkeys(steps, along(at, 1, 1)))

        blocks = make.reshape(value, (*shape[:dim], several, _BLOCK, *shape[dim + 1 :]))
        inside = summed(blocks, dim + 1, _BLOCK, make.constant(neutral, value.dtype))
        ends = make.part(inside, dim + 1, *((_BLOCK - 1, _BLOCK) if first else (0, 1)))
        before = make.pad(summed(ends, dim, several, start), start, along(dim, by), along(dim, -by))
        before = make.broadcast(before, inside.sizes, range(rank))
        return make.reshape(make.binary(own["monoid"], inside, before), shape)


_BLOCK = 128

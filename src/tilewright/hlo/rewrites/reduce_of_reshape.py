"""P1: reduce first what the reshape leaves alone, so that only the small rest is reshaped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.dims import plan_reduce
from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite, is_identity, products, reassociation, regroups, starts
from tilewright.hlo.rewriting.maker import Maker, made_by


@dataclass(frozen=True)
class ReduceOfReshape(LocalRewrite):
    """reduce(reshape(X)) -> reduce(reshape(reduce(X))), the patent's first rewrite.

        [8,32,32,256] -> [8,32,32,32,8], sum over [1,2,4]      becomes
        sum over [1,2], [8,256] -> [8,32,8], sum over [2]

    The first reduction starts from the monoid's identity, the second from the user's init, so that the init counts
    once; where the first does it all it starts from the init itself. Sums and products of narrow floats are accumulated
    in f32. Left alone: products of reals unless asked for, bodies that are not exactly one monoid operation, shapes
    with dynamic or empty dims, reshapes that free no dim. ``reduces-of-reshapes`` does the same for reductions of
    several arrays.
    """

    roots: ClassVar[frozenset[str]] = frozenset({"reduce"})
    name: ClassVar[str] = "reduce-of-reshape"
    summary: ClassVar[str] = "P1: reduce the dims a reshape leaves alone before the reshape"
    allow_reassociation: bool = reassociation()
    allow_products: bool = products()

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The two-stage form of a reduction of a reshape."""
        if regroups(op, True, True) and (bare := _over_unit_dims(op, make, self.allow_reassociation)) is not None:
            return bare
        return _in_two_stages(op, make) if regroups(op, self.allow_reassociation, self.allow_products) else None


def _in_two_stages(op: Node, make: Maker) -> Value | None:
    reshape = made_by(op.operands[0], "reshape")
    if reshape is None:
        return None
    source, init = reshape.operands[0], op.operands[1]
    plan = plan_reduce(source.sizes, reshape.result.sizes, op.attributes["dims"])
    if plan is None:
        return None
    monoid, dtype = op.attributes["monoid"], source.dtype
    if not plan.second:
        return make.reshape(make.reduce(source, init, plan.first, monoid), plan.final)
    begin = starts(monoid, init, make)
    if begin is None:
        return None
    small = make.reduce(make.convert(source, begin[0].dtype), begin[0], plan.first, monoid)
    reduced = make.reduce(make.reshape(small, plan.middle), begin[1], plan.second, monoid)
    return make.reshape(make.convert(reduced, dtype), plan.final)


def _over_unit_dims(op: Node, make: Maker, allow_reassociation: bool) -> Value | None:
    """A reduction over dims of size 1 from the identity only drops them."""
    if any(op.operands[0].sizes[d] != 1 for d in op.attributes["dims"]):
        return None
    if not is_identity(op.attributes["monoid"], op.operands[1], exact=not allow_reassociation):
        return None
    return make.reshape(op.operands[0], op.result.sizes)

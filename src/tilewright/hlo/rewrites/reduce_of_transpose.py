"""A transpose before a reduction moves everything for nothing: compose the permutation with the reduced dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Node, Value
from tilewright.hlo.rewriting.base import LocalRewrite, products, reassociation, regroups
from tilewright.hlo.rewriting.maker import Maker, made_by


@dataclass(frozen=True)
class ReduceOfTranspose(LocalRewrite):
    """reduce(transpose(X), dims) -> transpose(reduce(X, permuted dims)): only what is left is transposed."""

    roots: ClassVar[frozenset[str]] = frozenset({"reduce"})
    name: ClassVar[str] = "reduce-of-transpose"
    summary: ClassVar[str] = "reduce before a transpose, so that reduce-of-reshape sees the reshape behind it"
    allow_reassociation: bool = reassociation()
    allow_products: bool = products()

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The reduction of the transpose's operand."""
        transpose = made_by(op.operands[0], "transpose")
        if transpose is None or not regroups(op, self.allow_reassociation, self.allow_products):
            return None
        permutation, dims = transpose.attributes["permutation"], op.attributes["dims"]
        reduced = {permutation[d] for d in dims}
        kept = [p for p in permutation if p not in reduced]
        small = make.reduce(transpose.operands[0], op.operands[1], sorted(reduced), op.attributes["monoid"])
        order = sorted(kept)
        return make.transpose(small, [order.index(p) for p in kept])

"""A transpose before a reduction moves everything for nothing: compose the permutation with the reduced dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Operation, Value
from tilewright.hlo.rewriting.base import LocalRewrite, Maker, is_static, option
from tilewright.hlo.rewriting.monoid import regroups

__all__ = ["ReduceOfTranspose"]


@dataclass(frozen=True)
class ReduceOfTranspose(LocalRewrite):
    """reduce(transpose(X), dims) -> transpose(reduce(X, permuted dims)): only what is left is transposed."""

    roots: ClassVar[frozenset[str]] = frozenset({"reduce"})
    name: ClassVar[str] = "reduce-of-transpose"
    summary: ClassVar[str] = "reduce before a transpose, so that reduce-of-reshape sees the reshape behind it"
    allow_reassociation: bool = option(True, "take floating sums and products apart too, which may round otherwise")

    def rewrite(self, op: Operation, make: Maker) -> Value | None:
        """The reduction of the transpose's operand."""
        if op.name != "reduce" or len(op.operands) != 2 or not is_static(*op.operands):
            return None
        transpose = op.operands[0].operation
        if transpose is None or transpose.name != "transpose" or not transpose.plain:
            return None
        if not regroups(op.attributes, op.operands[0], self.allow_reassociation):
            return None
        permutation, dims = transpose.attributes["permutation"], op.attributes["dims"]
        reduced = {permutation[d] for d in dims}
        kept = [p for p in permutation if p not in reduced]
        small = make.reduce(transpose.operands[0], op.operands[1], sorted(reduced), op.attributes["monoid"])
        order = sorted(kept)
        return make.transpose(small, [order.index(p) for p in kept])

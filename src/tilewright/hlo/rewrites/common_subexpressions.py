"""Equal operations on equal operands are computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Block, Node, replace_value
from tilewright.hlo.rewriting.base import Rewrite
from tilewright.hlo.rewriting.maker import PURE


@dataclass(frozen=True)
class CommonSubexpressions(Rewrite):
    """Replace an operation by an earlier equal one (mean and variance compute the same mean twice)."""

    name: ClassVar[str] = "common-subexpressions"
    summary: ClassVar[str] = "compute equal operations once"

    def apply(self, block: Block) -> int:
        """One pass; operands are merged before their users, so one is enough."""
        seen: dict[Hashable, Node] = {}
        kept: list[Node] = []
        for op in block.operations:
            key = _key(op)
            first = seen.setdefault(key, op) if key is not None else op
            if first is op:
                kept.append(op)
            else:
                replace_value(op.result, first.result)
                op.drop()
        count = len(block.operations) - len(kept)
        block.operations = kept
        block.changed |= count > 0
        return count


def _key(op: Node) -> Hashable | None:
    """Equal for operations that surely compute the same; None for those that are never merged."""
    if op.name not in PURE or len(op.results) != 1 or not op.plain:
        return None
    if op.name == "reduce" and "monoid" not in op.attributes:
        return None
    return what_it_does(op), tuple(map(id, op.operands))


def what_it_does(op: Node) -> tuple[Hashable, ...]:
    """Equal for operations that surely do the same to equal operands, their results' types included."""
    own = tuple((k, v.key if k == "literal" else v) for k, v in sorted(op.attributes.items()))
    return op.name, own, _lent(op), *((v.shape, v.dtype) for v in op.results)


def _lent(op: Node) -> str:
    """The attributes that only MLIR knows (a comparison's direction, an accuracy), as text."""
    if op.lender.handle is None or op.lender.name != op.name or op.attributes:
        return ""
    named = op.lender.handle.attributes
    return "; ".join(f"{key} = {named[key]}" for key in named)

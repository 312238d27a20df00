"""Operations without users and without effects are removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.hlo.graphs.graph import Block, Node
from tilewright.hlo.rewriting.base import Rewrite
from tilewright.hlo.rewriting.maker import PURE


@dataclass(frozen=True)
class DeadCode(Rewrite):
    """Drop pure operations without users."""

    name: ClassVar[str] = "dead-code"
    summary: ClassVar[str] = "drop operations nobody uses"

    def apply(self, block: Block) -> int:
        """One pass from the end, so that whole chains go."""
        kept: list[Node] = []
        for op in reversed(block.operations):
            if op.name in PURE and not any(value.users for value in op.results):
                op.drop()
            else:
                kept.append(op)
        count = len(block.operations) - len(kept)
        block.operations = kept[::-1]
        block.changed |= count > 0
        return count

"""Reshapes across the bounds of loops and conditionals: carried arrays change their shapes before the gate looks.

A region never leaves its block, but the residuals of a gradient do: they are stacked by one loop and read by another.
So the shapes of what loops and conditionals hand on are changed first, everywhere, which moves reshapes into the bodies
where the gate's regions take them up. Whether that paid is asked of the whole program, loops weighted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tilewright.hlo.gating._moves import cost
from tilewright.hlo.graphs._graph import Block, walk
from tilewright.hlo.rewrites._base import Rewrite
from tilewright.hlo.rewrites.canonicalize import Canonicalize
from tilewright.hlo.rewrites.dead_code import DeadCode
from tilewright.hlo.rewrites.reshape_of_branch import ReshapeOfBranch
from tilewright.hlo.rewrites.reshape_of_broadcast import ReshapeOfBroadcast
from tilewright.hlo.rewrites.reshape_of_loop import ReshapeOfLoop
from tilewright.targets import Target

__all__ = ["change_carried_shapes", "weighted_cost"]

#: How often a loop is taken to run where bytes inside and outside of it are compared.
_TRIPS = 8
_ROUNDS = 16


def change_carried_shapes(bodies: Sequence[Block], steps: Sequence[Rewrite]) -> Counter[str]:
    """Let loops and conditionals hand arrays on as they were before a reshape; how many each of the steps changed.

    Of the steps only ``reshape-of-branch`` and ``reshape-of-loop`` are run, and only blocks in which something changed
    are touched, their reshapes composed.
    """
    chosen = [step for step in steps if isinstance(step, ReshapeOfBranch | ReshapeOfLoop)]
    total: Counter[str] = Counter()
    for _ in range(_ROUNDS):
        changes = [(s.name, s.apply(block)) for body in bodies for block in walk(body) for s in chosen]
        if not any(count for _, count in changes):
            return total
        for name, count in changes:
            total[name] += count
        for block in [block for body in bodies for block in walk(body) if block.changed]:
            for tidy in (Canonicalize(), ReshapeOfBroadcast(), DeadCode()):
                tidy.apply(block)
    return total


def weighted_cost(bodies: Sequence[Block], target: Target) -> int:
    """Bytes moved and charged under ``target``, those in loops counted several times."""
    total = 0
    open_ = [(body, 1) for body in bodies]
    while open_:
        block, times = open_.pop()
        own = cost(block, target)
        total += times * (own.moved + own.charged)
        for op in block.operations:
            open_ += [(inner, times * (_TRIPS if op.name == "while" else 1)) for inner in op.blocks]
    return total

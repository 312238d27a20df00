"""Reshapes across the bounds of loops and conditionals: carried arrays change their shapes before the gate looks.

A region never leaves its block, but the residuals of a gradient do: they are stacked by one loop and read by another.
So the shapes of what loops and conditionals hand on are changed first, everywhere, which moves reshapes into the bodies
where the gate's regions take them up. Whether that pays is decided for the whole program, with loops weighted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tilewright.hlo.gating.moves import cost
from tilewright.hlo.graphs.graph import Block, Node, Value, walk
from tilewright.hlo.rewrites.canonicalize import Canonicalize
from tilewright.hlo.rewrites.dead_code import DeadCode
from tilewright.hlo.rewrites.reshape_of_branch import ReshapeOfBranch
from tilewright.hlo.rewrites.reshape_of_broadcast import ReshapeOfBroadcast
from tilewright.hlo.rewrites.reshape_of_loop import ReshapeOfLoop
from tilewright.hlo.rewriting.base import Rewrite
from tilewright.targets import Target

#: How often a loop is assumed to run, where constants do not say, when bytes inside and outside are compared.
_TRIPS = 8
_ROUNDS = 16
_INTEGER = re.compile(r"-?\d{1,18}")


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
            open_ += [(inner, times * (_trips(op) if op.name == "while" else 1)) for inner in op.blocks]
    return total


def _trips(loop: Node) -> int:
    """How often a counted loop runs: from the constants its counter starts from, is compared with and grows by."""
    condition, body = loop.blocks
    test = condition.operations[-1].operands[0].operation
    if test is None or test.name != "compare":
        return _TRIPS
    counter = next((value for value in test.operands if value in condition.arguments), None)
    bound = next((value for value in test.operands if value is not counter), None)
    if counter is None or bound is None:
        return _TRIPS
    step = body.operations[-1].operands[counter.index].operation
    if step is None or step.name not in ("add", "subtract") or body.arguments[counter.index] not in step.operands:
        return _TRIPS
    by = next((value for value in step.operands if value is not body.arguments[counter.index]), None)
    numbers = [_integer(value) for value in (loop.operands[counter.index], bound, by)]
    if None in numbers or not numbers[2]:
        return _TRIPS
    first, last, grows = (number or 0 for number in numbers)
    return max(1, abs(last - first) // abs(grows))


def _integer(value: Value | None) -> int | None:
    """The integer of a constant, None for anything else."""
    if value is None or value.operation is None or value.operation.name != "constant":
        return None
    element = value.operation.attributes["literal"].element
    return int(element) if element is not None and _INTEGER.fullmatch(element) else None

"""Running rewrites: their fixpoint on a block or a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import cycle, islice
from typing import Any

from tilewright.hlo._ir import parse_module, print_module, verify_module
from tilewright.hlo.graphs._collector import collector_paused
from tilewright.hlo.graphs._emit import write_functions
from tilewright.hlo.graphs._graph import Block, walk
from tilewright.hlo.graphs._read import read_functions
from tilewright.hlo.rewrites._base import Rewrite
from tilewright.hlo.rewrites._text import REWRITES, Step
from tilewright.hlo.rewrites.inline import Inline

__all__ = ["fixpoint", "pipeline", "run_pipeline"]

_ROUNDS = 64


def pipeline(allow_reassociation: bool = True) -> tuple[Step, ...]:
    """The default pipeline; without ``allow_reassociation`` only what gives the same bits.

    >>> [str(step) for step in pipeline(False) if "{" in str(step)][0]
    'reduce-of-transpose{allow_reassociation=false}'
    """
    made = []
    for cls in REWRITES.values():
        known = {"allow_reassociation"} & {field.name for field in fields(cls)}
        chosen: dict[str, Any] = dict.fromkeys(known, allow_reassociation)
        made.append(cls(**chosen))
    return tuple(made)


def fixpoint(block: Block, steps: Sequence[Rewrite]) -> Counter[str]:
    """Apply the steps in turn until none changes anything; how often each did.

    Ends as soon as every step has seen the block as it is: the last round is not walked to its end.
    """
    counts: Counter[str] = Counter()
    unchanged = 0
    for step in islice(cycle(steps), _ROUNDS * len(steps)):
        changes = step.apply(block)
        unchanged = 0 if changes else unchanged + 1
        if changes:
            counts[step.name] += changes
        if unchanged == len(steps):
            break
    return counts


@collector_paused()
def run_pipeline(text: str, steps: Sequence[Step]) -> tuple[str, Counter[str]]:
    """A StableHLO module's text after the steps, to their fixpoint and without any gate, and how often each fired.

    Bodies are rewritten after what is around them, again and again until none changes.

    Inlining happens first, wherever it stands. This is the tool for studying rewrites; ``optimize`` asks the cost.
    """
    module = parse_module(text)
    counts: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, Inline):
            counts[step.name] += step.apply_module(module)
    bodies = read_functions(module)
    local = [step for step in steps if isinstance(step, Rewrite)]
    for _ in range(_ROUNDS):
        changes: Counter[str] = Counter()
        for body in bodies:
            for block in walk(body):
                changes += fixpoint(block, local)
        counts += changes
        if not changes:
            break
    write_functions(module, bodies)
    verify_module(module)
    return print_module(module), counts

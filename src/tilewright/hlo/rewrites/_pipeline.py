"""Pipelines: a list of rewrites that prints as a text and parses back, and its fixpoint on a block or a module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from tilewright.errors import ParseError
from tilewright.hlo._emit import write_functions
from tilewright.hlo._graph import Block, walk
from tilewright.hlo._ir import parse_module, print_module, verify_module
from tilewright.hlo._read import read_functions
from tilewright.hlo.rewrites._base import Rewrite
from tilewright.hlo.rewrites.canonicalize import Canonicalize
from tilewright.hlo.rewrites.common_subexpressions import CommonSubexpressions
from tilewright.hlo.rewrites.dead_code import DeadCode
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rewrites.reduce_of_reshape import ReduceOfReshape
from tilewright.hlo.rewrites.reduce_of_transpose import ReduceOfTranspose
from tilewright.hlo.rewrites.reshape_of_broadcast import ReshapeOfBroadcast
from tilewright.hlo.rewrites.reshape_of_elementwise import ReshapeOfElementwise

__all__ = [
    "DEFAULT_PIPELINE", "REWRITES", "fixpoint", "format_pipeline", "local_pipeline", "parse_pipeline", "run_pipeline",
]  # fmt: skip

Step = Rewrite | Inline

#: Every rewrite, in the order of the default pipeline.
REWRITES: dict[str, type[Rewrite] | type[Inline]] = {
    each.name: each
    for each in (
        Inline, Canonicalize, ReduceOfTranspose, ReduceOfReshape, ReshapeOfElementwise, ReshapeOfBroadcast,
        CommonSubexpressions, DeadCode,
    )
}  # fmt: skip
DEFAULT_PIPELINE = ",".join(REWRITES)

_STEP = re.compile(r"\s*([a-z-]+)\s*(?:\{([^}]*)\})?\s*(,|$)")
_ROUNDS = 64


def local_pipeline(reassociate: bool = True) -> tuple[Rewrite, ...]:
    """The default rewrites of a block; without ``reassociate`` only those that give the same bits."""
    return (
        Canonicalize(), ReduceOfTranspose(reassociate), ReduceOfReshape(reassociate), ReshapeOfElementwise(),
        ReshapeOfBroadcast(), CommonSubexpressions(), DeadCode(),
    )  # fmt: skip


def format_pipeline(steps: Sequence[Step]) -> str:
    """The text :func:`parse_pipeline` reads back."""
    return ",".join(map(str, steps))


def parse_pipeline(text: str) -> tuple[Step, ...]:
    """The rewrites a text names, with options in braces. Raises ParseError at the column of the first mistake.

    >>> [str(step) for step in parse_pipeline("inline, reduce-of-reshape{reassociate=false}")]
    ['inline', 'reduce-of-reshape{reassociate=false}']
    """
    steps: list[Step] = []
    at = 0
    while at < len(text) or not steps:
        found = _STEP.match(text, at)
        if not found:
            raise ParseError("expected the name of a rewrite", text=text, column=at)
        if found[1] not in REWRITES:
            raise ParseError(
                f"no rewrite called '{found[1]}'", text=text, column=found.start(1), how=f"known: {DEFAULT_PIPELINE}"
            )
        steps.append(_with_options(REWRITES[found[1]], found[2] or "", text, found.start(1)))
        at = found.end()
        if found[3] == "," and at >= len(text):
            raise ParseError("expected a rewrite after the comma", text=text, column=at)
    return tuple(steps)


def _with_options(cls: type[Any], options: str, text: str, column: int) -> Any:
    known = {f.name: f for f in fields(cls)}
    values: dict[str, Any] = {}
    for word in options.split():
        key, _, value = word.partition("=")
        if key not in known:
            how = f"options of {cls.name}: {', '.join(known) or 'none'}"
            raise ParseError(f"no option called '{key}'", text=text, column=column, how=how)
        truth = {"true": True, "false": False}
        is_truth = isinstance(known[key].default, bool)
        if (value not in truth) if is_truth else not value.isdigit():
            raise ParseError(f"'{value}' is no value of {key}", text=text, column=column)
        values[key] = truth[value] if is_truth else int(value)
    return cls(**values)


def fixpoint(block: Block, steps: Sequence[Rewrite]) -> Counter[str]:
    """Apply the steps in turn until none changes anything; how often each did."""
    counts: Counter[str] = Counter()
    for _ in range(_ROUNDS):
        changes = {step.name: step.apply(block) for step in steps}
        counts.update({name: n for name, n in changes.items() if n})
        if not any(changes.values()):
            break
    return counts


def run_pipeline(text: str, steps: Sequence[Step]) -> tuple[str, Counter[str]]:
    """A StableHLO module's text after the steps, to their fixpoint and without any gate, and how often each fired.

    Inlining happens first, wherever it stands. This is the tool for studying rewrites; ``optimize`` asks the cost.
    """
    module = parse_module(text)
    counts: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, Inline):
            counts[step.name] += step.apply_module(module)
    bodies = read_functions(module)
    for body in bodies:
        for block in walk(body):
            counts += fixpoint(block, [step for step in steps if isinstance(step, Rewrite)])
    write_functions(module, bodies)
    verify_module(module)
    return print_module(module), counts

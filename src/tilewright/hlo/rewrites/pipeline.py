"""Pipelines of rewrites: their text, their fixpoint, a record of what each step did, and XLA's normal form."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import unified_diff
from itertools import cycle, islice
from typing import Any

from tilewright.errors import ParseError
from tilewright.hlo.graphs.graph import Block, collector_paused, walk
from tilewright.hlo.graphs.mlir import read_functions, write_functions
from tilewright.hlo.ir import parse_module, print_module, verify_module
from tilewright.hlo.rewrites.cleanup import Canonicalize, CommonSubexpressions, DeadCode
from tilewright.hlo.rewrites.control_flow import ReshapeOfBranch, ReshapeOfDynamicSlice, ReshapeOfLoop
from tilewright.hlo.rewrites.elementwise import (
    MoveAboveElementwise,
    ReshapeOfBroadcast,
    ReshapeOfElementwise,
    TransposeOfElementwise,
)
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rewrites.reductions import ReduceOfReshape, ReduceOfSplits, ReduceOfTranspose, ReducesOfReshapes
from tilewright.hlo.rewriting.base import Rewrite, Step
from tilewright.hlo.rules.catalogue import catalogue
from tilewright.hlo.rules.rule import Rule

#: Every rewrite, in the order of the default pipeline.
REWRITES: dict[str, type[Step]] = {
    rewrite.name: rewrite
    for rewrite in (
        Inline, Canonicalize, TransposeOfElementwise, ReduceOfTranspose, ReduceOfReshape, ReduceOfSplits,
        ReducesOfReshapes, ReshapeOfElementwise, MoveAboveElementwise, ReshapeOfBroadcast, ReshapeOfDynamicSlice,
        ReshapeOfBranch, ReshapeOfLoop, CommonSubexpressions, DeadCode,
    )
}  # fmt: skip
DEFAULT_PIPELINE = ",".join(REWRITES)

_STEP = re.compile(r"\s*([a-z-]+)\s*(?:\{([^}]*)\})?\s*(,|$)")
_OPTION = re.compile(r"[^\s,]+")


def parse_pipeline(text: str) -> tuple[Step, ...]:
    """The rewrites a text names, with options in braces. Raises ParseError at the column of the first mistake.

    >>> [str(step) for step in parse_pipeline("inline, reduce-of-reshape{allow_reassociation=false}")]
    ['inline', 'reduce-of-reshape{allow_reassociation=false}']
    """
    steps: list[Step] = []
    at = 0
    while at < len(text) or not steps:
        match = _STEP.match(text, at)
        if not match:
            raise ParseError("expected the name of a rewrite", text=text, column=at)
        if match[1] in catalogue() and not match[2]:
            steps.append(catalogue()[match[1]])
        elif match[1] not in REWRITES:
            what, how = f"no rewrite called '{match[1]}'", f"known: {DEFAULT_PIPELINE}"
            raise ParseError(what, text=text, column=match.start(1), how=how)
        else:
            steps.append(_with_options(REWRITES[match[1]], match, text))
        at = match.end()
        if match[3] == "," and at >= len(text):
            raise ParseError("expected a rewrite after the comma", text=text, column=at)
    return tuple(steps)


def _with_options(cls: type[Any], step: re.Match[str], text: str) -> Step:
    """The rewrite with the options of ``step[2]``: ``key=value``, separated by spaces or commas."""
    values: dict[str, Any] = {}
    for word in _OPTION.finditer(step[2] or ""):
        column = step.start(2) + word.start()
        key, _, value = word[0].partition("=")
        if key in values:
            raise ParseError(f"option '{key}' is given twice", text=text, column=column)
        values[key] = _value(cls, key, value, text, column)
    rewrite: Step = cls(**values)
    return rewrite


def _value(cls: type[Any], key: str, value: str, text: str, column: int) -> bool | int:
    known = {option.name: option for option in cls.options()}
    if key not in known:
        how = f"options of {cls.name}: {', '.join(known) or 'none'}"
        raise ParseError(f"no option called '{key}'", text=text, column=column, how=how)
    if known[key].kind == "true or false" and value in ("true", "false"):
        return value == "true"
    if known[key].kind == "a number" and re.fullmatch(r"[0-9]{1,18}", value):
        return int(value)
    raise ParseError(f"'{value}' is not a value of {key}", text=text, column=column, how=f"it takes {known[key].kind}")


_ROUNDS = 64
_OF_USERS = (MoveAboveElementwise, ReshapeOfBranch, ReshapeOfLoop, Rule)
"""Steps that look at who else uses a value, and into other blocks: there can be more to do where nothing was edited."""


def pipeline(allow_reassociation: bool = True, allow_products: bool = False) -> tuple[Step, ...]:
    """The default pipeline; without ``allow_reassociation`` no floating sum is taken apart, and products on request.

    >>> [str(step) for step in pipeline(False) if "{" in str(step)][0]
    'reduce-of-transpose{allow_reassociation=false}'
    """
    given: dict[str, Any] = {"allow_reassociation": allow_reassociation, "allow_products": allow_products}
    return tuple(
        cls(**{field.name: given[field.name] for field in fields(cls) if field.name in given})
        for cls in REWRITES.values()
    )


def fixpoint(block: Block, steps: Sequence[Rewrite]) -> Counter[str]:
    """Apply the steps in turn until none changes anything; how often each did.

    Ends as soon as every step has seen the block as it is: the last round is not walked to its end. A step that looks
    at what operations are made of has seen it where nothing was edited since.
    """
    counts: Counter[str] = Counter()
    unchanged, seen = 0, dict[Rewrite, int]()
    for step in islice(cycle(steps), _ROUNDS * len(steps)):
        block.seen, seen[step] = seen.get(step, -1), block.edits
        changes = step.apply(block) if block.seen != block.edits or isinstance(step, _OF_USERS) else 0
        unchanged = 0 if changes else unchanged + 1
        if changes:
            counts[step.name] += changes
        if unchanged == len(steps):
            break
    block.seen = -1
    return counts


def _nested_fixpoint(bodies: Sequence[Block], steps: Sequence[Rewrite], rounds: int) -> Counter[str]:
    """:func:`fixpoint` on bodies and all blocks in them, until none changes; how often each step did."""
    counts: Counter[str] = Counter()
    settled: set[Block] = set()  # those at their fixpoint, with nothing changed in another one since
    for _ in range(rounds):
        before = len(settled), counts.total()
        for block in (block for body in bodies for block in walk(body)):
            if block not in settled:
                changes = fixpoint(block, steps)
                counts += changes
                settled = set() if changes else settled
                settled.add(block)
        if before == (len(settled), counts.total()):
            break
    return counts


@collector_paused()
def run_pipeline(text: str, steps: Sequence[Step], locations: bool = False) -> tuple[str, Counter[str]]:
    """A StableHLO module's text after the steps, to their fixpoint and without any gate, and how often each fired.

    Inlining happens first, wherever it stands. Bodies are rewritten after what is around them, again and again until
    none changes. This is for studying rewrites; ``optimize`` weighs the cost.
    """
    module = parse_module(text)
    counts: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, Inline):
            counts[step.name] += step.apply_module(module)
    bodies = read_functions(module)
    counts += _nested_fixpoint(bodies, [step for step in steps if isinstance(step, Rewrite)], _ROUNDS)
    write_functions(module, bodies)
    verify_module(module)
    return print_module(module, locations), counts


# What XLA does by itself: the form a program reaches whatever anybody rewrites, so that gains are claimed beyond it.

#: Version -> what XLA:TPU does by itself. 1: libtpu 0.0.42, seen on 24 programs (docs/report.md). A new rewrite joins
#: only when a compiler was seen to do the same.
NORMAL_FORMS: dict[int, tuple[Rewrite, ...]] = {
    1: (
        CommonSubexpressions(), DeadCode(), Canonicalize(), TransposeOfElementwise(),
        ReduceOfTranspose(allow_products=True), ReduceOfReshape(allow_products=True),
        ReducesOfReshapes(allow_products=True), ReshapeOfElementwise(), ReshapeOfBroadcast(), ReshapeOfDynamicSlice(),
        ReshapeOfBranch(), ReshapeOfLoop(),
    ),
}  # fmt: skip
NEWEST = max(NORMAL_FORMS)


def normal_form(bodies: Iterable[Block], version: int = NEWEST) -> Counter[str]:
    """Bring function bodies (or regions taken out of one) into the form, in place; how often each rewrite fired.

    Calls should have been inlined (:class:`Inline`), as XLA does.
    """
    return _nested_fixpoint(list(bodies), NORMAL_FORMS[version], 16)


# A pipeline run step by step, with the program's text after each: what ``--diff`` and ``--print-after-all`` show.

_RECORDED_ROUNDS = 16


@dataclass(frozen=True)
class PassRun:
    """One step of one round over the whole module.

    ==============  ================================================================================================
    ``step``        the step as a pipeline's text names it
    ``round``       counted from 1; rounds go on until one changes nothing
    ``changes``     how many places it changed, 0 where the text is as it was
    ``before``      the module's text
    ``after``       the same after the step
    ==============  ================================================================================================
    """

    step: str
    round: int
    changes: int
    before: str
    after: str

    def diff(self, context: int = 3) -> str:
        """A unified diff of the two texts; "" where nothing changed."""
        texts = self.before.splitlines(), self.after.splitlines()
        return "\n".join(unified_diff(*texts, "before", f"after {self.step}", lineterm="", n=context))


def record_passes(text: str, steps: Sequence[Step]) -> tuple[PassRun, ...]:
    """Every step of every round; the last round, which changes nothing, is left out unless it is the only one."""
    runs: list[PassRun] = []
    current = print_module(parse_module(text))
    for number in range(1, _RECORDED_ROUNDS + 1):
        round_runs: list[PassRun] = []
        for step in steps:
            changes, after = _run(current, step)
            round_runs.append(PassRun(str(step), number, changes, current, after if changes else current))
            current = round_runs[-1].after
        if number > 1 and not any(run.changes for run in round_runs):
            break
        runs += round_runs
    return tuple(runs)


def _run(text: str, step: Step) -> tuple[int, str]:
    """A step on every block of a module; the text is read again, so that each step runs as it would alone."""
    module = parse_module(text)
    changes = step.apply_module(module) if isinstance(step, Inline) else 0
    if isinstance(step, Rewrite):
        bodies = read_functions(module)
        changes = sum(step.apply(block) for body in bodies for block in walk(body))
        write_functions(module, bodies)
        verify_module(module)
    return changes, print_module(module)

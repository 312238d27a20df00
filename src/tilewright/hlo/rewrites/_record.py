"""A pipeline run step by step, with the program's text after each: what ``--diff`` and ``--print-after-all`` show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff

from tilewright.hlo._ir import parse_module, print_module, verify_module
from tilewright.hlo.graphs._emit import write_functions
from tilewright.hlo.graphs._graph import walk
from tilewright.hlo.graphs._read import read_functions
from tilewright.hlo.rewrites._text import Step
from tilewright.hlo.rewrites.inline import Inline

__all__ = ["PassRun", "record_passes"]

_ROUNDS = 16


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
    for number in range(1, _ROUNDS + 1):
        made = list(_round(current, steps, number))
        if number > 1 and not any(run.changes for run in made):
            break
        runs += made
        current = made[-1].after if made else current
    return tuple(runs)


def _round(text: str, steps: Sequence[Step], number: int) -> Iterator[PassRun]:
    for step in steps:
        changes, after = _run(text, step)
        yield PassRun(str(step), number, changes, text, after if changes else text)
        text = after if changes else text


def _run(text: str, step: Step) -> tuple[int, str]:
    """A step on every block of a module; the text is read anew, so that each step is as it would be alone."""
    module = parse_module(text)
    if isinstance(step, Inline):
        changes = step.apply_module(module)
    else:
        bodies = read_functions(module)
        changes = sum(step.apply(block) for body in bodies for block in walk(body))
        write_functions(module, bodies)
        verify_module(module)
    return changes, print_module(module)

"""The dense step as a program: what it moves under a target's layouts, what the gate rewrites, and the proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from tilewright.errors import CheckFailed
from tilewright.hlo import MovementReport, Optimized, StepTime, estimate, from_jax, optimize, report, verify

REWRITING_TARGET = "vector8x128"
"""The platform of the patent, whose compiler rewrites nothing: training runs the program rewritten for it."""


ALLOWED = 2e-5
"""What float32 sums in another order may differ by, as a share of an output's largest value."""


@dataclass(frozen=True)
class Movement:
    """The dense step under the layouts of one target, its modelled time, and the gate's verdicts per target."""

    report: MovementReport
    optimized: dict[str, Optimized]
    time: StepTime

    @cached_property
    def rewritten(self) -> Callable[..., Any]:
        """The step as rewritten for :data:`REWRITING_TARGET`, compiled on first use."""
        step: Callable[..., Any] = jax.jit(self.optimized[REWRITING_TARGET].callable())
        return step


@dataclass(frozen=True)
class Proof:
    """How far the rewritten step is from the original, over several inputs.

    ``max_difference`` is the largest absolute difference of any output; ``worst_share`` the largest difference as a
    share of its output's largest value, which ``allowed`` bounds (float32 sums taken in another order).
    ``error_before`` and ``error_after`` are the shares by which the two miss ``reference`` on the first input.
    """

    inputs: int
    outputs: int
    max_difference: float
    worst_share: float
    allowed: float
    error_before: float | None
    error_after: float | None
    reference: str


def study(step: Callable[..., Any], arguments: Sequence[Any], target: str) -> Movement:
    """Trace ``step(*arguments)``, report its movement on ``target``; ask the gates of it and of the rewriting one."""
    program = from_jax(step, *arguments)
    optimized = {name: optimize(program, name) for name in dict.fromkeys((target, REWRITING_TARGET))}
    return Movement(report(program, target), optimized, estimate(program, target))


def prove(step: Callable[..., Any], movement: Movement, inputs: Sequence[Sequence[Any]]) -> Proof:
    """Run the step and the very program that will train on every input, and on the first beside float64.

    Raises :class:`CheckFailed` where an output differs by more than rounding, or the error against float64 has grown.
    """
    worst, largest, outputs = compare(step, movement.rewritten, inputs)
    optimized = movement.optimized[REWRITING_TARGET]
    leaves = jax.tree_util.tree_leaves(inputs[0])
    kept = range(len(leaves)) if optimized.original.signature is None else optimized.original.signature.kept
    # As compiled whole, which is how it will train; verify's operation by operation costs a compilation for each.
    exact = verify(optimized.original, optimized.program, [leaves[i] for i in kept], eager=False)
    if not exact.ok:
        raise CheckFailed(f"the rewritten step is not the original: {exact.reason}", where=REWRITING_TARGET)
    return Proof(len(inputs), outputs, largest, worst, ALLOWED, exact.error_before, exact.error_after, exact.reference)


def compare(
    original: Callable[..., Any], rewritten: Callable[..., Any], inputs: Sequence[Sequence[Any]]
) -> tuple[float, float, int]:
    """(largest difference as a share of its output, largest one, outputs); CheckFailed beyond :data:`ALLOWED`."""
    worst, largest, outputs = 0.0, 0.0, 0
    straight = jax.jit(original)
    for number, arguments in enumerate(inputs):
        pairs = [jax.tree_util.tree_flatten_with_path(f(*arguments))[0] for f in (straight, rewritten)]
        outputs = len(pairs[0])
        for (path, expected), (_, actual) in zip(*pairs, strict=True):
            difference, size = _difference(np.asarray(expected, np.float64), np.asarray(actual, np.float64))
            share = difference / max(size, 1e-30)
            if not share <= ALLOWED:
                place = f"input {number}, output {jax.tree_util.keystr(path)}"
                raise CheckFailed(
                    f"the rewritten step differs from the original by {share:.1e} of its size", where=place
                )
            worst, largest = max(worst, share), max(largest, difference)
    return worst, largest, outputs


def _difference(one: Any, other: Any) -> tuple[float, float]:
    """(largest difference, largest finite value); infinite where one is finite and the other is not. NaN equals NaN."""
    apart = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    size = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    if not np.isfinite(one[apart]).all() or not np.isfinite(other[apart]).all():
        return float("inf"), size
    return float(np.abs(one[apart] - other[apart]).max(initial=0.0)), size

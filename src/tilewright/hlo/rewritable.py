"""Where the rewrites of ``optimize`` pay, as suggestions for a report (its rules: ``gating/suggesting.py``)."""

from __future__ import annotations

from dataclasses import replace

from tilewright.hlo.optimization import Optimized, optimize
from tilewright.hlo.program import Program
from tilewright.hlo.reporting.types import Suggestion
from tilewright.targets import Target


def suggest_rewrites(program: Program, chip: Target) -> tuple[Suggestion, ...]:
    """One suggestion for each line where a region of a StableHLO program begins that ``optimize`` rewrites on ``chip``.

    None on a chip whose compiler does the same, where a report counts what is left. Raises as :func:`optimize` does.
    """
    if program.kind != "stablehlo" or chip.compiler_normalizes:
        return ()
    done = optimize(program, chip, rules=[])
    lines = _without_reshapes(done)
    found: dict[str, Suggestion] = {}
    for verdict in done.rewrites:
        place = str(verdict.source or "")
        known, saved = found.get(place), verdict.gain
        if known is not None:
            found[place] = replace(known, saved_bytes=known.saved_bytes + saved)
            continue
        factor = verdict.factor if verdict.moved_after else None
        how = f"run tilewright optimize --target {chip.name} ({verdict.reason})"
        found[place] = Suggestion(
            *("", verdict.rule, factor, verdict.kind if factor else "unpriced", how, place, verdict.region),
            lines=lines,
            saved_bytes=saved,
        )
    return tuple(found.values())


def _without_reshapes(done: Optimized) -> tuple[str, ...]:
    """The lines whose reshapes and transposes are all gone in the result."""
    before, after = (
        {str(op.source) for _, op in each.operations() if op.opcode in ("reshape", "transpose") and op.source}
        for each in (done.original, done.program)
    )
    return tuple(sorted(before - after))

"""What the rules of ``optimize`` would change in a program, as the suggestions of a report."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.hlo.gating.gate import Verdict
from tilewright.hlo.optimization import optimize
from tilewright.hlo.program import Program
from tilewright.hlo.reporting.types import Suggestion
from tilewright.hlo.rules.catalogue import catalogue
from tilewright.hlo.rules.confirmed import factor_on
from tilewright.targets import Target
from tilewright.targets import target as find_target

_FINITE = "--assume-finite"


def suggest(program: Program, target: Target | str) -> tuple[Suggestion, ...]:
    """One suggestion for each rule and line where a rule of the catalogue would act on ``target``, or advises.

    Those that need finite values say so. None for HLO text, whose layouts have been assigned already. Raises as
    :func:`optimize` does.

    >>> import jax, jax.numpy as jnp
    >>> from tilewright.hlo import from_jax
    >>> query, keys = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((8, 1, 32, 64), (8, 1024, 8, 64)))
    >>> scores = from_jax(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, 4, 2)), query, keys)
    >>> [each.rule for each in suggest(scores, "tpu-v5e")]
    ['grouped-query-attention']
    """
    if program.kind != "stablehlo":
        return ()
    chip = find_target(target) if isinstance(target, str) else target
    done = optimize(program, chip)
    found: dict[tuple[str, str], Suggestion] = {}
    for each in _suggestions(done.rewrites, done.refusals, chip):
        known = found.setdefault((each.rule, each.source), each)
        if (each.factor or 0.0) > (known.factor or 0.0):
            found[each.rule, each.source] = each
    return tuple(found.values())


def _suggestions(accepted: tuple[Verdict, ...], refused: tuple[Verdict, ...], chip: Target) -> Iterator[Suggestion]:
    rules = catalogue()
    for verdict in (*accepted, *refused):
        rule = rules.get(verdict.rule)
        advises = rule is not None and rule.build is None
        if rule is None or not (verdict.accepted or advises or _FINITE in verdict.reason):
            continue
        how = rule.change if advises else f"{rule.change}; or run tilewright optimize"
        if not verdict.accepted and not advises:
            how += f" {_FINITE}, if no value is infinite or not a number"
        factor, kind = _number(verdict, chip)
        yield Suggestion("", rule.name, factor, kind, how, str(verdict.source or ""), rule.finding)


def _number(verdict: Verdict, chip: Target) -> tuple[float | None, str]:
    """The factor that the model predicts here, beside the one a compiler confirmed; that alone where it sees none."""
    known = factor_on(verdict.rule, chip.name)
    if verdict.kind != "unpriced" and verdict.factor > 1:
        kind = "modelled" if verdict.kind == "predicted" else verdict.kind
        more = f", {known.factor:.3g}× confirmed at the example's sizes" if known is not None else ""
        return verdict.factor, f"{kind}{more}"
    return (known.factor, "confirmed at the example's sizes") if known is not None else (None, "unpriced")

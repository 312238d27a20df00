"""What a user can change: where a rule would act or an advice meets, and what else a program spends and need not.

The rules act on a copy of the program, those that need finite values too, and the program itself is left as it is. What
they replace is named as a report names it: operations keep the names they had before calls were inlined.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from pathlib import Path

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo.gating.acting import LEAST, Acting, Candidate
from tilewright.hlo.gating.causes import causes
from tilewright.hlo.graphs.graph import Node, collector_paused, operations_in
from tilewright.hlo.graphs.mlir import read_functions, write_functions
from tilewright.hlo.ir import parse_module, print_module
from tilewright.hlo.program import Program
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.reporting.types import Suggestion
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rules.catalogue import catalogue, chosen, factor_on
from tilewright.hlo.semantics.context import Context, checked_assumptions
from tilewright.hlo.semantics.predicting import Origin, functions_of
from tilewright.hlo.timing.estimate import estimate
from tilewright.targets import Target
from tilewright.targets import target as find_target

#: What reports have rows for: a suggestion is named after the largest of the first kind that there is.
_NAMED_FIRST = ("broadcast_in_dim", "transpose", "concatenate", "gather", "reshape", "slice", "pad")


@collector_paused()
def suggest(
    program: Program, target: str | Target, assume_finite: bool = False, assume: Mapping[str, float] | None = None
) -> list[Suggestion]:
    """Every change that is known to pay in a StableHLO program: of rules, and those of its user; most saved first.

    A rule that is held back by its guard alone is among them, and says how to let it act; ``assume_finite=True`` means
    that ``optimize`` will be called so. What the compiler finds faster at a rule's example and the time model slower in
    this program is left out. Of one rule on one line there is one suggestion for each computation. ``assume``: what the
    user states of data that decides how long kernels run, as ``estimate`` takes it. A program that carries its
    compiler's layouts (HLO text), and one that the IR bindings refuse, has none. Raises UnsupportedError where a rule
    fails, UsageError for what cannot be assumed.

    >>> import jax, jax.numpy as jnp
    >>> from tilewright.hlo import from_jax
    >>> q, k = jax.ShapeDtypeStruct((8, 64, 64), jnp.bfloat16), jax.ShapeDtypeStruct((8, 2048, 8, 64), jnp.bfloat16)
    >>> scores = from_jax(lambda q, k: jnp.einsum("bhd,bkhd->bhk", q, jnp.repeat(k, 8, axis=2)), q, k)
    >>> [(each.rule, each.kind, each.factor > 5) for each in suggest(scores, "tpu-v5e")]
    [('grouped-query-attention', 'predicted', True)]
    """
    chip, stated = find_target(target), checked_assumptions(assume or {})
    if program.kind != "stablehlo":
        return []
    found = list[Suggestion]()
    with suppress(TilewrightError):  # no time model, or no time for this program
        found = causes(program, chip, stated)
    told = {each.rule for each in found}
    rules = (each for each in _of_rules(program, chip, assume_finite, stated) if each.rule not in told)
    return sorted([*found, *rules], key=_order)


def _of_rules(program: Program, chip: Target, assume_finite: bool, assume: Mapping[str, float]) -> list[Suggestion]:
    try:
        names = _Names(program, chip, assume)
    except TilewrightError:
        return []
    advising = Acting(chip, tuple(rule for rule in catalogue().values() if rule.build is None))
    acting = Acting(chip, chosen(None), assume_finite=True)
    try:
        advising.run(names.bodies)  # first, for it changes nothing
        acting.run(names.bodies)
    except TilewrightError:
        raise
    except Exception as error:  # the bindings' own, or a fault of a rule: a report goes on without
        raise UnsupportedError(f"the rules fail on this program with {type(error).__name__}: {error}") from error
    groups: dict[Hashable, list[Suggestion]] = defaultdict(list)
    for case in (*acting.acted, *acting.left, *advising.left):
        if case.gain.kind == "disputed":
            continue
        each = _suggestion(case, names, chip, assume_finite)
        groups[each.rule, each.path, each.source or each.op, each.column].append(each)
    merged = list(map(_merged, groups.values()))
    priced = defaultdict[str, float](float)
    for each in merged:
        priced[each.rule] += (each.saved_us or 0.0) * (each.kind == "predicted")
    gained = {rule: us for rule, us in priced.items() if us}
    before = estimate(program, chip, assume).device_seconds if gained else 0.0
    saved = {rule: 1e6 * (before - _seconds(program, chip, rule, assume)) / us for rule, us in gained.items()}
    weighed = (replace(each, saved_us=(each.saved_us or 0.0) * saved.get(each.rule, 1.0)) for each in merged)
    return [replace(each, saved_us=each.saved_us or None) for each in weighed if (each.saved_us or 0.0) >= 0]


def _seconds(program: Program, chip: Target, rule: str, assume: Mapping[str, float]) -> float:
    """Modelled device time of the whole program with a rule acting alone wherever it pays."""
    module = parse_module(program.text)
    Inline().apply_module(module)
    bodies = read_functions(module)
    Acting(chip, chosen([rule]), assume_finite=True).run(bodies)
    write_functions(module, bodies)
    return estimate(read_stablehlo(print_module(module, locations=False)), chip, assume).device_seconds


def _order(each: Suggestion) -> tuple[float, float]:
    return -(each.saved_us or 0.0), -(each.factor or 0.0)


def _merged(alike: Sequence[Suggestion]) -> Suggestion:
    """One suggestion for all that a rule says about a line: the one that saves most, with what the others save."""
    first, *others = sorted(alike, key=_order)
    if not others:
        return first
    also = dict.fromkeys(name for each in (first, *others) for name in (*each.also, each.op))
    return replace(
        first,
        what=f"{first.what} ({len(alike)} times)",
        also=tuple(name for name in also if name != first.op),
        saved_us=sum(each.saved_us or 0.0 for each in alike) or None,
    )


def _suggestion(case: Candidate, names: _Names, chip: Target, assume_finite: bool) -> Suggestion:
    rule, root, gain = case.rule, case.root, case.gain
    known = factor_on(rule.name, chip.name)
    factor, kind, saved = gain.factor, gain.kind, gain.seconds * 1e6 * names.runs(root)
    if kind != "counted" and (kind == "unpriced" or factor < LEAST):
        saved = 0.0
        factor, kind = (known.factor, "confirmed") if known is not None else (1.0, "unpriced")
    costly = [op for op in case.dead if op.name not in ("constant", "iota")] or [root]
    named = sorted(sorted(costly, key=lambda op: op.position), key=lambda op: (*_weight(op), op is not root))
    found = list(dict.fromkeys(filter(None, map(names.of, named)))) or [root.name]
    places = (each.op.source for op in sorted(costly, key=lambda op: op.position) for each in op.lender.origins)
    source = next(filter(None, places), None)
    place = f" ({Path(source.file).name}:{source.line})" if source is not None else ""
    guard = " --assume-finite" if case.unsure and not assume_finite else ""
    command = f", or run tilewright optimize --target {chip.name}{guard}" if rule.build is not None else ""
    return Suggestion(
        found[0],
        rule.name,
        factor=round(factor, 3) if kind != "unpriced" else None,
        kind=kind,
        how=f"{rule.change}{place}{command}",
        source=str(source) if source is not None else "",
        what=rule.finding,
        path=names.path(named[0]),
        also=tuple(found[1:]),
        saved_us=saved or None,
        column=source.column if source is not None else 0,
        basis=gain.note if kind == "confirmed" else "",
    )


def _weight(op: Node) -> tuple[int, int]:
    """What a reader meets first in a ranking comes first: a copy, the largest before others."""
    kind = _NAMED_FIRST.index(op.name) if op.name in _NAMED_FIRST else len(_NAMED_FIRST)
    return kind, -prod(op.result.shape or ())


class _Names:
    """The program's graph, calls inlined, and what its operations are called in a report on ``chip``."""

    def __init__(self, program: Program, chip: Target, assume: Mapping[str, float]) -> None:
        self.program, self.normalised = program, chip.compiler_normalizes
        self.bodies, _ = functions_of(program)
        self.copies = Counter[Origin]()
        self.known: dict[Node, tuple[Origin, int]] = {}  # what it was, and which copy of that it is
        for op in (op for body in self.bodies for op in operations_in(body) if op.origins):
            self.copies[op.origins[0]] += 1
            self.known[op] = op.origins[0], self.copies[op.origins[0]]
        self.run_counts = Context(program, chip, assume=assume).runs

    def of(self, op: Node) -> str:
        """Its name; one that came with a call has its function's before it, where reports inline, and its number."""
        origin, copy = self.known.get(op, (None, 0))
        if origin is None or not origin.op.name:
            return ""
        if not self.normalised or origin.function == self.program.entry.name:
            return origin.op.name
        return f"{origin.function}/{origin.op.name}" + (f".{copy}" if copy > 1 else "")

    def path(self, op: Node) -> str:
        """The computations from the entry to it, "" where reports inline the function it was in."""
        origin, _ = self.known.get(op, (None, 0))
        if origin is None or (self.normalised and origin.function != self.program.entry.name):
            return ""
        return self.program.path(origin.computation)

    def runs(self, op: Node) -> float:
        """How often it runs in one run of the program, shared among the copies of it."""
        origin, _ = self.known.get(op, (None, 0))
        return self.run_counts[origin.computation].count / self.copies[origin] if origin is not None else 1.0

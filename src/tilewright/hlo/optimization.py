"""``optimize``: a program is rewritten where that pays on a target."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import unified_diff
from functools import cached_property
from textwrap import dedent
from typing import Any

from tilewright.errors import CheckFailed, TilewrightError, UnsupportedError, UsageError
from tilewright.hlo.cost import place
from tilewright.hlo.execute import callable_of
from tilewright.hlo.gating.acting import Acting
from tilewright.hlo.gating.gate import Verdict, change_carried_shapes, compiler_of, gate, weighted_cost
from tilewright.hlo.gating.regions import moved
from tilewright.hlo.graphs.graph import Block, collector_paused
from tilewright.hlo.graphs.mlir import read_functions, write_functions
from tilewright.hlo.ir import parse_module, print_module, verify_module
from tilewright.hlo.program import Program
from tilewright.hlo.proving.tpu import TpuComparison, compare_on_tpu, judge_on_tpu
from tilewright.hlo.proving.verify import Verification
from tilewright.hlo.proving.verify import verify as prove
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.reporting.movement import report
from tilewright.hlo.reporting.types import Suggestion
from tilewright.hlo.rewrites.inline import Inline
from tilewright.hlo.rewrites.pipeline import PassRun, parse_pipeline, pipeline
from tilewright.hlo.rewriting.base import Rewrite, Step
from tilewright.hlo.rewriting.maker import MOVES
from tilewright.hlo.rules.catalogue import chosen
from tilewright.render import Card, Column, Html, Page, badge, bytes_text, cards, count_text, table
from tilewright.render import Step as ToDo
from tilewright.render import steps as numbered
from tilewright.render.formats import place_text, ratio_text
from tilewright.render.markup import element, join
from tilewright.render.page import code_block, details, note, side_by_side
from tilewright.targets import Target
from tilewright.targets import target as find_target


@dataclass(frozen=True)
class Optimized:
    """A program and what was done to it.

    ==================  ==============================================================================================
    ``program``         the result; the original itself where nothing was accepted
    ``original``        what it was made from
    ``target``          the target whose layouts and rules decided
    ``rewrites``        a :class:`Verdict` for every region that was rewritten
    ``refusals``        one for every region that was left alone although something moves in it
    ``moved_before``    bytes that reshapes and transposes of the whole program, each by itself, move under the target's
                        layouts: what the gate weighs; ``moved_bytes`` is what a report counts
    ``moved_after``     the same for the result
    ``changes``         how often each rewrite of the pipeline fired; empty where nothing was accepted
    ``verification``    how the two programs compare on random inputs, None unless it was asked for
    ``judgement``       what the TPU compiler makes of both, None unless a judge was asked
    ``text``            the result as StableHLO text
    ==================  ==============================================================================================
    """

    program: Program = field(repr=False)
    original: Program = field(repr=False)
    target: Target = field(repr=False)
    rewrites: tuple[Verdict, ...]
    refusals: tuple[Verdict, ...]
    moved_before: int
    moved_after: int
    changes: dict[str, int] = field(default_factory=dict, repr=False)
    verification: Verification | None = field(default=None, repr=False)
    judgement: TpuComparison | None = field(default=None, repr=False)

    @cached_property
    def moved_bytes(self) -> tuple[int, int]:
        """Bytes moved for layout's sake in the original and in the result, as :func:`report` counts them."""
        before = report(self.original, self.target).moved_bytes
        return before, report(self.program, self.target).moved_bytes if self.rewrites else before

    @property
    def carried(self) -> int:
        """Arrays that loops and conditionals hand on in another shape than before; the regions are from after that."""
        return self.changes.get("reshape-of-loop", 0) + self.changes.get("reshape-of-branch", 0)

    @property
    def text(self) -> str:
        """The result as StableHLO text; identical to the original's where nothing was accepted."""
        return self.program.text

    def diff(self, context: int = 3) -> str:
        """A unified diff of the two texts, source positions left out; "" where nothing was accepted."""
        if not self.rewrites:
            return ""
        before, after = (text.splitlines() for text in self._printed())
        return "\n".join(unified_diff(before, after, "before", "after", lineterm="", n=context))

    def explain(self) -> str:
        """Every verdict in a few lines, accepted regions first; regions that are alike are listed once."""
        lines = [
            f"{self.target.title}: reshapes and transposes move {self.moved_before:,} bytes as written, "
            f"{self.moved_after:,} in the result"
        ]
        if self.judgement is not None:
            lines.append(
                f"judged: {self.judgement.compiler} estimates {self.judgement.ratio:.2f} times the cycles for the "
                f"original on {self.judgement.chip}"
            )
        if self.carried:
            lines.append(f"carried by loops and conditionals as before a reshape: {self.carried} arrays")
        if self.target.compiler_normalizes:
            lines.append(
                f"{compiler_of(self.target)} performs these rewrites itself: a gain is claimed only where it remains "
                "with both programs in its normal form"
            )
        alike = defaultdict[object, list[Verdict]](list)
        for each in (*self.rewrites, *self.refusals):
            alike[each.accepted, each.region, each.name, each.reason].append(each)
        for verdicts in alike.values():
            one = verdicts[0]
            places = list(dict.fromkeys(place_text(str(verdict.source)) for verdict in verdicts if verdict.source))
            more = f" and {len(places) - 2} more" if len(places) > 2 else ""
            place = f"  ({', '.join(places[:2])}{more})" if places else ""
            times = f" {len(verdicts)} times" if len(verdicts) > 1 else ""
            left = sum(verdict.moved_before for verdict in verdicts if not verdict.accepted)
            moves = f"; moves {bytes_text(left)}" if left else ""
            lines.append(f"{'rewritten' if one.accepted else 'left alone'}{times}: {one.region}{moves}{place}")
            lines.append(f"    {one.name}: {one.reason}" if one.name else f"    {one.reason}")
        moving = (op for _, op in self.original.operations() if op.opcode in MOVES | {"dynamic_reshape"})
        unknown = sum("?" in " ".join((op.shape, *op.operand_shapes)) for op in moving)
        if unknown:
            lines.append(
                "left alone: reshapes and transposes of arrays whose sizes are not known before the program runs, "
                f"{unknown} in all; what they move cannot be counted"
            )
        if not self.rewrites and not self.refusals:
            nothing = f"no {'other ' if unknown else ''}reshape or transpose in it moves anything on {self.target.name}"
            small = "no region begins in it: what moves are transposes alone, and unit dims of small arrays"
            lines.append(f"no rule fits, and {small if self.moved_before else nothing}")
        lines.append(f"moved by all operations, as a report counts: {' -> '.join(map(bytes_text, self.moved_bytes))}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values, stable names: target, moved_before, moved_after, moved_bytes, passes, rewrites, refusals."""
        return {
            "schema_version": 1,
            "target": self.target.name,
            "compiler_normalizes": self.target.compiler_normalizes,
            "moved_before": self.moved_before,
            "moved_after": self.moved_after,
            "moved_bytes": dict(zip(("before", "after"), self.moved_bytes)),
            "passes": [{"name": name, "changes": count} for name, count in self.changes.items()],
            "judgement": self.judgement.to_json() if self.judgement is not None else None,
            "rewrites": [verdict.to_dict() for verdict in self.rewrites],
            "refusals": [verdict.to_dict() for verdict in self.refusals],
        }

    def to_html(self, command: str = "") -> str:
        """One self-contained page; :func:`optimize` with ``regions=True`` gives it the regions' texts.

        ``command``: what it was made with, which it shows as the next step.
        """
        target, judged = self.target, self.judgement
        facts = [("target", target.name), ("written", date.today().isoformat())]
        head = f"{count_text(len(self.rewrites))} rewritten, {count_text(len(self.refusals))} left alone"
        page = Page(f"Before and after: {self.original.name}", head, facts=facts, wide=True)
        figures = [
            Card("rewritten", count_text(len(self.rewrites)), "regions of the program", "good"),
            Card("left alone", count_text(len(self.refusals)), "with a reason each"),
            Card("moved", bytes_text(self.moved_bytes[1]), f"{bytes_text(self.moved_bytes[0])} as written"),
        ]
        if judged is not None:
            figures.append(Card("judged", ratio_text(judged.ratio), f"by {judged.compiler}, cycles before over after"))
        done = "Write the rewritten program, and prove it on random inputs and edge values."
        command = f"{command or f'tilewright optimize FILE --target {target.name}'} -o faster.mlir --verify"
        todo = [ToDo(done, command)] if self.rewrites else []
        command = f"tilewright report faster.mlir --target {target.name} -o report.html"
        todo += [ToDo("See every operation's bytes and time after it.", command)] if todo else []
        nothing = note("Nothing to do: no region of the program pays on this target. The reasons are below.")
        page.section("summary", "What to do", numbered(todo) if todo else nothing, cards(figures))
        changes = [_verdict(number, verdict) for number, verdict in enumerate(self.rewrites, 1)]
        page.section("changes", "What changed", *(changes or [note("nothing: no region of it pays on this target")]))
        if self.refusals:
            heads = [Column("rule or rewrites"), Column("region", "code"), Column("source", "code"), Column("why")]
            rows = [
                (each.name or "-", each.region, place_text(str(each.source or "")), each.reason)
                for each in self.refusals
            ]
            page.section("left", "Left alone", table(heads, rows))
        page.section("program", "The whole program", details("before and after", _beside(*self._printed())))
        return page.html()

    def _printed(self) -> list[str]:
        """Both programs without source positions."""
        return [print_module(parse_module(program.text)) for program in (self.original, self.program)]

    def callable(self) -> Any:
        """The result as a function of the arguments of the JAX function it was made from, for ``jax.jit``.

        Raises UnsupportedError for a program that was read from a file.
        """
        return callable_of(self.program)


def optimize(
    program: Program,
    target: str | Target,
    allow_reassociation: bool = True,
    verify: bool = False,
    passes: str | None = None,
    rules: Sequence[str] | None = None,
    judge: str | None = None,
    assume_finite: bool = False,
    regions: bool = False,
    allow_products: bool = False,
) -> Optimized:
    """Rewrite the regions of a StableHLO program that pay on ``target``.

    ``allow_reassociation=False`` keeps to rewrites that give the same bits (no floating sums taken apart).
    ``allow_products=True`` takes products of reals apart too: in another order one may become infinite or no number
    where it was not, and ``verify`` says so. Sums of numbers near the largest one may overflow in another order too.
    ``passes`` names the rewrites to try on each region, instead of all of them (``tilewright optimize --list-passes``).
    ``rules`` names the rules of the catalogue that may act (``--list-rules``): None for all that keep the numerics, []
    for none. ``assume_finite=True`` allows those that would spread a NaN or an infinity to its neighbours.
    ``judge="tpu:v5e"`` compiles both programs with an installed TPU compiler and keeps what wins there.
    ``regions=True`` keeps the text of every accepted region before and after, for :meth:`Optimized.to_html`.
    ``verify=True`` runs both programs on random inputs (:func:`tilewright.hlo.verify`) and raises CheckFailed if they
    differ. The program is never changed; a result without accepted regions has the very same text. Raises
    UnsupportedError for HLO text, whose layouts have been assigned already, for a target without a layout rule for
    whole programs, and where the IR bindings fail on a construct of the program.

    >>> import jax, jax.numpy as jnp
    >>> from tilewright.hlo import from_jax
    >>> x = jax.ShapeDtypeStruct((256, 27, 32), jnp.float32)
    >>> group_sums = from_jax(lambda x: x.reshape(256, 27, 4, 8).sum((1, 3)), x)
    >>> done = optimize(group_sums, "vector8x128")
    >>> [each.name for each in done.rewrites], done.moved_before, done.moved_after
    (['reduce-of-reshape'], 32505856, 1179648)
    """
    chip = find_target(target)
    if program.kind != "stablehlo":
        own = "HLO text is the compiler's own result, with layouts assigned"
        raise UnsupportedError(own, how="optimize StableHLO or a JAX function")
    allow_products &= allow_reassociation
    steps = pipeline(allow_reassociation, allow_products) if passes is None else parse_pipeline(passes)
    acting = chosen(() if rules is None and passes is not None else rules)
    place((8, 128), "f32", chip)  # a target without a rule for whole programs says so here
    try:
        with collector_paused():
            judged = judge is not None
            acts = Acting(chip, acting, assume_finite, allow_reassociation, keep_regions=regions, judged=judged)
            optimized, done = _rewrite(program, chip, steps, acts)
        if judge is not None:
            optimized = _judged(optimized, steps, done, judge)
        if not verify or not optimized.rewrites:
            return optimized
        exact = not allow_reassociation
        proof = prove(program, optimized.program, bit_exact=exact, assume_finite=assume_finite)
        if not proof.ok:
            raise CheckFailed(f"the rewritten program differs from the original: {proof.reason}")
        return replace(optimized, verification=proof)
    except TilewrightError:
        raise
    except Exception as error:  # the bindings' own, mostly: nothing was changed, and the program runs as it is
        reason = f"rewriting this program failed with {type(error).__name__}: {str(error) or 'no message'}"
        raise UnsupportedError(reason.replace("\n", " "), how="use the program as it is, and report this") from error


def _read(program: Program, steps: Sequence[Step]) -> tuple[Any, list[Block], int]:
    """A module of its own, its graph, and how many calls were inlined."""
    module = parse_module(program.text)
    inlined = sum(step.apply_module(module) for step in steps if isinstance(step, Inline))
    return module, read_functions(module), inlined


def _rewrite(program: Program, chip: Target, steps: Sequence[Step], acting: Acting) -> tuple[Optimized, Acting]:
    local = [step for step in steps if isinstance(step, Rewrite)]
    module, bodies, inlined = _read(program, steps)
    before = moved(bodies, chip)
    acting.run(bodies)
    carried = change_carried_shapes(bodies, local)
    accepted, refused = gate(bodies, chip, local, acting.keep_regions)
    if carried.total():  # only where the bodies take the reshapes up does that pay
        again = acting.anew()
        as_written = _read(program, steps)
        again.run(as_written[1])
        others = gate(as_written[1], chip, local, acting.keep_regions)
        if not accepted or weighted_cost(bodies, chip) >= weighted_cost(as_written[1], chip):
            (module, bodies, _), (accepted, refused), carried, acting = as_written, others, Counter(), again
    accepted, refused = [*acting.accepted, *accepted], [*acting.refusals(), *refused]
    if not accepted:
        return Optimized(program, program, chip, (), tuple(refused), before, before, {}), acting
    after = moved(bodies, chip)
    write_functions(module, bodies)
    verify_module(module)
    result = read_stablehlo(print_module(module, locations="loc(" in program.text))
    result = replace(result, signature=program.signature)
    fired = sum((Counter(verdict.changes) for verdict in accepted), carried + Counter({Inline.name: inlined}))
    changes = {name: fired[name] for name in dict.fromkeys((*(step.name for step in steps), *acting.fired))}
    return Optimized(result, program, chip, tuple(accepted), tuple(refused), before, after, changes), acting


# A judge: the TPU's own compiler is asked about the whole program, with everything that was accepted and without each.

_JUDGED_ROUNDS = 3
_NOISE = 1.002


def _judged(optimized: Optimized, steps: Sequence[Step], acting: Acting, judge: str) -> Optimized:
    """Keep what the judge finds faster: every kind of rewrite that the program is better without is left out.

    Greedy with a look back: all kinds whose absence helps are left out together, and that is judged again.
    """
    kind, _, chip = judge.partition(":")
    if kind != "tpu" or not chip:
        raise UsageError(f"no judge called {judge!r}", how="--judge tpu:v5e asks an installed TPU compiler")
    if not optimized.rewrites:
        return optimized
    program, best, left_out = optimized.original, optimized, acting.passed_over
    best_said = compare_on_tpu(program, best.program, chip)
    for _ in range(_JUDGED_ROUNDS):
        kinds = [group for group in acting.groups if group not in left_out]
        trials = [_rewrite(program, optimized.target, steps, acting.anew(left_out | {group}))[0] for group in kinds]
        answers = judge_on_tpu([(program, trial.program) for trial in trials], chip) if len(kinds) > 1 else []
        better = [
            group for group, said in zip(kinds, answers)
            if isinstance(said, TpuComparison) and said.ratio > best_said.ratio * _NOISE
        ]  # fmt: skip
        if not better:
            break
        left_out = left_out | frozenset(better)
        trial = _rewrite(program, optimized.target, steps, acting.anew(left_out))[0]
        said = compare_on_tpu(program, trial.program, chip)
        if said.ratio <= best_said.ratio:
            break
        best, best_said = trial, said
    if best_said.ratio >= 1:
        names = {rule.name for rule in acting.rules}
        accepted = tuple(replace(v, kind="judged") if v.rule in names else v for v in best.rewrites)
        return replace(best, rewrites=accepted, judgement=best_said)
    reason = f"{best_said.compiler} estimates more cycles for the result: {1 / best_said.ratio:.2f} times"
    refused = tuple(replace(verdict, accepted=False, reason=reason) for verdict in best.rewrites)
    nothing = replace(best, program=program, rewrites=(), refusals=(*refused, *best.refusals), changes={})
    return replace(nothing, moved_after=best.moved_before, judgement=best_said)


# Pages: every accepted region, or every pass, before and after side by side.

_BODY = re.compile(r"func\.func[^\n]*\{\n(.*)\n  \}\n\}", re.DOTALL)


def passes_html(name: str, runs: Sequence[PassRun]) -> str:
    """What each pass of a pipeline did, as one self-contained page."""
    fired = [run for run in runs if run.changes]
    head = f"{count_text(len(fired))} of {count_text(len(runs))} passes changed something"
    page = Page(f"Pass by pass: {name}", head, facts=[("written", date.today().isoformat())], wide=True)
    rows = [(str(run.step), run.round, run.changes) for run in runs]
    page.section(
        "passes", "Passes", table([Column("pass"), Column("round", "count"), Column("changes", "count")], rows)
    )
    for number, run in enumerate(fired, 1):
        heading = f"{number}. {str(run.step).partition('{')[0]}, round {run.round}"
        page.section(f"pass-{number}", heading, _beside(run.before, run.after))
    return page.html()


def _verdict(number: int, verdict: Verdict) -> Html:
    """One accepted region: what acted, where, what it is worth and why, and both texts."""
    worth = f"{ratio_text(verdict.factor)} {verdict.kind}" if verdict.kind != "unpriced" else verdict.kind
    head = [f"{number}. {verdict.name} ", badge(worth, "plain" if verdict.kind == "unpriced" else "good")]
    if verdict.source:
        head += [" ", element("code", place_text(str(verdict.source)))]
    parts = [element("h3", *head), element("p", verdict.reason), element("p", element("code", verdict.region))]
    if verdict.before:
        parts.append(_beside(_body(verdict.before), _body(verdict.after)))
    return join(parts, "\n")


def _beside(before: str, after: str) -> Html:
    return side_by_side(code_block(before, "before"), code_block(after, "after"))


def _body(module: str) -> str:
    """The lines of a module's only function."""
    found = _BODY.search(module)
    return dedent(found[1]) if found else module


# What the rewrites would change, as suggestions for a report; those of the rules: gating/suggesting.py.


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
        {str(op.source) for _, op in each.operations() if op.opcode in MOVES and op.source}
        for each in (done.original, done.program)
    )
    return tuple(sorted(before - after))

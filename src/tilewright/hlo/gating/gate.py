"""The gate: a region is rewritten whole, and only where the modelled cost falls on the target.

Every region is tried on a copy, its candidate; regions that are alike are tried once. The cost before and after is the
bytes that reshapes and transposes move under the target's layouts, plus, on linear memory, the charge for reductions
over short inner runs. A target whose compiler reaches the normal form by itself gains nothing from being handed it:
there both sides are compared in that form, and as a candidate ends in the normal form of its region, a gain seldom
remains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from tilewright.hlo.gating.regions import SMALL, Cost, Region, bytes_moved, collect, cost, grown
from tilewright.hlo.graphs.graph import Block, Node, Value, in_order, replace_value, walk
from tilewright.hlo.graphs.mlir import module_text
from tilewright.hlo.program import Source
from tilewright.hlo.reading.sources import is_library
from tilewright.hlo.rewrites.cleanup import Canonicalize, CommonSubexpressions, DeadCode
from tilewright.hlo.rewrites.control_flow import ReshapeOfBranch, ReshapeOfLoop
from tilewright.hlo.rewrites.elementwise import (
    MoveAboveElementwise,
    ReshapeOfBroadcast,
    ReshapeOfElementwise,
    TransposeOfElementwise,
)
from tilewright.hlo.rewrites.pipeline import fixpoint, pipeline
from tilewright.hlo.rewrites.reductions import ReduceOfSplits
from tilewright.hlo.rewriting.base import Rewrite, is_exact
from tilewright.hlo.rewriting.maker import is_elementwise
from tilewright.render import bytes_text
from tilewright.targets import Target

# A candidate is a region copied into a block of its own, rewritten there, and put in the region's place if it pays.


@dataclass(frozen=True, eq=False)
class RegionCopy:
    """A region's copy in ``body``: its inputs became the arguments, its outputs the operands of the terminator."""

    region: Region
    body: Block


def take_out(region: Region) -> RegionCopy:
    """Copy a region into a block of its own."""
    return RegionCopy(region, copied_block(region.inputs, region.members, region.outputs))


def another(candidate: RegionCopy) -> RegionCopy:
    """The same candidate once more, to be rewritten further."""
    *operations, end = candidate.body.operations
    return RegionCopy(candidate.region, copied_block(candidate.body.arguments, operations, end.operands))


def copied_block(inputs: Sequence[Value], operations: Sequence[Node], outputs: Sequence[Value]) -> Block:
    """The operations in a block of their own, with an argument for each input, that returns the outputs."""
    body = Block("candidate")
    values = {value: body.add_argument(value.shape, value.dtype) for value in inputs}
    for op in operations:
        body.append(_copied(op, values))
    body.append(Node("return", [values[v] for v in outputs]))
    return body


def _copied(op: Node, values: dict[Value, Value]) -> Node:
    """The same operation on other operands; its results join ``values``."""
    copy = Node(op.name, [values[v] for v in op.operands], dict(op.attributes))
    copy.like, copy.position = (op if op.handle is not None else op.like), op.position
    values.update((old, copy.add_result(old.shape, old.dtype)) for old in op.results)
    return copy


def splice(region: Region, candidate: RegionCopy, replaced: dict[Value, Value]) -> None:
    """Put a copy of the candidate in the region's place; :func:`settle` the block after the last splice.

    ``replaced`` says what splices since the region was judged put in the place of values: a neighbour's outputs.
    """
    block, values = region.block, {}
    for argument, value in zip(candidate.body.arguments, region.inputs):
        while value in replaced:
            value = replaced[value]
        values[argument] = value
    lenders = dict(zip(candidate.region.members, region.members))
    *operations, end = candidate.body.operations
    for op in operations:
        copy = block.append(_copied(op, values))
        lender = lenders.get(op.like) if op.like is not None else None
        if lender is not None and lender is not op.like:
            copy.like, copy.position = lender, lender.position
    for old, new in zip(region.outputs, end.operands):
        replace_value(old, values[new])
        replaced[old] = values[new]
    for op in region.operations:
        op.drop()
    block.changed = True


def settle(block: Block) -> None:
    """After splices: drop what was replaced and has no users, and put the rest in order before the terminator."""
    standing = [op for op in block.operations if op.block is block]
    last = next(op for op in reversed(standing) if op.handle is not None)
    block.operations = [*in_order([op for op in standing if op is not last]), last]
    DeadCode().apply(block)


#: The rewrites that make a candidate worth its while; the others only tidy up. Where reshapes and transposes cancel
#: among themselves, tidying up is all there is to do.
_MAIN = (
    "transpose-of-elementwise", "reduce-of-transpose", "reduce-of-reshape", "reduce-of-splits", "reduces-of-reshapes",
    "reshape-of-elementwise", "move-above-elementwise", "reshape-of-broadcast",
)  # fmt: skip
_PLACE = re.compile(r'"([^"]+)":(\d+):(\d+)')


@dataclass(frozen=True)
class Verdict:
    """What the gate decided about one region, and why.

    ===================  ===========================================================================================
    ``accepted``         the region was rewritten
    ``name``             the rewrites that fired: ``reduce-of-reshape + reshape-of-elementwise``
    ``region``           what it is: ``f32[256,27,4,8]: 2 reduce, 9 elementwise, 2 reshape``
    ``source``           the first line of the user's program in it, or None
    ``moved_before``     bytes its reshapes and transposes move under the target's layouts, as written
    ``moved_after``      the same for the candidate
    ``charged_before``   on linear memory, the charge for reductions over short inner runs, as written (bytes)
    ``charged_after``    the same for the candidate
    ``added``            bytes that come on top of the candidate's: conversions, sums that leave the innermost dim
    ``reason``           why, in a sentence
    ``changes``          how often each rewrite of the pipeline fired on the candidate
    ``rule``             the rule of the catalogue that acted, or the first of the rewrites
    ``factor``           how many times as fast the region becomes (for rewrites: bytes before over after), 1 if unknown
    ``before``           the region as StableHLO text, where ``optimize`` was told to keep it (``regions=True``)
    ``after``            what took its place
    ``kind``             what that number is: ``predicted``, ``confirmed``, ``counted``, ``judged`` or ``unpriced``
    ===================  ===========================================================================================
    """

    accepted: bool
    name: str
    region: str
    source: Source | None
    moved_before: int = 0
    moved_after: int = 0
    charged_before: int = 0
    charged_after: int = 0
    reason: str = ""
    changes: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    rule: str = ""
    factor: float = 1.0
    kind: str = "counted"
    added: int = 0
    before: str = field(default="", repr=False, compare=False)
    after: str = field(default="", repr=False, compare=False)

    @property
    def unsettled(self) -> bool:
        """Whether much of what moved moves still, so that it is worth looking further."""
        left = self.moved_after if self.accepted else self.moved_before
        return left >= max(SMALL, self.moved_before // 16)

    @property
    def gain(self) -> int:
        return self.moved_before + self.charged_before - self.moved_after - self.charged_after - self.added

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        plain = asdict(self)
        del plain["before"], plain["after"]
        return {**plain, "source": str(self.source) if self.source else None}


def gate(
    bodies: Sequence[Block], target: Target, steps: Sequence[Rewrite], keep_regions: bool = False
) -> tuple[list[Verdict], list[Verdict]]:
    """Rewrite every region of the bodies that pays on ``target``; (accepted, refused) verdicts.

    Rounds go on until no region is accepted: an accepted one may open the way for its neighbour.
    """
    judge = _RegionJudge(target, steps)
    accepted: list[Verdict] = []
    refused: dict[tuple[Node, ...], Verdict] = {}
    open_ = [block for body in bodies for block in walk(body)]
    while open_:
        changed = []
        for block in open_:
            # What a candidate left behind holds no operation that was read, and is in normal form already.
            fresh = [
                region
                for region in collect(block, target)
                if any(op.handle is not None for op in region.operations) and region.operations not in refused
            ]
            cases = [_Case(region, *judge.judged(region)) for region in fresh]
            cases += judge.wider(block, cases)
            replaced: dict[Value, Value] = {}
            for case in sorted(cases, key=lambda case: -case.verdict.gain):
                region, candidate, verdict = case
                if not verdict.accepted:
                    refused[region.operations] = verdict
                elif all(op.block is block for op in region.operations):
                    if keep_regions:  # of copies, for the handles of what is written are used up
                        texts = [module_text(copy.body) for copy in (take_out(region), another(candidate))]
                        verdict = replace(verdict, before=texts[0], after=texts[1])
                    splice(region, candidate, replaced)
                    accepted.append(verdict)
                    changed.append(block)
        open_ = list(dict.fromkeys(changed))
        for block in open_:
            settle(block)
    standing = [verdict for region, verdict in refused.items() if _is_worth_reporting(region, verdict)]
    return accepted, sorted(standing, key=lambda verdict: -verdict.moved_before)


class _Case(NamedTuple):
    region: Region
    candidate: RegionCopy
    verdict: Verdict


#: How often a region may grow: a normalisation behind a transpose and a merge lies four reshapes deep.
_GROWTHS = 4


class _RegionJudge:
    """Where regions are judged; of regions that are alike (the layers of a deep network) only the first is tried."""

    def __init__(self, target: Target, steps: Sequence[Rewrite]) -> None:
        self.target, self.steps = target, steps
        self.known: dict[Hashable, tuple[RegionCopy, Verdict]] = {}

    def wider(self, block: Block, cases: Sequence[_Case]) -> list[_Case]:
        """What regions grow to, where that gains more than all regions that it lies over.

        A region grows while something big moves in it, whatever was tried so far.
        """
        open_ = [case for case in cases if case.verdict.unsettled]
        places = {op: place for place, op in enumerate(block.operations)} if open_ else {}
        home = {op: case for case in cases for op in case.region.operations}
        found: dict[tuple[Node, ...], _Case] = {}
        for case in open_:
            best, region = case, grown(case.region, places)
            for _ in range(_GROWTHS):
                if region is None or not best.verdict.unsettled:
                    break
                wide = found.get(region.operations) or _Case(region, *self.judged(region))
                rivals = {home[op] for op in region.operations if op in home}
                gain = sum(rival.verdict.gain for rival in rivals if rival.verdict.accepted)
                if wide.verdict.accepted and wide.verdict.gain > gain:
                    found[region.operations] = best = wide
                region = grown(region, places)
        return list(found.values())

    def judged(self, region: Region) -> tuple[RegionCopy, Verdict]:
        """The candidate that may take the region's place, and whether it does."""
        if region.key is not None and region.key in self.known:
            candidate, verdict = self.known[region.key]
            return candidate, replace(verdict, source=source_of(region.operations))
        candidate, verdict = _try(region, self.target, self.steps)
        if region.key is not None:
            self.known[region.key] = candidate, verdict
        return candidate, verdict


def _is_worth_reporting(region: tuple[Node, ...], verdict: Verdict) -> bool:
    """Still there, and something moves in it or could be rewritten, by more than tidying up."""
    fired = verdict.name not in ("", Canonicalize.name)
    return all(op.block is not None for op in region) and (fired or verdict.moved_before > 0)


def _try(region: Region, target: Target, steps: Sequence[Rewrite]) -> tuple[RegionCopy, Verdict]:
    """The best candidate of several: with all steps, and without each of those that a region may be better without.

    A transpose with several users that sinks is there several times, and a reshape that sinks below a tree meets the
    tree's other reshapes only if all of them can follow: so either may have to stay.
    """
    best = everything = _judged(region, target, steps)
    for kind in (TransposeOfElementwise, ReshapeOfElementwise, MoveAboveElementwise, ReduceOfSplits):
        if best[1].unsettled and everything[1].changes.get(kind.name):
            way = _judged(region, target, [step for step in steps if not isinstance(step, kind)])
            if way[1].accepted and (not best[1].accepted or way[1].gain > best[1].gain):
                best = way
    return best


def _judged(region: Region, target: Target, steps: Sequence[Rewrite]) -> tuple[RegionCopy, Verdict]:
    """Rewrite a copy of the region and judge it.

    As written, a region may compute the same thing twice. Computing it once is no merit of the rewrites, so both sides
    are compared without repetitions.
    """
    candidate = take_out(region)
    body = candidate.body
    written = cost(body, target)
    CommonSubexpressions().apply(body)
    before = cost(body, target)
    counts = fixpoint(body, steps)
    after = cost(body, target)
    fired = [name for name in _MAIN if counts[name]] or [Canonicalize.name] * bool(counts[Canonicalize.name])
    reason = _refusal(body, target, fired, before, after)
    reason = reason or _normalised(region, candidate, target, before, after)
    if reason and before.counts:
        reason = _bits_forbid(region, target, steps, before) or reason
    verdict = Verdict(
        accepted=not reason,
        name=" + ".join(fired),
        region=_describe(region),
        source=source_of(region.operations),
        moved_before=written.moved,
        moved_after=after.moved,
        charged_before=written.charged,
        charged_after=after.charged,
        reason=reason or f"{_change(written, after)} on {target.name}",
        changes=dict(counts),
        rule=fired[0] if fired else "",
        factor=round(written.total / max(after.total + after.added_to(before), 1), 3),
        added=after.added_to(before),
    )
    return candidate, verdict


def _refusal(body: Block, target: Target, fired: list[str], before: Cost, after: Cost) -> str:
    """Why a candidate is dropped, "" if it is not."""
    if not before.counts:
        small = f", but for {bytes_text(before.moved)} of unit dims of small arrays" if before.moved else ""
        return f"free already: on {target.name} its reshapes are bitcasts{small}, nothing big moves"
    if not fired:
        return "no reduction or elementwise operation in it lets a reshape or a transpose pass"
    if not before.falls_to(after):
        return f"would cost no less on {target.name}: {_change(before, after)}{_what_remains(body, target)}"
    return ""


#: What a pipeline may be told not to do, and what is said where that alone stands in the way.
_FORBIDDEN = {
    "allow_reassociation": "the bits must stay, so no floating sum may be taken apart; if one may (without "
    "--bit-exact, allow_reassociation=true)",
    "allow_products": "a product of reals taken apart may become infinite or no number on the way; if that does no "
    "harm (with --products, allow_products=true)",
}


def _rounding(op: Node) -> list[str]:
    """What a reduction does that would not give the same bits in another order."""
    monoids = op.attributes.get("monoids", (op.attributes.get("monoid"),)) if op.name == "reduce" else ()
    return [monoid for monoid, value in zip(monoids, op.operands) if monoid and not is_exact(monoid, value.dtype)]


def _bits_forbid(region: Region, target: Target, steps: Sequence[Rewrite], before: Cost) -> str:
    """Why a candidate that must keep its bits or its products is dropped, where it would pay if it need not."""
    if target.compiler_normalizes:
        return ""
    monoids = {monoid for op in region.operations for monoid in _rounding(op)}
    for option, why in _FORBIDDEN.items():
        concerned = monoids & {"multiply"} if option == "allow_products" else monoids - {"multiply"}
        strict = [step for step in steps if not getattr(step, option, True)]
        if not strict or not concerned:
            continue
        body = take_out(region).body
        CommonSubexpressions().apply(body)
        fixpoint(body, [replace(s, **{option: True}) if s in strict else s for s in steps])
        after = cost(body, target)
        if before.falls_to(after):
            return f"{why} {_change(before, after)} on {target.name}"
    return ""


def _normalised(region: Region, candidate: RegionCopy, target: Target, before: Cost, after: Cost) -> str:
    """Why a candidate is dropped where the compiler does the same: in its normal form both sides cost alike."""
    if not target.compiler_normalizes:
        return ""
    sides = [take_out(region), another(candidate)]
    for side in sides:
        fixpoint(side.body, [step for step in pipeline(allow_products=True) if isinstance(step, Rewrite)])
    ours, theirs = (cost(side.body, target) for side in sides)
    if ours.falls_to(theirs):
        return ""
    return (
        f"{compiler_of(target)} performs these rewrites itself: {_change(before, after)} as written on {target.name}, "
        f"but with both programs in normal form {bytes_text(theirs.moved)} instead of {bytes_text(ours.moved)}"
    )


def compiler_of(target: Target) -> str:
    """How to name the compiler of a target that normalises by itself."""
    return "XLA:TPU" if target.family == "tpu" else f"the compiler of {target.name}"


def _change(before: Cost, after: Cost) -> str:
    if before.moved or after.moved or not before.charged:
        moves = f"reshapes and transposes move {bytes_text(after.moved)} instead of {bytes_text(before.moved)}"
        instead = f"{bytes_text(after.padded)} of padding instead of {bytes_text(before.padded)}"
        padding = f", other operations write {instead}"
        strides = f", sums that leave the innermost dim count {bytes_text(after.strided - before.strided)}"
        widened = f", conversions add {bytes_text(after.converted - before.converted)}"
        return (
            moves
            + padding * (before.padded != after.padded)
            + strides * (after.strided > before.strided)
            + widened * (after.converted > before.converted)
        )
    return f"reductions over short runs are charged {bytes_text(after.charged)} instead of {bytes_text(before.charged)}"


def _what_remains(body: Block, target: Target) -> str:
    """The reshape that costs most in a candidate, and who needs it."""
    left = max(body.operations, key=lambda op: bytes_moved(op, target))
    if not bytes_moved(left, target):
        return ""
    users = sorted({"the rest of the program" if user.name == "return" else user.name for user in left.result.users})
    kinds = f"{left.name} {left.operands[0].xla} -> {left.result.xla}"
    return f"; {kinds} is still needed by {', '.join(users)}"


def _describe(region: Region) -> str:
    named = ("elementwise" if is_elementwise(op) else op.name.partition("_")[0] for op in region.operations)
    kinds: Counter[str] = Counter(named)
    seed = next(op.result for op in region.operations if op.result.shape == region.shape)
    return f"{seed.xla}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def source_of(operations: Iterable[Node]) -> Source | None:
    """The first position of the operations in the user's own files."""
    for op in sorted(operations, key=lambda op: op.position):
        if op.lender.handle is None:
            continue
        for file, line, column in _PLACE.findall(str(op.lender.handle.location)):
            if file != "-" and not is_library(file):
                return Source(file, int(line), int(column))
    return None


# Reshapes across the bounds of loops and conditionals: carried arrays change their shapes before the gate looks.
#
# A region never leaves its block, but the residuals of a gradient do: they are stacked by one loop and read by another.
# So the shapes of what loops and conditionals hand on are changed first, everywhere, which moves reshapes into the
# bodies where the gate's regions take them up. Whether that pays is decided for the whole program, with loops weighted.

#: How often a loop is assumed to run, where constants do not say, when bytes inside and outside are compared.
_TRIPS = 8
_ROUNDS = 16


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
    """Bytes moved, charged and padded under ``target``, those in loops counted several times."""
    total = 0
    open_ = [(body, 1) for body in bodies]
    while open_:
        block, times = open_.pop()
        own = cost(block, target)
        total += times * own.total
        for op in block.operations:
            open_ += [(inner, times * (op.trips or _TRIPS if op.name == "while" else 1)) for inner in op.blocks]
    return total

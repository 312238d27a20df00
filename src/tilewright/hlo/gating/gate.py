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
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field, replace

from tilewright.hlo.gating.moves import Cost, bytes_moved, cost, type_text
from tilewright.hlo.gating.regions import (
    Candidate,
    Outline,
    Region,
    another,
    collect,
    outline,
    settle,
    splice,
    take_out,
)
from tilewright.hlo.graphs.graph import Block, Node, walk
from tilewright.hlo.program import Source
from tilewright.hlo.reading.sources import is_library
from tilewright.hlo.rewrites.common_subexpressions import CommonSubexpressions
from tilewright.hlo.rewrites.pipeline import fixpoint, pipeline
from tilewright.hlo.rewrites.transpose_of_elementwise import TransposeOfElementwise
from tilewright.hlo.rewriting.base import Rewrite, is_elementwise
from tilewright.render import bytes_text
from tilewright.targets import Target

#: The rewrites that make a candidate worth its while; the others only tidy up.
_MAIN = (
    "transpose-of-elementwise", "reduce-of-transpose", "reduce-of-reshape", "reduces-of-reshapes",
    "reshape-of-elementwise", "reshape-of-broadcast",
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
    ``reason``           why, in a sentence
    ``changes``          how often each rewrite of the pipeline fired on the candidate
    ===================  ===========================================================================================
    """

    accepted: bool
    name: str
    region: str
    source: Source | None
    moved_before: int
    moved_after: int
    charged_before: int
    charged_after: int
    reason: str
    changes: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def gain(self) -> int:
        """Modelled bytes saved."""
        return self.moved_before + self.charged_before - self.moved_after - self.charged_after

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {**asdict(self), "source": str(self.source) if self.source else None}


def gate(bodies: Sequence[Block], target: Target, steps: Sequence[Rewrite]) -> tuple[list[Verdict], list[Verdict]]:
    """Rewrite every region of the bodies that pays on ``target``; (accepted, refused) verdicts.

    Rounds go on until no region is accepted: an accepted one may open the way for its neighbour.
    """
    bench = _Bench(target, steps)
    accepted: list[Verdict] = []
    refused: dict[tuple[Node, ...], Verdict] = {}
    open_ = [block for body in bodies for block in walk(body)]
    while open_:
        changed = []
        for block in open_:
            fresh = [region for region in collect(block) if _is_new(region) and region.operations not in refused]
            cases = [(region, *bench.judge(region)) for region in fresh]
            for region, seen, candidate, verdict in sorted(cases, key=lambda case: -case[3].gain):
                if not verdict.accepted:
                    refused[region.operations] = verdict
                elif all(op.block is block for op in region.operations):
                    splice(region, seen, candidate)
                    accepted.append(verdict)
                    changed.append(block)
        open_ = list(dict.fromkeys(changed))
        for block in open_:
            settle(block)
    standing = [verdict for region, verdict in refused.items() if _is_worth_reporting(region, verdict)]
    return accepted, sorted(standing, key=lambda verdict: -verdict.moved_before)


class _Bench:
    """Where regions are judged; of regions that are alike (the layers of a deep network) only the first is tried."""

    def __init__(self, target: Target, steps: Sequence[Rewrite]) -> None:
        self.target, self.steps = target, steps
        self.known: dict[Hashable, tuple[Candidate, Verdict]] = {}

    def judge(self, region: Region) -> tuple[Outline, Candidate, Verdict]:
        """What the region looks like, the candidate that may take its place, and whether it does."""
        seen = outline(region)
        if seen.key is not None and seen.key in self.known:
            candidate, verdict = self.known[seen.key]
            return seen, candidate, replace(verdict, source=_source(region))
        candidate, verdict = _try(region, seen, self.target, self.steps)
        if seen.key is not None:
            self.known[seen.key] = candidate, verdict
        return seen, candidate, verdict


def _is_new(region: Region) -> bool:
    """Not what a candidate left behind: that is in normal form already."""
    return any(op.handle is not None for op in region.operations)


def _is_worth_reporting(region: tuple[Node, ...], verdict: Verdict) -> bool:
    """Still there, and something moves in it or could be rewritten."""
    return all(op.block is not None for op in region) and bool(verdict.name or verdict.moved_before)


def _try(region: Region, seen: Outline, target: Target, steps: Sequence[Rewrite]) -> tuple[Candidate, Verdict]:
    """The better candidate of two: a transpose with several users that sinks is there several times, so it may stay."""
    sunk = _judged(region, seen, target, steps)
    if sunk[1].accepted or not sunk[1].changes.get(TransposeOfElementwise.name):
        return sunk
    left = _judged(region, seen, target, [step for step in steps if not isinstance(step, TransposeOfElementwise)])
    return left if left[1].accepted else sunk


def _judged(region: Region, seen: Outline, target: Target, steps: Sequence[Rewrite]) -> tuple[Candidate, Verdict]:
    """Rewrite a copy of the region and judge it.

    As written, a region may compute the same thing twice. Computing it once is no merit of the rewrites, so both sides
    are compared without repetitions.
    """
    candidate = take_out(region, seen)
    body = candidate.body
    written = cost(body, target)
    CommonSubexpressions().apply(body)
    before = cost(body, target)
    counts = fixpoint(body, steps)
    after = cost(body, target)
    fired = [name for name in _MAIN if counts[name]]
    reason = _refusal(body, target, fired, before, after)
    reason = reason or _normalised(region, seen, candidate, target, before, after)
    if reason and before.regrouped + before.charged:
        reason = _bits_forbid(region, seen, target, steps, before) or reason
    verdict = Verdict(
        accepted=not reason,
        name=" + ".join(fired),
        region=_describe(region),
        source=_source(region),
        moved_before=written.moved,
        moved_after=after.moved,
        charged_before=written.charged,
        charged_after=after.charged,
        reason=reason or f"{_change(written, after)} on {target.name}",
        changes=dict(counts),
    )
    return candidate, verdict


def _refusal(body: Block, target: Target, fired: list[str], before: Cost, after: Cost) -> str:
    """Why a candidate is dropped, "" if it is not."""
    if not before.regrouped and not before.charged:
        return f"free already: on {target.name} its reshapes are bitcasts, nothing big moves"
    if not fired:
        return "no reduction or elementwise operation in it lets a reshape pass"
    if not before.falls_to(after):
        return f"would cost no less on {target.name}: {_change(before, after)}{_what_remains(body, target)}"
    return ""


def _bits_forbid(region: Region, seen: Outline, target: Target, steps: Sequence[Rewrite], before: Cost) -> str:
    """Why a candidate that must keep the bits is dropped, where it would pay if it need not; "" elsewhere."""
    strict = [step for step in steps if not getattr(step, "allow_reassociation", True)]
    if not strict or target.compiler_normalizes:
        return ""
    body = take_out(region, seen).body
    CommonSubexpressions().apply(body)
    fixpoint(body, [replace(s, allow_reassociation=True) if s in strict else s for s in steps])  # type: ignore[call-arg]
    after = cost(body, target)
    if not before.falls_to(after):
        return ""
    return (
        "the bits must stay, so no floating sum or product may be taken apart; if one may (without --bit-exact, "
        f"allow_reassociation=true) {_change(before, after)} on {target.name}"
    )


def _normalised(region: Region, seen: Outline, candidate: Candidate, target: Target, before: Cost, after: Cost) -> str:
    """Why a candidate is dropped where the compiler does the same: in its normal form both sides cost alike."""
    if not target.compiler_normalizes:
        return ""
    sides = [take_out(region, seen), another(candidate)]
    for side in sides:
        fixpoint(side.body, [step for step in pipeline() if isinstance(step, Rewrite)])
    ours, theirs = (cost(side.body, target) for side in sides)
    if ours.falls_to(theirs):
        return ""
    return (
        f"{compiler_of(target)} performs P1 and P2 itself: {_change(before, after)} as written on {target.name}, "
        f"but with both programs in normal form {bytes_text(theirs.moved)} instead of {bytes_text(ours.moved)}"
    )


def compiler_of(target: Target) -> str:
    """How to name the compiler of a target that normalises by itself."""
    return "XLA:TPU" if target.family == "tpu" else f"the compiler of {target.name}"


def _change(before: Cost, after: Cost) -> str:
    if before.moved or after.moved or not before.charged:
        return f"reshapes and transposes move {bytes_text(after.moved)} instead of {bytes_text(before.moved)}"
    return f"reductions over short runs are charged {bytes_text(after.charged)} instead of {bytes_text(before.charged)}"


def _what_remains(body: Block, target: Target) -> str:
    """The reshape that costs most in a candidate, and who needs it."""
    left = max(body.operations, key=lambda op: bytes_moved(op, target))
    if not bytes_moved(left, target):
        return ""
    users = sorted({"the rest of the program" if user.name == "return" else user.name for user in left.result.users})
    kinds = f"{left.name} {type_text(left.operands[0])} -> {type_text(left.result)}"
    return f"; {kinds} is still needed by {', '.join(users)}"


def _describe(region: Region) -> str:
    kinds: Counter[str] = Counter(
        "elementwise" if is_elementwise(op) else op.name.partition("_")[0] for op in region.operations
    )
    seed = next(op.result for op in region.operations if op.result.shape == region.shape)
    return f"{type_text(seed)}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))


def _source(region: Region) -> Source | None:
    """The first position in the user's own files."""
    for op in sorted(region.operations, key=lambda op: op.position):
        if op.lender.handle is None:
            continue
        for file, line, column in _PLACE.findall(str(op.lender.handle.location)):
            if file != "-" and not is_library(file):
                return Source(file, int(line), int(column))
    return None

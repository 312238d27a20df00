"""Rules act: matches are found, priced, chosen where they overlap, and put in place.

A match is tried beside the program: its values are built in a block of their own, what would die is collected, both are
priced, and the trial is taken back. Then the choice: the largest gain first, and a look back, whether one that was
passed over is worth more than those that stand in its way. What is chosen is built once more, in place. Operations that
a rule has made are never touched by another, so each round ends; regions that are alike are priced once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.hlo.gating.gate import Verdict, copied_block, settle, source_of, take_out
from tilewright.hlo.gating.regions import Region, layout_of, leaves_of
from tilewright.hlo.graphs.graph import Block, Node, Value, inputs_of, replace_value, walk
from tilewright.hlo.graphs.mlir import module_text
from tilewright.hlo.reading.mlir_reader import read_stablehlo
from tilewright.hlo.rewriting.maker import PURE, Maker, made_by
from tilewright.hlo.rules.catalogue import factor_on
from tilewright.hlo.rules.matching import number_of
from tilewright.hlo.rules.rule import PHASES, Rule
from tilewright.hlo.timing.estimate import estimate
from tilewright.render import bytes_text
from tilewright.targets import Target

# What a region costs before and after a rule: modelled time of both (../timing) on a TPU, unpriced where an operation
# has none; the factor measured at the rule's example on ``cpu`` and ``gpu``; elsewhere padded bytes of all arrays.

#: A gain below this is taken for noise of the model.
LEAST = 1.02


@dataclass(frozen=True)
class Gain:
    """How many times as fast (or as small) a region becomes.

    ``kind``: ``predicted`` (the time model), ``confirmed`` (the compiler or a measurement, at the example's shapes),
    ``counted`` (padded bytes), ``unpriced``, or ``disputed`` (the compiler has a gain at the example's shapes, and the
    time model a loss at these). ``seconds`` is the modelled time saved, 0 where there is no model.
    """

    factor: float
    kind: str
    note: str
    seconds: float = 0.0


MEASURED = ("cpu", "gpu")
"""Targets whose rules are judged by measurement alone."""


def price(rule: str, before: Block, after: Block, target: Target) -> Gain:
    """What a rule gains on a region: blocks that hold what it replaces, and what it puts in its place."""
    known = factor_on(rule, target.name)
    said = f"{known} at the example's shapes"
    if target.name in MEASURED:
        nobody = Gain(1.0, "unpriced", f"nobody has measured it on {target.name}")
        return Gain(known.factor, "confirmed", said) if known is not None else nobody
    if target.family != "tpu":
        sizes = [padded_bytes(block, target) for block in (before, after)]
        note = f"its arrays take {bytes_text(sizes[1])} instead of {bytes_text(sizes[0])}"
        return Gain(sizes[0] / max(sizes[1], 1), "counted", note)
    gain = _modelled(before, after, target)
    if known is None:
        return gain
    if gain.kind == "unpriced":
        return Gain(known.factor, "confirmed", f"{said}; {gain.note}")
    if gain.factor >= LEAST:
        return replace(gain, note=f"{gain.note}; at the example's shapes {known}")
    if gain.factor * LEAST < 1:
        return Gain(known.factor, "disputed", f"{said}, but the time model has {gain.factor:.2g} times here")
    return Gain(known.factor, "confirmed", f"{said}; the time model sees no difference here")


def _modelled(before: Block, after: Block, target: Target) -> Gain:
    try:
        programs = (read_stablehlo(module_text(block)) for block in (before, after))
        steps = [estimate(replace(each, text=""), target) for each in programs]  # as they are, in no normal form
    except TilewrightError as error:
        return Gain(1.0, "unpriced", f"the time model has no price for it ({error})")
    seconds = [step.device_seconds for step in steps]
    if min(step.priced for step in steps) < 1 or min(seconds) <= 0:
        return Gain(1.0, "unpriced", "the time model has no price for some of its operations")
    factor = seconds[0] / seconds[1]
    note = f"predicted {seconds[1] * 1e6:.3g} us instead of {seconds[0] * 1e6:.3g} us"
    return Gain(factor, "predicted", note, seconds[0] - seconds[1])


def padded_bytes(block: Block, target: Target) -> int:
    """Padded bytes of all that a block's operations make, constants and counting left out."""
    made = (value for op in block.operations[:-1] if op.name not in ("constant", "iota") for value in op.results)
    return sum(layout.size_bytes for value in made if (layout := layout_of(value, target)) is not None)


# Matches are found, priced, chosen and put in place.

_ROUNDS = 8
#: A match that is no finding: nothing is gained, so nothing is said.
_NO_GAIN = "nothing to gain"


@dataclass(frozen=True, eq=False)
class Candidate:
    """One place where a rule could act, which ends in ``root``.

    ``dead`` is what nobody needs any more afterwards, ``refusal`` why it must not act (or ""), ``key`` what only
    regions of equal meaning share. ``unsure``: values that must be finite are not known to be.
    """

    rule: Rule[Any]
    root: Node
    dead: frozenset[Node]
    gain: Gain
    refusal: str
    key: Hashable | None
    unsure: bool = False

    @property
    def worth(self) -> float:
        """What the choice compares: modelled seconds saved, else the factor."""
        return self.gain.seconds if self.gain.kind == "predicted" else 1e-9 * self.gain.factor


@dataclass
class Acting:
    """One run of the rules over a program, on one target.

    ``passed_over`` holds what a judge has turned down: pairs of a rule's name and a region's key. ``judged``: one will
    be asked, so what is disputed may be tried.
    """

    target: Target
    rules: Sequence[Rule[Any]]
    assume_finite: bool = False
    allow_reassociation: bool = True
    passed_over: frozenset[tuple[str, Hashable]] = frozenset()
    made: set[Node] = field(default_factory=set)
    prices: dict[tuple[str, Hashable], tuple[Gain, str]] = field(default_factory=dict)
    accepted: list[Verdict] = field(default_factory=list)
    groups: dict[tuple[str, Hashable], int] = field(default_factory=dict)
    refused: dict[tuple[str, Node], Verdict] = field(default_factory=dict)
    acted: list[Candidate] = field(default_factory=list)
    left: list[Candidate] = field(default_factory=list)
    keep_regions: bool = False
    judged: bool = False
    texts: dict[tuple[str, Hashable], tuple[str, str]] = field(default_factory=dict)

    def run(self, bodies: Sequence[Block]) -> None:
        """Let every rule act where it pays; the verdicts are collected."""
        for phase in PHASES:
            rules = [rule for rule in self.rules if rule.phase == phase]
            open_ = [block for body in bodies for block in walk(body)] if rules else []
            for _ in range(_ROUNDS):
                open_ = [block for block in open_ if self._sweep(block, rules)]
                if not open_:
                    break

    def anew(self, passed_over: frozenset[tuple[str, Hashable]] | None = None) -> Acting:
        """The same for another reading of the program, perhaps with other groups passed over; prices are kept."""
        again = replace(self, made=set(), accepted=[], groups={}, refused={}, acted=[], left=[])
        return again if passed_over is None else replace(again, passed_over=passed_over)

    @property
    def fired(self) -> list[str]:
        """Names of the rules that acted, in order."""
        return list(dict.fromkeys(verdict.rule for verdict in self.accepted))

    def refusals(self) -> list[Verdict]:
        """Where a rule matched what is still there, and was left out."""
        return [verdict for (_, root), verdict in self.refused.items() if root.block is not None]

    def _sweep(self, block: Block, rules: Sequence[Rule[Any]]) -> bool:
        """Act once in a block; whether anything changed."""
        cases = self._candidates(block, rules)
        for case in cases:
            if case.refusal:
                self.refused[case.rule.name, case.root] = self._verdict(case, False)
                self.left.append(case)
        changed = False
        for case in choose(case for case in cases if not case.refusal):
            changed |= self._put(block, case)
        if changed:
            block.changed = True
            settle(block)  # what two cases shared is in neither's list of what dies
        return changed

    def _candidates(self, block: Block, rules: Sequence[Rule[Any]]) -> list[Candidate]:
        by_root: dict[str, list[Rule[Any]]] = {}
        for rule in rules:
            for name in rule.roots:
                by_root.setdefault(name, []).append(rule)
        cases, places = list[Candidate | None](), dict[Node, int]()
        for op in block.operations:
            for rule in by_root.get(op.name, ()):
                if op in self.made or (rule.name, op) in self.refused:
                    continue
                if (found := rule.match(op)) is not None:
                    places = places or {op: place for place, op in enumerate(block.operations)}
                    cases.append(self._try(block, rule, op, found, places))
        return [case for case in cases if case is not None]

    def _try(self, block: Block, rule: Rule[Any], root: Node, found: Any, places: dict[Node, int]) -> Candidate | None:
        """Build beside the program, see what would die, price both, take the trial back."""
        if rule.build is None:
            return self._advice(rule, root, found)
        trial = Block("trial")
        value = rule.made(root, found, Maker(trial, root))
        dead = dying(root, value) if value is not None else frozenset()
        if value is None or dead & self.made:
            _take_back(trial)
            return None
        operations = tuple(sorted(dead, key=places.__getitem__))
        region = Region(block, root.result.sizes, operations, tuple(leaves_of(set(dead), places)))
        key = (rule.name, region.key) if region.key is not None else None
        unsure = bool(rule.unknown(found))
        if key is not None and key in self.prices:
            gain, refusal = self.prices[key]
        else:
            before, after = take_out(region).body, _copy_of(trial, value)
            gain = price(rule.name, before, after, self.target)
            refusal = self._refusal(rule, gain, rule.pays(found), unsure)
            if key is not None:
                self.prices[key] = gain, refusal
                if self.keep_regions and not refusal:  # of fresh copies, for handles of what was written are used up
                    self.texts[key] = module_text(take_out(region).body), module_text(_copy_of(trial, value))
        _take_back(trial)
        if refusal == _NO_GAIN:
            return None
        if key in self.passed_over:
            refusal = "the judge found it no faster here"
        return Candidate(rule, root, dead, gain, refusal, region.key, unsure)

    def _advice(self, rule: Rule[Any], root: Node, found: Any) -> Candidate | None:
        """What only the user can change: there is nothing to build and nothing to price."""
        known = factor_on(rule.name, self.target.name)
        gain = Gain(1.0, "unpriced", f"nobody has looked at it on {self.target.name}")
        if known is not None:
            gain = Gain(known.factor, "confirmed", f"{known} at the example's shapes")
        if root in self.made or (known is not None and known.factor < LEAST) or not rule.pays(found):
            return None
        return Candidate(rule, root, frozenset({root}), gain, rule.change, None)

    def _refusal(self, rule: Rule[Any], gain: Gain, pays: bool, unsure: bool) -> str:
        if not self._gains(rule, gain, pays):
            return _NO_GAIN
        if gain.kind == "disputed" and not self.judged:
            return f"{gain.note}: only a compiler can tell, with --judge tpu:{self.target.name.removeprefix('tpu-')}"
        if unsure and not self.assume_finite:
            return "a NaN or an infinity would spread to its neighbours: --assume-finite allows it"
        if not rule.exact and not self.allow_reassociation:
            return "it rounds otherwise, and the bits must stay"
        return ""

    def _gains(self, rule: Rule[Any], gain: Gain, pays: bool) -> bool:
        """Whether the rule pays here: what was confirmed for the chip decides, then the shapes, then the price."""
        known = factor_on(rule.name, self.target.name)
        if known is not None and known.factor < LEAST:
            return False
        if rule.families and self.target.family not in rule.families:
            return False
        if self.target.family == "tpu":
            return pays and (known is not None or gain.kind == "unpriced" or gain.factor >= LEAST)
        if self.target.name in MEASURED:  # measured at one size: shapes of that kind only, and more than noise
            return gain.factor >= 1.1 and pays
        return gain.factor >= LEAST

    def _put(self, block: Block, case: Candidate) -> bool:
        """Build a chosen case in place; False where what was put in before it has changed its ground."""
        if any(op.block is not block for op in case.dead):
            return False
        rule, root, count = case.rule, case.root, len(block.operations)
        found = rule.match(root)
        value = rule.made(root, found, Maker(block, root)) if found is not None else None
        if value is None:
            for op in reversed(block.operations[count:]):
                op.drop()
            del block.operations[count:]
            return False
        self.made.update(block.operations[count:])
        verdict = self._verdict(case, True)
        replace_value(root.result, value)
        for op in case.dead:
            op.drop()
        last = next(op for op in reversed(block.operations[:count]) if op.block is block)
        block.operations = [op for op in block.operations if op is not last] + [last]
        self.accepted.append(verdict)
        self.acted.append(case)
        if case.key is not None:
            self.groups[verdict.rule, case.key] = self.groups.get((verdict.rule, case.key), 0) + 1
        return True

    def _verdict(self, case: Candidate, accepted: bool) -> Verdict:
        rule, root = case.rule, case.root
        before, after = self.texts.get((rule.name, case.key), ("", "")) if accepted else ("", "")
        return Verdict(
            accepted=accepted,
            name=rule.name,
            region=f"{root.result.xla}: {', '.join(sorted({op.name for op in case.dead}))}",
            source=source_of(case.dead) if root.block is not None else None,
            reason=case.refusal or f"{rule.finding}; {case.gain.note}",
            changes={rule.name: 1},
            rule=rule.name,
            factor=round(case.gain.factor, 3),
            kind=case.gain.kind,
            before=before,
            after=after,
        )


def choose(cases: Iterable[Candidate]) -> list[Candidate]:
    """Of cases that share operations the best: by worth, then a look back at what was passed over.

    Each swap raises the total worth, so the look back ends.
    """
    taken: dict[Node, Candidate] = {}
    left = []
    for case in sorted(cases, key=lambda case: -case.worth):
        if case.dead.isdisjoint(taken):
            taken.update(dict.fromkeys(case.dead, case))
        else:
            left.append(case)
    for case in left:
        rivals = {taken[op] for op in case.dead if op in taken}
        if case.worth > sum(rival.worth for rival in rivals):
            for rival in rivals:
                for op in rival.dead:
                    del taken[op]
            taken.update(dict.fromkeys(case.dead, case))
    return sorted(dict.fromkeys(taken.values()), key=lambda case: case.root.position)


def dying(root: Node, new: Value) -> frozenset[Node]:
    """What nobody needs any more once ``new`` takes the place of the result of ``root``."""
    dead, open_ = {root}, [root]
    while open_:
        for value in open_.pop().operands:
            op = value.operation
            if op is None or op in dead or op is new.operation or op.block is not root.block or op.name not in PURE:
                continue
            if all(user in dead for result in op.results for user in result.users):
                dead.add(op)
                open_.append(op)
    return frozenset(dead)


def _take_back(trial: Block) -> None:
    for op in reversed(trial.operations):
        op.drop()


def _copy_of(trial: Block, output: Value) -> Block:
    """The trial as a block with its own arguments, to be priced; constants it shares with the program are copied in."""
    own = output.operation is not None and output.operation.block is trial
    outer = dict.fromkeys([*inputs_of(trial.operations), *([] if own else [output])])
    constants = [v.operation for v in outer if made_by(v, "constant") and v.operation and number_of(v) is not None]
    inputs = [value for value in outer if value.operation not in constants]
    return copied_block(inputs, [*constants, *trial.operations], [output])

"""Rules act: matches are found, priced, chosen where they overlap, and put in place.

A match is tried beside the program: its values are built in a block of their own, what would die is collected, both are
priced, and the trial is taken back. Then the choice: the largest gain first, and a look back, whether one that was
passed over is worth more than those that stand in its way. What is chosen is built once more, in place. Operations that
a rule has made are never touched by another, so each round ends; regions that are alike are priced once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilewright.hlo.gating.gate import Verdict, copied, outline, source_of, take_out
from tilewright.hlo.gating.moves import type_text
from tilewright.hlo.gating.pricing import LEAST, Gain, measured_kind, price
from tilewright.hlo.gating.regions import Region, leaves_of
from tilewright.hlo.graphs.graph import Block, Node, Value, in_order, replace_value, walk
from tilewright.hlo.graphs.mlir import module_text
from tilewright.hlo.rewrites.dead_code import DeadCode
from tilewright.hlo.rewriting.maker import PURE, Maker
from tilewright.hlo.rules.confirmed import factor_on
from tilewright.hlo.rules.matching import Match, number_of
from tilewright.hlo.rules.rule import PHASES, Rule
from tilewright.targets import Target

_ROUNDS = 8
#: A match that is no finding: nothing is gained, so nothing is said.
_NO_GAIN = "nothing to gain"


@dataclass(frozen=True, eq=False)
class Candidate:
    """One place where a rule could act: what dies with it, what it gains, why it must not (or "").

    ``unknown`` names the values of its pattern that are not known to be finite, and would have to be.
    """

    rule: Rule
    root: Node
    dead: frozenset[Node]
    gain: Gain
    refusal: str
    key: Hashable | None
    unknown: tuple[str, ...] = ()

    @property
    def worth(self) -> float:
        """What the choice compares: modelled seconds saved, else the factor."""
        return self.gain.seconds if self.gain.kind == "predicted" else 1e-9 * self.gain.factor


@dataclass
class Acting:
    """One run of the rules over a program, on one target.

    ``passed_over`` holds what a judge has turned down: pairs of a rule's name and a region's key.
    """

    target: Target
    rules: Sequence[Rule]
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

    def without(self, passed_over: frozenset[tuple[str, Hashable]]) -> Acting:
        """The same once more, with some groups passed over."""
        return replace(self.anew(), passed_over=passed_over)

    @property
    def names(self) -> frozenset[str]:
        """The names of its rules."""
        return frozenset(rule.name for rule in self.rules)

    def anew(self) -> Acting:
        """The same for another reading of the program; prices are kept."""
        return replace(self, made=set(), accepted=[], groups={}, refused={}, acted=[], left=[])

    @property
    def fired(self) -> list[str]:
        """Names of the rules that acted, in order."""
        return list(dict.fromkeys(verdict.rule for verdict in self.accepted))

    def refusals(self) -> list[Verdict]:
        """Where a rule matched what is still there, and was left out."""
        return [verdict for (_, root), verdict in self.refused.items() if root.block is not None]

    def _sweep(self, block: Block, rules: Sequence[Rule]) -> bool:
        """Act once in a block; whether anything changed."""
        cases = self._candidates(block, rules)
        for case in cases:
            if case.refusal:
                self.refused[case.rule.name, case.root] = self._verdict(case, False)
                self.left.append(case)
        changed = False
        for case in choose(_leading([case for case in cases if not case.refusal])):
            changed |= self._put(block, case)
        if changed:
            *inner, last = [op for op in block.operations if op.block is block]
            block.operations = [*in_order(inner), last]
            block.changed = True
            DeadCode().apply(block)  # what two cases shared is in neither's list of what dies
        return changed

    def _candidates(self, block: Block, rules: Sequence[Rule]) -> list[Candidate]:
        by_root: dict[str, list[Rule]] = {}
        for rule in rules:
            for name in rule.roots:
                by_root.setdefault(name, []).append(rule)
        cases = []
        places: dict[Node, int] = {}
        for op in block.operations:
            for rule in by_root.get(op.name, ()):
                if op in self.made or (rule.name, op) in self.refused:
                    continue
                match = rule.match(op)
                if match is not None and rule.together(match, op)[0] is op:
                    places = places or {op: place for place, op in enumerate(block.operations)}
                    case = self._try(block, rule, op, match, places)
                    if case is not None:
                        cases.append(case)
        return cases

    def _try(self, block: Block, rule: Rule, root: Node, match: Match, places: dict[Node, int]) -> Candidate | None:
        """Build beside the program, see what would die, price both, take the trial back."""
        if rule.build is None:
            return self._advice(rule, root, match)
        trial = Block("trial")
        values = rule.values(match, root, Maker(trial, root))
        if values is None:
            _take_back(trial)
            return None
        dead = dying(rule.together(match, root), values)
        if dead & self.made:
            _take_back(trial)
            return None
        operations = tuple(sorted(dead, key=places.__getitem__))
        region = Region(block, root.result.sizes, operations, tuple(leaves_of(set(dead), places)))
        seen = outline(region)
        key = (rule.name, seen.key) if seen.key is not None else None
        if key is not None and key in self.prices:
            gain, refusal = self.prices[key]
        else:
            gain, refusal = self._judge(rule, match, root, region, trial, values)
            if key is not None:
                self.prices[key] = gain, refusal
                if self.keep_regions and not refusal:
                    body, made = take_out(region, seen).body, _copy_of(trial, values)
                    self.texts[key] = module_text(body), module_text(made)
        _take_back(trial)
        if refusal == _NO_GAIN:
            return None
        if key in self.passed_over:
            refusal = "the judge found it no faster here"
        return Candidate(rule, root, dead, gain, refusal, seen.key, tuple(rule.unknown(match)))

    def _advice(self, rule: Rule, root: Node, match: Match) -> Candidate | None:
        """What only the user can change: there is nothing to build and nothing to price."""
        known = factor_on(rule.name, self.target.name)
        gain = Gain(1.0, "unpriced", f"nobody has looked at it on {self.target.name}")
        if known is not None:
            gain = Gain(known.factor, "confirmed", f"{known} at the example's shapes")
        concerned = frozenset(rule.together(match, root))
        if concerned & self.made or (known is not None and known.factor < LEAST) or not rule.pays(match, root):
            return None
        return Candidate(rule, root, concerned, gain, rule.change, None)

    def _judge(
        self, rule: Rule, match: Match, root: Node, region: Region, trial: Block, values: Sequence[Value]
    ) -> tuple[Gain, str]:
        unknown = [] if self.assume_finite else rule.unknown(match)
        seen = outline(region)
        before = take_out(region, seen).body
        after = _copy_of(trial, values)
        gain = price(rule.name, before, after, self.target)
        if not self._gains(rule, match, root, gain):
            return gain, _NO_GAIN
        if unknown:
            return gain, "a NaN or an infinity would spread to its neighbours: --assume-finite allows it"
        if not rule.exact and not self.allow_reassociation:
            return gain, "it rounds otherwise, and the bits must stay"
        return gain, ""

    def _gains(self, rule: Rule, match: Match, root: Node, gain: Gain) -> bool:
        """Whether the rule pays here: what was confirmed for the chip decides, then the shapes, then the price."""
        known = factor_on(rule.name, self.target.name)
        if known is not None and known.factor < LEAST:
            return False
        if rule.families and self.target.family not in rule.families:
            return False
        if self.target.family == "tpu":
            return rule.pays(match, root)
        if measured_kind(self.target):  # measured at one size: shapes of that kind only, and more than noise
            return gain.factor >= 1.1 and rule.pays(match, root)
        return gain.factor >= LEAST

    def _put(self, block: Block, case: Candidate) -> bool:
        """Build a chosen case in place; False where what was put in before it has changed its ground."""
        if any(op.block is not block for op in case.dead):
            return False
        match = case.rule.match(case.root)
        count = len(block.operations)
        replaced = case.rule.replaced(match, case.root) if match is not None else []
        values = case.rule.values(match, case.root, Maker(block, case.root)) if match is not None else None
        if values is None:
            for op in reversed(block.operations[count:]):
                op.drop()
            del block.operations[count:]
            return False
        made = block.operations[count:]
        self.made.update(made)
        verdict = self._verdict(case, True)
        for old, new in zip(replaced, values):
            replace_value(old, new)
        for op in case.dead:
            op.drop()
        last = next(op for op in reversed(block.operations[:count]) if op.block is block)
        block.operations = [op for op in block.operations if op is not last] + [last]
        self.accepted.append(verdict)
        self.acted.append(case)
        if case.key is not None:
            self.groups[case.rule.name, case.key] = self.groups.get((case.rule.name, case.key), 0) + 1
        return True

    def _verdict(self, case: Candidate, accepted: bool) -> Verdict:
        kinds = ", ".join(sorted({op.name for op in case.dead}))
        region = Region(case.root.block, case.root.result.sizes, tuple(case.dead), ()) if case.root.block else None
        before, after = self.texts.get((case.rule.name, case.key), ("", "")) if accepted else ("", "")
        return Verdict(
            accepted=accepted,
            name=case.rule.name,
            region=f"{type_text(case.root.result)}: {kinds}",
            source=source_of(region) if region is not None else None,
            moved_before=0,
            moved_after=0,
            charged_before=0,
            charged_after=0,
            reason=case.refusal or f"{case.rule.finding}; {case.gain.note}",
            changes={case.rule.name: 1},
            rule=case.rule.name,
            factor=round(case.gain.factor, 3),
            kind=case.gain.kind,
            before=before,
            after=after,
        )


def _leading(cases: Sequence[Candidate]) -> list[Candidate]:
    """The cases without those that a rule goes before by its own word, where both would replace the same."""
    before: dict[str, set[Node]] = {}
    for case in cases:
        for name in case.rule.over:
            before.setdefault(name, set()).update(case.dead)
    return [case for case in cases if case.dead.isdisjoint(before.get(case.rule.name, ()))]


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


def dying(roots: Sequence[Node], values: Sequence[Value]) -> frozenset[Node]:
    """What nobody needs any more once ``values`` take the place of the results of ``roots``."""
    dead = set(roots)
    open_ = list(roots)
    kept = {value.operation for value in values}
    while open_:
        for value in open_.pop().operands:
            op = value.operation
            if op is None or op in dead or op in kept or op.block is not roots[0].block or op.name not in PURE:
                continue
            if all(user in dead for result in op.results for user in result.users):
                dead.add(op)
                open_.append(op)
    return frozenset(dead)


def _take_back(trial: Block) -> None:
    for op in reversed(trial.operations):
        op.drop()


def _copy_of(trial: Block, outputs: Sequence[Value]) -> Block:
    """The trial as a block with its own arguments, to be priced; constants it shares with the program are copied in."""
    body = Block("candidate")
    values: dict[Value, Value] = {}
    inside = set(trial.operations)
    used = [value for op in trial.operations for value in op.operands if value.operation not in inside]
    for value in dict.fromkeys((*used, *(value for value in outputs if value.operation not in inside))):
        if number_of(value) is not None and value.operation is not None and value.operation.name == "constant":
            body.append(copied(value.operation, values, value.operation.lender))
        else:
            values[value] = body.add_argument(value.shape, value.dtype)
    for op in trial.operations:
        body.append(copied(op, values, op.lender))
    body.append(Node("return", [values[value] for value in outputs]))
    return body

"""What a diagnosis says: findings, the rules that make them, and how both are printed and drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tilewright.embed.logs.config import change_text
from tilewright.embed.model.counters import Counters, StackCounters, plain
from tilewright.render import Html, badge, bytes_text, count_text, percent_text, seconds_text
from tilewright.render.markup import element, join
from tilewright.render.page import Tone, details, listing, paragraph

Severity: TypeAlias = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "note")
_TONES: dict[str, Tone] = {"severe": "bad", "warning": "warn", "note": "plain"}


@dataclass(frozen=True)
class Finding:
    """One bottleneck, found in the counters.

    ==============  ============================================================================================
    ``bottleneck``  its name, the rule's: ``host-bound``, ``limits-too-low``, ...
    ``severity``    ``severe``: it will not compile, loses data, or wastes a fifth of the step or more; ``warning``:
                    worth mending before the next run; ``note``: worth knowing
    ``subject``     the stack or table it is about, "" for the whole program
    ``evidence``    name -> the number it rests on (bytes, seconds, ids or shares, as the name says)
    ``cause``       why, in a sentence
    ``advice``      what to change, to which value, the smallest change first
    ``effect``      what the first advice gives, a number where it can be computed
    ``change``      what an advice writes into the model's file, keys and values as they stand there; {}: nothing
    ``source``      where Google's SparseCore guide, or our measurement, says so
    ``lost``        the share of a step that it takes, and ``bytes``, HBM of all chips that it holds, where known:
                    of one severity, what loses most time comes first, then what holds most bytes
    ==============  ============================================================================================
    """

    severity: Severity
    cause: str
    advice: tuple[str, ...]
    subject: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict, hash=False)
    effect: str = ""
    change: Mapping[str, Any] = field(default_factory=dict, hash=False)
    bottleneck: str = ""
    source: str = ""
    lost: float = 0.0
    bytes: float = 0.0

    @property
    def written(self) -> str:
        """The change as lines of the model's file."""
        return change_text(self.change)

    def to_json(self) -> dict[str, Any]:
        return {"bottleneck": self.bottleneck, **plain(self)}


@dataclass(frozen=True)
class Rule:
    """One bottleneck: ``find`` yields its findings; ``needs`` are the counters without which it cannot be judged
    (``a|b``: one of them is enough); ``when`` says in a line when it speaks."""

    name: str
    source: str
    needs: tuple[str, ...]
    when: str
    find: Callable[[Counters], Iterator[Finding]]

    def missing(self, counters: Counters) -> tuple[str, ...]:
        return tuple(need for need in self.needs if not any(map(counters.has, need.split("|"))))

    def findings(self, counters: Counters) -> list[Finding]:
        """What it finds, under its own name and source."""
        return [replace(finding, bottleneck=self.name, source=self.source) for finding in self.find(counters)]


def rule(source: str, *, needs: str, when: str) -> Callable[[Callable[[Counters], Iterator[Finding]]], Rule]:
    """Make the function below a :class:`Rule`, called as it is, with hyphens; ``needs`` has blanks between counters."""
    return lambda find: Rule(find.__name__.replace("_", "-"), source, tuple(needs.split()), when, find)


_OfStack: TypeAlias = Callable[[Counters, str, StackCounters], Iterator[Finding]]


def stack_rule(source: str, *, needs: str, when: str) -> Callable[[_OfStack], Rule]:
    """The same of a function that judges one stack: it is asked of each, which is the subject of what it finds."""

    def of_every(find: _OfStack) -> Rule:
        def found(counters: Counters) -> Iterator[Finding]:
            for name, stack in counters.stacks.items():
                yield from (replace(finding, subject=name) for finding in find(counters, name, stack))

        return replace(rule(source, needs=needs, when=when)(found), name=find.__name__.replace("_", "-"))

    return of_every


@dataclass(frozen=True)
class Diagnosis:
    """``findings``, the worst first; ``clear``: rules that looked and found nothing; ``not_judged``: rule -> the
    counters it would need."""

    findings: tuple[Finding, ...]
    clear: tuple[str, ...]
    not_judged: Mapping[str, tuple[str, ...]]
    counters: Counters

    @property
    def severe(self) -> bool:
        return any(finding.severity == "severe" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``; ``counters`` can be read back by :func:`read_counters`."""
        return {
            "schema_version": 1,
            "kind": "embedding_diagnosis",
            "severe": self.severe,
            "findings": [finding.to_json() for finding in self.findings],
            "clear": list(self.clear),
            "not_judged": plain(self.not_judged),
            "counters": self.counters.to_json(),
        }

    def text(self) -> str:
        """Every finding with its evidence, advice, effect and source; then what could not be judged."""
        blocks = [self._summary()]
        for finding in self.findings:
            lines = [f"{finding.severity}: {self._title(finding)}", f"  {finding.cause}"]
            lines += [f"    {name}: {value_text(name, value)}" for name, value in finding.evidence.items()]
            lines += [f"  -> {line}" for line in finding.advice]
            lines += [f"  gives {finding.effect}"] if finding.effect else []
            blocks.append("\n".join([*lines, f"  ({finding.source})"]))
        if self.clear:
            blocks.append(f"clear: {', '.join(self.clear)}")
        if self.not_judged:
            needed = {name: "; ".join(needs).replace("|", " or ") for name, needs in self.not_judged.items()}
            lines = [f"  {name}: needs {counters}" for name, counters in needed.items()]
            blocks.append("\n".join(["not judged, for want of counters:", *lines]))
        return "\n\n".join(blocks)

    def lines(self, *, notes: bool = False, numbered: bool = False) -> list[str]:
        """Two lines for each finding: what it is, and the first advice. Without ``notes`` those are only counted;
        ``numbered`` says which can be given to ``embed plan --apply``."""
        lines, left = [], 0
        for number, finding in enumerate(self.findings, 1):
            if not notes and finding.severity == "note" and not (numbered and finding.change):
                left += 1
                continue
            lines.append(f"{finding.severity}: {self._title(finding)}: {finding.cause}")
            lines.append(f"  -> {finding.advice[0]}")
            if numbered and finding.change:
                lines.append(f"     --apply {number} writes {finding.written}")
        if left:
            lines.append(f"{left} note{'s' if left > 1 else ''} more: `tilewright embed diagnose`")
        return lines or ["nothing stands out"]

    def html(self) -> Html:
        """Blocks of a page, for ``Page.section``: every finding with what to do about it, the worst first."""
        items = [self._item(finding) for finding in self.findings]
        return join([*([element("ol", *items, class_="steps")] if items else []), paragraph(self._summary())], "\n")

    def _item(self, finding: Finding) -> Html:
        rows = [(name, value_text(name, value)) for name, value in finding.evidence.items()]
        severity = badge(finding.severity, _TONES[finding.severity])
        return element(
            "li",
            element("p", severity, " ", element("strong", self._title(finding))),
            element("p", element("b", finding.advice[0])),
            *(element("p", f"or {advice}") for advice in finding.advice[1:]),
            *([element("p", f"gives {finding.effect}")] if finding.effect else []),
            *([element("p", "in the model's file: ", element("code", finding.written))] * bool(finding.change)),
            element("p", finding.cause, class_="why"),
            details("evidence", listing([*rows, ("source", finding.source)])),
        )

    def _title(self, finding: Finding) -> str:
        stack = self.counters.stacks.get(finding.subject)
        subject = (stack.label if stack else "") or finding.subject
        subject = subject if len(subject) <= 40 else subject[:37] + "..."
        return f"{finding.bottleneck}, {subject}" if subject else finding.bottleneck

    def _summary(self) -> str:
        counts = [(sum(finding.severity == s for finding in self.findings), s) for s in SEVERITIES]
        by_severity = ", ".join(f"{n} {s}{'s' if n > 1 and s != 'severe' else ''}" for n, s in counts if n)
        return f"{by_severity or 'nothing found'}; {len(self.clear)} clear, {len(self.not_judged)} not judged"


def value_text(name: str, value: float) -> str:
    """A number of the evidence in the unit its name tells.

    >>> value_text("bytes of HBM", 2**30), value_text("step seconds", 0.02), value_text("share of the time", 0.5)
    ('1.00 GiB', '20.0 ms', '50.0 %')
    """
    texts = {"share": percent_text, "bytes": bytes_text, "seconds": seconds_text}
    return next((text for unit, text in texts.items() if unit in name), count_text)(value)

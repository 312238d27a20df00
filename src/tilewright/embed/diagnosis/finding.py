"""What a diagnosis says: findings, and the rules that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tilewright.embed.model.counters import Counters

Severity: TypeAlias = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "note")


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
    ``source``      where Google's SparseCore guide, or our measurement, says so
    ==============  ============================================================================================
    """

    severity: Severity
    cause: str
    advice: tuple[str, ...]
    subject: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict, hash=False)
    effect: str = ""
    bottleneck: str = ""
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        plain = {**vars(self), "advice": list(self.advice), "evidence": dict(self.evidence)}
        return {"bottleneck": self.bottleneck, **plain}


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


def rule(
    source: str, *, needs: tuple[str, ...], when: str
) -> Callable[[Callable[[Counters], Iterator[Finding]]], Rule]:
    """Make the function below a :class:`Rule`, called as it is, with hyphens."""
    return lambda find: Rule(find.__name__.replace("_", "-"), source, needs, when, find)


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
            "not_judged": {name: list(needs) for name, needs in self.not_judged.items()},
            "counters": self.counters.to_json(),
        }

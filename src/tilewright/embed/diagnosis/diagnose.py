"""Every bottleneck of Google's SparseCore guide, looked for in counters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.embed.diagnosis.counters import Counters
from tilewright.embed.diagnosis.finding import SEVERITIES, Diagnosis, Finding, Rule
from tilewright.embed.diagnosis.rules.limits import RULES as LIMITS
from tilewright.embed.diagnosis.rules.memory import PADDING_RULES as PADDING
from tilewright.embed.diagnosis.rules.memory import RULES as MEMORY
from tilewright.embed.diagnosis.rules.stacks import BALANCE_RULES as BALANCE
from tilewright.embed.diagnosis.rules.stacks import RULES as STACKS
from tilewright.embed.diagnosis.rules.time import RULES as TIME
from tilewright.embed.diagnosis.rules.time import RUN_RULES as RUN

if TYPE_CHECKING:
    from tilewright.embed.planning.types import Plan

RULES: tuple[Rule, ...] = (*TIME, *LIMITS, *BALANCE, *STACKS, *PADDING, *MEMORY, *RUN)
"""In the order of the guide's sections 10 and 11."""


def diagnose(counters: Counters | Plan) -> Diagnosis:
    """What holds a run back, or will hold a planned one back: every finding with its numbers, cause and advice.

    A :class:`Plan` stands for its counters (:func:`plan_counters`). Rules whose counters are not known are named in
    ``not_judged`` with what they need; nothing is guessed.

    >>> from tilewright.embed import Seconds
    >>> slow = Counters("tpu-v5p", seconds=Seconds(step=0.040, host=0.040, sparsecore=0.008, tensorcore=0.010))
    >>> found = diagnose(slow).findings[0]
    >>> found.bottleneck, found.severity, found.effect
    ('host-bound', 'severe', 'steps of 10.0 ms instead of 40.0 ms, 4.00 times as many')
    """
    if not isinstance(counters, Counters):
        from tilewright.embed.diagnosis.sources import plan_counters

        counters = plan_counters(counters)
    findings: list[Finding] = []
    clear: list[str] = []
    not_judged: dict[str, tuple[str, ...]] = {}
    for rule in RULES:
        if missing := rule.missing(counters):
            not_judged[rule.name] = missing
        elif found := [replace(each, source=rule.source) for each in rule.find(counters)]:
            findings += found
        else:
            clear.append(rule.name)
    findings.sort(key=lambda each: SEVERITIES.index(each.severity))
    return Diagnosis(tuple(findings), tuple(clear), not_judged, counters)

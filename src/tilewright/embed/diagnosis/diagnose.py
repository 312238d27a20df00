"""Every bottleneck of Google's SparseCore guide, looked for in counters."""

from __future__ import annotations

from tilewright.embed.diagnosis import fit, speed
from tilewright.embed.diagnosis.finding import SEVERITIES, Diagnosis, Finding, Rule
from tilewright.embed.model.counters import Counters
from tilewright.embed.planning.result import Plan

RULES: tuple[Rule, ...] = (
    *(speed.host_bound, speed.missing_overlap, speed.hbm_bandwidth),
    *(fit.limits_too_low, fit.limits_unsure, fit.limits_too_high, fit.mini_batching, fit.idle_mini_batching),
    *(fit.id_dropping, fit.recompilation),
    *(
        speed.skew,
        speed.too_few_ids,
        speed.clustered_log,
        speed.too_few_tables_stacked,
        speed.too_many_tables_stacked,
        speed.float32,
    ),
    *(fit.padding_of_width, fit.padding_of_vocabulary, fit.spmem_overflow, fit.gather_operand),
    *(fit.hbm_stack_overflow, fit.hbm_heap_exhaustion),
    *(speed.needless_serialization, speed.checks_left_on),
)
"""In the order of the guide's sections 10 and 11."""


def diagnose(counters: Counters | Plan) -> Diagnosis:
    """What holds a run back, or will hold a planned one back: every finding with its numbers, cause and advice.

    A :class:`Plan` stands for its counters (:meth:`Plan.counters`). Rules whose counters are not known are named in
    ``not_judged`` with what they need; nothing is guessed.

    >>> from tilewright.embed import Seconds
    >>> slow = Counters("tpu-v5p", seconds=Seconds(step=0.040, host=0.040, sparsecore=0.008, tensorcore=0.010))
    >>> worst = diagnose(slow).findings[0]
    >>> worst.bottleneck, worst.severity, worst.effect
    ('host-bound', 'severe', 'steps of 10.0 ms instead of 40.0 ms, 4.00 times as many')
    """
    if isinstance(counters, Plan):
        counters = counters.counters()
    findings: list[Finding] = []
    clear: list[str] = []
    not_judged: dict[str, tuple[str, ...]] = {}
    for rule in RULES:
        if missing := rule.missing(counters):
            not_judged[rule.name] = missing
        elif of_rule := rule.findings(counters):
            findings += of_rule
        else:
            clear.append(rule.name)
    if "limits-too-low" in clear and any(finding.bottleneck == "limits-unsure" for finding in findings):
        clear.remove("limits-too-low")
        not_judged["limits-too-low"] = ("enough fresh batches (limits-unsure)",)
    findings.sort(key=lambda finding: (SEVERITIES.index(finding.severity), -finding.lost, -finding.bytes))
    return Diagnosis(tuple(findings), tuple(clear), not_judged, counters)

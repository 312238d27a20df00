"""Every bottleneck of Google's SparseCore guide, looked for in counters; the diagnosis printed and drawn."""

from __future__ import annotations

from tilewright.embed.diagnosis import fit, speed
from tilewright.embed.diagnosis.finding import SEVERITIES, Diagnosis, Finding, Rule
from tilewright.embed.model.counters import Counters
from tilewright.embed.planning.types import Plan, plan_counters
from tilewright.render import Html, badge, bytes_text, count_text, percent_text, seconds_text
from tilewright.render.markup import element, join
from tilewright.render.page import Tone, details, listing, paragraph

RULES: tuple[Rule, ...] = (
    *(speed.host_bound, speed.missing_overlap, speed.hbm_bandwidth),
    *(fit.limits_too_low, fit.limits_too_high, fit.mini_batching, fit.idle_mini_batching),
    *(fit.id_dropping, fit.recompilation),
    *(speed.skew, speed.clustered_log, speed.too_few_tables_stacked, speed.too_many_tables_stacked, speed.float32),
    *(fit.padding_of_width, fit.padding_of_vocabulary, fit.spmem_overflow, fit.gather_operand),
    *(fit.hbm_stack_overflow, fit.hbm_heap_exhaustion),
    *(speed.needless_serialization, speed.checks_left_on),
)
"""In the order of the guide's sections 10 and 11."""


def diagnose(counters: Counters | Plan) -> Diagnosis:
    """What holds a run back, or will hold a planned one back: every finding with its numbers, cause and advice.

    A :class:`Plan` stands for its counters (:func:`plan_counters`). Rules whose counters are not known are named in
    ``not_judged`` with what they need; nothing is guessed.

    >>> from tilewright.embed import Seconds
    >>> slow = Counters("tpu-v5p", seconds=Seconds(step=0.040, host=0.040, sparsecore=0.008, tensorcore=0.010))
    >>> worst = diagnose(slow).findings[0]
    >>> worst.bottleneck, worst.severity, worst.effect
    ('host-bound', 'severe', 'steps of 10.0 ms instead of 40.0 ms, 4.00 times as many')
    """
    if isinstance(counters, Plan):
        counters = plan_counters(counters)
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
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    return Diagnosis(tuple(findings), tuple(clear), not_judged, counters)


_TONES: dict[str, Tone] = {"severe": "bad", "warning": "warn", "note": "plain"}


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Every finding with its evidence, advice, effect and source; then what could not be judged."""
    blocks = [_summary(diagnosis)]
    blocks += ["\n".join(_finding_lines(diagnosis, finding)) for finding in diagnosis.findings]
    if diagnosis.clear:
        blocks.append(f"clear: {', '.join(diagnosis.clear)}")
    if diagnosis.not_judged:
        lines = [
            f"  {name}: needs {'; '.join(needs).replace('|', ' or ')}" for name, needs in diagnosis.not_judged.items()
        ]
        blocks.append("\n".join(["not judged, for want of counters:", *lines]))
    return "\n\n".join(blocks)


def diagnosis_lines(diagnosis: Diagnosis, *, notes: bool = False) -> list[str]:
    """Two lines for each finding; without ``notes`` those are only counted."""
    lines = []
    for finding in diagnosis.findings:
        if notes or finding.severity != "note":
            title = _title(diagnosis, finding)
            lines += [f"{finding.severity}: {title}: {finding.cause}", f"  -> {finding.advice[0]}"]
    left = 0 if notes else sum(finding.severity == "note" for finding in diagnosis.findings)
    if left:
        lines.append(f"{left} note{'s' if left > 1 else ''} more: `tilewright embed diagnose`")
    return lines or ["nothing stands out"]


def diagnosis_html(diagnosis: Diagnosis) -> Html:
    """Blocks of a page, for ``Page.section``: every finding with what to do about it, the worst first."""
    items = [_finding_item(diagnosis, finding) for finding in diagnosis.findings]
    listed = [element("ol", *items, class_="steps")] if items else []
    return join([*listed, paragraph(_summary(diagnosis))], "\n")


def _finding_item(diagnosis: Diagnosis, finding: Finding) -> Html:
    head = [badge(finding.severity, _TONES[finding.severity]), " ", element("strong", _title(diagnosis, finding))]
    others = [element("p", f"or {advice}") for advice in finding.advice[1:]]
    effect = [element("p", f"gives {finding.effect}")] if finding.effect else []
    rows = [(name, value_text(name, value)) for name, value in finding.evidence.items()]
    evidence = details("evidence", listing([*rows, ("source", finding.source)]))
    why = element("p", finding.cause, class_="why")
    return element(
        "li", element("p", *head), element("p", element("b", finding.advice[0])), *others, *effect, why, evidence
    )


def value_text(name: str, value: float) -> str:
    """A number of the evidence in the unit its name tells.

    >>> value_text("bytes of HBM", 2**30), value_text("step seconds", 0.02), value_text("share of the time", 0.5)
    ('1.00 GiB', '20.0 ms', '50.0 %')
    """
    if "share" in name:
        return percent_text(value)
    if "bytes" in name:
        return bytes_text(value)
    if "seconds" in name:
        return seconds_text(value)
    return count_text(value)


def _title(diagnosis: Diagnosis, finding: Finding) -> str:
    stack = diagnosis.counters.stacks.get(finding.subject)
    subject = (stack.label if stack else "") or finding.subject
    subject = subject if len(subject) <= 40 else subject[:37] + "..."
    return f"{finding.bottleneck}, {subject}" if subject else finding.bottleneck


def _summary(diagnosis: Diagnosis) -> str:
    counts = [(sum(finding.severity == s for finding in diagnosis.findings), s) for s in SEVERITIES]
    by_severity = ", ".join(f"{n} {s}{'s' if n > 1 and s != 'severe' else ''}" for n, s in counts if n)
    return f"{by_severity or 'nothing found'}; {len(diagnosis.clear)} clear, {len(diagnosis.not_judged)} not judged"


def _finding_lines(diagnosis: Diagnosis, finding: Finding) -> list[str]:
    lines = [f"{finding.severity}: {_title(diagnosis, finding)}", f"  {finding.cause}"]
    lines += [f"    {name}: {value_text(name, value)}" for name, value in finding.evidence.items()]
    lines += [f"  -> {line}" for line in finding.advice]
    if finding.effect:
        lines.append(f"  gives {finding.effect}")
    return [*lines, f"  ({finding.source})"]

"""A diagnosis' faces: the terminal, in full or in a line each, and a page."""

from __future__ import annotations

from tilewright.embed.diagnosis.finding import SEVERITIES, Diagnosis, Finding
from tilewright.render import (
    Html,
    Tone,
    bytes_text,
    count_text,
    details,
    join,
    listing,
    note,
    paragraph,
    percent_text,
    seconds_text,
)

_TONES: dict[str, Tone] = {"severe": "bad", "warning": "warn", "note": "plain"}


def diagnosis_text(made: Diagnosis) -> str:
    """Every finding with its evidence, advice, effect and source; then what could not be judged."""
    blocks = [_summary(made)]
    blocks += ["\n".join(_told(made, found)) for found in made.findings]
    if made.clear:
        blocks.append(f"clear: {', '.join(made.clear)}")
    if made.not_judged:
        lines = [f"  {name}: needs {_needs(needs)}" for name, needs in made.not_judged.items()]
        blocks.append("\n".join(["not judged, for want of counters:", *lines]))
    return "\n\n".join(blocks)


def diagnosis_lines(made: Diagnosis, *, notes: bool = False) -> list[str]:
    """Two lines for each finding; without ``notes`` those are only counted."""
    lines = []
    for found in made.findings:
        if notes or found.severity != "note":
            lines += [f"{found.severity}: {_title(made, found)}: {found.cause}", f"  -> {found.advice[0]}"]
    left = 0 if notes else sum(found.severity == "note" for found in made.findings)
    if left:
        lines.append(f"{left} note{'s' if left > 1 else ''} more: `tilewright embed diagnose`")
    return lines or ["nothing stands out"]


def diagnosis_html(made: Diagnosis) -> Html:
    """Blocks of a page, for ``Page.section``."""
    blocks = [paragraph(_summary(made))]
    for found in made.findings:
        blocks.append(note(f"{_title(made, found)}: {found.cause}", tone=_TONES[found.severity]))
        words = ("do", *("or" for _ in found.advice[1:]))
        blocks.append(listing([*zip(words, found.advice), *([("gives", found.effect)] if found.effect else [])]))
        rows = [(name, value_text(name, value)) for name, value in found.evidence.items()]
        blocks.append(details("evidence", listing([*rows, ("source", found.source)])))
    return join(blocks, "\n")


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


def _title(made: Diagnosis, found: Finding) -> str:
    stack = made.counters.stacks.get(found.subject)
    subject = (stack.label if stack else "") or found.subject
    subject = subject if len(subject) <= 40 else subject[:37] + "..."
    return f"{found.bottleneck}, {subject}" if subject else found.bottleneck


def _summary(made: Diagnosis) -> str:
    counts = [(sum(f.severity == s for f in made.findings), s) for s in SEVERITIES]
    found = ", ".join(f"{n} {s}{'s' if n > 1 and s != 'severe' else ''}" for n, s in counts if n) or "nothing found"
    return f"{found}; {len(made.clear)} clear, {len(made.not_judged)} not judged"


def _told(made: Diagnosis, found: Finding) -> list[str]:
    lines = [f"{found.severity}: {_title(made, found)}", f"  {found.cause}"]
    lines += [f"    {name}: {value_text(name, value)}" for name, value in found.evidence.items()]
    lines += [f"  -> {line}" for line in found.advice]
    if found.effect:
        lines.append(f"  gives {found.effect}")
    return [*lines, f"  ({found.source})"]


def _needs(needs: tuple[str, ...]) -> str:
    return "; ".join(need.replace("|", " or ") for need in needs)

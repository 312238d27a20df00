"""The reference page, generated: every instruction, error and reading stands in a table of this package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from tilewright.isa._config import READINGS, MatrixUnitConfig
from tilewright.isa._errors import KINDS
from tilewright.isa._table import INSTRUCTIONS, InstructionSpec

__all__ = ["reference"]


def reference() -> str:
    """Markdown: instructions, error records, readings and the machine's numbers with their defaults.

    >>> "### mm" in reference() and "| `kb_acc` |" in reference()
    True
    """
    return "\n".join([*_instructions(), "", *_errors(), "", *_readings(), "", *_numbers()])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _instructions() -> Iterator[str]:
    yield "## Instructions"
    yield ""
    yield "`rN` is a per-thread register, `urN` a uniform one, `pN` a predicate, `imm` an integer; brackets: optional."
    for spec in INSTRUCTIONS.values():
        yield from ("", f"### {spec.name}", "", f"    {spec.syntax}", "", f"{spec.doc}. Example: `{spec.example}`.")
        yield from _suffixes(spec)


def _suffixes(spec: InstructionSpec) -> Iterator[str]:
    if spec.suffixes:
        yield ""
    for suffix in spec.suffixes:
        default = "required" if suffix.default is None else f"default `.{suffix.form.format(suffix.default)}`"
        yield f"* `.{suffix.form.format('X')}`: {suffix.doc}; {default}"


def _errors() -> Iterator[str]:
    yield from ("## Error records", "", "| kind | what happened |", "|---|---|")
    yield from (f"| `{kind}` | {text} |" for kind, text in KINDS.items())


def _readings() -> Iterator[str]:
    yield from ("## Readings", "", "| field | question | default | also | refused |", "|---|---|---|---|---|")
    for name, reading in READINGS.items():
        first, *others = (f"`{choice!r}`" for choice in reading.choices)
        if reading.least is not None:
            others.append(f"any whole number from {reading.least}")
        refused = ", ".join(f"`{choice!r}`" for choice in reading.refused)
        yield f"| `{name}` | {_cell(reading.question)} | {first} | {', '.join(others)} | {refused} |"


def _numbers() -> Iterator[str]:
    yield from ("## Numbers", "", "| field | default |", "|---|---|")
    yield from (f"| `{f.name}` | `{f.default!r}` |" for f in fields(MatrixUnitConfig) if f.name not in READINGS)

"""The reference page, generated: every instruction, error and reading stands in a table of this package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.language.config import READINGS, MatrixUnitConfig
from tilewright.isa.language.errors import KINDS
from tilewright.isa.language.instructions import GROUPS, INSTRUCTIONS, InstructionSpec

HEAD = """# Instructions of the matrix unit

Generated from the machine's own tables by `tilewright isa reference`; a test keeps this page true.

`rN` is a register of every thread, `urN` a uniform one, `pN` a predicate (one bit a thread), `imm` an integer, `float`
a float32 such as `1.5` or, by its bits, `0f7f800000`; brackets: optional. A guard `@pN,` or `@!pN,` keeps an
instruction to the threads whose predicate is true, or false. `#` and `//` begin a comment, `name:` is a label.
"""


def reference() -> str:
    """Markdown: instructions, their costs, error records, readings and the machine's numbers with their defaults.

    >>> "### mm" in reference() and "| `kb_acc` |" in reference()
    True
    """
    parts = (_instructions(), _costs(), _accounts(), _errors(), _readings(), _numbers())
    return "\n".join([HEAD, *(line for part in parts for line in (*part, ""))]).rstrip("\n")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _instructions() -> Iterator[str]:
    for title, group in GROUPS.items():
        yield from (f"## {title}",)
        for spec in group:
            ours = "Ours: the source has no such instruction. " if spec.ours else ""
            yield from (
                "",
                f"### {spec.name}",
                "",
                f"    {spec.syntax}",
                "",
                f"{spec.doc}. {ours}Example: `{spec.example}`.",
            )
            yield from _suffixes(spec)
        if group is not list(GROUPS.values())[-1]:
            yield ""


def _costs() -> Iterator[str]:
    yield from ("## Costs and widths", "")
    yield "Every instruction takes one issue of the queue. `unit` is where it executes, `occupies` how many cycles it"
    yield "keeps the unit, `latency` how many cycles later its result is there, `width` the bits it works on a thread."
    yield from ("", "| instruction | unit | occupies | latency | width |", "|---|---|---|---|---|")
    defaults = {f.name: f.default for f in fields(MatrixUnitConfig)}
    for spec in INSTRUCTIONS.values():
        latency = f"`{spec.latency}` ({defaults[spec.latency]})" if spec.latency else ""
        cells = (f"`{spec.name}`", spec.unit, _cell(spec.occupies), latency, spec.width)
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _accounts() -> Iterator[str]:
    yield from ("## Where the cycles go", "", "Each account adds up to the cycles of the run.", "")
    yield from ("| the issue queue | |", "|---|---|", *(f"| {key} | {text} |" for key, text in QUEUE.items()), "")
    stalls = (f"| {key} | {text} |" for key, text in MATH_STALLS.items())
    yield from ("| the math unit, when it does not multiply | |", "|---|---|", *stalls)


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
    yield from ("## Readings", "")
    yield "Every question the source leaves open, with its paragraphs and whose the answer is:"
    yield "[matrix_unit.md](matrix_unit.md#what-the-source-leaves-open)."
    yield from ("", "| field | question | default | also |", "|---|---|---|---|")
    for name, reading in READINGS.items():
        first, *others = (f"`{choice!r}`" for choice in reading.choices)
        if reading.least is not None:
            others.append(f"any whole number from {reading.least}")
        yield f"| `{name}` | {_cell(reading.question)} | {first} | {', '.join(others)} |"


def _numbers() -> Iterator[str]:
    yield from ("## Numbers", "", "| field | default |", "|---|---|")
    yield from (f"| `{f.name}` | `{f.default!r}` |" for f in fields(MatrixUnitConfig) if f.name not in READINGS)

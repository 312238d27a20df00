"""The reference page, generated: every instruction, error and reading stands in a table of this package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.language.config import READINGS, MatrixUnitConfig
from tilewright.isa.language.errors import KINDS
from tilewright.isa.language.instructions import GROUPS, INSTRUCTIONS

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


def _table(columns: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A table of Markdown; ``columns``: its headings, as they stand in it."""
    yield from (f"| {columns} |".replace("|  |", "| |"), "|---" * (columns.count("|") + 1) + "|")
    for row in rows:
        cells = (cell.replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _instructions() -> Iterator[str]:
    for number, (title, group) in enumerate(GROUPS.items()):
        yield from ("",) * (number > 0)
        yield f"## {title}"
        for spec in group:
            ours = "Ours: the source has no such instruction. " if spec.ours else ""
            doc = f"{spec.doc}. {ours}Example: `{spec.example}`."
            yield from ("", f"### {spec.name}", "", f"    {spec.syntax}", "", doc, *[""] * bool(spec.suffixes))
            for suffix in spec.suffixes:
                default = "required" if suffix.default is None else f"default `.{suffix.form.format(suffix.default)}`"
                yield f"* `.{suffix.form.format('X')}`: {suffix.doc}; {default}"


def _costs() -> Iterator[str]:
    yield from ("## Costs and widths", "")
    yield "Every instruction takes one issue of the queue. `unit` is where it executes, `occupies` how many cycles it"
    yield "keeps the unit, `latency` how many cycles later its result is there, `width` the bits it works on a thread."
    yield ""
    defaults = {f.name: f"`{f.name}` ({f.default})" for f in fields(MatrixUnitConfig)} | {"": ""}
    rows = ((f"`{s.name}`", s.unit, s.occupies, defaults[s.latency], s.width) for s in INSTRUCTIONS.values())
    yield from _table("instruction | unit | occupies | latency | width", rows)


def _accounts() -> Iterator[str]:
    yield from ("## Where the cycles go", "", "Each account adds up to the cycles of the run.", "")
    yield from (*_table("the issue queue | ", QUEUE.items()), "")
    yield from _table("the math unit, when it does not multiply | ", MATH_STALLS.items())


def _errors() -> Iterator[str]:
    yield from ("## Error records", "")
    yield from _table("kind | what happened", ((f"`{kind}`", text) for kind, text in KINDS.items()))


def _readings() -> Iterator[str]:
    yield from ("## Readings", "")
    yield "Every question the source leaves open, with its paragraphs and whose the answer is:"
    yield from ("[matrix_unit.md](matrix_unit.md#what-the-source-leaves-open).", "")
    rows = []
    for name, reading in READINGS.items():
        first, *others = (f"`{choice!r}`" for choice in reading.choices)
        others += [f"any whole number from {reading.least}"] * (reading.least is not None)
        rows.append((f"`{name}`", reading.question, first, ", ".join(others)))
    yield from _table("field | question | default | also", rows)


def _numbers() -> Iterator[str]:
    yield from ("## Numbers", "")
    numbers = (f for f in fields(MatrixUnitConfig) if f.name not in READINGS)
    yield from _table("field | default", ((f"`{f.name}`", f"`{f.default!r}`") for f in numbers))

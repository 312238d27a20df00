"""What the row of an instruction says: suffixes, operands, unit, cost and width. The rows stand in ``_set``.

The assembler, the printer, the scoreboard and the reference page all read these rows; what an instruction does stands
in one function of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

__all__ = ["CONDITIONS", "TYPES", "UNITS", "InstructionSpec", "OperandSpec", "Suffix"]

TYPES = ("8", "16", "32", "f16", "bf16", "f32")
CONDITIONS = ("eq", "ne", "ltu", "leu", "gtu", "geu", "lt", "le", "gt", "ge")
UNITS = {
    "alu": "arithmetic",
    "math": "math",
    "lsu": "load-store",
    "control": "control",
    "dma": "dma",
}
"""Units, and the lane of the timeline each is drawn in."""


@dataclass(frozen=True)
class Suffix:
    """One ``.suffix``: ``pattern`` has one group, the value; ``form`` prints it. ``default`` None: it must be written.

    ``always``: printed even when it is the default.
    """

    key: str
    pattern: str
    form: str
    default: str | None
    doc: str
    always: bool = False

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, compiled once."""
        return re.compile(self.pattern)

    def __hash__(self) -> int:
        """By name: the compiled pattern is no part of it."""
        return hash((self.key, self.pattern))


@dataclass(frozen=True)
class OperandSpec:
    """One operand: kinds out of r, ur, p, imm, float, address, segment, label; ``access`` is read or write."""

    name: str
    kinds: tuple[str, ...]
    access: str = "read"
    optional: bool = False

    def __str__(self) -> str:
        """As the reference page shows it: ``rD|urD``."""
        text = "|".join(_SHOWN.get(kind, kind + self.name) for kind in self.kinds)
        return f"[{text}]" if self.optional else text


_SHOWN = {"address": "urS:rfO:imm", "segment": "$name", "label": "label", "imm": "imm", "float": "float"}


@dataclass(frozen=True)
class InstructionSpec:
    """One instruction.

    ``unit`` is where it executes. ``occupies``: cycles it keeps the unit (words where that depends on the operands).
    ``latency``: the configuration's field that says how many cycles later its result is there ("": it has none).
    ``width``: bits of what it works on, per thread. ``reduces``: it takes what threads have to one uniform register.
    """

    name: str
    operands: tuple[OperandSpec, ...]
    unit: str
    doc: str
    example: str
    suffixes: tuple[Suffix, ...] = ()
    guard: bool = False
    occupies: str = "1"
    latency: str = ""
    width: str = ""
    reduces: bool = False

    @property
    def syntax(self) -> str:
        """The general form, suffixes and optional operands in brackets."""
        suffixes = "".join(
            f".{s.form.format('X')}" if s.default is None else f"[.{s.form.format('X')}]" for s in self.suffixes
        )
        operands = ", ".join(str(o) for o in self.operands)
        return f"{'[@[!]pN,] ' * self.guard}{self.name}{suffixes} {operands}".rstrip()

"""The instruction table: names, suffixes, operands, units and costs, in one place.

The assembler, the printer, the machine's scoreboard and the reference page all read this table; the semantics live in
the files ``_alu``, ``_control``, ``_memory`` and ``_tensor``, one function per instruction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

__all__ = ["CONDITIONS", "INSTRUCTIONS", "TYPES", "InstructionSpec", "OperandSpec", "Suffix"]

TYPES = ("8", "16", "32", "f16", "bf16", "f32")
CONDITIONS = ("eq", "ne", "lt", "le", "gt", "ge")


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
    """One operand: kinds out of r, ur, p, imm, address, segment, label; ``access`` is read or write."""

    name: str
    kinds: tuple[str, ...]
    access: str = "read"
    optional: bool = False

    def __str__(self) -> str:
        """As the reference page shows it: ``rD|urD``."""
        text = "|".join(_SHOWN.get(kind, kind + self.name) for kind in self.kinds)
        return f"[{text}]" if self.optional else text


_SHOWN = {"address": "urS:rfO:imm", "segment": "$name", "label": "label", "imm": "imm"}


@dataclass(frozen=True)
class InstructionSpec:
    """One instruction; ``unit`` is where it executes, ``cycles`` what it occupies there, ``doc`` what it does."""

    name: str
    operands: tuple[OperandSpec, ...]
    unit: str
    doc: str
    example: str
    suffixes: tuple[Suffix, ...] = ()
    guard: bool = False
    cycles: int = 1

    @property
    def syntax(self) -> str:
        """The general form, suffixes and optional operands in brackets."""
        suffixes = "".join(
            f".{s.form.format('X')}" if s.default is None else f"[.{s.form.format('X')}]" for s in self.suffixes
        )
        operands = ", ".join(str(o) for o in self.operands)
        return f"{'[@[!]pN,] ' * self.guard}{self.name}{suffixes} {operands}".rstrip()


_DEST = OperandSpec("D", ("r", "ur"), "write")
_X = OperandSpec("X", ("r", "ur", "imm"))
_Y = OperandSpec("Y", ("r", "ur", "imm"))
_ADDRESS = OperandSpec("", ("address",))
_COUNT = OperandSpec("N", ("imm", "ur", "r"), optional=True)
_SEGMENT = OperandSpec("S", ("ur",))
_PAGE = OperandSpec("P", ("imm", "ur"), optional=True)
_WALK = (
    Suffix("t", "t([01])", "t{}", "0", "walk d1 (t0) or d2 (t1)"),
    Suffix("s", "s([0-9]{1,6})", "s{}", "1", "distance of consecutive elements along the walk"),
)
_CONDITION = Suffix("cond", f"({'|'.join(CONDITIONS)})", "{}", None, "the comparison, of signed 32-bit integers")
_MM_SUFFIXES = (
    Suffix("ka", "ka([0-9]{1,6})", "ka{}", "1", "threads that share a row, each with a part of its columns", True),
    Suffix("kb", "kb([0-9]{1,6})", "kb{}", "1", "threads that share every dot product, each with a part of k", True),
    Suffix("t", "t([01])", "t{}", "0", "elements of a column walk d1 (t0) or d2 with line retention (t1)", True),
    Suffix("a", "([su])a", "{}a", "s", "integers of A are signed (sa) or unsigned (ua)", True),
    Suffix("b", "([su])b", "{}b", "s", "integers of B are signed (sb) or unsigned (ub)", True),
)


def _arithmetic(name: str, doc: str) -> InstructionSpec:
    example = f"{name} r10, r11, 4"
    return InstructionSpec(name, (_DEST, _X, _Y), "alu", f"D = {doc}", example, guard=True)


def _logic(name: str, doc: str, sources: int = 2) -> InstructionSpec:
    names = ("X", "Y")[:sources]
    operands = (OperandSpec("D", ("p",), "write"), *(OperandSpec(n, ("p",)) for n in names))
    return InstructionSpec(name, operands, "alu", doc, f"{name} p0, {', '.join(('p1', 'p2')[:sources])}")


_LIST = (
    InstructionSpec(
        "mm",
        (OperandSpec("C", ("r",), "write"), _ADDRESS, OperandSpec("A", ("r",))),
        "math",
        "Tensor multiply: loader j fetches column j of B at its own address and broadcasts it; every active row adds "
        "the dot product of its A registers with the column to product register rC + i(j). TYPE (8, 16, 32, f16, bf16, "
        "f32; absent: the segment's) follows the name. Columns whose predicate is false or whose product register is "
        "out of range take no part",
        "@p1, mm8.ka1.kb1.t1.sa.sb r0, ur4:rf290:0x00, r256",
        _MM_SUFFIXES,
        guard=True,
    ),
    InstructionSpec(
        "setmm",
        (OperandSpec("N", ("imm", "ur")), OperandSpec("M", ("imm", "ur"), optional=True)),
        "control",
        "The following mm have N columns and, if M is given, M active rows (else as many as fit)",
        "setmm 64, 16",
    ),
    InstructionSpec(
        "ld",
        (OperandSpec("D", ("r",), "write"), _ADDRESS, _COUNT),
        "lsu",
        "Each thread loads consecutive elements, packed, low bytes first, into N registers (1) from rD. Elements "
        "outside the segment are not loaded: their bytes keep their value",
        "@p2, ld r256, ur3:rf294:0x00, 2",
        _WALK,
        guard=True,
    ),
    InstructionSpec(
        "st",
        (OperandSpec("S", ("r",)), _ADDRESS, _COUNT),
        "lsu",
        "Each thread stores the packed elements of N registers (1) from rS. Elements outside the segment are not "
        "stored; where threads store to one element the highest thread wins",
        "@p3, st r0, ur5:rf298:0x00, r285",
        _WALK,
        guard=True,
    ),
    InstructionSpec("mov", (_DEST, _X), "alu", "D = X", "mov r10, 0x10", guard=True),
    InstructionSpec(
        "clr",
        (OperandSpec("D", ("r",), "write"), _COUNT),
        "alu",
        "N registers (1) from rD become 0",
        "clr r0, 256",
        guard=True,
    ),
    InstructionSpec("tid", (OperandSpec("D", ("r",), "write"),), "alu", "D = the thread's number", "tid r280"),
    _arithmetic("add", "X + Y modulo 2^32"),
    _arithmetic("sub", "X - Y modulo 2^32"),
    _arithmetic("mul", "X * Y modulo 2^32"),
    _arithmetic("div", "X / Y, signed, towards zero; by zero: 0 and an error record"),
    _arithmetic("rem", "X - Y * (X / Y), the sign of X; by zero: 0 and an error record"),
    _arithmetic("min", "the lesser of X and Y, signed"),
    _arithmetic("max", "the greater of X and Y, signed"),
    _arithmetic("and", "X and Y, bit by bit"),
    _arithmetic("or", "X or Y, bit by bit"),
    _arithmetic("xor", "X exclusive or Y, bit by bit"),
    _arithmetic("shl", "X shifted left by the low five bits of Y"),
    _arithmetic("shr", "X shifted right by the low five bits of Y, keeping the sign"),
    InstructionSpec(
        "cmp",
        (OperandSpec("D", ("p",), "write"), _X, _Y),
        "alu",
        "pD = X cond Y in every thread",
        "cmp.lt p2, r281, ur10",
        (_CONDITION,),
    ),
    _logic("pand", "pD = pX and pY"),
    _logic("por", "pD = pX or pY"),
    _logic("pnot", "pD = not pX", sources=1),
    InstructionSpec("jump", (OperandSpec("", ("label",)),), "control", "Continue at the label", "jump again"),
    InstructionSpec(
        "br",
        (OperandSpec("X", ("ur", "imm")), OperandSpec("Y", ("ur", "imm")), OperandSpec("", ("label",))),
        "control",
        "Continue at the label if X cond Y; uniform registers only, so that all threads go the same way",
        "br.lt ur2, 64, again",
        (_CONDITION,),
    ),
    InstructionSpec(
        "segment",
        (OperandSpec("D", ("ur",), "write"), OperandSpec("", ("segment",))),
        "control",
        "D = handle of the segment the host calls name (0 and an error record if there is none)",
        "segment ur4, $B",
    ),
    InstructionSpec(
        "dmain",
        (_SEGMENT, _PAGE),
        "dma",
        "Bring page P (all pages) of the segment from device memory to L2; the page-table entry is loading until done",
        "dmain ur4",
    ),
    InstructionSpec(
        "dmaout",
        (_SEGMENT, _PAGE),
        "dma",
        "Write page P (all pages) back to device memory if it was stored to, and delete its page-table entry",
        "dmaout ur5",
    ),
    InstructionSpec("dmawait", (_SEGMENT,), "dma", "Wait until no page of the segment is loading", "dmawait ur4"),
    InstructionSpec(
        "dmastat",
        (OperandSpec("D", ("ur",), "write"), _SEGMENT, _PAGE),
        "dma",
        "D = the state of page P (the least of all pages): 0 absent, 1 loading, 2 loaded; a 1 is followed by a 2",
        "dmastat ur7, ur4",
    ),
    InstructionSpec("halt", (), "control", "End of the program; so is running past its last instruction", "halt"),
)

INSTRUCTIONS: dict[str, InstructionSpec] = {spec.name: spec for spec in _LIST}

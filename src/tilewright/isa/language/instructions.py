"""The instruction set: every instruction with its suffixes, operands, unit, cost and width (``instructions.txt``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

TYPES = ("4", "8", "16", "32", "f8e4m3fn", "f8e5m2", "f16", "bf16", "f32")
ELEMENT_TYPES = (*("s4", "u4", "s8", "u8", "s16", "u16", "s32", "u32"), *("f8e4m3fn", "f8e5m2", "f16", "bf16", "f32"))
"""Of a tensor in memory. Of 4 bits, too, each element has a byte, whose other half is of no account."""
CONDITIONS = ("eq", "ne", "ltu", "leu", "gtu", "geu", "lt", "le", "gt", "ge")
UNITS = {
    "alu": "arithmetic",
    "math": "math",
    "vector": "vector",
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


@dataclass(frozen=True)
class OperandSpec:
    """One operand: kinds out of r, ur, p, imm, float, address, segment, label; ``access`` is read or write.

    ``text``: as the reference page shows it, ``rD|urD``; ``name``: the letter in it.
    """

    text: str
    name: str
    kinds: tuple[str, ...]
    access: str = "read"
    optional: bool = False

    @classmethod
    def of(cls, text: str) -> OperandSpec:
        """From what the page shows: D and C are written, brackets mean optional.

        >>> OperandSpec.of("[imm|urN]").kinds
        ('imm', 'ur')
        """
        words = text.strip("[]").split("|")
        kinds = tuple(_KINDS.get(word) or word.rstrip(ascii_uppercase) for word in words)
        name = next((word[-1] for word in words if word not in _KINDS and word[-1] in ascii_uppercase), "")
        return cls(text, name, kinds, "write" if name in ("D", "C") else "read", text.startswith("["))

    def __str__(self) -> str:
        return self.text


_KINDS = {"urS:rfO:imm": "address", "$name": "segment"}


@dataclass(frozen=True)
class InstructionSpec:
    """One instruction.

    ``unit`` is where it executes. ``occupies``: cycles it keeps the unit (words where that depends on the operands).
    ``latency``: the configuration's field that says how many cycles later its result is there ("": it has none).
    ``width``: bits of what it works on, per thread. ``reduces``: it takes what threads have to one uniform register.
    ``ours``: the source has nothing of the kind; it is in its spirit, and a reading.
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
    ours: bool = False

    @property
    def syntax(self) -> str:
        """The general form, suffixes and optional operands in brackets."""
        suffixes = "".join(
            f".{s.form.format('X')}" if s.default is None else f"[.{s.form.format('X')}]" for s in self.suffixes
        )
        operands = ", ".join(str(o) for o in self.operands)
        return f"{'[@[!]pN,] ' * self.guard}{self.name}{suffixes} {operands}".rstrip()


_SIGNED = "the comparison of 32-bit integers: signed, or unsigned where it ends in u"
_COPIED = "Y is one register of each thread, the same for all N (y1), or N of them"
_ELEMENTS = "at most so many elements a thread (n0: as the registers hold)"
_ROUNDED = "floats become the nearest integer, ties to even (rn), or towards zero (rz)"


def _one_of(key: str, words: str, doc: str = "") -> Suffix:
    """One of these words has to be written."""
    return Suffix(key, f"({words.replace(' ', '|')})", "{}", None, doc or words.replace(" ", ", "))


def _type(key: str, words: str) -> Suffix:
    """The type of D (``to``) or of X (``from``), one of these words."""
    return Suffix(key, f"{key}_({words.replace(' ', '|')})", f"{key}_{{}}", None, f"the type of {'XD'[key == 'to']}")


_SUFFIXES = {
    "ka": Suffix(
        "ka", "ka([0-9]{1,6})", "ka{}", "1", "threads that share a row, each with a part of its columns", True
    ),
    "kb": Suffix(
        "kb", "kb([0-9]{1,6})", "kb{}", "1", "threads that share every dot product, each with a part of k", True
    ),
    "t": Suffix("t", "t([01])", "t{}", "0", "elements of a column walk d1 (t0) or d2 with line retention (t1)", True),
    "a": Suffix("a", "([su])a", "{}a", "s", "integers of A are signed (sa) or unsigned (ua)", True),
    "b": Suffix("b", "([su])b", "{}b", "s", "integers of B are signed (sb) or unsigned (ub)", True),
    "walk": Suffix("t", "t([01])", "t{}", "0", "walk d1 (t0) or d2 (t1)"),
    "s": Suffix("s", "s([0-9]{1,6})", "s{}", "1", "distance of consecutive elements along the walk"),
    "n": Suffix("n", "n([0-9]{1,4})", "n{}", "0", _ELEMENTS),
    "to": _type("to", "s32 u32 f32 f16 bf16"),
    "from": _type("from", "s32 u32 f32 f16 bf16"),
    "vto": _type("to", " ".join(ELEMENT_TYPES)),
    "vfrom": _type("from", " ".join(ELEMENT_TYPES)),
    "qto": _type("to", "s4 u4 s8 u8 s16 u16 s32"),
    "qfrom": _type("from", "s32 f32"),
    "cond": _one_of("cond", " ".join(CONDITIONS), _SIGNED),
    "fcond": _one_of("cond", "eq ne lt le gt ge", "the comparison; with a NaN only ne is true"),
    "fop": _one_of("op", "add sub mul div min max"),
    "iop": _one_of("op", "add sub mul div rem min max minu maxu and or xor shl shr shru"),
    "fun": _one_of("op", "exp log tanh rsqrt sqrt recip"),
    "rop": _one_of("op", "add min max"),
    "type": _one_of("type", "f32 s32", "f32 or s32, float32 or signed integers"),
    "y": Suffix("y", "y([1n])", "y{}", "n", _COPIED),
    "round": Suffix("round", "r([nz])", "r{}", "n", _ROUNDED),
    "end": Suffix("end", "(sat|wrap)", "{}", "sat", "sat or wrap: integers that D cannot hold"),
    "g": Suffix("g", "g([0-9]{1,6})", "g{}", "0", "neighbouring threads of a group (g0: all of them)"),
    "what": _one_of("what", "base size", "which of the two"),
}
_OPERANDS = {
    "D": "rD|urD",
    "at": "urS:rfO:imm",
    "N": "imm|urN",
    "[N]": "[imm|urN|rN]",
    "[P]": "[imm|urP]",
    **{letter: f"r{letter}|ur{letter}|imm" for letter in "XYZ"},
    **{f"f{letter}": f"r{letter}|ur{letter}|float" for letter in "XYZ"},
    **{f"n{letter}": f"r{letter}|ur{letter}|imm|float" for letter in "XY"},
}
"""What stands in the table for operands that many instructions take."""
_USUAL = {
    "math": {"guard": "yes"},
    "alu": {"guard": "yes", "latency": "alu_latency", "width": "32"},
    "lsu": {"guard": "yes", "occupies": "ceil(lines / l1_ports)", "width": "8 to 32 an element, 32 a register"},
    "vector": {
        "guard": "yes",
        "occupies": "ceil(N / vector_rate)",
        "latency": "alu_latency",
        "width": "32 * N",
        "ours": "yes",
    },
    "control": {"width": "32"},
    "dma": {"width": "a page", "ours": "yes"},
}
"""Fields of most instructions of a unit."""
_TABLE = Path(__file__).with_name("instructions.txt").read_text(encoding="utf-8")
"""Groups with their unit; of an instruction its suffixes and operands ; an example, fields not as usual, and a doc."""


def _read_spec(unit: str, entry: str) -> InstructionSpec:
    head, *lines = entry.split("\n")
    form, _, example = head.partition(" ; ")
    (name, *suffixes), operands = form.partition(" ")[0].split("."), form.partition(" ")[2]
    texts = [_OPERANDS.get(text, text) for text in operands.split(", ") if text]
    own = dict(line[6:].split(":", 1) for line in lines if line.startswith("    * "))
    doc = " ".join(line.strip() for line in lines if not line.startswith("    * "))
    unit = own.pop("unit", unit).strip()
    more: dict[str, Any] = {key: value.strip() for key, value in (_USUAL[unit] | own).items()}
    more |= {key: more[key] == "yes" for key in ("guard", "reduces", "ours") if key in more}
    known = tuple(_SUFFIXES[suffix] for suffix in suffixes)
    return InstructionSpec(name, tuple(map(OperandSpec.of, texts)), unit, doc, example, known, **more)


def _read_groups(table: str) -> Iterator[tuple[str, tuple[InstructionSpec, ...]]]:
    for group in re.split("^## ", table, flags=re.MULTILINE)[1:]:
        head, *entries = re.split(r"\n(?=\S)", group.rstrip())
        title, unit = head.split(": ")
        yield title, tuple(_read_spec(unit, entry) for entry in entries)


GROUPS = dict(_read_groups(_TABLE))
INSTRUCTIONS: dict[str, InstructionSpec] = {spec.name: spec for group in GROUPS.values() for spec in group}

"""The assembler: text to :class:`MachineProgram`, or a :class:`ParseError` with line, column and reason."""

from __future__ import annotations

import re
from difflib import get_close_matches

import numpy as np

from tilewright.errors import ParseError, UsageError
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.instructions import INSTRUCTIONS, TYPES, InstructionSpec, OperandSpec, Suffix
from tilewright.isa.language.program import (
    Address,
    Float,
    Guard,
    Immediate,
    Instruction,
    Label,
    MachineProgram,
    Operand,
    Register,
    SegmentName,
)

_SPACE = re.compile(r"[ \t\r]*")
_LABEL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*:(?![ \t]*rf?[0-9])")
_GUARD = re.compile(r"@(!?)p([0-9]{1,9})[ \t]*,?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SUFFIX = re.compile(r"\.([A-Za-z0-9_]*)")
_NUMBER = r"[+-]?(?:0[xX][0-9a-fA-F]{1,40}|[0-9]{1,40})"
_ADDRESS = re.compile(rf"ur([0-9]{{1,9}})[ \t]*:[ \t]*rf([0-9]{{1,9}})[ \t]*:[ \t]*({_NUMBER})(?![A-Za-z0-9_])")
_REGISTER = re.compile(r"(ur|r|p)([0-9]{1,9})(?![A-Za-z0-9_])")
_IMMEDIATE = re.compile(rf"{_NUMBER}(?![A-Za-z0-9_])")
_EXPONENT = r"[eE][+-]?[0-9]{1,4}"
_DECIMAL = (
    rf"[+-]?(?:[0-9]{{1,40}}\.[0-9]{{0,40}}(?:{_EXPONENT})?|\.[0-9]{{1,40}}(?:{_EXPONENT})?|[0-9]{{1,40}}{_EXPONENT})"
)
_FLOAT = re.compile(rf"({_DECIMAL}|0[fF][0-9a-fA-F]{{8}})(?![A-Za-z0-9_.])")
_SEGMENT = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_END = re.compile(r"[ \t\r]*(?:#[^\n]*|//[^\n]*)?(?=\n|\Z)")
_KINDS = {
    "r": "a register rN",
    "ur": "a uniform register urN",
    "p": "a predicate pN",
    "imm": "an integer",
    "float": "a float such as 1.5 or 0f7f800000",
    "address": "an address urS:rfO:imm",
    "segment": "a segment $name",
    "label": "a label",
}


def assemble(text: str, config: MatrixUnitConfig | None = None) -> MachineProgram:
    """The program written in ``text``, one instruction to a line; ``#`` and ``//`` begin a comment.

    Register numbers are checked against ``config`` (default :class:`MatrixUnitConfig`). Raises :class:`ParseError`
    naming line, column and reason. ``str`` of the result is canonical and assembles back to an equal program.

    >>> str(assemble("@p1,mm8.sa.ub.r0,ur4:rf290:0x00,r256")).strip()
    '@p1, mm8.ka1.kb1.t0.sa.ub r0, ur4:rf290:0x00, r256'
    """
    if not isinstance(text, str):
        raise UsageError(f"assemble takes text, not {type(text).__name__}")
    return _Assembler(text, checked_config(config)).program()


def program_of(program: MachineProgram | str, config: MatrixUnitConfig) -> MachineProgram:
    """A program for this machine, from text or assembled; one that names registers it has not is a ParseError.

    Kernels go by the numbers in it without asking again, so what someone made by hand is assembled from its text.
    """
    if isinstance(program, MachineProgram):
        has = {"r": config.registers, "ur": config.uniform_registers, "p": config.predicates}
        if program.assembled and all(n <= has[kind] for kind, n in program.registers.items()):
            return program
        try:
            program = str(program)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"the program cannot be written as text ({type(error).__name__}: {error})"
            raise UsageError(what, how="make programs with assemble") from None
    if not isinstance(program, str):
        raise UsageError(f"a program is text or what assemble made of it, not {type(program).__name__}")
    return assemble(program, config)


def _as_written(suffix: Suffix) -> str:
    """A suffix as an error names it: ``.kaX``, or every word it may be."""
    words = re.fullmatch(r"(\w*)\((\w+(?:\|\w+)+)\)", suffix.pattern)
    return ", ".join(f".{words[1]}{word}" for word in words[2].split("|")) if words else f".{suffix.form.format('X')}"


class _Assembler:
    """Reads from ``position``; every method leaves it behind what it read, or raises at the offending column."""

    def __init__(self, text: str, config: MatrixUnitConfig) -> None:
        self.text, self.position = text, 0
        self.limits = {"r": config.registers, "ur": config.uniform_registers, "p": config.predicates}
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.uses: list[tuple[str, int]] = []

    def program(self) -> MachineProgram:
        line = 1
        while True:
            self._line(line)
            if self.position >= len(self.text):
                break
            self.position += 1
            line += 1
        for name, column in self.uses:
            if name not in self.labels:
                raise self._error(f"no label {name!r} in this program", column, self._near(name, list(self.labels)))
        program = MachineProgram(tuple(self.instructions), tuple(sorted(self.labels.items(), key=lambda item: item[1])))
        object.__setattr__(program, "assembled", True)
        return program

    def _line(self, line: int) -> None:
        self._take(_SPACE)
        while match := self._take(_LABEL):
            if match[1] in self.labels:
                raise self._error(f"label {match[1]!r} stands twice", match.start())
            self.labels[match[1]] = len(self.instructions)
            self._take(_SPACE)
        if not self._at_end():
            self.instructions.append(self._instruction(line))
            if not self._at_end():
                raise self._error("something follows the instruction", self.position, "one instruction to a line")
        self._take(_END)

    def _instruction(self, line: int) -> Instruction:
        guard_at, guard = self.position, self._guard()
        start = self.position
        word = self._take(_WORD)
        if word is None:
            raise self._error("expected an instruction", start)
        name, type_ = word[0], None
        if name.startswith("mm") and name not in INSTRUCTIONS:
            name, type_ = "mm", name[2:]
            if type_ not in TYPES:
                raise self._error(f"unknown TYPE {type_!r} of mm", start + 2, f"one of {', '.join(TYPES)}")
        if name not in INSTRUCTIONS:
            raise self._error(f"no instruction {name!r}", start, self._near(name, list(INSTRUCTIONS)))
        spec = INSTRUCTIONS[name]
        if guard is not None and not spec.guard:
            raise self._error(f"{name} takes no guard", guard_at)
        suffixes, operands = self._suffixes(spec, type_)
        self._operands(spec, operands)
        if guard is not None and operands and isinstance(operands[0], Register) and operands[0].kind == "ur":
            raise self._error("a guard needs a per-thread destination", guard_at, "branch instead")
        return Instruction(name, tuple(operands), type_, suffixes, guard, line)

    def _guard(self) -> Guard | None:
        if not self.text.startswith("@", self.position):
            return None
        match = self._take(_GUARD)
        if match is None:
            raise self._error("expected a guard @pN or @!pN", self.position)
        number = self._number("p", match[2], match.start(2) - 1)
        self._take(_SPACE)
        return Guard(number, bool(match[1]))

    def _suffixes(self, spec: InstructionSpec, type_: str | None) -> tuple[tuple[str | None, ...], list[Operand]]:
        """Suffix values in the table's order, and the product register when it was written as one (mm.r0)."""
        values: dict[str, str] = {}
        operands: list[Operand] = []
        while match := _SUFFIX.match(self.text, self.position):
            register = _REGISTER.fullmatch(match[1])
            if spec.name == "mm" and register is not None and register[1] == "r":
                if operands:
                    raise self._error("a second product register", self.position)
                operands.append(Register("r", self._number("r", register[2], self.position + 1)))
            else:
                self._suffix(spec, type_, match[1], values)
            self.position = match.end()
        for suffix in spec.suffixes:
            if suffix.default is None and suffix.key not in values:
                how = f"one of {_as_written(suffix)}"
                raise self._error(f"{spec.name} needs a suffix: {suffix.doc}", self.position, how)
        # A sign that is not written is left to the segment when TYPE is absent; a float TYPE has none.
        unsigned = ("a", "b") if spec.name == "mm" and (type_ is None or not type_.isdigit()) else ()
        defaults = {s.key: None if s.key in unsigned else s.default for s in spec.suffixes}
        return tuple(values.get(s.key, defaults[s.key]) for s in spec.suffixes), operands

    def _suffix(self, spec: InstructionSpec, type_: str | None, text: str, values: dict[str, str]) -> None:
        for suffix in spec.suffixes:
            match = re.fullmatch(suffix.pattern, text)
            if match is None:
                continue
            if suffix.key in values:
                raise self._error(f"suffix .{text}: the second of its kind", self.position)
            value = str(int(match[1])) if match[1].isdigit() else match[1]
            if value == "0" and suffix.key in ("ka", "kb", "s"):
                raise self._error(f"suffix .{text}: must be 1 or more", self.position)
            if suffix.key in ("a", "b") and spec.name == "mm" and type_ is not None and not type_.isdigit():
                raise self._error(f"suffix .{text}: TYPE {type_} has no sign", self.position)
            values[suffix.key] = value
            return
        known = ", ".join(map(_as_written, spec.suffixes)) or "none"
        raise self._error(f"unknown suffix .{text} of {spec.name}", self.position, f"known: {known}")

    def _operands(self, spec: InstructionSpec, operands: list[Operand]) -> None:
        needed = sum(not o.optional for o in spec.operands)
        for place in range(len(operands), len(spec.operands)):
            self._take(_SPACE)
            if self._at_end() and place >= needed:
                return
            if place and self.text.startswith(",", self.position):
                self.position += 1
            elif place:
                if place >= needed:
                    return
                raise self._error(f"{spec.name}: expected a comma and {_expected(spec.operands[place])}", self.position)
            self._take(_SPACE)
            start = self.position
            operand = self._operand()
            expected = spec.operands[place]
            if isinstance(operand, Label) and "label" in expected.kinds:
                self.uses.append((operand.name, start))
            if operand is None or operand.kind not in expected.kinds:
                raise self._error(f"{spec.name}: expected {_expected(expected)}", start, f"as in {spec.example}")
            uniform = place and isinstance(operands[0], Register) and operands[0].kind == "ur"
            if uniform and operand.kind in ("r", "p") and not spec.reduces:
                raise self._error("a uniform register cannot take a per-thread value", start)
            operands.append(operand)
        self._take(_SPACE)

    def _operand(self) -> Operand | None:
        start = self.position
        if match := self._take(_ADDRESS):
            segment = self._number("ur", match[1], start)
            offset = self._number("r", match[2], match.start(2) - 2)
            return Address(segment, offset, self._integer(match[3], match.start(3), -(2**31), 2**31 - 1))
        if match := self._take(_REGISTER):
            return Register(match[1], self._number(match[1], match[2], start))
        if match := self._take(_FLOAT):
            return self._float(match[1], start)
        if match := self._take(_IMMEDIATE):
            return Immediate(self._integer(match[0], start, -(2**31), 2**32 - 1))
        if match := self._take(_SEGMENT):
            return SegmentName(match[1])
        return Label(match[0]) if (match := self._take(_WORD)) else None

    def _number(self, kind: str, digits: str, column: int) -> int:
        number, limit = int(digits), self.limits[kind]
        if number >= limit:
            raise self._error(f"no register {kind}{number}", column, f"the last one is {kind}{limit - 1}")
        return number

    def _integer(self, text: str, column: int, low: int, high: int) -> int:
        value = int(text, 16) if "x" in text.lower() else int(text)
        if not low <= value <= high:
            raise self._error(f"{text} is not within {low}..{high}", column)
        return value

    def _float(self, text: str, column: int) -> Float:
        if text[:2] in ("0f", "0F"):
            return Float(int(text[2:], 16))
        with np.errstate(over="ignore"):
            value = np.float32(text)
        if not np.isfinite(value):
            raise self._error(f"{text} is not within float32", column, "0f7f800000 is infinity")
        return Float(int(value.view(np.uint32)))

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What the pattern finds here; then it is behind us."""
        if match := pattern.match(self.text, self.position):
            self.position = match.end()
        return match

    def _at_end(self) -> bool:
        return _END.match(self.text, self.position) is not None

    @staticmethod
    def _near(word: str, known: list[str]) -> str:
        near = get_close_matches(word, known, n=3, cutoff=0.5)
        return f"did you mean {' or '.join(near)}?" if near else ""

    def _error(self, what: str, column: int, how: str = "") -> ParseError:
        return ParseError(what, text=self.text, column=column, how=how)


def _expected(spec: OperandSpec) -> str:
    return " or ".join(_KINDS[kind] for kind in spec.kinds)

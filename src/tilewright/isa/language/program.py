"""Programs as values: operands, instructions and the canonical text, which assembles back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.isa.language.instructions import INSTRUCTIONS, InstructionSpec


@dataclass(frozen=True)
class Register:
    """A register: ``r256``, ``ur4`` or ``p1``."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


@dataclass(frozen=True)
class Immediate:
    """An integer; printed as decimal."""

    value: int

    kind = "imm"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Float:
    """A float32 as its 32 bits; finite ones are printed as decimals that read back, others as ``0f7f800000``.

    >>> print(Float(0x3FC00000), Float(0x7F800000))
    1.5 0f7f800000
    """

    bits: int

    kind = "float"

    def __str__(self) -> str:
        value = np.uint32(self.bits).view(np.float32)
        if not np.isfinite(value):
            return f"0f{self.bits:08x}"
        plain = 1e-4 <= abs(value) < 1e7 or value == 0
        return np.format_float_positional(value, trim="0") if plain else np.format_float_scientific(value, trim="-")


@dataclass(frozen=True)
class Address:
    """``ur4:rf290:0x00``: segment handle in ur4, coordinates in r290 onwards (d1 first), offset added to d1."""

    segment: int
    offset: int
    immediate: int

    kind = "address"

    def __str__(self) -> str:
        sign = "-" if self.immediate < 0 else ""
        return f"ur{self.segment}:rf{self.offset}:{sign}0x{abs(self.immediate):02x}"


@dataclass(frozen=True)
class SegmentName:
    """``$B``: a segment by the host's name."""

    name: str

    kind = "segment"

    def __str__(self) -> str:
        return f"${self.name}"


@dataclass(frozen=True)
class Label:
    """The name of a place in the program."""

    name: str

    kind = "label"

    def __str__(self) -> str:
        return self.name


class _Hashed:
    """A dataclass by whose value things are found again and again: its hash is computed once."""

    @cached_property
    def _hash(self) -> int:
        compared: Any = self
        return hash(tuple(getattr(self, each.name) for each in fields(compared) if each.compare))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """The hash is left out: it differs from process to process."""
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}


Operand = Register | Immediate | Float | Address | SegmentName | Label


@dataclass(frozen=True)
class Guard:
    """A predicate that guards an instruction: ``@p1`` or ``@!p1``."""

    predicate: int
    negated: bool = False

    def __str__(self) -> str:
        return f"@{'!' * self.negated}p{self.predicate}"


@dataclass(frozen=True)
class Instruction(_Hashed):
    """One instruction: name, TYPE (``mm`` only), suffix values in the table's order, operands, guard.

    A suffix value is None where nothing is written and nothing is to be printed (signs of an ``mm`` without integer
    TYPE). ``line`` is the source line, for messages only.
    """

    name: str
    operands: tuple[Operand, ...] = ()
    type: str | None = None
    suffixes: tuple[str | None, ...] = ()
    guard: Guard | None = None
    line: int = field(default=0, compare=False)

    __hash__ = _Hashed.__hash__

    @property
    def spec(self) -> InstructionSpec:
        """The row of the instruction table."""
        return INSTRUCTIONS[self.name]

    @cached_property
    def address(self) -> Address:
        """Its operand that is an address."""
        return next(o for o in self.operands if isinstance(o, Address))

    def suffix(self, key: str) -> str | None:
        """The value of the suffix called ``key`` in the table."""
        return self._values[key]

    @cached_property
    def _values(self) -> dict[str, str | None]:
        return {s.key: v for s, v in zip(self.spec.suffixes, self.suffixes, strict=True)}

    def __str__(self) -> str:
        """Canonical text: ``@p1, mm8.ka1.kb1.t1.sa.sb r0, ur4:rf290:0x00, r256``."""
        guard = f"{self.guard}, " if self.guard else ""
        suffixes = "".join(
            f".{spec.form.format(value)}"
            for spec, value in zip(self.spec.suffixes, self.suffixes, strict=True)
            if value is not None and (spec.always or value != spec.default)
        )
        operands = ", ".join(str(o) for o in self.operands)
        return f"{guard}{self.name}{self.type or ''}{suffixes} {operands}".rstrip()


@dataclass(frozen=True)
class MachineProgram(_Hashed):
    """A sequence of instructions; ``labels`` maps a name to the index of the instruction it stands before.

    ``assembled``: it comes from ``assemble``, which has looked at every operand; one made by hand is assembled from its
    text before it runs.

    >>> from tilewright.isa import assemble
    >>> print(assemble("again: add ur1,ur1,1\\nbr.lt ur1,8,again"))
    again:
        add ur1, ur1, 1
        br.lt ur1, 8, again
    """

    instructions: tuple[Instruction, ...] = ()
    labels: tuple[tuple[str, int], ...] = ()
    assembled: bool = field(default=False, init=False, compare=False, repr=False)

    __hash__ = _Hashed.__hash__

    @cached_property
    def registers(self) -> dict[str, int]:
        """Registers it needs of each kind: one more than the highest number it names."""
        needed = {"r": 0, "ur": 0, "p": 0}
        for instruction in self.instructions:
            named = [(o.kind, o.number) for o in instruction.operands if isinstance(o, Register)]
            for address in (o for o in instruction.operands if isinstance(o, Address)):
                named += [("ur", address.segment), ("r", address.offset)]
            if instruction.guard is not None:
                named.append(("p", instruction.guard.predicate))
            for kind, number in named:
                needed[kind] = max(needed[kind], number + 1)
        return needed

    def __len__(self) -> int:
        return len(self.instructions)

    def __str__(self) -> str:
        """Canonical text; ``assemble(str(program)) == program``."""
        return "\n".join(text if label else f"    {text}" for label, _, text in self._lines())

    def listing(self) -> str:
        """Canonical text with the index of every instruction, as errors and traces name it.

        >>> from tilewright.isa import assemble
        >>> print(assemble("mov r0, 1").listing())
        0000      mov r0, 1
        """
        return "\n".join(f"      {t}" if label else f"{pc:04d}      {t}" for label, pc, t in self._lines())

    def _lines(self) -> Iterator[tuple[bool, int, str]]:
        """(is a label, index of the instruction, text) line by line."""
        at: dict[int, list[str]] = {}
        for name, index in self.labels:
            at.setdefault(index, []).append(name)
        for pc in range(len(self.instructions) + 1):
            yield from ((True, pc, f"{name}:") for name in at.get(pc, ()))
            if pc < len(self.instructions):
                yield False, pc, str(self.instructions[pc])

"""What an instruction does, in words and with this machine's numbers, which the machine itself counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from tilewright.errors import UsageError
from tilewright.isa._assemble import program_of
from tilewright.isa._checks import whole
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._counts import Counts, Traffic
from tilewright.isa._errors import ErrorRecord
from tilewright.isa._explain_mm import guard_words, mm_words, plural, waits_words
from tilewright.isa._program import Instruction, Label, Program
from tilewright.isa._rehearse import Rehearsal, rehearse, stage
from tilewright.isa._state import Pe

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Some lines about one instruction, and what it counted on a copy of the machine.

    ``says``: lines of explanation; ``errors``: the records it would make; ``counts``, ``traffic``: what it would count
    (None where nothing was tried: only an ``mm`` is without a state of the machine). ``lines``: for every tensor it
    accesses how many ``lines``, the ``first_byte`` and ``last_byte`` of them (of the store; without a state of B's own
    pages), and accesses by kind as :class:`Heat` has them. ``time``, with a state: the cycles of its ``issue`` and of
    its last result (``done``), and how long the issue queue waits, by reason.

    >>> from tilewright.isa import assemble
    >>> (mm,) = assemble("mm8 r0, ur4:rf290:0x00, r256").instructions
    >>> explain(mm).counts.macs == 256 * 256 * 8
    True
    """

    text: str
    says: tuple[str, ...]
    errors: tuple[ErrorRecord, ...] = ()
    counts: Counts | None = None
    traffic: Traffic | None = None
    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    time: dict[str, int] | None = None

    def __str__(self) -> str:
        """The instruction, and the lines about it."""
        return "\n".join((self.text, *self.says))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        records = [{"pc": e.pc, "kind": e.kind, "column": e.column, "register": e.register} for e in self.errors]
        numbers: dict[str, Any] = {"counts": self.counts.to_dict() if self.counts else None}
        numbers["traffic"] = self.traffic.to_dict() if self.traffic else None
        numbers |= {"lines": self.lines, "time": self.time}
        return {"text": self.text, "says": list(self.says), "errors": records, **numbers}


def explain(
    instruction: Instruction,
    config: MatrixUnitConfig | None = None,
    segment: Any = None,
    columns: int | None = None,
    rows: int | None = None,
    at: Pe | None = None,
) -> Explanation:
    """What one assembled instruction does; the numbers are counted by the machine on a copy that is thrown away.

    ``at``: a processing element as it stands, ``Debugger.pe`` or ``RunResult.state``: then the numbers are those of
    executing it next there, time and misses too. Without it an ``mm`` is tried with all columns on, loader j at column
    j of B, k = 0: B is like the array ``segment``, as it is stored (None: as large as the instruction needs, 2 dims),
    with ``columns`` and ``rows`` as ``setmm`` would say. Raises :class:`UsageError` for columns the machine has not.

    >>> from tilewright.isa import assemble
    >>> (tid,) = assemble("tid r3").instructions
    >>> print(explain(tid))
    tid r3
    D = the thread's number
    unit alu; keeps it 1 cycle, its result is there after alu_latency = 1 cycle
    """
    config = checked_config(config if at is None else at.config)
    _check(instruction, config)
    if at is not None:
        done = rehearse(at, instruction)
        says = mm_words(done, instruction, here=True) if instruction.name == "mm" else _other(instruction, config, done)
        return _told(instruction, says, done, here=True)
    if instruction.name != "mm":
        return Explanation(str(instruction), _narrow(_other(instruction, config)))
    for name, given, most in (("columns", columns, config.loader_threads), ("rows", rows, config.compute_threads)):
        if given is not None and whole(name, given, 1) > most:
            raise UsageError(f"{name} = {given} of {most} threads")
    pe, assumed = stage(instruction, config, segment, columns, rows)
    done = rehearse(pe, instruction, staged=True)
    return _told(instruction, mm_words(done, instruction, here=False, assumed=assumed), done, here=False)


def _check(instruction: Instruction, config: MatrixUnitConfig) -> None:
    """Refuse what could not be run: registers this machine has not, operands someone made by hand."""
    if not isinstance(instruction, Instruction):
        raise UsageError(
            f"explain takes an instruction, not {type(instruction).__name__}",
            how="take it from assemble(text).instructions",
        )
    labels = {o.name: 0 for o in instruction.operands if isinstance(o, Label)}
    program_of(Program((instruction,), tuple(labels.items())), config)


def _narrow(lines: list[str]) -> tuple[str, ...]:
    """No line longer than a page; what is left over is indented."""
    return tuple(piece for line in lines for piece in wrap(line, 116, subsequent_indent="   ", drop_whitespace=True))


def _told(instruction: Instruction, says: list[str], done: Rehearsal, here: bool) -> Explanation:
    time = {"issue": done.times[0], "done": done.times[1], **done.waits} if here else None
    numbers = (done.errors, done.counts, done.traffic, done.accesses(), time)
    return Explanation(str(instruction), _narrow(says), *numbers)


def _other(instruction: Instruction, config: MatrixUnitConfig, done: Rehearsal | None = None) -> list[str]:
    """An instruction that is no mm: the table's words, and what it counts where the machine stands."""
    spec = instruction.spec
    lines = guard_words(instruction, config, done.pe if done else None)
    cost = f"unit {spec.unit}; keeps it {plural(spec.occupies)}"
    if spec.latency:
        cost += f", its result is there after {spec.latency} = {plural(getattr(config, spec.latency))}"
    return [*lines, spec.doc, cost, *(_here(done) if done else [])]


def _here(done: Rehearsal) -> list[str]:
    traffic, lines = done.traffic, []
    for kind, count, size in (
        ("loads", traffic.load_lines, traffic.load_bytes),
        ("stores", traffic.store_lines, traffic.store_bytes),
    ):
        if count:
            (name,) = (name for name, seen in done.lines.items() if seen.any())
            distinct, first, last = done.span(name)
            what = f"now: {kind} {size:,} bytes of {name}, {count:,} requests for {plural(distinct, 'line')}"
            lines.append(f"{what}, bytes {first:,} to {last:,} of the store")
    return [*lines, *waits_words(done), *(f"error: {record}" for record in done.errors)]

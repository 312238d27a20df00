"""Loops that one kernel call can run: which they are, and what the kernel is given.

A loop is taken where nothing in it can see a difference: plain arithmetic, branches, at most one ``ld`` and one ``mm``
with all its pages at hand, and no one else looking at the product registers. K rounds are then added together, exactly
where the arithmetic permits it: integers modulo 2^32 by float products that stay exact, floats in the documented order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa._blocks import L_EXECUTED
from tilewright.isa._loop_codes import (
    ALU,
    BARE,
    BR,
    CMP,
    CONDITIONS,
    FULL,
    JUMP,
    LD,
    LOGIC,
    LOGICS,
    LOOP,
    MM,
    OPERATIONS,
    ROW,
)
from tilewright.isa._loop_frames import Frame, frame_of
from tilewright.isa._operands import number, uniform_source
from tilewright.isa._program import Address, Immediate, Instruction, Label, Program, Register
from tilewright.isa._state import Pe

__all__ = ["FastLoop", "loop_at", "loop_heads", "run_fast"]

Array = np.ndarray[Any, Any]
_ENCODED = {
    **dict.fromkeys(OPERATIONS, ALU),
    **dict.fromkeys(LOGICS, LOGIC),
    "cmp": CMP,
    "loop": LOOP,
    "br": BR,
    "jump": JUMP,
    "nop": BARE,
    "ld": LD,
    "mm": MM,
}
_KIND = {"imm": 0, "float": 0, "ur": 1, "r": 2, "p": 3}


@dataclass(eq=False)
class FastLoop:
    """A loop as the kernel takes it: rows of numbers, and the one ``ld`` and ``mm`` in it.

    ``foreign``: registers that others than ``mm`` name; ``strikes``: times it was left at once, to no one's gain.
    ``frame``: what the last run was given.
    """

    first: int
    last: int
    code: Array
    ld: Instruction | None
    mm: Instruction | None
    foreign: frozenset[int]
    strikes: int = 0
    frame: Frame | None = None


def loop_at(pe: Pe, program: Program, first: int, last: int) -> FastLoop | None:
    """The loop of instructions ``first`` to ``last``, or None where the kernel cannot run it."""
    c = pe.config
    readings = (c.pred_scope, c.column_numbering, c.uninitialized, c.offset_mode, c.math_issue)
    if readings != ("loader", "gap", "zero", "registers", "step") or c.loads_through_l1 or c.bcast_depth > 64:
        return None
    body = program.instructions[first : last + 1]
    special = {name: [each for each in body if each.name == name] for name in ("ld", "mm")}
    if any(each.name not in _ENCODED for each in body) or any(len(found) > 1 for found in special.values()):
        return None
    labels = dict(program.labels)
    code = np.stack([_row(pe, each, labels) for each in body])
    handles = {o.segment for each in body for o in each.operands if isinstance(o, Address)}
    if handles & {number(e.operands[0]) for e in body if _writes(e, "ur")}:
        return None
    ld, mm = (found[0] if found else None for found in special.values())
    if ld is not None and len(ld.operands) > 2 and not isinstance(ld.operands[2], Immediate):
        return None
    # The kernel counts from the program's first instruction.
    whole = np.concatenate((np.zeros((first, code.shape[1]), np.int64), code))
    registers = frozenset(number(o) for e in body if e.name != "mm" for o in e.operands if _is(o, "r"))
    return FastLoop(first, last, whole, ld, mm, registers)


def loop_heads(program: Program) -> dict[int, int]:
    """First instruction of every loop to its last; of loops with one head, the innermost."""
    labels, found = dict(program.labels), dict[int, int]()
    for at, each in enumerate(program.instructions):
        head = labels[each.operands[-1].name] if each.operands and isinstance(each.operands[-1], Label) else at + 1
        if head <= at:
            found.setdefault(head, at)
    return found


def _is(operand: Any, kind: str) -> bool:
    return isinstance(operand, Register) and operand.kind == kind


def _writes(instruction: Instruction, kind: str) -> bool:
    spec = instruction.spec
    return bool(spec.operands) and spec.operands[0].access == "write" and _is(instruction.operands[0], kind)


def _row(pe: Pe, instruction: Instruction, labels: dict[str, int]) -> Array:
    """One instruction in numbers; see ``_loop_codes``."""
    row = np.zeros(ROW, np.int64)
    row[10:15] = -1
    name, op = instruction.name, _ENCODED[instruction.name]
    row[0], row[7], operands = op, -1, list(instruction.operands)
    if instruction.guard is not None:
        row[7], row[8] = instruction.guard.predicate, instruction.guard.negated
        row[13] = pe.clock.span("p", instruction.guard.predicate).start
    if op in (LD, MM):
        return _memory_row(pe, instruction, row)
    places = [pe.clock.span(o.kind, o.number).start if isinstance(o, Register) else -1 for o in operands]
    if op == BR:
        row[2], row[9] = _target(operands[2], labels), CONDITIONS.index(instruction.suffix("cond") or "")
        sources, places = operands[:2], [*places[:2], -1]
        row[10:12] = places[:2]
    elif op in (JUMP, BARE):
        row[9] = _target(operands[0], labels) if op == JUMP else 0
        return row
    else:
        row[1], row[2], row[14] = _KIND[operands[0].kind], number(operands[0]), places[0]
        sources = operands[1:]
        if op == LOOP:
            row[9], row[10], sources = _target(operands[1], labels), places[0], []
        else:
            row[10 : 10 + len(sources)] = places[1:]
            row[9] = _operation(instruction, name)
    for at, source in zip((3, 5), sources, strict=False):
        row[at] = _KIND[source.kind]
        row[at + 1] = source.number if isinstance(source, Register) else uniform_source(pe, source)
    row[15] = sum(_is(source, "r") for source in sources)
    return row


def _operation(instruction: Instruction, name: str) -> int:
    if name == "cmp":
        return CONDITIONS.index(instruction.suffix("cond") or "")
    return LOGICS.index(name) if name in LOGICS else OPERATIONS.index(name)


def _target(operand: Any, labels: dict[str, int]) -> int:
    assert isinstance(operand, Label)
    return labels[operand.name]


def _memory_row(pe: Pe, instruction: Instruction, row: Array) -> Array:
    address, count = instruction.operands[1], instruction.operands[2:]
    assert isinstance(address, Address)
    row[2], row[4], row[5] = number(instruction.operands[0]), address.offset, address.immediate
    if instruction.name == "ld":
        row[6] = count[0].value if count and isinstance(count[0], Immediate) else 1
    row[10] = pe.clock.span("ur", address.segment).start
    return row


def run_fast(pe: Pe, loop: FastLoop, most: int) -> bool:
    """Run a loop from ``pe.pc`` until it is left or a function of its own is wanted; False if nothing was done."""
    from tilewright.isa._loop_kernels import run_loop

    frame = frame_of(pe, loop)
    if frame is None:
        return False
    frame.take(pe, most)
    place = frame.block.cells
    while True:
        before = int(place[L_EXECUTED])
        why = run_loop(place)
        full = frame.sums is not None and frame.sums.add(pe.words)
        if not (why == FULL and full and place[L_EXECUTED] >= before):
            break
    done = int(place[L_EXECUTED]) - pe.executed
    worth = 4 if loop.mm is None else 1  # turns
    loop.strikes += done < worth * (loop.last - loop.first + 1)
    frame.give(pe)
    return done > 0

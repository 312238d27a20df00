"""Loops that one kernel call can run: which they are, and what the kernel is given.

A loop is taken where nothing in it can see a difference: plain arithmetic, branches, at most one ``ld`` and one ``mm``
with all its pages at hand, and no one else looking at the product registers. K rounds are then added together, exactly
where the arithmetic permits it: integers modulo 2^32 by float products that stay exact, floats in the documented order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilewright.isa._addresses import Block, address, longs
from tilewright.isa._blocks import L_EXECUTED, L_PC
from tilewright.isa._clock import MATH_STALLS, QUEUE
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
from tilewright.isa._loop_sums import Sums
from tilewright.isa._memory import at_hand, transfer_block
from tilewright.isa._operands import number, uniform_source
from tilewright.isa._program import Address, Immediate, Instruction, Label, Program, Register
from tilewright.isa._roles import Roles, assign_roles
from tilewright.isa._state import Pe

__all__ = ["FastLoop", "loop_at", "loop_heads", "run_fast"]

Array = np.ndarray[Any, Any]
_COUNTS = (
    *("instructions", "macs", "column_loads", "broadcast_elements", "steps", "a_register_reads", "a_bytes_loaded"),
    *("accumulator_reads", "accumulator_writes", "kb_transfers", "l1_touches", "l1_misses", "l2_misses"),
)
_TRAFFIC = (
    *("register_reads", "register_writes", "load_lines", "load_bytes", "l1_hits"),
    *("retained_lines", "released_lines", "pin_evictions", "bypasses"),
)
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
    ``known``: what the last run was given for the ``mm``, and of what state.
    """

    first: int
    last: int
    code: Array
    ld: Instruction | None
    mm: Instruction | None
    foreign: frozenset[int]
    strikes: int = 0
    known: tuple[Any, ...] = ()


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


def _prepared_ld(pe: Pe, loop: FastLoop) -> tuple[int, Block] | None:
    """What the kernel needs of the ``ld`` (elements at most, its block); of none where there is none."""
    if loop.ld is None:
        return 0, Block()
    where, row = loop.ld.operands[1], loop.code[loop.code[:, 0] == LD][-1]
    assert isinstance(where, Address)
    segment, words, c = pe.segment(where.segment), int(row[6]), pe.config
    if segment is None or not at_hand(segment) or words < 1 or row[2] + words > c.registers:
        return None
    dim, dims = int(loop.ld.suffix("t") or 0), len(segment.sizes)
    if dim >= dims or where.offset + dims > c.registers:
        return None
    loop.code[loop.code[:, 0] == LD, 16] = where.offset + dims
    most, limit = words * 4 // segment.element_bytes, int(loop.ld.suffix("n") or 0)
    at, wanted = np.zeros((c.threads, dims), np.int64), np.zeros(c.threads, np.int64)
    return min(most, limit or most), transfer_block(pe, segment, loop.ld, at, wanted)


def _roles(pe: Pe, loop: FastLoop) -> Roles | None:
    """Who does what in the ``mm``, with every column on; None where the general function has something to say."""
    c, mm = pe.config, loop.mm
    assert mm is not None
    roles = assign_roles(pe, Instruction("mm", mm.operands, mm.type, mm.suffixes))
    if isinstance(roles, str) or not roles.on.all() or not at_hand(roles.segment):
        return None
    floats = roles.type_a[0] not in "su"
    if (floats and c.float_order != "chunk") or (not floats and c.overflow != "wrap"):
        return None
    window = range(roles.first, roles.first + roles.local)
    begin = roles.address.offset
    sources = {*range(roles.a, roles.a + c.a_registers), *range(begin, begin + len(roles.segment.sizes))}
    loaded = range(0)
    if loop.ld is not None:
        row = loop.code[loop.code[:, 0] == LD][-1]
        loaded = range(int(row[2]), int(row[2] + row[6]))
        sources |= {*range(int(row[4]), int(row[16]))}
    return None if any(n in window for n in (*loop.foreign, *sources, *loaded)) else roles


def _prepared_mm(pe: Pe, loop: FastLoop) -> tuple[Roles, Sums, bool] | None:
    """Who does what in the ``mm``, where its sums wait, and whether its segment awaits lines for the first time.

    As the last time, where nothing is another since.
    """
    mm = loop.mm
    assert mm is not None
    address = mm.operands[1]
    assert isinstance(address, Address)
    segment = pe.segment(address.segment)
    if segment is None:
        return None
    selected = bool(segment.selected.size)
    state = [pe.columns, pe.rows, *map(id, (segment, segment.table.phys, pe.chip.store))]
    if loop.known and loop.known[0] == state and at_hand(segment):
        return cast("tuple[Roles, Sums, bool]", loop.known[1:])
    roles = _roles(pe, loop)
    if roles is None:
        return None
    found = roles, Sums.of(pe, roles, mm), not selected
    # A walk that retains lines begins with tables of its own. What is kept keeps those objects: no others get their id.
    loop.known = () if mm.suffix("t") == "1" else (state, *found)
    return found


def run_fast(pe: Pe, loop: FastLoop, most: int) -> bool:
    """Run a loop from ``pe.pc`` until it is left or a function of its own is wanted; False if nothing was done."""
    from tilewright.isa._loop_kernels import run_loop

    ld = _prepared_ld(pe, loop)
    product = _prepared_mm(pe, loop) if loop.mm is not None else None
    if ld is None or (loop.mm is not None and product is None):
        return False
    c, uniform = pe.config, np.array(pe.uniform, np.int64)
    counts, traffic = np.zeros(len(_COUNTS), np.int64), np.zeros(len(_TRAFFIC), np.int64)
    clock = np.zeros(8 + c.bcast_depth + 1, np.int64)
    flight = list(pe.clock.in_flight)
    clock[: 8 + len(flight)] = [pe.clock.issue, pe.clock.end, *pe.clock.free, 0, len(flight), *flight]
    queue, math = np.zeros(len(QUEUE), np.int64), np.zeros(len(MATH_STALLS), np.int64)
    state = (
        address(pe.file, np.int32),
        pe.file.strides[0],
        c.threads,
        pe.predicates,
        pe.predicates.strides[0],
        uniform,
    )
    scoreboard = (*longs(pe.clock.tokens), pe.clock.causes, *longs(pe.clock.foreign))
    block = Block(
        *(loop.code, loop.first, loop.last, c.alu_latency, c.l2_latency, c.l1_ports, pe.pc, pe.executed, most),
        *(*state, counts, traffic, clock, queue, math, *scoreboard),
        *(ld[1], ld[0], product[1].block if product else 0, *longs(pe.l1.arrays(), pe.chip.l2.arrays())),
    )
    place = block.cells
    while True:
        before = int(place[L_EXECUTED])
        why = run_loop(place)
        full = product is not None and product[1].add(pe.words)
        if not (why == FULL and full and place[L_EXECUTED] >= before):
            break
    pe.next_pc = int(place[L_PC])
    worth = 4 if loop.mm is None else 1  # turns
    loop.strikes += int(place[L_EXECUTED]) - pe.executed < worth * (loop.last - loop.first + 1)
    done = int(place[L_EXECUTED]) > pe.executed
    pe.pc, pe.executed = int(place[L_PC]), int(place[L_EXECUTED])
    pe.uniform = uniform.tolist()
    pe.clock.issue, pe.clock.end, pe.clock.free = int(clock[0]), int(clock[1]), clock[2:6].tolist()
    pe.clock.math_busy += int(clock[6])
    pe.clock.in_flight.clear()
    pe.clock.in_flight.extend(clock[8 : 8 + int(clock[7])].tolist())
    for account, names, values in (
        (pe.clock.queue, QUEUE, queue),
        (pe.clock.math, MATH_STALLS, math),
    ):
        for name, value in zip(names, values.tolist(), strict=True):
            account[name] += value
    for holder, names_, values in ((pe.counts, _COUNTS, counts), (pe.traffic, _TRAFFIC, traffic)):
        for name, value in zip(names_, values.tolist(), strict=True):
            setattr(holder, name, getattr(holder, name) + value)
    pe.counts.dram_bytes += int(counts[-1]) * c.line_bytes
    if product and product[2] and counts[0] == 0:  # no mm came to walk the segment
        product[0].segment.forget_all()
    return done

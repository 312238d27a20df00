"""What a loop that one call runs is given: the state of its processing element, by address, and where it comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.isa._addresses import Block, address, longs
from tilewright.isa._blocks import L_EXECUTED, L_MOST, L_PC
from tilewright.isa._clock import MATH_STALLS, QUEUE
from tilewright.isa._loop_codes import LD
from tilewright.isa._loop_sums import Sums
from tilewright.isa._memory import at_hand, transfer_block
from tilewright.isa._program import Address, Instruction
from tilewright.isa._roles import Roles, assign_roles
from tilewright.isa._segments import Segment
from tilewright.isa._state import Pe

__all__ = ["Frame", "frame_of"]

Array = np.ndarray[Any, Any]
_COUNTS = (
    *("instructions", "macs", "column_loads", "broadcast_elements", "steps", "a_register_reads", "a_bytes_loaded"),
    *("accumulator_reads", "accumulator_writes", "kb_transfers", "l1_touches", "l1_misses", "l2_misses"),
)
_TRAFFIC = (
    *("register_reads", "register_writes", "load_lines", "load_bytes", "l1_hits"),
    *("retained_lines", "released_lines", "pin_evictions", "bypasses"),
)


class _Loop(Protocol):
    """What is asked of a :class:`tilewright.isa._loops.FastLoop`."""

    first: int
    last: int
    code: Array
    ld: Instruction | None
    mm: Instruction | None
    foreign: frozenset[int]
    frame: Frame | None


@dataclass(eq=False)
class Frame:
    """The block of one loop and the arrays behind it; good as long as ``state`` is.

    ``fresh``: the segment of an ``mm`` that retains lines, where no walk had been before, else None. ``kept``: what
    ``state`` names, so that nothing else gets its identity.
    """

    state: list[int | None]
    kept: list[Any]
    block: Block
    uniform: Array
    clock: Array
    accounts: tuple[Array, Array, Array, Array]
    sums: Sums | None
    fresh: Segment | None

    @classmethod
    def of(cls, pe: Pe, loop: _Loop, state: list[int | None], kept: list[Any]) -> Frame | None:
        """For the state as it is, or None where the kernel cannot run the loop."""
        ld, sums, fresh = _prepared_ld(pe, loop), None, None
        if ld is None:
            return None
        if loop.mm is not None:
            roles = _roles(pe, loop)
            if roles is None:
                return None
            walks = loop.mm.suffix("t") == "1"
            fresh = roles.segment if walks and not roles.segment.selected.size else None
            sums = Sums.of(pe, roles, loop.mm)
        c, uniform = pe.config, np.zeros(len(pe.uniform), np.int64)
        clock = np.zeros(8 + c.bcast_depth + 1, np.int64)
        accounts = tuple(np.zeros(len(names), np.int64) for names in (_COUNTS, _TRAFFIC, QUEUE, MATH_STALLS))
        assert pe.predicates.dtype == bool
        assert pe.clock.causes.dtype == np.int8
        registers = address(pe.file, np.int32), pe.file.strides[0], c.threads
        counts, traffic, queue, math = accounts
        block = Block(
            *(loop.code, loop.first, loop.last, c.alu_latency, c.l2_latency, c.l1_ports, 0, 0, 0),
            *(*registers, pe.predicates, pe.predicates.strides[0], uniform),
            *(counts, traffic, clock, queue, math, *longs(pe.clock.tokens), pe.clock.causes, *longs(pe.clock.foreign)),
            *(ld[1], ld[0], sums.block if sums else 0, *longs(pe.l1.arrays(), pe.chip.l2.arrays())),
        )
        return cls(state, kept, block, uniform, clock, (counts, traffic, queue, math), sums, fresh)

    def take(self, pe: Pe, most: int) -> None:
        """Put what changes from instruction to instruction where the kernel finds it."""
        place, clock, flight = self.block.cells, self.clock, list(pe.clock.in_flight)
        place[L_PC], place[L_EXECUTED], place[L_MOST] = pe.pc, pe.executed, most
        self.uniform[:] = pe.uniform
        clock[: 8 + len(flight)] = [pe.clock.issue, pe.clock.end, *pe.clock.free, 0, len(flight), *flight]
        for account in self.accounts:
            account[:] = 0

    def give(self, pe: Pe) -> None:
        """Put it back where everyone finds it."""
        place, clock, (counts, traffic, queue, math) = self.block.cells, self.clock, self.accounts
        pe.pc = pe.next_pc = int(place[L_PC])
        pe.executed, pe.uniform = int(place[L_EXECUTED]), self.uniform.tolist()
        pe.clock.issue, pe.clock.end, pe.clock.free = int(clock[0]), int(clock[1]), clock[2:6].tolist()
        pe.clock.math_busy += int(clock[6])
        pe.clock.in_flight.clear()
        pe.clock.in_flight.extend(clock[8 : 8 + int(clock[7])].tolist())
        for account, names, values in ((pe.clock.queue, QUEUE, queue), (pe.clock.math, MATH_STALLS, math)):
            for name, value in zip(names, values.tolist(), strict=True):
                account[name] += value
        for holder, names_, values in ((pe.counts, _COUNTS, counts), (pe.traffic, _TRAFFIC, traffic)):
            for name, value in zip(names_, values.tolist(), strict=True):
                setattr(holder, name, getattr(holder, name) + value)
        pe.counts.dram_bytes += int(counts[-1]) * pe.config.line_bytes
        if self.fresh is not None and counts[0] == 0:  # no mm came to walk the segment
            self.fresh.forget_all()


def frame_of(pe: Pe, loop: _Loop) -> Frame | None:
    """What a loop is given now: as the last time, where nothing is another since; None where it cannot be run."""
    used = [each.operands[1] for each in (loop.ld, loop.mm) if each is not None]
    segments = [pe.segment(where.segment) for where in used if isinstance(where, Address)]
    there = [segment for segment in segments if segment is not None and at_hand(segment)]
    if len(there) < len(segments):
        return None
    tables = [each for segment in there for each in (segment, segment.table.phys)]
    others = (pe.file, pe.chip.store, pe.l1.arrays(), pe.chip.l2.arrays(), pe.clock.tokens)
    state = [pe.columns, pe.rows, *map(id, (*tables, *others))]
    if loop.frame is None or loop.frame.state != state:
        frame = Frame.of(pe, loop, state, [*tables, *others])
        # A walk that retains lines begins with tables of its own.
        loop.frame = None if loop.mm is not None and loop.mm.suffix("t") == "1" else frame
        return frame
    return loop.frame


def _row_of_ld(loop: _Loop) -> Array:
    found: Array = loop.code[loop.code[:, 0] == LD][-1]
    return found


def _prepared_ld(pe: Pe, loop: _Loop) -> tuple[int, Block] | None:
    """What the kernel needs of the ``ld`` (elements at most, its block); of none where there is none."""
    if loop.ld is None:
        return 0, Block()
    where, row = loop.ld.operands[1], _row_of_ld(loop)
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


def _roles(pe: Pe, loop: _Loop) -> Roles | None:
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
        row = _row_of_ld(loop)
        loaded = range(int(row[2]), int(row[2] + row[6]))
        sources |= {*range(int(row[4]), int(row[16]))}
    return None if any(n in window for n in (*loop.foreign, *sources, *loaded)) else roles

"""Stretches: instructions that one kernel call runs, and what the kernel is given.

The kernel takes plain arithmetic, branches, loads, stores and ``mm``, where no one could tell it from the
instructions' own functions: all pages at hand, every column of the ``mm`` in range. It leaves what ``mm`` add in
buffers, K round behind K round; the sums are added together once the buffers are full or someone else looks at the
product registers. All other instructions end a stretch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.memory import transfer_record
from tilewright.isa.execute.operands import at_hand, number, uniform_source
from tilewright.isa.execute.sums import Sums
from tilewright.isa.execute.tensor import assign_roles
from tilewright.isa.kernels.records import (
    ALU,
    BR,
    CLOCK,
    CLR,
    CMP,
    CONDITIONS,
    COUNTS,
    FULL,
    INSTRUCTION,
    IRREGULAR,
    JUMP,
    LD,
    LDB,
    LOGIC,
    LOGICS,
    LOOP_BACK,
    MULTIPLY,
    NOP,
    OPERATIONS,
    OTHER,
    SEGMENT,
    SETMM,
    ST,
    STRETCH,
    TID,
    TRAFFIC,
    WANTED,
    Record,
    address,
    longs,
)
from tilewright.isa.language.program import Address, Instruction, Label, MachineProgram, Operand, Register, SegmentName

Array = np.ndarray[Any, Any]
_ACCOUNTS = (COUNTS.names, TRAFFIC.names, tuple(QUEUE), tuple(MATH_STALLS))
_FLIGHT = len(CLOCK.names)
_PAGES = frozenset(("ptmap", "ptdel", "dmain", "dmaout", "dmawait", "dmastat"))
"""Instructions after which pages may be elsewhere, or on their way."""
_WINDOWS = frozenset(("segbase", "segsize"))
"""Instructions after which a handle may stand for another window."""
_OWN = ("low", "high", "offsets_end", "limit")
"""Fields of an ``ld`` or ``mm`` that depend on the segment."""
_MOST_MADE = 256
"""Records that are kept."""
_ODD = 3
"""Times that an ``mm`` is left to the general function before the kernel is not asked again."""


@dataclass(eq=False)
class Frame:
    """A processing element and one program it was given, as the kernel takes them: arrays by address.

    ================  ====================================================================================
    ``code``          the instructions, with the records of loads, stores and ``mm``
    ``mine``          which of them the kernel runs
    ``accounts``      what it counted since :meth:`settle`
    ``sums``          buffers for products, by what ``mm`` that share them have in common; ``room``: their memory
    ``made``          records and fields beside them, by what they were made for
    ``refused``       instructions the kernel cannot run as segments and pages are now
    ``odd``           times that each ``mm`` was left to the general function
    ================  ====================================================================================
    """

    record: Record
    uniform: Array
    clock: Array
    accounts: tuple[Array, Array, Array, Array]
    program: MachineProgram
    code: Array
    mine: list[bool]
    sums: dict[Any, Sums] = field(default_factory=dict)
    room: dict[str, Array] = field(default_factory=dict)
    made: dict[Any, tuple[Record, list[int]]] = field(default_factory=dict)
    refused: list[tuple[int, int]] = field(default_factory=list)
    odd: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, pe: Pe, program: MachineProgram, code: Array) -> Frame | None:
        """For ``code`` (:func:`encoded`), or None where no instruction may be run by the kernel."""
        # Overflow and the order of floats matter to some types only: prepare sees to them.
        if pe.clock.tracing or pe.heat is not None or set(pe.config.slowing) - {"overflow", "float_order"}:
            return None
        c, uniform, code = pe.config, np.zeros(pe.config.uniform_registers, np.int64), code.copy()
        for pc in np.flatnonzero(code["op"] == SEGMENT).tolist():
            name = program.instructions[pc].operands[1]
            assert isinstance(name, SegmentName)
            code["x"][pc] = handle = pe.names.get(name.name, 0)
            code["op"][pc] = SEGMENT if handle else OTHER
        clock = np.zeros(_FLIGHT + c.bcast_depth + 1, np.int64)
        counts, traffic, queue, math = (np.zeros(len(names), np.int64) for names in _ACCOUNTS)
        assert pe.predicates.dtype == bool
        assert pe.clock.causes.dtype == np.int8
        values: dict[str, Any] = dict.fromkeys(STRETCH.names, 0) | {"registers": c.registers}
        values |= {"code": code, "count": len(code)}
        values |= {"alu_latency": c.alu_latency, "load_latency": c.l2_latency, "ports": c.l1_ports}
        values |= {"file": pe.file, "pitch": pe.file.strides[0], "threads": c.threads, "loaders": c.loader_threads}
        values |= {"predicates": pe.predicates, "predicate_pitch": pe.predicates.strides[0], "uniform": uniform}
        values |= {"dram_latency": c.dram_latency, "causes": pe.clock.causes}
        values |= {"counts": counts, "traffic": traffic, "clock": clock, "queue": queue, "math": math}
        values |= longs(tokens=pe.clock.tokens, foreign=pe.clock.foreign, l1=pe.l1.cells, l2=pe.chip.l2.cells)
        values |= {"memory": pe.clock.port.links, "slots": c.slots, "l2_rate": c.l2_bytes_per_cycle}
        values["fetch"] = c.fetch_cycles
        accounts, mine = (counts, traffic, queue, math), (code["op"] != OTHER).tolist()
        return cls(Record(STRETCH, values), uniform, clock, accounts, program, code, mine)

    def take(self, pe: Pe, most: int) -> None:
        """Put what changes from instruction to instruction where the kernel finds it."""
        clock, flight = self.clock, list(pe.clock.in_flight)
        self.record["pc"], self.record["executed"], self.record["most"] = pe.pc, pe.executed, most
        self.record["columns"], self.record["rows"] = pe.columns, -1 if pe.rows is None else pe.rows
        self.record["product"], (self.record["walked"], self.record["walked_in"]) = pe.product, pe.walked
        self.uniform[:] = pe.uniform
        clock[: _FLIGHT + len(flight)] = [pe.clock.issue, pe.clock.end, *pe.clock.free, 0, len(flight), *flight]

    def give(self, pe: Pe) -> None:
        """Put it back where everyone finds it, but for :meth:`settle`."""
        pe.pc = pe.next_pc = self.record["pc"]
        pe.executed = self.record["executed"]
        self._give_numbers(pe)
        issue, end, lsu, math, bus, busy, flight, *ends = self.clock.tolist()
        pe.clock.issue, pe.clock.end, pe.clock.free = issue, end, [lsu, math, bus]
        pe.clock.math_busy += busy
        pe.clock.in_flight.clear()
        pe.clock.in_flight.extend(ends[:flight])

    def _give_numbers(self, pe: Pe) -> None:
        """Uniform registers, the shape of an ``mm``, and which product it is for."""
        rows = self.record["rows"]
        pe.uniform, pe.columns, pe.rows = self.uniform.tolist(), self.record["columns"], None if rows < 0 else rows
        pe.product, pe.walked = self.record["product"], (self.record["walked"], self.record["walked_in"])

    def settle(self, pe: Pe) -> None:
        """Add what was counted to the accounts of the processing element."""
        into: Any = pe.counts.__dict__, pe.traffic.__dict__, pe.clock.queue, pe.clock.math
        misses = pe.counts.l2_misses
        for names, numbers, account in zip(_ACCOUNTS, self.accounts, into, strict=True):
            for name, more in zip(names, numbers.tolist(), strict=True):
                account[name] += more
        pe.counts.dram_bytes += (pe.counts.l2_misses - misses) * pe.config.line_bytes
        for numbers in self.accounts:
            numbers[:] = 0

    def after(self, pe: Pe, instruction: Instruction) -> None:
        """An instruction's own function was called."""
        if instruction.name in _WINDOWS:
            self.made.clear()
        if instruction.name in _WINDOWS or instruction.name in _PAGES:
            self._ask_again()

    def _ask_again(self) -> None:
        """Every record must be asked for before it is used."""
        self.code["record"] = 0
        for pc, op in self.refused:
            self.code["op"][pc], self.mine[pc] = op, True
        self.refused.clear()

    def _refuse(self, pc: int) -> bool:
        """The kernel cannot run this instruction, as segments and pages are now."""
        self.refused.append((pc, int(self.code["op"][pc])))
        self.code["op"][pc], self.mine[pc] = OTHER, False
        return False

    def add(self, pe: Pe) -> None:
        """Add the sums that wait to the product registers."""
        pending = self.record["pending"]
        if pending:
            next(s for s in self.sums.values() if s.at == pending).add(pe.words)
            self.record["pending"] = self.record["low"] = self.record["high"] = 0

    def prepare(self, pe: Pe) -> bool:
        """Make the record of the load, store or ``mm`` the kernel stands at; False where that is not for it now."""
        pc = self.record["pc"]
        self._give_numbers(pe)
        instruction, row, shape = self.program.instructions[pc], self.code[pc], (pe.columns, pe.rows)
        where = instruction.operands[1]
        assert isinstance(where, Address)
        handle = int(self.uniform[where.segment])
        segment = pe.segments.get(handle)
        if segment is not None and segment.table.loading:  # its own function waits for pages, one by one
            return False
        if segment is None or not at_hand(segment):
            return self._refuse(pc)
        same = instruction.name, instruction.type, instruction.suffixes, where.offset
        key = same, instruction.operands[0], instruction.operands[2:], shape, handle
        if key not in self.made:
            if len(self.made) == _MOST_MADE:
                self._ask_again()
                self.add(pe)
                self.made.clear()
                self.sums.clear()
            record = (self._multiply if instruction.name == "mm" else self._move)(pe, instruction, row, segment)
            if record is None:
                return self._refuse(pc)
            self.made[key] = record, [int(row[name]) for name in _OWN]
        record, own = self.made[key]
        for name, value in zip(_OWN, own, strict=True):
            row[name] = value
        row["record"], row["handle"] = address(record.numbers, np.int64), handle
        row["mm_columns"], row["mm_rows"] = self.record["columns"], self.record["rows"]
        return True

    def _move(self, pe: Pe, instruction: Instruction, row: Any, segment: Segment) -> Record | None:
        first, dims, c, storing = int(row["number"]), len(segment.sizes), pe.config, instruction.name == "st"
        shared = storing and pe.clock.port.several and c.slots == 1  # stores that wait for windows of a bus
        if shared or row["x"] + dims > c.registers or int(instruction.suffix("t") or 0) >= dims:
            return None
        words = int(row["y"]) if row["y_kind"] == 0 else c.registers - first
        most, limit = words * 4 // segment.element_bytes, int(instruction.suffix("n") or 0)
        row["limit"] = min(most, limit or most)
        counted = [range(row["y"], row["y"] + 1)] if row["y_kind"] == 2 else []
        _touching(row, range(first, first + max(0, words)), *counted, range(row["x"], row["x"] + dims))
        threads = 1 if instruction.name == "ldb" else c.threads
        at, counts = np.zeros((threads, dims), np.int64), np.zeros(threads, np.int64)
        record = transfer_record(pe, segment, instruction, at, counts, storing)
        if instruction.name == "ldb":  # one thread's, to a place from which all take it
            if row["y_kind"] == 2:
                return None
            place = np.zeros(max(0, words), np.int32)
            record["registers"] = address(place, np.int32)
            record.kept.append(place)
        return record

    def _multiply(self, pe: Pe, instruction: Instruction, row: Any, segment: Segment) -> Record | None:
        c = pe.config
        roles = assign_roles(pe, Instruction("mm", instruction.operands, instruction.type, instruction.suffixes))
        if isinstance(roles, str) or not roles.on.all():  # the general function has something to say
            return None
        floats = roles.type_a[0] not in "su"
        if (floats and c.float_order != "chunk") or (not floats and c.overflow != "wrap"):
            return None
        a, offsets = int(row["y"]), range(row["x"], row["x"] + len(segment.sizes))
        _touching(row, range(a, a + c.a_registers), offsets)
        key = (pe.columns, pe.rows, roles.first, roles.type_a, roles.type_b, roles.groups, roles.chunk, roles.depth)
        if key not in self.sums:
            self.sums[key] = Sums.of(pe, roles, self.room)
        return self.sums[key].record(segment, int(instruction.suffix("t") or 0), pe.chip.store)


def run_fast(pe: Pe, frame: Frame, most: int) -> bool:
    """Run from ``pe.pc`` until an instruction's own function is wanted, or ``most`` are executed; False if none was."""
    from tilewright.isa.kernels.stretch_kernels import run_stretch

    frame.take(pe, most)
    while True:
        why = run_stretch(frame.record.numbers)
        if why == WANTED and frame.prepare(pe):
            continue
        frame.add(pe)
        if why != FULL:
            break
    if why == IRREGULAR:
        frame.odd[frame.record["pc"]] += 1
        if frame.odd[frame.record["pc"]] == _ODD:
            frame.mine[frame.record["pc"]], frame.code["op"][frame.record["pc"]] = False, OTHER
    done = frame.record["executed"] - pe.executed
    frame.give(pe)
    return done > 0


# Instructions as records.

_ENCODED = {
    **dict.fromkeys(OPERATIONS, ALU),
    **dict.fromkeys(LOGICS, LOGIC),
    "cmp": CMP,
    "loop": LOOP_BACK,
    "br": BR,
    "jump": JUMP,
    "nop": NOP,
    "tid": TID,
    "segment": SEGMENT,
    "setmm": SETMM,
    "clr": CLR,
    "ld": LD,
    "st": ST,
    "ldb": LDB,
    "mm": MULTIPLY,
}
_KIND = {"imm": 0, "float": 0, "ur": 1, "r": 2, "p": 3}


def encoded(pe: Pe, program: MachineProgram) -> Array:
    """Records INSTRUCTION of all instructions, for every processing element of this configuration."""
    labels = dict(program.labels)
    code = np.zeros(len(program.instructions), INSTRUCTION.dtype)
    for row, instruction in zip(code, program.instructions, strict=True):
        _encode(pe, instruction, labels, row)
    return code


def _encode(pe: Pe, instruction: Instruction, labels: dict[str, int], row: Any) -> None:
    """One instruction to a record INSTRUCTION of zeros."""
    op, operands, guard = _ENCODED.get(instruction.name, OTHER), list(instruction.operands), instruction.guard
    for name in ("x_place", "y_place", "guard_place", "written", "guard"):
        row[name] = -1
    row["op"] = op
    if op == OTHER:
        return
    if guard is not None:
        row["guard"], row["negated"] = guard.predicate, guard.negated
        row["guard_place"] = pe.clock.span("p", guard.predicate).start
    if op in (LD, ST, LDB, MULTIPLY):
        where, count = operands[1], operands[2:]
        assert isinstance(where, Address)
        row["number"], row["x"], row["immediate"] = number(operands[0]), where.offset, where.immediate
        row["x_place"], row["segment"] = pe.clock.span("ur", where.segment).start, where.segment
        if op == MULTIPLY:
            row["y"] = number(operands[2])
        if op != MULTIPLY:
            row["y"] = 1
            if count:
                _source(pe, row, "y", count[0])
        return
    if op == CLR:
        row["number"], row["y"] = number(operands[0]), 1
        for words in operands[1:]:
            _source(pe, row, "y", words)
        counted = [range(row["y"], row["y"] + 1)] if row["y_kind"] == 2 else []
        end = row["number"] + max(0, row["y"]) if row["y_kind"] == 0 else pe.config.registers
        _touching(row, range(row["number"], end), *counted)
        return
    if operands and isinstance(label := operands[-1], Label):
        row["target"] = labels[label.name]
        operands.pop()
    if op == SETMM:
        row["operation"] = len(operands) > 1
    elif op not in (BR, JUMP, NOP):
        destination = operands[0] if op == LOOP_BACK else operands.pop(0)
        row["kind"], row["number"] = _KIND[destination.kind], number(destination)
        row["written"] = _place(pe, destination)
    if op == LOOP_BACK:
        row["x_place"] = row["written"]
        return
    if op == SEGMENT:  # its handle is the processing element's to say
        return
    for name, source in zip("xy", operands, strict=False):
        _source(pe, row, name, source)
    row["per_thread"] = sum(_is(source, "r") for source in operands)
    _touching(row, *(range(number(o), number(o) + 1) for o in instruction.operands if _is(o, "r")))
    if op in (BR, CMP):
        row["operation"] = CONDITIONS.index(instruction.suffix("cond") or "")
    elif op in (ALU, LOGIC):
        row["operation"] = (LOGICS if op == LOGIC else OPERATIONS).index(instruction.name)


def _source(pe: Pe, row: Any, name: str, source: Any) -> None:
    """Operand ``name`` (x or y) of an instruction."""
    row[f"{name}_kind"], row[f"{name}_place"] = _KIND[source.kind], _place(pe, source)
    row[name] = source.number if isinstance(source, Register) else uniform_source(pe, source)


def _touching(row: Any, *registers: range) -> None:
    """The registers per thread that an instruction looks at or writes; of an ``ld`` or ``mm`` its offsets come last."""
    if registers:
        row["low"], row["high"] = min(each.start for each in registers), max(each.stop for each in registers)
        row["offsets_end"] = registers[-1].stop


def _is(operand: Any, kind: str) -> bool:
    return isinstance(operand, Register) and operand.kind == kind


def _place(pe: Pe, operand: Operand) -> int:
    """Where the scoreboard has a register; -1 for what is none."""
    return pe.clock.span(operand.kind, operand.number).start if isinstance(operand, Register) else -1

"""Loops that one kernel call can run: which they are, and what the kernel is given.

A loop is taken where nothing in it can see a difference: plain arithmetic, branches, at most one ``ld``, and ``mm``
that differ in nothing but A and the immediate, with all pages at hand and no one else looking at the product registers.
K rounds are then added together, exactly where the arithmetic permits it: integers modulo 2^32, floats in the
documented order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.memory import transfer_record
from tilewright.isa.execute.operands import at_hand, number, numpy_type, uniform_source
from tilewright.isa.execute.scalar import NAN
from tilewright.isa.execute.tensor import Roles, assign_roles, columns_of, macs_counter
from tilewright.isa.kernels.records import (
    ACCOUNTS,
    ALU,
    BR,
    CLOCK,
    CMP,
    CONDITIONS,
    COUNTS,
    FILL,
    FULL,
    INSTRUCTION,
    JUMP,
    LD,
    LOGIC,
    LOGICS,
    LOOP,
    LOOP_BACK,
    MM,
    MULTIPLY,
    NOP,
    OPERATIONS,
    REACH,
    TIMES,
    TRAFFIC,
    Record,
    address,
    longs,
)
from tilewright.isa.language.program import Address, Immediate, Instruction, Label, MachineProgram, Operand, Register
from tilewright.memory import scratch
from tilewright.threads import in_pieces

# Sums of many K rounds, added to the product registers at once, with the bits that one round after another gives.

Array = np.ndarray[Any, Any]
DEPTH = 1024
"""Elements of k that are added at once."""
_ALONE = 1 << 22
"""Products that one thread makes about as soon as others could come to help."""
_APART = 64
"""Bytes behind each row, so that rows do not meet in our own caches."""
_PIECE = 32
"""Rows of A that a thread of ours multiplies at a time."""


@dataclass(eq=False)
class _Side:
    """One factor's bytes as they came, the same as words; bytes from row to row and from round to round."""

    bytes: Array
    words: Array
    pitch: int
    step: int
    rows: int


@dataclass(eq=False)
class Sums:
    """What the kernel leaves: A [ka * rows, k] and B [ka * c, k] as they came, k of many rounds one behind the other.

    ``record``: what the kernel is told of the ``mm``; ``sides``: A's and B's bytes; ``presents``: elements present in
    each round; ``fill``: how far they are filled. ``keep``: the threads that keep sums. ``columns``: part and index of
    each, and which are on in all these rounds.
    """

    record: Record
    sides: tuple[_Side, _Side]
    presents: Array
    fill: Record
    keep: Array
    columns: tuple[Array, Array, Array]
    first: int
    types: tuple[str, str]
    bytes: bool
    chunk: int
    kb: int
    values: bool = True

    @classmethod
    def of(cls, pe: Pe, roles: Roles, mm: Instruction) -> Sums:
        """Buffers and numbers for one ``mm``, every column of it on."""
        c, segment = pe.config, roles.segment
        rows, ka, kb, row_stride, a_stride, b_stride, keeper = roles.groups
        n, e, width, dim = roles.columns, segment.element_bytes, kb * roles.chunk, int(mm.suffix("t") or 0)
        rounds = max(1, DEPTH // width)
        if dim == 1:
            segment.await_all()
        part, index, order = (table.astype(np.int64) for table in columns_of(c.ka_split, n, ka))
        active, presents = np.ones(n, bool), np.zeros(rounds, np.int64)
        storage, table, step_cycles = segment.storage, segment.table, c.step_cycles(e, kb)
        a, b = _side("A", ka * rows, width * e, rounds), _side("B", ka * roles.local, width * e, rounds)
        fill = Record(FILL, {"k": 0, "rounds": 0, "columns": -1, "steps": 0})
        values: dict[str, Any] = {"depth": roles.depth, "element_bytes": e, "width": width, "dim": dim, "columns": n}
        values |= {"floats": roles.type_a[0] not in "su", "retains": dim == 1, "bypasses": c.retention == "bypass"}
        values |= {"chunk": roles.chunk, "first": roles.first, "local": roles.local}
        values |= {"rows": rows, "ka": ka, "kb": kb, "first_thread": c.first_compute}
        values |= {"row_stride": row_stride, "a_stride": a_stride, "b_stride": b_stride, "step_cycles": step_cycles}
        values |= {"a_registers": c.a_registers, "a_reads": c.a_registers_read(e, kb), "bcast_depth": c.bcast_depth}
        values |= {"per_step": c.columns_per_step, "timing": pe.clock.line_times(step_cycles), "fill": fill}
        values |= {"part": part, "index": index, "order": order, "active": active, "on": np.ones(n, bool)}
        values |= longs(sizes=segment.sizes, starts=segment.starts, phys=table.phys)
        values |= longs(pages_of=storage.pages_of, offsets_of=storage.offsets_of)
        values |= {"in_l2": table.in_l2, "dims": len(segment.sizes), "page_elements": segment.map.page_elements}
        values |= {"line_shift": (segment.map.line_elements * e).bit_length() - 1, "store": pe.chip.store}
        values |= {"selected": segment.selected, "awaited": segment.awaited, "presents": presents, "rounds": rounds}
        values |= {
            "reach": np.zeros(n, REACH.dtype),
            "times": np.zeros(1, TIMES.dtype),
            "out": np.zeros((n, 3), np.int64),
        }
        values |= longs(sequence=np.zeros(n, np.int64), step_of=np.zeros(n, np.int64), begins=np.zeros(2 * n, np.int64))
        values |= longs(deep=np.zeros(n * roles.depth, np.int64)) | {"deep_count": 0}
        values |= {"macs": ACCOUNTS.places[macs_counter(roles.type_a)]}
        for name, side in (("a", a), ("b", b)):
            values |= {f"{name}_bytes": side.bytes, f"{name}_pitch": side.pitch, f"{name}_step": side.step}
            values[f"{name}_rows"] = side.rows
        keep = np.arange(rows)[:, None] * row_stride + np.arange(ka) * a_stride + keeper * b_stride + c.first_compute
        columns, types = (part, index, active), (roles.type_a, roles.type_b)
        return cls(
            Record(MM, values),
            (a, b),
            presents,
            fill,
            keep,
            columns,
            roles.first,
            types,
            {*types} <= {"s8", "u8"} and width * e % 8 == 0,
            roles.chunk,
            kb,
            values=c.values,
        )

    def add(self, file: tuple[Any, ...]) -> bool:
        """Add what the buffers hold to the registers (``Pe.words``); False if that was nothing."""
        part, index, active = self.columns
        k, rounds = self.fill["k"], self.fill["rounds"]
        self.fill["k"] = self.fill["rounds"] = 0
        if rounds == 0 or not self.values:
            return rounds > 0
        rows, ka = self.keep.shape
        on = [np.flatnonzero(active & (part == qa)) for qa in range(ka)]
        runs = all(len(mine) == np.ptp(index[mine]) + 1 for mine in on if len(mine))
        if self.bytes and runs:
            self._add_bytes(file, rounds, on)
            return True
        a, b = (self._values(side, k, rounds) for side in (0, 1))
        c = len(b) // ka
        for qa, mine in enumerate(on):
            if not len(mine):
                continue
            at = index[mine] + self.first
            some = slice(int(at[0]), int(at[-1]) + 1) if runs else at
            keep = self.keep[:, qa]
            factors = a[qa * rows : (qa + 1) * rows], b[qa * c + index[mine]]
            target = (_slice(keep), some) if runs else (keep[:, None], at)
            registers = file[0]
            registers[target] = self._added(registers[target], *factors, rounds)
        return True

    def _add_bytes(self, file: tuple[Any, ...], rounds: int, on: list[Array]) -> None:
        """Products of bytes, k of many rounds at once, to the registers; ``on``: the columns of each part."""
        from tilewright.isa.kernels.byte_kernels import add_products

        (rows, ka), (a, b) = self.keep.shape, (self._numbers(side, rounds) for side in (0, 1))
        for qa, mine in enumerate(on):
            if not len(mine):
                continue
            low, keep = int(self.columns[1][mine[0]]), self.keep[:, qa]
            begin = qa * (len(b) // ka) + low
            factors = a[qa * rows : (qa + 1) * rows], b[begin : begin + len(mine)]
            place = int(keep[0]), int(keep[1] - keep[0]) if rows > 1 else 1, self.first + low

            def add(piece: int, factors: Any = factors, place: Any = place) -> None:
                first = piece * _PIECE
                add_products(factors[0], factors[1], (first, min(first + _PIECE, rows)), file[3], file[2] >> 2, place)

            in_pieces(add, -(-rows // _PIECE), rows * len(mine) * a.shape[1] > _ALONE)

    def _numbers(self, side: int, rounds: int) -> Array:
        """[rows, k] of A (0) or B (1), k behind k: bytes with a sign, or 16 bits where one of the two has none."""
        from tilewright.isa.kernels.byte_kernels import turn_words

        factor = self.sides[side]
        words = factor.bytes[: rounds * factor.step].view(np.int64).reshape(rounds, factor.rows, -1)
        wide = -(-rounds * factor.pitch // 32) * 4  # 32 bytes at a time
        out = scratch(f"numbers {side}", factor.rows * wide, np.int64).reshape(factor.rows, wide)
        turn_words(words, out)
        if self.types == ("s8", "s8"):
            return out.view(np.int8)
        return out.view(np.int8 if self.types[side] == "s8" else np.uint8).astype(np.int16)

    @property
    def words(self) -> bool:
        """32-bit integers."""
        return self.types[0][0] in "su" and self.types[0][1:] == "32"

    def _rows(self, factor: _Side, rounds: int) -> Array:
        """Its bytes [rows, k and more]."""
        if factor.step < factor.pitch:
            return cast(Array, factor.bytes.reshape(factor.rows, factor.pitch))
        words = factor.bytes[: rounds * factor.step].view(np.int64).reshape(-1, factor.rows, factor.pitch // 8)
        return np.ascontiguousarray(words.transpose(1, 0, 2)).reshape(factor.rows, -1).view(np.uint8)

    def _values(self, side: int, k: int, rounds: int) -> Array:
        """[rows, k] of A (0) or B (1) as what is multiplied."""
        factor, dtype = self.sides[side], self.types[side]
        raw = self._rows(factor, rounds)
        if self.words:
            values: Array = raw.view(np.int32)[:, :k]
        elif dtype == "bf16":
            values = (raw.view(np.uint16)[:, :k].astype(np.uint32) << 16).view(np.float32)
        elif dtype[0] not in "su":
            values = raw.view(numpy_type(dtype))[:, :k].astype(np.float32, copy=False)
        elif dtype in ("s4", "u4"):
            low = (raw[:, :k] & 15).astype(np.float64)
            values = np.where(low > 7, low - 16, low) if dtype == "s4" else low
        else:
            words = raw.view(f"{'i' if dtype[0] == 's' else 'u'}{int(dtype[1:]) // 8}")
            values = words[:, :k].astype(np.float64)
        return values

    def _added(self, sums: Array, a: Array, b: Array, rounds: int) -> Array:
        if self.types[0][0] in "su" and not self.words:
            products: Array = np.matmul(a, b.T)
            return sums + products.astype(np.int64).astype(np.int32)
        from tilewright.isa.kernels.value_kernels import add_rounds, add_words

        sums, b = np.ascontiguousarray(sums), np.ascontiguousarray(b.T)
        if self.words:
            add_words(sums, a, b)
        else:
            values = sums.view(np.float32)
            add_rounds(values, a, b, self.presents[:rounds], self.chunk, self.kb)
            sums[np.isnan(values)] = NAN
        return sums


def _side(name: str, rows: int, length: int, rounds: int) -> _Side:
    """Room for ``rounds`` times ``rows`` rows of ``length`` bytes."""
    # Round behind round, where they are made of words of 8 bytes; else row behind row.
    behind = length % 8 == 0
    shape = (length, length * rows, rows) if behind else (-(-length * rounds // 4) * 4 + _APART, length, rows)
    raw = scratch(f"bytes of {name}", rounds * shape[1] if behind else rows * shape[0], np.uint8)
    return _Side(raw, raw.view(np.int32), *shape)


def _slice(numbers: Array) -> Any:
    """Equally spaced numbers as a slice."""
    if len(numbers) == 1:
        return slice(int(numbers[0]), int(numbers[0]) + 1)
    step = int(numbers[1] - numbers[0])
    return slice(int(numbers[0]), int(numbers[-1]) + 1, step)


# What a loop that one call runs is given: the state of its processing element, by address, and where it comes back.

_ACCOUNTS = (COUNTS.names, TRAFFIC.names, tuple(QUEUE), tuple(MATH_STALLS))
_FLIGHT = len(CLOCK.names)


@dataclass(eq=False)
class Frame:
    """The record of one loop and the arrays behind it; good as long as ``state`` is.

    ``fresh``: the segment of an ``mm`` that retains lines, where no walk had been before, else None. ``kept``: what
    ``state`` names, so that nothing else gets its identity.
    """

    state: list[int | None]
    kept: list[Any]
    record: Record
    uniform: Array
    clock: Array
    accounts: tuple[Array, Array, Array, Array]
    sums: Sums | None
    fresh: Segment | None

    @classmethod
    def of(cls, pe: Pe, loop: FastLoop, state: list[int | None], kept: list[Any]) -> Frame | None:
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
        clock = np.zeros(_FLIGHT + c.bcast_depth + 1, np.int64)
        counts, traffic, queue, math = (np.zeros(len(names), np.int64) for names in _ACCOUNTS)
        assert pe.predicates.dtype == bool
        assert pe.clock.causes.dtype == np.int8
        values: dict[str, Any] = {"code": loop.code, "first": loop.first, "last": loop.last}
        values |= {"alu_latency": c.alu_latency, "load_latency": c.l2_latency, "ports": c.l1_ports}
        values |= {"file": address(pe.file, np.int32), "pitch": pe.file.strides[0], "threads": c.threads}
        values |= {"predicates": pe.predicates, "predicate_pitch": pe.predicates.strides[0], "uniform": uniform}
        values |= {"counts": counts, "traffic": traffic, "clock": clock, "queue": queue, "math": math}
        values |= longs(tokens=pe.clock.tokens, foreign=pe.clock.foreign, l1=pe.l1.cells, l2=pe.chip.l2.cells)
        port = pe.clock.port
        values |= {"memory": port.links, "slots": c.slots, "l2_rate": c.l2_bytes_per_cycle}
        values |= {"dram_latency": c.dram_latency}
        values |= {"causes": pe.clock.causes, "mm": sums.record if sums else 0, "ld": ld[1], "ld_elements": ld[0]}
        record = Record(LOOP, {**values, "pc": 0, "executed": 0, "most": 0})
        return cls(state, kept, record, uniform, clock, (counts, traffic, queue, math), sums, fresh)

    def take(self, pe: Pe, most: int) -> None:
        """Put what changes from instruction to instruction where the kernel finds it."""
        clock, flight = self.clock, list(pe.clock.in_flight)
        self.record["pc"], self.record["executed"], self.record["most"] = pe.pc, pe.executed, most
        self.uniform[:] = pe.uniform
        clock[: _FLIGHT + len(flight)] = [pe.clock.issue, pe.clock.end, *pe.clock.free, 0, len(flight), *flight]
        for account in self.accounts:
            account[:] = 0

    def give(self, pe: Pe) -> None:
        """Put it back where everyone finds it."""
        counts, traffic, queue, math = (
            dict(zip(names, account.tolist(), strict=True))
            for names, account in zip(_ACCOUNTS, self.accounts, strict=True)
        )
        pe.pc = pe.next_pc = self.record["pc"]
        pe.executed, pe.uniform = self.record["executed"], self.uniform.tolist()
        pe.clock.issue, pe.clock.end, *pe.clock.free, busy, flight = self.clock[:_FLIGHT].tolist()
        pe.clock.math_busy += busy
        pe.clock.in_flight.clear()
        pe.clock.in_flight.extend(self.clock[_FLIGHT : _FLIGHT + flight].tolist())
        counts["dram_bytes"] = counts["l2_misses"] * pe.config.line_bytes
        for account, more in (
            (pe.clock.queue, queue),
            (pe.clock.math, math),
            (pe.counts.__dict__, counts),
            (pe.traffic.__dict__, traffic),
        ):
            for name, value in more.items():
                account[name] += value
        if self.fresh is not None and counts["instructions"] == 0:  # no mm came to walk the segment
            self.fresh.forget_all()


def frame_of(pe: Pe, loop: FastLoop) -> Frame | None:
    """What a loop is given now: as the last time, where nothing is another since; None where it cannot be run."""
    used = [instruction.operands[1] for instruction in (loop.ld, loop.mm) if instruction is not None]
    segments = [pe.segment(where.segment) for where in used if isinstance(where, Address)]
    there = [segment for segment in segments if segment is not None and at_hand(segment)]
    if len(there) < len(segments):
        return None
    tables = [table for segment in there for table in (segment, segment.table.phys)]
    others = (pe.file, pe.chip.store, pe.l1.cells, pe.chip.l2.cells, pe.clock.tokens, pe.clock.port.links)
    state = [pe.columns, pe.rows, *map(id, (*tables, *others))]
    if loop.frame is None or loop.frame.state != state:
        frame = Frame.of(pe, loop, state, [*tables, *others])
        # A walk that retains lines begins with tables of its own.
        loop.frame = None if loop.mm is not None and loop.mm.suffix("t") == "1" else frame
        return frame
    return loop.frame


def _row_of_ld(loop: FastLoop) -> Any:
    return loop.code[loop.code["op"] == LD][-1]


def _prepared_ld(pe: Pe, loop: FastLoop) -> tuple[int, Record | int] | None:
    """What the kernel needs of the ``ld`` (elements at most, its record); of none where there is none."""
    if loop.ld is None:
        return 0, 0
    where, row = loop.ld.operands[1], _row_of_ld(loop)
    assert isinstance(where, Address)
    segment, words, c = pe.segment(where.segment), int(row["words"]), pe.config
    if segment is None or not at_hand(segment) or words < 1 or row["number"] + words > c.registers:
        return None
    dim, dims = int(loop.ld.suffix("t") or 0), len(segment.sizes)
    if dim >= dims or where.offset + dims > c.registers:
        return None
    loop.code["offsets_end"][loop.code["op"] == LD] = where.offset + dims
    most, limit = words * 4 // segment.element_bytes, int(loop.ld.suffix("n") or 0)
    at, counts = np.zeros((c.threads, dims), np.int64), np.zeros(c.threads, np.int64)
    return min(most, limit or most), transfer_record(pe, segment, loop.ld, at, counts)


def _roles(pe: Pe, loop: FastLoop) -> Roles | None:
    """Who does what in the ``mm``, with every column on; None where the general function has something to say."""
    c, mm = pe.config, loop.mm
    assert mm is not None
    several = [assign_roles(pe, Instruction("mm", each.operands, each.type, each.suffixes)) for each in loop.mms]
    roles = several[0]
    if isinstance(roles, str) or not at_hand(roles.segment):
        return None
    if any(isinstance(each, str) or not each.on.all() for each in several):
        return None
    floats = roles.type_a[0] not in "su"
    if (floats and c.float_order != "chunk") or (not floats and c.overflow != "wrap"):
        return None
    window = range(roles.first, roles.first + roles.local)
    begin = roles.address.offset
    firsts = [number(each.operands[2]) for each in loop.mms]
    sources = {*range(begin, begin + len(roles.segment.sizes)), *(a + n for a in firsts for n in range(c.a_registers))}
    loaded = range(0)
    if loop.ld is not None:
        row = _row_of_ld(loop)
        loaded = range(int(row["number"]), int(row["number"] + row["words"]))
        sources |= {*range(int(row["x"]), int(row["offsets_end"]))}
    return None if any(n in window for n in (*loop.foreign, *sources, *loaded)) else roles


_ENCODED = {
    **dict.fromkeys(OPERATIONS, ALU),
    **dict.fromkeys(LOGICS, LOGIC),
    "cmp": CMP,
    "loop": LOOP_BACK,
    "br": BR,
    "jump": JUMP,
    "nop": NOP,
    "ld": LD,
    "mm": MULTIPLY,
}
_KIND = {"imm": 0, "float": 0, "ur": 1, "r": 2, "p": 3}


@dataclass(eq=False)
class FastLoop:
    """A loop as the kernel takes it: its instructions as records, the one ``ld`` and the ``mm`` in it.

    ``mm``: the first of ``mms``. ``foreign``: registers that others than ``mm`` name; ``useless_runs``: times it was
    left at once, to no one's gain. ``frame``: what the last run was given.
    """

    first: int
    last: int
    code: Array
    ld: Instruction | None
    mm: Instruction | None
    mms: tuple[Instruction, ...]
    foreign: frozenset[int]
    useless_runs: int = 0
    frame: Frame | None = None

    def afresh(self) -> FastLoop:
        """The same loop before its first run."""
        return FastLoop(self.first, self.last, self.code.copy(), self.ld, self.mm, self.mms, self.foreign)


def loop_at(pe: Pe, program: MachineProgram, first: int, last: int) -> FastLoop | None:
    """The loop of instructions ``first`` to ``last``, or None where the kernel cannot run it."""
    if set(pe.config.slowing) - {"overflow", "float_order"}:  # these two matter to some types only: Sums sees to them
        return None
    body = program.instructions[first : last + 1]
    special = {name: [i for i in body if i.name == name] for name in ("ld", "mm")}
    if (
        any(i.name not in _ENCODED for i in body)
        or len(special["ld"]) > 1
        or len(set(map(_kind_of, special["mm"]))) > 1
    ):
        return None
    labels = dict(program.labels)
    code = np.zeros(len(body), INSTRUCTION.dtype)
    for row, instruction in zip(code, body, strict=True):
        _encode(pe, instruction, labels, row)
    handles = {o.segment for i in body for o in i.operands if isinstance(o, Address)}
    if handles & {number(i.operands[0]) for i in body if _writes(i, "ur")}:
        return None
    ld, mm = (several[0] if several else None for several in special.values())
    if ld is not None and len(ld.operands) > 2 and not isinstance(ld.operands[2], Immediate):
        return None
    registers = frozenset(number(o) for i in body if i.name != "mm" for o in i.operands if _is(o, "r"))
    return FastLoop(first, last, code, ld, mm, tuple(special["mm"]), registers)


def _kind_of(mm: Instruction) -> tuple[Any, ...]:
    """What is the same in all ``mm`` of a loop: everything but A and the immediate."""
    products, where, _ = mm.operands
    assert isinstance(where, Address)
    return mm.type, mm.suffixes, mm.guard, products, where.segment, where.offset


def loop_heads(program: MachineProgram) -> dict[int, int]:
    """First instruction of every loop to its last; of loops with one head, the innermost."""
    labels, ends = dict(program.labels), dict[int, int]()
    for pc, instruction in enumerate(program.instructions):
        target = instruction.operands[-1] if instruction.operands else None
        if isinstance(target, Label) and labels[target.name] <= pc:
            ends.setdefault(labels[target.name], pc)
    return ends


def _is(operand: Any, kind: str) -> bool:
    return isinstance(operand, Register) and operand.kind == kind


def _writes(instruction: Instruction, kind: str) -> bool:
    spec = instruction.spec
    return bool(spec.operands) and spec.operands[0].access == "write" and _is(instruction.operands[0], kind)


def _encode(pe: Pe, instruction: Instruction, labels: dict[str, int], row: Any) -> None:
    """One instruction to a record INSTRUCTION of zeros."""
    op, operands, guard = _ENCODED[instruction.name], list(instruction.operands), instruction.guard
    for name in ("x_place", "y_place", "guard_place", "written", "guard"):
        row[name] = -1
    row["op"] = op
    if guard is not None:
        row["guard"], row["negated"] = guard.predicate, guard.negated
        row["guard_place"] = pe.clock.span("p", guard.predicate).start
    if op in (LD, MULTIPLY):
        where, count = operands[1], operands[2:]
        assert isinstance(where, Address)
        row["number"], row["x"], row["immediate"] = number(operands[0]), where.offset, where.immediate
        row["x_place"] = pe.clock.span("ur", where.segment).start
        if op == MULTIPLY:
            row["y"] = number(operands[2])
        if op == LD:
            row["words"] = count[0].value if count and isinstance(count[0], Immediate) else 1
        return
    if operands and isinstance(label := operands[-1], Label):
        row["target"] = labels[label.name]
        operands.pop()
    if op not in (BR, JUMP, NOP):
        destination = operands[0] if op == LOOP_BACK else operands.pop(0)
        row["kind"], row["number"] = _KIND[destination.kind], number(destination)
        row["written"] = _place(pe, destination)
    if op == LOOP_BACK:
        row["x_place"] = row["written"]
        return
    for name, source in zip("xy", operands, strict=False):
        row[f"{name}_kind"], row[f"{name}_place"] = _KIND[source.kind], _place(pe, source)
        row[name] = source.number if isinstance(source, Register) else uniform_source(pe, source)
    row["per_thread"] = sum(_is(source, "r") for source in operands)
    if op in (BR, CMP):
        row["operation"] = CONDITIONS.index(instruction.suffix("cond") or "")
    elif op in (ALU, LOGIC):
        row["operation"] = (LOGICS if op == LOGIC else OPERATIONS).index(instruction.name)


def _place(pe: Pe, operand: Operand) -> int:
    """Where the scoreboard has a register; -1 for what is none."""
    return pe.clock.span(operand.kind, operand.number).start if isinstance(operand, Register) else -1


def run_fast(pe: Pe, loop: FastLoop, most: int) -> bool:
    """Run a loop from ``pe.pc`` until it is left or a function of its own is wanted; False if nothing was done."""
    from tilewright.isa.kernels.loop_kernels import run_loop

    frame = frame_of(pe, loop)
    if frame is None:
        return False
    frame.take(pe, most)
    numbers = frame.record.numbers
    while True:
        why = run_loop(numbers)
        full = frame.sums is not None and frame.sums.add(pe.words)
        if not (why == FULL and full):
            break
    done = frame.record["executed"] - pe.executed
    worth = 4 if loop.mm is None else 1  # turns
    loop.useless_runs += done < worth * (loop.last - loop.first + 1)
    frame.give(pe)
    return done > 0

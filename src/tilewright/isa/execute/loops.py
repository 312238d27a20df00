"""Loops that one kernel call can run: which they are, and what the kernel is given.

A loop is taken where nothing in it can see a difference: plain arithmetic, branches, at most one ``ld`` and one ``mm``
with all its pages at hand, and no one else looking at the product registers. K rounds are then added together, exactly
where the arithmetic permits it: integers modulo 2^32 by float products that stay exact, floats in the documented order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.chip.fresh import scratch
from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.access import at_hand
from tilewright.isa.execute.memory import transfer_block
from tilewright.isa.execute.operands import number, uniform_source
from tilewright.isa.execute.scalar import NAN
from tilewright.isa.execute.tensor import Roles, assign_roles, columns_of
from tilewright.isa.kernels.blocks import (
    ALU,
    BARE,
    BR,
    CMP,
    CONDITIONS,
    FULL,
    JUMP,
    L_EXECUTED,
    L_MOST,
    L_PC,
    LD,
    LOGIC,
    LOGICS,
    LOOP,
    MM,
    OPERATIONS,
    ROW,
    Block,
    address,
    longs,
)
from tilewright.isa.language.program import Address, Immediate, Instruction, Label, MachineProgram, Register

# Sums of many K rounds, added to the product registers at once, with the bits that one round after another gives.

Array = np.ndarray[Any, Any]
DEPTH = 1024
"""Elements of k that are added at once."""
_APART = 64
"""Bytes behind each row, so that rows do not meet in our own caches."""
EXACT = 1 << 24
"""Integers up to this are float32 numbers, and so are their sums as long as those are."""


_VALUES = {"f16": np.float16, "f32": np.float32}


@dataclass(eq=False)
class _Side:
    """One factor's bytes as they came, the same as words, and bytes from row to row and round to round, and rows."""

    bytes: Array
    words: Array
    shape: tuple[int, int, int]


@dataclass(eq=False)
class Sums:
    """What the kernel leaves: A [ka * rows, k] and B [ka * c, k] as they came, k of many rounds one behind the other.

    ``block``: what the kernel is told of the ``mm``; ``sides``: A's and B's bytes; ``presents``: elements present in
    each round; ``fill``: (k, rounds) filled so far and (columns, steps) of a round. ``columns``: part, index and order
    of each, and which are on in all these rounds.
    """

    block: Block
    sides: tuple[_Side, _Side]
    presents: Array
    fill: Array
    keep: Array
    columns: tuple[Array, Array, Array, Array]
    first: int
    types: tuple[str, str]
    exact: bool
    chunk: int
    kb: int
    values: bool = True

    @classmethod
    def of(cls, pe: Pe, roles: Roles, mm: Instruction) -> Sums:
        """Buffers and numbers for one ``mm``, every column of it on."""
        c, segment = pe.config, roles.segment
        rows, ka, kb, rs, as_, bs, keeper = roles.groups
        n, e, width, dim = roles.columns, segment.element_bytes, kb * roles.chunk, int(mm.suffix("t") or 0)
        exact, rounds = _rounds(roles, width)
        walks = mm.suffix("t") == "1"
        if walks:
            segment.await_all()
        shift, bypass = (segment.map.line_elements * e).bit_length() - 1, c.retention == "bypass"
        walk = (roles.depth, e, roles.type_a[0] not in "su", dim, segment.map.page_elements, width, shift)
        gather = (roles.a, roles.chunk, rows, ka, kb, rs, as_, bs, c.first_compute)
        timing = (roles.first, roles.local, c.columns_per_step, c.a_registers, c.a_registers_read(e, kb))
        part, index, order = (table.astype(np.int64) for table in columns_of(c.ka_split, n, ka))
        active, on = np.ones(n, bool), np.ones(n, bool)
        storage, table = segment.storage, segment.table
        tables = longs(segment.sizes, segment.starts, storage.pages_of, storage.offsets_of, table.phys)
        retention = segment.selected, segment.awaited
        noted = (np.zeros((n, 7), np.int64), on, np.zeros((n, 3), np.int64), *np.zeros((2, n), np.int64))
        noted += np.zeros(3, np.int64), np.zeros(4, np.int64), np.zeros((n, 2), np.int64)
        sides = _side("A", ka * rows, width * e, rounds), _side("B", ka * roles.local, width * e, rounds)
        presents, fill = np.zeros(rounds, np.int64), np.array([0, 0, -1, 0])
        block = Block(
            *(*walk, walks, bypass, *gather, *timing, c.bcast_depth, c.step_cycles(e, kb)),
            *(n, part, index, order, active, *tables, table.in_l2, len(segment.sizes)),
            *(pe.chip.store, *retention, *noted, pe.clock.line_times(c.step_cycles(e, kb))),
            *(part_ for side in sides for part_ in (side.bytes, *side.shape)),
            *(presents, rounds, *longs(fill)),
        )
        keep = np.arange(rows)[:, None] * rs + np.arange(ka) * as_ + keeper * bs + c.first_compute
        columns, types = (part, index, order, active), (roles.type_a, roles.type_b)
        return cls(
            *(block, sides, presents, fill, keep, columns, roles.first, types, exact, roles.chunk, kb), values=c.values
        )

    def add(self, file: tuple[Any, ...]) -> bool:
        """Add what the buffers hold to the registers (``Pe.words``); False if that was nothing."""
        part, index, _, active = self.columns
        k, rounds = self.fill[:2].tolist()
        if rounds == 0:
            return False
        if not self.values:
            self.fill[:2] = 0
            return True
        rows, ka = self.keep.shape
        a, b = (self._values(side, k) for side in (0, 1))
        c = len(b) // ka
        for qa in range(ka):
            mine = np.flatnonzero(active & (part == qa))
            if not len(mine):
                continue
            at = index[mine] + self.first
            low, high = int(at.min()), int(at.max()) + 1
            some = slice(low, high) if high - low == len(mine) else at
            keep = self.keep[:, qa]
            columns = b[qa * c + index[mine]] if len(mine) < c else b[qa * c : qa * c + c]
            factors = a[qa * rows : (qa + 1) * rows], columns
            if self.exact and isinstance(some, slice):
                self._add_exact(file, keep, low, *factors)
                continue
            target = (keep[:, None], at) if not isinstance(some, slice) else (_slice(keep), some)
            registers = file[0]
            registers[target] = self._added(registers[target], *factors, rounds)
        self.fill[:2] = 0
        return True

    @property
    def words(self) -> bool:
        """32-bit integers."""
        return self.types[0][0] in "su" and self.types[0][1:] == "32"

    def _rows(self, side: int) -> Array:
        """Bytes [rows, k and more] of A (0) or B (1)."""
        raw, (pitch, step, rows) = self.sides[side].bytes, self.sides[side].shape
        if step < pitch:
            return cast(Array, raw.reshape(rows, pitch))
        words = raw[: int(self.fill[1]) * step].view(np.int64).reshape(-1, rows, pitch // 8)
        return np.ascontiguousarray(words.transpose(1, 0, 2)).reshape(rows, -1).view(np.uint8)

    def _spread(self, side: int, k: int) -> Array:
        """[rows, k] of bytes, as float32 in the order [k, rows]."""
        from tilewright.isa.kernels.value_kernels import spread_bytes

        words, (_, step, rows) = self.sides[side].words, self.sides[side].shape
        out = scratch(f"values {side}", k * rows, np.float32).reshape(k, rows)
        rounds = int(self.fill[1])
        spread_bytes(words[: rounds * step // 4].reshape(rounds, rows, -1), self.types[side][0] == "s", out)
        return out.T

    def _values(self, side: int, k: int) -> Array:
        """[rows, k] of A (0) or B (1) as what is multiplied."""
        if self.exact and self.sides[0].shape[0] < self.sides[0].shape[1]:
            return self._spread(side, k)
        raw, dtype = self._rows(side), self.types[side]
        if self.words:
            values: Array = raw.view(np.int32)[:, :k]
        elif dtype == "bf16":
            values = (raw.view(np.uint16)[:, :k].astype(np.uint32) << 16).view(np.float32)
        elif dtype in _VALUES:
            values = raw.view(_VALUES[dtype])[:, :k].astype(np.float32, copy=False)
        else:
            words = raw.view(f"{'i' if dtype[0] == 's' else 'u'}{int(dtype[1:]) // 8}")
            values = words[:, :k].astype(np.float32 if self.exact else np.float64)
        return values

    def _add_exact(self, file: tuple[Any, ...], keep: Array, first: int, a: Array, b: Array) -> None:
        """Add a float32 product that has no error to the registers from ``first`` of the threads ``keep``."""
        from tilewright.isa.kernels.value_kernels import add_product

        products = scratch("products", len(a) * len(b), np.float32).reshape(len(a), len(b))
        np.matmul(a, b.T, out=products)
        step = int(keep[1] - keep[0]) if len(keep) > 1 else 1
        add_product(products, file[3], file[2] >> 2, int(keep[0]), step, first)

    def _added(self, sums: Array, a: Array, b: Array, rounds: int) -> Array:
        if self.types[0][0] in "su" and not self.words:
            products: Array = np.matmul(a, b.T)
            return sums + (products if self.exact else products.astype(np.int64)).astype(np.int32)
        from tilewright.isa.kernels.value_kernels import add_rounds, add_words

        sums, b = np.ascontiguousarray(sums), np.ascontiguousarray(b.T)
        if self.words:
            add_words(sums, a, b)
        else:
            values = sums.view(np.float32)
            add_rounds(values, a, b, self.presents[:rounds], self.chunk, self.kb)
            sums[np.isnan(values)] = NAN
        return sums


def _rounds(roles: Roles, width: int) -> tuple[bool, int]:
    """Whether a float32 product of integers is exact, and how many rounds of ``width`` are added together."""
    if roles.type_a not in ("s8", "u8"):
        return False, max(1, DEPTH // width)
    largest = [255 if kind[0] == "u" else 128 for kind in (roles.type_a, roles.type_b)]
    depth = EXACT // (largest[0] * largest[1])
    exact = depth >= width
    return exact, max(1, (min(DEPTH, depth) if exact else DEPTH) // width)


def _side(name: str, rows: int, length: int, rounds: int) -> _Side:
    """Room for ``rounds`` times ``rows`` rows of ``length`` bytes."""
    # Round behind round, where they are made of words of 8 bytes; else row behind row.
    behind = length % 8 == 0
    shape = (length, length * rows, rows) if behind else (-(-length * rounds // 4) * 4 + _APART, length, rows)
    raw = scratch(f"bytes of {name}", rounds * shape[1] if behind else rows * shape[0], np.uint8)
    return _Side(raw, raw.view(np.int32), shape)


def _slice(numbers: Array) -> Any:
    """Equally spaced numbers as a slice."""
    if len(numbers) == 1:
        return slice(int(numbers[0]), int(numbers[0]) + 1)
    step = int(numbers[1] - numbers[0])
    return slice(int(numbers[0]), int(numbers[-1]) + 1, step)


# What a loop that one call runs is given: the state of its processing element, by address, and where it comes back.

_COUNTS = (
    *("instructions", "macs", "column_loads", "broadcast_elements", "steps", "a_register_reads", "a_bytes_loaded"),
    *("accumulator_reads", "accumulator_writes", "kb_transfers", "l1_touches", "l1_misses", "l2_misses"),
)
_TRAFFIC = (
    *("register_reads", "register_writes", "load_lines", "load_bytes", "l1_hits"),
    *("retained_lines", "released_lines", "pin_evictions", "bypasses"),
)


class _Loop(Protocol):
    """What is asked of a :class:`tilewright.isa.execute.loops.FastLoop`."""

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
    used = [instruction.operands[1] for instruction in (loop.ld, loop.mm) if instruction is not None]
    segments = [pe.segment(where.segment) for where in used if isinstance(where, Address)]
    there = [segment for segment in segments if segment is not None and at_hand(segment)]
    if len(there) < len(segments):
        return None
    tables = [table for segment in there for table in (segment, segment.table.phys)]
    others = (pe.file, pe.chip.store, pe.l1.arrays(), pe.chip.l2.arrays(), pe.clock.tokens)
    state = [pe.columns, pe.rows, *map(id, (*tables, *others))]
    if loop.frame is None or loop.frame.state != state:
        frame = Frame.of(pe, loop, state, [*tables, *others])
        # A walk that retains lines begins with tables of its own.
        loop.frame = None if loop.mm is not None and loop.mm.suffix("t") == "1" else frame
        return frame
    return loop.frame


def _row_of_ld(loop: _Loop) -> Array:
    row: Array = loop.code[loop.code[:, 0] == LD][-1]
    return row


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
    at, counts = np.zeros((c.threads, dims), np.int64), np.zeros(c.threads, np.int64)
    return min(most, limit or most), transfer_block(pe, segment, loop.ld, at, counts)


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


def loop_at(pe: Pe, program: MachineProgram, first: int, last: int) -> FastLoop | None:
    """The loop of instructions ``first`` to ``last``, or None where the kernel cannot run it."""
    c = pe.config
    readings = (c.pred_scope, c.column_numbering, c.uninitialized, c.offset_mode, c.math_issue)
    if readings != ("loader", "gap", "zero", "registers", "step") or c.loads_through_l1 or c.bcast_depth > 64:
        return None
    body = program.instructions[first : last + 1]
    special = {name: [i for i in body if i.name == name] for name in ("ld", "mm")}
    if any(i.name not in _ENCODED for i in body) or any(len(several) > 1 for several in special.values()):
        return None
    labels = dict(program.labels)
    code = np.stack([_row(pe, i, labels) for i in body])
    handles = {o.segment for i in body for o in i.operands if isinstance(o, Address)}
    if handles & {number(i.operands[0]) for i in body if _writes(i, "ur")}:
        return None
    ld, mm = (several[0] if several else None for several in special.values())
    if ld is not None and len(ld.operands) > 2 and not isinstance(ld.operands[2], Immediate):
        return None
    # The kernel counts from the program's first instruction.
    whole = np.concatenate((np.zeros((first, code.shape[1]), np.int64), code))
    registers = frozenset(number(o) for i in body if i.name != "mm" for o in i.operands if _is(o, "r"))
    return FastLoop(first, last, whole, ld, mm, registers)


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
    from tilewright.isa.kernels.loop_kernels import run_loop

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

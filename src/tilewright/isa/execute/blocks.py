"""Compiled blocks: instructions that one kernel call runs, what the kernel is given, and the sums it leaves.

The kernel takes plain arithmetic, branches, loads, stores and ``mm``, where no one could tell it from the
instructions' own functions: all pages at hand, every column of the ``mm`` in range. All other instructions end a block.
What ``mm`` add is left in buffers, K round behind K round, and added to the product registers once the buffers are full
or someone else looks at these: integers modulo 2^32 and floats in the documented order, so that it does not matter how
many rounds come together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute import tensor
from tilewright.isa.execute.memory import transfer_record
from tilewright.isa.execute.operands import NAN, all_loaded, grid_index, number, numpy_type, uniform_source
from tilewright.isa.kernels import records
from tilewright.isa.kernels.records import Record, address
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.errors import Array
from tilewright.isa.language.program import Instruction, Label, MachineProgram, Operand, Register
from tilewright.kernels.threads import in_pieces

_PAGES = frozenset(("ptmap", "ptdel", "dmain", "dmaout", "dmawait", "dmastat"))
"""Instructions after which pages may be elsewhere, or on their way."""
_WINDOWS = frozenset(("segbase", "segsize"))
"""Instructions after which a handle may stand for another window."""
_OWN = ("low", "high", "offsets_end", "limit")
"""Fields of an ``ld`` or ``mm`` that depend on the segment."""
_MOST_RECORDS = 256
"""Records that are kept."""
_MOST_IRREGULAR = 3
"""Times that an ``mm`` is left to the general function before the kernel is not asked again."""
_DEPTH = 1024
"""Elements of k that are added at once."""
_ALONE = 1 << 22
"""Products that one thread makes about as soon as others could come to help."""
_WIDE, _BEHIND = 64, 64
"""Bytes that are multiplied at once, and those behind each row, so that rows do not meet in our own caches."""
_PIECE = 32
"""Rows of A that a thread of ours multiplies at a time."""


# Sums of many K rounds.


@dataclass(eq=False)
class _Side:
    """One factor's bytes as they came; bytes from row to row and from round to round."""

    bytes: Array
    pitch: int
    step: int
    rows: int


@dataclass(eq=False)
class Sums:
    """What the kernel leaves: A [ka * rows, k] and B [ka * c, k] as they came, k of many rounds one behind the other.

    All ``mm`` that add to the same registers in the same way have them together. ``shared``: what their records say
    alike; ``sides``: A's and B's bytes; ``presents``: elements present in each round; ``fill``: how
    far they are filled. ``keep``: the threads that keep sums. ``columns``: part and index of each, and which are on in
    all these rounds; ``known``: of the last such set (:meth:`_active_columns`).
    """

    shared: Record
    sides: tuple[_Side, _Side]
    presents: Array
    fill: Record
    keep: Array
    columns: tuple[Array, Array, Array]
    types: tuple[str, str]
    config: MatrixUnitConfig
    known: tuple[Any, list[Array], bool] | None = None

    @classmethod
    def of(cls, pe: Pe, roles: tensor.Roles, room: dict[str, Array]) -> Sums:
        """Buffers and numbers for ``mm`` with every column on.

        ``room``: memory of both factors, for all the sums of a program: no two of them wait at a time.
        """
        c = pe.config
        rows, ka, kb, row_stride, a_stride, b_stride, _ = roles.groups
        n, e, width = roles.columns, roles.segment.element_bytes, kb * roles.chunk
        rounds = max(1, _DEPTH // width)
        part, index, order = (table.astype(np.int64) for table in tensor.columns_of(c.ka_split, n, ka))
        active, presents = np.ones(n, bool), np.zeros(rounds, np.int64)
        step_cycles = c.step_cycles(e, kb)
        a = _side(room, "A", ka * rows, width * e, rounds)
        b = _side(room, "B", ka * roles.local, width * e, rounds)
        fill = Record(records.FILL, {"columns": -1})
        values: dict[str, Any] = {"depth": roles.depth, "element_bytes": e, "width": width, "columns": n}
        values |= {"floats": roles.type_a[0] not in "su"}
        values |= {"chunk": roles.chunk, "first": roles.first, "local": roles.local}
        values |= {"rows": rows, "ka": ka, "kb": kb, "first_thread": c.first_compute}
        values |= {"row_stride": row_stride, "a_stride": a_stride, "b_stride": b_stride, "step_cycles": step_cycles}
        values |= {"a_registers": c.a_registers, "a_reads": c.a_registers_read(e, kb), "bcast_depth": c.bcast_depth}
        values |= {"per_step": c.columns_per_step, "fill": fill}
        values["timing"] = pe.clock.line_times(step_cycles, c.column_cycles(e, kb))
        values |= {"part": part, "index": index, "order": order, "active": active, "on": np.ones(n, bool)}
        values |= {"presents": presents, "rounds": rounds}
        values |= {"reach": np.zeros(n, records.REACH.dtype), "times": np.zeros(1, records.TIMES.dtype)}
        tables = {"sequence": n, "step_of": n, "out": (n, 3), "deep": n * roles.depth}
        values |= {name: np.zeros(shape, np.int64) for name, shape in tables.items()} | {"deep_count": 0}
        values |= {"macs": records.ACCOUNTS.places[tensor.macs_counter(roles.type_a)]}
        for name, side in (("a", a), ("b", b)):
            values |= {f"{name}_bytes": side.bytes, f"{name}_pitch": side.pitch, f"{name}_step": side.step}
            values[f"{name}_rows"] = side.rows
        keep = tensor.summing_threads(roles) + c.first_compute
        types = roles.type_a, roles.type_b
        return cls(Record(records.MM, values), (a, b), presents, fill, keep, (part, index, active), types, c)

    @property
    def at(self) -> int:
        """Where the kernel finds ``fill``."""
        return address(self.fill.numbers, np.int64)

    def record(self, segment: Segment, dim: int, store: Array) -> Record:
        """What the kernel is told of an ``mm`` over this segment along this dim; ``store``: the chip's memory."""
        return Record(records.MM, tensor.walk_values(segment, dim, store, self.config), like=self.shared)

    def add(self, file: tuple[Any, ...]) -> None:
        """Add what the buffers hold to the registers (``Pe.words``)."""
        if self.config.values and self.fill["rounds"] > 0:
            self._add(file)
        self.reset()

    def reset(self) -> None:
        self.fill["k"] = self.fill["rounds"] = 0

    def _add(self, file: tuple[Any, ...]) -> None:
        index, k, rounds = self.columns[1], self.fill["k"], self.fill["rounds"]
        rows, ka = self.keep.shape
        on, runs = self._active_columns()
        if runs and {*self.types} <= {"s8", "u8"}:
            self._add_bytes(file, on)
            return
        a, b = (self._factor(side, k) for side in (0, 1))
        c = len(b) // ka
        for qa, mine in enumerate(on):
            if not len(mine):
                continue
            target = grid_index(self.keep[:, qa], index[mine] + self.shared["first"])
            factors = a[qa * rows : (qa + 1) * rows], b[qa * c + index[mine]]
            registers = file[0]
            registers[target] = self._with_products(registers[target], *factors, rounds)

    def _active_columns(self) -> tuple[list[Array], bool]:
        """(active columns of each part, whether those of every part are contiguous); cached until the mask changes."""
        part, index, active = self.columns
        now = active.tobytes()
        if self.known is None or self.known[0] != now:
            on = [np.flatnonzero(active & (part == qa)) for qa in range(self.keep.shape[1])]
            self.known = now, on, all(len(mine) == np.ptp(index[mine]) + 1 for mine in on if len(mine))
        return self.known[1:]

    def _add_bytes(self, file: tuple[Any, ...], on: list[Array]) -> None:
        """Products of bytes, k of many rounds at once, to the registers; ``on``: the columns of each part."""
        from tilewright.isa.kernels.value_kernels import add_products

        depth = -(-self.fill["rounds"] * self.sides[0].step // _WIDE) * _WIDE
        (rows, ka), (a, b) = self.keep.shape, (self._signed_bytes(side, depth) for side in (0, 1))
        for qa, mine in enumerate(on):
            if not len(mine):
                continue
            low, keep = int(self.columns[1][mine[0]]), self.keep[:, qa]
            begin = qa * (len(b) // ka) + low
            left, right = a[qa * rows : (qa + 1) * rows], b[begin : begin + len(mine)]
            place = int(keep[0]), int(keep[1] - keep[0]) if rows > 1 else 1, self.shared["first"] + low

            shared = rows * len(mine) * depth > _ALONE
            size = _PIECE if shared else rows

            def add(piece: int, size: int = size, left: Array = left, right: Array = right, place: Any = place) -> None:
                piece_of = piece * size, min(piece * size + size, rows)
                add_products(left, right, depth, piece_of, file[3], file[2] >> 2, place)

            in_pieces(add, -(-rows // size), None if shared else 1)
            if self.types != ("s8", "s8"):
                registers = grid_index(keep, place[2] + np.arange(len(mine)))
                file[0][registers] += self._unsigned_correction(left[:, :depth], right[:, :depth])

    def _signed_bytes(self, side: int, depth: int) -> Array:
        """int8[rows, ``depth`` and more] of A (``side`` 0) or B (1); bytes without a sign are made 128 less."""
        factor = self.sides[side]
        raw = factor.bytes.reshape(factor.rows, factor.pitch)
        raw[:, self.fill["rounds"] * factor.step : depth] = 0
        if self.types[side] == "u8":
            raw[:, :depth] ^= 128
        return raw.view(np.int8)

    def _unsigned_correction(self, a: Array, b: Array) -> Array:
        """int32[rows, columns] to add where unsigned bytes were made 128 less: (a + 128) b = a b + 128 b."""
        lacks, depth = np.zeros((len(a), len(b)), np.int32), a.shape[1]
        if self.types[0] == "u8":
            lacks += 128 * b.sum(axis=1, dtype=np.int32)
        if self.types[1] == "u8":
            lacks += 128 * a.sum(axis=1, dtype=np.int32)[:, None]
        return lacks + (16384 * depth if self.types == ("u8", "u8") else 0)

    def _factor(self, side: int, k: int) -> Array:
        """[rows, k] of A (``side`` 0) or B (1), int32 or float32."""
        factor, dtype = self.sides[side], self.types[side]
        raw = factor.bytes.reshape(factor.rows, factor.pitch)
        return tensor.factor_of(raw.view(f"u{numpy_type(dtype).itemsize}")[:, :k], dtype)

    def _with_products(self, sums: Array, a: Array, b: Array, rounds: int) -> Array:
        from tilewright.isa.kernels.value_kernels import add_rounds, add_words

        sums, a, b = (np.ascontiguousarray(each) for each in (sums, a, b.T))
        if self.types[0][0] in "su":
            add_words(sums, a, b)
            return sums
        values = sums.view(np.float32)
        add_rounds(values, a, b, self.presents[:rounds], self.shared["chunk"], self.shared["kb"])
        sums[np.isnan(values)] = NAN
        return sums


def _side(room: dict[str, Array], name: str, rows: int, length: int, rounds: int) -> _Side:
    """Room for ``rounds`` times ``rows`` rows of ``length`` bytes."""
    pitch = -(-length * rounds // _WIDE) * _WIDE + _BEHIND
    size = rows * pitch
    if name not in room or len(room[name]) < size:
        room[name] = np.empty(size, np.uint8)
    return _Side(room[name][:size], pitch, length, rows)


# The processing element and its program.


class BlockState(tensor.KernelState):
    """A processing element and its program as the kernel takes them, arrays by address.

    ================  ====================================================================================
    ``code``          the instructions, with the records of loads, stores and ``mm``
    ``compiled``      which of them the kernel runs
    ``sums``          buffers for products, by what ``mm`` that share them have in common; ``room``: their memory
    ``prepared``      records and fields beside them, by what they were made for
    ``refused``       instructions the kernel cannot run as segments and pages are now
    ``irregular``     times that each ``mm`` was left to the general function
    ================  ====================================================================================
    """

    def __init__(self, pe: Pe, program: MachineProgram, code: Array) -> None:
        c, self.program, self.code = pe.config, program, code.copy()
        self.uniform = np.zeros(c.uniform_registers, np.int64)
        self.compiled = (code["op"] != records.OTHER).tolist()
        self.sums: dict[Any, Sums] = {}
        self.room: dict[str, Array] = {}
        self.prepared: dict[Any, tuple[Record, list[int]]] = {}
        self.refused: list[tuple[int, int]] = []
        self.irregular: Counter[int] = Counter()
        assert pe.predicates.dtype == bool
        assert pe.clock.causes.dtype == np.int8
        values: dict[str, Any] = {"registers": c.registers, "code": self.code, "count": len(code)}
        values |= {"alu_latency": c.alu_latency, "load_latency": c.l2_latency, "ports": c.l1_ports}
        values |= {"file": pe.file, "pitch": pe.file.strides[0], "threads": c.threads, "loaders": c.loader_threads}
        values |= {"predicates": pe.predicates, "predicate_pitch": pe.predicates.strides[0], "uniform": self.uniform}
        values |= {"dram_latency": c.dram_latency, "slots": c.slots, "l2_rate": c.l2_bytes_per_cycle}
        super().__init__(pe, values)

    @classmethod
    def of(cls, pe: Pe, program: MachineProgram, code: Array) -> BlockState | None:
        """For ``code`` (:func:`encoded`), or None where no instruction may be run by the kernel."""
        # Overflow and the order of floats matter to some types only: prepare sees to them.
        if pe.clock.tracing or pe.heat is not None or set(pe.config.slowing) - {"overflow", "float_order"}:
            return None
        return cls(pe, program, code)

    def load(self, pe: Pe, most: int) -> None:
        """Copy what changes from instruction to instruction from the processing element to the kernel's record."""
        self.record["pc"], self.record["executed"], self.record["most"] = pe.pc, pe.executed, most
        self.record["columns"], self.record["rows"] = pe.columns, -1 if pe.rows is None else pe.rows
        self.uniform[:] = pe.uniform
        self.load_clock(pe)

    def write_back(self, pe: Pe) -> None:
        """Copy it back to the processing element, but for the counts (:meth:`flush_counts`)."""
        pe.pc = pe.next_pc = self.record["pc"]
        pe.executed = self.record["executed"]
        self._write_numbers(pe)
        self.write_clock(pe)

    def _write_numbers(self, pe: Pe) -> None:
        """Uniform registers, and the shape of an ``mm``."""
        rows = self.record["rows"]
        pe.uniform, pe.columns, pe.rows = self.uniform.tolist(), self.record["columns"], None if rows < 0 else rows

    def invalidate_after(self, pe: Pe, instruction: Instruction) -> None:
        """Forget records that an instruction, whose own function was called, made invalid."""
        if instruction.name in _WINDOWS:
            self.prepared.clear()
        if instruction.name in _WINDOWS or instruction.name in _PAGES:
            self._invalidate_records()

    def _invalidate_records(self) -> None:
        """Have every record asked for again before it is used."""
        self.code["record"] = 0
        for pc, op in self.refused:
            self.code["op"][pc], self.compiled[pc] = op, True
        self.refused.clear()

    def _refuse(self, pc: int) -> bool:
        """The kernel cannot run this instruction, as segments and pages are now."""
        self.refused.append((pc, int(self.code["op"][pc])))
        self.code["op"][pc], self.compiled[pc] = records.OTHER, False
        return False

    def add_sums(self, pe: Pe) -> None:
        """Add the sums that wait to the product registers."""
        pending = self.record["pending"]
        if pending:
            next(s for s in self.sums.values() if s.at == pending).add(pe.words)
            self.record["pending"] = self.record["low"] = self.record["high"] = 0

    def prepare(self, pe: Pe) -> bool:
        """Make the record of the load, store or ``mm`` the kernel stands at; False where that is not for it now."""
        pc = self.record["pc"]
        self._write_numbers(pe)
        instruction, row, shape = self.program.instructions[pc], self.code[pc], (pe.columns, pe.rows)
        where = instruction.address
        handle = int(self.uniform[where.segment])
        segment = pe.segments.get(handle)
        if segment is not None and segment.table.loading:  # its own function waits for pages, one by one
            return False
        if segment is None or not all_loaded(segment):
            return self._refuse(pc)
        same = instruction.name, instruction.type, instruction.suffixes, where.offset
        key = same, instruction.operands[0], instruction.operands[2:], shape, handle
        if key not in self.prepared:
            if len(self.prepared) == _MOST_RECORDS:
                self._invalidate_records()
                self.add_sums(pe)
                self.prepared.clear()
                self.sums.clear()
            record = (self._multiply if instruction.name == "mm" else self._move)(pe, instruction, row, segment)
            if record is None:
                return self._refuse(pc)
            self.prepared[key] = record, [int(row[name]) for name in _OWN]
        record, own = self.prepared[key]
        for name, value in zip(_OWN, own, strict=True):
            row[name] = value
        row["record"], row["handle"] = address(record.numbers, np.int64), handle
        row["mm_columns"], row["mm_rows"] = self.record["columns"], self.record["rows"]
        return True

    def _move(self, pe: Pe, instruction: Instruction, row: Any, segment: Segment) -> Record | None:
        first, dims, c, storing = int(row["number"]), len(segment.sizes), pe.config, instruction.name == "st"
        shared = storing and pe.clock.port.several and c.slots == 1  # stores that wait for windows of a bus
        one_by_one = instruction.name == "ldb" and row["y_kind"] == 2
        if shared or one_by_one or row["x"] + dims > c.registers or int(instruction.suffix("t") or 0) >= dims:
            return None
        words = int(row["y"]) if row["y_kind"] == 0 else c.registers - first
        most, limit = words * 4 // segment.element_bytes, int(instruction.suffix("n") or 0)
        row["limit"] = min(most, limit or most)
        counted = [range(row["y"], row["y"] + 1)] if row["y_kind"] == 2 else []
        _note_registers(row, range(first, first + max(0, words)), *counted, range(row["x"], row["x"] + dims))
        at, counts = np.zeros((c.threads, dims), np.int64), np.zeros(c.threads, np.int64)
        return transfer_record(pe, segment, instruction, at, counts, storing)

    def _multiply(self, pe: Pe, instruction: Instruction, row: Any, segment: Segment) -> Record | None:
        c = pe.config
        roles = tensor.assign_roles(pe, Instruction("mm", instruction.operands, instruction.type, instruction.suffixes))
        if isinstance(roles, str) or not roles.on.all():  # the general function has something to say
            return None
        floats = roles.type_a[0] not in "su"
        if (floats and c.float_order != "chunk") or (not floats and c.overflow != "wrap"):
            return None
        a, offsets = int(row["y"]), range(row["x"], row["x"] + len(segment.sizes))
        _note_registers(row, range(a, a + c.a_registers), offsets)
        key = (pe.columns, pe.rows, roles.first, roles.type_a, roles.type_b, roles.groups, roles.chunk, roles.depth)
        if key not in self.sums:
            self.sums[key] = Sums.of(pe, roles, self.room)
        return self.sums[key].record(segment, int(instruction.suffix("t") or 0), pe.chip.store)


def run_block(pe: Pe, state: BlockState, most: int) -> bool:
    """Run from ``pe.pc`` until an instruction's own function is wanted, or ``most`` are executed; False if none was."""
    from tilewright.isa.kernels.block_kernels import run_block as run

    state.load(pe, most)
    while True:
        why = run(state.record.numbers)
        if why == records.WANTED and state.prepare(pe):
            continue
        state.add_sums(pe)
        if why != records.FULL:
            break
    if why == records.IRREGULAR:
        state.irregular[state.record["pc"]] += 1
        if state.irregular[state.record["pc"]] == _MOST_IRREGULAR:
            state.compiled[state.record["pc"]], state.code["op"][state.record["pc"]] = False, records.OTHER
    done = state.record["executed"] - pe.executed
    state.write_back(pe)
    return done > 0


# Instructions as records.

_ENCODED = {
    **dict.fromkeys(records.OPERATIONS, records.ALU),
    **dict.fromkeys(records.LOGICS, records.LOGIC),
    "cmp": records.CMP,
    "loop": records.LOOP_BACK,
    "br": records.BR,
    "jump": records.JUMP,
    "nop": records.NOP,
    "setmm": records.SETMM,
    "clr": records.CLR,
    "ld": records.LD,
    "st": records.ST,
    "ldb": records.LDB,
    "mm": records.MULTIPLY,
}
_KIND = {"imm": 0, "float": 0, "ur": 1, "r": 2, "p": 3}


def encoded(pe: Pe, program: MachineProgram) -> Array:
    """Records INSTRUCTION of all instructions, for every processing element of this configuration."""
    labels = dict(program.labels)
    code = np.zeros(len(program.instructions), records.INSTRUCTION.dtype)
    for row, instruction in zip(code, program.instructions, strict=True):
        _encode(pe, instruction, labels, row)
    return code


def _encode(pe: Pe, instruction: Instruction, labels: dict[str, int], row: Any) -> None:
    """One instruction to a record INSTRUCTION of zeros."""
    op, operands, guard = _ENCODED.get(instruction.name, records.OTHER), list(instruction.operands), instruction.guard
    for name in ("x_place", "y_place", "guard_place", "written", "guard"):
        row[name] = -1
    row["op"] = op
    if op == records.OTHER:
        return
    if guard is not None:
        row["guard"], row["negated"] = guard.predicate, guard.negated
        row["guard_place"] = pe.clock.span("p", guard.predicate).start
    if op in (records.LD, records.ST, records.LDB, records.MULTIPLY):
        where, count = instruction.address, operands[2:]
        row["number"], row["x"], row["immediate"] = number(operands[0]), where.offset, where.immediate
        row["x_place"], row["segment"] = pe.clock.span("ur", where.segment).start, where.segment
        if op == records.MULTIPLY:
            row["y"] = number(operands[2])
        if op != records.MULTIPLY:
            row["y"] = 1
            if count:
                _source(pe, row, "y", count[0])
        return
    if op == records.CLR:
        row["number"], row["y"] = number(operands[0]), 1
        for words in operands[1:]:
            _source(pe, row, "y", words)
        if row["y_kind"] == 2:  # each thread has a count of its own
            row["op"] = records.OTHER
        end = row["number"] + max(0, row["y"]) if row["y_kind"] == 0 else pe.config.registers
        _note_registers(row, range(row["number"], end))
        return
    if operands and isinstance(label := operands[-1], Label):
        row["target"] = labels[label.name]
        operands.pop()
    if op == records.SETMM:
        row["operation"] = len(operands) > 1
    elif op not in (records.BR, records.JUMP, records.NOP):
        destination = operands[0] if op == records.LOOP_BACK else operands.pop(0)
        row["kind"], row["number"] = _KIND[destination.kind], number(destination)
        row["written"] = _place(pe, destination)
    if op == records.LOOP_BACK:
        row["x_place"] = row["written"]
        return
    for name, source in zip("xy", operands, strict=False):
        _source(pe, row, name, source)
    row["per_thread"] = sum(_is(source, "r") for source in operands)
    _note_registers(row, *(range(number(o), number(o) + 1) for o in instruction.operands if _is(o, "r")))
    if op in (records.BR, records.CMP):
        row["operation"] = records.CONDITIONS.index(instruction.suffix("cond") or "")
    elif op in (records.ALU, records.LOGIC):
        row["operation"] = (records.LOGICS if op == records.LOGIC else records.OPERATIONS).index(instruction.name)


def _source(pe: Pe, row: Any, name: str, source: Any) -> None:
    """Operand ``name`` (x or y) of an instruction."""
    row[f"{name}_kind"], row[f"{name}_place"] = _KIND[source.kind], _place(pe, source)
    row[name] = source.number if isinstance(source, Register) else uniform_source(pe, source)


def _note_registers(row: Any, *registers: range) -> None:
    """Note the per-thread registers that an instruction reads or writes; an address's offsets come last."""
    if registers:
        row["low"], row["high"] = min(each.start for each in registers), max(each.stop for each in registers)
        row["offsets_end"] = registers[-1].stop


def _is(operand: Any, kind: str) -> bool:
    return isinstance(operand, Register) and operand.kind == kind


def _place(pe: Pe, operand: Operand) -> int:
    """Where the scoreboard has a register; -1 for what is none."""
    return pe.clock.span(operand.kind, operand.number).start if isinstance(operand, Register) else -1

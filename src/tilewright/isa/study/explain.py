"""What an instruction does, in words and with this machine's numbers, which the machine itself counts.

The instruction is done on a copy of the machine by the machine's own function: what it would do, with nothing done.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import groupby
from textwrap import wrap
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.segments import Segment, checked_tensor
from tilewright.isa.chip.state import Pe, new_chip, runs_of
from tilewright.isa.execute.operands import number, numpy_type, offset_registers, threads_on
from tilewright.isa.execute.run import HANDLERS
from tilewright.isa.execute.tensor import Roles, assign_roles, product_window, source_registers
from tilewright.isa.kernels.records import LINE_ACCESSES
from tilewright.isa.language.assemble import program_of
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts, Traffic
from tilewright.isa.language.errors import KINDS, Array, ErrorRecord, whole
from tilewright.isa.language.program import Address, Instruction, Label, MachineProgram
from tilewright.isa.study.profile import new_heat

MOST = 1 << 26
"""Elements of B that one dry run may ask for."""


@dataclass(frozen=True, eq=False)
class DryRun:
    """What one instruction did on a copy of ``pe``, which is as it was before; ``after``: the copy, which counted it.

    ``roles`` of an ``mm`` that is not refused; ``waits``: cycles the issue queue waited, by reason; ``times``: cycles
    of its issue and of its last result.
    """

    pe: Pe
    after: Pe
    roles: Roles | None
    waits: dict[str, int]
    times: tuple[int, int]
    staged: bool = False

    @property
    def lines(self) -> dict[str, Array]:
        """Accesses to every line of every tensor, as a profile has them."""
        return self.after.heat or {}

    def accesses(self) -> dict[str, dict[str, int]]:
        """Of every tensor it accesses: lines, their first and last byte, and accesses by kind."""
        accesses = {}
        for name, seen in self.lines.items():
            count, first, last = self.span(name)
            kinds = dict(zip(LINE_ACCESSES, seen.sum(axis=0).tolist(), strict=True))
            if count:
                accesses[name] = {"lines": count, "first_byte": first, "last_byte": last, **kinds}
        return accesses

    def span(self, name: str) -> tuple[int, int, int]:
        """Of a tensor: lines accessed, and the first and the last byte of them (staged: from the tensor's own)."""
        storage = self.pe.chip.storages[name]
        layout, size = storage.map, storage.element_bytes
        lines = np.flatnonzero(self.lines[name].any(axis=1))
        per_page = layout.page_elements // layout.line_elements
        if not lines.size:
            return 0, 0, 0
        width = layout.line_elements * size
        begins = storage.table.phys[lines // per_page] + lines % per_page * width
        home = storage.home if self.staged else 0
        return len(lines), int(begins.min()) - home, int(begins.max()) + width - 1 - home


def dry_run(pe: Pe, instruction: Instruction, staged: bool = False) -> DryRun:
    """Do it on a copy; ``staged``: of a machine that is there for this alone.

    Values are left out of an ``mm``: they are no part of what it costs.
    """
    copy = _copy(pe, instruction)
    roles = assign_roles(copy, instruction) if instruction.name == "mm" else None
    copy.next_pc = copy.pc + 1
    copy.record(instruction, HANDLERS[instruction.name](copy, instruction) or [])
    waits = {reason: n - pe.clock.queue[reason] for reason, n in copy.clock.queue.items()}
    issued = pe.clock.issue + sum(n for reason, n in waits.items() if reason not in ("issued", "A", "dma", "fetch"))
    set_ = copy.clock.tokens != pe.clock.tokens
    end = max(copy.clock.issue, int(copy.clock.tokens[set_].max(initial=0)))
    waited = {reason: n for reason, n in waits.items() if n and reason != "issued"}
    return DryRun(pe, copy, None if isinstance(roles, str) else roles, waited, (issued, end), staged)


def _copy(pe: Pe, instruction: Instruction) -> Pe:
    """Everything that the instruction may change: large memories that it only reads are shared."""
    chip, clock, name = pe.chip, pe.clock, instruction.name
    config = replace(pe.config, on_error="record", values=False)
    memo: dict[int, Any] = {id(pe.config): config, id(pe.heat): None}
    for mine in (chip.pes, pe.errors, clock.events, clock.lanes, chip.dma.transfers):
        memo[id(mine)] = []
    shared = [one for s in chip.storages.values() for one in (s.map, s.sizes, s.starts, s.pages_of, s.offsets_of)]
    shared += [pe.file] if name == "mm" else []
    shared += [chip.store] if name != "st" and instruction.spec.unit != "dma" else []
    memo |= {id(one): one for one in shared}
    copy = deepcopy(pe, memo)
    copy.chip.pes = [copy]
    copy.counts, copy.traffic, copy.heat = Counts(), Traffic(), new_heat(copy.chip.storages)
    return copy


def stage(
    instruction: Instruction,
    config: MatrixUnitConfig,
    segment: Any = None,
    columns: int | None = None,
    rows: int | None = None,
) -> Pe:
    """A machine ready for one ``mm``; ``segment``: an array like B as it is stored (None: as large as it needs).

    All columns are on and every loader stands at its column, at k = 0: loader j at the j-th of all columns (of one dim:
    j times the depth further on). Nothing is cached; every page is there, every register was written to.
    """
    address = instruction.address
    columns = config.default_columns if columns is None else columns
    name = instruction.type or "8"  # bytes where TYPE is absent
    element = numpy_type(f"s{name}" if name.isdigit() else name)
    width = element.itemsize if segment is None else np.asarray(segment).dtype.itemsize
    depth = config.depth(width, min(int(instruction.suffix("kb") or 1), config.compute_threads))
    if columns * depth > MOST:
        raise UsageError(f"{columns} columns of {depth} elements", where=str(instruction), how="fewer threads")
    chip = new_chip(replace(config, pes=1))
    if segment is None:  # as much of B as the instruction covers, stored as it walks it
        shape = (depth, columns) if instruction.suffix("t") == "1" else (columns, depth)
    else:
        array = checked_tensor("B", segment)
        shape, element = array.shape, array.dtype
    storage = chip.add("B", np.broadcast_to(np.zeros((), element), shape))
    storage.map_pages()
    pe = chip.pes[0]
    pe.columns, pe.rows, pe.uniform[address.segment] = columns, rows, pe.names["B"]
    if instruction.guard is not None:
        pe.predicates[:, instruction.guard.predicate] = not instruction.guard.negated
    if pe.written is not None:
        pe.written[:] = True
    _place_loaders(pe, address, int(instruction.suffix("t") or 0), depth)
    return pe


def _place_loaders(pe: Pe, address: Address, dim: int, depth: int) -> None:
    """Put the coordinates of every loader into registers, where the register file has room for them."""
    segment = pe.segment(address.segment)
    assert segment is not None
    sizes, loader = segment.sizes, np.arange(pe.config.threads, dtype=np.int64)
    at = np.zeros((len(loader), len(sizes)), np.int64)
    others = [d for d in range(len(sizes)) if d != dim]
    rest = loader * depth if not others else loader
    for d in others[:-1]:
        rest, at[:, d] = np.divmod(rest, sizes[d])
    at[:, others[-1] if others else 0] = rest
    if pe.config.offset_mode == "linear":
        at = (at * np.concatenate(([1], np.cumprod(sizes)[:-1]))).sum(axis=1, keepdims=True)
    at[:, 0] -= address.immediate
    room = pe.registers[:, address.offset : address.offset + at.shape[1]]
    room[:] = np.clip(at, -(2**31), 2**31 - 1)[:, : room.shape[1]]


# An ``mm`` in words: roles, registers, columns, lines and time, from what the machine did with it on a copy.

_SIGNS = {"s": "signed", "u": "unsigned"}


def plural(count: Any, unit: str = "cycle") -> str:
    """A count with its unit: ``1 cycle``, ``1,024 cycles``; text that is no number stays as it is."""
    if isinstance(count, str) and not count.isdecimal():
        return count
    return f"{int(count):,} {unit}{'' if int(count) == 1 else 's'}"


def guard_words(instruction: Instruction, config: MatrixUnitConfig, pe: Pe | None) -> list[str]:
    """What the guard says, and in how many threads it is true now."""
    if instruction.guard is None:
        return []
    scope = {
        "loader": "column j by thread j's",
        "compute": "a thread's products by its own",
        "both": "column j by thread j's, and a thread's products by its own",
    }
    line = f"only where predicate p{instruction.guard.predicate} is {'false' if instruction.guard.negated else 'true'}"
    if instruction.name == "mm":
        line += f": {scope[config.pred_scope]} (pred_scope={config.pred_scope})"
    if pe is not None:
        line += f"; that is {int(threads_on(pe, instruction).sum())} of {plural(config.threads, 'thread')} now"
    return [line]


def waits_words(done: DryRun) -> list[str]:
    """When it issues, what the queue waits for, and when its results are there."""
    issued, end = done.times
    waits = ", ".join(f"{reason} {n:,}" for reason, n in sorted(done.waits.items(), key=lambda row: -row[1]))
    return [f"time: issues at cycle {issued:,}, done at {end:,}; the issue queue waits: {waits or 'for nothing'}"]


def mm_words(done: DryRun, instruction: Instruction, assumed: bool = False) -> list[str]:
    """What one ``mm`` does, line by line; ``assumed``: B is not given, but as large as the instruction needs."""
    pe, roles, here = done.pe, done.roles, not done.staged
    lines = guard_words(instruction, pe.config, pe if here else None)
    if roles is None:
        (record,) = done.after.errors
        why = KINDS[record.kind].removesuffix("; nothing is done")
        lines.append(f"refused, nothing is done: {record.kind} ({why})")
        return [*lines, f"   {_reason(done.pe, record, instruction)}", *(waits_words(done) if here else [])]
    lines += [_types(roles, instruction, assumed), *_factors(pe, roles, instruction, assumed)]
    lines += [*_columns(done, roles), *_math(done, roles), _lines(done, roles)]
    integer = roles.type_a[0] in "su"
    how = f"32 bits, overflow {pe.config.overflow!r}" if integer else f"float32, order {pe.config.float_order!r}"
    lines.append(f"sums: {how}")
    lines += waits_words(done) if here else [_assumption(done, roles, instruction, assumed)]
    fields = relevant_readings(instruction, pe.config, roles.segment, bool(done.after.errors))
    values = ((name, getattr(pe.config, name)) for name in fields)
    readings = (f"{name}={v[0]}:{v[1]}" if isinstance(v, tuple) else f"{name}={v}" for name, v in values)
    return [*lines, "readings: " + ", ".join(readings)]


def _reason(pe: Pe, record: ErrorRecord, instruction: Instruction) -> str:
    """The numbers that led to the record of a refused ``mm``."""
    c, address, a = pe.config, instruction.address, number(instruction.operands[2])
    segment = pe.segment(address.segment)
    ka, kb = instruction.suffix("ka"), instruction.suffix("kb")
    if segment is None:
        return f"ur{address.segment} holds {pe.uniform[address.segment]}, which is no segment's handle"
    if record.kind == "group_too_large":
        return f"ka {ka} x kb {kb} threads to a row, {plural(c.compute_threads, 'thread')} to compute"
    if record.kind == "operand_out_of_range":
        own = _runs(source_registers(pe, segment, address, a), "r")
        return f"A and the coordinates take {own}; the last register is r{c.registers - 1}"
    signs = "".join(f", {instruction.suffix(x)}{x}" for x in "ab" if instruction.suffix(x))
    walk = instruction.suffix("t") or "0"
    dims = plural(len(segment.sizes), "dim")
    return f"TYPE {instruction.type or 'absent'}{signs}, t{walk}, on a segment of {segment.dtype} with {dims}"


def _types(roles: Roles, instruction: Instruction, assumed: bool) -> str:
    integer, bits = roles.type_a[0] in "su", 8 * roles.segment.element_bytes
    bits = int(roles.type_a[1:]) if integer else bits
    words = f"C += A * B on {'integers' if integer else 'floats'} of {bits} bits"
    if roles.type_a not in ("f16", "f32") and not integer:
        words += f" ({'bfloat16' if roles.type_a == 'bf16' else roles.type_a})"
    if integer:
        words += f" ({_SIGNS[roles.type_a[0]]} A, {_SIGNS[roles.type_b[0]]} B)"
    if instruction.type is None:
        words += f": TYPE is absent, so the elements are the segment's, {'assumed ' * assumed}{roles.segment.dtype}"
    return words


def _factors(pe: Pe, roles: Roles, instruction: Instruction, assumed: bool) -> list[str]:
    c, address, (active, ka, kb, *_) = pe.config, roles.address, roles.groups
    group, n = ka * kb, offset_registers(pe, roles.segment)
    t1, fits = instruction.suffix("t") == "1", c.compute_threads // group
    walk = "d2, lines kept in L1 until all used (t1)" if t1 else "d1 (t0)"
    own = _runs(list(range(address.offset, address.offset + n)), "r")
    where = f"{own} ({'d1 first' if n > 1 else 'd1' if len(roles.segment.sizes) == 1 else 'all dims in one number'})"
    threads = f"{group} threads serve a row (ka {ka} share its columns, kb {kb} its k)"
    rows = f"{plural(fits, 'row')} of {plural(c.compute_threads, 'thread')}"
    held = c.a_registers_read(roles.segment.element_bytes, kb)
    return [
        f"A: {plural(roles.chunk, 'element')} a thread, in {_runs(list(range(roles.a, roles.a + held)), 'r')} "
        f"({roles.chunk * roles.segment.element_bytes} bytes), read once for all columns; {roles.depth} of k for a row",
        f"B: thread j loads {plural(roles.depth, 'element')} of column j from the segment in ur{address.segment}, "
        f"{'assumed ' * assumed}{roles.segment.dtype}{roles.segment.sizes[::-1].tolist()},",
        f"   at its own coordinates {where}, {address.immediate:+d} on d1, along {walk}",
        f"rows: {threads if group > 1 else 'a thread serves a row'}: {rows}"
        + (f", of which {active} are active (setmm)" if active < fits else ""),
    ]


def _columns(done: DryRun, roles: Roles) -> list[str]:
    pe, ka = done.pe, roles.groups[1]
    taken, out = np.flatnonzero(roles.on), np.flatnonzero(roles.refused)
    used = _runs(sorted(set((roles.first + roles.index[taken]).tolist())), "r")
    whose = f", {roles.local} in each of a row's {ka} threads" if ka > 1 else ""
    off = roles.columns - len(taken) - len(out)
    lines = [f"columns: {roles.columns}{whose}"]
    if off:
        lines[0] += f"; {off} off by the predicate"
    lines[0] += f"; products of {len(taken)} of them in {used}" if len(taken) else "; none takes part"
    if len(out):
        refused = f"{plural(len(out), 'column')} out of range, skipped and recorded: {_runs(out.tolist())}"
        lines += [f"   {refused}", f"   ({_window_words(pe, roles)})"]
    for kind, records in groupby(
        (e for e in done.after.errors if e.kind != "register_out_of_range"), lambda record: record.kind
    ):
        lines.append(f"   {kind} ({KINDS[kind]}): columns {_runs([record.column for record in records])}")
    return lines


def _window_words(pe: Pe, roles: Roles) -> str:
    """Which registers may hold products, and what limits them."""
    own = source_registers(pe, roles.segment, roles.address, roles.a)
    low, high = product_window(pe, roles.first, own)
    if pe.config.acc_window is not None:
        return f"acc_window has products in registers {low} to {high - 1}" if high > low else "acc_window is empty"
    if high == low:
        return f"r{low} is one of the instruction's own source registers, so no product has a place"
    end = "the end of the file" if high == pe.config.registers else f"its own source r{high}"
    return f"products may lie in {_runs(list(range(low, high)), 'r')}, up to {end}"


def _math(done: DryRun, roles: Roles) -> list[str]:
    counts, c, kb = done.after.counts, done.pe.config, roles.groups[2]
    cycles = c.step_cycles(roles.segment.element_bytes, kb)
    bus = plural(counts.broadcast_elements, "element")
    loaded = f"{plural(counts.column_loads, 'column')} loaded, {bus} of B cross the bus"
    lines = [
        f"math: {plural(counts.steps, 'step')} of {plural(cycles)}, {plural(counts.macs, 'multiplication')}; {loaded}",
        f"   registers of A read: {counts.a_register_reads:,}; sums read and written: {counts.accumulator_writes:,}",
    ]
    if kb > 1:
        lines[1] += f"; sums sent to the thread that keeps them: {counts.kb_transfers:,}"
    return lines


def _lines(done: DryRun, roles: Roles) -> str:
    name, counts = roles.segment.storage.name, done.after.counts
    distinct, first, last = done.span(name)
    if not counts.l1_touches:
        return "lines of B: none is touched"
    of = "the segment's pages" if done.staged else "the store"
    text = f"lines of B: {plural(distinct, 'line')} of {done.pe.config.line_bytes} bytes within bytes {first:,} "
    text += f"to {last:,} of {of}, touched {plural(counts.l1_touches, 'time')}"
    missed = f"; {counts.l1_misses:,} miss L1, {counts.l2_misses:,} L2, {counts.dram_bytes:,} bytes from DRAM"
    return text if done.staged else text + missed


def _assumption(done: DryRun, roles: Roles, instruction: Instruction, assumed: bool) -> str:
    one = len(roles.segment.sizes) == 1
    where = f"k = {roles.depth} * j" if one and instruction.suffix("t") != "1" else "column j, k = 0"
    whose = "a B just large enough" if assumed else "this B"
    on = ", all predicates on" if instruction.guard is not None else ""
    setmm = "" if roles.columns != done.pe.config.default_columns or done.pe.rows else ", before any setmm"
    return f"counted for {whose} with loader j at {where}{on}{setmm}"


def relevant_readings(
    instruction: Instruction, c: MatrixUnitConfig, segment: Segment, errors: bool = False
) -> list[str]:
    """The fields of readings that may decide something about this ``mm`` on this segment."""
    ka, kb = int(instruction.suffix("ka") or 1), int(instruction.suffix("kb") or 1)
    integer = segment.dtype[0] in "su"
    when = {
        "disjoint_sets": True,
        "ka_split": ka > 1,
        "kb_acc": kb > 1,
        "kb_mode": kb > 1,
        "group_order": ka * kb > 1,
        "pred_scope": instruction.guard is not None,
        "acc_window": True,
        "on_error": errors,
        "offset_mode": len(segment.sizes) > 1,
        "a_bytes": True,
        "overflow": integer,
        "float_order": not integer,
        "retention": instruction.suffix("t") == "1",
        "math_issue": True,
        "kb_add_cycles": kb > 1,
        "columns_per_step": True,
        "column_numbering": instruction.guard is not None,
        "uninitialized": True,
    }
    return [name for name, relevant in when.items() if relevant]


def _runs(numbers: list[int], prefix: str = "") -> str:
    """Numbers as ranges: ``r0 to r3, r8``; at most eight, then how many more."""
    pieces = runs_of(numbers)
    shown = [f"{prefix}{a}" if a == b else f"{prefix}{a} to {prefix}{b}" for a, b in pieces[:8]]
    return ", ".join(shown) + (f" and {len(pieces) - 8} more runs" if len(pieces) > 8 else "")


@dataclass(frozen=True, eq=False)
class InstructionExplanation:
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
        return "\n".join((self.text, *self.says))

    def to_dict(self) -> dict[str, Any]:
        records = [{"pc": e.pc, "kind": e.kind, "column": e.column, "register": e.register} for e in self.errors]
        counted = {name: getattr(self, name) for name in ("counts", "traffic")}
        numbers = {name: own.to_dict() if own else None for name, own in counted.items()}
        plain = {"text": self.text, "says": list(self.says), "errors": records, **numbers}
        return plain | {"lines": self.lines, "time": self.time}


def explain(
    instruction: Instruction,
    config: MatrixUnitConfig | None = None,
    segment: Any = None,
    columns: int | None = None,
    rows: int | None = None,
    at: Pe | None = None,
) -> InstructionExplanation:
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
    if not isinstance(instruction, Instruction):
        raise UsageError(
            f"explain takes an instruction, not {type(instruction).__name__}",
            how="take it from assemble(text).instructions",
        )
    labels = {o.name: 0 for o in instruction.operands if isinstance(o, Label)}
    program_of(MachineProgram((instruction,), tuple(labels.items())), config)  # refuses what could not be run
    if at is not None:
        done = dry_run(at, instruction)
        says = mm_words(done, instruction) if instruction.name == "mm" else _other(instruction, config, done)
        return _explained(instruction, says, done)
    if instruction.name != "mm":
        return InstructionExplanation(str(instruction), _narrow(_other(instruction, config)))
    limits = (("columns", columns, config.loader_threads), ("rows", rows, config.compute_threads))
    for name, given, most in limits:
        if given is not None and whole(name, given, 1) > most:
            raise UsageError(f"{name} = {given} of {most} threads")
    done = dry_run(stage(instruction, config, segment, columns, rows), instruction, staged=True)
    return _explained(instruction, mm_words(done, instruction, assumed=segment is None), done)


def _narrow(lines: list[str]) -> tuple[str, ...]:
    """Wrap lines at 116 characters, indenting what follows."""
    return tuple(piece for line in lines for piece in wrap(line, 116, subsequent_indent="   ", drop_whitespace=True))


def _explained(instruction: Instruction, says: list[str], done: DryRun) -> InstructionExplanation:
    time = {"issue": done.times[0], "done": done.times[1], **done.waits} if not done.staged else None
    numbers = (tuple(done.after.errors), done.after.counts, done.after.traffic, done.accesses(), time)
    return InstructionExplanation(str(instruction), _narrow(says), *numbers)


def _other(instruction: Instruction, config: MatrixUnitConfig, done: DryRun | None = None) -> list[str]:
    """An instruction that is no mm: the table's words, and what it counts where the machine stands."""
    spec = instruction.spec
    lines = [*guard_words(instruction, config, done.pe if done else None), spec.doc]
    cost = f"unit {spec.unit}; keeps it {plural(spec.occupies)}"
    if spec.latency:
        cost += f", its result is there after {spec.latency} = {plural(getattr(config, spec.latency))}"
    lines.append(cost)
    if done is None:
        return lines
    t = done.after.traffic
    loaded, stored = (t.load_lines, t.load_bytes), (t.store_lines, t.store_bytes)
    for kind, (count, size) in (("loads", loaded), ("stores", stored)):
        if count:
            (name,) = (name for name, seen in done.lines.items() if seen.any())
            distinct, first, last = done.span(name)
            words = f"now: {kind} {size:,} bytes of {name}, {count:,} requests for {plural(distinct, 'line')}"
            lines.append(f"{words}, bytes {first:,} to {last:,} of the store")
    return [*lines, *waits_words(done), *(f"error: {record}" for record in done.after.errors)]

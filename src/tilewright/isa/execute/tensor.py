"""The tensor multiply ``mm``: columns of B on the bus, products in the registers, counts and cycles."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.isa.chip.clock import MATH_STALLS, QUEUE
from tilewright.isa.chip.segments import Segment
from tilewright.isa.chip.state import Pe
from tilewright.isa.execute.operands import (
    NAN,
    Handler,
    Reach,
    coordinates,
    grid_index,
    number,
    numpy_type,
    offset_registers,
    pages_ready,
    reach_elements,
    threads_on,
    translate,
)
from tilewright.isa.execute.scalar import fused_multiply_add
from tilewright.isa.kernels import records
from tilewright.isa.kernels.records import Record, address, int64_tables
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.errors import Array, Faults
from tilewright.isa.language.program import Address, Instruction

# Roles in an ``mm``: loaders and columns, row groups, product registers, element types.


@dataclass(frozen=True)
class Roles:
    """The threads, columns and registers of one ``mm``.

    ``type_a``, ``type_b``: element types; ``a``, ``first``: registers of A and of the first product.
    ``groups``: (active rows, ka, kb, thread strides of a row, of qa and of qb, qb of the thread that keeps the sum),
    counted from the first compute thread. ``chunk``: elements of A per thread; ``depth``: of k per instruction.
    ``on``: columns that take part; ``refused``: columns whose product register is out of range. ``part``, ``index``: qa
    and i of every column; ``sequence``: the columns that take part, in the order of their steps ``step_of``.
    """

    segment: Segment
    address: Address
    a: int
    first: int
    type_a: str
    type_b: str
    groups: tuple[int, int, int, int, int, int, int]
    on: Array
    refused: Array
    part: Array
    index: Array
    sequence: Array
    step_of: Array
    chunk: int
    depth: int

    @property
    def columns(self) -> int:
        """n, the columns of the instruction."""
        return len(self.on)

    @property
    def local(self) -> int:
        """c, the columns of a part."""
        return -(-self.columns // self.groups[1])

    @property
    def steps(self) -> int:
        """Math issues: steps with a column that takes part."""
        at = self.step_of
        return int(np.count_nonzero(at[1:] != at[:-1])) + 1 if len(at) else 0


def _types(segment: Segment, instruction: Instruction) -> tuple[str, str] | None:
    """Element types of A and B, or None where TYPE does not fit the segment."""
    own, written = segment.dtype, instruction.type
    signs = instruction.suffix("a"), instruction.suffix("b")
    if written is not None and not written.isdigit():
        return (written, written) if own == written else None
    if own[0] not in "su":  # a float segment: TYPE is absent, and no sign is
        return (own, own) if written is None and signs == (None, None) else None
    width = own[1:]
    if written is not None and written != width:
        return None
    return f"{signs[0] or own[0]}{width}", f"{signs[1] or own[0]}{width}"


@lru_cache(maxsize=256)
def columns_of(ka_split: str, n: int, ka: int) -> tuple[Array, Array, Array]:
    """qa and i of every column, and the columns in the order of their steps (part by part in a step)."""
    j, c = np.arange(n), -(-n // ka)
    part, index = (j % ka, j // ka) if ka_split == "interleaved" else (j // c, j % c)
    return part, index, np.lexsort((part, index))


def source_registers(pe: Pe, segment: Segment, address: Address, a: int) -> list[int]:
    """The registers that an ``mm`` reads: those of A from ``a`` on, and those of its address's coordinates."""
    return [
        *range(a, a + pe.config.a_registers),
        *range(address.offset, address.offset + offset_registers(pe, segment)),
    ]


def product_window(pe: Pe, first: int, sources: list[int]) -> tuple[int, int]:
    """The registers products may lie in: (low, high), high not among them."""
    if pe.config.acc_window is not None:
        return pe.config.acc_window
    return first, min([pe.config.registers, *(s for s in sources if s >= first)])


def assign_roles(pe: Pe, instruction: Instruction) -> Roles | str:
    """Resolve operands, or say which kind of error keeps the whole instruction from running."""
    c, address = pe.config, instruction.address
    first, a = number(instruction.operands[0]), number(instruction.operands[2])
    ka, kb = (int(instruction.suffix(key) or 1) for key in ("ka", "kb"))
    segment = pe.segment(address.segment)
    if segment is None:
        return "unknown_segment"
    if ka * kb > c.compute_threads:
        return "group_too_large"
    sources = source_registers(pe, segment, address, a)
    if max(sources) >= c.registers:
        return "operand_out_of_range"
    types = _types(segment, instruction)
    if types is None or int(instruction.suffix("t") or 0) >= len(segment.sizes):
        return "type_mismatch"
    low, high = product_window(pe, first, sources)
    part, index, order = columns_of(c.ka_split, pe.columns, ka)
    on = np.ones(pe.columns, bool) if c.pred_scope == "compute" else threads_on(pe, instruction)[: pe.columns]
    if c.column_numbering == "compact" and not on.all():
        index, order = _compacted(part, on, ka)
    fits = (first + index >= low) & (first + index < high)
    taken = on & fits
    sequence = order if taken.all() else order[taken[order]]
    fit = c.compute_threads // (ka * kb)
    strides = (1, kb * fit, fit) if c.group_order == "strided" else (ka * kb, kb, 1)
    rows, keeper = fit if pe.rows is None else min(fit, pe.rows), kb - 1 if c.kb_acc == "last" else 0
    step_of = index[sequence] // c.columns_per_step
    chunk, depth = c.chunk(segment.element_bytes, kb), c.depth(segment.element_bytes, kb)
    columns = (taken, on & ~fits, part, index, sequence, step_of)
    return Roles(segment, address, a, first, *types, (rows, ka, kb, *strides, keeper), *columns, chunk, depth)


def _compacted(part: Array, on: Array, ka: int) -> tuple[Array, Array]:
    """i of every column when those that are off leave no gap, and the columns in the order of their steps."""
    index = np.zeros(len(part), np.int64)
    for qa in range(ka):
        own = part == qa
        index[own] = np.cumsum(on[own]) - on[own]
    return index, np.lexsort((part, index))


def _mm(pe: Pe, instruction: Instruction) -> Faults:
    # operands
    pe.counts.instructions += 1
    roles = assign_roles(pe, instruction)
    if isinstance(roles, str):
        pe.clock.step("control", "mm")
        return [(roles, -1, -1)]
    refused = np.flatnonzero(roles.refused).tolist()
    faults = [("register_out_of_range", j, roles.first + int(roles.index[j])) for j in refused]
    # operation: memory issue, [n, depth] elements of B; none for columns that are off
    counts, dim = np.where(roles.on, roles.depth, 0), int(instruction.suffix("t") or 0)
    at = coordinates(pe, roles.segment, roles.address, len(counts))
    bus = reach_elements(roles.segment, at, counts, roles.depth, dim)
    page_ready = pages_ready(roles.segment, bus)
    # A column that met an absent page does not go on the bus at all.
    bus.ids[bus.faulted], bus.present[bus.faulted] = -1, 0
    translate(pe, roles.segment, bus)
    faults += bus.faults()
    # operation, result: math issue
    writes = np.ones(pe.config.threads, bool) if pe.config.pred_scope == "loader" else threads_on(pe, instruction)
    writes = writes[pe.config.first_compute :]
    faults += _first_reads(pe, roles, bus, writes)
    _multiply(pe, roles, bus, writes)
    # cost
    _count(pe, roles, bus, writes)
    _issue(pe, instruction, roles, at, bus, page_ready)
    return faults


def summing_threads(roles: Roles) -> Array:
    """[active rows, ka]: the compute threads that keep sums."""
    rows, ka, _, row_stride, a_stride, b_stride, keeper = roles.groups
    return np.arange(rows)[:, None] * row_stride + np.arange(ka) * a_stride + keeper * b_stride


def _first_reads(pe: Pe, roles: Roles, bus: Reach, writes: Array) -> Faults:
    """Columns whose product registers nothing was ever put in, where the machine looks for them; now something is."""
    if pe.written is None:
        return []
    keep, faults = summing_threads(roles) + pe.config.first_compute, []
    for j in np.flatnonzero(bus.present > 0).tolist():
        threads, register = keep[:, roles.part[j]], roles.first + int(roles.index[j])
        threads = threads[writes[threads - pe.config.first_compute]]
        if not pe.written[threads, register].all():
            faults.append(("uninitialized_register", j, register))
        pe.written[threads, register] = True
    return faults


def factor_of(words: Array, dtype: str) -> Array:
    """Raw elements as what the multiplier takes: int32 (modulo 2^32) or float32."""
    if dtype in ("s4", "u4"):
        low = (words & 15).astype(np.int32)
        return (low ^ 8) - 8 if dtype == "s4" else low
    if dtype[0] in "su":
        signed = words.view(f"{'i' if dtype[0] == 's' else 'u'}{words.itemsize}")
        return signed.view(np.int32) if words.itemsize == 4 else signed.astype(np.int32)
    if dtype == "bf16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(words.view(numpy_type(dtype)).astype(np.float32, copy=False))


def _multiply(pe: Pe, roles: Roles, bus: Reach, writes: Array) -> None:
    """Bring both factors into the multiplier's form, and add their products, part of the columns by part."""
    word, some = np.dtype(f"u{roles.segment.element_bytes}"), bus.present > 0
    if not (some.any() and pe.config.values):
        return
    b = np.where(bus.there, factor_of(pe.chip.view(word)[bus.places], roles.type_b), 0)
    file = pe.file[pe.config.first_compute :]
    # A copy: with one thread products may lie in the same memory (acc_window), and A is read once.
    registers = file[:, roles.a : roles.a + pe.config.a_registers].copy()
    a = factor_of(registers.view(word)[:, : roles.chunk], roles.type_a)
    added = _with_integers if b.dtype == np.int32 else _with_floats
    rows, ka, kb, row_stride, a_stride, b_stride, _ = roles.groups
    keepers = summing_threads(roles)
    for qa in range(ka):
        mine, columns = writes[keepers[:, qa]], np.flatnonzero(some & (roles.part == qa))
        if not (mine.any() and len(columns)):
            continue
        first = (np.arange(rows)[mine] * row_stride + qa * a_stride)[:, None]
        x = np.ascontiguousarray(a[first + np.arange(kb) * b_stride].reshape(len(first), -1)[:, : roles.depth])
        y, there = np.ascontiguousarray(b[columns].T), bus.there[columns].T
        where = grid_index(keepers[mine, qa], roles.first + roles.index[columns])
        file[where] = added(pe, roles, np.ascontiguousarray(file[where]), x, y, there)


def _saturated(sums: Array, x: Array, y: Array) -> Array:
    """sums + x @ y, no larger than int32 is: products of 32 bits in two halves, which no sum of int64 loses."""
    lower = sums + (x & 0xFFFF) @ y
    upper = (x >> 16) @ y + (lower >> 16)
    total = np.clip(upper, -(2**40), 2**40) * 65536 + (lower & 0xFFFF)
    return np.asarray(np.clip(total, -(2**31), 2**31 - 1).astype(np.int32))


def _with_integers(pe: Pe, roles: Roles, sums: Array, x: Array, y: Array, there: Array) -> Array:
    from tilewright.isa.kernels.value_kernels import add_words

    if pe.config.overflow == "saturate":
        return _saturated(sums.astype(np.int64), _wide(x, roles.type_a), _wide(y, roles.type_b))
    add_words(sums, x, y)
    return sums


def _wide(words: Array, dtype: str) -> Array:
    """The 32-bit words of elements as int64, u32 without a sign."""
    return words.view(np.uint32).astype(np.int64) if dtype == "u32" else words.astype(np.int64)


def _with_floats(pe: Pe, roles: Roles, sums: Array, x: Array, y: Array, there: Array) -> Array:
    from tilewright.isa.kernels.value_kernels import add_rounds

    order, total, present = pe.config.float_order, sums.view(np.float32), int(there[:, 0].sum())
    if order == "chunk" and present and there[:present].all() and not there[present:].any():
        add_rounds(total, x, y, np.array([present]), roles.chunk, roles.groups[2])
    else:
        with np.errstate(all="ignore"):
            total = {"chunk": _in_chunks, "exact": _at_once, "fma": _fused}[order](total, x, y, there, roles.chunk)
    # Which of two NaNs an addition keeps is our own machine's affair.
    return np.where(np.isnan(total), np.int32(NAN), total.view(np.int32))


_NOTHING = np.float32(-0.0)
"""What a sum begins with, so that what is added first stays as it is: 0 + -0 is 0, and -0 + x is x."""


def _in_chunks(sums: Array, x: Array, y: Array, there: Array, chunk: int, fused: bool = False) -> Array:
    """The 'chunk' order: in float32 the products of every thread, then the threads' sums, then the register.

    ``fused``: every product is added to its thread's sum with one rounding for both [119].
    """
    dot = np.full(sums.shape, _NOTHING)
    for begin in range(0, len(y), chunk):
        own = np.full(sums.shape, _NOTHING)
        for u in range(begin, min(begin + chunk, len(y))):
            more = fused_multiply_add(x[:, u, None], y[u], own) if fused else own + x[:, u, None] * y[u]
            own = np.where(there[u], more, own)
        dot = dot + own
    return np.asarray(sums + dot)


def _at_once(sums: Array, x: Array, y: Array, there: Array, chunk: int) -> Array:
    """One float64 sum per instruction."""
    left, right, total = x.astype(np.float64), y.astype(np.float64), np.full(sums.shape, np.float64(_NOTHING))
    for u in range(len(y)):
        total = total + np.where(there[u], left[:, u, None] * right[u], _NOTHING)
    return np.asarray((sums.astype(np.float64) + total).astype(np.float32))


def _fused(sums: Array, x: Array, y: Array, there: Array, chunk: int) -> Array:
    """Every product straight into the register, one rounding each; :func:`_in_chunks` where threads share the sum."""
    if len(y) > chunk:
        return _in_chunks(sums, x, y, there, chunk, fused=True)
    for u in range(len(y)):
        sums = np.where(there[u], fused_multiply_add(x[:, u, None], y[u], sums), sums)
    return sums


def macs_counter(dtype: str) -> str:
    """The counter of multiplications of this type."""
    if dtype[0] in "su":
        return f"macs_int{max(8, int(dtype[1:]))}"
    return f"macs_{'f8' if dtype.startswith('f8') else 'f32' if dtype == 'f32' else 'f16'}"


def _count(pe: Pe, roles: Roles, bus: Reach, writes: Array) -> None:
    counts, (rows, ka, kb, *_) = pe.counts, roles.groups
    present = bus.present
    loaded = present > 0
    kept: Any = rows
    if pe.config.pred_scope != "loader":  # not every row keeps what it computes
        kept = writes[summing_threads(roles)].sum(axis=0)[roles.part]
    a_registers = pe.config.a_registers_read(roles.segment.element_bytes, kb) * ka * kb * rows * (roles.steps > 0)
    products = int((loaded * kept).sum())
    macs = int((present * kept).sum())
    counts.macs += macs
    pe.clock.port.count(**{macs_counter(roles.type_a): macs})
    counts.column_loads += int(loaded.sum())
    counts.broadcast_elements += int(present.sum())
    counts.steps += roles.steps
    counts.a_register_reads += a_registers
    counts.accumulator_reads += products
    counts.accumulator_writes += products
    counts.kb_transfers += products * (kb - 1)
    pe.traffic.register_reads += a_registers + products
    pe.traffic.register_writes += products


# Its lines through the caches and its place on the clock: by the kernel that compiled blocks have.

ACCOUNTS = (records.COUNTS.names, records.TRAFFIC.names, tuple(QUEUE), tuple(MATH_STALLS))
_FLIGHT = len(records.CLOCK.names)
_WAITS = ("arithmetic", "load", "product", "depth", "page", "A")
"""Why the queue may wait before an ``mm`` issues, and last of all behind that, in this order."""


class KernelState:
    """A processing element's clock, caches and counters as kernels take them: arrays by address.

    ``record``: BLOCK; ``accounts``: what was counted since :meth:`flush_counts`. ``more``: other fields of the record.
    """

    def __init__(self, pe: Pe, more: dict[str, Any]) -> None:
        c = pe.config
        self.clock = np.zeros(_FLIGHT + c.bcast_depth + 1, np.int64)
        self.accounts = tuple(np.zeros(len(names), np.int64) for names in ACCOUNTS)
        values: dict[str, Any] = {"clock": self.clock, "fetch": c.fetch_cycles}
        values |= dict(zip(("counts", "traffic", "queue", "math"), self.accounts, strict=True))
        values |= int64_tables(tokens=pe.clock.tokens, foreign=pe.clock.foreign, l1=pe.l1.cells, l2=pe.chip.l2.cells)
        values |= {"causes": pe.clock.causes, "memory": pe.clock.port.links}
        self.record = Record(records.BLOCK, values | more)

    def load_clock(self, pe: Pe) -> None:
        """Copy the clock, and which product is at work, to the kernel's record."""
        flight = list(pe.clock.in_flight)
        self.record["product"], (self.record["walked"], self.record["walked_in"]) = pe.product, pe.walked
        now = [pe.clock.issue, pe.clock.end, *pe.clock.free, 0, len(flight), *flight]
        self.clock[: _FLIGHT + len(flight)] = now

    def write_clock(self, pe: Pe) -> None:
        """Copy them back to the processing element."""
        pe.product, pe.walked = self.record["product"], (self.record["walked"], self.record["walked_in"])
        issue, end, lsu, math, bus, busy, flight, *ends = self.clock.tolist()
        pe.clock.issue, pe.clock.end, pe.clock.free = issue, end, [lsu, math, bus]
        pe.clock.math_busy += busy
        pe.clock.in_flight.clear()
        pe.clock.in_flight.extend(ends[:flight])

    def flush_counts(self, pe: Pe) -> None:
        """Add what was counted to the accounts of the processing element."""
        into: Any = pe.counts.__dict__, pe.traffic.__dict__, pe.clock.queue, pe.clock.math
        misses = pe.counts.l2_misses
        for names, numbers, account in zip(ACCOUNTS, self.accounts, into, strict=True):
            for name, more in zip(names, numbers.tolist(), strict=True):
                account[name] += more
        pe.counts.dram_bytes += (pe.counts.l2_misses - misses) * pe.config.line_bytes
        for numbers in self.accounts:
            numbers[:] = 0


def walk_values(segment: Segment, dim: int, store: Array, c: MatrixUnitConfig) -> dict[str, Any]:
    """Fields of a record MM for a segment that is walked along a dim; ``store``: the chip's memory."""
    storage, table, retains = segment.storage, segment.table, dim == 1 and c.retention != "off"
    if retains:
        segment.begin_retention()
    values: dict[str, Any] = {"dim": dim, "retains": retains, "dims": len(segment.sizes), "store": store}
    values |= int64_tables(sizes=segment.sizes, starts=segment.starts, phys=table.phys)
    values |= int64_tables(pages_of=storage.pages_of, offsets_of=storage.offsets_of)
    values |= {"in_l2": table.in_l2, "page_elements": segment.map.page_elements}
    values |= {"line_shift": (segment.map.line_elements * segment.element_bytes).bit_length() - 1}
    values |= {"selected": segment.selected, "awaited": segment.awaited, "at_first": segment.at_first}
    values |= {"walk": segment.walk, "elements": len(segment.selected), "lines": len(segment.awaited)}
    values |= {"element_bytes": segment.element_bytes, "bypasses": c.retention == "bypass"}
    return values | {"inside": int(segment.sizes.prod())}


def walk_columns(
    pe: Pe, segment: Segment, at: Array, bus: Reach, dim: int, sequence: Array, row: dict[str, int], mm: dict[str, Any]
) -> tuple[Array, Record]:
    """Take columns through the caches and the clock, in the order of ``sequence``: what each did, the record TIMES.

    ``at``: coordinates of all columns, ``bus``: what of them is there; ``row``, ``mm``: fields of the records
    INSTRUCTION and MM. Lines touched, L1 misses and L2 misses are int64[len(sequence), 3].
    """
    from tilewright.isa.kernels.block_mm_kernels import walk_columns as walk

    storage, n, deepest = segment.storage, len(at), bus.ids.shape[1]
    low = np.clip(-at[:, dim], 0, max(0, deepest - 1))
    head = segment.starts[dim] + np.where(bus.present > 0, at[:, dim] + low, 0)
    first = bus.ids[np.arange(n), low] if deepest else np.zeros(n, np.int64)
    reach = np.zeros(n, records.REACH.dtype)
    reach["begin"], reach["x"], reach["low"], reach["count"] = -1, at[:, dim], low, bus.present
    reach["page"] = first // segment.map.page_elements - storage.pages_of[head]
    reach["offset"] = first % segment.map.page_elements - storage.offsets_of[head]
    words = np.ascontiguousarray(np.clip(at, -(2**31), 2**31 - 1), np.int32)
    state = KernelState(pe, {"file": address(words, np.int32) - 4 * row["x"], "pitch": words.strides[0]})
    out, times = np.zeros((len(sequence), 3), np.int64), Record(records.TIMES, {})
    values = walk_values(segment, dim, pe.chip.store, pe.config)
    values |= {"columns": n, "sequence": sequence.astype(np.int64), "reach": reach, "out": out, "times": times}
    values |= {"deep": np.zeros(len(sequence) * deepest, np.int64), "bcast_depth": pe.config.bcast_depth}
    values |= {"seen": 0 if pe.heat is None else pe.heat[storage.name]}
    record = Record(records.MM, values | mm)
    instruction = Record(records.INSTRUCTION, row)
    state.load_clock(pe)
    walk(state.record.numbers, record.numbers, instruction.numbers)
    state.write_clock(pe)
    state.flush_counts(pe)
    return out, times


def _issue(pe: Pe, instruction: Instruction, roles: Roles, at: Array, bus: Reach, page_ready: int) -> None:
    c, clock, segment, (_, _, kb, *_) = pe.config, pe.clock, roles.segment, roles.groups
    e, dim, steps, step_of = segment.element_bytes, int(instruction.suffix("t") or 0), roles.steps, roles.step_of
    step_cycles = c.step_cycles(e, kb)
    if c.math_issue != "step":  # every column belongs to the same wait
        steps, step_of, step_cycles = 1, np.zeros_like(step_of), step_cycles * steps
    offset, guard = roles.address.offset, instruction.guard
    row = {"x": offset, "offsets_end": offset + offset_registers(pe, segment), "y": roles.a, "handle": segment.handle}
    row |= {"x_place": clock.span("ur", roles.address.segment).start}
    row |= {"guard_place": -1 if guard is None else clock.span("p", guard.predicate).start}
    fill = Record(records.FILL, {"columns": len(roles.sequence), "steps": steps})
    mm: dict[str, Any] = {"fill": fill, "step_of": step_of.astype(np.int64), "depth": roles.depth}
    mm |= {"on": roles.on, "a_registers": c.a_registers, "first": roles.first, "step_cycles": step_cycles}
    mm |= {"local": min(roles.local, c.registers - roles.first), "page_ready": page_ready}
    mm["timing"] = clock.line_times(step_cycles, c.column_cycles(e, kb))
    start, free, queue, math = clock.issue, clock.free[1], dict(clock.queue), dict(clock.math)
    out, times = walk_columns(pe, segment, at, bus, dim, roles.sequence, row, mm)
    pe.clock.port.count(l1_b=int(bus.present.sum()) * e)
    if clock.tracing:
        waits = {reason: n - queue[reason] for reason, n in clock.queue.items()}
        idle = {reason: n - math[reason] for reason, n in clock.math.items()}
        waited = {reason: waits[reason] for reason in _WAITS}
        clock.draw_mm(str(instruction), start, waited, (free, times["first"]), idle, out)


TENSOR_HANDLERS: dict[str, Handler] = {"mm": _mm}

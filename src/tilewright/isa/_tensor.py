"""The tensor multiply ``mm``: roles of the threads, columns of B on the bus, products in the registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.isa._alu import number, threads_on
from tilewright.isa._control import settle
from tilewright.isa._memory import Walk, coordinates, offset_registers, walk_elements
from tilewright.isa._program import Address, Instruction
from tilewright.isa._segments import Segment
from tilewright.isa._state import MachineState

__all__ = ["HANDLERS"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class _Roles:
    """Who does what in one ``mm``.

    ``type_a``, ``type_b``: element types; ``columns`` n, ``rows`` active; ``local``: columns per part c;
    ``groups``: (rows, ka, kb, thread strides of row, qa and qb, qb of the thread that keeps the sum).
    ``on``: columns that take part; ``refused``: columns whose product register is out of range. ``part``, ``index``: qa
    and i of every column; ``sequence``: the columns that take part, in the order of their steps.
    """

    segment: Segment
    address: Address
    a: int
    first: int
    type_a: str
    type_b: str
    columns: int
    local: int
    groups: tuple[int, int, int, int, int, int, int]
    on: Array
    refused: Array
    part: Array
    index: Array
    sequence: Array

    @property
    def padded(self) -> int:
        """The columns rounded up to ka equal parts."""
        return self.groups[1] * self.local

    @property
    def steps(self) -> int:
        """Math issues: values i with a column that takes part."""
        at = self.index[self.sequence]
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
def _columns(ka_split: str, n: int, ka: int) -> tuple[Array, Array, Array]:
    """qa and i of every column, and the columns in the order of their steps (part by part in a step)."""
    j, c = np.arange(n), -(-n // ka)
    part, index = (j % ka, j // ka) if ka_split == "interleaved" else (j // c, j % c)
    return part, index, np.lexsort((part, index))


def _window(state: MachineState, first: int, sources: list[int]) -> tuple[int, int]:
    """The registers products may lie in."""
    if state.config.acc_window is not None:
        return state.config.acc_window
    return first, min([state.config.registers, *(s for s in sources if s >= first)])


def _roles(state: MachineState, instruction: Instruction) -> _Roles | str:
    """Resolve operands, or say which kind of error keeps the whole instruction from running."""
    c = state.config
    address = instruction.operands[1]
    assert isinstance(address, Address)
    first, a = number(instruction.operands[0]), number(instruction.operands[2])
    ka, kb = (int(instruction.suffix(key) or 1) for key in ("ka", "kb"))
    fit = c.threads // (ka * kb)
    segment = state.segment(address.segment)
    if segment is None:
        return "unknown_segment"
    offsets = offset_registers(state, segment)
    if fit == 0:
        return "group_too_large"
    if a + c.a_registers > c.registers or address.offset + offsets > c.registers:
        return "operand_out_of_range"
    types = _types(segment, instruction)
    if types is None or int(instruction.suffix("t") or 0) >= len(segment.sizes):
        return "type_mismatch"
    n = state.columns
    strides = (1, kb * fit, fit) if c.group_order == "strided" else (ka * kb, kb, 1)
    rows = fit if state.rows is None else min(fit, state.rows)
    sources = [*range(a, a + c.a_registers), *range(address.offset, address.offset + offsets)]
    low, high = _window(state, first, sources)
    part, index, order = _columns(c.ka_split, n, ka)
    register = first + index
    on = np.ones(n, bool) if c.pred_scope == "compute" else threads_on(state, instruction)[:n]
    fits = (register >= low) & (register < high)
    keeper = kb - 1 if c.kb_acc == "last" else 0
    groups = (rows, ka, kb, *strides, keeper)
    on, refused = on & fits, on & ~fits
    sequence = order if on.all() else order[on[order]]
    return _Roles(segment, address, a, first, *types, n, -(-n // ka), groups, on, refused, part, index, sequence)


def _mm(state: MachineState, instruction: Instruction) -> None:
    # operands
    state.counts.instructions += 1
    roles = _roles(state, instruction)
    if isinstance(roles, str):
        state.clock.step("control", "mm", (), ())
        state.record(instruction, [(roles, -1, -1)])
        return
    page_ready = settle(state, roles.segment)
    out_of_range = np.flatnonzero(roles.refused).tolist()
    bad = [("register_out_of_range", j, roles.first + int(roles.index[j])) for j in out_of_range]
    # operation: memory issue, every loader walks its column
    bus = _load(state, instruction, roles)
    bad += bus.faults()
    bus.ids[bus.found[:, 2] > 0] = -1  # a column that met an absent page does not go on the bus at all
    bus.found[bus.found[:, 2] > 0] = 0
    # operation: math issue
    writes = np.ones(state.config.threads, bool)
    if state.config.pred_scope != "loader":
        writes = threads_on(state, instruction)
    _multiply(state, roles, bus, writes)
    # cost
    _count(state, roles, bus, writes)
    _cost(state, instruction, roles, bus, page_ready)
    state.record(instruction, bad)


def _load(state: MachineState, instruction: Instruction, roles: _Roles) -> Walk:
    """[n, kb * Le]: the elements of B every column reads; none for columns that are off."""
    length = roles.groups[2] * state.config.chunk(roles.segment.element_bytes)
    counts = np.where(roles.on, length, 0)
    at = coordinates(state, roles.segment, roles.address, roles.columns)
    return walk_elements(roles.segment, at, counts, length, int(instruction.suffix("t") or 0))


def _values(words: Array, dtype: str) -> Array:
    """Raw elements as what the multiplier takes: int32 (modulo 2^32) or float32."""
    if dtype[0] in "su":
        signed = words.view(f"{'i' if dtype[0] == 's' else 'u'}{words.itemsize}")
        return signed.view(np.int32) if words.itemsize == 4 else signed.astype(np.int32)
    if dtype == "bf16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    return words.view(np.float16 if dtype == "f16" else np.float32).astype(np.float32, copy=False)


def _parts(state: MachineState, roles: _Roles, columns_last: Array) -> Array:
    """[u, n] -> [ka, u, c]: part by part, padded with zeros where the last part has fewer columns."""
    _, ka, _, *_ = roles.groups
    u, n = columns_last.shape
    wide = np.zeros((u, roles.padded), columns_last.dtype)
    wide[:, :n] = columns_last
    if state.config.ka_split == "interleaved":
        return np.ascontiguousarray(wide.reshape(u, roles.local, ka).transpose(2, 0, 1))
    return np.ascontiguousarray(wide.reshape(u, ka, roles.local).transpose(1, 0, 2))


def _multiply(state: MachineState, roles: _Roles, bus: Walk, writes: Array) -> None:
    from tilewright.isa import _value_kernels as kernels

    c, e = state.config, roles.segment.element_bytes
    word = np.dtype(f"u{e}")
    some: Array = bus.present > 0
    if not some.any():
        return
    there = bus.there
    raw = state.view(word)[bus.places]
    b = _parts(state, roles, np.where(there, _values(raw, roles.type_b), 0).T)
    registers = np.ascontiguousarray(state.registers[:, roles.a : roles.a + c.a_registers]).view(word)
    a = _values(registers, roles.type_a)
    low, high = _range(_parts(state, roles, some[None]))
    if b.dtype == np.int32:
        if c.overflow == "saturate" and e == 4:
            raise UnsupportedError("overflow = 'saturate' with 32-bit elements", how="8 and 16-bit elements saturate")
        kernel = kernels.accumulate_saturating if c.overflow == "saturate" else kernels.accumulate_int
        kernel(state.registers, roles.first, a, b, low, high, roles.groups, writes)
        return
    sums = state.registers.view(np.float32)
    present = int(bus.present.max())
    # Whole ranges of columns, each with the same first elements: the kernel that vectorises over columns.
    whole = int((high - low).sum()) == int(some.sum()) and bool((bus.found[some, :2] == present).all())
    if c.float_order == "chunk" and whole:
        kernels.accumulate_float(sums, roles.first, a, b, low, high, roles.groups, writes, present)
        return
    mask = _parts(state, roles, there.T)
    if c.float_order == "chunk":
        kernels.accumulate_masked(sums, roles.first, a, b, low, high, roles.groups, writes, mask)
    else:
        fused = c.float_order == "fma"
        kernels.accumulate_exact(sums, roles.first, a, b, low, high, roles.groups, writes, mask, fused)


def _range(some: Array) -> tuple[Array, Array]:
    """Per part, first and end of the columns with anything to do."""
    active = some[:, 0, :]
    any_ = active.any(axis=1)
    low = np.where(any_, active.argmax(axis=1), 0)
    high = np.where(any_, active.shape[1] - active[:, ::-1].argmax(axis=1), 0)
    return low, high


def _count(state: MachineState, roles: _Roles, bus: Walk, writes: Array) -> None:
    counts, (rows, ka, kb, row_stride, a_stride, b_stride, keeper) = state.counts, roles.groups
    present = bus.present
    loaded = present > 0
    kept: Any = rows
    if state.config.pred_scope != "loader":  # not every row keeps what it computes
        threads = np.arange(rows)[:, None] * row_stride + np.arange(ka) * a_stride + keeper * b_stride
        kept = writes[threads].sum(axis=0)[roles.part]
    counts.macs += int((present * kept).sum())
    counts.column_loads += int(loaded.sum())
    counts.broadcast_elements += int(present.sum())
    counts.steps += roles.steps
    counts.a_register_reads += state.config.a_registers * ka * kb * rows * (roles.steps > 0)
    products = int((loaded * kept).sum())
    counts.accumulator_reads += products
    counts.accumulator_writes += products
    counts.kb_transfers += products * (kb - 1)


def _cost(state: MachineState, instruction: Instruction, roles: _Roles, bus: Walk, page_ready: int) -> None:
    """Lines of B through the caches, then the two-phase issue on the clock."""
    from tilewright.isa._traffic_kernels import issue_columns, touch_columns

    c, segment, clock = state.config, roles.segment, state.clock
    sequence, step_of = roles.sequence, roles.index[roles.sequence]
    transposed = instruction.suffix("t") == "1"
    if transposed:
        segment.await_all()
    traffic = np.empty((len(sequence), 3), np.int64)
    e = segment.element_bytes
    units = (segment.map.page_elements, segment.map.line_elements, e, c.line_bytes)
    pages, retention = (segment.table.phys, segment.table.in_l2), (segment.selected, segment.awaited)
    retain = (transposed, c.retention == "bypass")
    caches = state.l1.arrays(), state.l2.arrays()
    state.pin_evictions += touch_columns(bus.ids, sequence, pages, units, retain, retention, *caches, traffic)
    touches, misses, deep = (int(n) for n in traffic.sum(axis=0))
    state.counts.l1_touches += touches
    state.counts.l1_misses += misses
    state.counts.l2_misses += deep
    state.counts.dram_bytes += deep * c.line_bytes
    # the clock
    a, products = clock.span("r", roles.a, c.a_registers), clock.span("r", roles.first, roles.local)
    offsets = clock.span("r", roles.address.offset, offset_registers(state, segment))
    reads = [clock.span("ur", roles.address.segment), offsets]
    if instruction.guard is not None:
        reads.append(clock.span("p", instruction.guard.predicate))
    start, tokens = clock.begin_mm(reads, (a, products), page_ready)
    free, out = np.array(clock.free, np.int64), np.empty(3, np.int64)
    step = c.step_cycles(e)
    line_cycles = (-(-c.line_bytes // c.l2_bytes_per_cycle), -(-c.line_bytes // c.dram_bytes_per_cycle))
    numbers = (c.l1_ports, c.l1_latency, c.l2_latency, c.dram_latency, *line_cycles, step)
    issue_columns(traffic, step_of, start, tokens, free, numbers, out)
    clock.free = free.tolist()
    clock.stalls["columns of B"] += int(out[1])
    clock.stalls["A"] += int(out[2])
    busy = roles.steps * step
    clock.end_mm(str(instruction) if clock.tracing else "mm", start, tokens, int(out[0]), (a,), (products,), busy)


HANDLERS: dict[str, Callable[[MachineState, Instruction], None]] = {"mm": _mm}

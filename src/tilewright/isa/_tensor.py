"""The tensor multiply ``mm``: columns of B on the bus, products in the registers, counts and cycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.isa._alu import spans, threads_on
from tilewright.isa._control import settle
from tilewright.isa._memory import Walk, coordinates, offset_registers, walk_elements
from tilewright.isa._program import Instruction
from tilewright.isa._roles import Roles, assign_roles
from tilewright.isa._state import MachineState

__all__ = ["HANDLERS"]

Array = np.ndarray[Any, Any]


def _mm(state: MachineState, instruction: Instruction) -> None:
    # operands
    state.counts.instructions += 1
    roles = assign_roles(state, instruction)
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


def _load(state: MachineState, instruction: Instruction, roles: Roles) -> Walk:
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


def _parts(state: MachineState, roles: Roles, columns_last: Array) -> Array:
    """[u, n] -> [ka, u, c]: part by part, padded with zeros where the last part has fewer columns."""
    _, ka, _, *_ = roles.groups
    u, n = columns_last.shape
    wide = np.zeros((u, roles.padded), columns_last.dtype)
    wide[:, :n] = columns_last
    if state.config.ka_split == "interleaved":
        return np.ascontiguousarray(wide.reshape(u, roles.local, ka).transpose(2, 0, 1))
    return np.ascontiguousarray(wide.reshape(u, ka, roles.local).transpose(1, 0, 2))


def _multiply(state: MachineState, roles: Roles, bus: Walk, writes: Array) -> None:
    """Bring both factors into the multiplier's form, and pick the kernel."""
    word = np.dtype(f"u{roles.segment.element_bytes}")
    some: Array = bus.present > 0
    if not some.any():
        return
    raw = state.view(word)[bus.places]
    b = _parts(state, roles, np.where(bus.there, _values(raw, roles.type_b), 0).T)
    registers = state.registers[:, roles.a : roles.a + state.config.a_registers]
    a = _values(np.ascontiguousarray(registers).view(word), roles.type_a)
    low, high = _range(_parts(state, roles, some[None]))
    if b.dtype == np.int32:
        _add_integers(state, roles, a, b, low, high, writes)
    else:
        _add_floats(state, roles, bus, a, b, low, high, writes)


def _add_integers(state: MachineState, roles: Roles, a: Array, b: Array, low: Array, high: Array, on: Array) -> None:
    from tilewright.isa._value_kernels import accumulate_int, accumulate_saturating

    saturate = state.config.overflow == "saturate"
    if saturate and roles.segment.element_bytes == 4:
        raise UnsupportedError("overflow = 'saturate' with 32-bit elements", how="8 and 16-bit elements saturate")
    kernel = accumulate_saturating if saturate else accumulate_int
    kernel(state.registers, roles.first, a, b, low, high, roles.groups, on)


def _add_floats(
    state: MachineState, roles: Roles, bus: Walk, a: Array, b: Array, low: Array, high: Array, on: Array
) -> None:
    from tilewright.isa import _value_kernels as kernels

    sums, order = state.registers.view(np.float32), state.config.float_order
    some, present = bus.present > 0, int(bus.present.max())
    # Whole ranges of columns, each with the same first elements: the kernel that vectorises over columns.
    whole = int((high - low).sum()) == int(some.sum()) and bool((bus.found[some, :2] == present).all())
    if order == "chunk" and whole:
        kernels.accumulate_float(sums, roles.first, a, b, low, high, roles.groups, on, present)
        return
    mask = _parts(state, roles, bus.there.T)
    if order == "chunk":
        kernels.accumulate_masked(sums, roles.first, a, b, low, high, roles.groups, on, mask)
    else:
        kernels.accumulate_exact(sums, roles.first, a, b, low, high, roles.groups, on, mask, order == "fma")


def _range(some: Array) -> tuple[Array, Array]:
    """Per part, first and end of the columns with anything to do."""
    active = some[:, 0, :]
    any_ = active.any(axis=1)
    low = np.where(any_, active.argmax(axis=1), 0)
    high = np.where(any_, active.shape[1] - active[:, ::-1].argmax(axis=1), 0)
    return low, high


def _count(state: MachineState, roles: Roles, bus: Walk, writes: Array) -> None:
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


def _cost(state: MachineState, instruction: Instruction, roles: Roles, bus: Walk, page_ready: int) -> None:
    """Lines of B through the caches, then the two-phase issue on the clock."""
    traffic = _touch(state, roles, bus, transposed=instruction.suffix("t") == "1")
    touches, misses, deep = (int(n) for n in traffic.sum(axis=0))
    state.counts.l1_touches += touches
    state.counts.l1_misses += misses
    state.counts.l2_misses += deep
    state.counts.dram_bytes += deep * state.config.line_bytes
    _issue(state, instruction, roles, traffic, page_ready)


def _touch(state: MachineState, roles: Roles, bus: Walk, transposed: bool) -> Array:
    """int64[columns that take part, 3]: lines touched, L1 misses, L2 misses."""
    from tilewright.isa._traffic_kernels import touch_columns

    c, segment = state.config, roles.segment
    if transposed:
        segment.await_all()
    traffic = np.empty((len(roles.sequence), 3), np.int64)
    pages = (segment.table.in_l2, segment.map.page_elements, segment.map.line_elements.bit_length() - 1)
    retention = (segment.selected, segment.awaited)
    retain, caches = (transposed, c.retention == "bypass"), (state.l1.arrays(), state.l2.arrays())
    state.pin_evictions += touch_columns(
        bus.ids, bus.places, roles.sequence, pages, retain, retention, *caches, traffic
    )
    return traffic


def _issue(state: MachineState, instruction: Instruction, roles: Roles, traffic: Array, page_ready: int) -> None:
    """Memory issue, then math issue step by step."""
    from tilewright.isa._traffic_kernels import issue_columns

    c, clock = state.config, state.clock
    a = clock.span("r", roles.a, c.a_registers)
    products = clock.span("r", roles.first, min(roles.local, c.registers - roles.first))
    offsets = clock.span("r", roles.address.offset, offset_registers(state, roles.segment))
    reads = [clock.span("ur", roles.address.segment), offsets, *spans(state, instruction, ())]
    start, tokens = clock.begin_mm(reads, (a, products), page_ready)
    free, out = np.array(clock.free, np.int64), np.empty(3, np.int64)
    step = c.step_cycles(roles.segment.element_bytes, roles.groups[2])
    line_cycles = (-(-c.line_bytes // c.l2_bytes_per_cycle), -(-c.line_bytes // c.dram_bytes_per_cycle))
    # One math issue for all: every column belongs to the same wait.
    waits = roles.step_of if c.math_issue == "step" else np.zeros_like(roles.step_of)
    cycles = step if c.math_issue == "step" else step * roles.steps
    numbers = (c.l1_ports, c.l1_latency, c.l2_latency, c.dram_latency, *line_cycles, cycles)
    issue_columns(traffic, waits, start, tokens, free, numbers, out)
    clock.free = free.tolist()
    clock.stalls["columns of B"] += int(out[1])
    clock.stalls["A"] += int(out[2])
    name = str(instruction) if clock.tracing else "mm"
    clock.end_mm(name, start, tokens, int(out[0]), (a,), (products,), roles.steps * step)


HANDLERS: dict[str, Callable[[MachineState, Instruction], None]] = {"mm": _mm}

"""numba kernels of stretches: several rounds of a loop together.

Each reads on where the last one ended, in the same lines, so that bytes are moved once for all of them; what they
touch, count and take is that of one round after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.cache_kernels import tables_of, touch
from tilewright.isa.kernels.memory_kernels import fetch_line, run_at
from tilewright.isa.kernels.pointers import (
    byte,
    cache_at,
    cell,
    copy,
    counts_at,
    fill_at,
    instruction_at,
    memory_at,
    mm_at,
    put,
    traffic_at,
    transfer_at,
    word,
)
from tilewright.isa.kernels.records import ALU, INSTRUCTION, LD, LOOP_BACK, MULTIPLY, OTHER
from tilewright.isa.kernels.stretch_mm_kernels import count, lines_of_columns, on_clock
from tilewright.isa.kernels.stretch_move_kernels import begin_transfer, loaded
from tilewright.isa.kernels.stretch_scalar_kernels import alu, branches, scalar, step, value, wrap
from tilewright.kernels import inner

_ROW = INSTRUCTION.bytes
_FEWEST = 3
"""Rounds that are run together at least."""


@inner(inline="always")
def wanted(run: Any, row: Any) -> Any:
    """Whether an ``ld`` or ``mm`` has no record for the segment that its uniform register names now, or the shape."""
    other = row.op == MULTIPLY and (row.mm_columns != run.columns or row.mm_rows != run.rows)
    return other or row.record == 0 or cell(run.uniform, row.segment) != row.handle


@inner()
def _uniform_part(uniform: Any, row: Any) -> Any:
    """Of the sum that ``mov`` or ``add`` makes, what is the same in all threads."""
    part = np.int64(0)
    if row.x_kind < 2:
        part += value(uniform, row.x_kind, row.x)
    if row.operation == 1 and row.y_kind < 2:
        part += value(uniform, row.y_kind, row.y)
    return part


@inner()
def _own_part(own: Any, row: Any) -> Any:
    """Of that sum, what a thread's register adds."""
    if row.x_kind == 2:
        return word(own, row.x)
    return word(own, row.y) if row.operation == 1 and row.y_kind == 2 else np.int64(0)


@inner()
def _ahead(run: Any, loop: Any, most: Any, steps: Any) -> Any:
    """Rounds, ``most`` at most, in which both walks go on by ``steps`` elements: (how many, where each one begins)."""
    # Uniform registers are run ahead on a copy behind them.
    uniform, n = run.uniform, run.uniforms
    ahead = uniform + 8 * n
    for i in range(n):
        put(ahead, i, cell(uniform, i))
    of_load, of_mm, rounds = np.int64(0), np.int64(0), np.int64(0)
    while rounds < most:
        for pc in range(loop.head, loop.last):
            row = instruction_at(run.code + pc * _ROW)
            if row.op == ALU and row.kind == 1:
                x, y = value(ahead, row.x_kind, row.x), value(ahead, row.y_kind, row.y)
                put(ahead, row.number, wrap(alu(row.operation, x, y)))
            elif pc == loop.load_by or pc == loop.mm_by:
                part = _uniform_part(ahead, row)
                if pc == loop.load_by:
                    if rounds > 0 and part != of_load + rounds * steps:
                        return rounds, of_load, of_mm
                    of_load = of_load if rounds > 0 else part
                if pc == loop.mm_by:
                    if rounds > 0 and part != of_mm + rounds * steps:
                        return rounds, of_load, of_mm
                    of_mm = of_mm if rounds > 0 else part
        rounds += 1
        if not branches(ahead, instruction_at(run.code + loop.last * _ROW)):
            break
    return rounds, of_load, of_mm


@inner()
def _walk(table: Any, own: Any, row: Any, by: Any, part: Any, steps: Any, most: Any, to: Any) -> Any:
    """In how many of ``most`` rounds a thread's walk is a run of one line; byte and page where it begins to ``to``."""
    dim, more = table.dim, row.immediate
    x, y = wrap(_own_part(own, by) + part), word(own, row.x + 1 - dim)
    x, y = (x + more, y) if dim == 0 else (x, y + more)
    begin, page = run_at(table, x, y, steps)
    put(to, 0, begin)
    put(to, 1, page)
    if begin < 0:
        return np.int64(0)
    most = min(most, ((((begin >> table.line_shift) + 1) << table.line_shift) - begin) >> 3)
    while x + most * steps > cell(table.sizes, dim):
        most -= 1
    begin, _ = run_at(table, x, y, most * steps)
    return most if begin >= 0 else np.int64(0)


@inner()
def _walks(run: Any, loop: Any, most: Any, steps: Any, of_load: Any, of_mm: Any) -> Any:
    """In how many rounds all walks are such runs, 0 for too few.

    Where they begin, and their pages, to ``coordinates`` (byte -1: the thread is off) and ``begins``.
    """
    ld, product = instruction_at(run.code + loop.load * _ROW), instruction_at(run.code + loop.mm * _ROW)
    load_by, mm_by = instruction_at(run.code + loop.load_by * _ROW), instruction_at(run.code + loop.mm_by * _ROW)
    access, mm, own, flags = transfer_at(ld.record), mm_at(product.record), run.file, run.predicates
    for j in range(mm.columns):
        most = _walk(mm, own, product, mm_by, of_mm, steps, most, mm.begins + 16 * j)
        if most < _FEWEST:
            return np.int64(0)
        own += run.pitch
    own = run.file
    for thread in range(run.threads):
        to = access.coordinates + 16 * thread
        put(to, 0, -1)
        if ld.guard < 0 or byte(flags, ld.guard) != ld.negated:
            most = _walk(access, own, ld, load_by, of_load, steps, most, to)
            if most < _FEWEST:
                return np.int64(0)
        own += run.pitch
        flags += run.predicate_pitch
    return most


@inner()
def _bytes_together(run: Any, ld: Any, product: Any, rounds: Any) -> None:
    """The elements of so many rounds to the buffers, those of the last one to the registers too."""
    access, mm = transfer_at(ld.record), mm_at(product.record)
    store, begins, filled = mm.store, access.coordinates, fill_at(mm.fill).rounds * 8
    for part in range(mm.ka):
        for r in range(mm.rows):
            thread = mm.first_thread + r * mm.row_stride + part * mm.a_stride
            into, begin = mm.a_bytes + (part * (mm.a_rows // mm.ka) + r) * mm.a_pitch + filled, cell(begins, 2 * thread)
            of, step = run.file + thread * run.pitch + 4 * product.y, np.int64(0)
            if begin >= 0:
                of, step = store + begin, np.int64(8)
            for g in range(rounds):
                copy(into + 8 * g, of + step * g)
    last, into = 8 * (rounds - 1), access.registers
    for thread in range(run.threads):
        if cell(begins, 2 * thread) >= 0:
            copy(into + thread * run.pitch, store + cell(begins, 2 * thread) + last)
    per_part = mm.b_rows // mm.ka
    for j in range(mm.columns):
        into = mm.b_bytes + (cell(mm.part, j) * per_part + cell(mm.index, j)) * mm.b_pitch + filled
        begin = store + cell(mm.begins, 2 * j)
        for g in range(rounds):
            copy(into + 8 * g, begin + 8 * g)


@inner()
def _fetch(run: Any, access: Any) -> Any:
    """The lines of the first round's loads; how many threads load."""
    m, begins, lines = memory_at(run.memory), access.coordinates, np.int64(0)
    for thread in range(run.threads):
        begin, page = cell(begins, 2 * thread), cell(begins, 2 * thread + 1)
        if begin >= 0:
            fetch_line(m, np.int64(thread), begin >> access.line_shift, byte(access.in_l2, page))
            lines += 1
    return lines


@inner()
def _all_in_l1(run: Any, mm: Any) -> Any:
    """1 if every column's line is there."""
    slots, missing = run.l1 + 8 * tables_of(run.l1).slots, np.int64(0)
    for j in range(mm.columns):
        missing += cell(slots, cell(mm.begins, 2 * j) >> mm.line_shift) == 0
    return np.int64(missing == 0)


@inner()
def _touch_together(run: Any, mm: Any, rounds: Any) -> None:
    """Every column's line in every round, as touches that find it."""
    tables, n = tables_of(run.l1), mm.columns
    cache_at(run.l1).time += (rounds - 1) * n
    for s in range(n):
        touch(run.l1, tables, cell(mm.begins, 2 * cell(mm.sequence, s)) >> mm.line_shift, np.int64(0))
    counts_at(run.counts).l1_touches += rounds * n
    traffic_at(run.traffic).l1_hits += rounds * n


@inner()
def together(run: Any, loop: Any) -> bool:
    """Run rounds of a loop together, from its head on; False where too few can be (nothing was done then)."""
    ld, product = instruction_at(run.code + loop.load * _ROW), instruction_at(run.code + loop.mm * _ROW)
    if ld.op == OTHER or product.op == OTHER or wanted(run, ld) or wanted(run, product):
        return False
    access, mm = transfer_at(ld.record), mm_at(product.record)
    fill, steps, length = fill_at(mm.fill), mm.depth, loop.last - loop.head + 1
    if (
        steps * mm.element_bytes != 8
        or mm.chunk != steps
        or mm.width != steps
        or ld.limit != steps
        or mm.dims != 2
        or access.dims != 2
    ):
        return False
    if access.stride != 1 or fill.columns != mm.columns or mm.retains or (run.pending != 0 and run.pending != mm.fill):
        return False
    for pc in range(loop.head, loop.last + 1):
        row = instruction_at(run.code + pc * _ROW)
        if row.low < mm.first + mm.local and row.high > mm.first:
            return False
    most = min(mm.rounds - fill.rounds, (run.most - run.executed) // length, (np.int64(1) << mm.line_shift) >> 3)
    if most < _FEWEST:
        return False
    most, of_load, of_mm = _ahead(run, loop, most, steps)
    if most < _FEWEST:
        return False
    rounds = _walks(run, loop, most, steps, of_load, of_mm)
    if rounds == 0:
        return False
    _bytes_together(run, ld, product, rounds)
    traffic, lines, there, target = traffic_at(run.traffic), np.int64(0), np.int64(0), np.int64(0)
    for g in range(rounds):
        put(mm.presents, fill.rounds + g, steps)
        for pc in range(loop.head, loop.last):
            row = instruction_at(run.code + pc * _ROW)
            if row.op == LD:
                begin_transfer(run)
                if g == 0:
                    lines = _fetch(run, access)
                loaded(run, row, np.int64(2), lines, 8 * lines)
            elif row.op == MULTIPLY:
                count(run, mm, np.int64(2))
                if there == 0:
                    lines_of_columns(run, mm, np.int64(2))
                on_clock(run, mm, row, there)
                if g == 0:
                    there = _all_in_l1(run, mm)
            else:
                if row.op == ALU and (row.kind == 1 or g == rounds - 1):
                    scalar(run, row)
                elif row.op == ALU:
                    traffic.register_reads += row.per_thread * run.threads
                    traffic.register_writes += run.threads
                step(run, row, run.alu_latency if row.op == ALU else np.int64(1))
        row = instruction_at(run.code + loop.last * _ROW)
        target = loop.head if branches(run.uniform, row) else loop.last + 1
        step(run, row, run.alu_latency if row.op == LOOP_BACK else np.int64(1))
    if there > 0:
        _touch_together(run, mm, rounds - 1)
    fill.rounds += rounds
    fill.k += rounds * mm.width
    run.pending, run.low, run.high = mm.fill, mm.first, mm.first + mm.local
    run.executed += rounds * length
    run.pc = target
    return True

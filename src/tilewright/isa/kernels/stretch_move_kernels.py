"""numba kernels of stretches: loads, stores, and registers that are cleared."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.bus_kernels import over_l2
from tilewright.isa.kernels.memory_kernels import copy_run, move
from tilewright.isa.kernels.pointers import (
    accounts_at,
    byte,
    cell,
    clock_at,
    counts_at,
    memory_at,
    put,
    put_byte,
    put_word,
    traffic_at,
    transfer_at,
    word,
)
from tilewright.isa.kernels.records import PORT
from tilewright.isa.kernels.stretch_mm_kernels import later, ready, until
from tilewright.isa.kernels.stretch_scalar_kernels import issued, value
from tilewright.kernels import inner


@inner()
def begin_transfer(run: Any) -> None:
    """A load or store begins: nothing has arrived, and no line was written."""
    acc = accounts_at(memory_at(run.memory).accounts)
    acc.arrived = acc.written = np.int64(0)


@inner()
def _at_port(run: Any, row: Any, words: Any, lines: Any) -> Any:
    """Issue a load or store once its registers are there and the load-store unit is free; the cycle."""
    clock, tokens = clock_at(run.clock), run.tokens
    latest = later(tokens, row.x_place, row.x_place + 1, np.int64(-1))
    latest = later(tokens, row.x, row.offsets_end, latest)
    latest = later(tokens, row.y_place, row.y_place + 1, latest)
    latest = later(tokens, row.guard_place, row.guard_place + 1, latest)
    ready(run, later(tokens, row.number, row.number + words, latest))
    until(run, clock.lsu, np.int64(PORT))
    start = issued(run)
    clock.lsu = start + max(1, -(-lines // run.ports))
    return start


@inner()
def _ask(run: Any, row: Any, access: Any) -> Any:
    """What every thread of an ``ld`` or ``st`` asks for: to ``coordinates`` and ``counts``; the most words of one."""
    threads, dims, at, wanted = run.threads, access.dims, access.coordinates, access.counts
    guard, first, count = row.guard, row.x, row.y
    per_word, most = np.int64(4) // access.element_bytes, np.int64(0)
    if row.y_kind < 2:
        count = value(run.uniform, row.y_kind, row.y)
        most = max(most, count)
    own, flags = run.file, run.predicates
    for thread in range(threads):
        for d in range(dims):
            put(at, thread * dims + d, word(own, first + d) + (row.immediate if d == 0 else 0))
        if row.y_kind == 2:
            count = word(own, row.y)
        on = guard < 0 or byte(flags, guard) != row.negated
        put(wanted, thread, min(count * per_word, row.limit) if on else 0)
        if on:
            most = max(most, count)
        own += run.pitch
        flags += run.predicate_pitch
    return most


@inner()
def _moved(run: Any, row: Any) -> Any:
    """Move the elements of an ``ld`` or ``st``; the most words of a thread, -1 (nothing done) without the registers."""
    access = transfer_at(row.record)
    words = _ask(run, row, access)
    if row.number + words > run.registers:
        return np.int64(-1)
    begin_transfer(run)
    move(access)
    return words


@inner()
def load(run: Any, row: Any) -> bool:
    """``ld``; False where it asks for registers that there are not."""
    words, access = _moved(run, row), transfer_at(row.record)
    if words < 0:
        return False
    loaded(run, row, words, access.lines, access.elements * access.element_bytes)
    return True


@inner()
def loaded(run: Any, row: Any, words: Any, lines: Any, moved: Any) -> None:
    """What an ``ld`` of so many lines and bytes counts, and its place on the clock."""
    tokens, clock, begin, end = run.tokens, clock_at(run.clock), row.number, row.number + words
    m = memory_at(run.memory)
    acc = accounts_at(m.accounts)
    counts, traffic = counts_at(run.counts), traffic_at(run.traffic)
    counts.a_bytes_loaded += moved
    traffic.load_lines += lines
    traffic.load_bytes += moved
    traffic.register_writes -= -moved // 4
    acc.l1_a += moved
    acc.l2_a += moved
    start = _at_port(run, row, words, lines)
    done = max(clock.lsu, over_l2(m, start, -(-moved * run.slots // run.l2_rate))) + run.load_latency
    if acc.arrived > 0:
        done = max(done, acc.arrived + run.dram_latency)
    for other in range(begin, end):
        put(tokens, other, done)
        put(run.foreign, other, done)
        put_byte(run.causes, other, 1)
    clock.end = max(clock.end, done)


@inner()
def broadcast(run: Any, row: Any) -> bool:
    """``ldb``; False where there are no such registers, or some of the elements are not there."""
    access, guard, own, flags = transfer_at(row.record), row.guard, run.file, run.predicates
    words: Any = max(0, value(run.uniform, row.y_kind, row.y))
    first: Any = np.int64(-1)
    on = np.int64(0)
    for thread in range(run.threads):
        if guard < 0 or byte(flags + thread * run.predicate_pitch, guard) != row.negated:
            on += 1
            first = thread if first < 0 else first
    count = np.int64(0) if first < 0 else words * 4 // access.element_bytes
    if row.number + words > run.registers or count > row.limit:
        return False
    own += max(0, first) * run.pitch
    for d in range(access.dims):
        x = word(own, row.x + d) + (row.immediate if d == 0 else 0)
        further = max(0, count - 1) * access.stride if d == access.dim else np.int64(0)
        if x < 0 or x + further >= cell(access.sizes, d):
            return False
        put(access.coordinates, d, x)
    put(access.counts, 0, count)
    begin_transfer(run)
    move(access)
    moved, into = access.elements * access.element_bytes, run.file + 4 * row.number
    for thread in range(run.threads):
        if guard < 0 or byte(flags + thread * run.predicate_pitch, guard) != row.negated:
            copy_run(into + thread * run.pitch, access.registers, moved)
    loaded(run, row, words, access.lines, moved)
    traffic_at(run.traffic).register_writes += max(0, on - 1) * -(-moved // 4)
    return True


@inner()
def store(run: Any, row: Any) -> bool:
    """``st``; False where it asks for registers that there are not."""
    words, access = _moved(run, row), transfer_at(row.record)
    if words < 0:
        return False
    lines, moved = access.lines, access.elements * access.element_bytes
    counted, clock, m = traffic_at(run.traffic), clock_at(run.clock), memory_at(run.memory)
    acc = accounts_at(m.accounts)
    counted.store_lines += lines
    counted.store_bytes += moved
    counted.register_reads -= -moved // 4
    acc.l1_c += moved
    acc.l2_c += moved
    start = _at_port(run, row, words, lines)
    end = max(clock.lsu, over_l2(m, start, -(-moved * run.slots // run.l2_rate))) + run.load_latency
    acc.dram_c += acc.written * m.line_bytes
    acc.work = max(acc.work, start) + acc.written * m.dram_line
    clock.end = max(clock.end, end)
    return True


@inner()
def clear(run: Any, row: Any) -> bool:
    """``clr``; False where it asks for registers that there are not."""
    tokens, guard, count, most, cleared = run.tokens, row.guard, row.y, np.int64(0), np.int64(0)
    if row.y_kind < 2:
        count = value(run.uniform, row.y_kind, row.y)
        most = max(most, count)
    for work in range(2):  # first how many, then the work
        own, flags = run.file, run.predicates
        for _ in range(run.threads):
            if guard < 0 or byte(flags, guard) != row.negated:
                if row.y_kind == 2:
                    count = word(own, row.y)
                most = max(most, count)
                if work:
                    for place in range(row.number, row.number + count):
                        put_word(own, place, 0)
                    cleared += max(0, count)
            own += run.pitch
            flags += run.predicate_pitch
        if row.number + most > run.registers:
            return False
    run.product += 1
    traffic_at(run.traffic).register_writes += cleared
    clock, begin, end = clock_at(run.clock), row.number, row.number + most
    latest = later(tokens, row.y_place, row.y_place + 1, np.int64(-1))
    latest = later(tokens, row.guard_place, row.guard_place + 1, latest)
    ready(run, later(tokens, begin, end, latest))
    start = issued(run)
    for place in range(begin, end):
        put(tokens, place, start + max(1, most))
        put(run.foreign, place, start + max(1, most))
        put_byte(run.causes, place, 0)
    clock.end = max(clock.end, start + max(1, most))
    return True

"""numba kernels: the buses, the time of requests, and the lines and elements of loads and stores.

A bus serves its requests one behind the other. Of several processing elements every one keeps the order of its own
requests, and all share windows of cycles, each of which is given out once: who comes first in the turns takes first,
and whoever is behind in time finds what the others left. Imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels import pointers, records
from tilewright.isa.kernels.cache_kernels import HIT, tables_of, touch
from tilewright.isa.kernels.pointers import byte, cell, copy_bytes, put, put_byte, put_word, word
from tilewright.kernels import inner, njit
from tilewright.kernels.vectors import copy_vector

_WINDOW = 1 << records.WINDOW_SHIFT
_ACCESSES = 8 * len(records.LINE_ACCESSES)


# The buses of L2 and device memory, and the rows of its banks, in time.


@inner()
def take_windows(ring: Any, t: Any, cycles: Any) -> Any:
    """Take ``cycles`` of a bus from cycle ``t`` on; the cycle at which the last is over.

    ``ring``: (window, cycles given out) of the windows last used. One that has been overwritten since counts as full.
    """
    window, left, end = t >> records.WINDOW_SHIFT, cycles, t + cycles
    while left > 0:
        at = ring + 16 * (window & (records.WINDOWS - 1))
        known = cell(at, 0)
        if known <= window:
            used = cell(at, 1) if known == window else np.int64(0)
            taken = min(_WINDOW - used, left)
            if taken > 0:
                put(at, 0, window)
                put(at, 1, used + taken)
                left -= taken
                end = max(end, (window << records.WINDOW_SHIFT) + used + taken)
        window += 1
    return end


@inner()
def over_l2(m: Any, t: Any, cycles: Any) -> Any:
    """Take the bus of L2 for ``cycles`` from ``t`` on; the cycle at which that is over."""
    acc = pointers.accounts_at(m.accounts)
    acc.l2_work = max(acc.l2_work, t) + cycles
    end = max(acc.l2_free, t)
    end = end + cycles if m.l2_windows == 0 else take_windows(m.l2_windows, end, cycles)
    acc.l2_free = end
    return end


@inner()
def _opened(m: Any, t: Any, line: Any) -> Any:
    """The cycle from which a line's row can be read, which is open then; its bank's number."""
    acc, row = pointers.accounts_at(m.accounts), line >> m.row_shift
    bank, row = row % m.banks, row // m.banks + 1
    free = cell(m.bank_free, bank)
    if m.dram_windows:  # elements whose clocks differ: no longer than a row's own cycle
        free = min(free, t + m.ras + m.rp)
    t = max(t, free)
    if cell(m.rows, bank) == row:
        acc.rows_open += 1
        return t, bank
    if cell(m.rows, bank) > 0:
        t = max(t, cell(m.activated, bank) + m.ras) + m.rp if not m.dram_windows else t + m.rp
    put(m.rows, bank, row)
    put(m.activated, bank, t)
    acc.rows_opened += 1
    return t + m.rcd, bank


@inner()
def from_dram(m: Any, t: Any, line: Any) -> Any:
    """Bring a line from device memory, asked for at ``t`` (0: ahead of time); the cycle at which it is over the bus."""
    acc, cycles, bank, begin = pointers.accounts_at(m.accounts), m.dram_line, np.int64(-1), t
    put_byte(m.dirty, line, 0)
    if m.banks > 0:
        begin, bank = _opened(m, t, line)
    acc.work = max(acc.work, t) + cycles
    acc.urgent = max(acc.urgent, t) + cycles
    end = max(acc.read, begin)
    end = end + cycles if m.dram_windows == 0 else take_windows(m.dram_windows, end, cycles)
    acc.read = end
    if bank >= 0:
        put(m.bank_free, bank, end)
    return end


@njit(cache=True, nogil=True)
def take_bus(numbers: Any, which: int, t: int, cycles: int) -> int:
    """Take cycles of L2_BUS, L2_WINDOWS or DRAM_WINDOWS; when that is over. ``numbers``: a record MEMORY."""
    m = pointers.memory_at(np.int64(numbers.ctypes.data))
    if which == records.L2_BUS:
        return int(over_l2(m, t, cycles))
    return int(take_windows(m.l2_windows if which == records.L2_WINDOWS else m.dram_windows, t, cycles))


@inner()
def issue(
    m: Any,
    deep: Any,
    traffic: Any,
    count: Any,
    step_of: Any,
    start: Any,
    tokens: Any,
    free: Any,
    timing: Any,
    times: Any,
) -> None:
    """One ``mm`` on the clock: requests column by column, math step by step; tables and records by address.

    ``m``: the record MEMORY; ``deep``: the lines that L2 had not. ``traffic``: lines touched, L1 and L2 misses of the
    ``count`` columns; ``step_of``: their steps, ascending; ``start``: cycle of the memory issue; ``tokens``: cycle at
    which A is there; the records FREE, which is moved on, TIMING, and TIMES, which is filled in.
    """
    ports, step_cycles, column_cycles, l2_line = timing.ports, timing.step_cycles, timing.column_cycles, m.l2_line
    l1_latency, l2_latency, dram_latency = timing.l1_latency, timing.l2_latency, timing.dram_latency
    lsu, math, from_deep = max(free.lsu, start), free.math, np.int64(0)
    first, for_columns, for_a, s = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    while s < count:
        step, data = cell(step_of, s), np.int64(0)
        while s < count and cell(step_of, s) == step:
            lines, misses = cell(traffic, 3 * s), cell(traffic, 3 * s + 1)
            lsu += 1 if lines <= ports else -(-lines // ports)
            ready = lsu - 1 + l1_latency
            for miss in range(misses):
                ready = max(ready, over_l2(m, lsu, l2_line) + l2_latency)
                if miss < cell(traffic, 3 * s + 2):
                    ready = max(ready, from_dram(m, lsu, cell(deep, from_deep)) + dram_latency)
                    from_deep += 1
            if column_cycles > 0 and lines > 0:
                ready = free.bus = max(free.bus, ready) + column_cycles
            data = max(data, ready)
            s += 1
        begin = max(data, tokens, math)
        if first < 0:
            first = begin
        wait = begin - max(math, start)
        if wait > 0:
            if tokens > data:
                for_a += wait
            else:
                for_columns += wait
        math = begin + step_cycles
    times.first, times.for_columns, times.for_a = first, for_columns, for_a
    free.lsu, free.math = lsu, math


# Lines that loads and stores ask L2 for.


@inner()
def fetch_line(m: Any, thread: Any, line: Any, in_l2: Any) -> None:
    """A line that a thread's ``ld`` asks for, if it is not the one it asked for last."""
    if cell(m.last, thread) != line:
        put(m.last, thread, line)
        if not in_l2:
            _fetch(m, line)


@inner()
def _fetch(m: Any, line: Any) -> None:
    """A line through L2; what is not there comes from device memory as soon as that has time, ahead of its use."""
    if touch(m.l2, tables_of(m.l2), line, np.int64(1)) != HIT:
        acc = pointers.accounts_at(m.accounts)
        acc.dram_a += m.line_bytes
        acc.arrived = max(acc.arrived, from_dram(m, np.int64(0), line))


@inner()
def store_lines(m: Any, first: Any, last: Any, in_l2: Any) -> None:
    """Lines stored to: once in L2 each goes back to device memory once, however often it is stored to."""
    if in_l2:
        return
    second, dirty, written = m.l2, m.dirty, np.int64(0)
    tables = tables_of(second)
    for line in range(first, last + 1):
        if touch(second, tables, line, np.int64(1)) != HIT or byte(dirty, line) == 0:
            put_byte(dirty, line, 1)
            written += 1
    acc = pointers.accounts_at(m.accounts)
    acc.written += written


# What every thread loads or stores, in one call.


@inner(forceinline=True)
def copy_run(target: Any, source: Any, length: Any) -> None:
    """``length`` bytes from one address to another, eight at a time where that is all there is."""
    if length == 8:
        copy_vector(target, source, 8)
    elif length >= 64:
        copy_bytes(target, source, length)
    elif (target | source | length) & 3 == 0:
        for i in range(length >> 2):
            put_word(target, i, word(source, i))
    else:
        for i in range(length):
            put_byte(target, i, byte(source, i))


@inner(forceinline=True)
def _move_run(access: Any, m: Any, thread: Any, page: Any, place: Any, own: Any, count: Any, last: Any) -> Any:
    """Elements of one page between the store and a thread's registers at ``own``, with their lines; the last of these.

    ``place``: their first byte in the page; ``last``: the line that the thread asked for before.
    """
    shift, seen, storing, l1 = access.line_shift, access.seen, access.storing, access.l1
    length = count * access.element_bytes
    begin, in_l2 = cell(access.phys, page) + place, byte(access.in_l2, page)
    first, final = begin >> shift, (begin + length - 1) >> shift
    lines = final + 1 - first - (first == last)
    if storing and lines > 0:
        store_lines(m, final + 1 - lines, final, in_l2)
    for line in range(final + 1 - lines, final + 1):
        if seen:
            at = seen + _ACCESSES * ((page * access.page_bytes + place >> shift) + line - first)
            put(at, 0, cell(at, 0) + 1)
        if storing:
            continue
        if l1 == 0:
            fetch_line(m, thread, np.int64(line), in_l2)
        elif touch(l1, tables_of(l1), np.int64(line), access.bypass) != HIT:
            access.fetched += 1
            if not in_l2:
                _fetch(m, np.int64(line))
    access.lines += lines
    access.elements += count
    if storing:
        copy_run(access.store + begin, own, length)
        put_byte(access.dirty, page, 1)
    else:
        copy_run(own, access.store + begin, length)
    return final


@inner()
def _move_one_by_one(access: Any, m: Any, thread: Any, page: Any, offset: Any, x: Any) -> None:
    """One thread's elements one by one; those of pages that are absent are left alone."""
    pages_of, offsets_of, e, stride = access.pages_of, access.offsets_of, access.element_bytes, access.stride
    size, head = cell(access.sizes, access.dim), cell(access.starts, access.dim)
    own, last = access.registers + thread * access.pitch, np.int64(-1)
    for u in range(cell(access.counts, thread)):
        y = x + u * stride
        if y < 0 or y >= size:
            continue
        p = page + cell(pages_of, head + y)
        if cell(access.phys, p) >= 0:
            last = _move_run(access, m, thread, p, (offset + cell(offsets_of, head + y)) * e, own + u * e, 1, last)


@inner()
def move_elements(access: Any) -> None:
    """:func:`transfer`, of a record."""
    dims, at, counts, dim = access.dims, access.coordinates, access.counts, access.dim
    sizes, starts = access.sizes, access.starts
    pages_of, offsets_of = access.pages_of, access.offsets_of
    e, stride, size, m = access.element_bytes, access.stride, cell(sizes, dim), pointers.memory_at(access.memory)
    access.elements = access.lines = np.int64(0)
    for thread in range(access.threads):
        most = cell(counts, thread)
        if most <= 0:
            continue
        page, offset, inside, x = np.int64(0), np.int64(0), True, cell(at, thread * dims + dim)
        for d in range(dims):
            y = cell(at, thread * dims + d)
            if d == dim:
                continue
            if y < 0 or y >= cell(sizes, d):
                inside = False
                break
            place = cell(starts, d) + y
            page += cell(pages_of, place)
            offset += cell(offsets_of, place)
        if not inside:
            continue
        if stride == 1 and x >= 0 and x < size:
            count = min(most, size - x)
            head = cell(starts, dim) + x
            tail = head + count - 1
            p, there = page + cell(pages_of, head), cell(offsets_of, head)
            one_run = cell(pages_of, tail) == p - page and cell(offsets_of, tail) - there == count - 1
            if one_run and cell(access.phys, p) >= 0:
                own = access.registers + thread * access.pitch
                _move_run(access, m, np.int64(thread), p, (offset + there) * e, own, count, np.int64(-1))
                continue
        _move_one_by_one(access, m, np.int64(thread), page, offset, x)


@njit(cache=True, nogil=True)
def transfer(numbers: Any) -> None:
    """Move ``counts[t]`` elements of each thread t from (or to) ``coordinates[t]``.

    ``numbers``: a record TRANSFER. Elements outside, or on absent pages, are left alone. A run of neighbours in one
    page goes at once.
    """
    move_elements(pointers.transfer_at(np.int64(numbers.ctypes.data)))

"""numba kernel: a loop of a program, run by one call until it ends.

The instructions come as records (:mod:`tilewright.isa.execute.loops` writes them), state by the addresses it lives at.
What ``mm`` adds is left in buffers, K round behind K round, and added by whoever called; everything else is done here
as the one function of each instruction does it: a test holds the two against each other. Imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.bus_kernels import over_l2
from tilewright.isa.kernels.loop_mm_kernels import later, multiply, ready, until
from tilewright.isa.kernels.memory_kernels import fetch_line, move
from tilewright.isa.kernels.pointers import (
    accounts_at,
    byte,
    cell,
    clock_at,
    copy,
    counts_at,
    instruction_at,
    loop_at,
    memory_at,
    mm_at,
    put,
    put_byte,
    put_word,
    traffic_at,
    transfer_at,
    word,
)
from tilewright.isa.kernels.records import (
    ALU,
    BR,
    BUDGET,
    CMP,
    DONE,
    INSTRUCTION,
    ISSUED,
    JUMP,
    LD,
    LOGIC,
    LOOP_BACK,
    NOP,
    PORT,
)
from tilewright.kernels import inner, njit

_ROW = INSTRUCTION.bytes

# numba kernels: the ``ld`` of a loop that one call runs.


@inner()
def _load_runs(loop: Any, row: Any, access: Any) -> Any:
    """``ld`` of two words a thread where they lie in one run of two dims: (elements, lines, threads left to others).

    ``access.counts`` of the threads that are done becomes 0.
    """
    dim, e, shift, limit = access.dim, access.element_bytes, access.line_shift, loop.ld_elements
    at, counts, phys, store = access.coordinates, access.counts, access.phys, access.store
    pages_of, offsets_of = access.pages_of, access.offsets_of
    other = 1 - dim
    head_of, row_of = cell(access.starts, dim), cell(access.starts, other)
    length, rows = cell(access.sizes, dim) - limit, cell(access.sizes, other)
    guard, negated, first, more = row.guard, row.negated, row.x, row.immediate
    more_x, more_y = (more, np.int64(0)) if dim == 0 else (np.int64(0), more)
    own, pitch, flags, into = loop.file, loop.pitch, loop.predicates, access.registers
    predicate_pitch, done, lines, left = loop.predicate_pitch, np.int64(0), np.int64(0), np.int64(0)
    m, in_l2 = memory_at(loop.memory), access.in_l2
    held = m.last
    for thread in range(loop.threads):
        put(counts, thread, 0)
        if guard < 0 or byte(flags, guard) != negated:
            x, y, whole = word(own, first + dim) + more_x, word(own, first + other) + more_y, False
            if x >= 0 and x <= length and y >= 0 and y < rows:
                head, page, offset = head_of + x, cell(pages_of, row_of + y), cell(offsets_of, row_of + y)
                tail, place, beside = head + limit - 1, cell(offsets_of, head), cell(pages_of, head)
                begin = cell(phys, page + beside) + (offset + place) * e
                whole = cell(pages_of, tail) == beside and cell(offsets_of, tail) - place == limit - 1
                if whole:
                    copy(into, store + begin)
                    head, tail = begin >> shift, (begin + 7) >> shift
                    lines += tail - head + 1
                    if head != tail or cell(held, thread) != head:
                        for line in range(head, tail + 1):
                            fetch_line(m, np.int64(thread), np.int64(line), byte(in_l2, page + beside))
                    done += limit
            if not whole and y >= 0 and y < rows:
                put(at, 2 * thread + dim, x)
                put(at, 2 * thread + other, y)
                put(counts, thread, limit)
                left += 1
        own += pitch
        into += pitch
        flags += predicate_pitch
    return done, lines, left


@inner()
def load(loop: Any, row: Any) -> Any:
    """``ld``; the lines it asked for, and bytes."""
    access, counts, traffic = transfer_at(loop.ld), counts_at(loop.counts), traffic_at(loop.traffic)
    limit, dims, e, threads = loop.ld_elements, access.dims, access.element_bytes, loop.threads
    total, lines, left = np.int64(0), np.int64(0), np.int64(1)
    if dims == 2 and access.stride == 1 and limit * e == 8:
        total, lines, left = _load_runs(loop, row, access)
    else:
        at, wanted, guard, negated, first = access.coordinates, access.counts, row.guard, row.negated, row.x
        for thread in range(threads):
            own, off = loop.file + thread * loop.pitch, False
            for d in range(dims):
                put(at, thread * dims + d, word(own, first + d) + (row.immediate if d == 0 else 0))
            if guard >= 0:
                off = byte(loop.predicates, thread * loop.predicate_pitch + guard) == negated
            put(wanted, thread, 0 if off else limit)
    if left > 0:
        move(access)
        total += access.elements
        lines += access.lines
    counts.a_bytes_loaded += total * e
    traffic.load_lines += lines
    traffic.load_bytes += total * e
    acc = accounts_at(memory_at(loop.memory).accounts)
    acc.l1_a += total * e
    acc.l2_a += total * e
    traffic.register_writes -= -total * e // 4
    return lines, total * e


@inner(inline="always")
def _wrap(value: Any) -> Any:
    return np.int64(np.int32(value & 0xFFFFFFFF))


@inner()
def _alu(op: Any, x: Any, y: Any) -> Any:
    if op == 0:
        return x
    if op == 1:
        return x + y
    if op == 2:
        return x - y
    if op == 3:
        return x * y
    if op == 4:
        return min(x, y)
    if op == 5:
        return max(x, y)
    if op == 6:
        return x & y
    if op == 7:
        return x | y
    if op == 8:
        return x ^ y
    if op == 9:
        return ~x
    if op == 10:
        return x << (y & 31)
    if op == 11:
        return x >> (y & 31)
    return (x & 0xFFFFFFFF) >> (y & 31)


@inner()
def _compare(condition: Any, x: Any, y: Any) -> bool:
    if condition >= 6:
        x, y = x & 0xFFFFFFFF, y & 0xFFFFFFFF
        condition -= 4
    if condition == 0:
        return bool(x == y)
    if condition == 1:
        return bool(x != y)
    if condition == 2:
        return bool(x < y)
    if condition == 3:
        return bool(x <= y)
    if condition == 4:
        return bool(x > y)
    return bool(x >= y)


@inner()
def _step(loop: Any, row: Any, latency: Any) -> None:
    """One issue, whose destination (if it has one) is ready ``latency`` cycles later."""
    tokens, clock, written = loop.tokens, clock_at(loop.clock), row.written
    latest = later(tokens, row.x_place, row.x_place + 1, np.int64(-1))
    latest = later(tokens, row.y_place, row.y_place + 1, latest)
    latest = later(tokens, row.guard_place, row.guard_place + 1, latest)
    ready(loop, later(tokens, written, written + 1, latest))
    start = clock.issue
    put(loop.queue, ISSUED, cell(loop.queue, ISSUED) + 1)
    clock.issue = start + 1
    if written >= 0:
        put(tokens, written, start + latency)
        put(loop.foreign, written, start + latency)
        put_byte(loop.causes, written, 0)
    clock.end = max(clock.end, start + max(1, latency))


@inner(inline="always")
def _value(loop: Any, kind: Any, operand: Any) -> Any:
    """An operand that is the same in all threads: a uniform register's value, or the number itself."""
    return cell(loop.uniform, operand) if kind == 1 else operand


@inner(inline="always")
def _logic(operation: Any, p: Any, q: Any) -> Any:
    return p & q if operation == 0 else p | q if operation == 1 else p ^ q if operation == 2 else 1 - p


@inner()
def _scalar(loop: Any, row: Any) -> None:
    """mov to shru, comparisons and logic, on threads or uniform registers."""
    op, number, operation = row.op, row.number, row.operation
    x, y = _value(loop, row.x_kind, row.x), _value(loop, row.y_kind, row.y)
    if row.kind == 1:
        put(loop.uniform, number, _wrap(_alu(operation, x, y)))
        return
    threads, on, traffic = loop.threads, np.int64(0), traffic_at(loop.traffic)
    traffic.register_reads += row.per_thread * threads
    guard, negated, first, second = row.guard, row.negated, row.x, row.y
    per_thread_x, per_thread_y = row.x_kind == 2, row.y_kind == 2
    own, pitch, flags, predicate_pitch = loop.file, loop.pitch, loop.predicates, loop.predicate_pitch
    for _ in range(threads):
        if guard < 0 or byte(flags, guard) != negated:
            on += 1
            if op == LOGIC:
                put_byte(flags, number, _logic(operation, byte(flags, first), byte(flags, second)))
            else:
                if per_thread_x:
                    x = word(own, first)
                if per_thread_y:
                    y = word(own, second)
                if op == CMP:
                    put_byte(flags, number, np.int64(_compare(operation, x, y)))
                else:
                    put_word(own, number, _alu(operation, x, y))
        own += pitch
        flags += predicate_pitch
    if op == ALU:
        traffic.register_writes += on


@inner()
def _load(loop: Any, row: Any) -> None:
    """``ld``, and its place on the clock."""
    tokens, clock, begin, end = loop.tokens, clock_at(loop.clock), row.number, row.number + row.words
    m = memory_at(loop.memory)
    acc = accounts_at(m.accounts)
    acc.arrived = acc.written = np.int64(0)
    lines, moved = load(loop, row)
    latest = later(tokens, row.x_place, row.x_place + 1, np.int64(-1))
    latest = later(tokens, row.x, row.offsets_end, latest)
    latest = later(tokens, row.guard_place, row.guard_place + 1, latest)
    ready(loop, later(tokens, begin, end, latest))
    until(loop, clock.lsu, np.int64(PORT))
    start = clock.issue
    put(loop.queue, ISSUED, cell(loop.queue, ISSUED) + 1)
    clock.issue = start + 1
    clock.lsu = start + max(1, -(-lines // loop.ports))
    done = max(clock.lsu, over_l2(m, start, -(-moved * loop.slots // loop.l2_rate))) + loop.load_latency
    if acc.arrived > 0:
        done = max(done, acc.arrived + loop.dram_latency)
    for other in range(begin, end):
        put(tokens, other, done)
        put(loop.foreign, other, done)
        put_byte(loop.causes, other, 1)
    clock.end = max(clock.end, done)


@njit(cache=True, nogil=True)
def run_loop(numbers: Any) -> int:
    """From instruction ``pc`` until it leaves the loop, or until someone else has to do something (the result).

    ``numbers``: a record LOOP.
    """
    loop = loop_at(np.int64(numbers.ctypes.data))
    first, last, latency, bare = loop.first, loop.last, loop.alu_latency, np.int64(1)
    pc, uniform = loop.pc, loop.uniform
    while first <= pc <= last:
        if loop.executed >= loop.most:
            return BUDGET
        row = instruction_at(loop.code + (pc - first) * _ROW)
        op = row.op
        target = pc + 1
        if op <= LOGIC:
            _scalar(loop, row)
            _step(loop, row, latency)
        elif op == LOOP_BACK:
            counter = row.number
            put(uniform, counter, _wrap(cell(uniform, counter) - 1))
            if cell(uniform, counter) != 0:
                target = row.target
            _step(loop, row, latency)
        elif op == BR:
            x, y = _value(loop, row.x_kind, row.x), _value(loop, row.y_kind, row.y)
            if _compare(row.operation, x, y):
                target = row.target
            _step(loop, row, bare)
        elif op == JUMP:
            target = row.target
            _step(loop, row, bare)
        elif op == NOP:
            _step(loop, row, bare)
        elif op == LD:
            _load(loop, row)
        else:
            why = multiply(loop, mm_at(loop.mm), row)
            if why:
                return int(why)
        pc = target
        loop.pc = pc
        loop.executed += 1
    return DONE

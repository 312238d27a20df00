"""numba kernel: a loop of a program, run by one call until it ends.

The instructions come as rows of numbers (:mod:`tilewright.isa.execute.loops` writes them), state by the addresses it
lives at.
What ``mm`` adds is left in buffers, K round behind K round, and added by whoever called; everything else is done here
as the one function of each instruction does it: a test holds the two against each other. Imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.blocks import (
    ALU,
    BARE,
    BR,
    BUDGET,
    CMP,
    DONE,
    JUMP,
    L_ALU_LATENCY,
    L_CAUSES,
    L_CLOCK,
    L_CODE,
    L_COUNTS,
    L_EXECUTED,
    L_FILE,
    L_FIRST,
    L_FOREIGN,
    L_LAST,
    L_LIMIT,
    L_LOAD_LATENCY,
    L_MOST,
    L_PC,
    L_PER_THREAD,
    L_PITCH,
    L_PORTS,
    L_PREDICATES,
    L_QUEUE,
    L_THREADS,
    L_TOKENS,
    L_TRAFFIC,
    L_TRANSFER,
    L_UNIFORM,
    LD,
    LOGIC,
    LOOP,
    ROW,
    T_AT,
    T_DIM,
    T_DIMS,
    T_ELEMENTS,
    T_LINES,
    T_OFFSETS_OF,
    T_PAGES_OF,
    T_PHYS,
    T_REGISTERS,
    T_SHIFT,
    T_SIZE,
    T_SIZES,
    T_STARTS,
    T_STORE,
    T_STRIDE,
    T_WANTED,
)
from tilewright.isa.kernels.cells import byte, cell, copy, put, put_byte, put_word, word
from tilewright.isa.kernels.mm_kernels import later, multiply, ready, until
from tilewright.isa.kernels.transfer_kernels import move
from tilewright.kernels import inner, njit

# numba kernels: the ``ld`` of a loop that one call runs.


@inner()
def _load_runs(f: Any, row: Any, t: Any) -> Any:
    """``ld`` of two words a thread where they lie in one run of two dims: (elements, lines, threads left to others).

    ``T_WANTED`` of the threads that are done becomes 0.
    """
    dim, e, shift, limit = cell(t, T_DIM), cell(t, T_SIZE), cell(t, T_SHIFT), cell(f, L_LIMIT)
    at, wanted, phys, store = cell(t, T_AT), cell(t, T_WANTED), cell(t, T_PHYS), cell(t, T_STORE)
    pages_of, offsets_of = cell(t, T_PAGES_OF), cell(t, T_OFFSETS_OF)
    other = 1 - dim
    head_of, row_of = cell(cell(t, T_STARTS), dim), cell(cell(t, T_STARTS), other)
    length, rows = cell(cell(t, T_SIZES), dim) - limit, cell(cell(t, T_SIZES), other)
    guard, negated, first, more = cell(row, 7), cell(row, 8), cell(row, 4), cell(row, 5)
    more_x, more_y = (more, np.int64(0)) if dim == 0 else (np.int64(0), more)
    own, pitch, flags, into = cell(f, L_FILE), cell(f, L_PITCH), cell(f, L_PREDICATES), cell(t, T_REGISTERS)
    per_thread, done, lines, left = cell(f, L_PER_THREAD), np.int64(0), np.int64(0), np.int64(0)
    for thread in range(cell(f, L_THREADS)):
        put(wanted, thread, 0)
        if guard < 0 or byte(flags, guard) != negated:
            x, y, whole = word(own, first + dim) + more_x, word(own, first + other) + more_y, False
            if x >= 0 and x <= length and y >= 0 and y < rows:
                head, page, offset = head_of + x, cell(pages_of, row_of + y), cell(offsets_of, row_of + y)
                tail, place, beside = head + limit - 1, cell(offsets_of, head), cell(pages_of, head)
                begin = cell(phys, page + beside) + (offset + place) * e
                whole = cell(pages_of, tail) == beside and cell(offsets_of, tail) - place == limit - 1
                if whole:
                    copy(into, store + begin)
                    lines += ((begin + 7) >> shift) - (begin >> shift) + 1
                    done += limit
            if not whole and y >= 0 and y < rows:
                put(at, 2 * thread + dim, x)
                put(at, 2 * thread + other, y)
                put(wanted, thread, limit)
                left += 1
        own += pitch
        into += pitch
        flags += per_thread
    return done, lines, left


@inner()
def load(f: Any, row: Any) -> Any:
    """``ld``; the lines it asked for."""
    t, counts, traffic = cell(f, L_TRANSFER), cell(f, L_COUNTS), cell(f, L_TRAFFIC)
    limit, dims, e, threads = cell(f, L_LIMIT), cell(t, T_DIMS), cell(t, T_SIZE), cell(f, L_THREADS)
    total, lines, left = np.int64(0), np.int64(0), np.int64(1)
    if dims == 2 and cell(t, T_STRIDE) == 1 and limit * e == 8:
        total, lines, left = _load_runs(f, row, t)
    else:
        at, wanted, guard, negated, first = cell(t, T_AT), cell(t, T_WANTED), cell(row, 7), cell(row, 8), cell(row, 4)
        for thread in range(threads):
            own, off = cell(f, L_FILE) + thread * cell(f, L_PITCH), False
            for d in range(dims):
                put(at, thread * dims + d, word(own, first + d) + (cell(row, 5) if d == 0 else 0))
            if guard >= 0:
                off = byte(cell(f, L_PREDICATES), thread * cell(f, L_PER_THREAD) + guard) == negated
            put(wanted, thread, 0 if off else limit)
    if left > 0:
        move(t)
        total += cell(t, T_ELEMENTS)
        lines += cell(t, T_LINES)
    put(counts, 6, cell(counts, 6) + total * e)
    put(traffic, 2, cell(traffic, 2) + lines)
    put(traffic, 3, cell(traffic, 3) + total * e)
    put(traffic, 1, cell(traffic, 1) - (-total * e // 4))
    return lines


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
def _step(f: Any, row: Any, latency: Any) -> None:
    """One issue, whose destination (if it has one) is ready ``latency`` cycles later."""
    tokens, clock, queue = cell(f, L_TOKENS), cell(f, L_CLOCK), cell(f, L_QUEUE)
    latest = np.int64(-1)
    for i in range(10, 15):
        place = cell(row, i)
        if place >= 0:
            latest = later(tokens, place, place + 1, latest)
    ready(f, latest)
    start, written = cell(clock, 0), cell(row, 14)
    put(queue, 0, cell(queue, 0) + 1)
    put(clock, 0, start + 1)
    if written >= 0:
        put(tokens, written, start + latency)
        put(cell(f, L_FOREIGN), written, start + latency)
        put_byte(cell(f, L_CAUSES), written, 0)
    put(clock, 1, max(cell(clock, 1), start + max(1, latency)))


@inner(inline="always")
def _value(f: Any, kind: Any, what: Any) -> Any:
    """An operand that is the same in all threads: a uniform register's value, or the number itself."""
    return cell(cell(f, L_UNIFORM), what) if kind == 1 else what


@inner(inline="always")
def _logic(what: Any, p: Any, q: Any) -> Any:
    return p & q if what == 0 else p | q if what == 1 else p ^ q if what == 2 else 1 - p


@inner()
def _scalar(f: Any, row: Any) -> None:
    """mov to shru, comparisons and logic, on threads or uniform registers."""
    op, number, what = cell(row, 0), cell(row, 2), cell(row, 9)
    x, y = _value(f, cell(row, 3), cell(row, 4)), _value(f, cell(row, 5), cell(row, 6))
    if cell(row, 1) == 1:
        put(cell(f, L_UNIFORM), number, _wrap(_alu(what, x, y)))
        return
    threads, on, traffic = cell(f, L_THREADS), np.int64(0), cell(f, L_TRAFFIC)
    put(traffic, 0, cell(traffic, 0) + cell(row, 15) * threads)
    guard, negated = cell(row, 7), cell(row, 8)
    first, second = cell(row, 4), cell(row, 6)
    per_thread_x, per_thread_y = cell(row, 3) == 2, cell(row, 5) == 2
    own, pitch, flags, more = cell(f, L_FILE), cell(f, L_PITCH), cell(f, L_PREDICATES), cell(f, L_PER_THREAD)
    for _ in range(threads):
        if guard < 0 or byte(flags, guard) != negated:
            on += 1
            if op == LOGIC:
                put_byte(flags, number, _logic(what, byte(flags, first), byte(flags, second)))
            else:
                if per_thread_x:
                    x = word(own, first)
                if per_thread_y:
                    y = word(own, second)
                if op == CMP:
                    put_byte(flags, number, np.int64(_compare(what, x, y)))
                else:
                    put_word(own, number, _alu(what, x, y))
        own += pitch
        flags += more
    if op == ALU:
        put(traffic, 1, cell(traffic, 1) + on)


@inner()
def _load(f: Any, row: Any) -> None:
    """``ld``, and its place on the clock."""
    tokens, clock, queue, ports = cell(f, L_TOKENS), cell(f, L_CLOCK), cell(f, L_QUEUE), cell(f, L_PORTS)
    lines = load(f, row)
    guard, begin = cell(row, 13), cell(row, 2)
    end = begin + cell(row, 6)
    latest = later(tokens, cell(row, 10), cell(row, 10) + 1, np.int64(-1))
    latest = later(tokens, cell(row, 4), cell(row, 16), latest)
    if guard >= 0:
        latest = later(tokens, guard, guard + 1, latest)
    ready(f, later(tokens, begin, end, latest))
    until(f, cell(clock, 2), np.int64(5))
    start = cell(clock, 0)
    put(queue, 0, cell(queue, 0) + 1)
    put(clock, 0, start + 1)
    put(clock, 2, start + max(1, -(-lines // ports)))
    done = cell(clock, 2) + cell(f, L_LOAD_LATENCY)
    for other in range(begin, end):
        put(tokens, other, done)
        put(cell(f, L_FOREIGN), other, done)
        put_byte(cell(f, L_CAUSES), other, 1)
    put(clock, 1, max(cell(clock, 1), done))


@njit(cache=True, nogil=True)
def run_loop(cells: Any) -> int:
    """From instruction ``L_PC`` until it leaves the loop, or until someone else has to do something (the result)."""
    f = np.int64(cells.ctypes.data)
    first, last, latency, bare = cell(f, L_FIRST), cell(f, L_LAST), cell(f, L_ALU_LATENCY), np.int64(1)
    pc, uniform = cell(f, L_PC), cell(f, L_UNIFORM)
    while first <= pc <= last:
        if cell(f, L_EXECUTED) >= cell(f, L_MOST):
            return BUDGET
        row = cell(f, L_CODE) + pc * (8 * ROW)
        op = cell(row, 0)
        target = pc + 1
        if op <= LOGIC:
            _scalar(f, row)
            _step(f, row, latency)
        elif op == LOOP:
            counter = cell(row, 2)
            put(uniform, counter, _wrap(cell(uniform, counter) - 1))
            if cell(uniform, counter) != 0:
                target = cell(row, 9)
            _step(f, row, latency)
        elif op == BR:
            x, y = _value(f, cell(row, 3), cell(row, 4)), _value(f, cell(row, 5), cell(row, 6))
            if _compare(cell(row, 9), x, y):
                target = cell(row, 2)
            _step(f, row, bare)
        elif op == JUMP:
            target = cell(row, 9)
            _step(f, row, bare)
        elif op == BARE:
            _step(f, row, bare)
        elif op == LD:
            _load(f, row)
        else:
            why = multiply(f, row)
            if why:
                return int(why)
        pc = target
        put(f, L_PC, pc)
        put(f, L_EXECUTED, cell(f, L_EXECUTED) + 1)
    return DONE

"""numba kernels of stretches: arithmetic on threads and uniform registers, branches, and their place on the clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.pointers import (
    byte,
    cell,
    clock_at,
    put,
    put_byte,
    put_word,
    traffic_at,
    word,
)
from tilewright.isa.kernels.records import ALU, CMP, FETCH, ISSUED, LOGIC, LOOP_BACK, OPERATIONS
from tilewright.isa.kernels.stretch_mm_kernels import later, ready
from tilewright.kernels import inner

_DIV = OPERATIONS.index("div")


@inner(inline="always")
def wrap(value: Any) -> Any:
    """The low 32 bits, with their sign."""
    return np.int64(np.int32(value & 0xFFFFFFFF))


@inner(inline="always")
def value(uniform: Any, kind: Any, operand: Any) -> Any:
    """An operand that is the same in all threads: a uniform register's value, or the number itself."""
    return cell(uniform, operand) if kind == 1 else operand


@inner()
def issued(run: Any) -> Any:
    """Take the queue's next cycle."""
    clock = clock_at(run.clock)
    start = clock.issue
    put(run.queue, ISSUED, cell(run.queue, ISSUED) + 1)
    put(run.queue, FETCH, cell(run.queue, FETCH) + run.fetch)
    clock.issue = start + 1 + run.fetch
    return start


@inner()
def step(run: Any, row: Any, latency: Any) -> None:
    """One issue, whose destination (if it has one) is ready ``latency`` cycles later."""
    tokens, clock, written = run.tokens, clock_at(run.clock), row.written
    latest = later(tokens, row.x_place, row.x_place + 1, np.int64(-1))
    latest = later(tokens, row.y_place, row.y_place + 1, latest)
    latest = later(tokens, row.guard_place, row.guard_place + 1, latest)
    ready(run, later(tokens, written, written + 1, latest))
    start = issued(run)
    if written >= 0:
        put(tokens, written, start + latency)
        put(run.foreign, written, start + latency)
        put_byte(run.causes, written, 0)
    clock.end = max(clock.end, start + max(1, latency))


@inner()
def alu(op: Any, x: Any, y: Any) -> Any:
    """The operation of this number in OPERATIONS, in 64 bits; a divisor is not 0."""
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
    if op == 12:
        return (x & 0xFFFFFFFF) >> (y & 31)
    quotient = abs(x) // abs(y)
    quotient = quotient if (x < 0) == (y < 0) else -quotient
    return quotient if op == _DIV else x - y * quotient


@inner()
def compare(condition: Any, x: Any, y: Any) -> bool:
    """Whether the condition of this number in CONDITIONS holds."""
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


@inner(inline="always")
def _logic(operation: Any, p: Any, q: Any) -> Any:
    return p & q if operation == 0 else p | q if operation == 1 else p ^ q if operation == 2 else 1 - p


@inner()
def _zero(run: Any, row: Any, y: Any) -> bool:
    """Whether a division has a divisor that is 0."""
    if row.op != ALU or row.operation < _DIV:
        return False
    if row.y_kind < 2 or row.kind == 1:
        return bool(y == 0)
    own = run.file
    for _ in range(run.threads):
        if word(own, row.y) == 0:
            return True
        own += run.pitch
    return False


@inner()
def scalar(run: Any, row: Any) -> bool:
    """mov to rem, comparisons and logic, on threads or uniform registers; False where a division is by 0."""
    op, number, operation = row.op, row.number, row.operation
    x, y = value(run.uniform, row.x_kind, row.x), value(run.uniform, row.y_kind, row.y)
    if _zero(run, row, y):
        return False
    if row.kind == 1:
        put(run.uniform, number, wrap(alu(operation, x, y)))
        return True
    threads, on, traffic = run.threads, np.int64(0), traffic_at(run.traffic)
    traffic.register_reads += row.per_thread * threads
    guard, negated, first, second = row.guard, row.negated, row.x, row.y
    per_thread_x, per_thread_y = row.x_kind == 2, row.y_kind == 2
    own, pitch, flags, predicate_pitch = run.file, run.pitch, run.predicates, run.predicate_pitch
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
                    put_byte(flags, number, np.int64(compare(operation, x, y)))
                else:
                    put_word(own, number, alu(operation, x, y))
        own += pitch
        flags += predicate_pitch
    if op == ALU:
        traffic.register_writes += on
    return True


@inner()
def number_threads(run: Any, row: Any) -> None:
    """tid: every thread's number to its register."""
    own = run.file
    for thread in range(run.threads):
        put_word(own, row.number, thread)
        own += run.pitch
    traffic_at(run.traffic).register_writes += run.threads


@inner()
def shape(run: Any, row: Any) -> bool:
    """setmm; False where there can be no such ``mm``."""
    columns, rows = value(run.uniform, row.x_kind, row.x), np.int64(-1)
    if row.operation == 1:
        rows = value(run.uniform, row.y_kind, row.y)
        if rows < 1:
            return False
    if columns < 1 or columns > run.loaders:
        return False
    run.columns, run.rows = columns, rows
    run.product += 1
    return True


@inner()
def branches(uniform: Any, row: Any) -> bool:
    """Whether a loop's last instruction leads back."""
    if row.op == LOOP_BACK:
        put(uniform, row.number, wrap(cell(uniform, row.number) - 1))
        return bool(cell(uniform, row.number) != 0)
    x, y = value(uniform, row.x_kind, row.x), value(uniform, row.y_kind, row.y)
    return compare(row.operation, x, y)

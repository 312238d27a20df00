"""numba kernels: compiled blocks, instructions of a program that one call runs.

The instructions come as records (:mod:`tilewright.isa.execute.blocks` writes them), state by the addresses it lives at.
Arithmetic, branches, loads and stores are done here as the one function of each instruction does them: a test holds the
two against each other. What ``mm`` adds is left in buffers, K round behind K round, and added by whoever called.
Imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels import pointers, records
from tilewright.isa.kernels.block_mm_kernels import issued, latest_place, multiply, ready, until
from tilewright.isa.kernels.memory_kernels import copy_run, move_elements, over_l2
from tilewright.isa.kernels.pointers import byte, cell, put, put_byte, put_word, word
from tilewright.kernels import inner, njit

_DIV = records.OPERATIONS.index("div")
_ROW = records.INSTRUCTION.bytes

# Arithmetic on threads and uniform registers, branches, and their place on the clock.


@inner(inline="always")
def wrap(value: Any) -> Any:
    """The low 32 bits, with their sign."""
    return np.int64(np.int32(value & 0xFFFFFFFF))


@inner(inline="always")
def value(uniform: Any, kind: Any, operand: Any) -> Any:
    """An operand that is the same in all threads: a uniform register's value, or the number itself."""
    return cell(uniform, operand) if kind == 1 else operand


@inner()
def _await(run: Any, row: Any, offsets: Any, offsets_end: Any, first: Any, end: Any) -> None:
    """Wait for what an instruction reads, registers of offsets among it, and for places ``first`` to ``end``."""
    tokens = run.tokens
    latest = latest_place(tokens, row.x_place, row.x_place + 1, np.int64(-1))
    latest = latest_place(tokens, offsets, offsets_end, latest)
    latest = latest_place(tokens, row.y_place, row.y_place + 1, latest)
    latest = latest_place(tokens, row.guard_place, row.guard_place + 1, latest)
    ready(run, latest_place(tokens, first, end, latest))


@inner()
def _set_ready(run: Any, first: Any, end: Any, cycle: Any, cause: Any) -> None:
    """Registers at places ``first`` to ``end`` (-1 to 0: none) are there from a cycle on, made by unit ``cause``."""
    for place in range(max(first, 0), end):
        put(run.tokens, place, cycle)
        put(run.foreign, place, cycle)
        put_byte(run.causes, place, cause)


@inner()
def step(run: Any, row: Any, latency: Any) -> None:
    """One issue, whose destination (if it has one) is ready ``latency`` cycles later."""
    written, clock = row.written, pointers.clock_at(run.clock)
    _await(run, row, np.int64(-1), np.int64(0), written, written + 1)
    start = issued(run)
    _set_ready(run, written, written + 1, start + latency, 0)
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
def _divides_by_zero(run: Any, row: Any, y: Any) -> bool:
    """Whether a division has a divisor that is 0."""
    if row.op != records.ALU or row.operation < _DIV:
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
    if _divides_by_zero(run, row, y):
        return False
    if row.kind == 1:
        put(run.uniform, number, wrap(alu(operation, x, y)))
        return True
    threads, on, traffic = run.threads, np.int64(0), pointers.traffic_at(run.traffic)
    traffic.register_reads += row.per_thread * threads
    guard, negated, first, second = row.guard, row.negated, row.x, row.y
    per_thread_x, per_thread_y = row.x_kind == 2, row.y_kind == 2
    own, pitch, flags, predicate_pitch = run.file, run.pitch, run.predicates, run.predicate_pitch
    for _ in range(threads):
        if guard < 0 or byte(flags, guard) != negated:
            on += 1
            if op == records.LOGIC:
                put_byte(flags, number, _logic(operation, byte(flags, first), byte(flags, second)))
            else:
                if per_thread_x:
                    x = word(own, first)
                if per_thread_y:
                    y = word(own, second)
                if op == records.CMP:
                    put_byte(flags, number, np.int64(compare(operation, x, y)))
                else:
                    put_word(own, number, alu(operation, x, y))
        own += pitch
        flags += predicate_pitch
    if op == records.ALU:
        traffic.register_writes += on
    return True


@inner()
def set_shape(run: Any, row: Any) -> bool:
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
def takes_branch(uniform: Any, row: Any) -> bool:
    """Whether a loop's last instruction leads back."""
    if row.op == records.LOOP_BACK:
        put(uniform, row.number, wrap(cell(uniform, row.number) - 1))
        return bool(cell(uniform, row.number) != 0)
    x, y = value(uniform, row.x_kind, row.x), value(uniform, row.y_kind, row.y)
    return compare(row.operation, x, y)


# Loads, stores, and registers that are cleared.


@inner()
def _issue_transfer(run: Any, row: Any, words: Any, lines: Any) -> Any:
    """Issue a load or store once its registers are there and the load-store unit is free; the cycle."""
    clock = pointers.clock_at(run.clock)
    _await(run, row, row.x, row.offsets_end, row.number, row.number + words)
    until(run, clock.lsu, np.int64(records.PORT))
    start = issued(run)
    clock.lsu = start + max(1, -(-lines // run.ports))
    return start


@inner()
def _read_requests(run: Any, row: Any, access: Any) -> Any:
    """What every thread of an ``ld`` or ``st`` asks for: to ``coordinates`` and ``counts``; the most words of one.

    Of an ``ldb`` the first thread that is on asks; -1 where that begins before the tensor does.
    """
    threads, dims, at, wanted = run.threads, access.dims, access.coordinates, access.counts
    guard, first, count = row.guard, row.x, row.y
    per_word, most = np.int64(4) // access.element_bytes, np.int64(0)
    if row.y_kind < 2:
        count = value(run.uniform, row.y_kind, row.y)
        most = max(most, count)
    own, flags, asked = run.file, run.predicates, np.int64(0)
    for thread in range(threads):
        for d in range(dims):
            put(at, thread * dims + d, word(own, first + d) + (row.immediate if d == 0 else 0))
        if row.y_kind == 2:
            count = word(own, row.y)
        on = guard < 0 or byte(flags, guard) != row.negated
        put(wanted, thread, min(count * per_word, row.limit) if on and (row.op != records.LDB or not asked) else 0)
        if on:
            if row.op == records.LDB and not asked and cell(at, thread * dims + access.dim) < 0:
                return np.int64(-1)
            most = max(most, count)
            asked += 1
        own += run.pitch
        flags += run.predicate_pitch
    return most


@inner()
def _spread(run: Any, row: Any, moved: Any) -> None:
    """What the first thread that is on was given by an ``ldb`` to the registers of the others that are."""
    own, flags, first, others = run.file + 4 * row.number, run.predicates, np.int64(0), np.int64(0)
    for _ in range(run.threads):
        if row.guard < 0 or byte(flags, row.guard) != row.negated:
            if first:
                copy_run(own, first, moved)
                others += 1
            else:
                first = own
        own += run.pitch
        flags += run.predicate_pitch
    pointers.traffic_at(run.traffic).register_writes += others * -(-moved // 4)


@inner()
def transfer(run: Any, row: Any) -> bool:
    """``ld``, ``ldb`` and ``st``; False where it asks for registers that there are not."""
    access, m, storing = pointers.transfer_at(row.record), pointers.memory_at(run.memory), row.op == records.ST
    words = _read_requests(run, row, access)
    if words < 0 or row.number + words > run.registers:
        return False
    traffic, clock, acc = (
        pointers.traffic_at(run.traffic),
        pointers.clock_at(run.clock),
        pointers.accounts_at(m.accounts),
    )
    acc.arrived = acc.written = np.int64(0)
    move_elements(access)
    lines, moved = access.lines, access.elements * access.element_bytes
    if storing:
        traffic.store_lines += lines
        traffic.store_bytes += moved
        traffic.register_reads -= -moved // 4
        acc.l1_c += moved
        acc.l2_c += moved
    else:
        if row.op == records.LDB:
            _spread(run, row, moved)
        pointers.counts_at(run.counts).a_bytes_loaded += moved
        traffic.load_lines += lines
        traffic.load_bytes += moved
        traffic.register_writes -= -moved // 4
        acc.l1_a += moved
        acc.l2_a += moved
    start = _issue_transfer(run, row, words, lines)
    end = max(clock.lsu, over_l2(m, start, -(-moved * run.slots // run.l2_rate))) + run.load_latency
    if storing:
        acc.dram_c += acc.written * m.line_bytes
        acc.work = max(acc.work, start) + acc.written * m.dram_line
    else:
        if acc.arrived > 0:
            end = max(end, acc.arrived + run.dram_latency)
        _set_ready(run, row.number, row.number + words, end, 1)
    clock.end = max(clock.end, end)
    return True


@inner()
def clear(run: Any, row: Any) -> bool:
    """``clr``; False where it asks for registers that there are not."""
    words = max(np.int64(0), value(run.uniform, row.y_kind, row.y))
    begin, end, cleared = row.number, row.number + words, np.int64(0)
    if end > run.registers:
        return False
    guard, own, flags = row.guard, run.file, run.predicates
    for _ in range(run.threads):
        if guard < 0 or byte(flags, guard) != row.negated:
            for place in range(begin, end):
                put_word(own, place, 0)
            cleared += words
        own += run.pitch
        flags += run.predicate_pitch
    run.product += 1
    pointers.traffic_at(run.traffic).register_writes += cleared
    clock = pointers.clock_at(run.clock)
    _await(run, row, np.int64(-1), np.int64(0), begin, end)
    done = issued(run) + max(1, words)
    _set_ready(run, begin, end, done, 0)
    clock.end = max(clock.end, done)
    return True


# The block.


@inner(inline="always")
def _needs_record(run: Any, row: Any) -> Any:
    """Whether an ``ld`` or ``mm`` has no record for the segment that its uniform register names now, or the shape."""
    other = row.op == records.MULTIPLY and (row.mm_columns != run.columns or row.mm_rows != run.rows)
    return other or row.record == 0 or cell(run.uniform, row.segment) != row.handle


@njit(cache=True, nogil=True)
def run_block(numbers: Any) -> int:
    """Run from instruction ``pc`` until the caller has to do something: which of LEFT, FULL, ...

    ``numbers``: a record BLOCK.
    """
    run = pointers.block_at(np.int64(numbers.ctypes.data))
    latency, bare = run.alu_latency, np.int64(1)
    pc = run.pc
    while pc < run.count:
        if run.executed >= run.most:
            return records.BUDGET
        row = pointers.instruction_at(run.code + pc * _ROW)
        op = row.op
        if op == records.OTHER:
            return records.LEFT
        if op >= records.LD and _needs_record(run, row):
            return records.WANTED
        if row.low < run.high and row.high > run.low:
            return records.FULL
        target = pc + 1
        if op == records.MULTIPLY:
            why = multiply(run, pointers.mm_at(row.record), row)
            if why:
                return int(why)
        elif op >= records.CLR:
            if not (clear(run, row) if op == records.CLR else transfer(run, row)):
                return records.LEFT
        else:
            if (op <= records.LOGIC and not scalar(run, row)) or (op == records.SETMM and not set_shape(run, row)):
                return records.LEFT
            if op == records.JUMP or (op in (records.LOOP_BACK, records.BR) and takes_branch(run.uniform, row)):
                target = row.target
            step(run, row, latency if op <= records.LOOP_BACK else bare)
        pc = target
        run.pc = pc
        run.executed += 1
    return records.LEFT

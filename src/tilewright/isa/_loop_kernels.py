"""numba kernel: a loop of a program, run by one call until it ends.

The instructions come as rows of numbers (:mod:`tilewright.isa._loops` writes them), state as the arrays it lives in. What
``mm`` adds is left in buffers, K round behind K round, and added by whoever called; everything else is done here, as the
one function of each instruction does it: a test holds the two against each other. Imported on first use.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._loop_codes import (
    ALU,
    BARE,
    BR,
    BUDGET,
    CMP,
    DONE,
    FULL,
    IRREGULAR,
    JUMP,
    LD,
    LOGIC,
    LOOP,
)
from tilewright.isa._traffic_kernels import count_lines, issue_columns, touch_columns, walk
from tilewright.kernels import njit

__all__ = ["run_loop"]


@njit(cache=True, nogil=True)
def _wrap(value: Any) -> Any:
    return np.int64(np.int32(value & 0xFFFFFFFF))


@njit(cache=True, nogil=True)
def _alu(op: int, x: Any, y: Any) -> Any:
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


@njit(cache=True, nogil=True)
def _compare(condition: int, x: Any, y: Any) -> bool:
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


@njit(cache=True, nogil=True)
def _until(clock: Any, queue: Any, cycle: int, reason: int) -> None:
    if cycle > clock[0]:
        queue[reason] += cycle - clock[0]
        clock[0] = cycle


@njit(cache=True, nogil=True)
def _later(tokens: Any, begin: int, end: int, latest: int) -> int:
    """The place among ``begin`` to ``end`` whose token comes later than that of ``latest`` (-1: none yet)."""
    for place in range(begin, end):
        if tokens[place] > (tokens[latest] if latest >= 0 else 0):
            latest = place
    return latest


@njit(cache=True, nogil=True)
def _ready(clock: Any, queue: Any, tokens: Any, causes: Any, latest: int) -> None:
    """Wait for one register (-1: none)."""
    if latest >= 0:
        _until(clock, queue, tokens[latest], 2 + causes[latest])


@njit(cache=True, nogil=True)
def _step(row: Any, clock: Any, queue: Any, scoreboard: Any, latency: int) -> None:
    """One issue, whose destination (if it has one) is ready ``latency`` cycles later."""
    tokens, causes, foreign = scoreboard
    latest = -1
    for i in range(10, 15):
        if row[i] >= 0:
            latest = _later(tokens, row[i], row[i] + 1, latest)
    _ready(clock, queue, tokens, causes, latest)
    start = clock[0]
    queue[0] += 1
    clock[0] = start + 1
    if row[14] >= 0:
        tokens[row[14]] = foreign[row[14]] = start + latency
        causes[row[14]] = 0
    clock[1] = max(clock[1], start + max(1, latency))


@njit(cache=True, nogil=True)
def _scalar(row: Any, registers: Any, predicates: Any, uniform: Any, traffic: Any) -> None:
    """mov to shru, comparisons and logic, on threads or uniform registers."""
    op, number = row[0], row[2]
    x, y = row[4], row[6]
    if row[3] == 1:
        x = uniform[row[4]]
    if row[5] == 1:
        y = uniform[row[6]]
    if row[1] == 1:
        uniform[number] = _wrap(_alu(row[9], x, y))
        return
    threads, on = registers.shape[0], 0
    traffic[0] += row[15] * threads
    for t in range(threads):
        if row[7] >= 0 and predicates[t, row[7]] == row[8]:
            continue
        on += 1
        if op == LOGIC:
            p, q = predicates[t, row[4]], predicates[t, row[6]]
            value = p and q if row[9] == 0 else p or q if row[9] == 1 else p != q if row[9] == 2 else not p
            predicates[t, number] = value
            continue
        if row[3] == 2:
            x = np.int64(registers[t, row[4]])
        if row[5] == 2:
            y = np.int64(registers[t, row[6]])
        if op == CMP:
            predicates[t, number] = _compare(row[9], x, y)
        else:
            registers[t, number] = np.int32(_wrap(_alu(row[9], x, y)))
    if op == ALU:
        traffic[1] += on


@njit(cache=True, nogil=True)
def _coordinates(at: Any, registers: Any, offset: int, immediate: int) -> None:
    for j in range(at.shape[0]):
        for d in range(at.shape[1]):
            at[j, d] = registers[j, offset + d]
        at[j, 0] += immediate


@njit(cache=True, nogil=True)
def _load(
    row: Any, registers: Any, predicates: Any, uniform: Any, store: Any, ld: Any, counts: Any, traffic: Any
) -> int:
    """``ld``; the lines it asked for."""
    (most, stride, dim, per_line, e, limit), at, wanted, ids, places, found, shape, tables, pages = ld
    _coordinates(at, registers, row[4], row[5])
    for t in range(registers.shape[0]):
        off = row[7] >= 0 and predicates[t, row[7]] == row[8]
        wanted[t] = 0 if off else limit
    walk(at, wanted, shape, tables, pages, dim, stride, ids, places, found)
    total = 0
    for t in range(registers.shape[0]):
        total += found[t, 0]
        for u in range(most if found[t, 0] else 0):
            if ids[t, u] < 0:
                continue
            word, byte = row[2] + u * e // 4, u * e % 4
            value = np.int64(registers[t, word]) & 0xFFFFFFFF
            for b in range(e):
                shift = 8 * (byte + b)
                value = value & ~(np.int64(255) << shift) | np.int64(store[places[t, u] * e + b]) << shift
            registers[t, word] = np.int32(_wrap(value))
    lines = count_lines(ids, places, per_line)
    counts[6] += total * e
    traffic[2] += lines
    traffic[3] += total * e
    traffic[1] += -(-total * e // 4)
    return lines


@njit(cache=True, nogil=True)
def _element(store: Any, at: int, kind: int, halves: Any) -> Any:
    """An element as the word the multiplier takes: an integer, or the bits of a float32."""
    if kind == 0:
        return np.int32(np.int8(store[at]))
    if kind == 1:
        return np.int32(store[at])
    low = np.int64(store[at]) | np.int64(store[at + 1]) << 8
    if kind == 2:
        return np.int32(np.int16(low))
    if kind == 3:
        return np.int32(low)
    if kind == 5:
        return halves[low]
    if kind == 6:
        return np.int32(_wrap(low << 16))
    return np.int32(_wrap(low | np.int64(store[at + 2]) << 16 | np.int64(store[at + 3]) << 24))


@njit(cache=True, nogil=True)
def _gather(mm: Any, buffers: Any, registers: Any, bytes_: Any, store: Any, halves: Any, width: int) -> bool:
    """Columns of B, and A, to the buffers; False where columns of floats are not all of one depth from the first on."""
    numbers, columns, walked, _, _, _ = mm
    first, a, depth, chunk, kind_a, kind_b, e, floats, rows, ka, kb, rs, as_, bs, base = numbers[:15]
    part, index, _, _ = columns
    ids, places, found, on = walked
    a_buffer, b_buffer, presents, fill = buffers
    begin, present = fill[0], -1
    for j in range(len(on)):
        if not on[j]:
            continue
        if floats:
            if found[j, 0] != found[j, 1] or (present >= 0 and found[j, 0] != present) or found[j, 0] == 0:
                return False
        present = found[j, 0]
        for u in range(width):
            word = np.int32(0)
            if u < depth and ids[j, u] >= 0:
                word = _element(store, places[j, u] * e, kind_b, halves)
            b_buffer[part[j], begin + u, index[j]] = word
    for r in range(rows):
        for qa in range(ka):
            for qb in range(kb):
                thread = base + r * rs + qa * as_ + qb * bs
                for u in range(chunk):
                    a_buffer[qa, r, begin + qb * chunk + u] = _element(bytes_[thread], 4 * a + u * e, kind_a, halves)
    presents[fill[1]] = present
    return True


@njit(cache=True, nogil=True)
def _multiply(row: Any, mm: Any, state: Any, clock: Any, queue: Any, math: Any, scoreboard: Any) -> int:
    """``mm`` but for its sums: 0, or why it is not for this kernel now (nothing has been changed then)."""
    registers, bytes_, predicates, uniform, store, halves, counts, traffic, l1, l2, buffers = state
    tokens, causes, foreign = scoreboard
    numbers, columns, walked, addresses, retention, scratch = mm
    first, a, depth, chunk, kind_a, kind_b, e, floats, rows, ka, kb, rs, as_, bs, base = numbers[:15]
    dim, per_step, a_registers, a_read, bcast, step, c, walks, bypass = numbers[15:24]
    part, index, order, active = columns
    ids, places, found, on = walked
    at, wanted, traffic_rows, sequence, step_of, times, totals = scratch
    shape, tables, pages, in_l2, shift, times_numbers = addresses
    fill = buffers[3]
    width = kb * chunk
    if (fill[1] + 1) * width > buffers[0].shape[2]:
        return FULL
    changed = False
    for j in range(len(on)):
        on[j] = row[7] < 0 or predicates[j, row[7]] != row[8]
        changed |= on[j] != active[j]
        wanted[j] = depth if on[j] else 0
    if changed:
        if fill[1] > 0:
            return FULL
        active[:] = on
    _coordinates(at, registers, row[4], row[5])
    walk(at, wanted, shape, tables, pages, dim, 1, ids, places, found)
    if not _gather(mm, buffers, registers, bytes_, store, halves, width):
        return IRREGULAR
    fill[0] += width
    fill[1] += 1
    # counts
    taken, steps, last, loaded, present = 0, 0, -1, 0, 0
    for s in range(len(order)):
        j = order[s]
        if not on[j]:
            continue
        sequence[taken], step_of[taken] = j, index[j] // per_step
        steps += step_of[taken] != last
        last = step_of[taken]
        loaded += found[j, 0] > 0
        present += found[j, 0]
        taken += 1
    a_reads = a_read * ka * kb * rows * (steps > 0)
    counts[0] += 1
    counts[1] += present * rows
    counts[2] += loaded
    counts[3] += present
    counts[4] += steps
    counts[5] += a_reads
    counts[7] += loaded * rows
    counts[8] += loaded * rows
    counts[9] += loaded * rows * (kb - 1)
    traffic[0] += a_reads + loaded * rows
    traffic[1] += loaded * rows
    # lines
    totals[:] = 0
    rows_of = traffic_rows[:taken]
    touch_columns(
        ids,
        places,
        sequence[:taken],
        (in_l2, pages[0], shift),
        (walks == 1, bypass == 1),
        retention,
        l1,
        l2,
        rows_of,
        totals,
    )
    touches, misses, deep = 0, 0, 0
    for s in range(taken):
        touches += rows_of[s, 0]
        misses += rows_of[s, 1]
        deep += rows_of[s, 2]
    counts[10] += touches
    counts[11] += misses
    counts[12] += deep
    traffic[4] += touches - misses
    traffic[5:9] += totals
    # time
    latest = _later(tokens, row[10], row[10] + 1, -1)
    latest = _later(tokens, row[4], row[4] + at.shape[1], latest)
    if row[13] >= 0:
        latest = _later(tokens, row[13], row[13] + 1, latest)
    _ready(clock, queue, tokens, causes, latest)
    if clock[7] >= bcast:
        _until(clock, queue, clock[8], 6)
        for i in range(clock[7] - 1):
            clock[8 + i] = clock[9 + i]
        clock[7] -= 1
    ready = 0
    for place in range(a, a + a_registers):
        ready = max(ready, tokens[place])
    for place in range(first, first + c):
        ready = max(ready, foreign[place])
    start = clock[0]
    idle = max(0, start - clock[3])
    queue[0] += 1
    clock[0] = start + 1
    issue_columns(rows_of, step_of[:taken], start, ready, clock[2:6], times_numbers, times)
    if times[0] < 0:
        clock[1] = max(clock[1], start + 1)
        return 0
    math[2] += idle
    math[0] += times[1]
    math[1] += times[2]
    _until(clock, queue, ready, 7)
    for place in range(a, a + a_registers):
        if tokens[place] < times[0]:
            tokens[place] = foreign[place] = times[0]
            causes[place] = 2
    for place in range(first, first + c):
        tokens[place], causes[place] = clock[3], 2
    clock[8 + clock[7]] = clock[3]
    clock[7] += 1
    clock[6] += steps * step
    clock[1] = max(clock[1], clock[3])
    return 0


@njit(cache=True, nogil=True)
def run_loop(
    code: Any, span: Any, state: Any, ld: Any, mm: Any, clock: Any, queue: Any, math: Any, scoreboard: Any, place: Any
) -> int:
    """From instruction ``place[0]`` until it leaves ``span``, or until someone else has to do something (the result).

    ``place``: (pc, instructions executed, most of them); ``span``: (first, last) instruction of the loop, ALU latency,
    latency of a load, L1 ports.
    """
    first, last, latency, load_latency, ports = span
    registers, _, predicates, uniform, store, _, counts, traffic, _, _, _ = state
    tokens, causes, foreign = scoreboard
    while first <= place[0] <= last:
        if place[1] >= place[2]:
            return BUDGET
        row = code[place[0]]
        op = row[0]
        target = place[0] + 1
        if op <= LOGIC:
            _scalar(row, registers, predicates, uniform, traffic)
            _step(row, clock, queue, scoreboard, latency)
        elif op == LOOP:
            uniform[row[2]] = _wrap(uniform[row[2]] - 1)
            if uniform[row[2]] != 0:
                target = row[9]
            _step(row, clock, queue, scoreboard, latency)
        elif op == BR:
            x = uniform[row[4]] if row[3] == 1 else row[4]
            y = uniform[row[6]] if row[5] == 1 else row[6]
            if _compare(row[9], x, y):
                target = row[2]
            _step(row, clock, queue, scoreboard, 1)
        elif op == JUMP:
            target = row[9]
            _step(row, clock, queue, scoreboard, 1)
        elif op == BARE:
            _step(row, clock, queue, scoreboard, 1)
        elif op == LD:
            lines = _load(row, registers, predicates, uniform, store, ld, counts, traffic)
            latest = _later(tokens, row[10], row[10] + 1, -1)
            latest = _later(tokens, row[4], row[16], latest)
            if row[13] >= 0:
                latest = _later(tokens, row[13], row[13] + 1, latest)
            _ready(clock, queue, tokens, causes, _later(tokens, row[2], row[2] + row[6], latest))
            _until(clock, queue, clock[2], 5)
            start = clock[0]
            queue[0] += 1
            clock[0] = start + 1
            clock[2] = start + max(1, -(-lines // ports))
            done = clock[2] + load_latency
            for other in range(row[2], row[2] + row[6]):
                tokens[other] = foreign[other] = done
                causes[other] = 1
            clock[1] = max(clock[1], done)
        else:
            why = _multiply(row, mm, state, clock, queue, math, scoreboard)
            if why:
                return why
        place[0] = target
        place[1] += 1
    return DONE

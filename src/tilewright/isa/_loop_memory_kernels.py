"""numba kernels: the ``ld`` and ``mm`` of a loop that one call runs, and the tokens they share with all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._loop_codes import FULL, IRREGULAR
from tilewright.isa._traffic_kernels import count_lines, issue_columns, touch_columns, walk
from tilewright.kernels import njit

__all__ = ["later", "load", "multiply", "ready", "until", "wrap"]


@njit(cache=True, nogil=True)
def wrap(value: Any) -> Any:
    return np.int64(np.int32(value & 0xFFFFFFFF))


@njit(cache=True, nogil=True)
def until(clock: Any, queue: Any, cycle: int, reason: int) -> None:
    if cycle > clock[0]:
        queue[reason] += cycle - clock[0]
        clock[0] = cycle


@njit(cache=True, nogil=True)
def later(tokens: Any, begin: int, end: int, latest: int) -> int:
    """The place among ``begin`` to ``end`` whose token comes later than that of ``latest`` (-1: none yet)."""
    for place in range(begin, end):
        if tokens[place] > (tokens[latest] if latest >= 0 else 0):
            latest = place
    return latest


@njit(cache=True, nogil=True)
def ready(clock: Any, queue: Any, tokens: Any, causes: Any, latest: int) -> None:
    """Wait for one register (-1: none)."""
    if latest >= 0:
        until(clock, queue, tokens[latest], 2 + causes[latest])


@njit(cache=True, nogil=True)
def _coordinates(at: Any, registers: Any, offset: int, immediate: int) -> None:
    first, dims = np.uint64(offset), np.uint64(at.shape[1])
    for j in range(np.uint64(at.shape[0])):
        for d in range(dims):
            at[j, d] = registers[j, first + d]
        at[j, np.uint64(0)] += immediate


# Indices are made unsigned where it matters: signed ones are tested for being negative, each time.


@njit(cache=True, nogil=True, inline="always")
def _decode(source: Any, begin: int, count: int, kind: int, halves: Any, out: Any) -> None:
    """``count`` elements from byte ``begin`` as words of the multiplier: integers, or the bits of a float32."""
    at, n = np.uint64(begin), np.uint64(count)
    if kind == 0:
        for u in range(n):
            out[u] = np.int8(source[at + u])
    elif kind == 1:
        for u in range(n):
            out[u] = source[at + u]
    elif kind in (2, 3, 5, 6):
        for u in range(n):
            low = np.int64(source[at + u + u]) | np.int64(source[at + u + u + np.uint64(1)]) << 8
            if kind == 2:
                out[u] = np.int16(low)
            elif kind == 3:
                out[u] = low
            elif kind == 5:
                out[u] = halves[np.uint64(low)]
            else:
                out[u] = np.int32(low << 16 & 0xFFFFFFFF)
    else:
        for u in range(n):
            first = at + np.uint64(4) * u
            low = np.int64(source[first]) | np.int64(source[first + np.uint64(1)]) << 8
            high = np.int64(source[first + np.uint64(2)]) | np.int64(source[first + np.uint64(3)]) << 8
            out[u] = np.int32(low | high << 16)


@njit(cache=True, nogil=True)
def load(row: Any, registers: Any, predicates: Any, store: Any, halves: Any, ld: Any, counts: Any, traffic: Any) -> int:
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
        at_byte = places[t, 0] * e
        if found[t, 0] == most and ids[t, most - 1] - ids[t, 0] == most - 1:  # whole words, one behind the other
            _decode(store, at_byte, most * e // 4, 4, halves, registers[t, row[2] : row[2] + row[6]])
            continue
        for u in range(most if found[t, 0] else 0):
            if ids[t, u] < 0:
                continue
            word, byte = row[2] + u * e // 4, u * e % 4
            value = np.int64(registers[t, word]) & 0xFFFFFFFF
            for b in range(e):
                shift = 8 * (byte + b)
                value = value & ~(np.int64(255) << shift) | np.int64(store[places[t, u] * e + b]) << shift
            registers[t, word] = np.int32(wrap(value))
    lines = count_lines(ids, places, per_line)
    counts[6] += total * e
    traffic[2] += lines
    traffic[3] += total * e
    traffic[1] += -(-total * e // 4)
    return lines


@njit(cache=True, nogil=True)
def _gather(mm: Any, buffers: Any, words: Any, store: Any, halves: Any, width: int) -> bool:
    """Columns of B, and A, to the buffers; False where columns of floats are not all of one depth from the first on.

    ``words``: (bytes of the registers, bytes of a thread's).
    """
    numbers, columns, walked, _, _, _ = mm
    a, depth, chunk, kind_a, kind_b, e, floats, rows, ka, kb, rs, as_, bs, base = numbers[1:15]
    part, index, _, _ = columns
    ids, places, found, on = walked
    a_buffer, b_buffer, presents, fill = buffers
    begin, present, c, r_count = fill[0], -1, b_buffer.shape[0] // ka, a_buffer.shape[0] // ka
    for j in range(len(on)):
        if not on[j]:
            continue
        uneven = found[j, 0] != found[j, 1] or (present >= 0 and found[j, 0] != present) or found[j, 0] == 0
        if floats and uneven:
            return False
        present = found[j, 0]
        row = part[j] * c + index[j]
        if found[j, 1] == found[j, 0] and (present == 0 or ids[j, present - 1] - ids[j, 0] == present - 1):
            line = b_buffer[row, begin : begin + width]
            _decode(store, places[j, 0] * e, present, kind_b, halves, line)
            line[present:] = 0
            continue
        for u in range(width):
            line = b_buffer[row, begin + u : begin + u + 1]
            line[0] = 0
            if u < depth and ids[j, u] >= 0:
                _decode(store, places[j, u] * e, 1, kind_b, halves, line)
    flat, thread_bytes = words
    for qa in range(ka):
        for r in range(rows):
            for qb in range(kb):
                at = (base + r * rs + qa * as_ + qb * bs) * thread_bytes + 4 * a
                first = begin + qb * chunk
                _decode(flat, at, chunk, kind_a, halves, a_buffer[qa * r_count + r, first : first + chunk])
    presents[fill[1]] = present
    return True


@njit(cache=True, nogil=True)
def multiply(row: Any, mm: Any, state: Any, clock: Any, queue: Any, math: Any, scoreboard: Any) -> int:
    """``mm`` but for its sums: 0, or why it is not for this kernel now (nothing has been changed then)."""
    registers, words, predicates, _, store, halves, counts, traffic, l1, l2, buffers = state
    tokens, causes, foreign = scoreboard
    numbers, columns, walked, addresses, retention, scratch = mm
    first, a, depth, chunk = numbers[:4]
    rows, ka, kb = numbers[8:11]
    dim, per_step, a_registers, a_read, bcast, step, c, walks, bypass = numbers[15:24]
    _, index, order, active = columns
    ids, places, found, on = walked
    at, wanted, traffic_rows, sequence, step_of, times, totals = scratch
    shape, tables, pages, in_l2, shift, times_numbers = addresses
    fill = buffers[3]
    width = kb * chunk
    if fill[1] == len(buffers[2]):
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
    if not _gather(mm, buffers, words, store, halves, width):
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
    latest = later(tokens, row[10], row[10] + 1, -1)
    latest = later(tokens, row[4], row[4] + at.shape[1], latest)
    if row[13] >= 0:
        latest = later(tokens, row[13], row[13] + 1, latest)
    ready(clock, queue, tokens, causes, latest)
    if clock[7] >= bcast:
        until(clock, queue, clock[8], 6)
        for i in range(clock[7] - 1):
            clock[8 + i] = clock[9 + i]
        clock[7] -= 1
    at_hand = 0
    for place in range(a, a + a_registers):
        at_hand = max(at_hand, tokens[place])
    for place in range(first, first + c):
        at_hand = max(at_hand, foreign[place])
    start = clock[0]
    idle = max(0, start - clock[3])
    queue[0] += 1
    clock[0] = start + 1
    issue_columns(rows_of, step_of[:taken], start, at_hand, clock[2:6], times_numbers, times)
    if times[0] < 0:
        clock[1] = max(clock[1], start + 1)
        return 0
    math[2] += idle
    math[0] += times[1]
    math[1] += times[2]
    until(clock, queue, at_hand, 7)
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

"""numba kernels: the ``mm`` of a loop that one call runs, and the tokens it shares with all others."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._cache_kernels import BYPASSED, HIT, PINNED, address_of, relist, tables_of, touch
from tilewright.isa._loop_codes import FULL, IRREGULAR
from tilewright.isa._traffic_kernels import issue_columns
from tilewright.isa._transfer_kernels import copy_words
from tilewright.kernels import njit

__all__ = ["later", "multiply", "ready", "until", "wrap"]


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


# Indices are made unsigned where it matters: signed ones are tested for being negative, each time.


@njit(cache=True, nogil=True)
def _reach_runs(row: Any, mm: Any, registers: Any, words: Any, buffers: Any) -> Any:
    """:func:`_reach` of columns of two words, each a run in two dims, all of them on: how many until one is not so.

    Rows of ``reach`` are for a walk that retains lines; others do with ``begins``: (byte, page) of every column.
    """
    (depth, e, _, dim, page_elements, _, _, walks, _), ka = mm[0], mm[1][3]
    part, index, _, _ = mm[3]
    sizes, starts, pages_of, offsets_of, phys, _ = mm[4]
    reach, on, begins = mm[6][0], mm[6][1], mm[6][7]
    into, (pitch, step, rows), fill, other = buffers[4], buffers[5], buffers[7], 1 - dim
    along, across, c, base = np.uint64(row[4] + dim), np.uint64(row[4] + other), rows // ka, fill[1] * step
    more_x, more_y = (row[5], 0) if dim == 0 else (0, row[5])
    head_of, row_of, last, others = starts[dim], starts[other], sizes[dim] - depth, sizes[other]
    for j in range(np.uint64(len(on))):
        x, y = np.int64(registers[j, along]) + more_x, np.int64(registers[j, across]) + more_y
        if not on[j] or y < 0 or y >= others or x < 0 or x > last:
            return np.int64(j)
        head, tail, own = np.uint64(head_of + x), np.uint64(head_of + x + depth - 1), np.uint64(row_of + y)
        page, offset = pages_of[own], offsets_of[own]
        at, place = page + pages_of[head], offset + offsets_of[head]
        begin = phys[np.uint64(at)] + place * e
        if pages_of[tail] != pages_of[head] or offsets_of[tail] + offset - place != depth - 1 or begin & 3 != 0:
            return np.int64(j)
        to, word = np.uint64((base + (part[j] * c + index[j]) * pitch) >> 2), np.uint64(begin >> 2)
        into[to] = words[word]
        into[to + np.uint64(1)] = words[word + np.uint64(1)]
        begins[j, np.uint64(0)], begins[j, np.uint64(1)] = begin, at
        if not walks:
            continue
        reach[j, np.uint64(0)], reach[j, np.uint64(1)] = begin, at * page_elements + place
        reach[j, np.uint64(2)], reach[j, np.uint64(3)] = page, offset
        reach[j, np.uint64(4)], reach[j, np.uint64(5)], reach[j, np.uint64(6)] = x, 0, depth
    return len(on)


@njit(cache=True, nogil=True)
def _reach(row: Any, mm: Any, registers: Any, store: Any, buffers: Any) -> int:
    """Where every column that is on begins and how much of it is there, and its elements to the buffer.

    ``reach[j]``: (byte in the store or -1 where they are no run, its element, page, offset, coordinate, first element
    there, how many). 0 where columns of floats are not all of one depth from the first on; 2 where all are on, and
    runs, and ``begins`` says it all.
    """
    (depth, e, floats, dim, page_elements, width, _, _, _), (_, _, _, ka, _, _, _, _, _) = mm[0], mm[1]
    part, index, _, _ = mm[3]
    words, raw = store
    sizes, starts, pages_of, offsets_of, phys, _ = mm[4]
    reach, on = mm[6][0], mm[6][1]
    _, _, _, into, into_words, (pitch, step, into_rows), presents, fill = buffers
    first, size, dims, length = row[4], sizes[dim], len(sizes), width * e
    present: Any = np.int64(-1)
    c, base = into_rows // ka, fill[1] * step
    if dims == 2 and depth * e == 8 and length == 8 and (pitch | step) & 7 == 0:
        done = _reach_runs(row, mm, registers, words, buffers)
        if done == len(on):
            presents[fill[1]] = depth
            return 1 if mm[0][7] else 2
    for j in range(len(on)):
        if not on[j]:
            continue
        page, offset, inside = 0, 0, True
        x: Any = np.int64(0)
        for d in range(dims):
            y = np.int64(registers[j, first + d])
            if d == 0:
                y += row[5]
            if d == dim:
                x = y
            elif y < 0 or y >= sizes[d]:
                inside = False
            else:
                page += pages_of[starts[d] + y]
                offset += offsets_of[starts[d] + y]
        low = min(max(-x, 0), depth)
        count = max(min(depth, size - x) - low, 0) if inside else 0
        if floats and (low > 0 or count == 0 or (present >= 0 and count != present)):
            return 0
        present = count
        to = (part[j] * c + index[j]) * pitch + base
        if count < width:
            into[to : to + length] = 0
        reach[j, 0], reach[j, 6] = -1, count
        if count == 0:
            continue
        head = starts[dim] + x + low
        tail = head + count - 1
        at = page + pages_of[head]
        reach[j, 2], reach[j, 3], reach[j, 4], reach[j, 5] = page, offset, x, low
        to += low * e
        if pages_of[tail] == pages_of[head] and offsets_of[tail] - offsets_of[head] == count - 1:
            begin, many = phys[at] + (offset + offsets_of[head]) * e, count * e
            reach[j, 0], reach[j, 1] = begin, at * page_elements + offset + offsets_of[head]
            if (begin | to | many) & 3 == 0:
                copy_words(words, begin >> 2, into_words, to >> 2, many >> 2)
            else:
                for i in range(many):
                    into[to + i] = raw[begin + i]
            continue
        for u in range(count):
            at = page + pages_of[head + u]
            begin = phys[at] + (offset + offsets_of[head + u]) * e
            for b in range(e):
                into[to + u * e + b] = raw[begin + b]
    presents[fill[1]] = present
    return 1


@njit(cache=True, nogil=True)
def _gather(mm: Any, file: Any, buffers: Any) -> None:
    """A of every active row to the buffer."""
    e, (a, chunk, rows, ka, kb, rs, as_, bs, base) = mm[0][1], mm[1]
    registers, flat, own = file[3], file[1], file[2]
    into, words, (pitch, step, into_rows), _, _, _, _, fill = buffers
    r_count, length, begin = into_rows // ka, chunk * e, fill[1] * step
    if ka == 1 and kb == 1 and length == 8 and (pitch | step) & 7 == 0:
        by_thread, first = file[0], np.uint64(a)
        for r in range(rows):
            to, t = np.uint64((begin + r * pitch) >> 2), np.uint64(base + r * rs)
            words[to], words[to + np.uint64(1)] = by_thread[t, first], by_thread[t, first + np.uint64(1)]
        return
    for qa in range(ka):
        for r in range(rows):
            for qb in range(kb):
                thread = base + r * rs + qa * as_ + qb * bs
                to = (qa * r_count + r) * pitch + begin + qb * chunk * e
                if (to | length) & 3 == 0:
                    copy_words(registers, thread * (own >> 2) + a, words, to >> 2, length >> 2)
                else:
                    for i in range(length):
                        into[to + i] = flat[thread * own + 4 * a + i]


@njit(cache=True, nogil=True)
def _select(row: Any, mm: Any, predicates: Any, fill: Any) -> bool:
    """Which columns are on; False where others are than in the rounds that wait to be added.

    Where others are than before, those that take part, in the order of their steps, go to ``sequence``; ``fill`` has
    how many (2), and their steps (3).
    """
    active, on = mm[3][3], mm[6][1]
    changed = fill[2] < 0
    if row[7] < 0 and not changed:
        return True
    for j in range(len(on)):
        on[j] = row[7] < 0 or predicates[j, row[7]] != row[8]
        changed |= on[j] != active[j]
    if changed:
        if fill[1] > 0:
            return False
        active[:] = on
        _, index, order, _ = mm[3]
        sequence, step_of, per_step = mm[6][3], mm[6][4], mm[2][2]
        taken, steps, last = 0, 0, np.int64(-1)
        for s in range(len(order)):
            j = order[s]
            if not on[j]:
                continue
            sequence[taken], step_of[taken] = j, index[j] // per_step
            steps += step_of[taken] != last
            last = step_of[taken]
            taken += 1
        fill[2], fill[3] = taken, steps
    return True


@njit(cache=True, nogil=True)
def _count(runs: bool, taken: int, steps: int, mm: Any, counts: Any, traffic: Any) -> None:
    """Work of one ``mm``. ``runs``: every column is there whole."""
    (_, _, rows, ka, kb, _, _, _, _), a_read = mm[1], mm[2][4]
    reach, sequence = mm[6][0], mm[6][3]
    loaded, present = taken, taken * mm[0][0]
    if not runs:
        loaded = present = 0
        for s in range(np.uint64(taken)):
            count = reach[np.uint64(sequence[s]), np.uint64(6)]
            loaded += count > 0
            present += count
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


@njit(cache=True, nogil=True)
def _lines_of_runs(taken: int, mm: Any, l1: Any, l2: Any, counts: Any, traffic: Any) -> None:
    """:func:`_lines` of whole columns, none of which retains a line."""
    length, shift, bypass = mm[0][0] * mm[0][1], mm[0][6], mm[0][8] == 1
    in_l2, begins = mm[4][5], mm[6][7]
    out, sequence = mm[6][2], mm[6][3]
    first, second = address_of(l1), address_of(l2)
    t1, t2, touches, all_misses, all_deep = tables_of(first), tables_of(second), 0, 0, 0
    for s in range(np.uint64(taken)):
        j = np.uint64(sequence[s])
        begin, lines, misses, deep = begins[j, np.uint64(0)], 0, 0, 0
        for line in range(begin >> shift, ((begin + length - 1) >> shift) + 1):
            lines += 1
            outcome = touch(first, t1, line, bypass)
            if outcome != HIT:
                misses += 1
                traffic[7] += outcome == PINNED
                traffic[8] += outcome == BYPASSED
                if not in_l2[np.uint64(begins[j, np.uint64(1)])]:
                    deep += touch(second, t2, line, True) != HIT
        out[s, np.uint64(0)], out[s, np.uint64(1)], out[s, np.uint64(2)] = lines, misses, deep
        touches += lines
        all_misses += misses
        all_deep += deep
    counts[10] += touches
    counts[11] += all_misses
    counts[12] += all_deep
    traffic[4] += touches - all_misses


@njit(cache=True, nogil=True)
def _lines(taken: int, mm: Any, l1: Any, l2: Any, counts: Any, traffic: Any) -> None:
    """Lines of the columns that take part through the caches; in ``mm``: lines, L1 misses, L2 misses of each."""
    _, e, _, dim, page_elements, _, shift, walks, bypasses = mm[0]
    _, starts, pages_of, offsets_of, phys, in_l2 = mm[4]
    selected, awaited = mm[5]
    reach, _, out, sequence, _, _, totals, _ = mm[6]
    bypass, touches, all_misses, all_deep = bypasses == 1, 0, 0, 0
    first, second = address_of(l1), address_of(l2)
    t1, t2 = tables_of(first), tables_of(second)
    totals[:] = 0
    for s in range(np.uint64(taken)):
        j = np.uint64(sequence[s])
        lines, misses, deep, count = 0, 0, 0, reach[j, 6]
        begin = reach[j, 0]
        page, offset, head = reach[j, 2], reach[j, 3], starts[dim] + reach[j, 4] + reach[j, 5]
        if begin >= 0 and not walks:
            for line in range(begin >> shift, ((begin + count * e - 1) >> shift) + 1):
                lines += 1
                outcome = touch(first, t1, line, bypass)
                if outcome:
                    misses += 1
                    totals[2] += outcome == PINNED
                    totals[3] += outcome == BYPASSED
                    if not in_l2[page + pages_of[head]]:
                        deep += touch(second, t2, line, True) != HIT
            count = 0
        last = np.int64(-1)
        for u in range(count):
            p, o = page + pages_of[head + u], offset + offsets_of[head + u]
            line, element = (phys[p] + o * e) >> shift, p * page_elements + o
            if line != last:
                last = line
                lines += 1
                outcome = touch(first, t1, line, bypass)
                if outcome:
                    misses += 1
                    totals[2] += outcome == PINNED
                    totals[3] += outcome == BYPASSED
                    if not in_l2[p]:
                        deep += touch(second, t2, line, True) != HIT
            if walks:
                own = element * e >> shift
                if selected[element] == 0:
                    selected[element] = 1
                    awaited[own] -= 1
                which = 1 if awaited[own] > 0 else 0
                if relist(first, t1, line, which):
                    totals[1 - which] += 1
        out[s, 0], out[s, 1], out[s, 2] = lines, misses, deep
        touches += lines
        all_misses += misses
        all_deep += deep
    counts[10] += touches
    counts[11] += all_misses
    counts[12] += all_deep
    traffic[4] += touches - all_misses
    traffic[5:9] += totals


@njit(cache=True, nogil=True)
def multiply(row: Any, mm: Any, state: Any, clock: Any, queue: Any, math: Any, scoreboard: Any) -> int:
    """``mm`` but for its sums: 0, or why it is not for this kernel now (nothing has been changed then)."""
    file, predicates, _, store, counts, traffic, l1, l2, buffers = state
    tokens, causes, foreign = scoreboard
    a, (first, c, _, a_registers, _, bcast, step) = mm[1][0], mm[2]
    _, _, rows_of, _, step_of, times, _, _ = mm[6]
    presents, fill = buffers[6], buffers[7]
    if fill[1] == len(presents) or not _select(row, mm, predicates, fill):
        return FULL
    kind = _reach(row, mm, file[0], store, buffers)
    if kind == 0:
        return IRREGULAR
    _gather(mm, file, buffers)
    fill[0] += mm[0][5]
    fill[1] += 1
    taken, steps = fill[2], fill[3]
    _count(kind == 2, taken, steps, mm, counts, traffic)
    if kind == 2:
        _lines_of_runs(taken, mm, l1, l2, counts, traffic)
    else:
        _lines(taken, mm, l1, l2, counts, traffic)
    # time
    latest = later(tokens, row[10], row[10] + 1, -1)
    latest = later(tokens, row[4], row[4] + len(mm[4][0]), latest)
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
    issue_columns(rows_of[:taken], step_of[:taken], start, at_hand, clock[2:6], mm[7], times)
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

"""numba kernels: the ``mm`` of a loop that one call runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.blocks import (
    FULL,
    IRREGULAR,
    L_CAUSES,
    L_CLOCK,
    L_COUNTS,
    L_FILE,
    L_FOREIGN,
    L_L1,
    L_L2,
    L_MATH,
    L_PER_THREAD,
    L_PITCH,
    L_PREDICATES,
    L_PRODUCT,
    L_QUEUE,
    L_TOKENS,
    L_TRAFFIC,
    M_A,
    M_A_BYTES,
    M_A_PITCH,
    M_A_READ,
    M_A_REGISTERS,
    M_A_ROWS,
    M_A_STEP,
    M_ACTIVE,
    M_AS,
    M_AWAITED,
    M_B_BYTES,
    M_B_PITCH,
    M_B_ROWS,
    M_B_STEP,
    M_BASE,
    M_BCAST,
    M_BEGINS,
    M_BS,
    M_BYPASSES,
    M_CHUNK,
    M_COLUMNS,
    M_DEPTH,
    M_DIM,
    M_DIMS,
    M_FILL,
    M_FIRST,
    M_FLOATS,
    M_IN_L2,
    M_INDEX,
    M_KA,
    M_KB,
    M_LOCAL,
    M_OFFSETS_OF,
    M_ON,
    M_ORDER,
    M_OUT,
    M_PAGE_ELEMENTS,
    M_PAGES_OF,
    M_PART,
    M_PER_STEP,
    M_PHYS,
    M_PRESENTS,
    M_REACH,
    M_ROUNDS,
    M_ROWS,
    M_RS,
    M_SELECTED,
    M_SEQUENCE,
    M_SHIFT,
    M_SIZE,
    M_SIZES,
    M_STARTS,
    M_STEP,
    M_STEP_OF,
    M_STORE,
    M_TIMES,
    M_TIMING,
    M_WALKS,
    M_WIDTH,
)
from tilewright.isa.kernels.cells import byte, cell, copy, put, put_byte, put_word, word
from tilewright.isa.kernels.memory_kernels import BYPASSED, HIT, PINNED, issue, relist, tables_of, touch
from tilewright.isa.kernels.transfer_kernels import copy_run
from tilewright.kernels import inner

# numba kernels: lines that the ``mm`` of a loop touches, through the caches.


@inner(inline="always")
def _add(f: Any, touches: Any, misses: Any, deep: Any) -> None:
    counts, traffic = cell(f, L_COUNTS), cell(f, L_TRAFFIC)
    put(counts, 10, cell(counts, 10) + touches)
    put(counts, 11, cell(counts, 11) + misses)
    put(counts, 12, cell(counts, 12) + deep)
    put(traffic, 4, cell(traffic, 4) + touches - misses)


@inner()
def _missed(f: Any, outcome: Any, line: Any, beyond: Any) -> Any:
    """A line that L1 had not: what else that means, and 1 if L2 had not either."""
    traffic, second = cell(f, L_TRAFFIC), cell(f, L_L2)
    if outcome == PINNED:
        put(traffic, 7, cell(traffic, 7) + 1)
    if outcome == BYPASSED:
        put(traffic, 8, cell(traffic, 8) + 1)
    return np.int64(touch(second, tables_of(second), line, beyond) != HIT) if beyond else np.int64(0)


@inner()
def _lines_of_one(f: Any, m: Any, found: Any, tables: Any) -> Any:
    """(lines, L1 misses, L2 misses) of a column that is no run, or whose lines are retained."""
    e, dim, page_elements, shift = cell(m, M_SIZE), cell(m, M_DIM), cell(m, M_PAGE_ELEMENTS), cell(m, M_SHIFT)
    pages_of, offsets_of, phys, in_l2 = cell(m, M_PAGES_OF), cell(m, M_OFFSETS_OF), cell(m, M_PHYS), cell(m, M_IN_L2)
    walks, bypass, selected, awaited = (
        cell(m, M_WALKS),
        cell(m, M_BYPASSES) == 1,
        cell(m, M_SELECTED),
        cell(m, M_AWAITED),
    )
    page, offset, first, traffic = cell(found, 2), cell(found, 3), cell(f, L_L1), cell(f, L_TRAFFIC)
    head = cell(cell(m, M_STARTS), dim) + cell(found, 4) + cell(found, 5)
    lines, misses, deep, last = np.int64(0), np.int64(0), np.int64(0), np.int64(-1)
    for u in range(cell(found, 6)):
        p, o = page + cell(pages_of, head + u), offset + cell(offsets_of, head + u)
        line, element = (cell(phys, p) + o * e) >> shift, p * page_elements + o
        if line != last:
            last = line
            lines += 1
            outcome = touch(first, tables, line, bypass)
            if outcome != HIT:
                misses += 1
                deep += _missed(f, outcome, line, not byte(in_l2, p))
        if walks:
            own = element * e >> shift
            if byte(selected, element) == 0:
                put_byte(selected, element, 1)
                put_word(awaited, own, word(awaited, own) - 1)
            which = np.int64(word(awaited, own) > 0)
            if relist(first, tables, line, which):
                at = 6 - which
                put(traffic, at, cell(traffic, at) + 1)
    return lines, misses, deep


@inner()
def lines_of_columns(f: Any, m: Any, runs: bool) -> None:
    """Lines of the columns that take part through the caches; to ``M_OUT``: lines, L1 and L2 misses of each.

    ``runs``: all of them are whole, and ``M_BEGINS`` says where.
    """
    e, shift, walks, bypass = cell(m, M_SIZE), cell(m, M_SHIFT), cell(m, M_WALKS), cell(m, M_BYPASSES) == 1
    reach, out, sequence, in_l2 = cell(m, M_REACH), cell(m, M_OUT), cell(m, M_SEQUENCE), cell(m, M_IN_L2)
    first, head, pages_of = cell(f, L_L1), cell(cell(m, M_STARTS), cell(m, M_DIM)), cell(m, M_PAGES_OF)
    begins, length = cell(m, M_BEGINS), cell(m, M_DEPTH) * e
    tables, touches, all_misses, all_deep = tables_of(first), np.int64(0), np.int64(0), np.int64(0)
    for s in range(cell(cell(m, M_FILL), 2)):
        j = cell(sequence, s)
        lines, misses, deep, found = np.int64(0), np.int64(0), np.int64(0), reach + 56 * j
        if runs:
            begin, page = cell(begins, 2 * j), cell(begins, 2 * j + 1)
        else:
            begin, length = cell(found, 0), cell(found, 6) * e
            page = cell(found, 2) + cell(pages_of, head + cell(found, 4) + cell(found, 5)) if begin >= 0 else begin
        if begin >= 0 and not walks:
            for line in range(begin >> shift, ((begin + length - 1) >> shift) + 1):
                lines += 1
                outcome = touch(first, tables, line, bypass)
                if outcome != HIT:
                    misses += 1
                    deep += _missed(f, outcome, line, not byte(in_l2, page))
        elif length > 0:
            lines, misses, deep = _lines_of_one(f, m, found, tables)
        put(out, 3 * s, lines)
        put(out, 3 * s + 1, misses)
        put(out, 3 * s + 2, deep)
        touches += lines
        all_misses += misses
        all_deep += deep
    _add(f, touches, all_misses, all_deep)


# numba kernels: how instructions of a loop wait for registers on the clock.


@inner(inline="always")
def until(f: Any, cycle: Any, reason: Any) -> None:
    """The queue stands still until a cycle."""
    clock, queue = cell(f, L_CLOCK), cell(f, L_QUEUE)
    now = cell(clock, 0)
    if cycle > now:
        put(queue, reason, cell(queue, reason) + cycle - now)
        put(clock, 0, cycle)


@inner()
def later(tokens: Any, begin: Any, end: Any, latest: Any) -> Any:
    """The place among ``begin`` to ``end`` whose token comes later than that of ``latest`` (-1: none yet)."""
    most = cell(tokens, latest) if latest >= 0 else np.int64(0)
    for place in range(begin, end):
        token = cell(tokens, place)
        if token > most:
            latest, most = np.int64(place), token
    return latest


@inner(inline="always")
def ready(f: Any, latest: Any) -> None:
    """Wait for one register (-1: none)."""
    if latest >= 0:
        until(f, cell(cell(f, L_TOKENS), latest), 2 + byte(cell(f, L_CAUSES), latest))


@inner()
def _reach_runs(f: Any, m: Any, row: Any) -> bool:
    """:func:`_reach` of columns of two words, each a run in two dims, all of them on; False where one is not so.

    Rows of ``M_REACH`` are for a walk that retains lines; others do with ``M_BEGINS``: (byte, page) of every column.
    """
    depth, e, dim, walks = cell(m, M_DEPTH), cell(m, M_SIZE), cell(m, M_DIM), cell(m, M_WALKS)
    page_elements = cell(m, M_PAGE_ELEMENTS)
    part, index, reach, on, begins = (
        cell(m, M_PART),
        cell(m, M_INDEX),
        cell(m, M_REACH),
        cell(m, M_ON),
        cell(m, M_BEGINS),
    )
    pages_of, offsets_of, phys, store = cell(m, M_PAGES_OF), cell(m, M_OFFSETS_OF), cell(m, M_PHYS), cell(m, M_STORE)
    pitch, per_part, other = cell(m, M_B_PITCH), cell(m, M_B_ROWS) // cell(m, M_KA) * cell(m, M_B_PITCH), 1 - dim
    base = cell(m, M_B_BYTES) + cell(cell(m, M_FILL), 1) * cell(m, M_B_STEP)
    more = cell(row, 5)
    more_x, more_y = (more, np.int64(0)) if dim == 0 else (np.int64(0), more)
    own, registers = cell(f, L_FILE) + 4 * cell(row, 4), cell(f, L_PITCH)
    head_of, row_of = cell(cell(m, M_STARTS), dim), cell(cell(m, M_STARTS), other)
    last, others = cell(cell(m, M_SIZES), dim) - depth, cell(cell(m, M_SIZES), other)
    for j in range(cell(m, M_COLUMNS)):
        x, y = word(own, dim) + more_x, word(own, other) + more_y
        own += registers
        if not byte(on, j) or y < 0 or y >= others or x < 0 or x > last:
            return False
        head, page, offset = head_of + x, cell(pages_of, row_of + y), cell(offsets_of, row_of + y)
        tail, beside, place = head + depth - 1, cell(pages_of, head), cell(offsets_of, head)
        begin = cell(phys, page + beside) + (offset + place) * e
        if cell(pages_of, tail) != beside or cell(offsets_of, tail) - place != depth - 1:
            return False
        copy(base + cell(part, j) * per_part + cell(index, j) * pitch, store + begin)
        put(begins, 2 * j, begin)
        put(begins, 2 * j + 1, page + beside)
        if walks:
            found = reach + 56 * j
            put(found, 0, begin)
            put(found, 1, (page + beside) * page_elements + offset + place)
            put(found, 2, page)
            put(found, 3, offset)
            put(found, 4, x)
            put(found, 5, 0)
            put(found, 6, depth)
    return True


@inner()
def _reach_one(m: Any, found: Any, page: Any, offset: Any, x: Any, low: Any, count: Any, to: Any) -> None:
    """``count`` elements from coordinate ``x + low`` of a column to address ``to``."""
    dim, e, store, phys = cell(m, M_DIM), cell(m, M_SIZE), cell(m, M_STORE), cell(m, M_PHYS)
    pages_of, offsets_of = cell(m, M_PAGES_OF), cell(m, M_OFFSETS_OF)
    head = cell(cell(m, M_STARTS), dim) + x + low
    tail = head + count - 1
    at = page + cell(pages_of, head)
    put(found, 2, page)
    put(found, 3, offset)
    put(found, 4, x)
    put(found, 5, low)
    to += low * e
    place = cell(offsets_of, head)
    if cell(pages_of, tail) == at - page and cell(offsets_of, tail) - place == count - 1:
        begin = cell(phys, at) + (offset + place) * e
        put(found, 0, begin)
        put(found, 1, at * cell(m, M_PAGE_ELEMENTS) + offset + place)
        copy_run(to, store + begin, count * e)
        return
    for u in range(count):
        begin = cell(phys, page + cell(pages_of, head + u)) + (offset + cell(offsets_of, head + u)) * e
        copy_run(to + u * e, store + begin, e)


@inner()
def _reach(f: Any, m: Any, row: Any) -> Any:
    """Where every column that is on begins and how much of it is there, and its elements to the buffer.

    Row j of ``M_REACH``: (byte in the store or -1 where they are no run, its element, page, offset, coordinate, first
    element there, how many). 0 where columns of floats are not all of one depth from the first on; 2 where all are on,
    and runs, and ``M_BEGINS`` says it all.
    """
    depth, e, dim, dims, fill = cell(m, M_DEPTH), cell(m, M_SIZE), cell(m, M_DIM), cell(m, M_DIMS), cell(m, M_FILL)
    width, round_, presents = cell(m, M_WIDTH), cell(fill, 1), cell(m, M_PRESENTS)
    pitch, per_part = cell(m, M_B_PITCH), cell(m, M_B_ROWS) // cell(m, M_KA)
    if dims == 2 and depth * e == 8 and width * e == 8 and _reach_runs(f, m, row):
        put(presents, round_, depth)
        return 1 if cell(m, M_WALKS) else 2
    sizes, starts, pages_of, offsets_of = (
        cell(m, M_SIZES),
        cell(m, M_STARTS),
        cell(m, M_PAGES_OF),
        cell(m, M_OFFSETS_OF),
    )
    on, size, base = cell(m, M_ON), cell(cell(m, M_SIZES), dim), cell(m, M_B_BYTES) + round_ * cell(m, M_B_STEP)
    present = np.int64(-1)
    for j in range(cell(m, M_COLUMNS)):
        if not byte(on, j):
            continue
        own = cell(f, L_FILE) + j * cell(f, L_PITCH) + 4 * cell(row, 4)
        page, offset, x, inside = np.int64(0), np.int64(0), np.int64(0), True
        for d in range(dims):
            y = word(own, d) + (cell(row, 5) if d == 0 else 0)
            if d == dim:
                x = y
            elif y < 0 or y >= cell(sizes, d):
                inside = False
            else:
                page += cell(pages_of, cell(starts, d) + y)
                offset += cell(offsets_of, cell(starts, d) + y)
        low = min(max(-x, 0), depth)
        count = max(min(depth, size - x) - low, 0) if inside else np.int64(0)
        if cell(m, M_FLOATS) and (low > 0 or count == 0 or (present >= 0 and count != present)):
            return 0
        present = count
        to = base + (cell(cell(m, M_PART), j) * per_part + cell(cell(m, M_INDEX), j)) * pitch
        if count < width:
            for i in range(width * e):
                put_byte(to, i, 0)
        found = cell(m, M_REACH) + 56 * j
        put(found, 0, -1)
        put(found, 6, count)
        if count > 0:
            _reach_one(m, found, page, offset, x, low, count, to)
    put(presents, round_, present)
    return 1


@inner()
def _gather(f: Any, m: Any) -> None:
    """A of every active row to the buffer."""
    rows, ka, kb = cell(m, M_ROWS), cell(m, M_KA), cell(m, M_KB)
    length, pitch, per_part = cell(m, M_CHUNK) * cell(m, M_SIZE), cell(m, M_A_PITCH), cell(m, M_A_ROWS) // ka
    to = cell(m, M_A_BYTES) + cell(cell(m, M_FILL), 1) * cell(m, M_A_STEP)
    registers, thread = cell(f, L_PITCH), cell(m, M_RS) * cell(f, L_PITCH)
    own = cell(f, L_FILE) + cell(m, M_BASE) * registers + 4 * cell(m, M_A)
    for qa in range(ka):
        for qb in range(kb):
            into, of = to + qa * per_part * pitch + qb * length, own
            of += (qa * cell(m, M_AS) + qb * cell(m, M_BS)) * registers
            for _ in range(rows):
                copy_run(into, of, length)
                into += pitch
                of += thread


@inner()
def _select(f: Any, m: Any, row: Any) -> bool:
    """Which columns are on; False where others are than in the rounds that wait to be added.

    Where others are than before, those that take part, in the order of their steps, go to ``M_SEQUENCE``; ``M_FILL``
    has how many (2), and their steps (3).
    """
    columns, fill, guard, negated = cell(m, M_COLUMNS), cell(m, M_FILL), cell(row, 7), cell(row, 8)
    changed = cell(fill, 2) < 0
    if guard < 0 and not changed:
        return True
    active, on, flags = cell(m, M_ACTIVE), cell(m, M_ON), cell(f, L_PREDICATES)
    for j in range(columns):
        now = np.int64(guard < 0 or byte(flags + j * cell(f, L_PER_THREAD), guard) != negated)
        put_byte(on, j, now)
        changed |= now != byte(active, j)
    if not changed:
        return True
    if cell(fill, 1) > 0:
        return False
    sequence, step_of, per_step = cell(m, M_SEQUENCE), cell(m, M_STEP_OF), cell(m, M_PER_STEP)
    taken, steps, last = np.int64(0), np.int64(0), np.int64(-1)
    for j in range(columns):
        put_byte(active, j, byte(on, j))
    for s in range(columns):
        j = cell(cell(m, M_ORDER), s)
        if not byte(on, j):
            continue
        step = cell(cell(m, M_INDEX), j) // per_step
        put(sequence, taken, j)
        put(step_of, taken, step)
        steps += step != last
        last = step
        taken += 1
    put(fill, 2, taken)
    put(fill, 3, steps)
    return True


@inner(inline="always")
def _more(table: Any, place: Any, count: Any) -> None:
    put(table, place, cell(table, place) + count)


@inner()
def _count(f: Any, m: Any, runs: bool) -> None:
    """Work of one ``mm``. ``runs``: every column is there whole."""
    rows, ka, kb, fill = cell(m, M_ROWS), cell(m, M_KA), cell(m, M_KB), cell(m, M_FILL)
    reach, sequence, counts, traffic = cell(m, M_REACH), cell(m, M_SEQUENCE), cell(f, L_COUNTS), cell(f, L_TRAFFIC)
    taken, steps = cell(fill, 2), cell(fill, 3)
    loaded, present = taken, taken * cell(m, M_DEPTH)
    if not runs:
        loaded = present = np.int64(0)
        for s in range(taken):
            count = cell(reach + 56 * cell(sequence, s), 6)
            loaded += count > 0
            present += count
    a_reads = cell(m, M_A_READ) * ka * kb * rows if steps > 0 else np.int64(0)
    _more(counts, 0, np.int64(1))
    _more(counts, 1, present * rows)
    _more(counts, 2, loaded)
    _more(counts, 3, present)
    _more(counts, 4, steps)
    _more(counts, 5, a_reads)
    _more(counts, 7, loaded * rows)
    _more(counts, 8, loaded * rows)
    _more(counts, 9, loaded * rows * (kb - 1))
    _more(traffic, 0, a_reads + loaded * rows)
    _more(traffic, 1, loaded * rows)


@inner()
def multiply(f: Any, row: Any) -> Any:
    """``mm`` but for its sums: 0, or why it is not for this kernel now (nothing has been changed then)."""
    m = cell(f, L_PRODUCT)
    fill, dims = cell(m, M_FILL), cell(m, M_DIMS)
    if cell(fill, 1) == cell(m, M_ROUNDS) or not _select(f, m, row):
        return FULL
    kind = _reach(f, m, row)
    if kind == 0:
        return IRREGULAR
    _gather(f, m)
    put(fill, 0, cell(fill, 0) + cell(m, M_WIDTH))
    put(fill, 1, cell(fill, 1) + 1)
    _count(f, m, kind == 2)
    lines_of_columns(f, m, kind == 2)
    # time
    tokens, clock, guard = cell(f, L_TOKENS), cell(f, L_CLOCK), cell(row, 13)
    latest = later(tokens, cell(row, 10), cell(row, 10) + 1, np.int64(-1))
    latest = later(tokens, cell(row, 4), cell(row, 4) + dims, latest)
    if guard >= 0:
        latest = later(tokens, guard, guard + 1, latest)
    ready(f, latest)
    flight = cell(clock, 7)
    if flight >= cell(m, M_BCAST):
        until(f, cell(clock, 8), np.int64(6))
        for i in range(flight - 1):
            put(clock, 8 + i, cell(clock, 9 + i))
        put(clock, 7, flight - 1)
    _issue(f, m)
    return 0


@inner()
def _issue(f: Any, m: Any) -> None:
    """Its place on the clock, once its registers are there."""
    tokens, foreign, clock = cell(f, L_TOKENS), cell(f, L_FOREIGN), cell(f, L_CLOCK)
    a, first, causes, math = cell(m, M_A), cell(m, M_FIRST), cell(f, L_CAUSES), cell(f, L_MATH)
    a_end, end, times, fill = a + cell(m, M_A_REGISTERS), first + cell(m, M_LOCAL), cell(m, M_TIMES), cell(m, M_FILL)
    at_hand, start = np.int64(0), cell(clock, 0)
    for place in range(a, a_end):
        at_hand = max(at_hand, cell(tokens, place))
    for place in range(first, end):
        at_hand = max(at_hand, cell(foreign, place))
    idle = max(0, start - cell(clock, 3))
    _more(cell(f, L_QUEUE), 0, np.int64(1))
    put(clock, 0, start + 1)
    issue(cell(m, M_OUT), cell(fill, 2), cell(m, M_STEP_OF), start, at_hand, clock + 16, cell(m, M_TIMING), times)
    begun, done = cell(times, 0), cell(clock, 3)
    if begun < 0:
        put(clock, 1, max(cell(clock, 1), start + 1))
        return
    _more(math, 2, idle)
    _more(math, 0, cell(times, 1))
    _more(math, 1, cell(times, 2))
    until(f, at_hand, np.int64(7))
    for place in range(a, a_end):
        if cell(tokens, place) < begun:
            put(tokens, place, begun)
            put(foreign, place, begun)
            put_byte(causes, place, 2)
    for place in range(first, end):
        put(tokens, place, done)
        put_byte(causes, place, 2)
    put(clock, 8 + cell(clock, 7), done)
    _more(clock, 7, np.int64(1))
    _more(clock, 6, cell(fill, 3) * cell(m, M_STEP))
    put(clock, 1, max(cell(clock, 1), done))

"""numba kernels: an ``mm`` in a compiled block; the lines and the time of any ``mm``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels import pointers, records
from tilewright.isa.kernels.cache_kernels import BYPASSED, HIT, PINNED, move_to_list, release_retained, tables_of, touch
from tilewright.isa.kernels.memory_kernels import copy_run, issue
from tilewright.isa.kernels.pointers import byte, cell, put, put_byte, put_word, word
from tilewright.kernels import inner, njit

_COLUMN, _IN_FLIGHT = records.REACH.bytes, records.CLOCK.bytes
_LSU = 16  # where the free cycles stand in the clock
_ACCESSES = 8 * len(records.LINE_ACCESSES)

# numba kernels: lines that an ``mm`` touches, through the caches.


@inner()
def _count_miss(run: Any, mm: Any, outcome: Any, line: Any, beyond: Any) -> Any:
    """A line that L1 had not: what else that means, and 1 if L2 had not either."""
    traffic, second = pointers.traffic_at(run.traffic), run.l2
    if outcome == PINNED:
        traffic.pin_evictions += 1
    if outcome == BYPASSED:
        traffic.bypasses += 1
    if not beyond or touch(second, tables_of(second), line, np.int64(1)) == HIT:
        return np.int64(0)
    put(mm.deep, mm.deep_count, line)
    mm.deep_count += 1
    return np.int64(1)


@inner()
def _touch_column(run: Any, mm: Any, column: Any, tables: Any) -> Any:
    """(lines, L1 misses, L2 misses) of a column that is no run, or whose lines are retained."""
    e, dim, page_elements, shift = mm.element_bytes, mm.dim, mm.page_elements, mm.line_shift
    pages_of, offsets_of, phys, in_l2 = mm.pages_of, mm.offsets_of, mm.phys, mm.in_l2
    retains, bypass, selected, awaited = mm.retains, mm.bypasses, mm.selected, mm.awaited
    page, offset, first, traffic = column.page, column.offset, run.l1, pointers.traffic_at(run.traffic)
    head, taken, seen = cell(mm.starts, dim) + column.x + column.low, np.int64(0), mm.seen
    lines, misses, deep, last = np.int64(0), np.int64(0), np.int64(0), np.int64(-1)
    for u in range(column.count):
        p, o = page + cell(pages_of, head + u), offset + cell(offsets_of, head + u)
        line, element = (cell(phys, p) + o * e) >> shift, p * page_elements + o
        if line != last:
            last = line
            lines += 1
            outcome, before = touch(first, tables, line, bypass), deep
            if outcome != HIT:
                misses += 1
                deep += _count_miss(run, mm, outcome, line, not byte(in_l2, p))
            if seen:
                own = seen + _ACCESSES * (element * e >> shift)
                put(own, 0, cell(own, 0) + 1)
                put(own, 1, cell(own, 1) + (outcome != HIT))
                put(own, 2, cell(own, 2) + deep - before)
        if retains:
            own = element * e >> shift
            if byte(selected, element) == 0:
                put_byte(selected, element, 1)
                taken += 1
                put_word(awaited, own, word(awaited, own) - 1)
            waits = np.int64(word(awaited, own) > 0)
            if move_to_list(first, tables, line, waits):
                traffic.retained_lines += waits
                traffic.released_lines += 1 - waits
    if taken:
        pointers.walk_at(mm.walk).left -= taken
    return lines, misses, deep


# numba kernels: where a walk over B begins anew, and columns it passes over.


@inner()
def _first_is_selected(mm: Any) -> bool:
    """Whether a walk has selected the first element of this ``mm`` already."""
    sequence, reach, columns = mm.sequence, mm.reach, pointers.fill_at(mm.fill).columns
    for s in range(columns):
        column = pointers.reach_at(reach + _COLUMN * cell(sequence, s))
        if column.count > 0:
            head = cell(mm.starts, mm.dim) + column.x + column.low
            page, offset = column.page + cell(mm.pages_of, head), column.offset + cell(mm.offsets_of, head)
            return bool(byte(mm.selected, page * mm.page_elements + offset) != 0)
    return False


@inner()
def _begin_walk(run: Any, mm: Any, row: Any) -> None:
    """A product's first ``mm`` over a segment: lines of others that an earlier product retains are released.

    Its own walk begins anew where it comes over columns that were used.
    """
    walk, handle, product, released = pointers.walk_at(mm.walk), row.handle, run.product, np.int64(0)
    if walk.product != product or walk.left == 0:
        if run.walked != handle and run.walked_in != product:
            released += release_retained(run.l1)
        if mm.retains and _first_is_selected(mm):
            selected, awaited, at_first = mm.selected, mm.awaited, mm.at_first
            for element in range(mm.elements):
                put_byte(selected, element, 0)
            for line in range(mm.lines):
                put_word(awaited, line, word(at_first, line))
            walk.left = mm.inside
            released += release_retained(run.l1)
        walk.product = product
        walk.column = walk.before = np.int64(-1)
        pointers.traffic_at(run.traffic).released_lines += released
    run.walked, run.walked_in = handle, product


@inner()
def _skip_columns(run: Any, mm: Any, row: Any) -> None:
    """Columns that are off and take no part in the product: their elements are not awaited.

    Where several are on those are all others; where one is, columns come one by one, and those between the one before
    and this one have had their turn.
    """
    walk, low, high = pointers.walk_at(mm.walk), np.int64(0), mm.columns
    if pointers.fill_at(mm.fill).columns == 1:
        j = cell(mm.sequence, 0)
        if j != walk.column:
            walk.before, walk.column = walk.column, j
        low, high = walk.before + 1, j
    for j in range(low, high):
        if not byte(mm.on, j):
            _skip_column(run, mm, run.file + j * run.pitch + 4 * row.x, row.immediate)


@inner()
def _skip_column(run: Any, mm: Any, own: Any, immediate: Any) -> None:
    dim, selected, awaited, tables = mm.dim, mm.selected, mm.awaited, tables_of(run.l1)
    page, offset = np.int64(0), np.int64(0)
    x: Any = np.int64(0)
    for d in range(mm.dims):
        y = word(own, d) + (immediate if d == 0 else 0)
        if d == dim:
            x = y
        elif y < 0 or y >= cell(mm.sizes, d):
            return
        else:
            page += cell(mm.pages_of, cell(mm.starts, d) + y)
            offset += cell(mm.offsets_of, cell(mm.starts, d) + y)
    for u in range(max(x, 0), min(x + mm.depth, cell(mm.sizes, dim))):
        head = cell(mm.starts, dim) + u
        p, o = page + cell(mm.pages_of, head), offset + cell(mm.offsets_of, head)
        element = p * mm.page_elements + o
        if cell(mm.phys, p) < 0 or byte(selected, element) != 0:
            continue
        put_byte(selected, element, 1)
        pointers.walk_at(mm.walk).left -= 1
        own_line = element * mm.element_bytes >> mm.line_shift
        put_word(awaited, own_line, word(awaited, own_line) - 1)
        if word(awaited, own_line) == 0:
            line = (cell(mm.phys, p) + o * mm.element_bytes) >> mm.line_shift
            pointers.traffic_at(run.traffic).released_lines += move_to_list(run.l1, tables, line, np.int64(0))


@inner()
def _touch_columns(run: Any, mm: Any) -> None:
    """Lines of the columns that take part through the caches; to ``mm.out``: lines, L1 and L2 misses of each."""
    e, shift, retains, bypass = mm.element_bytes, mm.line_shift, mm.retains, mm.bypasses
    reach, out, sequence, in_l2 = mm.reach, mm.out, mm.sequence, mm.in_l2
    first, head, pages_of = run.l1, cell(mm.starts, mm.dim), mm.pages_of
    tables, touches, all_misses, all_deep = tables_of(first), np.int64(0), np.int64(0), np.int64(0)
    mm.deep_count = np.int64(0)
    for s in range(pointers.fill_at(mm.fill).columns):
        j = cell(sequence, s)
        lines, misses, deep, column = np.int64(0), np.int64(0), np.int64(0), pointers.reach_at(reach + _COLUMN * j)
        begin, length = column.begin, column.count * e
        page = column.page + cell(pages_of, head + column.x + column.low) if begin >= 0 else begin
        if begin >= 0 and not retains:
            for line in range(begin >> shift, ((begin + length - 1) >> shift) + 1):
                lines += 1
                outcome = touch(first, tables, line, bypass)
                if outcome != HIT:
                    misses += 1
                    deep += _count_miss(run, mm, outcome, line, not byte(in_l2, page))
        elif length > 0:
            lines, misses, deep = _touch_column(run, mm, column, tables)
        put(out, 3 * s, lines)
        put(out, 3 * s + 1, misses)
        put(out, 3 * s + 2, deep)
        touches += lines
        all_misses += misses
        all_deep += deep
    counts, traffic = pointers.counts_at(run.counts), pointers.traffic_at(run.traffic)
    counts.l1_touches += touches
    counts.l1_misses += all_misses
    counts.l2_misses += all_deep
    traffic.l1_hits += touches - all_misses
    pointers.accounts_at(pointers.memory_at(run.memory).accounts).l2_b += all_misses << shift
    pointers.accounts_at(pointers.memory_at(run.memory).accounts).dram_b += all_deep << shift


# numba kernels: how instructions wait for registers on the clock.


@inner(inline="always")
def until(run: Any, cycle: Any, reason: Any) -> None:
    """The queue stands still until a cycle."""
    clock, queue = pointers.clock_at(run.clock), run.queue
    now = clock.issue
    if cycle > now:
        put(queue, reason, cell(queue, reason) + cycle - now)
        clock.issue = cycle


@inner()
def latest_place(tokens: Any, begin: Any, end: Any, latest: Any) -> Any:
    """The place among ``begin`` to ``end`` (-1 to 0: no place) whose token comes later than that of ``latest``.

    ``latest``, and the result: -1 where there is none yet.
    """
    most = cell(tokens, latest) if latest >= 0 else np.int64(0)
    for place in range(max(begin, 0), end):
        token = cell(tokens, place)
        if token > most:
            latest, most = np.int64(place), token
    return latest


@inner(inline="always")
def ready(run: Any, latest: Any) -> None:
    """Wait for one register (-1: none)."""
    if latest >= 0:
        until(run, cell(run.tokens, latest), records.CAUSED + byte(run.causes, latest))


@inner()
def issued(run: Any) -> Any:
    """Take the queue's next cycle."""
    clock = pointers.clock_at(run.clock)
    start = clock.issue
    put(run.queue, records.ISSUED, cell(run.queue, records.ISSUED) + 1)
    put(run.queue, records.FETCH, cell(run.queue, records.FETCH) + run.fetch)
    clock.issue = start + 1 + run.fetch
    return start


@inner()
def _locate_column(mm: Any, column: Any, page: Any, offset: Any, x: Any, low: Any, count: Any, to: Any) -> None:
    """``count`` elements from coordinate ``x + low`` of a column to address ``to``."""
    e, store, phys, pages_of, offsets_of = mm.element_bytes, mm.store, mm.phys, mm.pages_of, mm.offsets_of
    head = cell(mm.starts, mm.dim) + x + low
    tail = head + count - 1
    at = page + cell(pages_of, head)
    column.page, column.offset, column.x, column.low = page, offset, x, low
    to += low * e
    place = cell(offsets_of, head)
    if cell(pages_of, tail) == at - page and cell(offsets_of, tail) - place == count - 1:
        begin = cell(phys, at) + (offset + place) * e
        column.begin = begin
        copy_run(to, store + begin, count * e)
        return
    for u in range(count):
        begin = cell(phys, page + cell(pages_of, head + u)) + (offset + cell(offsets_of, head + u)) * e
        copy_run(to + u * e, store + begin, e)


@inner()
def _locate_columns(run: Any, mm: Any, row: Any) -> bool:
    """Where every column that is on begins and how much of it is there, and its elements to the buffer.

    To ``mm.reach``, a record REACH for each. False where columns of floats are not all of one depth from the first on.
    """
    depth, e, dim, dims, width = mm.depth, mm.element_bytes, mm.dim, mm.dims, mm.width
    round_, presents, pitch, per_part = pointers.fill_at(mm.fill).rounds, mm.presents, mm.b_pitch, mm.b_rows // mm.ka
    sizes, starts, pages_of, offsets_of = mm.sizes, mm.starts, mm.pages_of, mm.offsets_of
    on, size, base = mm.on, cell(mm.sizes, dim), mm.b_bytes + round_ * mm.b_step
    present = np.int64(-1)
    for j in range(mm.columns):
        if not byte(on, j):
            continue
        own = run.file + j * run.pitch + 4 * row.x
        page, offset, x, inside = np.int64(0), np.int64(0), np.int64(0), True
        for d in range(dims):
            y = word(own, d) + (row.immediate if d == 0 else 0)
            if d == dim:
                x = y
            elif y < 0 or y >= cell(sizes, d):
                inside = False
            else:
                page += cell(pages_of, cell(starts, d) + y)
                offset += cell(offsets_of, cell(starts, d) + y)
        low = min(max(-x, 0), depth)
        count = max(min(depth, size - x) - low, 0) if inside else np.int64(0)
        if mm.floats and (low > 0 or count == 0 or (present >= 0 and count != present)):
            return False
        present = count
        to = base + (cell(mm.part, j) * per_part + cell(mm.index, j)) * pitch
        if count < width:
            for i in range(width * e):
                put_byte(to, i, 0)
        column = pointers.reach_at(mm.reach + _COLUMN * j)
        column.begin, column.count = np.int64(-1), count
        if count > 0:
            _locate_column(mm, column, page, offset, x, low, count, to)
    put(presents, round_, present)
    return True


@inner()
def _copy_a(run: Any, mm: Any, row: Any) -> None:
    """A of every active row to the buffer."""
    rows, ka, kb = mm.rows, mm.ka, mm.kb
    length, pitch, per_part = mm.chunk * mm.element_bytes, mm.a_pitch, mm.a_rows // ka
    to = mm.a_bytes + pointers.fill_at(mm.fill).rounds * mm.a_step
    registers, thread = run.pitch, mm.row_stride * run.pitch
    own = run.file + mm.first_thread * registers + 4 * row.y
    for qa in range(ka):
        for qb in range(kb):
            into, of = to + qa * per_part * pitch + qb * length, own
            of += (qa * mm.a_stride + qb * mm.b_stride) * registers
            for _ in range(rows):
                copy_run(into, of, length)
                into += pitch
                of += thread


@inner()
def _select_columns(run: Any, mm: Any, row: Any) -> bool:
    """Which columns are on; False where others are than in the rounds that wait to be added.

    Where others are than before, those that take part, in the order of their steps, go to ``mm.sequence``, and how many
    they and their steps are to ``mm.fill``.
    """
    columns, fill, guard, negated = mm.columns, pointers.fill_at(mm.fill), row.guard, row.negated
    changed = fill.columns < 0
    if guard < 0 and fill.columns == columns:
        return True
    active, on, flags = mm.active, mm.on, run.predicates
    for j in range(columns):
        now = np.int64(guard < 0 or byte(flags + j * run.predicate_pitch, guard) != negated)
        put_byte(on, j, now)
        changed |= now != byte(active, j)
    if not changed:
        return True
    if fill.rounds > 0:
        fill.columns = np.int64(-1)  # what is on stands in ``on`` only
        return False
    sequence, step_of, per_step = mm.sequence, mm.step_of, mm.per_step
    taken, steps, last = np.int64(0), np.int64(0), np.int64(-1)
    for j in range(columns):
        put_byte(active, j, byte(on, j))
    for s in range(columns):
        j = cell(mm.order, s)
        if not byte(on, j):
            continue
        step = cell(mm.index, j) // per_step
        put(sequence, taken, j)
        put(step_of, taken, step)
        steps += step != last
        last = step
        taken += 1
    fill.columns, fill.steps = taken, steps
    return True


@inner()
def _count(run: Any, mm: Any) -> None:
    """Work of one ``mm``."""
    rows, ka, kb, fill = mm.rows, mm.ka, mm.kb, pointers.fill_at(mm.fill)
    counts, traffic = pointers.counts_at(run.counts), pointers.traffic_at(run.traffic)
    loaded = present = np.int64(0)
    for s in range(fill.columns):
        count = pointers.reach_at(mm.reach + _COLUMN * cell(mm.sequence, s)).count
        loaded += count > 0
        present += count
    a_reads = mm.a_reads * ka * kb * rows if fill.steps > 0 else np.int64(0)
    counts.instructions += 1
    counts.macs += present * rows
    accounts = pointers.memory_at(run.memory).accounts
    put(accounts, mm.macs, cell(accounts, mm.macs) + present * rows)
    pointers.accounts_at(accounts).l1_b += present * mm.element_bytes
    counts.column_loads += loaded
    counts.broadcast_elements += present
    counts.steps += fill.steps
    counts.a_register_reads += a_reads
    counts.accumulator_reads += loaded * rows
    counts.accumulator_writes += loaded * rows
    counts.kb_transfers += loaded * rows * (kb - 1)
    traffic.register_reads += a_reads + loaded * rows
    traffic.register_writes += loaded * rows


@inner()
def multiply(run: Any, mm: Any, row: Any) -> Any:
    """``mm`` but for its sums: 0, or why it is not for this kernel now (nothing has been changed then)."""
    fill = pointers.fill_at(mm.fill)
    others = run.pending != 0 and run.pending != mm.fill
    if others or fill.rounds == mm.rounds or not _select_columns(run, mm, row):
        return records.FULL
    if not _locate_columns(run, mm, row):
        return records.IRREGULAR
    _copy_a(run, mm, row)
    fill.k += mm.width
    fill.rounds += 1
    run.pending, run.low, run.high = mm.fill, mm.first, mm.first + mm.local
    _count(run, mm)
    _walk_and_issue(run, mm, row)
    return 0


@njit(cache=True, nogil=True)
def walk_columns(block: Any, mm: Any, instruction: Any) -> None:
    """The lines and the time of an ``mm``, from the numbers of records BLOCK, MM and INSTRUCTION.

    ``mm.reach``, ``mm.sequence`` and ``mm.fill`` say which elements of which columns there are; BLOCK's registers have
    the coordinates of all columns.
    """
    addresses = np.int64(block.ctypes.data), np.int64(mm.ctypes.data), np.int64(instruction.ctypes.data)
    run, row = pointers.block_at(addresses[0]), pointers.instruction_at(addresses[2])
    _walk_and_issue(run, pointers.mm_at(addresses[1]), row)


@inner()
def _walk_and_issue(run: Any, mm: Any, row: Any) -> None:
    """Lines of the columns through the caches, and the place of the ``mm`` on the clock."""
    _begin_walk(run, mm, row)
    if mm.retains and 0 < pointers.fill_at(mm.fill).columns < mm.columns:
        _skip_columns(run, mm, row)
    _touch_columns(run, mm)
    _on_clock(run, mm, row)


@inner()
def _on_clock(run: Any, mm: Any, row: Any) -> None:
    """Its place on the clock; ``mm.out`` and ``mm.deep`` have the lines of its columns."""
    tokens, clock = run.tokens, pointers.clock_at(run.clock)
    latest = latest_place(tokens, row.x_place, row.x_place + 1, np.int64(-1))
    latest = latest_place(tokens, row.x, row.offsets_end, latest)
    ready(run, latest_place(tokens, row.guard_place, row.guard_place + 1, latest))
    flight, ends = clock.in_flight, run.clock + _IN_FLIGHT
    if flight >= mm.bcast_depth:
        until(run, cell(ends, 0), np.int64(records.DEPTH))
        for i in range(flight - 1):
            put(ends, i, cell(ends, i + 1))
        clock.in_flight = flight - 1
    until(run, mm.page_ready, np.int64(records.PAGE))
    foreign, causes, math = run.foreign, run.causes, pointers.math_at(run.math)
    fill, times = pointers.fill_at(mm.fill), pointers.times_at(mm.times)
    a, first, a_end, end = row.y, mm.first, row.y + mm.a_registers, mm.first + mm.local
    operands_ready, start = np.int64(0), issued(run)
    for place in range(a, a_end):
        operands_ready = max(operands_ready, cell(tokens, place))
    for place in range(first, end):
        operands_ready = max(operands_ready, cell(foreign, place))
    idle = max(0, start - clock.math)
    units = pointers.free_at(run.clock + _LSU), pointers.timing_at(mm.timing), times
    issue(pointers.memory_at(run.memory), mm.deep, mm.out, fill.columns, mm.step_of, start, operands_ready, *units)
    begun, done = times.first, clock.math
    if begun < 0:
        clock.end = max(clock.end, start + 1)
        return
    math.no_mm += idle
    math.columns += times.for_columns
    math.a += times.for_a
    until(run, operands_ready, np.int64(records.OPERANDS))
    for place in range(a, a_end):
        if cell(tokens, place) < begun:
            put(tokens, place, begun)
            put(foreign, place, begun)
            put_byte(causes, place, 2)
    for place in range(first, end):
        put(tokens, place, done)
        put_byte(causes, place, 2)
    put(run.clock + _IN_FLIGHT, clock.in_flight, done)
    clock.in_flight += 1
    clock.math_busy += fill.steps * mm.step_cycles
    clock.end = max(clock.end, done)

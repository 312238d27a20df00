"""numba kernels that move boxes; imported only when data is moved.

A box is a primitive at many places: the outer loops stand in tables of places, the inner ones in one row of numbers
(see :class:`tilewright.layout.move.calls.Work`). Everything is addressed in bytes, so one kernel serves all types;
primitives that look at single elements (``element_kernels.py``) are called by their address. Functions take numbers,
not arrays: numba counts references to an array on every call, atomically.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import inner, njit
from tilewright.kernels.vectors import copy_vector, load_word, prefetch_line
from tilewright.layout.move.vector_kernels import (
    call_address,
    fence,
    store_element,
    stream_line,
    take_number,
    wait_a_moment,
)
from tilewright.layout.move.words import (
    CALL,
    CORE,
    DONE,
    GIVEN,
    INNER,
    KIND,
    LENGTH,
    LINES,
    NUMBERS,
    PADDED,
    REPEAT,
    ROWS,
    RUN,
    RUNS,
    STREAM,
    THREADS,
)

_LINE = 64


@inner(boundscheck=False)
def fetch_line(place: int, starts: int, runs: int, length: int, run: int, at: int) -> tuple[int, int]:
    """Fetch into the second cache the line ``at`` bytes into a run, and say which one comes next: (run, at).

    The ``runs`` of ``length`` bytes begin behind ``place`` where the table at ``starts`` says; nothing is fetched
    behind the last one.
    """
    if run < runs:
        prefetch_line(place + load_word(starts, run) + at, 2)
        at += _LINE
        if at >= length:
            run, at = run + 1, 0
    return run, at


_options: Any = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}
_inner: Any = {"boundscheck": False, "error_model": "numpy"}
_AHEAD, _FAR_AHEAD = 256, 4096  # how many bytes ahead lines are fetched in short and in long runs
_PATIENCE = 20_000  # looks at how far the others are, about a millisecond
_WORD, _BYTE = np.uint64(0), np.uint8(0)


@inner(**_inner)
def copy_bytes(target: int, source: int, count: int) -> None:
    """``count`` bytes in the widest vectors that fit; the last one overlaps its neighbour."""
    if count >= 64:
        for q in range(0, count - 63, 64):
            copy_vector(target + q, source + q, 64)
        if count % 64:
            copy_vector(target + count - 64, source + count - 64, 64)
    elif count >= 32:
        copy_vector(target, source, 32)
        copy_vector(target + count - 32, source + count - 32, 32)
    elif count >= 16:
        copy_vector(target, source, 16)
        copy_vector(target + count - 16, source + count - 16, 16)
    elif count >= 8:
        copy_vector(target, source, 8)
        copy_vector(target + count - 8, source + count - 8, 8)
    else:
        for q in range(count):
            copy_vector(target + q, source + q, 1)


@inner(**_inner)
def _runs(t: int, s: int, repeat: Any, count: int, stream: int) -> None:
    """Runs of any length; streamed ones in whole lines, whatever the addresses, with a piece of one at either end."""
    table, entries, n, ns, nt = repeat
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            head = -a % _LINE if stream else count
            head = head if head < count else count
            end = count - (count - head) % _LINE
            copy_bytes(a, b, head)
            for q in range(head, end, _LINE):
                prefetch_line(b + q + _FAR_AHEAD, 1)
                stream_line(a + q, b + q)
            copy_bytes(a + end, b + end, count - end)
            a, b = a + nt, b + ns


@inner(**_inner)
def _lines(t: int, s: int, repeat: Any, count: int, stream: int) -> None:
    """Runs of whole lines."""
    table, entries, n, ns, nt = repeat
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            if stream:
                for q in range(0, count, _LINE):
                    prefetch_line(b + q + _AHEAD, 1)
                    stream_line(a + q, b + q)
            else:
                for q in range(0, count, _LINE):
                    copy_vector(a + q, b + q, 64)
            a, b = a + nt, b + ns


@inner(**_inner)
def _leave(target: int, scratch: int, block: Any, width: int, fresh: int, final: int, next_: Any) -> None:
    """Stream ``width`` bytes of a block's rows to the target; meanwhile fetch the lines of the next block.

    A row's last, partial line waits in front of its scratch row for the block that continues it, unless the block is
    the ``final`` one; ``fresh``: no block came before. A block that is one run is fetched into the nearest cache, runs
    that lie far apart into the second one, since those a power of two apart push each other out of the nearest.
    """
    outs, rows = block
    following, starts, runs, length = next_
    i = j = 0
    for row in range(rows):
        t, s = target + load_word(outs, 2 * row), scratch + load_word(outs, 2 * row + 1)
        begin = -(t % _LINE)
        if fresh:
            begin = -t % _LINE if -t % _LINE < width else width
        end = width - (t + width) % _LINE
        end = end if end > begin else begin
        if fresh:
            copy_bytes(t, s, begin)
        for q in range(begin, end, _LINE):
            stream_line(t + q, s + q)
            if runs == 1:
                if j < length:
                    prefetch_line(following + j, 1)
                    j += _LINE
            else:
                i, j = fetch_line(following, starts, runs, length, i, j)
        if final:
            copy_bytes(t + end, s + end, width - end)
        else:
            copy_vector(s - _LINE, s + width - _LINE, 64)


@inner(**_inner)
def _fill(target: int, count: int, value: int) -> None:
    """``count`` bytes of elements; ``value`` is as many of them as fill 8 bytes."""
    for q in range(0, count - 7, 8):
        store_element(target + q, value, _WORD)
    for q in range(count - count % 8, count):
        store_element(target + q, value >> q % 8 * 8, _BYTE)


@njit(**_options)
def move(call: int, scratch: int) -> bool:
    """The parts of a move that nobody else has taken; whether all of them, everybody's, are done.

    ``call`` is the address of counts, a line apart, of the parts taken and of those done, then of the target, the
    source, a plan's header (:class:`tilewright.layout.move.calls.MovePlan`), 8 bytes of padding and the number of
    threads. A part p has, of every work w, the entries starts[w, p] to starts[w, p + 1]. An entry runs the primitive at
    all its inner places, straight into the target; or, where the work has rows, into ``scratch`` (SCRATCH bytes on a
    line, and a line of room before them), from where the rows are streamed to the target. Padding is filled while the
    lines it shares with data are still near. A thread that finds no part left waits a little for the others.

    Invariants: a part belongs to the one thread that took its number; no two parts write the same byte, and a line
    that two of them share is never streamed whole. Parts are counted done only behind a fence, so that a caller who
    sees all of them done sees their data too.
    """
    taken, done = call, call + 8 * DONE
    target, source = load_word(call, GIVEN), load_word(call, GIVEN + 1)
    header, value = load_word(call, GIVEN + 2), load_word(call, GIVEN + 3)
    inner, outs, runs = load_word(header, 2), load_word(header, 3), load_word(header, 4)
    places, starts, parts = load_word(header, 5), load_word(header, 6), load_word(header, 7)
    early = parts - 2 * load_word(call, THREADS)  # the last parts are taken only as they begin, so that nobody waits
    part = take_number(taken, 1)
    while part < parts:
        coming = take_number(taken, 1) if part < early else parts  # so that what it begins with is fetched meanwhile
        for w in range(load_word(header, 1)):
            work = load_word(header, 0) + w * 8 * NUMBERS
            kind, stream = load_word(work, KIND), load_word(work, STREAM)
            count = load_word(work, CORE)
            table, entries = inner + 16 * load_word(work, INNER), load_word(work, INNER + 1)
            repeat = table, entries, load_word(work, REPEAT), load_word(work, REPEAT + 1), load_word(work, REPEAT + 2)
            block = outs + 16 * load_word(work, ROWS), load_word(work, ROWS + 1)
            lines, run_count, length = (
                runs + 8 * load_word(work, RUNS),
                load_word(work, RUNS + 1),
                load_word(work, LENGTH),
            )
            staged = block[1] > 0
            start = starts + 8 * w * (parts + 1)
            first, last = load_word(start, part), load_word(start, part + 1) - 1
            beyond = load_word(start, coming) if coming < parts else last
            if load_word(work, PADDED) and first <= last:
                _fill(scratch, load_word(work, PADDED), value)
            fresh = True  # else the piece of a line that ended the entry before stands in front of each scratch row
            for k in range(first, last + 1):
                place, after = places + 24 * k, places + 24 * (k + 1 if k < last else beyond)
                s, t, width = source + load_word(place, 0), target + load_word(place, 1), load_word(place, 2)
                next_ = source + load_word(after, 0), lines, run_count, length
                ends = k == last or load_word(place, 1) + width != load_word(after, 1)
                final = ends or (fresh and width < 2 * _LINE)  # so short a row may hold no whole line to leave behind
                into = scratch if staged else t
                if kind == LINES:
                    _lines(into, s, repeat, count, stream)
                elif kind == RUN:
                    _runs(into, s, repeat, count, stream)
                else:
                    call_address(load_word(work, CALL), into, s, work, table, next_[0], lines)
                if staged:
                    _leave(t, scratch, block, width, fresh, final, next_)
                fresh = final
        pads, gaps = load_word(header, 8), load_word(header, 9)
        for k in range(part * gaps // parts, (part + 1) * gaps // parts):
            _fill(target + load_word(pads, 2 * k), load_word(pads, 2 * k + 1), value)
        fence()
        take_number(done, 1)
        part = coming if coming < parts else take_number(taken, 1)
    for _ in range(_PATIENCE):
        if take_number(done, 0) >= parts:
            break
        wait_a_moment()
    return bool(take_number(done, 0) >= parts)

"""numba kernels that move boxes; imported only when data is moved.

A box is a primitive at many places: the outer loops stand in tables of places, the inner ones in one row of numbers
(see :class:`tilewright.layout.move._plan.Work`). Everything is addressed in bytes; ``unit`` is an integer whose type is
as wide as an element, so there are four kernels of each kind in all. Inner functions take numbers, not arrays: numba
counts references to an array on every call, atomically.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit
from tilewright.layout.move._blocks import SCRATCH
from tilewright.layout.move._plan import (
    CORE,
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
    SHORTS,
    STREAM,
    UNZIP,
    ZIP,
)
from tilewright.layout.move._vectors import (
    copy_element,
    copy_vector,
    element_size,
    fence,
    join_runs,
    load_word,
    prefetch_line,
    store_element,
    take_number,
    unzip_vectors,
    wait_a_moment,
    zip_vectors,
)

__all__ = ["move"]

_options: Any = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}
_inner: Any = {**_options, "no_cpython_wrapper": True}  # called by kernels alone: half the compile time
_LINE = 64
_AHEAD, _FAR_AHEAD = 256, 4096  # bytes ahead of short and of long runs, from where lines are fetched
_PATIENCE = 20_000  # looks at what others have done, about a millisecond
_BLOCK = 16  # elements a side of the blocks in which a plain transposition goes


@njit(**_inner)
def copy_bytes(target: int, source: int, count: int) -> None:
    """``count`` bytes in the widest vectors that fit; the last one overlaps its neighbour."""
    if count >= 64:
        for q in range(0, count - 63, 64):
            copy_vector(target + q, source + q, 64, False)
        if count % 64:
            copy_vector(target + count - 64, source + count - 64, 64, False)
    elif count >= 32:
        copy_vector(target, source, 32, False)
        copy_vector(target + count - 32, source + count - 32, 32, False)
    elif count >= 16:
        copy_vector(target, source, 16, False)
        copy_vector(target + count - 16, source + count - 16, 16, False)
    elif count >= 8:
        copy_vector(target, source, 8, False)
        copy_vector(target + count - 8, source + count - 8, 8, False)
    else:
        for q in range(count):
            copy_vector(target + q, source + q, 1, False)


@njit(**_inner)
def stream_bytes(target: int, source: int, count: int) -> None:
    """``count`` bytes past the caches, whatever the addresses; partial lines at the ends go the ordinary way."""
    head = min(-target % _LINE, count)
    copy_bytes(target, source, head)
    body = (count - head) // _LINE * _LINE
    for q in range(head, head + body, _LINE):
        prefetch_line(source + q + _FAR_AHEAD, 1)
        copy_vector(target + q, source + q, 64, True)
    copy_bytes(target + head + body, source + head + body, count - head - body)


@njit(**_inner)
def _runs(t: int, s: int, repeat: Any, count: int, stream: int) -> None:
    """Runs of any length."""
    table, entries, n, ns, nt = repeat
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for j in range(n):
            if stream:
                stream_bytes(a + j * nt, b + j * ns, count)
            else:
                copy_bytes(a + j * nt, b + j * ns, count)


@njit(**_inner)
def _lines(t: int, s: int, repeat: Any, count: int, stream: int) -> None:
    """Runs of whole lines."""
    table, entries, n, ns, nt = repeat
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            if stream:
                for q in range(0, count, _LINE):
                    prefetch_line(b + q + _AHEAD, 1)
                    copy_vector(a + q, b + q, 64, True)
            else:
                for q in range(0, count, _LINE):
                    copy_vector(a + q, b + q, 64, False)
            a, b = a + nt, b + ns


@njit(**_inner)
def _shorts(t: int, s: int, repeat: Any, count: int, stream: int, next_: Any) -> None:
    """Runs of 16 or 32 bytes; streamed ones make whole lines together, one behind the other.

    Those fetch a line of the next entry for every line they write.
    """
    table, entries, n, ns, nt = repeat
    following, starts, runs, length = next_
    i = j = 0
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        if count == 32 and stream:
            for k in range(0, n, 2):
                join_runs(a + k * 32, b + k * ns, ns, 32)
                if i < runs:
                    prefetch_line(following + load_word(starts, i) + j, 2)
                    j += _LINE
                    if j >= length:
                        i, j = i + 1, 0
        elif count == 32:
            for k in range(n):
                copy_vector(a + k * nt, b + k * ns, 32, False)
        elif stream:
            for k in range(0, n, 4):
                join_runs(a + k * 16, b + k * ns, ns, 16)
                if i < runs:
                    prefetch_line(following + load_word(starts, i) + j, 2)
                    j += _LINE
                    if j >= length:
                        i, j = i + 1, 0
        else:
            for k in range(n):
                copy_vector(a + k * nt, b + k * ns, 16, False)


@njit(**_inner)
def _zips(t: int, s: int, repeat: Any, count: int, rows: int, pitch: int, stream: int, next_: Any, unit: Any) -> None:
    """Interleave ``rows`` rows of ``count`` >= 64 bytes; the last vectors overlap their neighbours.

    Streamed ones fetch a line of the next entry for every line they read.
    """
    table, entries, n, ns, nt = repeat
    last = count - _LINE
    following, starts, runs, length = next_
    i = j = 0
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            if rows == 2 and stream:
                for q in range(0, count, _LINE):
                    zip_vectors(a + 2 * q, b + q, pitch, unit, 2, True)
                    for _ in range(2):
                        if i < runs:
                            prefetch_line(following + load_word(starts, i) + j, 2)
                            j += _LINE
                            if j >= length:
                                i, j = i + 1, 0
            elif rows == 2:
                for q in range(0, count, _LINE):
                    zip_vectors(a + 2 * min(q, last), b + min(q, last), pitch, unit, 2, False)
            elif rows == 4 and stream:
                for q in range(0, count, _LINE):
                    zip_vectors(a + 4 * q, b + q, pitch, unit, 4, True)
                    for _ in range(4):
                        if i < runs:
                            prefetch_line(following + load_word(starts, i) + j, 2)
                            j += _LINE
                            if j >= length:
                                i, j = i + 1, 0
            elif rows == 4:
                for q in range(0, count, _LINE):
                    zip_vectors(a + 4 * min(q, last), b + min(q, last), pitch, unit, 4, False)
            else:
                for q in range(0, count, _LINE):
                    zip_vectors(a + 8 * min(q, last), b + min(q, last), pitch, unit, 8, False)
            a, b = a + nt, b + ns


@njit(**_inner)
def _unzips(t: int, s: int, repeat: Any, count: int, rows: int, pitch: int, stream: int, unit: Any) -> None:
    """Take ``rows`` interleaved rows of ``count`` >= 64 bytes apart."""
    table, entries, n, ns, nt = repeat
    last = count - _LINE
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            if rows == 2 and stream:
                for q in range(0, count, _LINE):
                    unzip_vectors(a + q, pitch, b + 2 * q, unit, 2, True)
            elif rows == 2:
                for q in range(0, count, _LINE):
                    unzip_vectors(a + min(q, last), pitch, b + 2 * min(q, last), unit, 2, False)
            elif rows == 4 and stream:
                for q in range(0, count, _LINE):
                    unzip_vectors(a + q, pitch, b + 4 * q, unit, 4, True)
            elif rows == 4:
                for q in range(0, count, _LINE):
                    unzip_vectors(a + min(q, last), pitch, b + 4 * min(q, last), unit, 4, False)
            else:
                for q in range(0, count, _LINE):
                    unzip_vectors(a + min(q, last), pitch, b + 8 * min(q, last), unit, 8, False)
            a, b = a + nt, b + ns


@njit(**_inner)
def _transposes(t: int, s: int, repeat: Any, core: Any, unit: Any) -> None:
    """Any two loops, in blocks whose lines stay in the nearest cache."""
    table, entries, n, ns, nt = repeat
    count, ls, lt, rows, ps, pt = core
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            for p0 in range(0, rows, _BLOCK):
                for l0 in range(0, count, _BLOCK):
                    for p in range(p0, min(p0 + _BLOCK, rows)):
                        for q in range(l0, min(l0 + _BLOCK, count)):
                            copy_element(a + p * pt + q * lt, b + p * ps + q * ls, unit)
            a, b = a + nt, b + ns


@njit(**_inner)
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
        begin = min(-t % _LINE, width) if fresh else -(t % _LINE)
        end = max(begin, width - (t + width) % _LINE)
        if fresh:
            copy_bytes(t, s, begin)
        for q in range(begin, end, _LINE):
            copy_vector(t + q, s + q, 64, True)
            if runs == 1:
                if j < length:
                    prefetch_line(following + j, 1)
                    j += _LINE
            elif i < runs:
                prefetch_line(following + load_word(starts, i) + j, 2)
                j += _LINE
                if j >= length:
                    i, j = i + 1, 0
        if final:
            copy_bytes(t + end, s + end, width - end)
        else:
            copy_vector(s - _LINE, s + width - _LINE, 64, False)


@njit(**_inner)
def _ask(target: int, block: Any, width: int, fresh: int, final: int) -> None:
    """Partial lines are read before they are written: ask for them early."""
    outs, rows = block
    for i in range(rows):
        t = target + load_word(outs, 2 * i)
        if fresh:
            prefetch_line(t, 0)
        if final:
            prefetch_line(t + width, 0)


@njit(**_inner)
def _fill(target: int, count: int, value: int, unit: Any) -> None:
    """``count`` bytes, whole lines, of elements ``value``."""
    for q in range(0, _LINE, element_size(unit)):
        store_element(target + q, value, unit)
    for q in range(_LINE, count, _LINE):
        copy_vector(target + q, target, 64, False)


@njit(**_inner)
def _part(target: int, source: int, header: int, value: int, part: int, scratch: int, unit: Any) -> None:
    """One part of every work, and of the padding that no work fills."""
    inner, outs, runs = load_word(header, 2), load_word(header, 3), load_word(header, 4)
    places, starts, parts = load_word(header, 5), load_word(header, 6), load_word(header, 7)
    for w in range(load_word(header, 1)):
        work = load_word(header, 0) + w * 8 * NUMBERS
        kind, stream = load_word(work, KIND), load_word(work, STREAM)
        count, ls, lt = load_word(work, CORE), load_word(work, CORE + 1), load_word(work, CORE + 2)
        rows, ps, pt = load_word(work, CORE + 3), load_word(work, CORE + 4), load_word(work, CORE + 5)
        table, entries = inner + 16 * load_word(work, INNER), load_word(work, INNER + 1)
        repeat = table, entries, load_word(work, REPEAT), load_word(work, REPEAT + 1), load_word(work, REPEAT + 2)
        block = outs + 16 * load_word(work, ROWS), load_word(work, ROWS + 1)
        lines, run_count, length = runs + 8 * load_word(work, RUNS), load_word(work, RUNS + 1), load_word(work, LENGTH)
        size, staged = count * element_size(unit), block[1] > 0
        start = starts + 8 * w * (parts + 1)
        first, last = load_word(start, part), load_word(start, part + 1) - 1
        if load_word(work, PADDED) and first <= last:
            _fill(scratch, load_word(work, PADDED), value, unit)
        fresh = True
        for k in range(first, last + 1):
            place, after = places + 24 * k, places + 24 * min(k + 1, last)
            s, t, width = source + load_word(place, 0), target + load_word(place, 1), load_word(place, 2)
            next_ = source + load_word(after, 0), lines, run_count, length
            ends = k == last or load_word(place, 1) + width != load_word(after, 1)
            final = ends or (fresh and width < 2 * _LINE)
            if staged:
                _ask(t, block, width, fresh, final)
            into = scratch if staged else t
            if kind == LINES:
                _lines(into, s, repeat, count, stream)
            elif kind == SHORTS:
                _shorts(into, s, repeat, count, stream, next_)
            elif kind == ZIP:
                _zips(into, s, repeat, size, rows, ps, stream, next_, unit)
            elif kind == UNZIP:
                _unzips(into, s, repeat, size, rows, pt, stream, unit)
            elif kind == RUN:
                _runs(into, s, repeat, count, stream)
            else:
                _transposes(into, s, repeat, (count, ls, lt, rows, ps, pt), unit)
            if staged:
                _leave(t, scratch, block, width, fresh, final, next_)
            fresh = final
    pads, gaps = load_word(header, 8), load_word(header, 9)
    for k in range(part * gaps // parts, (part + 1) * gaps // parts):
        begin = load_word(pads, 2 * k)
        for q in range(begin, begin + load_word(pads, 2 * k + 1), element_size(unit)):
            store_element(target + q, value, unit)


@njit(**_options)
def move(target: int, source: int, header: int, value: int, taken: int, unit: Any) -> bool:
    """The parts of a move that nobody else has taken; whether all of them, everybody's, are done.

    ``header`` is the address of a plan's tables (:class:`tilewright.layout.move._plan.MovePlan`). A part p is, of every
    work w, the entries starts[w, p] to starts[w, p + 1]. An entry runs the primitive at all its inner places, straight
    into the target; or, where the work has rows, into scratch memory, from where the rows are streamed to the target.
    Padding gets elements ``value`` while the lines it shares with data are still near. ``taken`` is the address of two
    counts, a line apart: of the parts taken, and of those done. Whoever finds none left waits a little for the others.
    """
    parts, done = load_word(header, 7), taken + _LINE
    scratch = np.empty(SCRATCH + 2 * _LINE, np.uint8)  # a line of room before it
    begin = scratch.ctypes.data
    begin += -begin % _LINE + _LINE
    part = take_number(taken, 1)
    while part < parts:
        _part(target, source, header, value, part, begin, unit)
        fence()
        take_number(done, 1)
        part = take_number(taken, 1)
    for _ in range(_PATIENCE):
        if take_number(done, 0) >= parts:
            break
        wait_a_moment()
    return take_number(done, 0) >= parts and scratch.size > 0  # scratch memory lives until here

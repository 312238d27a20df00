"""numba kernels that move boxes; imported only when data is moved.

A box is a primitive at many places: the outer loops stand in tables of places, the inner ones in one row of numbers
(see :class:`tilewright.layout.move.calls.Work`). Everything is addressed in bytes, so one kernel serves all types;
primitives that look at single elements are compiled when a plan first needs them and called by their address. Functions
take numbers, not arrays: numba counts references to an array on every call, atomically. ``unit`` is an integer whose
type gives an element's width.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir

from tilewright.kernels import Callback, cfunc, inner, njit
from tilewright.kernels.vectors import (
    I32,
    I64,
    Element,
    Literal,
    Word,
    at,
    copy_vector,
    emitted,
    load,
    load_word,
    prefetch_line,
    shuffle,
    vector,
)
from tilewright.layout.move import (
    CALL,
    CORE,
    DONE,
    GIVEN,
    INNER,
    JOIN,
    KIND,
    LENGTH,
    LINE,
    LINES,
    NUMBERS,
    PADDED,
    REPEAT,
    ROWS,
    RUN,
    RUNS,
    SHORTS,
    STREAM,
    THREADS,
    TRANSPOSE,
    UNZIP,
    ZIP,
)


def _store(builder: Any, value: Any, address: Any, streaming: bool) -> None:
    """A vector of any width in lines; a streaming store goes past the caches and wants an aligned address."""
    size = value.type.element.width // 8
    per_line = min(LINE // size, value.type.count)
    undefined = ir.Constant(value.type, ir.Undefined)
    for first in range(0, value.type.count, per_line):
        whole = per_line == value.type.count
        part = value if whole else shuffle(builder, value, undefined, list(range(first, first + per_line)))
        align = per_line * size if streaming else 1
        done = builder.store(part, at(builder, address, first * size, part.type), align=align)
        if streaming:
            done.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


def _interleave(builder: Any, rows: list[Any], size: int) -> Any:
    """Elements of all rows in turn: row 0's first, row 1's first, ...; neighbours pair up, then pairs of pairs."""
    while len(rows) > 1:
        count = rows[0].type.count
        mask = [x for i in range(count) for x in (i, count + i)]
        pairs = [shuffle(builder, a, b, mask) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        size *= 2
        rows = [builder.bitcast(pair, vector(count, size)) for pair in pairs] if len(pairs) > 1 else pairs
    return rows[0]


def _part(builder: Any, whole: Any, rows: int, size: int) -> list[Any]:
    """The inverse of :func:`_interleave`: rows of interleaved elements taken apart, widest pairs first."""
    bytes_all = whole.type.count * whole.type.element.width // 8
    parts = [whole]
    while len(parts) < rows:
        wide = size * rows // (2 * len(parts))
        count = bytes_all // len(parts) // wide
        halves = []
        for part in parts:
            cast = builder.bitcast(part, vector(count, wide))
            undefined = ir.Constant(cast.type, ir.Undefined)
            halves += [shuffle(builder, cast, undefined, list(range(k, count, 2))) for k in (0, 1)]
        parts = halves
    return parts


@emitted
def stream_line(builder: Any, target: Word, source: Word) -> None:
    """A line from address ``source`` to address ``target``, which is aligned, past the caches."""
    _store(builder, load(builder, source, 0, vector(LINE, 1)), target, True)


@emitted
def join_runs(builder: Any, target: Word, source: Word, pitch: Word, wide: Word, width: Literal) -> None:
    """A line streamed to ``target``: pairs of runs of ``width`` bytes, ``pitch`` apart, ``wide`` apart."""
    parts = []
    for _ in range(LINE // (2 * width)):
        parts += [load(builder, at, 0, vector(width, 1)) for at in (source, builder.add(source, pitch))]
        source = builder.add(source, wide)
    while len(parts) > 1:
        both = list(range(2 * parts[0].type.count))
        parts = [shuffle(builder, a, b, both) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    _store(builder, parts[0], target, True)


@emitted
def copy_element(builder: Any, target: Word, source: Word, unit: Element) -> None:
    """One element from address ``source`` to address ``target``."""
    kind = ir.IntType(8 * unit)
    builder.store(load(builder, source, 0, kind), at(builder, target, 0, kind), align=1)


@emitted
def store_element(builder: Any, target: Word, value: Word, unit: Element) -> None:
    """The low bytes of ``value`` as one element at address ``target``."""
    kind = ir.IntType(8 * unit)
    narrow = value if kind.width == 64 else builder.trunc(value, kind)
    builder.store(narrow, at(builder, target, 0, kind), align=1)


@emitted
def zip_vectors(
    builder: Any, target: Word, source: Word, pitch: Word, unit: Element, rows: Literal, streaming: Literal
) -> None:
    """One line from each of ``rows`` rows, ``pitch`` bytes apart, interleaved element by element into ``target``."""
    loaded = []
    for _ in range(rows):
        loaded.append(load(builder, source, 0, vector(LINE // unit, unit)))
        source = builder.add(source, pitch)
    _store(builder, _interleave(builder, loaded, unit), target, streaming)


@emitted
def unzip_vectors(
    builder: Any, target: Word, pitch: Word, source: Word, unit: Element, rows: Literal, streaming: Literal
) -> None:
    """``rows`` interleaved lines at ``source`` taken apart into one line of each row, ``pitch`` bytes apart."""
    whole = load(builder, source, 0, vector(rows * LINE // unit, unit))
    for part in _part(builder, whole, rows, unit):
        _store(builder, part, target, streaming)
        target = builder.add(target, pitch)


@emitted
def element_size(builder: Any, unit: Element) -> Word:
    """Bytes of an element, inside a kernel."""
    return ir.Constant(I64, unit)


@emitted
def fence(builder: Any) -> None:
    """Streaming stores before it are seen by every thread after it."""
    builder.fence("seq_cst")


@emitted
def fetch_and_add(builder: Any, address: Word, more: Literal) -> Word:
    """The int64 at ``address``, which other threads use too, before ``more`` is added to it."""
    return builder.atomic_rmw("add", at(builder, address, 0, I64), ir.Constant(I64, int(more)), "seq_cst")


@emitted
def wait_a_moment(builder: Any) -> None:
    """What a loop does that waits for another thread: some tens of cycles of nothing, on processors that know how."""
    if str(builder.module.triple).startswith(("x86_64", "i386")):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", [], kind), [])


@emitted
def call_address(builder: Any, address: Word, a: Word, b: Word, c: Word, d: Word, e: Word, f: Word) -> None:
    """Call the function at ``address``, which takes six int64s and gives nothing."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * 6)
    builder.call(builder.inttoptr(address, ir.PointerType(kind)), [a, b, c, d, e, f])


@inner(boundscheck=False)
def fetch_line(place: int, starts: int, runs: int, length: int, run: int, at: int) -> tuple[int, int]:
    """Fetch into the second cache the line ``at`` bytes into a run, and say which one comes next: (run, at).

    The ``runs`` of ``length`` bytes begin behind ``place`` where the table at ``starts`` says; nothing is fetched
    behind the last one.
    """
    if run < runs:
        prefetch_line(place + load_word(starts, run) + at, 2)
        at += LINE
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
def _copy_runs(t: int, s: int, repeat: Any, count: int, stream: int) -> None:
    """Copy runs of any length; streamed ones in whole lines, whatever the addresses, and a piece at either end."""
    table, entries, n, ns, nt = repeat
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            head = -a % LINE if stream else count
            head = head if head < count else count
            end = count - (count - head) % LINE
            copy_bytes(a, b, head)
            for q in range(head, end, LINE):
                prefetch_line(b + q + _FAR_AHEAD, 1)
                stream_line(a + q, b + q)
            copy_bytes(a + end, b + end, count - end)
            a, b = a + nt, b + ns


@inner(**_inner)
def _copy_lines(t: int, s: int, repeat: Any, count: int, stream: int) -> None:
    """Copy runs of ``count`` bytes, whole cache lines, from address ``s`` to ``t``; ``stream``: past the caches.

    ``repeat``: the address of a table of byte offsets (source, target), its entries, then how many runs follow each
    and the bytes from one to the next in the source and in the target.
    """
    table, entries, n, ns, nt = repeat
    for e in range(entries):
        a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
        for _ in range(n):
            if stream:
                for q in range(0, count, LINE):
                    prefetch_line(b + q + _AHEAD, 1)
                    stream_line(a + q, b + q)
            else:
                for q in range(0, count, LINE):
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
        begin = -(t % LINE)
        if fresh:
            begin = -t % LINE if -t % LINE < width else width
        end = width - (t + width) % LINE
        end = end if end > begin else begin
        if fresh:
            copy_bytes(t, s, begin)
        for q in range(begin, end, LINE):
            stream_line(t + q, s + q)
            if runs == 1:
                if j < length:
                    prefetch_line(following + j, 1)
                    j += LINE
            else:
                i, j = fetch_line(following, starts, runs, length, i, j)
        if final:
            copy_bytes(t + end, s + end, width - end)
        else:
            copy_vector(s - LINE, s + width - LINE, 64)


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
    part = fetch_and_add(taken, 1)
    while part < parts:
        coming = fetch_and_add(taken, 1) if part < early else parts  # so that what it begins with is fetched meanwhile
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
                final = ends or (fresh and width < 2 * LINE)  # so short a row may hold no whole line to leave behind
                into = scratch if staged else t
                if kind == LINES:
                    _copy_lines(into, s, repeat, count, stream)
                elif kind == RUN:
                    _copy_runs(into, s, repeat, count, stream)
                else:
                    call_address(load_word(work, CALL), into, s, work, table, next_[0], lines)
                if staged:
                    _leave(t, scratch, block, width, fresh, final, next_)
                fresh = final
        pads, gaps = load_word(header, 8), load_word(header, 9)
        for k in range(part * gaps // parts, (part + 1) * gaps // parts):
            _fill(target + load_word(pads, 2 * k), load_word(pads, 2 * k + 1), value)
        fence()
        fetch_and_add(done, 1)
        part = coming if coming < parts else fetch_and_add(taken, 1)
    for _ in range(_PATIENCE):
        if fetch_and_add(done, 0) >= parts:
            break
        wait_a_moment()
    return bool(fetch_and_add(done, 0) >= parts)


# Primitives that few plans need: short runs, rows of elements interleaved and taken apart again, transposition.

_BLOCK = 16  # elements a side of the blocks in which a plain transposition goes
_SIGNATURE = "void(int64, int64, int64, int64, int64, int64)"
Primitive = Callable[[int, int, int, int, int, int], None]


def _zips(unit: Any, rows: int) -> Primitive:
    def zips(t: int, s: int, work: int, table: int, following: int, starts: int) -> None:
        """Interleave rows of at least 64 bytes; the last vectors overlap their neighbours.

        Streamed ones fetch a line of the next entry for every line they read.
        """
        entries, n, stream = load_word(work, INNER + 1), load_word(work, REPEAT), load_word(work, STREAM)
        ns, nt = load_word(work, REPEAT + 1), load_word(work, REPEAT + 2)
        count, pitch = load_word(work, CORE) * element_size(unit), load_word(work, CORE + 4)
        runs, length = load_word(work, RUNS + 1), load_word(work, LENGTH)
        last = count - LINE
        i = j = 0
        for e in range(entries):
            a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
            for _ in range(n):
                if stream:
                    for q in range(0, count, LINE):
                        zip_vectors(a + rows * q, b + q, pitch, unit, rows, True)
                        for _ in range(rows):
                            i, j = fetch_line(following, starts, runs, length, i, j)
                else:
                    for q in range(0, count, LINE):
                        at = q if q < last else last
                        zip_vectors(a + rows * at, b + at, pitch, unit, rows, False)
                a, b = a + nt, b + ns

    return zips


def _unzips(unit: Any, rows: int) -> Primitive:
    def unzips(t: int, s: int, work: int, table: int, following: int, starts: int) -> None:
        """Take interleaved rows of at least 64 bytes apart."""
        entries, n, stream = load_word(work, INNER + 1), load_word(work, REPEAT), load_word(work, STREAM)
        ns, nt = load_word(work, REPEAT + 1), load_word(work, REPEAT + 2)
        count, pitch = load_word(work, CORE) * element_size(unit), load_word(work, CORE + 5)
        last = count - LINE
        for e in range(entries):
            a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
            for _ in range(n):
                if stream:
                    for q in range(0, count, LINE):
                        unzip_vectors(a + q, pitch, b + rows * q, unit, rows, True)
                else:
                    for q in range(0, count, LINE):
                        at = q if q < last else last
                        unzip_vectors(a + at, pitch, b + rows * at, unit, rows, False)
                a, b = a + nt, b + ns

    return unzips


def _shorts(width: int) -> Primitive:
    def shorts(t: int, s: int, work: int, table: int, following: int, starts: int) -> None:
        """Copy runs of 16 or 32 bytes."""
        entries, n = load_word(work, INNER + 1), load_word(work, REPEAT)
        ns, nt = load_word(work, REPEAT + 1), load_word(work, REPEAT + 2)
        for e in range(entries):
            a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
            for k in range(n):
                copy_vector(a + k * nt, b + k * ns, width)

    return shorts


def _joins(width: int) -> Primitive:
    def joins(t: int, s: int, work: int, table: int, following: int, starts: int) -> None:
        """Lines made of runs of 16 or 32 bytes, streamed; for each one a line of the next entry is fetched."""
        entries, n, step = load_word(work, INNER + 1), load_word(work, REPEAT), load_word(work, REPEAT + 1)
        pitch, wide = load_word(work, CORE + 4), load_word(work, CORE + 5)
        runs, length = load_word(work, RUNS + 1), load_word(work, LENGTH)
        i = j = 0
        for e in range(entries):
            a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
            for k in range(n):
                join_runs(a + k * LINE, b + k * step, pitch, wide, width)
                i, j = fetch_line(following, starts, runs, length, i, j)

    return joins


def _transposes(unit: Any) -> Primitive:
    def transposes(t: int, s: int, work: int, table: int, following: int, starts: int) -> None:
        """Any two loops, in blocks whose lines stay in the nearest cache."""
        entries, n = load_word(work, INNER + 1), load_word(work, REPEAT)
        ns, nt = load_word(work, REPEAT + 1), load_word(work, REPEAT + 2)
        count, ls, lt = load_word(work, CORE), load_word(work, CORE + 1), load_word(work, CORE + 2)
        rows, ps, pt = load_word(work, CORE + 3), load_word(work, CORE + 4), load_word(work, CORE + 5)
        for e in range(entries):
            a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
            for _ in range(n):
                for p0 in range(0, rows, _BLOCK):
                    p1 = p0 + _BLOCK if p0 + _BLOCK < rows else rows
                    for l0 in range(0, count, _BLOCK):
                        l1 = l0 + _BLOCK if l0 + _BLOCK < count else count
                        for p in range(p0, p1):
                            for q in range(l0, l1):
                                copy_element(a + p * pt + q * lt, b + p * ps + q * ls, unit)
                a, b = a + nt, b + ns

    return transposes


_MADE: dict[int, Callable[..., Primitive]] = {
    SHORTS: _shorts,
    JOIN: _joins,
    TRANSPOSE: _transposes,
    ZIP: _zips,
    UNZIP: _unzips,
}


_making = threading.Lock()


@cache
def _primitive(kind: int, size: int, rows: int) -> Callback:
    variant = f"{size}x{rows}" if rows else str(size)
    if kind in (SHORTS, JOIN):
        return cfunc(_SIGNATURE, variant)(_MADE[kind](size))
    unit = np.dtype(f"u{size}").type(0)
    return cfunc(_SIGNATURE, variant)(_MADE[kind](unit, rows) if rows else _MADE[kind](unit))


def address_of_primitive(kind: int, size: int, rows: int = 0) -> int:
    """Where the compiled primitive begins; 0 for what the kernel does itself.

    ``size`` is the bytes of an element, or of a short run; ``rows`` are those that are interleaved.
    """
    if kind in (RUN, LINES):
        return 0
    with _making:  # threads that ask at once are given one
        primitive = _primitive(kind, size, rows if kind in (ZIP, UNZIP) else 0)
    return primitive.address

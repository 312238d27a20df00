"""Primitives that few plans need: short runs, and, for each width of elements, rows interleaved and taken apart again,
and transposition.

The kernel that moves boxes calls them by their address (each is compiled when a plan first needs it): ``t`` and ``s``
are the entry's places, ``work`` is the address of its work's numbers, ``table`` of its inner places; ``following`` is
the next entry's place and ``starts`` the table of its runs, which are fetched meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewright.kernels import Callback, cfunc
from tilewright.kernels.vectors import copy_vector, load_word
from tilewright.layout.move.move_kernels import fetch_line
from tilewright.layout.move.vector_kernels import copy_element, element_size, join_runs, unzip_vectors, zip_vectors
from tilewright.layout.move.words import (
    CORE,
    INNER,
    JOIN,
    LENGTH,
    LINES,
    REPEAT,
    RUN,
    RUNS,
    SHORTS,
    STREAM,
    TRANSPOSE,
    UNZIP,
    ZIP,
)

_LINE = 64
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
        last = count - _LINE
        i = j = 0
        for e in range(entries):
            a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
            for _ in range(n):
                if stream:
                    for q in range(0, count, _LINE):
                        zip_vectors(a + rows * q, b + q, pitch, unit, rows, True)
                        for _ in range(rows):
                            i, j = fetch_line(following, starts, runs, length, i, j)
                else:
                    for q in range(0, count, _LINE):
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
        last = count - _LINE
        for e in range(entries):
            a, b = t + load_word(table, 2 * e + 1), s + load_word(table, 2 * e)
            for _ in range(n):
                if stream:
                    for q in range(0, count, _LINE):
                        unzip_vectors(a + q, pitch, b + rows * q, unit, rows, True)
                else:
                    for q in range(0, count, _LINE):
                        at = q if q < last else last
                        unzip_vectors(a + at, pitch, b + rows * at, unit, rows, False)
                a, b = a + nt, b + ns

    return unzips


def _shorts(width: int) -> Primitive:
    def shorts(t: int, s: int, work: int, table: int, following: int, starts: int) -> None:
        """Runs of 16 or 32 bytes."""
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
                join_runs(a + k * _LINE, b + k * step, pitch, wide, width)
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

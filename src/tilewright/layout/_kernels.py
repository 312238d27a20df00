"""numba kernels that move boxes; imported only when data is moved.

A box is a primitive at many places: the outer loops stand in tables of places, the inner ones in one row of numbers
(see :class:`tilewright.layout._plan.Work`). Everything is addressed in bytes; ``unit`` is an integer whose type is as
wide as an element, so there are four kernels of each kind in all. Inner functions take numbers, not arrays: numba
counts references to an array on every call, atomically.
"""

from __future__ import annotations

from typing import Any

import numba as nb

from tilewright.layout._plan import LINES, RUN, SHORTS, UNZIP, ZIP
from tilewright.layout._vectors import (
    copy_element,
    copy_vector,
    element_size,
    fence,
    prefetch_line,
    store_element,
    unzip_vectors,
    zip_vectors,
)

__all__ = ["fill_runs", "move"]

_options: Any = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "no_cfunc_wrapper": True}
_inner: Any = {**_options, "no_cpython_wrapper": True}  # called by kernels alone: half the compile time
_LINE = 64
_BLOCK = 16  # elements a side of the blocks in which a plain transposition goes


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
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


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def stream_bytes(target: int, source: int, count: int) -> None:
    """``count`` bytes past the caches, whatever the addresses; partial lines at the ends go the ordinary way."""
    head = min(-target % _LINE, count)
    copy_bytes(target, source, head)
    body = (count - head) // _LINE * _LINE
    for q in range(head, head + body, _LINE):
        copy_vector(target + q, source + q, 64, True)
    copy_bytes(target + head + body, source + head + body, count - head - body)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _runs(t: int, s: int, n: int, ns: int, nt: int, count: int, stream: int) -> None:
    """Runs of any length."""
    for j in range(n):
        if stream:
            stream_bytes(t + j * nt, s + j * ns, count)
        else:
            copy_bytes(t + j * nt, s + j * ns, count)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _lines(t: int, s: int, n: int, ns: int, nt: int, count: int, stream: int) -> None:
    """Runs of whole lines."""
    for j in range(n):
        a, b = t + j * nt, s + j * ns
        if stream:
            for q in range(0, count, _LINE):
                copy_vector(a + q, b + q, 64, True)
        else:
            for q in range(0, count, _LINE):
                copy_vector(a + q, b + q, 64, False)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _shorts(t: int, s: int, n: int, ns: int, nt: int, count: int) -> None:
    """Runs of 16 or 32 bytes."""
    if count == 32:
        for j in range(n):
            copy_vector(t + j * nt, s + j * ns, 32, False)
    else:
        for j in range(n):
            copy_vector(t + j * nt, s + j * ns, 16, False)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _zips(t: int, s: int, n: int, ns: int, nt: int, count: int, rows: int, pitch: int, stream: int, unit: Any) -> None:
    """Interleave ``rows`` rows of ``count`` >= 64 bytes; the last vectors overlap their neighbours."""
    last = count - _LINE
    for j in range(n):
        a, b = t + j * nt, s + j * ns
        if rows == 2 and stream:
            for q in range(0, count, _LINE):
                zip_vectors(a + 2 * q, b + q, pitch, unit, 2, True)
        elif rows == 2:
            for q in range(0, count, _LINE):
                zip_vectors(a + 2 * min(q, last), b + min(q, last), pitch, unit, 2, False)
        elif rows == 4 and stream:
            for q in range(0, count, _LINE):
                zip_vectors(a + 4 * q, b + q, pitch, unit, 4, True)
        elif rows == 4:
            for q in range(0, count, _LINE):
                zip_vectors(a + 4 * min(q, last), b + min(q, last), pitch, unit, 4, False)
        else:
            for q in range(0, count, _LINE):
                zip_vectors(a + 8 * min(q, last), b + min(q, last), pitch, unit, 8, False)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _unzips(
    t: int, s: int, n: int, ns: int, nt: int, count: int, rows: int, pitch: int, stream: int, unit: Any
) -> None:
    """Take ``rows`` interleaved rows of ``count`` >= 64 bytes apart."""
    last = count - _LINE
    for j in range(n):
        a, b = t + j * nt, s + j * ns
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


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _transposes(t: int, s: int, n: int, ns: int, nt: int, core: Any, unit: Any) -> None:
    """Any two loops, in blocks whose lines stay in the nearest cache."""
    count, ls, lt, rows, ps, pt = core
    for j in range(n):
        a, b = t + j * nt, s + j * ns
        for p0 in range(0, rows, _BLOCK):
            for l0 in range(0, count, _BLOCK):
                for p in range(p0, min(p0 + _BLOCK, rows)):
                    for q in range(l0, min(l0 + _BLOCK, count)):
                        copy_element(a + p * pt + q * lt, b + p * ps + q * ls, unit)


@nb.njit(**_options)  # type: ignore[untyped-decorator]
def move(
    target: int,
    source: int,
    works: Any,
    inner: Any,
    outs: Any,
    places: Any,
    starts: Any,
    part: int,
    scratch: int,
    unit: Any,
) -> None:
    """Part ``part`` of a move: of every work w, the entries starts[w, part] to starts[w, part + 1].

    An entry runs the primitive at all its inner places, straight into the target; or, where the work has rows
    (``outs``), into ``scratch``, from where the rows are streamed to the target.
    """
    for w in range(len(works)):
        kind, stream, n, ns, nt = works[w, 0], works[w, 1], works[w, 2], works[w, 3], works[w, 4]
        core = works[w, 5], works[w, 6], works[w, 7], works[w, 8], works[w, 9], works[w, 10]
        inner0, inner1, outs0, outs1, width = works[w, 11], works[w, 12], works[w, 13], works[w, 14], works[w, 15]
        size = core[0] * element_size(unit)
        for k in range(starts[w, part], starts[w, part + 1]):
            for i in range(outs0, outs1):  # partial lines are read before they are written: ask for them early
                prefetch_line(target + places[1, k] + outs[0, i])
                prefetch_line(target + places[1, k] + outs[0, i] + width - 1)
            into = scratch if outs1 > outs0 else target + places[1, k]
            for i in range(inner0, inner1):
                t, s = into + inner[1, i], source + places[0, k] + inner[0, i]
                if kind == LINES:
                    _lines(t, s, n, ns, nt, core[0], stream)
                elif kind == SHORTS:
                    _shorts(t, s, n, ns, nt, core[0])
                elif kind == ZIP:
                    _zips(t, s, n, ns, nt, size, core[3], core[4], stream, unit)
                elif kind == UNZIP:
                    _unzips(t, s, n, ns, nt, size, core[3], core[5], stream, unit)
                elif kind == RUN:
                    _runs(t, s, n, ns, nt, core[0], stream)
                else:
                    _transposes(t, s, n, ns, nt, core, unit)
            for i in range(outs0, outs1):
                stream_bytes(target + places[1, k] + outs[0, i], scratch + outs[1, i], width)
    fence()


@nb.njit(**_options)  # type: ignore[untyped-decorator]
def fill_runs(target: int, starts: Any, lengths: Any, value: int, unit: Any) -> None:
    """Runs of ``lengths`` bytes of elements ``value``."""
    for k in range(len(starts)):
        for q in range(starts[k], starts[k] + lengths[k], element_size(unit)):
            store_element(target + q, value, unit)

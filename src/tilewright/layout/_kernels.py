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
def _runs(t: int, s: int, repeats: Any, count: int, long: int) -> None:
    """Runs of any length; ``long`` ones are streamed."""
    m, ms, mt, n, ns, nt = repeats
    for i in range(m):
        for j in range(n):
            if long:
                stream_bytes(t + i * mt + j * nt, s + i * ms + j * ns, count)
            else:
                copy_bytes(t + i * mt + j * nt, s + i * ms + j * ns, count)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _lines(t: int, s: int, repeats: Any, count: int, stream: int) -> None:
    """Runs of whole lines."""
    m, ms, mt, n, ns, nt = repeats
    for i in range(m):
        for j in range(n):
            a, b = t + i * mt + j * nt, s + i * ms + j * ns
            if stream:
                for q in range(0, count, _LINE):
                    copy_vector(a + q, b + q, 64, True)
            else:
                for q in range(0, count, _LINE):
                    copy_vector(a + q, b + q, 64, False)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _shorts(t: int, s: int, repeats: Any, count: int, stream: int) -> None:
    """Runs of 16 or 32 bytes."""
    m, ms, mt, n, ns, nt = repeats
    for i in range(m):
        a, b = t + i * mt, s + i * ms
        if count == 32 and stream:
            for j in range(n):
                copy_vector(a + j * nt, b + j * ns, 32, True)
        elif count == 32:
            for j in range(n):
                copy_vector(a + j * nt, b + j * ns, 32, False)
        elif stream:
            for j in range(n):
                copy_vector(a + j * nt, b + j * ns, 16, True)
        else:
            for j in range(n):
                copy_vector(a + j * nt, b + j * ns, 16, False)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _zips(t: int, s: int, repeats: Any, count: int, rows: int, pitch: int, stream: int, unit: Any) -> None:
    """Interleave ``rows`` rows of ``count`` >= 64 bytes; the last vectors overlap their neighbours."""
    m, ms, mt, n, ns, nt = repeats
    last = count - _LINE
    for i in range(m):
        for j in range(n):
            a, b = t + i * mt + j * nt, s + i * ms + j * ns
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
def _unzips(t: int, s: int, repeats: Any, count: int, rows: int, pitch: int, stream: int, unit: Any) -> None:
    """Take ``rows`` interleaved rows of ``count`` >= 64 bytes apart."""
    m, ms, mt, n, ns, nt = repeats
    last = count - _LINE
    for i in range(m):
        for j in range(n):
            a, b = t + i * mt + j * nt, s + i * ms + j * ns
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
def _transposes(t: int, s: int, repeats: Any, core: Any, unit: Any) -> None:
    """Any two loops, in blocks whose lines stay in the nearest cache."""
    m, ms, mt, n, ns, nt = repeats
    count, ls, lt, rows, ps, pt = core
    for i in range(m):
        for j in range(n):
            a, b = t + i * mt + j * nt, s + i * ms + j * ns
            for p0 in range(0, rows, _BLOCK):
                for l0 in range(0, count, _BLOCK):
                    for p in range(p0, min(p0 + _BLOCK, rows)):
                        for q in range(l0, min(l0 + _BLOCK, count)):
                            copy_element(a + p * pt + q * lt, b + p * ps + q * ls, unit)


@nb.njit(**_options)  # type: ignore[untyped-decorator]
def move(
    target: int,
    source: int,
    rows: Any,
    sources: Any,
    targets: Any,
    starts: Any,
    first: int,
    last: int,
    span: int,
    total: int,
    scratch: int,
    unit: Any,
) -> None:
    """Parts ``first`` to ``last`` of a move; part c works the places starts[b, c] to starts[b, c + 1] of every row b.

    With ``span`` > 0, part c is made in ``scratch`` and streamed to the target's bytes c * span on.
    """
    for part in range(first, last):
        base = scratch - part * span if span else target
        for b in range(len(rows)):
            kind, stream = rows[b, 0], rows[b, 1]
            repeats = rows[b, 2], rows[b, 3], rows[b, 4], rows[b, 5], rows[b, 6], rows[b, 7]
            core = rows[b, 8], rows[b, 9], rows[b, 10], rows[b, 11], rows[b, 12], rows[b, 13]
            size = core[0] * element_size(unit)
            for k in range(starts[b, part], starts[b, part + 1]):
                t, s = base + targets[k], source + sources[k]
                if kind == LINES:
                    _lines(t, s, repeats, core[0], stream)
                elif kind == SHORTS:
                    _shorts(t, s, repeats, core[0], stream)
                elif kind == ZIP:
                    _zips(t, s, repeats, size, core[3], core[4], stream, unit)
                elif kind == UNZIP:
                    _unzips(t, s, repeats, size, core[3], core[5], stream, unit)
                elif kind == RUN:
                    _runs(t, s, repeats, core[0], stream)
                else:
                    _transposes(t, s, repeats, core, unit)
        if span:
            stream_bytes(target + part * span, scratch, min(span, total - part * span))
    fence()


@nb.njit(**_options)  # type: ignore[untyped-decorator]
def fill_runs(target: int, starts: Any, lengths: Any, value: int, unit: Any) -> None:
    """Runs of ``lengths`` bytes of elements ``value``."""
    for k in range(len(starts)):
        for q in range(starts[k], starts[k] + lengths[k], element_size(unit)):
            store_element(target + q, value, unit)

"""numba kernels that move boxes; imported only when data is moved.

A box is a primitive at many places: the outer loops stand in tables of places, the inner ones in one row of numbers
(see :class:`tilewright.layout._plan.Work`). Everything is addressed in bytes; ``unit`` is an integer whose type is as
wide as an element, so there are four kernels of each kind in all. Inner functions take numbers, not arrays: numba
counts references to an array on every call, atomically.
"""

from __future__ import annotations

from typing import Any

import numba as nb

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
_RUN, _ZIP, _UNZIP = 0, 1, 2


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
def _run(target: int, source: int, count: int, stream: int) -> None:
    if stream == 0:
        copy_bytes(target, source, count)
    elif count == 16:
        copy_vector(target, source, 16, True)
    elif count == 32:
        copy_vector(target, source, 32, True)
    else:
        stream_bytes(target, source, count)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _transpose(target: int, source: int, l: int, ls: int, lt: int, p: int, ps: int, pt: int, unit: Any) -> None:
    """Any two loops, in blocks whose lines stay in the nearest cache."""
    for p0 in range(0, p, _BLOCK):
        for l0 in range(0, l, _BLOCK):
            for k in range(p0, min(p0 + _BLOCK, p)):
                t, s = target + k * pt, source + k * ps
                for j in range(l0, min(l0 + _BLOCK, l)):
                    copy_element(t + j * lt, s + j * ls, unit)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _zip(target: int, source: int, count: int, rows: int, pitch: int, stream: int, unit: Any) -> None:
    """Interleave ``rows`` rows of ``count`` >= 64 bytes; the last vectors overlap their neighbours."""
    for step in range(0, count, _LINE):
        q = min(step, count - _LINE)
        if rows == 2:
            if stream:
                zip_vectors(target + 2 * q, source + q, pitch, unit, 2, True)
            else:
                zip_vectors(target + 2 * q, source + q, pitch, unit, 2, False)
        elif rows == 4:
            if stream:
                zip_vectors(target + 4 * q, source + q, pitch, unit, 4, True)
            else:
                zip_vectors(target + 4 * q, source + q, pitch, unit, 4, False)
        else:
            zip_vectors(target + 8 * q, source + q, pitch, unit, 8, False)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _unzip(target: int, source: int, count: int, rows: int, pitch: int, stream: int, unit: Any) -> None:
    """Take ``rows`` interleaved rows of ``count`` >= 64 bytes apart."""
    for step in range(0, count, _LINE):
        q = min(step, count - _LINE)
        if rows == 2:
            if stream:
                unzip_vectors(target + q, pitch, source + 2 * q, unit, 2, True)
            else:
                unzip_vectors(target + q, pitch, source + 2 * q, unit, 2, False)
        elif rows == 4:
            if stream:
                unzip_vectors(target + q, pitch, source + 4 * q, unit, 4, True)
            else:
                unzip_vectors(target + q, pitch, source + 4 * q, unit, 4, False)
        else:
            unzip_vectors(target + q, pitch, source + 8 * q, unit, 8, False)


@nb.njit(**_inner)  # type: ignore[untyped-decorator]
def _once(kind: int, stream: int, t: int, s: int, core: Any, unit: Any) -> None:
    """One primitive."""
    count, ls, lt, p, ps, pt = core
    if kind == _RUN:
        _run(t, s, count, stream)
    elif kind == _ZIP and count * element_size(unit) >= _LINE:
        _zip(t, s, count * element_size(unit), p, ps, stream, unit)
    elif kind == _UNZIP and count * element_size(unit) >= _LINE:
        _unzip(t, s, count * element_size(unit), p, pt, stream, unit)
    else:
        _transpose(t, s, count, ls, lt, p, ps, pt, unit)


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
            m, ms, mt, n, ns, nt = rows[b, 2], rows[b, 3], rows[b, 4], rows[b, 5], rows[b, 6], rows[b, 7]
            core = rows[b, 8], rows[b, 9], rows[b, 10], rows[b, 11], rows[b, 12], rows[b, 13]
            for k in range(starts[b, part], starts[b, part + 1]):
                for i in range(m):
                    t, s = base + targets[k] + i * mt, source + sources[k] + i * ms
                    for _ in range(n):
                        _once(kind, stream, t, s, core, unit)
                        t, s = t + nt, s + ns
        if span:
            stream_bytes(target + part * span, scratch, min(span, total - part * span))
    fence()


@nb.njit(**_options)  # type: ignore[untyped-decorator]
def fill_runs(target: int, starts: Any, lengths: Any, value: int, unit: Any) -> None:
    """Runs of ``lengths`` bytes of elements ``value``."""
    for k in range(len(starts)):
        for q in range(starts[k], starts[k] + lengths[k], element_size(unit)):
            store_element(target + q, value, unit)

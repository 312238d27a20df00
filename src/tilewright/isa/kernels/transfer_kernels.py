"""numba kernel: what every thread loads or stores, in one call. Imported on first use.

Every page must have its entry: who calls has looked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.blocks import (
    T_AT,
    T_DIM,
    T_DIMS,
    T_DIRTY,
    T_ELEMENTS,
    T_LINES,
    T_OFFSETS_OF,
    T_PAGES_OF,
    T_PHYS,
    T_PITCH,
    T_REGISTERS,
    T_SHIFT,
    T_SIZE,
    T_SIZES,
    T_STARTS,
    T_STORE,
    T_STORING,
    T_STRIDE,
    T_THREADS,
    T_WANTED,
)
from tilewright.isa.kernels.cells import byte, cell, copy, put, put_byte, put_word, word
from tilewright.kernels import inner, njit


@inner(forceinline=True)
def copy_run(target: Any, source: Any, length: Any) -> None:
    """``length`` bytes from one address to another, eight at a time where that is all there is."""
    if length == 8:
        copy(target, source)
    elif (target | source | length) & 3 == 0:
        for i in range(length >> 2):
            put_word(target, i, word(source, i))
    else:
        for i in range(length):
            put_byte(target, i, byte(source, i))


@inner()
def _elements(t: Any, thread: Any, page: Any, offset: Any, x: Any) -> None:
    """One thread's elements one by one."""
    starts, pages_of, offsets_of = cell(t, T_STARTS), cell(t, T_PAGES_OF), cell(t, T_OFFSETS_OF)
    dim, e, shift, stride = cell(t, T_DIM), cell(t, T_SIZE), cell(t, T_SHIFT), cell(t, T_STRIDE)
    storing = cell(t, T_STORING)
    size, head = cell(cell(t, T_SIZES), dim), cell(starts, dim)
    own, last = cell(t, T_REGISTERS) + thread * cell(t, T_PITCH), np.int64(-1)
    elements, lines = cell(t, T_ELEMENTS), cell(t, T_LINES)
    for u in range(cell(cell(t, T_WANTED), thread)):
        y = x + u * stride
        if y < 0 or y >= size:
            continue
        p = page + cell(pages_of, head + y)
        begin = cell(cell(t, T_PHYS), p) + (offset + cell(offsets_of, head + y)) * e
        lines += begin >> shift != last
        last = begin >> shift
        elements += 1
        there = cell(t, T_STORE) + begin
        if storing:
            copy_run(there, own + u * e, e)
            put_byte(cell(t, T_DIRTY), p, 1)
        else:
            copy_run(own + u * e, there, e)
    put(t, T_ELEMENTS, elements)
    put(t, T_LINES, lines)


@inner()
def move(t: Any) -> None:
    """:func:`transfer`, of the block at address ``t``."""
    dims, at, wanted_of, dim = cell(t, T_DIMS), cell(t, T_AT), cell(t, T_WANTED), cell(t, T_DIM)
    sizes, starts = cell(t, T_SIZES), cell(t, T_STARTS)
    pages_of, offsets_of = cell(t, T_PAGES_OF), cell(t, T_OFFSETS_OF)
    e, shift, stride, storing = cell(t, T_SIZE), cell(t, T_SHIFT), cell(t, T_STRIDE), cell(t, T_STORING)
    size = cell(sizes, dim)
    put(t, T_ELEMENTS, 0)
    put(t, T_LINES, 0)
    for thread in range(cell(t, T_THREADS)):
        wanted = cell(wanted_of, thread)
        if wanted <= 0:
            continue
        page, offset, inside, x = np.int64(0), np.int64(0), True, cell(at, thread * dims + dim)
        for d in range(dims):
            y = cell(at, thread * dims + d)
            if d == dim:
                continue
            if y < 0 or y >= cell(sizes, d):
                inside = False
                break
            place = cell(starts, d) + y
            page += cell(pages_of, place)
            offset += cell(offsets_of, place)
        if not inside:
            continue
        if stride == 1 and x >= 0 and x < size:
            count = min(wanted, size - x)
            head = cell(starts, dim) + x
            tail = head + count - 1
            p, there = page + cell(pages_of, head), cell(offsets_of, head)
            if cell(pages_of, tail) == p - page and cell(offsets_of, tail) - there == count - 1:
                begin, length = cell(cell(t, T_PHYS), p) + (offset + there) * e, count * e
                put(t, T_LINES, cell(t, T_LINES) + ((begin + length - 1) >> shift) - (begin >> shift) + 1)
                put(t, T_ELEMENTS, cell(t, T_ELEMENTS) + count)
                own, stored = cell(t, T_REGISTERS) + thread * cell(t, T_PITCH), cell(t, T_STORE) + begin
                if storing:
                    copy_run(stored, own, length)
                    put_byte(cell(t, T_DIRTY), p, 1)
                else:
                    copy_run(own, stored, length)
                continue
        _elements(t, np.int64(thread), page, offset, x)


@njit(cache=True, nogil=True)
def transfer(cells: Any) -> None:
    """Move ``wanted[t]`` elements of each thread t from (or to) coordinates ``at[t]``.

    ``cells``: see ``T_AT`` and its neighbours. Elements outside are left alone. A run of neighbours in one page goes at
    once.
    """
    move(np.int64(cells.ctypes.data))

"""numba kernel: what every thread loads or stores, in one call. Imported on first use.

Every page must have its entry: who calls has looked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.pointers import byte, cell, copy, put_byte, put_word, transfer_at, word
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
def _elements(access: Any, thread: Any, page: Any, offset: Any, x: Any) -> None:
    """One thread's elements one by one."""
    starts, pages_of, offsets_of = access.starts, access.pages_of, access.offsets_of
    dim, e, shift, stride = access.dim, access.element_bytes, access.line_shift, access.stride
    storing = access.storing
    size, head = cell(access.sizes, dim), cell(starts, dim)
    own, last = access.registers + thread * access.pitch, np.int64(-1)
    elements, lines = access.elements, access.lines
    for u in range(cell(access.counts, thread)):
        y = x + u * stride
        if y < 0 or y >= size:
            continue
        p = page + cell(pages_of, head + y)
        begin = cell(access.phys, p) + (offset + cell(offsets_of, head + y)) * e
        lines += begin >> shift != last
        last = begin >> shift
        elements += 1
        there = access.store + begin
        if storing:
            copy_run(there, own + u * e, e)
            put_byte(access.dirty, p, 1)
        else:
            copy_run(own + u * e, there, e)
    access.elements = elements
    access.lines = lines


@inner()
def move(access: Any) -> None:
    """:func:`transfer`, of a record."""
    dims, at, counts, dim = access.dims, access.coordinates, access.counts, access.dim
    sizes, starts = access.sizes, access.starts
    pages_of, offsets_of = access.pages_of, access.offsets_of
    e, shift, stride, storing = access.element_bytes, access.line_shift, access.stride, access.storing
    size = cell(sizes, dim)
    access.elements = access.lines = 0
    for thread in range(access.threads):
        most = cell(counts, thread)
        if most <= 0:
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
            count = min(most, size - x)
            head = cell(starts, dim) + x
            tail = head + count - 1
            p, there = page + cell(pages_of, head), cell(offsets_of, head)
            if cell(pages_of, tail) == p - page and cell(offsets_of, tail) - there == count - 1:
                begin, length = cell(access.phys, p) + (offset + there) * e, count * e
                access.lines += ((begin + length - 1) >> shift) - (begin >> shift) + 1
                access.elements += count
                own, stored = access.registers + thread * access.pitch, access.store + begin
                if storing:
                    copy_run(stored, own, length)
                    put_byte(access.dirty, p, 1)
                else:
                    copy_run(own, stored, length)
                continue
        _elements(access, np.int64(thread), page, offset, x)


@njit(cache=True, nogil=True)
def transfer(numbers: Any) -> None:
    """Move ``counts[t]`` elements of each thread t from (or to) ``coordinates[t]``.

    ``numbers``: a record TRANSFER. Elements outside are left alone. A run of neighbours in one page goes at once.
    """
    move(transfer_at(np.int64(numbers.ctypes.data)))

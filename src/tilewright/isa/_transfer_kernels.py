"""numba kernel: what every thread loads or stores, in one call. Imported on first use.

Every page must have its entry: who calls has looked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit

__all__ = ["copy_words", "transfer"]


@njit(cache=True, nogil=True, inline="always")
def copy_words(source: Any, begin: Any, into: Any, to: Any, count: Any) -> None:
    """Words one behind the other; two, as most instructions want, without the cost of beginning a loop."""
    b, t = np.uint64(begin), np.uint64(to)
    if count == 2:
        into[t], into[t + np.uint64(1)] = source[b], source[b + np.uint64(1)]
    else:
        for i in range(np.uint64(count)):
            into[t + i] = source[b + i]


@njit(cache=True, nogil=True)
def transfer(storing: bool, at: Any, wanted: Any, tables: Any, numbers: Any, file: Any, store: Any) -> Any:
    """Move ``wanted[t]`` elements of each thread t from (or to) coordinates ``at[t]``; (elements there, lines).

    ``tables``: (sizes, starts, what each coordinate adds to page and offset, physical byte of every page, pages stored
    to); ``numbers``: (dim walked along, stride, bytes of an element, log2 of the bytes of a line, first register);
    ``file``: the registers as (words per thread, bytes, bytes of a thread's, words); ``store``: (words, bytes).
    Elements outside are left alone. A run of neighbours in one page goes word by word.
    """
    sizes, starts, pages_of, offsets_of, phys, dirty = tables
    dim, stride, e, shift, first = numbers
    _, flat, pitch, registers = file
    words, raw = store
    elements, lines, size = 0, 0, sizes[dim]
    for t in range(at.shape[0]):
        if wanted[t] <= 0:
            continue
        page, offset, inside, x = 0, 0, True, at[t, dim]
        for d in range(at.shape[1]):
            if d == dim:
                continue
            if at[t, d] < 0 or at[t, d] >= sizes[d]:
                inside = False
                break
            page += pages_of[starts[d] + at[t, d]]
            offset += offsets_of[starts[d] + at[t, d]]
        if not inside:
            continue
        if stride == 1 and x >= 0 and x < size:
            count = min(wanted[t], size - x)
            head = starts[dim] + x
            tail = head + count - 1
            p = page + pages_of[head]
            if pages_of[tail] == pages_of[head] and offsets_of[tail] - offsets_of[head] == count - 1:
                begin, length = phys[p] + (offset + offsets_of[head]) * e, count * e
                lines += ((begin + length - 1) >> shift) - (begin >> shift) + 1
                elements += count
                if (begin | length) & 3:
                    own = t * pitch + 4 * first
                    for b in range(length):
                        if storing:
                            raw[begin + b] = flat[own + b]
                        else:
                            flat[own + b] = raw[begin + b]
                elif storing:
                    copy_words(registers, t * (pitch >> 2) + first, words, begin >> 2, length >> 2)
                else:
                    copy_words(words, begin >> 2, registers, t * (pitch >> 2) + first, length >> 2)
                if storing:
                    dirty[p] = True
                continue
        last = np.int64(-1)
        for u in range(wanted[t]):
            y = x + u * stride
            if y < 0 or y >= size:
                continue
            p = page + pages_of[starts[dim] + y]
            begin = phys[p] + (offset + offsets_of[starts[dim] + y]) * e
            lines += begin >> shift != last
            last = begin >> shift
            elements += 1
            own = t * pitch + 4 * first + u * e
            for b in range(e):
                if storing:
                    raw[begin + b] = flat[own + b]
                else:
                    flat[own + b] = raw[begin + b]
            if storing:
                dirty[p] = True
    return elements, lines

"""numba kernels: what one ``mm`` adds to the product registers. Imported on first use.

Roles come as ``groups`` = (rows, ka, kb, thread stride of a row, of qa, of qb), so that thread(row, qa, qb) is a sum.
B comes as b[ka, kb * Le, c], part by part, column i of a part at [..., i]; only columns low[qa] <= i < high[qa] count.
No fast-math: every multiply and every add rounds once, in the order written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.kernels import njit


@njit(cache=True, nogil=True)
def accumulate_int(registers: Any, first: int, a: Any, b: Any, low: Any, high: Any, groups: Any, writes: Any) -> None:
    """registers[thread, first + i] += sum over u of a * b, modulo 2^32; ``a``: int32[T, Le], absent B is 0."""
    rows, ka, kb, row_stride, a_stride, b_stride, keeper = groups
    chunk = a.shape[1]
    for r in range(rows):
        for qa in range(ka):
            thread = r * row_stride + qa * a_stride
            keep = thread + keeper * b_stride
            if not writes[keep]:
                continue
            sums = registers[keep, first + low[qa] : first + high[qa]]
            for qb in range(kb):
                x = a[thread + qb * b_stride]
                for u in range(0, chunk - 1, 2):
                    x0, x1 = x[u], x[u + 1]
                    b0 = b[qa, qb * chunk + u, low[qa] : high[qa]]
                    b1 = b[qa, qb * chunk + u + 1, low[qa] : high[qa]]
                    for i in range(len(sums)):
                        sums[i] = np.int32(sums[i] + np.int32(np.int32(x0 * b0[i]) + np.int32(x1 * b1[i])))
                if chunk % 2:
                    x0 = x[chunk - 1]
                    b0 = b[qa, qb * chunk + chunk - 1, low[qa] : high[qa]]
                    for i in range(len(sums)):
                        sums[i] = np.int32(sums[i] + np.int32(x0 * b0[i]))


@njit(cache=True, nogil=True)
def accumulate_float(
    registers: Any, first: int, a: Any, b: Any, low: Any, high: Any, groups: Any, writes: Any, present: int
) -> None:
    """The 'chunk' order in float32 where every column of ``low`` to ``high`` has the elements u < ``present``."""
    rows, ka, _, row_stride, a_stride, b_stride, keeper = groups
    chunk = a.shape[1]
    parts = (present + chunk - 1) // chunk
    dot = np.empty(b.shape[2], np.float32)
    part = np.empty(b.shape[2], np.float32)
    for r in range(rows):
        for qa in range(ka):
            thread = r * row_stride + qa * a_stride
            keep = thread + keeper * b_stride
            if not writes[keep]:
                continue
            n = high[qa] - low[qa]
            sums = registers[keep, first + low[qa] : first + high[qa]]
            for qb in range(parts):
                x = a[thread + qb * b_stride]
                count = min(chunk, present - qb * chunk)
                column = b[qa, qb * chunk : qb * chunk + count, low[qa] : high[qa]]
                d = dot if qb == 0 else part
                if count == 1:
                    for i in range(n):
                        d[i] = x[0] * column[0, i]
                else:
                    for i in range(n):
                        d[i] = x[0] * column[0, i] + x[1] * column[1, i]
                for u in range(2, count):
                    for i in range(n):
                        d[i] += x[u] * column[u, i]
                if qb:
                    for i in range(n):
                        dot[i] += part[i]
            for i in range(n):
                sums[i] += dot[i]


@njit(cache=True, nogil=True)
def accumulate_masked(
    registers: Any, first: int, a: Any, b: Any, low: Any, high: Any, groups: Any, writes: Any, there: Any
) -> None:
    """The 'chunk' order in float32, any pattern of absent elements; ``there``: bool like ``b``."""
    rows, ka, kb, row_stride, a_stride, b_stride, keeper = groups
    chunk = a.shape[1]
    for r in range(rows):
        for qa in range(ka):
            thread = r * row_stride + qa * a_stride
            keep = thread + keeper * b_stride
            if not writes[keep]:
                continue
            for i in range(low[qa], high[qa]):
                dot, some = np.float32(0), False
                for qb in range(kb):
                    d, began = np.float32(0), False
                    for u in range(chunk):
                        if there[qa, qb * chunk + u, i]:
                            product = a[thread + qb * b_stride, u] * b[qa, qb * chunk + u, i]
                            d = d + product if began else product
                            began = True
                    if began:
                        dot = dot + d if some else d
                        some = True
                if some:
                    registers[keep, first + i] += dot


@njit(cache=True, nogil=True)
def accumulate_exact(
    registers: Any,
    first: int,
    a: Any,
    b: Any,
    low: Any,
    high: Any,
    groups: Any,
    writes: Any,
    there: Any,
    fused: bool,
) -> None:
    """``fused``: every product straight into the register, one rounding each; else one float64 sum per instruction."""
    rows, ka, kb, row_stride, a_stride, b_stride, keeper = groups
    chunk = a.shape[1]
    word = np.empty(1, np.float64)
    bits = word.view(np.int64)
    for r in range(rows):
        for qa in range(ka):
            thread = r * row_stride + qa * a_stride
            keep = thread + keeper * b_stride
            if not writes[keep]:
                continue
            for i in range(low[qa], high[qa]):
                total, some = np.float64(0), False
                value = registers[keep, first + i]
                for v in range(kb * chunk):
                    if not there[qa, v, i]:
                        continue
                    x = np.float64(a[thread + v // chunk * b_stride, v % chunk]) * np.float64(b[qa, v, i])
                    if not fused:
                        total = total + x if some else x
                        some = True
                        continue
                    # The product is exact in float64; its sum rounded to odd makes rounding to float32 the only one.
                    c = np.float64(value)
                    word[0] = x + c
                    back = word[0] - x
                    lost = (x - (word[0] - back)) + (c - back)
                    if lost != 0 and np.isfinite(lost) and bits[0] & 1 == 0:
                        bits[0] += 1 if (lost > 0) == (word[0] > 0) else -1
                    value = np.float32(word[0])
                if some:
                    value = np.float32(np.float64(value) + total)
                registers[keep, first + i] = value


@njit(cache=True, nogil=True)
def accumulate_wide(registers: Any, first: int, a: Any, b: Any, low: Any, high: Any, groups: Any, writes: Any) -> None:
    """Like :func:`accumulate_saturating` for 32-bit elements, which come as int64: products go in two halves."""
    rows, ka, kb, row_stride, a_stride, b_stride, keeper = groups
    chunk = a.shape[1]
    for r in range(rows):
        for qa in range(ka):
            thread = r * row_stride + qa * a_stride
            keep = thread + keeper * b_stride
            if not writes[keep]:
                continue
            for i in range(low[qa], high[qa]):
                lower, upper = np.int64(registers[keep, first + i]), np.int64(0)
                for v in range(kb * chunk):
                    x, y = a[thread + v // chunk * b_stride, v % chunk], b[qa, v, i]
                    lower += (x & 0xFFFF) * y
                    upper += (x >> 16) * y
                upper += lower >> 16
                upper = min(max(upper, np.int64(-(2**40))), np.int64(2**40))
                total = upper * 65536 + (lower & 0xFFFF)
                registers[keep, first + i] = min(max(total, np.int64(-(2**31))), np.int64(2**31 - 1))


@njit(cache=True, nogil=True)
def accumulate_saturating(
    registers: Any, first: int, a: Any, b: Any, low: Any, high: Any, groups: Any, writes: Any
) -> None:
    """Like :func:`accumulate_int`, but the accumulate stops at the ends of int32 (8 and 16-bit elements)."""
    rows, ka, kb, row_stride, a_stride, b_stride, keeper = groups
    chunk = a.shape[1]
    for r in range(rows):
        for qa in range(ka):
            thread = r * row_stride + qa * a_stride
            keep = thread + keeper * b_stride
            if not writes[keep]:
                continue
            for i in range(low[qa], high[qa]):
                total = np.int64(registers[keep, first + i])
                for v in range(kb * chunk):
                    total += np.int64(a[thread + v // chunk * b_stride, v % chunk]) * np.int64(b[qa, v, i])
                registers[keep, first + i] = min(max(total, np.int64(-(2**31))), np.int64(2**31 - 1))


@njit(cache=True, nogil=True)
def add_rounds(sums: Any, a: Any, b: Any, presents: Any, chunk: int, kb: int) -> None:
    """sums[r, i] += the dots of round after round, in the 'chunk' order; ``a``: [rows, k], ``b``: [k, columns].

    Round s has the elements u < presents[s] of its kb * chunk.
    """
    rows, n = sums.shape
    dot, part = np.empty(n, np.float32), np.empty(n, np.float32)
    for r in range(rows):
        total = sums[r]
        for s in range(len(presents)):
            begin, present = s * kb * chunk, presents[s]
            x = a[r, begin : begin + present]
            y = b[begin : begin + present]
            if present <= chunk and present == 2:
                x0, x1, y0, y1 = x[0], x[1], y[0], y[1]
                for i in range(n):
                    total[i] += x0 * y0[i] + x1 * y1[i]
                continue
            if present <= chunk and present == 4:
                x0, x1, x2, x3, y0, y1, y2, y3 = x[0], x[1], x[2], x[3], y[0], y[1], y[2], y[3]
                for i in range(n):
                    total[i] += x0 * y0[i] + x1 * y1[i] + x2 * y2[i] + x3 * y3[i]
                continue
            for qb in range((present + chunk - 1) // chunk):
                first, last = qb * chunk, min(present, (qb + 1) * chunk)
                d = dot if qb == 0 else part
                for i in range(n):
                    d[i] = x[first] * y[first, i]
                for u in range(first + 1, last):
                    for i in range(n):
                        d[i] += x[u] * y[u, i]
                if qb:
                    for i in range(n):
                        dot[i] += part[i]
            for i in range(n):
                total[i] += dot[i]


@njit(cache=True, nogil=True)
def add_words(sums: Any, a: Any, b: Any) -> None:
    """sums[r, i] += a[r, k] * b[k, i], modulo 2^32."""
    for r in range(sums.shape[0]):
        total = sums[r]
        for k in range(a.shape[1]):
            x, y = a[r, k], b[k]
            for i in range(len(total)):
                total[i] = np.int32(total[i] + np.int32(x * y[i]))

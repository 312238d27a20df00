"""Lookups of quantised rows on CPU: ids -> addresses of rows -> sums, whole batches of all features in one call.

Codes become floats in registers, and every sum is made by one thread in the order of the ids, so results depend on
neither threads nor batches. Addresses are in bytes; a row may begin anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils as numba_code

from tilewright.embed.host.arrays import Floats, Longs
from tilewright.embed.host.reduce_kernels import divisor, ones_gain
from tilewright.kernels import inner, njit
from tilewright.kernels.vectors import (
    F32,
    I32,
    I64,
    carray,
    intrinsic,
    load,
    prefetch_line,
    spread,
    to_floats,
    to_ints,
    to_longs,
    types,
)

cgutils: Any = numba_code

KINDS = {("signed", 8): 0, ("levels", 8): 1, ("signed", 4): 2, ("levels", 4): 3, ("bf16", 16): 4}
"""What the codes of a row are; a signed code is multiplied by a scale, a level has the lowest number added as well."""

DESCRIBED = 15
"""Numbers that describe a feature in a call."""
_IDS, _WIDE, _OFFSETS, _HOT, _SAMPLES, _WEIGHTS, IDS_IN_ALL, OUT = range(8)
_TABLE, STRIDE, _VOCAB, _WIDTH, _KIND, _COMBINER, _HEAD = range(8, DESCRIBED)

_CHUNK, _AHEAD = 1024, 12
"""Rows whose addresses are made at a time, and rows that are fetched ahead."""

_I8, _I16 = ir.IntType(8), ir.IntType(16)


def _numbers(builder: Any, address: Any, kind: int, lanes: int, number: int) -> Any:
    """``lanes`` codes as floats: the ``number``-th so many from ``address`` on."""
    floats = ir.VectorType(F32, lanes)
    if kind == 4:
        raw = load(builder, address, 2 * lanes * number, ir.VectorType(_I16, lanes))
        wide = builder.zext(raw, ir.VectorType(I32, lanes))
        return builder.bitcast(builder.shl(wide, ir.Constant(wide.type, [16] * lanes)), floats)
    if kind < 2:
        raw = load(builder, address, lanes * number, ir.VectorType(_I8, lanes))
    else:
        pairs = load(builder, address, lanes // 2 * number, ir.VectorType(_I8, lanes // 2))
        low = builder.and_(pairs, ir.Constant(pairs.type, [15] * (lanes // 2)))
        high = builder.lshr(pairs, ir.Constant(pairs.type, [4] * (lanes // 2)))
        mask = [x for i in range(lanes // 2) for x in (i, lanes // 2 + i)]
        raw = builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, lanes), mask))
        if kind == 2:
            eight = ir.Constant(raw.type, [8] * lanes)
            raw = builder.sub(builder.xor(raw, eight), eight)
    extend = builder.sext if kind in (0, 2) else builder.zext
    return builder.sitofp(extend(raw, ir.VectorType(I32, lanes)), floats)


def _summing(kind: int, lanes: int, vectors: int) -> Any:
    def summed(
        typing: Any,
        target: Any,
        rows: Any,
        begin: Any,
        end: Any,
        shift: Any,
        head: Any,
        numbers: Any,
        gains: Any,
        step: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, rows, begin, end, shift, head, numbers, gains, step = args
            floats = ir.VectorType(F32, lanes)
            sums = [cgutils.alloca_once_value(builder, ir.Constant(floats, None)) for _ in range(vectors)]
            for total in sums:  # the slot is made once a function, so it is cleared once a call
                builder.store(ir.Constant(floats, None), total)
            low = spread(builder, load(builder, numbers, 4, F32), lanes)
            in_row = builder.icmp_signed("!=", head, ir.Constant(I64, 0))
            with cgutils.for_range_slice(builder, begin, end, ir.Constant(I64, 1), I64) as (k, _):
                row = load(builder, builder.add(rows, builder.mul(k, ir.Constant(I64, 8))), 0, I64)
                gain = load(builder, builder.add(gains, builder.mul(k, step)), 0, F32)
                scale = load(builder, builder.select(in_row, row, numbers), 0, F32)
                factor = spread(builder, gain if kind in (1, 3, 4) else builder.fmul(gain, scale), lanes)
                steps = spread(builder, scale, lanes)
                codes = builder.add(row, shift)
                for v, total in enumerate(sums):
                    value = _numbers(builder, codes, kind, lanes, v)
                    if kind in (1, 3):
                        value = builder.fadd(builder.fmul(value, steps), low)
                    product = builder.fmul(value, factor, flags=("contract",))
                    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
            for v, total in enumerate(sums):
                at = builder.add(target, ir.Constant(I64, 4 * lanes * v))
                builder.store(builder.load(total), builder.inttoptr(at, ir.PointerType(floats)), align=1)
            return context.get_dummy_value()

        return types.none(*[types.int64] * 9), generate

    return intrinsic(summed)


_ALL = 1 << 40


@inner()
def _floats(address: Any) -> Any:
    return carray(to_floats(address), (_ALL,))


@inner()
def _longs(address: Any) -> Any:
    return carray(to_longs(address), (_ALL,))


def _row_sum(kind: int, bits: int) -> Any:
    sum_64, sum_16, sum_8 = _summing(kind, 16, 4), _summing(kind, 16, 1), _summing(kind, 8, 1)

    @inner(variant=str(kind))
    def row_sum(to: Any, width: Any, rest: Any, rows: Any, span: Any, head: Any, numbers: Any, gains: Any) -> None:
        """``to[width]`` becomes the sum of the rows ``span``; the last few columns come through ``rest``."""
        begin, end = span
        address, step = gains
        d = 0
        while d + 64 <= width:
            sum_64(to + 4 * d, rows, begin, end, head + d * bits // 8, head, numbers, address, step)
            d += 64
        while d + 16 <= width:
            sum_16(to + 4 * d, rows, begin, end, head + d * bits // 8, head, numbers, address, step)
            d += 16
        if d + 8 <= width:
            sum_8(to + 4 * d, rows, begin, end, head + d * bits // 8, head, numbers, address, step)
            d += 8
        if d < width:
            sum_8(rest, rows, begin, end, head + d * bits // 8, head, numbers, address, step)
            for c in range(d, width):
                _floats(to)[c] = _floats(rest)[c - d]

    return row_sum


_sum_signed_8, _sum_levels_8 = _row_sum(0, 8), _row_sum(1, 8)
_sum_signed_4, _sum_levels_4 = _row_sum(2, 4), _row_sum(3, 4)
_sum_bf16 = _row_sum(4, 16)


@inner()
def _bound(feature: Any, sample: Any) -> Any:
    if feature[_OFFSETS] == 0:
        return sample * feature[_HOT]
    return _longs(feature[_OFFSETS])[sample]


@inner()
def _sound(feature: Any, low: Any, high: Any) -> Any:
    """Whether offsets rise from 0 to the number of ids, as far as the samples ``low .. high`` tell."""
    if feature[_OFFSETS] == 0:
        return True
    offsets = _longs(feature[_OFFSETS])
    fine = offsets[0] == 0 and offsets[feature[_SAMPLES]] == feature[IDS_IN_ALL]
    for sample in range(low, high):
        fine &= 0 <= offsets[sample] <= offsets[sample + 1] <= feature[IDS_IN_ALL]
    return fine


@inner()
def _addresses(feature: Any, begin: Any, end: Any, rows: Any) -> Any:
    """Where the rows of the ids ``begin .. end`` are; False: some id is not in the table."""
    if feature[_WIDE] == 8:
        return _places(_longs(feature[_IDS]), feature, begin, end, rows)
    return _places(carray(to_ints(feature[_IDS]), (_ALL,)), feature, begin, end, rows)


@inner()
def _places(ids: Any, feature: Any, begin: Any, end: Any, rows: Any) -> Any:
    sign, vocab, table, stride = np.int64(0), feature[_VOCAB], feature[_TABLE], feature[STRIDE]
    for k in range(begin, end):
        value = np.int64(ids[k])
        sign |= value | (vocab - 1 - value)
        rows[k - begin] = table + stride * value
    return sign >= 0


@inner()
def _gains(feature: Any, begin: Any, end: Any, gains: Any) -> Any:
    """The gains of one sample's ids, and bytes from one to the next (0: all have the first); -1: no divisor."""
    count, combiner = end - begin, feature[_COMBINER]
    if feature[_WEIGHTS] == 0:
        gains[0] = ones_gain(combiner, max(count, 1))
        return 0
    weights, by = _floats(feature[_WEIGHTS]), np.float32(1)
    if combiner and count:
        by = divisor(weights, begin, end, combiner == 2)
        if by == 0 or not np.isfinite(by):
            return -1
    for k in range(count):
        gains[k] = weights[begin + k] / by
    return 4


@inner()
def _longest(feature: Any, low: Any, high: Any) -> Any:
    if feature[_OFFSETS] == 0:
        return feature[_HOT]
    most = np.int64(0)
    for sample in range(low, high):
        most = max(most, _bound(feature, sample + 1) - _bound(feature, sample))
    return most


@inner()
def _feature_sums(feature: Any, numbers: Any, low: Any, high: Any, rows: Any, gains: Any, rest: Any) -> Any:
    """The samples ``low .. high`` of a feature, whose offsets are sound; False: something else about them is wrong."""
    room = len(gains)
    of_rows, of_gains, of_rest = rows.ctypes.data, gains.ctypes.data, rest.ctypes.data
    width, kind, stride, head = feature[_WIDTH], feature[_KIND], feature[STRIDE], feature[_HEAD]
    first = low
    while first < high:
        last, begin = first + 1, _bound(feature, first)
        while last < high and _bound(feature, last + 1) - begin <= room:
            last += 1
        end = _bound(feature, last)
        if not _addresses(feature, begin, end, rows):
            return False
        for k in range(end - begin, end - begin + _AHEAD):
            rows[k] = feature[_TABLE]
        for k in range(min(_AHEAD, end - begin)):
            for byte in range(0, stride, 64):
                prefetch_line(rows[k] + byte, 1)
        for sample in range(first, last):
            start, stop = _bound(feature, sample) - begin, _bound(feature, sample + 1) - begin
            for k in range(start, stop):
                for byte in range(0, stride, 64):
                    prefetch_line(rows[k + _AHEAD] + byte, 1)
            step = _gains(feature, start + begin, stop + begin, gains)
            if step < 0:
                return False
            to, span = feature[OUT] + 4 * width * sample, (start, stop)
            given = (of_gains - step * start, step)
            if kind == 0:
                _sum_signed_8(to, width, of_rest, of_rows, span, head, numbers, given)
            elif kind == 1:
                _sum_levels_8(to, width, of_rest, of_rows, span, head, numbers, given)
            elif kind == 2:
                _sum_signed_4(to, width, of_rest, of_rows, span, head, numbers, given)
            elif kind == 3:
                _sum_levels_4(to, width, of_rest, of_rows, span, head, numbers, given)
            else:
                _sum_bf16(to, width, of_rest, of_rows, span, head, numbers, given)
        first = last
    return True


@njit(cache=True, nogil=True)
def serve(described: Longs, numbers: Floats, part: int, parts: int) -> int:
    """Look up the ``part``-th of ``parts`` equal runs of every feature's samples; -1, or a feature that is not right.

    ``described`` int64[features, DESCRIBED]: address of the ids, bytes of one, address of the offsets (0: ``hot`` ids a
    sample), samples, address of the weights (0: none), ids in all, address of the output; address, bytes of a row,
    rows, width and kind of the table, combiner, bytes before the codes. ``numbers`` f32[features, 2]: scale and low.
    """
    room = np.int64(_CHUNK)
    for f in range(len(described)):
        feature = described[f]
        low, high = feature[_SAMPLES] * part // parts, feature[_SAMPLES] * (part + 1) // parts
        if not _sound(feature, low, high):
            return f
        room = max(room, _longest(feature, low, high))
    rows, gains, rest = np.empty(room + _AHEAD, np.int64), np.empty(room, np.float32), np.empty(8, np.float32)
    wrong = -1
    for f in range(len(described)):
        feature = described[f]
        low, high = feature[_SAMPLES] * part // parts, feature[_SAMPLES] * (part + 1) // parts
        if not _feature_sums(feature, numbers[f:].ctypes.data, low, high, rows, gains, rest):
            wrong = f
            break
    rows[0], gains[0] = rest.size, rest[0]  # until here the arrays are in use
    return wrong

"""Lookup and update on CPU: gather rows, sum, step every touched row once; XLA calls them from inside jit.

Operands are as :class:`~tilewright.embed.device.batch.DeviceBatch` holds them, with L lists (devices in this program)
of P = S * U places each. Addresses are in bytes, rows are multiples of 32 bytes long. Every sum is made by one thread
in one order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils as numba_code

from tilewright.kernels import cfunc, inner
from tilewright.kernels.vectors import (
    ADDRESS,
    F32,
    I32,
    I64,
    at,
    carray,
    intrinsic,
    load,
    load_word,
    prefetch_line,
    spread,
    to_floats,
    to_ints,
    types,
)
from tilewright.kernels.xla_call import (
    ARGUMENTS,
    ATTRIBUTES,
    COUNT,
    FRAME,
    NAMED,
    RESULTS,
    data,
    dim,
    is_question,
    is_share,
    operand,
    own_address,
    registered,
    result,
    share,
    shared,
    size,
)

cgutils: Any = numba_code  # its functions have no types
_AHEAD, _ROWS_AHEAD = 16, 4
"""Entries, and rows of an update, that are fetched ahead."""


def _scaled(add: bool) -> Any:
    def scaled(typing: Any, target: Any, source: Any, factor: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.VectorType(F32, 8)
            value = builder.fmul(spread(builder, args[2], 8), load(builder, args[1], 0, kind))
            if add:
                value = builder.fadd(load(builder, args[0], 0, kind), value)
            builder.store(value, at(builder, args[0], 0, kind), align=1)
            return context.get_dummy_value()

        return types.none(ADDRESS, ADDRESS, types.float32), generate

    return intrinsic(scaled)


_add_scaled = _scaled(add=True)
"""(target, source, factor): ``factor`` times the eight floats at ``source``, rounded, is added to those at ``target``.
"""

_store_scaled = _scaled(add=False)
"""The same, put in their place."""


def _summing(vectors: int) -> Any:
    def summed(typing: Any, target: Any, table: Any, stride: Any, rows: Any, gains: Any, begin: Any, end: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            target, table, stride, rows, gains, begin, end = args
            kind = ir.VectorType(F32, 8)
            sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(vectors)]
            for total in sums:  # the slot is made once a function, so it is cleared once a call
                builder.store(ir.Constant(kind, None), total)
            with cgutils.for_range_slice(builder, begin, end, ir.Constant(I64, 1), I64) as (k, _):
                word = builder.mul(k, ir.Constant(I64, 4))
                row = builder.sext(builder.load(at(builder, builder.add(rows, word), 0, I32)), I64)
                gain = builder.load(at(builder, builder.add(gains, word), 0, F32))
                source = builder.add(table, builder.mul(stride, row))
                factors = spread(builder, gain, 8)
                for v, total in enumerate(sums):
                    product = builder.fmul(factors, load(builder, source, 32 * v, kind))
                    builder.store(builder.fadd(builder.load(total), product), total)
            for v, total in enumerate(sums):
                builder.store(builder.load(total), at(builder, target, 32 * v, kind), align=1)
            return context.get_dummy_value()

        return types.none(*[ADDRESS] * 7), generate

    return intrinsic(summed)


_sum_8, _sum_16, _sum_32 = _summing(1), _summing(2), _summing(4)
"""(target, table, stride, rows, gains, begin, end): so many floats at ``target`` become the sum over the entries
``begin .. end`` of gain times the row, ``stride`` bytes each, that the int32 ``rows`` names; kept in registers."""


@inner()
def _number(frame: Any, i: Any) -> Any:
    """Attribute ``i`` (in the order of the names), an int64."""
    return load_word(load_word(load_word(load_word(frame + ATTRIBUTES + NAMED, 0), i) + 8, 0), 0)


@inner()
def _row(address: Any, width: Any) -> Any:
    return carray(to_floats(address), (width,))


@inner()
def _numbers(address: Any) -> Any:
    """The int32 from ``address`` on."""
    return carray(to_ints(address), (1 << 40,))


@inner()
def _fetch(address: Any, width: Any) -> None:
    for byte in range(0, 4 * width, 64):
        prefetch_line(address + byte, 1)


@inner()
def _store(to: Any, source: Any, gain: Any, width: Any) -> None:
    """``to = gain * source``, eight floats at a time."""
    whole = width // 8 * 8
    for d in range(0, whole, 8):
        _store_scaled(to + 4 * d, source + 4 * d, gain)
    for d in range(whole, width):
        _row(to, width)[d] = gain * _row(source, width)[d]


@inner()
def _add(to: Any, source: Any, gain: Any, width: Any) -> None:
    """``to += gain * source``, eight floats at a time."""
    whole = width // 8 * 8
    for d in range(0, whole, 8):
        _add_scaled(to + 4 * d, source + 4 * d, gain)
    for d in range(whole, width):
        _row(to, width)[d] += gain * _row(source, width)[d]


@inner()
def _parts(frame: Any, which: Any, bytes_moved: Any) -> Any:
    """Threads worth starting: attribute ``which`` at most, one for every 256 KiB."""
    return min(_number(frame, which), 1 + bytes_moved // (1 << 18))


# Lookup. Operands: table f32[rows, W], sample ends i32[L, N], the entries' rows i32[L, E], gains f32[L, E]. Results:
# per feature f32[its samples, its width]. Numbers: sources of a list, threads.


@inner()
def _sum_rows(to: Any, table: Any, stride: Any, rows: Any, gains: Any, begin: Any, end: Any, width: Any) -> None:
    """``to[width]`` becomes the sum over the entries ``begin .. end`` of gain * row, as many columns at once as fit."""
    d = 0
    while d + 32 <= width:
        _sum_32(to + 4 * d, table + 4 * d, stride, rows, gains, begin, end)
        d += 32
    if d + 16 <= width:
        _sum_16(to + 4 * d, table + 4 * d, stride, rows, gains, begin, end)
        d += 16
    if d + 8 <= width:
        _sum_8(to + 4 * d, table + 4 * d, stride, rows, gains, begin, end)
        d += 8
    for rest in range(d, width):
        total = np.float32(0)
        for k in range(begin, end):
            row = _row(table + stride * _numbers(rows)[k], width)
            total += _row(gains, end)[k] * row[rest]
        _row(to, width)[rest] = total


@inner()
def _lookup(frame: Any, part: Any, parts: Any) -> None:
    """One thread's share of a lookup: samples are split into ``parts``."""
    table, ends = operand(frame, 0), _numbers(data(operand(frame, 1)))
    lists, per_device = dim(operand(frame, 1), 0), _number(frame, 0)
    of_table, stride = data(table), 4 * dim(table, 1)
    entries, samples = size(operand(frame, 2)) // lists, dim(operand(frame, 1), 1)
    sources = lists * per_device
    per_source, first_sample = samples // per_device, 0
    for feature in range(load_word(frame + RESULTS + COUNT, 0)):
        out = result(frame, feature)
        count, width = dim(out, 0) // sources, dim(out, 1)
        low, high = count * part // parts, count * (part + 1) // parts
        for source in range(sources if high > low else 0):
            here = source // per_device
            first = source * per_source + first_sample  # the feature's first sample over all lists
            begin = 0 if first + low == here * samples else ends[first + low - 1]
            of_rows = data(operand(frame, 2)) + 4 * here * entries
            of_gains, rows = data(operand(frame, 3)) + 4 * here * entries, _numbers(of_rows)
            to, stop = data(out) + 4 * width * (source * count + low), ends[first + high - 1]
            for k in range(begin, min(begin + _AHEAD, stop)):
                _fetch(of_table + stride * rows[k], width)
            for j in range(low, high):
                end = np.int64(ends[first + j])
                for k in range(begin, min(end, stop - _AHEAD)):
                    _fetch(of_table + stride * rows[k + _AHEAD], width)
                if end == begin + 1:
                    _store(to, of_table + stride * rows[begin], _row(of_gains, end)[begin], width)
                else:
                    _sum_rows(to, of_table, stride, of_rows, of_gains, begin, end, width)
                begin, to = end, to + 4 * width
        first_sample += count


@cfunc(FRAME)
def _lookup_handler(call: Any) -> Any:
    if is_share(call):
        frame, part, parts = share(call)
        _lookup(frame, part, parts)
        return 0
    if is_question(call):
        return 0
    moved = 4 * size(operand(call, 2)) * dim(operand(call, 0), 1)
    return shared(call, own_address(), _parts(call, 1, moved))


def lookup_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return registered("tilewright_lookup", _lookup_handler)


# Gradients of rows. Operands from ``at``: row ends i32[L, P], samples i32[L, E], gains f32[L, E], and per feature
# f32[its samples, its width]. A sample is ``feature << shift | row of the list's part``.


@inner()
def _gradients(frame: Any, at: Any, lists: Any) -> Any:
    """Per feature: address, width, rows of a list."""
    features = load_word(frame + ARGUMENTS + COUNT, 0) - at
    described = np.empty((features, 3), np.int64)
    for feature in range(features):
        gradient = operand(frame, at + feature)
        described[feature, 0], described[feature, 1] = data(gradient), dim(gradient, 1)
        described[feature, 2] = dim(gradient, 0) // lists
    return described


@inner()
def _address(described: Any, shift: Any, code: Any, here: Any) -> Any:
    feature = code >> shift
    row = here * described[feature, 2] + (code & (1 << shift) - 1)
    return described[feature, 0] + 4 * described[feature, 1] * row


@inner()
def _sum_entries(total: Any, padded: Any, described: Any, shift: Any, here: Any, span: Any, entries: Any) -> None:
    """``total[padded]`` becomes the sum of gain * gradient of the entries ``span`` of list ``here``.

    ``span``: the row's first entry, its end, and the end of all. ``entries``: addresses of samples and gains.
    """
    begin, end, stop = span
    if begin == end:  # there may be nothing at ``begin``
        for d in range(padded):
            _row(total, padded)[d] = 0
        return
    samples, gains = _numbers(entries[0]), _row(entries[1], stop)
    for k in range(begin, min(end, stop - _AHEAD)):
        code = samples[k + _AHEAD]
        _fetch(_address(described, shift, code, here), described[code >> shift, 1])
    feature, same = samples[begin] >> shift, begin + 1
    while same < end and samples[same] >> shift == feature:
        same += 1
    # The entries of one feature, most often all, are summed in registers; the others are added one by one.
    width = described[feature, 1]
    first = _address(described, shift, feature << shift, here) - 4 * width * (feature << shift)
    _sum_rows(total, first, 4 * width, entries[0], entries[1], begin, same, width)
    for d in range(width, padded):
        _row(total, padded)[d] = 0
    for k in range(same, end):
        code = samples[k]
        _add(total, _address(described, shift, code, here), gains[k], described[code >> shift, 1])


# Sums alone. Operands as above, at 0. Result: f32[L, P, W]. Numbers: shift, threads.


@inner()
def _sum(frame: Any, part: Any, parts: Any) -> None:
    """One thread's share of the sums: places are split into ``parts``."""
    out = result(frame, 0)
    lists, per_list, padded = dim(out, 0), dim(out, 1), dim(out, 2)
    described, shift, count = _gradients(frame, np.int64(3), lists), _number(frame, 0), dim(operand(frame, 1), 1)
    low, high = per_list * part // parts, per_list * (part + 1) // parts
    for here in range(lists if high > low else 0):
        ends = _numbers(data(operand(frame, 0)) + 4 * here * per_list)
        entries = data(operand(frame, 1)) + 4 * here * count, data(operand(frame, 2)) + 4 * here * count
        begin, stop = 0 if low == 0 else np.int64(ends[low - 1]), np.int64(ends[per_list - 1])
        for place in range(low, high):
            total = data(out) + 4 * padded * (here * per_list + place)
            end = np.int64(ends[place])
            _sum_entries(total, padded, described, shift, here, (begin, end, stop), entries)
            begin = end


@cfunc(FRAME)
def _sum_handler(call: Any) -> Any:
    if is_share(call):
        frame, part, parts = share(call)
        _sum(frame, part, parts)
        return 0
    if is_question(call):
        return 0
    return shared(call, own_address(), _parts(call, 1, 4 * size(operand(call, 1)) * dim(result(call, 0), 2)))


def sum_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return registered("tilewright_sum", _sum_handler)


# Update in place. Operands: table f32[S, R, W] and slots, hyper-parameters f32[h], rows i32[L, S, U], and either sums
# f32[L, P, W] or what sums are made of. Results: table and slots, in their own memory. Numbers: arrays (table and
# slots), columns (floats of a row without padding), optimizer, shift (-1: sums are given), threads. One kernel serves
# all optimizers: which one a program means stands in its call, and not in the name of compiled code.

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM = range(4)


@inner()
def _step_adagrad(row: Any, slots: Any, gradient: Any, rates: Any, columns: Any) -> None:
    accumulator = _row(slots[0], len(row))
    for d in range(len(row)):
        gathered = accumulator[d] + gradient[d] * gradient[d]
        accumulator[d] = gathered
        row[d] -= rates[0] * gradient[d] / np.sqrt(gathered if gathered > 0 else np.float32(1))


@inner()
def _step_rowwise_adagrad(row: Any, slots: Any, gradient: Any, rates: Any, columns: Any) -> None:
    squares = np.float32(0)
    for d in range(columns):
        squares += gradient[d] * gradient[d]
    accumulator = _row(slots[0], 1)
    accumulator[0] += squares / np.float32(columns)
    root = np.sqrt(accumulator[0])
    if root != 0:
        for d in range(len(row)):
            row[d] -= rates[0] * gradient[d] / root


@inner()
def _step_adam(row: Any, slots: Any, gradient: Any, rates: Any, columns: Any) -> None:
    rate, b1, b2, epsilon = rates[0], rates[1], rates[2], rates[3]
    momenta, velocities, one = _row(slots[0], len(row)), _row(slots[1], len(row)), np.float32(1)
    for d in range(len(row)):
        momentum = momenta[d] + (one - b1) * (gradient[d] - momenta[d])
        velocity = velocities[d] + (one - b2) * (gradient[d] * gradient[d] - velocities[d])
        momenta[d], velocities[d] = momentum, velocity
        divisor = np.sqrt(velocity) + epsilon
        row[d] -= rate * momentum / (divisor if divisor != 0 else one)


@inner()
def _step(optimizer: Any, row: Any, slots: Any, gradient: Any, rates: Any, columns: Any) -> None:
    if optimizer == ADAGRAD:
        _step_adagrad(row, slots, gradient, rates, columns)
    elif optimizer == ROWWISE_ADAGRAD:
        _step_rowwise_adagrad(row, slots, gradient, rates, columns)
    elif optimizer == ADAM:
        _step_adam(row, slots, gradient, rates, columns)


@inner()
def _first_place(rows: Any, begin: Any, end: Any, row: Any) -> Any:
    """The first of the places ``begin .. end`` whose row is at least ``row``."""
    while begin < end:
        middle = (begin + end) // 2
        if rows[middle] < row:
            begin = middle + 1
        else:
            end = middle
    return begin


@inner()
def _bound(rows: Any, ends: Any, first: Any, count: Any, height: Any, part: Any, parts: Any) -> Any:
    """The row a thread's part of a shard begins with: as many entries (ends 0: places) before it as behind."""
    if part == 0:
        return 0
    if part == parts:
        return height
    used = _first_place(_numbers(rows), first, first + count, height)
    place = first + (used - first) * part // parts
    if ends != 0:
        of_ends = _numbers(ends)
        before = 0 if first == 0 else np.int64(of_ends[first - 1])
        place = _first_place(of_ends, first, used, before + (of_ends[first + count - 1] - before) * part // parts)
    return np.int64(_numbers(rows)[place]) if place < used else height


_ROWS, _ENDS, _ENTRIES, _GAINS, _CURSOR = range(5)  # of a list: four addresses (of sums one), and where it is


@inner()
def _update(frame: Any, part: Any, parts: Any) -> None:
    """One thread's share of an update: rows are split into ``parts``.

    Every list is sorted by row, so the least row of all cursors is next.
    """
    arrays, columns, optimizer, shift = _number(frame, 0), _number(frame, 1), _number(frame, 2), _number(frame, 3)
    table, given_rates, places = operand(frame, 0), operand(frame, arrays), operand(frame, arrays + 1)
    rates = _row(data(given_rates), size(given_rates))
    shards, height, padded = dim(table, 0), dim(table, 1), dim(table, 2)
    count, per_shard = dim(places, 0), dim(places, 2)
    given, per_list = arrays + 2, shards * per_shard
    described = _gradients(frame, given + 3, count) if shift >= 0 else np.empty((0, 3), np.int64)
    lists = np.zeros((count, 5), np.int64)
    for here in range(count):
        lists[here, _ROWS] = data(places) + 4 * here * per_list
        if shift < 0:
            lists[here, _ENTRIES] = data(operand(frame, given)) + 4 * here * padded * per_list
        else:
            entries = dim(operand(frame, given + 1), 1)
            lists[here, _ENDS] = data(operand(frame, given)) + 4 * here * per_list
            lists[here, _ENTRIES] = data(operand(frame, given + 1)) + 4 * here * entries
            lists[here, _GAINS] = data(operand(frame, given + 2)) + 4 * here * entries
    kept = np.empty((arrays, 2), np.int64)  # address, floats of a row
    for a in range(arrays):
        kept[a, 0], kept[a, 1] = data(result(frame, a)), dim(operand(frame, a), 2)
    sums, others, slots = np.empty(padded, np.float32), np.empty(padded, np.float32), np.empty(arrays, np.int64)
    total, other, one = np.int64(sums.ctypes.data), np.int64(others.ctypes.data), np.float32(1)
    for shard in range(shards):
        first, behind = shard * per_shard, (shard + 1) * per_shard
        low = _bound(lists[0, _ROWS], lists[0, _ENDS], first, per_shard, height, part, parts)
        high = _bound(lists[0, _ROWS], lists[0, _ENDS], first, per_shard, height, part + 1, parts)
        for here in range(count):
            lists[here, _CURSOR] = _first_place(_numbers(lists[here, _ROWS]), first, behind, low)
        while True:
            row = np.int64(high)
            for here in range(count):
                if lists[here, _CURSOR] < behind:
                    row = min(row, np.int64(_numbers(lists[here, _ROWS])[lists[here, _CURSOR]]))
            if row >= high:
                break
            fresh = True
            for here in range(count):
                place, rows = lists[here, _CURSOR], _numbers(lists[here, _ROWS])
                if place == behind or rows[place] != row:
                    continue
                lists[here, _CURSOR] = place + 1
                if place + _ROWS_AHEAD < behind and rows[place + _ROWS_AHEAD] < height:
                    for a in range(arrays):
                        coming = shard * height + rows[place + _ROWS_AHEAD]
                        _fetch(kept[a, 0] + 4 * kept[a, 1] * coming, kept[a, 1])
                to = total if fresh else other
                if shift < 0:
                    _store(to, lists[here, _ENTRIES] + 4 * padded * place, one, padded)
                else:
                    ends = _numbers(lists[here, _ENDS])
                    before = 0 if place == 0 else np.int64(ends[place - 1])
                    span = before, np.int64(ends[place]), np.int64(ends[per_list - 1])
                    addresses = lists[here, _ENTRIES], lists[here, _GAINS]
                    _sum_entries(to, padded, described, shift, here, span, addresses)
                if not fresh:
                    _add(total, other, one, padded)
                fresh = False
            if optimizer == SGD:
                _add(kept[0, 0] + 4 * padded * (shard * height + row), total, -rates[0], padded)
                continue
            for a in range(arrays):
                slots[a] = kept[a, 0] + 4 * kept[a, 1] * (shard * height + row)
            _step(optimizer, _row(slots[0], padded), slots[1:], sums, rates, columns)


@cfunc(FRAME)
def _update_handler(call: Any) -> Any:
    if is_share(call):
        frame, part, parts = share(call)
        _update(frame, part, parts)
        return 0
    if is_question(call):
        return 0
    moved = 4 * size(operand(call, _number(call, 0) + 1)) * dim(operand(call, 0), 2)
    return shared(call, own_address(), _parts(call, 4, moved))


def update_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return registered("tilewright_update", _update_handler)

"""Lookup and update on CPU: gather rows, sum, step every touched row once; XLA calls them from inside jit.

Operands are as :class:`~tilewright.embed.device.batch.DeviceBatch` holds them, with L lists (devices in this program)
of P = S * U places each. Addresses are in bytes, rows are multiples of 32 bytes long. Every sum is made by one thread
in one order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilewright.embed.device.xla_call import (
    FRAME,
    carray,
    data,
    dim,
    floats,
    handle,
    ints,
    is_question,
    number,
    operand,
    operands,
    published,
    register,
    result,
    results,
    size,
    to_floats,
    to_ints,
)
from tilewright.kernels import cfunc, inner
from tilewright.vectors import load_word, prefetch_line

_AHEAD = 16
"""Entries ahead whose rows are fetched."""


@inner()
def _row(address: Any, width: Any) -> Any:
    return carray(to_floats(address), (width,))


@inner()
def _fetch(address: Any, width: Any) -> None:
    for byte in range(0, 4 * width, 64):
        prefetch_line(address + byte, 1)


@inner()
def _parts(frame: Any, which: Any, bytes_moved: Any) -> Any:
    """Threads worth starting: attribute ``which`` at most, one for every 256 KiB."""
    return min(number(frame, which), 1 + bytes_moved // (1 << 18))


# Lookup. Operands: table f32[rows, W], flat rows i32[L, P], sample ends i32[L, N], places i32[L, E], gains f32[L, E].
# Results: per feature f32[its samples, its width]. Numbers: sources of a list, threads.


@inner()
def _lookup(frame: Any, part: Any, parts: Any) -> None:
    """Samples are split over the threads. A sample's first row is written, the others are added."""
    table, ends = operand(frame, 0), ints(operand(frame, 2))
    flat, places, gains = ints(operand(frame, 1)), ints(operand(frame, 3)), floats(operand(frame, 4))
    lists, per_device = dim(operand(frame, 1), 0), number(frame, 0)
    of_table, height, stride = data(table), dim(table, 0), 4 * dim(table, 1)
    per_list, entries, samples = len(flat) // lists, len(places) // lists, len(ends) // lists
    sources = lists * per_device
    per_source, first_sample = len(ends) // sources, 0
    for feature in range(results(frame)):
        out = result(frame, feature)
        count, width = dim(out, 0) // sources, dim(out, 1)
        low, high = count * part // parts, count * (part + 1) // parts
        for source in range(sources):
            here = source // per_device
            first = source * per_source + first_sample  # the feature's first sample over all lists
            begin = 0 if first + low == here * samples else ends[first + low - 1]
            rows = carray(to_ints(data(operand(frame, 1)) + 4 * here * per_list), (per_list,))
            of_list, stop = here * entries, ends[first + high - 1] if high > low else begin
            for k in range(begin, min(begin + _AHEAD, stop)):
                _fetch(of_table + stride * rows[places[of_list + k]], width)
            for j in range(low, high):
                end = ends[first + j]
                total = _row(data(out) + 4 * width * (source * count + j), width)
                if begin == end:
                    for d in range(width):
                        total[d] = 0
                for k in range(begin, end):
                    if k + _AHEAD < stop:
                        _fetch(of_table + stride * rows[places[of_list + k + _AHEAD]], width)
                    gain = gains[of_list + k]
                    row = _row(of_table + stride * min(np.int64(rows[places[of_list + k]]), height - 1), width)
                    if k == begin:
                        for d in range(width):
                            total[d] = gain * row[d]
                    else:
                        for d in range(width):
                            total[d] += gain * row[d]
                begin = end
        first_sample += count


@cfunc(FRAME)
def _lookup_worker(share: Any) -> Any:
    _lookup(load_word(share, 0), load_word(share, 1), load_word(share, 2))
    return 0


_lookup_address = published("tilewright_lookup_worker", _lookup_worker)


@cfunc(FRAME)
def _lookup_handler(frame: Any) -> Any:
    if is_question(frame):
        return 0
    moved = 4 * size(operand(frame, 3)) * dim(operand(frame, 0), 1)
    return handle(frame, _lookup_address(), _parts(frame, 1, moved))


@cache
def lookup_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return register("tilewright_lookup", _lookup_handler)


# Gradients of rows. Operands from ``at``: row ends i32[L, P], samples i32[L, E], gains f32[L, E], and per feature
# f32[its samples, its width]. A sample is ``feature << shift | row of the list's part``.


@inner()
def _gradients(frame: Any, at: Any, lists: Any) -> Any:
    """Per feature: address, width, rows of a list."""
    features = operands(frame) - at
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
def _add_entries(total: Any, described: Any, shift: Any, here: Any, span: Any, samples: Any, gains: Any) -> None:
    """Add gain * gradient of the entries ``span`` of list ``here`` to a row's sum."""
    begin, end, stop = span
    for k in range(begin, end):
        if k + _AHEAD < stop:
            code = samples[k + _AHEAD]
            _fetch(_address(described, shift, code, here), described[code >> shift, 1])
        code, gain = samples[k], gains[k]
        width = described[code >> shift, 1]
        gradient = _row(_address(described, shift, code, here), width)
        for d in range(width):
            total[d] += gain * gradient[d]


@inner()
def _of_list(buffer: Any, here: Any, lists: Any, kind: Any) -> Any:
    """List ``here`` of a buffer of 4-byte elements."""
    count = size(buffer) // lists
    return carray(kind(data(buffer) + 4 * here * count), (count,))


# Sums alone. Operands as above, at 0. Result: f32[L, P, W]. Numbers: shift, threads.


@inner()
def _sum(frame: Any, part: Any, parts: Any) -> None:
    """Places are split over the threads by their entries."""
    out = result(frame, 0)
    lists, per_list, padded = dim(out, 0), dim(out, 1), dim(out, 2)
    described, shift = _gradients(frame, 3, lists), number(frame, 0)
    for here in range(lists):
        ends = _of_list(operand(frame, 0), here, lists, to_ints)
        samples = _of_list(operand(frame, 1), here, lists, to_ints)
        gains = _of_list(operand(frame, 2), here, lists, to_floats)
        low, high = per_list * part // parts, per_list * (part + 1) // parts
        begin, stop = 0 if low == 0 else ends[low - 1], 0 if high == 0 else ends[high - 1]
        for place in range(low, high):
            total = _row(data(out) + 4 * padded * (here * per_list + place), padded)
            for d in range(padded):
                total[d] = 0
            _add_entries(total, described, shift, here, (begin, ends[place], stop), samples, gains)
            begin = ends[place]


@cfunc(FRAME)
def _sum_worker(share: Any) -> Any:
    _sum(load_word(share, 0), load_word(share, 1), load_word(share, 2))
    return 0


_sum_address = published("tilewright_sum_worker", _sum_worker)


@cfunc(FRAME)
def _sum_handler(frame: Any) -> Any:
    if is_question(frame):
        return 0
    return handle(frame, _sum_address(), _parts(frame, 1, 4 * size(operand(frame, 1)) * dim(result(frame, 0), 2)))


@cache
def sum_target() -> str:
    """The target's name; the first call makes it known to XLA."""
    return register("tilewright_sum", _sum_handler)


# Update in place. Operands: table f32[S, R, W] and slots, hyper-parameters f32[h], rows i32[L, S, U], and either sums
# f32[L, P, W] or what sums are made of. Results: table and slots, in their own memory. Numbers: arrays (table and
# slots), columns (floats of a row without padding), shift (-1: sums are given), threads.

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM = range(4)


@inner()
def _step_sgd(row: Any, slots: Any, gradient: Any, rates: Any, columns: Any) -> None:
    for d in range(len(row)):
        row[d] -= rates[0] * gradient[d]


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


_STEPS = (_step_sgd, _step_adagrad, _step_rowwise_adagrad, _step_adam)


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
    """The row a thread's part of a shard begins with: as many entries (without ends: places) before it as behind."""
    if part == 0:
        return 0
    if part == parts:
        return height
    used = _first_place(rows, first, first + count, height)
    if len(ends) == 0:
        place = first + (used - first) * part // parts
    else:
        before = 0 if first == 0 else np.int64(ends[first - 1])
        wanted = before + (np.int64(ends[first + count - 1]) - before) * part // parts
        place = _first_place(ends, first, used, wanted)
    return np.int64(rows[place]) if place < used else height


def _update(step: Any) -> Any:
    @inner()
    def update(frame: Any, part: Any, parts: Any) -> None:
        """Rows are split over the threads. Every list is sorted by row, so the least row of all cursors is next."""
        arrays, columns, shift = number(frame, 0), number(frame, 1), number(frame, 2)
        table, rates, places = operand(frame, 0), floats(operand(frame, arrays)), operand(frame, arrays + 1)
        shards, height, padded = dim(table, 0), dim(table, 1), dim(table, 2)
        lists, per_shard = dim(places, 0), dim(places, 2)
        of_lists = arrays + 2
        described = _gradients(frame, of_lists + 3, lists) if shift >= 0 else np.empty((0, 3), np.int64)
        cursors, total, slots = np.empty(lists, np.int64), np.empty(padded, np.float32), np.empty(arrays, np.int64)
        no_ends = np.empty(0, np.int32)
        for shard in range(shards):
            first = shard * per_shard
            rows = _of_list(places, 0, lists, to_ints)
            ends = _of_list(operand(frame, of_lists), 0, lists, to_ints) if shift >= 0 else no_ends
            low = _bound(rows, ends, first, per_shard, height, part, parts)
            high = _bound(rows, ends, first, per_shard, height, part + 1, parts)
            for here in range(lists):
                rows = _of_list(places, here, lists, to_ints)
                cursors[here] = _first_place(rows, first, first + per_shard, low)
            while True:
                row = np.int64(high)
                for here in range(lists):
                    if cursors[here] < first + per_shard:
                        row = min(row, np.int64(_of_list(places, here, lists, to_ints)[cursors[here]]))
                if row >= high:
                    break
                for d in range(padded):
                    total[d] = 0
                for here in range(lists):
                    rows = _of_list(places, here, lists, to_ints)
                    place = cursors[here]
                    if place == first + per_shard or rows[place] != row:
                        continue
                    cursors[here] = place + 1
                    if place + 4 < first + per_shard and rows[place + 4] < height:
                        for a in range(arrays):
                            array = operand(frame, a)
                            wide = dim(array, 2)
                            _fetch(data(result(frame, a)) + 4 * wide * (shard * height + rows[place + 4]), wide)
                    if shift < 0:
                        sums = _row(data(operand(frame, of_lists)) + 4 * padded * (here * len(rows) + place), padded)
                        for d in range(padded):
                            total[d] += sums[d]
                    else:
                        ends = _of_list(operand(frame, of_lists), here, lists, to_ints)
                        samples = _of_list(operand(frame, of_lists + 1), here, lists, to_ints)
                        gains = _of_list(operand(frame, of_lists + 2), here, lists, to_floats)
                        span = (0 if place == 0 else ends[place - 1], ends[place], ends[len(ends) - 1])
                        _add_entries(total, described, shift, here, span, samples, gains)
                for a in range(arrays):
                    wide = dim(operand(frame, a), 2)
                    slots[a] = data(result(frame, a)) + 4 * wide * (shard * height + row)
                step(_row(slots[0], padded), slots[1:], total, rates, columns)

    return update


@cache
def update_target(kind: int) -> str:
    """The target's name for the optimizer ``kind``; the first call makes it known to XLA."""
    update, name = _update(_STEPS[kind]), f"tilewright_update_{kind}"

    @cfunc(FRAME)
    def worker(share: Any) -> Any:
        update(load_word(share, 0), load_word(share, 1), load_word(share, 2))
        return 0

    address = published(f"{name}_worker", worker)

    @cfunc(FRAME)
    def handler(frame: Any) -> Any:
        if is_question(frame):
            return 0
        arrays = number(frame, 0)
        moved = 4 * size(operand(frame, arrays + 1)) * dim(operand(frame, 0), 2)
        return handle(frame, address(), _parts(frame, 3, moved))

    return register(name, handler)

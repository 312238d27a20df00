"""Lookup and update on CPU: gather rows, sum, step every touched row once; XLA calls them from inside jit.

Operands are as :class:`~tilewright.embed.device.batch.DeviceBatch` holds them, with L lists (devices in this program)
of P = S * U places each. Addresses are in bytes, rows are multiples of 32 bytes long. Every sum is made by one thread
in one order, so results do not depend on the number of threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray

from tilewright.embed.device.xla_call import (
    FRAME,
    _to_floats,
    data,
    dim,
    floats,
    handle,
    ints,
    number,
    operand,
    published,
    register,
    result,
    results,
    size,
)
from tilewright.kernels import cfunc, inner
from tilewright.vectors import load_word, prefetch_line

_AHEAD = 16
"""Entries ahead whose rows are fetched."""


@inner()
def _row(address: Any, width: Any) -> Any:
    return carray(_to_floats(address), (width,))


@inner()
def _fetch(address: Any, width: Any) -> None:
    for byte in range(0, 4 * width, 64):
        prefetch_line(address + byte, 1)


# lookup: operands table f32[rows, W], flat rows int32[L, P], sample ends int32[L, samples], places int32[L, E],
# gains f32[L, E]; one result per feature, f32[its samples, its width]. Number: sources per list.


@inner()
def _lookup(frame: Any, part: Any, parts: Any) -> None:
    """Samples are split over the threads. A sample's first row is written, the others are added."""
    table, flat, ends = operand(frame, 0), ints(operand(frame, 1)), ints(operand(frame, 2))
    places, gains = ints(operand(frame, 3)), floats(operand(frame, 4))
    height, padded = dim(table, 0), dim(table, 1)
    lists = dim(operand(frame, 1), 0)
    per_list, entries, samples = len(flat) // lists, len(places) // lists, len(ends) // lists
    per_device = number(frame, 0)
    of_table, stride = data(table), 4 * padded
    sources = lists * per_device
    per_source = len(ends) // sources
    first_sample = 0
    for f in range(results(frame)):
        out = result(frame, f)
        count, width = dim(out, 0) // sources, dim(out, 1)
        to = data(out)
        for source in range(sources):
            here = source // per_device
            flats, first_entry = here * per_list, here * entries
            low, high = count * part // parts, count * (part + 1) // parts
            base = source * per_source + first_sample
            in_list = base - here * samples
            start = 0 if in_list + low == 0 else ends[base + low - 1]
            last = ends[base + high - 1] if high > low else start
            for k in range(start, min(start + _AHEAD, last)):
                _fetch(of_table + stride * flat[flats + places[first_entry + k]], width)
            for j in range(low, high):
                end = ends[base + j]
                total = _row(to + 4 * width * (source * count + j), width)
                if start == end:
                    for d in range(width):
                        total[d] = 0
                for k in range(start, end):
                    if k + _AHEAD < last:
                        _fetch(of_table + stride * flat[flats + places[first_entry + k + _AHEAD]], width)
                    gain = gains[first_entry + k]
                    row = _row(of_table + stride * flat[flats + places[first_entry + k]], width)
                    if k == start:
                        for d in range(width):
                            total[d] = gain * row[d]
                    else:
                        for d in range(width):
                            total[d] += gain * row[d]
                start = end
        first_sample += count


@cfunc(FRAME)
def _lookup_worker(share: Any) -> Any:
    _lookup(load_word(share, 0), load_word(share, 1), load_word(share, 2))
    return 0


_lookup_address = published("tilewright_lookup_worker", _lookup_worker)


@cfunc(FRAME)
def _lookup_handler(frame: Any) -> Any:
    return handle(frame, _lookup_address(), 1)


@cache
def lookup_target() -> str:
    return register("tilewright_lookup", _lookup_handler)

"""Places of many indices by one table per dim, where a map is a sum over dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.layout.index.digits import Line
from tilewright.threads import pool, thread_count

Array = np.ndarray[Any, Any]
_TABLE_ENTRIES = 1 << 22  # 32 MiB of tables at most; beyond, the program itself is run on the arrays
_FEW = 1 << 13  # indices for which a kernel is not worth loading numba
_PART = 1 << 18


def _table(line: Line, dim: int, size: int) -> Array:
    """What index 0..size-1 along ``dim`` adds to the axis."""
    e = np.arange(size, dtype=np.int64)
    table = np.zeros(size, np.int64)
    for d in line.digits:
        if d.dim == dim:
            value = (e + d.shift) // d.div
            table += d.weight * (value % d.mod if d.mod else value)
    return table


def dim_tables(lines: Mapping[str, Line] | None, shape: Sequence[int]) -> list[list[Array]] | None:
    """Per axis and dim, what every index adds; None without ``lines`` (see ``.digits``), or where it is too much."""
    if lines is None or sum(shape) > _TABLE_ENTRIES:
        return None
    return [[_table(line, dim, size) for dim, size in enumerate(shape)] for line in lines.values()]


def first_outside(ix: Array, shape: Sequence[int]) -> Array | None:
    """Where (position..., dim) an index is outside ``shape``, the first such; None if all are inside."""
    outside = (ix < 0) | (ix >= np.array(shape, np.int64))
    return np.argwhere(outside)[0] if outside.any() else None


def places_by_tables(
    ix: Array, shape: Sequence[int], lines: Mapping[str, Line], tables: Sequence[Sequence[Array]]
) -> Array | None:
    """int64[..., axes] for int64[..., rank] counted from 0; None if an index is outside."""
    bases = [line.base for line in lines.values()]
    if ix.size < _FEW * max(1, len(shape)) or 0 in shape:
        return None if first_outside(ix, shape) is not None else _by_numpy(ix, bases, tables)
    flat = np.ascontiguousarray(ix).reshape(-1, len(shape))
    out = np.empty((len(flat), len(tables)), np.int64)
    starts = np.cumsum([0, *shape])
    inside = [
        _by_kernel(flat, np.concatenate(of_axis), starts, base, out, axis)
        for axis, (base, of_axis) in enumerate(zip(bases, tables, strict=True))
    ]
    return out.reshape(*ix.shape[:-1], len(tables)) if all(inside) else None


def _by_numpy(ix: Array, bases: Sequence[int], tables: Sequence[Sequence[Array]]) -> Array:
    out = np.empty((*ix.shape[:-1], len(tables)), np.int64)
    for axis, (base, of_axis) in enumerate(zip(bases, tables, strict=True)):
        out[..., axis] = base
        for dim, table in enumerate(of_axis):
            if len(table) > 1:
                out[..., axis] += table[ix[..., dim]]
    return out


def _by_kernel(ix: Array, table: Array, starts: Array, base: int, out: Array, axis: int) -> bool:
    """Whether all indices are inside; their places on the axis are then in ``out``."""
    from tilewright.layout.index.table_kernels import look_up

    def part(begin: int) -> bool:
        return look_up(ix, table, starts, base, out, axis, begin, min(begin + _PART, len(ix)))

    begins, threads = range(0, len(ix), _PART), thread_count()
    run = map if min(threads, len(begins)) == 1 else pool("layout", threads).map
    return all(list(run(part, begins)))

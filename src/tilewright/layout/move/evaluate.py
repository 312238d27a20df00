"""Places of many indices: by one table per dim where the map is a sum over dims, else by its program."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.layout.index.digits import Line
from tilewright.threads import pool, thread_count

if TYPE_CHECKING:
    from tilewright.layout.index.index_map import IndexMap


# Kernel threads: how many, and how a job's parts are shared out.


def share_out(job: Callable[[int], None], parts: int, threads: int) -> None:
    """``job(part)`` for every part; the caller works too, and whoever is done takes the next part.

    Parts are taken rather than dealt, since a core of a shared machine may stand still for a while.
    """
    if threads == 1 or parts <= 1:
        for part in range(parts):
            job(part)
        return
    taken = count()

    def work() -> None:
        while (part := next(taken)) < parts:
            job(part)

    helpers = [pool("layout", threads - 1).submit(work) for _ in range(min(threads, parts) - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            helper.result()


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


def dim_tables(layout: IndexMap) -> list[list[Array]] | None:
    """Per axis and logical dim, the contribution of every index; None where the map is not a sum over dims."""
    if layout.digits is None or sum(layout.shape) > _TABLE_ENTRIES:
        return None
    return [[_table(line, dim, size) for dim, size in enumerate(layout.shape)] for line in layout.digits.values()]


def first_outside(ix: Array, shape: tuple[int, ...]) -> Array | None:
    """Where (position..., dim) an index is outside ``shape``, the first such; None if all are inside."""
    outside = (ix < 0) | (ix >= np.array(shape, np.int64))
    return np.argwhere(outside)[0] if outside.any() else None


def places_of(layout: IndexMap, ix: Array) -> Array | None:
    """int64[..., axes] for int64[..., rank] counted from 0; None if an index is outside."""
    tables, lines = layout._tables, layout.digits
    if tables is None or lines is None:
        return None if first_outside(ix, layout.shape) is not None else _by_program(layout, ix)
    if ix.size < _FEW * max(1, layout.rank) or 0 in layout.shape:
        return None if first_outside(ix, layout.shape) is not None else _by_numpy(layout, ix, tables)
    flat = np.ascontiguousarray(ix).reshape(-1, layout.rank)
    out = np.empty((len(flat), len(tables)), np.int64)
    starts = np.cumsum([0, *layout.shape])
    inside = [
        _by_kernel(flat, np.concatenate(t), starts, x.base, out, a)
        for a, (x, t) in enumerate(zip(lines.values(), tables, strict=True))
    ]
    return out.reshape(*ix.shape[:-1], len(tables)) if all(inside) else None


def _by_kernel(ix: Array, table: Array, starts: Array, base: int, out: Array, axis: int) -> bool:
    from tilewright.layout.move.index_kernels import look_up

    parts = -(-len(ix) // _PART)
    inside = [False] * parts

    def job(k: int) -> None:
        inside[k] = look_up(ix, table, starts, base, out, axis, k * _PART, min((k + 1) * _PART, len(ix)))

    share_out(job, parts, thread_count())
    return all(inside)


def _by_numpy(layout: IndexMap, ix: Array, tables: list[list[Array]]) -> Array:
    out = np.empty((*ix.shape[:-1], len(tables)), np.int64)
    for a, (line, of_axis) in enumerate(zip((layout.digits or {}).values(), tables, strict=True)):
        out[..., a] = line.base
        for d, table in enumerate(of_axis):
            if len(table) > 1:
                out[..., a] += table[ix[..., d]]
    return out


def _by_program(layout: IndexMap, ix: Array) -> Array:
    out = np.empty((*ix.shape[:-1], len(layout.axis_terms)), np.int64)
    for a, value in enumerate(layout._axis_values([ix[..., d] for d in range(layout.rank)])):
        out[..., a] = value
    return out

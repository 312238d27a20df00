"""numba kernels: the walk over a segment, its lines through the caches, and the two-phase issue model.

Imported on first use. The cache's arrays come as the tuple of :meth:`tilewright.isa.chip.caches.Cache.arrays`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa.kernels.cache_kernels import (
    BYPASSED,
    PINNED,
    address_of,
    relist,
    tables_of,
    touch,
)
from tilewright.isa.kernels.cells import cell, put
from tilewright.kernels import inner, njit


@njit(cache=True, nogil=True)
def walk(
    at: Any, counts: Any, shape: Any, tables: Any, pages: Any, dim: int, stride: int, ids: Any, places: Any, found: Any
) -> None:
    """Elements u < counts[j] of every walk j, from coordinates ``at[j]`` (int64[n, D], d1 first) along ``dim``.

    ``shape``: (sizes, starts); ``tables``: what each coordinate adds to page and offset; ``pages``: (elements of a
    page, bytes of an element, physical byte of every page). ids[j, u] = page * elements of a page + offset, -1 outside
    the segment or beyond the count, -2 on an absent page; places[j, u] = where it stands in the store, in elements (0
    where there is none). found[j] = (elements there, elements before the first that is not, on absent pages).
    """
    sizes, starts = shape
    pages_of, offsets_of = tables
    page_elements, element_bytes, phys = pages
    for j in range(at.shape[0]):
        page, offset, inside = 0, 0, True
        for d in range(at.shape[1]):
            x = at[j, d]
            if d == dim:
                continue
            if x < 0 or x >= sizes[d]:
                inside = False
                break
            page += pages_of[starts[d] + x]
            offset += offsets_of[starts[d] + x]
        there, prefix, absent = 0, 0, 0
        if stride == 1 and inside:  # a run of neighbours in one page: offsets only grow along a dim
            x, count = at[j, dim], min(counts[j], ids.shape[1])
            if count > 0 and x >= 0 and x + count <= sizes[dim]:
                head, tail = starts[dim] + x, starts[dim] + x + count - 1
                p = page + pages_of[head]
                if (
                    pages_of[tail] == pages_of[head]
                    and offsets_of[tail] - offsets_of[head] == count - 1
                    and phys[p] >= 0
                ):
                    o = offset + offsets_of[head]
                    first, place = p * page_elements + o, phys[p] // element_bytes + o
                    row_of_ids, row_of_places = ids[j], places[j]
                    for u in range(np.uint64(count)):
                        row_of_ids[u], row_of_places[u] = first + np.int64(u), place + np.int64(u)
                    row_of_ids[count:] = -1
                    row_of_places[count:] = 0
                    found[j, 0], found[j, 1], found[j, 2] = count, count, 0
                    continue
        for u in range(ids.shape[1]):
            x = at[j, dim] + u * stride
            ids[j, u], places[j, u] = -1, 0
            if not inside or u >= counts[j] or x < 0 or x >= sizes[dim]:
                continue
            p = page + pages_of[starts[dim] + x]
            if phys[p] < 0:
                ids[j, u] = -2
                absent += 1
                continue
            o = offset + offsets_of[starts[dim] + x]
            ids[j, u], places[j, u] = p * page_elements + o, phys[p] // element_bytes + o
            prefix += there == u
            there += 1
        found[j, 0], found[j, 1], found[j, 2] = there, prefix, absent


@njit(cache=True, nogil=True)
def count_lines(ids: Any, places: Any, per_line: int) -> int:
    """Lines that per-thread accesses ask for: distinct neighbours in every thread's walk."""
    total = 0
    for j in range(ids.shape[0]):
        last = -1
        for u in range(ids.shape[1]):
            if ids[j, u] >= 0:
                line = places[j, u] // per_line
                total += line != last
                last = line
    return total


@njit(cache=True, nogil=True)
def touch_columns(
    ids: Any,
    places: Any,
    sequence: Any,
    pages: Any,
    retain: Any,
    retention: Any,
    l1: Any,
    l2: Any,
    out: Any,
    totals: Any,
) -> None:
    """Take the columns of ``ids`` and ``places`` (from :func:`walk`) through L1 and L2, in the order of ``sequence``.

    ``pages``: (in L2?, elements of a page, log2 of the elements of a line); ``retain``: (a t1 walk?, bypass?);
    ``retention``: (selected per element, awaited per line of the segment). out[s] = (distinct lines, L1 misses, L2
    misses) of column ``sequence[s]``; totals += (lines brought under retention, released, evicted all the same,
    misses that took no place).
    """
    in_l2, page_elements, shift = pages
    walks, bypass = retain
    selected, awaited = retention
    width, first, second = ids.shape[1], address_of(l1), address_of(l2)
    t1, t2 = tables_of(first), tables_of(second)
    for s in range(len(sequence)):
        j = sequence[s]
        lines, misses, deep = 0, 0, 0
        last = np.int64(-1)
        u = 0
        while u < width:
            element = ids[j, u]
            if element < 0:
                u += 1
                continue
            line = places[j, u] >> shift
            if line != last:
                last = line
                lines += 1
                outcome = touch(first, t1, line, bypass)
                if outcome:
                    misses += 1
                    totals[2] += outcome == PINNED
                    totals[3] += outcome == BYPASSED
                    if not in_l2[element // page_elements] and touch(second, t2, line, True):
                        deep += 1
            if walks:
                own = element >> shift
                if selected[element] == 0:
                    selected[element] = 1
                    awaited[own] -= 1
                which = 1 if awaited[own] > 0 else 0
                if relist(first, t1, line, which):
                    totals[1 - which] += 1
                u += 1
            else:  # along d1 a line's elements are neighbours: on to the next line, or to what is no neighbour
                end = min(width, u + ((line + 1) << shift) - places[j, u])
                if ids[j, end - 1] == element + (end - 1 - u):
                    u = end
                else:
                    u += 1
        out[s, 0], out[s, 1], out[s, 2] = lines, misses, deep


@njit(cache=True, nogil=True)
def touch_lines(lines: Any, bypass: bool, l1: Any, l2: Any) -> None:
    """Per-thread loads passing through the caches: they move lines, no counter sees them."""
    last, first, second = np.int64(-1), address_of(l1), address_of(l2)
    t1, t2 = tables_of(first), tables_of(second)
    for line in lines:
        if line >= 0 and line != last and touch(first, t1, line, bypass):
            touch(second, t2, line, True)
        last = line


@inner()
def issue(traffic: Any, count: Any, step_of: Any, start: Any, tokens: Any, free: Any, numbers: Any, out: Any) -> None:
    """:func:`issue_columns`, by addresses."""
    ports, l1_latency, l2_latency, dram_latency = cell(numbers, 0), cell(numbers, 1), cell(numbers, 2), cell(numbers, 3)
    l2_line, dram_line, step_cycles = cell(numbers, 4), cell(numbers, 5), cell(numbers, 6)
    lsu, math, l2_free, dram_free = max(cell(free, 0), start), cell(free, 1), cell(free, 2), cell(free, 3)
    first, for_columns, for_a, s = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    while s < count:
        step, data = cell(step_of, s), np.int64(0)
        while s < count and cell(step_of, s) == step:
            lines, misses = cell(traffic, 3 * s), cell(traffic, 3 * s + 1)
            lsu += 1 if lines <= ports else -(-lines // ports)
            ready = lsu - 1 + l1_latency
            for miss in range(misses):
                l2_free = max(l2_free, lsu) + l2_line
                ready = max(ready, l2_free + l2_latency)
                if miss < cell(traffic, 3 * s + 2):
                    dram_free = max(dram_free, lsu) + dram_line
                    ready = max(ready, dram_free + dram_latency)
            data = max(data, ready)
            s += 1
        begin = max(data, tokens, math)
        if first < 0:
            first = begin
        wait = begin - max(math, start)
        if wait > 0:
            if tokens > data:
                for_a += wait
            else:
                for_columns += wait
        math = begin + step_cycles
    put(out, 0, first)
    put(out, 1, for_columns)
    put(out, 2, for_a)
    put(free, 0, lsu)
    put(free, 1, math)
    put(free, 2, l2_free)
    put(free, 3, dram_free)


@njit(cache=True, nogil=True)
def issue_columns(traffic: Any, step_of: Any, start: int, tokens: int, free: Any, numbers: Any, out: Any) -> None:
    """One ``mm`` on the clock: requests column by column, math step by step.

    ``traffic``: the columns' rows of :func:`touch_columns`; ``step_of``: their steps, ascending; ``start``: cycle of
    the memory issue; ``tokens``: cycle at which A is there; ``free``: cycles at which (lsu, math, L2 bus, DRAM bus) are
    free, moved on; ``numbers``: (ports, latencies of L1, L2, DRAM, cycles of a line on the L2 and DRAM bus, of a step).
    ``out``: cycle of the first math issue, cycles waited for columns, cycles waited for A. All of them int64.
    """
    there, steps, free_at = address_of(traffic), address_of(step_of), address_of(free)
    issue(there, np.int64(len(step_of)), steps, start, tokens, free_at, address_of(numbers), address_of(out))

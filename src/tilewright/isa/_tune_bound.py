"""Cycles no run can stay below: closed forms for every unit that does one thing after another.

Every unit of the issue model serves its requests one behind the other, so the cycles a unit is busy are a lower bound
of the whole run. Nothing here runs a program; a test holds the bounds against the machine.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tilewright.isa._tune_space import Choice, Problem, default_columns
from tilewright.isa._work import Part, by_dim

__all__ = ["busy"]

Array = np.ndarray[Any, Any]


def busy(problem: Problem, choice: Choice) -> dict[str, int]:
    """Cycles each unit is busy at least, in the processing element with most to do: unit to cycles.

    Units: ``math unit``, ``load-store unit``, ``L2 bus``, ``memory bus``, ``DMA``.
    """
    parts = by_dim((problem.m, problem.n), 1 if choice.split == "columns" else 0, problem.config.pes)
    most: Counter[str] = Counter()
    for (part,) in parts.values():
        for unit, cycles in _part(problem, choice, part, len(parts)).items():
            most[unit] = max(most[unit], cycles)
    return dict(most)


def _ceil(a: Any, b: int) -> Any:
    return -(-a // b)


def _part(problem: Problem, choice: Choice, part: Part, share: int) -> dict[str, int]:
    """One element's."""
    c, e, ka = problem.config, problem.element_bytes, choice.ka
    rows, widths = _row_blocks(problem, choice, part.size[0]), _widths(problem, choice, part)
    blocks = sum(rows.values())
    outer = choice.order == "column_outer"
    column_lines, a_lines = _walks(problem, choice)
    steps = loads = stores = 0
    for (first, width), times in widths.items():
        rounds = len(column_lines) * (width if outer else 1)
        local = 1 if outer else _ceil(_ceil(width, ka), c.columns_per_step)
        steps += times * blocks * rounds * local
        loads += times * blocks * width * int(np.maximum(1, _ceil(column_lines, c.l1_ports)).sum())
        for height, many in rows.items():
            asked = np.maximum(1, _ceil(height * ka * a_lines, c.l1_ports))
            loads += times * many * int(asked.sum()) * (width if outer else 1)
            stored = height * _stored_lines(problem, choice, part.base[1] + first, width)
            stores += times * many * max(1, _ceil(stored, c.l1_ports))
    found = {"math unit": steps * c.step_cycles(e, choice.kb), "load-store unit": loads + stores}
    return found | _buses(problem, choice, part, share)


def _row_blocks(problem: Problem, choice: Choice, rows: int) -> Counter[int]:
    """Height of a block of rows: how many there are."""
    fit = problem.config.compute_threads // (choice.ka * choice.kb)
    return Counter({fit: rows // fit}) + Counter({rows % fit: int(rows % fit > 0)})


def _widths(problem: Problem, choice: Choice, part: Part) -> Counter[tuple[int, int]]:
    """(first column modulo a line of C, columns) of a block of columns: how many there are."""
    per_mm = choice.columns or default_columns(problem.config, choice.ka)
    per_line = max(1, problem.config.line_bytes // 4)
    found: Counter[tuple[int, int]] = Counter()
    for (piece,) in by_dim((part.size[1],), 0, choice.segments or 1).values():
        begin, size = piece.base[0], piece.size[0]
        for at in range(0, size, per_mm):
            found[(begin + at) % per_line, min(per_mm, size - at)] += 1
    return found


def _walks(problem: Problem, choice: Choice) -> tuple[Array, Array]:
    """In every K round: lines of B a column touches, and lines of A a row's threads of one qa ask for."""
    c, e, k = problem.config, problem.element_bytes, problem.k
    depth, own = c.depth(e, choice.kb), c.chunk(e, choice.kb)
    begin = np.arange(0, k, depth)
    usual = 1 if choice.transpose_b else c.line_bytes // e
    along = usual if choice.line is None else choice.line[0 if choice.transpose_b else 1]
    column_lines = (np.minimum(begin + depth, k) - 1) // along - begin // along + 1
    starts = begin[:, None] + np.arange(choice.kb) * own
    ends = np.minimum(starts + own, k)
    lines = ((ends * e - 1) // c.line_bytes) - (starts * e // c.line_bytes) + 1
    return column_lines, np.where(ends > starts, lines, 0).sum(axis=1)


def _stored_lines(problem: Problem, choice: Choice, first: int, width: int) -> int:
    """Lines of C a row's threads store to at least."""
    per_line, ka = max(1, problem.config.line_bytes // 4), choice.ka
    local = _ceil(width, ka)
    if problem.config.ka_split == "interleaved" and ka > 1:
        return min(width, ka)
    begins = first + np.arange(ka) * local
    ends = np.minimum(begins + local, first + width)
    return int(np.where(ends > begins, (ends - 1) // per_line - begins // per_line + 1, 0).sum())


def _buses(problem: Problem, choice: Choice, part: Part, share: int) -> dict[str, int]:
    """Every line of an element's B crosses the L2 bus once, and the memory bus or the DMA controller."""
    c, e, n = problem.config, problem.element_bytes, part.size[1]
    elements = max(1, c.line_bytes // e)
    high, wide = choice.line or (1, elements)
    rows, run = (problem.k, n) if choice.transpose_b else (n, problem.k)
    lines, line = _ceil(rows, high) * _ceil(run, wide), c.line_bytes * share
    found = {"L2 bus": lines * _ceil(line, c.l2_bytes_per_cycle)}
    if choice.segments:
        found["DMA"] = c.dma_latency + _ceil(problem.k * problem.n * e, c.dram_bytes_per_cycle)
    elif share == 1:
        found["memory bus"] = lines * _ceil(line, c.dram_bytes_per_cycle)
    return found

"""What can be chosen for a matrix product: the choices :func:`tilewright.isa.autotune` goes through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from tilewright.isa._config import MatrixUnitConfig
from tilewright.isa._emit import ACCUMULATORS

__all__ = ["Choice", "Problem", "choices", "default_columns"]


@dataclass(frozen=True)
class Problem:
    """C[m, n] = A[m, k] B[k, n] with elements of ``element_bytes``, on a machine."""

    m: int
    n: int
    k: int
    element_bytes: int
    config: MatrixUnitConfig


@dataclass(frozen=True)
class Choice:
    """Options of :func:`matmul`; None is what ``matmul`` does by itself.

    >>> print(Choice(), "|", Choice(ka=4, line=(8, 8)))
    ka1 kb1 k_outer t0 | ka4 kb1 k_outer t0 line 8x8
    """

    ka: int = 1
    kb: int = 1
    order: str = "k_outer"
    transpose_b: bool = False
    columns: int | None = None
    line: tuple[int, ...] | None = None
    page: tuple[int, ...] | None = None
    split: str | None = None
    segments: int | None = None

    def __str__(self) -> str:
        """On one line; what is None is not written."""
        parts = [f"ka{self.ka} kb{self.kb} {self.order} t{int(self.transpose_b)}"]
        parts += [f"{self.columns} columns"] if self.columns else []
        for name in ("line", "page"):
            shape = getattr(self, name)
            parts += [f"{name} {'x'.join(map(str, shape))}"] if shape else []
        parts += [f"split by {self.split}"] if self.split else []
        parts += [f"{self.segments} segments"] if self.segments else []
        return " ".join(parts)

    @property
    def options(self) -> dict[str, Any]:
        """As keywords of :func:`matmul`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def settings(self) -> int:
        """How many options are not what ``matmul`` does by itself: of equals, the plainest is taken."""
        return sum(getattr(self, f.name) != f.default for f in fields(self))


def default_columns(config: MatrixUnitConfig, ka: int) -> int:
    """Columns per instruction unless they are chosen."""
    return min(config.default_columns, ka * ACCUMULATORS)


def choices(problem: Problem, fixed: Mapping[str, Any]) -> list[Choice]:
    """Everything considered, the default first; ``fixed`` options have one value only."""
    found = dict.fromkeys([Choice(**fixed)])
    for ka, kb in _groups(problem, fixed):
        for order, transpose_b in product(_orders(problem, fixed), _free(fixed, "transpose_b", (False, True))):
            how = {"ka": ka, "kb": kb, "order": order, "transpose_b": transpose_b}
            columns = _free(fixed, "columns", _columns(problem, ka))
            lines = _free(fixed, "line", _lines(problem, kb, transpose_b))
            for line, width in product(lines, columns):
                for split, segments in product(_pes(problem, fixed), _segments(problem, fixed)):
                    if segments and (split == "rows" or not {line, width} <= {lines[0], columns[0]}):
                        continue  # segments that all share, and too many of what matters little
                    rest = {"columns": width, "line": line, "split": split, "segments": segments}
                    for page in _free(fixed, "page", _pages(problem, transpose_b, line, segments)):
                        found[Choice(**how, **rest, page=page)] = None
    return list(found)


def _free(fixed: Mapping[str, Any], name: str, values: Any) -> tuple[Any, ...]:
    return (fixed[name],) if name in fixed else tuple(values)


def _sizes(problem: Problem, most: int) -> Iterator[int]:
    """Powers of two, and as many threads as there are for every row."""
    c = problem.config
    share = -(-problem.m // c.pes)
    spare = c.compute_threads // min(share, c.compute_threads)
    yield from sorted({value for value in (*(1 << n for n in range(most.bit_length())), spare) if value <= most})


def _groups(problem: Problem, fixed: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """(ka, kb): no more threads of a group than have anything to do."""
    c, e = problem.config, problem.element_bytes
    threads = c.compute_threads
    rounds = -(-problem.k // c.chunk(e)) if c.kb_mode == "chunk" else c.chunk(e)
    for ka in _free(fixed, "ka", _sizes(problem, min(threads, 2 * problem.n - 1))):
        for kb in _free(fixed, "kb", _sizes(problem, min(threads // ka, 2 * rounds - 1))):
            if ka * kb <= threads and (c.kb_mode == "chunk" or c.chunk(e) % kb == 0):
                yield ka, kb


def _orders(problem: Problem, fixed: Mapping[str, Any]) -> tuple[str, ...]:
    c = problem.config
    both = c.pred_scope == "loader" and c.column_numbering == "gap"
    return _free(fixed, "order", ("k_outer", "column_outer") if both else ("k_outer",))


def _columns(problem: Problem, ka: int) -> list[int | None]:
    """By default, as many as registers and loaders allow, and blocks of N that are even."""
    c, usual = problem.config, default_columns(problem.config, ka)
    registers = ACCUMULATORS if c.acc_window is None else max(1, min(ACCUMULATORS, c.acc_window[1]))
    most = min(c.loader_threads, ka * registers)
    found: list[int | None] = [None]
    for each in (most, -(-problem.n // -(-problem.n // most)), -(-most // 2)):
        if each not in (*found, usual) and not each >= problem.n <= usual:
            found.append(each)
    return found


def _lines(problem: Problem, kb: int, transpose_b: bool) -> list[tuple[int, ...] | None]:
    """Lines along d1 (the default), as deep as an instruction, and all along k (t1 would be t0 then)."""
    c, e = problem.config, problem.element_bytes
    elements = c.line_bytes // e
    if elements < 1:
        return [None]
    deep = min(elements, 1 << (c.depth(e, kb) - 1).bit_length())
    usual = 1 if transpose_b else elements
    depths = [deep] if transpose_b and deep < elements else [] if transpose_b else [deep, elements]
    shapes = [(along, elements // along) for along in dict.fromkeys(depths) if along != usual]
    return [None, *((along, across) if transpose_b else (across, along) for along, across in shapes)]


def _pes(problem: Problem, fixed: Mapping[str, Any]) -> tuple[str | None, ...]:
    return _free(fixed, "split", ("rows", "columns") if problem.config.pes > 1 else (None,))


def _segments(problem: Problem, fixed: Mapping[str, Any]) -> tuple[int | None, ...]:
    """B by segments where it is larger than L2: as few as let two of every element be there, and twice as many."""
    c = problem.config
    size = problem.n * problem.k * problem.element_bytes
    if size <= c.l2_bytes:
        return _free(fixed, "segments", (None,))
    few = -(-2 * size // c.l2_bytes)  # two of each element's: its share of B is a pes-th
    most = max(1, problem.n // c.pes)
    return _free(fixed, "segments", (None, *(s for s in (few, 2 * few) if s <= most)))


def _pages(
    problem: Problem, transpose_b: bool, line: tuple[int, ...] | None, segments: int | None
) -> list[tuple[int, ...] | None]:
    """One page; where caches have sets, rows one line further apart; segments in pages of a few columns each."""
    c, e = problem.config, problem.element_bytes
    elements = c.line_bytes // e
    high, wide = line or (1, elements)
    found: list[tuple[int, ...] | None] = [None]
    rows, run = (problem.k, problem.n) if transpose_b else (problem.n, problem.k)
    if segments:
        width = -(-problem.n // (c.pes * segments))
        part = -(-width // 4)
        shape = (rows, part) if transpose_b else (part, run)
        return [None, (_up(shape[0], high), _up(shape[1], wide))] if width >= 8 else found
    if c.l1_ways or c.l2_ways:
        lines_of_a_row = _up(run, wide) // wide
        if lines_of_a_row % 2 == 0:
            found.append((_up(rows, high), (lines_of_a_row + 1) * wide))
    return found


def _up(size: int, step: int) -> int:
    return -(-size // step) * step

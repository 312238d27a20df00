"""Closed forms for the counts of a whole matrix multiplication.

Written from the formulas alone: nothing here runs a program or shares code with the machine's own counting, so that
the two can be held against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa._checks import whole, wholes
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._counts import Counts

__all__ = ["PRODUCT_REGISTERS", "expected_counts"]

PRODUCT_REGISTERS = 256
"""Registers which the kernels keep for products: C at r0, A at r256."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _spanned(first: int, count: int, unit: int) -> int:
    """Units that ``count`` places from ``first`` on lie in."""
    return (first + count - 1) // unit - first // unit + 1


@dataclass(frozen=True)
class _Product:
    """Sizes in elements; ``deep`` and ``wide``: a line of B along k and along its columns."""

    m: int
    n: int
    k: int
    element_bytes: int
    ka: int
    kb: int
    order: str
    columns: int
    deep: int
    wide: int
    config: MatrixUnitConfig

    @property
    def fit(self) -> int:
        """Rows of one block."""
        return _threads(self.config)[1] // (self.ka * self.kb)

    @property
    def depth_bytes(self) -> int:
        """Bytes of k that one instruction covers."""
        return self.config.a_bytes * (1 if self.config.kb_mode == "split" else self.kb)


def expected_counts(
    m: int,
    n: int,
    k: int,
    config: MatrixUnitConfig | None = None,
    element_bytes: int = 1,
    ka: int = 1,
    kb: int = 1,
    transpose_b: bool = False,
    order: str = "k_outer",
    columns: int | None = None,
    line: Sequence[int] | None = None,
    split: str | None = None,
    segments: int | None = None,
) -> Counts:
    """Counts of C[m, n] += A[m, k] B[k, n] with elements of ``element_bytes``, without running anything.

    ``columns`` per instruction (default min(loaders, ka * 256)); ``transpose_b``: B stored row-major and walked by
    ``t1``; ``line``: of B as it is stored; ``split`` and ``segments`` as for :func:`matmul`, all elements together
    where ``config.pes`` is above 1. Pages change nothing. Cache misses are those of caches that never evict: lower
    bounds of a run. Raises :class:`UsageError` when a group of ka * kb threads does not fit, or for columns beyond the
    threads. Source: the counts section of the specification (the worked example of 256 threads: 8192 steps, 65536
    elements on the bus).

    >>> c = expected_counts(256, 256, 256)
    >>> c.instructions, c.steps, c.broadcast_elements
    (32, 8192, 65536)
    >>> four = MatrixUnitConfig(pes=4)  # each of them needs all of B
    >>> expected_counts(256, 256, 256, four, split="rows").broadcast_elements
    262144
    """
    config = checked_config(config)
    m, n, k = whole("m", m), whole("n", n), whole("k", k)
    ka, kb = whole("ka", ka, 1), whole("kb", kb, 1)
    segments = None if segments is None else whole("segments", segments, 1)
    if element_bytes not in (1, 2, 4):
        raise UsageError(f"element_bytes = {element_bytes}", how="1, 2 or 4")
    loaders, computing = _threads(config)
    widest = loaders if config.disjoint_sets else config.threads
    if ka * kb > computing:
        raise UsageError(f"ka * kb = {ka * kb} is more than {computing} threads", how="lower ka or kb")
    per_mm = min(loaders, ka * PRODUCT_REGISTERS) if columns is None else whole("columns", columns, 1)
    if per_mm > widest:
        raise UsageError(f"columns = {per_mm} is not within 1..{widest} (threads)")
    if order not in ("k_outer", "column_outer"):
        raise UsageError(f"order {order!r}", how="k_outer or column_outer")
    if split not in (None, "rows", "columns"):
        raise UsageError(f"split {split!r}", how="rows or columns")
    deep, wide = _line(line, config.line_bytes // element_bytes, transpose_b)
    if 0 in (m, n, k):
        return Counts()
    whole_one = _Product(m, n, k, element_bytes, ka, kb, order, per_mm, deep, wide, config)
    found = Counts.together(_counts(part, first) for part, first in _parts(whole_one, split, segments))
    lines = 0 if segments else _ceil(k, deep) * _ceil(n, wide)  # DMA brings segments in, and L2 is shared
    return replace(found, l2_misses=lines, dram_bytes=lines * config.line_bytes)


def _line(line: Sequence[int] | None, elements: int, transpose_b: bool) -> tuple[int, int]:
    """Elements of a line along k and along the columns."""
    along = (1, elements) if line is None else wholes("line", line, 1)
    if len(along) != 2 or along[0] * along[1] != elements:
        raise UsageError(f"line = {tuple(along)}", how=f"two numbers, {elements} elements (the machine's line_bytes)")
    return (along[0], along[1]) if transpose_b else (along[1], along[0])


def _parts(p: _Product, split: str | None, segments: int | None) -> Iterator[tuple[_Product, int]]:
    """What is multiplied by a program of its own, or as a segment of its own; the first column in what B is stored."""
    pes = p.config.pes
    if split is None:
        split = "columns" if segments or _ceil(p.m, p.fit) < pes else "rows"
    if segments and split == "rows" and pes > 1:
        raise UnsupportedError("segments of B shared by several elements", how="split='columns'")
    if split == "rows" and not segments:
        for low, high in _pieces(0, p.m, pes):
            yield replace(p, m=high - low), 0
        return
    for first, end in _pieces(0, p.n, pes):
        for low, high in _pieces(first, end, segments or 1):
            yield replace(p, n=high - low), 0 if segments else low


def _pieces(first: int, end: int, count: int) -> list[tuple[int, int]]:
    """As even as can be, none of them empty."""
    cuts = [first + (end - first) * i // count for i in range(count + 1)]
    return [(low, high) for low, high in pairwise(cuts) if high > low]


def _counts(p: _Product, first: int) -> Counts:
    """Of one product; B's columns are those from ``first`` on of what is stored."""
    rounds = _ceil(p.k * p.element_bytes, p.depth_bytes)
    row_blocks = _ceil(p.m, p.fit)
    if p.order == "k_outer":
        tail = p.n % p.columns
        column_blocks = _ceil(p.n, p.columns)
        at_once = p.config.columns_per_step
        whole_steps, last = (_ceil(_ceil(width, p.ka), at_once) for width in (p.columns, tail))
        steps_per_round = p.n // p.columns * whole_steps + last
    else:
        column_blocks = steps_per_round = p.n
    split = p.config.kb_mode == "split"
    chunk = _ceil(p.config.a_bytes // p.element_bytes, p.kb if split else 1)
    a_registers = _ceil(chunk * p.element_bytes, 4)
    return Counts(
        instructions=row_blocks * column_blocks * rounds,
        macs=p.m * p.n * p.k,
        column_loads=row_blocks * p.n * rounds,
        broadcast_elements=row_blocks * p.k * p.n,
        steps=row_blocks * rounds * steps_per_round,
        a_register_reads=column_blocks * rounds * a_registers * p.ka * p.kb * p.m,
        a_bytes_loaded=column_blocks * p.ka * p.m * p.k * p.element_bytes,
        accumulator_reads=p.m * p.n * rounds,
        accumulator_writes=p.m * p.n * rounds,
        kb_transfers=p.m * p.n * rounds * (p.kb - 1),
        l1_touches=row_blocks * p.n * _walked_lines(p),
        l1_misses=_ceil(p.k, p.deep) * _spanned(first, p.n, p.wide),
    )


def _threads(config: MatrixUnitConfig) -> tuple[int, int]:
    """Loaders, and threads that compute."""
    if not config.disjoint_sets:
        return config.loaders or config.threads, config.threads
    loaders = config.loaders or max(1, config.threads // 2)
    return loaders, config.threads - loaders


def _walked_lines(p: _Product) -> int:
    """Lines which one column touches over all its rounds."""
    depth = p.depth_bytes // p.element_bytes
    return sum(_spanned(k, min(depth, p.k - k), p.deep) for k in range(0, p.k, depth))

"""Closed forms for the counts of a whole matrix multiplication.

Written from the formulas alone: nothing here runs a program or shares code with the machine's own counting, so that
the two can be held against each other.
"""

from __future__ import annotations

from tilewright.errors import UsageError
from tilewright.isa._checks import whole
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._counts import Counts

__all__ = ["PRODUCT_REGISTERS", "expected_counts"]

PRODUCT_REGISTERS = 256
"""Registers which the kernels keep for products: C at r0, A at r256."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


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
) -> Counts:
    """Counts of C[m, n] += A[m, k] B[k, n] with elements of ``element_bytes``, without running anything.

    ``columns`` per instruction (default min(loaders, ka * 256)); ``transpose_b``: B stored row-major and walked by
    ``t1``. Cache misses are those of caches that never evict: lower bounds of a run. Raises :class:`UsageError` when a
    group of ka * kb threads does not fit, or for columns beyond the threads. Source: the counts section of the
    specification (the worked example of 256 threads: 8192 steps, 65536 elements on the bus).

    >>> c = expected_counts(256, 256, 256)
    >>> c.instructions, c.steps, c.broadcast_elements
    (32, 8192, 65536)
    """
    config = checked_config(config)
    m, n, k = whole("m", m), whole("n", n), whole("k", k)
    ka, kb = whole("ka", ka, 1), whole("kb", kb, 1)
    if element_bytes not in (1, 2, 4):
        raise UsageError(f"element_bytes = {element_bytes}", how="1, 2 or 4")
    loaders, computing = _threads(config)
    rows_per_block = computing // (ka * kb)
    widest = loaders if config.disjoint_sets else config.threads
    if rows_per_block == 0:
        raise UsageError(f"ka * kb = {ka * kb} is more than {computing} threads", how="lower ka or kb")
    per_mm = min(loaders, ka * PRODUCT_REGISTERS) if columns is None else whole("columns", columns, 1)
    if per_mm > widest:
        raise UsageError(f"columns = {per_mm} is not within 1..{widest} (threads)")
    if order not in ("k_outer", "column_outer"):
        raise UsageError(f"order {order!r}", how="k_outer or column_outer")
    if 0 in (m, n, k):
        return Counts()
    split = config.kb_mode == "split"
    depth_bytes = config.a_bytes * (1 if split else kb)
    a_registers = _ceil(_ceil(config.a_bytes // element_bytes, kb if split else 1) * element_bytes, 4)
    rounds = _ceil(k * element_bytes, depth_bytes)
    row_blocks = _ceil(m, rows_per_block)
    if order == "k_outer":
        tail = n % per_mm
        column_blocks = _ceil(n, per_mm)
        at_once = config.columns_per_step
        steps_per_round = n // per_mm * _ceil(_ceil(per_mm, ka), at_once) + _ceil(_ceil(tail, ka), at_once)
    else:
        column_blocks = steps_per_round = n
    lines = _lines(n, k, element_bytes, transpose_b, config.line_bytes)
    return Counts(
        instructions=row_blocks * column_blocks * rounds,
        macs=m * n * k,
        column_loads=row_blocks * n * rounds,
        broadcast_elements=row_blocks * k * n,
        steps=row_blocks * rounds * steps_per_round,
        a_register_reads=column_blocks * rounds * a_registers * ka * kb * m,
        a_bytes_loaded=column_blocks * ka * m * k * element_bytes,
        accumulator_reads=m * n * rounds,
        accumulator_writes=m * n * rounds,
        kb_transfers=m * n * rounds * (kb - 1),
        l1_touches=row_blocks * n * _walked_lines(k, element_bytes, depth_bytes, transpose_b, config.line_bytes),
        l1_misses=lines,
        l2_misses=lines,
        dram_bytes=lines * config.line_bytes,
    )


def _threads(config: MatrixUnitConfig) -> tuple[int, int]:
    """Loaders, and threads that compute."""
    if not config.disjoint_sets:
        return config.loaders or config.threads, config.threads
    loaders = config.loaders or max(1, config.threads // 2)
    return loaders, config.threads - loaders


def _walked_lines(k: int, element_bytes: int, depth_bytes: int, transpose_b: bool, line: int) -> int:
    """Lines which one column touches over all its rounds."""
    if transpose_b:
        return k
    total = k * element_bytes
    starts = range(0, total, depth_bytes)
    return sum((min(total, s + depth_bytes) - 1) // line - s // line + 1 for s in starts)


def _lines(n: int, k: int, element_bytes: int, transpose_b: bool, line: int) -> int:
    """Lines that hold B: rows of n elements (``transpose_b``) or columns of k, each starting a line of its own."""
    count, run = (k, n) if transpose_b else (n, k)
    return count * _ceil(run * element_bytes, line)

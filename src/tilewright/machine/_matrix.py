"""The dense layers' products of one step on the matrix unit, instruction by instruction, held against XLA."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tilewright.isa import Counts, MatrixUnitConfig, expected_counts, matmul
from tilewright.machine._dots import Product

__all__ = ["MatrixRun", "run_product"]

_BOUNDS = ("l1_misses", "l2_misses", "dram_bytes")
"""Counters whose closed form holds for caches that never evict: a lower bound of a run."""


@dataclass(frozen=True)
class MatrixRun:
    """One product: the machine's counts beside the closed forms, and how far its values are from XLA's.

    ``error`` is the largest difference in units of the float32 rounding of a dot product of this depth,
    K * 2^-24 * (|a| @ |b|); a value below 1 is what two orders of summation may differ by.
    """

    name: str
    counts: Counts
    expected: Counts
    cycles: int
    error: float

    @property
    def above_minimum(self) -> tuple[str, ...]:
        """The cache counters above the closed form of caches that never evict."""
        return tuple(name for name in _BOUNDS if getattr(self.counts, name) > getattr(self.expected, name))

    @property
    def counts_equal(self) -> bool:
        """Every counter equals its closed form; cache misses are at least theirs (see :attr:`above_minimum`)."""
        for field in fields(Counts):
            counted, formula = getattr(self.counts, field.name), getattr(self.expected, field.name)
            if counted < formula or (counted > formula and field.name not in _BOUNDS):
                return False
        return True

    @property
    def values_equal(self) -> bool:
        """Within the rounding of float32."""
        return self.error <= 1.0


def run_product(product: Product, config: MatrixUnitConfig) -> MatrixRun:
    """Run ``product`` on the machine and compare values and counts."""
    a, b = (np.ascontiguousarray(x, np.float32) for x in (product.a, product.b))
    (m, k), n = a.shape, b.shape[1]
    result = matmul(a, b, config=config)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    allowed = np.maximum(k * 2.0**-24 * scale, np.finfo(np.float32).tiny)
    difference = np.abs(result.value.astype(np.float64) - product.value)
    expected = expected_counts(m, n, k, config=config, element_bytes=a.itemsize)
    worst = float((difference / allowed).max()) if difference.size else 0.0
    return MatrixRun(product.name, result.counts, expected, result.cycles, worst)

"""Compile every kernel of the layout package, so that a first use does not wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["warm"]


def _rows(unit: np.dtype[Any]) -> None:
    from tilewright.layout.move._kernels_rows import gather_rows, scatter_rows

    rows, table = np.zeros((1, 1), unit), np.zeros(1, np.int64)
    scatter_rows(rows, table, table, np.zeros(1, unit))
    gather_rows(np.zeros(1, unit), table, table, rows)


def _moves(unit: np.dtype[Any]) -> None:
    from tilewright.layout._tiled import tiled

    tiled((3, 5), unit, tiles=((2, 2),)).pack(np.zeros((3, 5), unit))


def _offsets() -> None:
    from tilewright.layout._tiled import tiled

    tiled((8, 8), "u8").offsets(np.zeros((1 << 13, 2), np.int64))


def warm(report: Callable[[str, float], None] | None = None) -> None:
    """Compile all kernels of this package, or load them from the cache (see :mod:`tilewright.kernels`).

    ``report`` is told each kernel's name and the seconds it took.
    """
    units = [np.dtype(f"u{size}") for size in (1, 2, 4, 8)]
    jobs: list[tuple[str, Callable[[], None]]] = [("offsets", _offsets)]
    for unit in units:
        jobs.append((f"moves of {8 * unit.itemsize}-bit elements", lambda unit=unit: _moves(unit)))  # type: ignore[misc]
        jobs.append((f"rows of {8 * unit.itemsize}-bit elements", lambda unit=unit: _rows(unit)))  # type: ignore[misc]
    for name, job in jobs:
        start = time.perf_counter()
        job()
        if report is not None:
            report(name, time.perf_counter() - start)

"""numba kernels for maps that fall into too many boxes: whole rows along one table of places."""

from __future__ import annotations

from typing import Any

from tilewright.kernels import njit

__all__ = ["gather_rows", "scatter_rows"]

_options: Any = {"cache": True, "nogil": True, "boundscheck": False, "no_cfunc_wrapper": True}


@njit(**_options)
def scatter_rows(rows: Any, bases: Any, table: Any, out: Any) -> None:
    """out[bases[r] + table[j]] = rows[r, j]."""
    for r in range(rows.shape[0]):
        base = bases[r]
        for j in range(rows.shape[1]):
            out[base + table[j]] = rows[r, j]


@njit(**_options)
def gather_rows(buffer: Any, bases: Any, table: Any, rows: Any) -> None:
    """rows[r, j] = buffer[bases[r] + table[j]]."""
    for r in range(rows.shape[0]):
        base = bases[r]
        for j in range(rows.shape[1]):
            rows[r, j] = buffer[base + table[j]]

"""Blocks of numbers by which kernels are told what to work on: plain numbers, and addresses of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Block", "address", "longs"]

Array = np.ndarray[Any, Any]


def address(array: Array, dtype: Any) -> int:
    """Where a C-contiguous array of this type begins."""
    assert array.dtype == dtype, (array.dtype, dtype)
    assert array.flags.c_contiguous
    return int(array.__array_interface__["data"][0])


class Block:
    """Cells for a kernel: ``cells`` int64[n], and the arrays whose addresses they hold, kept alive."""

    def __init__(self, *parts: Any) -> None:
        """From numbers, arrays (their addresses) and other blocks, in the order of the block's names."""
        self.kept = [part for part in parts if isinstance(part, np.ndarray | Block)]
        self.cells = np.array([_number(part) for part in parts], np.int64)

    @property
    def at(self) -> int:
        """The block's own address."""
        return address(self.cells, np.int64)


def longs(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, all of which are int64."""
    assert all(array.dtype == np.int64 for array in arrays), [array.dtype for array in arrays]
    return arrays


def _number(part: Any) -> int:
    if isinstance(part, Block):
        return part.at
    return address(part, part.dtype) if isinstance(part, np.ndarray) else int(part)

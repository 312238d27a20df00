"""Large arrays of zeros that cost nothing until they are written to."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

__all__ = ["fresh_zeros"]

_LARGE = 1 << 21
"""Bytes from which a mapping of its own pays; below, the allocator's memory is at hand and quickly cleared."""
_PAGE = 1 << 21
"""Bytes of a large page, of systems that have them."""


def fresh_zeros(count: int, dtype: Any, filled: bool = False) -> np.ndarray[Any, Any]:
    """``np.zeros(count, dtype)``, straight from the operating system where it is large.

    An allocator that has memory left over clears it, all of it; a machine's tables are mostly never looked at.
    ``filled``: most of it will be written to, so that large pages pay, where the system has them. Raises MemoryError or
    ValueError as numpy does.
    """
    size = count * np.dtype(dtype).itemsize
    if size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(count, dtype)
    large = filled and size >= _PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    try:
        memory = mmap.mmap(-1, size + _PAGE * large, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no room for {size} bytes") from error
    raw = np.frombuffer(memory, np.uint8)
    if large:
        memory.madvise(mmap.MADV_HUGEPAGE)
        raw = raw[-raw.ctypes.data % _PAGE :]  # large pages begin where their size divides the address
    return raw[:size].view(dtype)

"""Large arrays of zeros: from the system where they are mostly not looked at, used again where they are.

New memory is given by the system a page at a time, at its first touch, which costs about a hundred times what clearing
a page at hand does; a machine's tables and registers would pay for that in every run.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_LARGE = 1 << 18
"""Bytes from which a mapping of its own pays; below, the allocator's memory is at hand and quickly cleared."""
_PAGE = 1 << 21
"""Bytes of a large page, of systems that have them."""
_MOST, _EACH, _SIZES = 1 << 23, 2, 6
"""Mappings that wait for their next use: bytes of one, how many of a size, and how many sizes."""


class _Waiting:
    """Mappings given back, by size.

    One is given back whenever an array dies, in the midst of whatever its thread does then: here too. So every step is
    one that cannot be come between, and there is no lock.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}

    def take(self, size: int) -> mmap.mmap | None:
        try:
            return self._free[size].pop()
        except (KeyError, IndexError):
            return None

    def give(self, memory: mmap.mmap) -> None:
        if len(memory) not in self._free and len(self._free) >= _SIZES:
            self._free = {}
        same = self._free.setdefault(len(memory), [])
        if len(same) < _EACH:
            same.append(memory)


_waiting = _Waiting()


def fresh_zeros(count: int, dtype: Any, filled: bool = False) -> Array:
    """``np.zeros(count, dtype)``, from the system or from an array that is no longer used.

    ``filled``: much of it will be written to, so that memory that was used before is cleared and used again, and large
    pages pay. Raises MemoryError or ValueError as numpy does.
    """
    size = count * np.dtype(dtype).itemsize
    if size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(count, dtype)
    large = filled and size >= _PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    length = size + _PAGE * large
    memory = _waiting.take(length) if filled else None
    used = memory is not None
    if memory is None:
        memory = _mapped(length, large)
    raw = np.frombuffer(memory, np.uint8)
    if filled and length <= _MOST:
        weakref.finalize(raw, _waiting.give, memory).atexit = False
    # Large pages begin where their size divides the address.
    found = raw[-raw.ctypes.data % _PAGE :][:size] if large else raw
    if used:
        found[:] = 0
    return found.view(dtype)


def _mapped(length: int, large: bool) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no room for {length} bytes") from error
    if large:
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


# Memory that is used again and again within a call: new memory would be cleared by the system each time.

_MOST_KEPT = 1 << 24
"""Bytes above which nothing is kept for the next caller."""


class _Kept(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}


_kept = _Kept()


def scratch(use: str, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """An array [count] with anything in it, this thread's own until the next call for the same use."""
    size = count * np.dtype(dtype).itemsize
    raw = _kept.arrays.get(use)
    if raw is None or raw.nbytes < size:
        raw = np.empty(size, np.uint8)
        if size <= _MOST_KEPT:
            _kept.arrays[use] = raw
    return raw[:size].view(dtype)

"""Output buffers that come back: memory whose pages are mapped already is written several times faster."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["recycled"]

Scalar = TypeVar("Scalar", bound=np.generic)

_KEPT_BYTES = 1 << 28
"""Free memory kept for later batches; more is given back to the system."""


class _Shelf:
    """Free arrays by size in bytes."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> NDArray[np.uint8]:
        with self._lock:
            if self._free[size]:
                self._bytes -= size
                return self._free[size].pop()
        return np.empty(size, np.uint8)

    def give(self, array: NDArray[np.uint8]) -> None:
        # A finaliser may run inside take: never wait for the lock there, rather let the memory go.
        if self._lock.acquire(blocking=False):
            try:
                if self._bytes + array.size <= _KEPT_BYTES:
                    self._bytes += array.size
                    self._free[array.size].append(array)
            finally:
                self._lock.release()


_shelf = _Shelf()


class _Lease:
    """Owner of an array on loan: every view keeps it alive, and with the last view the memory returns."""

    def __init__(self, memory: NDArray[np.uint8], size: int, dtype: np.dtype[Any]) -> None:
        self._memory = memory
        self._give = _shelf.give  # bound here: module globals may be gone when the interpreter ends
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": dtype.str,
            "data": (memory.ctypes.data, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._give(self._memory)


def recycled(size: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """A flat array of undefined content whose memory is used again once nothing refers to it any more.

    Sizes are rounded up to a page, so that batches of like size share memory.
    """
    kind = np.dtype(dtype)
    memory = _shelf.take(-(-max(1, size * kind.itemsize) // 4096) * 4096)
    array: NDArray[Scalar] = np.asarray(_Lease(memory, size, kind))
    return array

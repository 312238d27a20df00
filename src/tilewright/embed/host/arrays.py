"""Array types, and memory that is used again: outputs that come back once nobody has them, a thread's scratch arrays.

New memory is given by the system a page at a time, at its first touch, which costs about a hundred times what clearing
a page at hand does, and several times what writing to it does.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Hashable
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.layout.index.types import machine_bytes

Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Keys: TypeAlias = NDArray[np.uint64]
Bytes: TypeAlias = NDArray[np.uint8]
Mask: TypeAlias = NDArray[np.bool_]
Ids: TypeAlias = Ints | Longs
"""Ids as given: either width is read without a copy."""
Entries: TypeAlias = tuple[Ints, Ints, Floats]
"""Embedding ids (local rows), sample ids, gains."""
Index: TypeAlias = int | np.int64
"""A number inside a kernel."""


Scalar = TypeVar("Scalar", bound=np.generic)
_PAGE = 4096
_KEPT_SHARE = 8
"""Free memory kept for later use, as a share of the machine's; more is given back to the system."""


class Block:
    """Memory, the use it was last put to, and whatever that use noted about its content (None: nothing is known)."""

    def __init__(self, size: int) -> None:
        self.memory = np.empty(size, np.uint8)
        self.use: Hashable = None
        self.content: Any = None


class _Shelf:
    """Free blocks by size in bytes."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Block]] = defaultdict(list)
        self._bytes = 0
        self._most = max(1 << 28, machine_bytes() // _KEPT_SHARE)
        self._lock = threading.Lock()

    def take(self, size: int, use: Hashable) -> Block:
        """A block of that size, one of the same use where there is one."""
        with self._lock:
            free = self._free[size]
            if free:
                # The one given back last of those that know this use: its pages are the likeliest to be in a cache.
                known = next((k for k in reversed(range(len(free))) if free[k].use == use), 0)
                self._bytes -= size
                block = free.pop(known)
            else:
                block = Block(size)
        if block.use != use:
            block.use, block.content = use, None
        return block

    def give(self, block: Block) -> None:
        # A finaliser may run inside take: never wait for the lock there, rather let the memory go.
        if self._lock.acquire(blocking=False):
            try:
                if self._bytes + block.memory.size <= self._most:
                    self._bytes += block.memory.size
                    self._free[block.memory.size].append(block)
            finally:
                self._lock.release()


_shelf = _Shelf()


def lease(size: int, use: Hashable) -> tuple[NDArray[np.uint8], Block]:
    """At least ``size`` bytes, and the block they are of, which is used again once no array refers to it any more.

    Sizes are rounded up to a page, so that uses of like size share memory.
    """
    block = _shelf.take(-(-max(1, size) // _PAGE) * _PAGE, use)
    memory = np.frombuffer(block.memory.data, np.uint8)  # no view of an array: every view of it keeps it alive
    weakref.finalize(memory, _shelf.give, block).atexit = False
    return memory, block


def recycled(size: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """A flat array of undefined content whose memory is used again once nothing refers to it any more."""
    kind = np.dtype(dtype)
    array: NDArray[Scalar] = lease(size * kind.itemsize, None)[0][: size * kind.itemsize].view(kind)
    return array


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[np.uint8]] = {}


_scratch = _Scratch()


def scratch(use: str, count: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """An array [count] with anything in it, this thread's own until the next call for the same use."""
    size = count * np.dtype(dtype).itemsize
    raw = _scratch.arrays.get(use)
    if raw is None or raw.nbytes < size:
        raw = _scratch.arrays[use] = np.empty(size + size // 8, np.uint8)
    return raw[:size].view(dtype)

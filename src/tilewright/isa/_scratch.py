"""Memory that is used again and again within a call: new memory would be cleared by the system each time."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

__all__ = ["scratch"]

_MOST = 1 << 24
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
        if size <= _MOST:
            _kept.arrays[use] = raw
    return raw[:size].view(dtype)

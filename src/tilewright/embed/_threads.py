"""Kernel threads, and the working buffers that are kept from one batch to the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.threads import pool

__all__ = ["Workspace", "run_all", "workspace"]

T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


def run_all(jobs: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """The results of all jobs, in their order; one job, or one thread, runs where it is called."""
    jobs = list(jobs)
    if threads == 1 or len(jobs) <= 1:
        return [job() for job in jobs]
    return list(pool("embed", threads).map(lambda job: job(), jobs))


class Workspace(threading.local):
    """Arrays by name, grown when a batch needs more; every calling thread has its own."""

    def __init__(self) -> None:
        self._arrays: dict[str, Any] = {}

    def get(self, name: str, size: int, dtype: type[Scalar]) -> NDArray[Scalar]:
        """A flat array of at least ``size`` elements; what it holds is left from earlier batches."""
        held: NDArray[Scalar] | None = self._arrays.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self._arrays[name] = np.empty(size + size // 8, dtype)
        return held


workspace = Workspace()
"""The calling thread's buffers."""

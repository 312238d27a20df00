"""Kernel threads, and the working buffers that are kept from one batch to the next."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.errors import UsageError

__all__ = ["Workspace", "run_all", "thread_count", "workspace"]

T = TypeVar("T")
Scalar = TypeVar("Scalar", bound=np.generic)


def thread_count() -> int:
    """Kernel threads: TILEWRIGHT_THREADS, or as many as this process may use."""
    text = os.environ.get("TILEWRIGHT_THREADS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"TILEWRIGHT_THREADS = {text!r}", how="give a whole number of at least 1")
    return int(text)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="tilewright")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has the pool but not its threads


def run_all(jobs: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """The results of all jobs, in their order; one job, or one thread, runs where it is called."""
    jobs = list(jobs)
    if threads == 1 or len(jobs) <= 1:
        return [job() for job in jobs]
    return list(_pool(threads).map(lambda job: job(), jobs))


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

"""Kernel threads: how many, and how a job's parts are shared out."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count

from tilewright.errors import UsageError

__all__ = ["share_out", "thread_count"]


def thread_count() -> int:
    """TILEWRIGHT_THREADS, or as many as this process may use."""
    text = os.environ.get("TILEWRIGHT_THREADS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"TILEWRIGHT_THREADS = {text!r}", how="give a whole number of at least 1")
    return int(text)


@cache
def _pool(helpers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(helpers, thread_name_prefix="tilewright-layout")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child has the pool but not its threads


def share_out(job: Callable[[int], None], parts: int, threads: int) -> None:
    """``job(part)`` for every part; the caller works too, and whoever is done takes the next part.

    Parts are taken rather than dealt, since a core of a shared machine may stand still for a while.
    """
    if threads == 1 or parts <= 1:
        for part in range(parts):
            job(part)
        return
    taken = count()

    def work() -> None:
        while (part := next(taken)) < parts:
            job(part)

    helpers = [_pool(threads - 1).submit(work) for _ in range(min(threads, parts) - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            helper.result()

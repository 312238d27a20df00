"""Kernel threads: how many (TILEWRIGHT_THREADS), and the pools they live in."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from tilewright.errors import UsageError

__all__ = ["pool", "thread_count"]


def thread_count() -> int:
    """Kernel threads: TILEWRIGHT_THREADS, or as many as this process may use."""
    text = os.environ.get("TILEWRIGHT_THREADS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"TILEWRIGHT_THREADS = {text!r}", how="give a whole number of at least 1")
    return int(text)


@cache
def pool(name: str, threads: int) -> ThreadPoolExecutor:
    """The pool of that name and size, made on first use; rooms do not share one, lest they wait for each other."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"tilewright-{name}")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)  # a forked child has the pools but not their threads

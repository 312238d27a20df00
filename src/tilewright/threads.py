"""Kernel threads: how many (TILEWRIGHT_THREADS), and the pools they live in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import SimpleQueue

from tilewright.errors import UsageError

__all__ = ["call_soon", "pool", "thread_count"]


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


@cache
def _waiting(threads: int) -> SimpleQueue[Callable[[], object]]:
    """What that many threads of their own will call."""
    calls: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def work() -> None:
        while True:
            calls.get()()

    for k in range(threads):
        threading.Thread(target=work, name=f"tilewright-{k}", daemon=True).start()
    return calls


def call_soon(call: Callable[[], object], threads: int) -> None:
    """Have ``call``, which raises nothing and gives nothing back, called once by each of ``threads`` other threads.

    A pool's future costs tens of microseconds more, and on a machine whose other core sleeps every one of them counts.
    """
    for _ in range(threads):
        _waiting(threads).put(call)


if hasattr(os, "register_at_fork"):  # a forked child has the pools but not their threads
    os.register_at_fork(after_in_child=pool.cache_clear)
    os.register_at_fork(after_in_child=_waiting.cache_clear)

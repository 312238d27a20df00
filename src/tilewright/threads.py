"""Kernel threads: how many (TILEWRIGHT_THREADS), and the pools they live in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from queue import SimpleQueue

from tilewright.errors import UsageError


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


class _Helpers:
    """Threads that wait for calls: as many as were ever wanted at once, however often the number changes."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """A forked child has none of them, and their calls are none of its business."""
        self.calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.threads: list[threading.Thread] = []

    def _work(self) -> None:
        while True:
            self.calls.get()()

    def grow(self, threads: int) -> int:
        """Have so many; fewer, where the system or an interpreter about to end gives no more."""
        while len(self.threads) < threads:
            helper = threading.Thread(target=self._work, name=f"tilewright-{len(self.threads)}", daemon=True)
            self.threads.append(helper)  # before it runs, so that nobody else starts it too
            try:
                helper.start()
            except RuntimeError:
                self.threads.remove(helper)
                break
        return min(threads, len(self.threads))


_helpers = _Helpers()


def call_soon(call: Callable[[], object], threads: int) -> int:
    """Have ``call``, which raises nothing and gives nothing back, called by other threads, at most ``threads`` times.

    Whoever calls must get on without them: they may be busy, or fewer. A pool's future costs tens of microseconds
    more, and on a machine whose other core sleeps every one of them counts. How often it will be called is returned.
    """
    times = _helpers.grow(threads)
    for _ in range(times):
        _helpers.calls.put(call)
    return times


if hasattr(os, "register_at_fork"):  # a forked child has the pools but not their threads
    os.register_at_fork(after_in_child=pool.cache_clear)
    os.register_at_fork(after_in_child=_helpers.forget)

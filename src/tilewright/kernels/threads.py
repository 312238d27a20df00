"""Kernel threads: how many (TILEWRIGHT_THREADS), and the pools they live in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    """The pool of that name and size, made on first use. Rooms do not share one, so that none waits for another."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"tilewright-{name}")


class _Helpers:
    """Threads that wait for calls: as many as were ever needed at once."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew: a forked child has none of the threads and must not take their calls."""
        self.calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.threads: list[threading.Thread] = []

    def _work(self) -> None:
        while True:
            self.calls.get()()

    def grow(self, threads: int) -> int:
        """Start threads up to this number; return how many there are, as the system may give fewer."""
        while len(self.threads) < threads:
            helper = threading.Thread(target=self._work, name=f"tilewright-{len(self.threads)}", daemon=True)
            self.threads.append(helper)  # before it runs, so that no other call starts it too
            try:
                helper.start()
            except RuntimeError:
                self.threads.remove(helper)
                break
        return min(threads, len(self.threads))


_helpers = _Helpers()


def call_soon(call: Callable[[], object], threads: int) -> int:
    """Let other threads call ``call`` up to ``threads`` times; return how many calls there will be.

    ``call`` must raise nothing and return nothing. The caller must not depend on them: the threads may be busy. This is
    tens of microseconds faster than a pool's future, which matters on a machine whose other cores sleep.
    """
    times = _helpers.grow(threads)
    for _ in range(times):
        _helpers.calls.put(call)
    return times


def in_pieces(call: Callable[[int], object], count: int, shared: bool = True) -> None:
    """``call`` every piece below ``count``, with other threads' help if ``shared``; who comes late finds none left.

    ``call`` must raise nothing, and take its time without the interpreter's lock.
    """
    if count == 1:
        call(0)
        return
    todo, done = list(range(count)), []

    def work() -> None:
        with suppress(IndexError):
            while True:
                piece = todo.pop()
                call(piece)
                done.append(piece)

    if shared:
        call_soon(work, min(thread_count(), count) - 1)
    work()
    turns = 0
    while len(done) < count:
        time.sleep(0 if turns < 100 else 2e-5)  # the shortest sleep that the system knows is often longer than a piece
        turns += 1


if hasattr(os, "register_at_fork"):  # a forked child has the pools but not their threads
    os.register_at_fork(after_in_child=pool.cache_clear)
    os.register_at_fork(after_in_child=_helpers.forget)

"""Threads: how many (TILEWRIGHT_THREADS), and how they share work."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from tilewright.errors import UsageError

T = TypeVar("T")


def thread_count() -> int:
    """Kernel threads: TILEWRIGHT_THREADS, or as many as this process may use."""
    text = os.environ.get("TILEWRIGHT_THREADS", "")
    if not text:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"TILEWRIGHT_THREADS = {text!r}", how="give a whole number of at least 1")
    return int(text)


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
    """Let other threads call ``call`` (it raises nothing) up to ``threads`` times; return how many calls will come.

    The caller must not wait for them: the threads may be busy. This is tens of microseconds faster than a future.
    """
    times = _helpers.grow(threads)
    for _ in range(times):
        _helpers.calls.put(call)
    return times


def in_pieces(call: Callable[[int], object], count: int, threads: int | None = None) -> None:
    """``call`` every number below ``count``, by up to ``threads`` threads (:func:`thread_count`), this one among them.

    It should take its time without the interpreter's lock. The exception of the lowest number is raised when all that
    was begun is done, and nothing more is begun. A thread that comes late finds nothing left, so nobody waits for one.
    """
    todo, done, errors = list(reversed(range(count))), list[int](), dict[int, BaseException]()

    def work() -> None:
        with suppress(IndexError):
            while True:
                piece = todo.pop()
                try:
                    call(piece)
                except BaseException as error:
                    errors[piece] = error
                done.append(piece)
                while errors:
                    done.append(todo.pop())

    if count > 1:
        call_soon(work, min(thread_count() if threads is None else threads, count) - 1)
    work()
    turns = 0
    while len(done) < count:
        time.sleep(0 if turns < 100 else min(1e-3, 2e-7 * turns))  # a sleep is often longer than a piece
        turns += 1
    if errors:
        raise errors[min(errors)]


def run_all(jobs: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """The results of all jobs, in their order, made by up to ``threads`` threads as :func:`in_pieces` says."""
    jobs = list(jobs)
    results: dict[int, T] = {}

    def run(number: int) -> None:
        results[number] = jobs[number]()

    in_pieces(run, len(jobs), threads)
    return [results[number] for number in range(len(jobs))]


if hasattr(os, "register_at_fork"):  # a forked child has none of the threads
    os.register_at_fork(after_in_child=_helpers.forget)

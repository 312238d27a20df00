"""Kernel threads: how many, and how a job's parts are shared out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from tilewright.threads import pool

__all__ = ["share_out"]


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

    helpers = [pool("layout", threads - 1).submit(work) for _ in range(min(threads, parts) - 1)]
    try:
        work()
    finally:
        for helper in helpers:
            helper.result()

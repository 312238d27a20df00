"""What the host side works in: array types, and kernel threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.kernels.threads import pool

Ints: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Keys: TypeAlias = NDArray[np.uint64]
Mask: TypeAlias = NDArray[np.bool_]
Ids: TypeAlias = Ints | Longs
"""Ids as given: either width is read without a copy."""
Entries: TypeAlias = tuple[Ints, Ints, Floats]
"""Embedding ids (local rows), sample ids, gains."""
Index: TypeAlias = int | np.int64
"""A number inside a kernel."""

T = TypeVar("T")


def run_all(jobs: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """The results of all jobs, in their order; one job, or one thread, runs where it is called."""
    jobs = list(jobs)
    if threads == 1 or len(jobs) <= 1:
        return [job() for job in jobs]
    return list(pool("embed", threads).map(lambda job: job(), jobs))

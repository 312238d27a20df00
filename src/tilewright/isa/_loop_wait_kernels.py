"""numba kernels: how instructions of a loop wait for registers on the clock."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.isa._blocks import L_CAUSES, L_CLOCK, L_QUEUE, L_TOKENS
from tilewright.isa._cells import byte, cell, put
from tilewright.kernels import inner

__all__ = ["later", "ready", "until"]


@inner(inline="always")
def until(f: Any, cycle: Any, reason: Any) -> None:
    """The queue stands still until a cycle."""
    clock, queue = cell(f, L_CLOCK), cell(f, L_QUEUE)
    now = cell(clock, 0)
    if cycle > now:
        put(queue, reason, cell(queue, reason) + cycle - now)
        put(clock, 0, cycle)


@inner()
def later(tokens: Any, begin: Any, end: Any, latest: Any) -> Any:
    """The place among ``begin`` to ``end`` whose token comes later than that of ``latest`` (-1: none yet)."""
    most = cell(tokens, latest) if latest >= 0 else np.int64(0)
    for place in range(begin, end):
        token = cell(tokens, place)
        if token > most:
            latest, most = np.int64(place), token
    return latest


@inner(inline="always")
def ready(f: Any, latest: Any) -> None:
    """Wait for one register (-1: none)."""
    if latest >= 0:
        until(f, cell(cell(f, L_TOKENS), latest), 2 + byte(cell(f, L_CAUSES), latest))

"""The garbage collector stands still while a large program is read, reported or rewritten.

A growing graph makes the collector walk everything again and again: a third of the time of a rewrite at 10,000
operations, more than that at 40,000, and next to nothing to be freed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic collection inside (or in the function this decorates); afterwards it is as it was before."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()

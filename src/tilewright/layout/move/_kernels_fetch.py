"""What is read next is fetched line by line, while something else is written."""

from __future__ import annotations

from tilewright.kernels import inner
from tilewright.layout.move._vectors import load_word, prefetch_line

__all__ = ["fetch_line"]

_LINE = 64


@inner(boundscheck=False)
def fetch_line(place: int, starts: int, runs: int, length: int, run: int, at: int) -> tuple[int, int]:
    """Fetch into the second cache the line ``at`` bytes into a run, and say which one comes next: (run, at).

    The ``runs`` of ``length`` bytes begin behind ``place`` where the table at ``starts`` says; nothing is fetched
    behind the last one.
    """
    if run < runs:
        prefetch_line(place + load_word(starts, run) + at, 2)
        at += _LINE
        if at >= length:
            run, at = run + 1, 0
    return run, at

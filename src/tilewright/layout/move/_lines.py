"""Short runs that make whole lines together: where a line's runs come from, and how many lines follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.layout.move._blocks import LINE
from tilewright.layout.move._nest import Loop

__all__ = ["SHORT_RUNS", "Lines", "lines_of"]

SHORT_RUNS = (16, 32)  # bytes


@dataclass(frozen=True)
class Lines:
    """``count`` lines, one behind the other on the target's side, along ``loops``.

    Of a line's runs every second one comes from ``pitch`` source bytes further on, every third one from ``wide``; and
    the line's neighbour from ``step``.
    """

    loops: tuple[Loop, ...]
    count: int
    step: int
    pitch: int
    wide: int


def lines_of(loops: Sequence[Loop], run: int) -> Lines | None:
    """The lines that runs of ``run`` bytes make along one loop, or two; None where they make none.

    >>> lines_of([Loop(8, 4096, 16)], 16)  # a column of eight runs: two lines of four
    Lines(loops=(Loop(count=8, source=4096, target=16),), count=2, step=16384, pitch=4096, wide=8192)
    >>> lines_of([Loop(2, 256, 16), Loop(6, 1024, 32)], 16)  # two faces of each of six tiles: three lines
    Lines(loops=(Loop(count=2, source=256, target=16), Loop(count=6, source=1024, target=32)), count=3, step=2048, \
pitch=256, wide=1024)
    """
    each = LINE // run  # runs to a line
    first = next((loop for loop in loops if loop.target == run), None)
    if run not in SHORT_RUNS or first is None:
        return None
    if first.count % each == 0 and first.count > each:
        return Lines((first,), first.count // each, each * first.source, first.source, 2 * first.source)
    second = next((loop for loop in loops if loop.target == run * first.count), None)
    if each % first.count or second is None or second.count * first.count % each:
        return None
    times = each // first.count  # steps of the second loop to a line
    wide = second.source if times > 1 else 2 * first.source
    return Lines((first, second), second.count // times, times * second.source, first.source, wide)

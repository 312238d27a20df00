"""Which part of a picture is shown: ranges along the dims, or the surroundings of one position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tilewright.errors import UsageError

_RANGE = re.compile(r"\s*(?:(\d*)\s*:\s*(\d*)|(\d+))\s*", re.ASCII)


class Span(NamedTuple):
    """The positions from ``start`` on, ``count`` of them."""

    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count


def spans_of(window: str, names: Sequence[str], extents: Sequence[int], layout: str) -> list[Span]:
    """One span per dim (padding included) out of ``0:8,5,:``; a number alone is one position.

    >>> spans_of("0:8,5,:", ["d0", "d1", "d2"], [16, 8, 4], "...")
    [Span(start=0, count=8), Span(start=5, count=1), Span(start=0, count=4)]
    """
    parts = window.split(",")
    how = f"a range each along {', '.join(names)}, as {','.join(f'0:{min(8, n)}' for n in extents)}"
    if len(parts) != len(names):
        raise UsageError(f"the window {window!r} has {len(parts)} of {len(names)} ranges for {layout}", how=how)
    spans = []
    for part, name, extent in zip(parts, names, extents, strict=True):
        found = _RANGE.fullmatch(part)
        if not found or max(map(len, part.split(":"))) > 20:
            raise UsageError(f"{part!r} is no range in the window {window!r}", how=how)
        start = int(found[3] or found[1] or 0)
        stop = min(start + 1 if found[3] else int(found[2] or extent), extent)
        if start >= stop:
            raise UsageError(f"the window {window!r} is empty along {name}, which has {extent} positions", how=how)
        spans.append(Span(start, stop - start))
    return spans


def around(position: int, extent: int, wanted: int, period: int | None) -> Span:
    """About ``wanted`` positions around one: whole periods where they are small.

    >>> around(130, 384, 16, 128), around(7, 24, 12, 8)
    (Span(start=122, count=16), Span(start=0, count=8))
    """
    if period and 1 < period <= wanted:
        count = wanted // period * period
        start = position // period * period
        return Span(min(start, max(0, extent - count)), min(count, extent))
    count = min(wanted, extent)
    return Span(max(0, min(position - count // 2, extent - count)), count)

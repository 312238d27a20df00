"""Slices of one track, laid into rows in which they nest: what every timeline format wants."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.trace._events import Slice

__all__ = ["Mark", "nested_rows"]

Mark = tuple[int, Slice | None]
"""A moment in a row: a slice begins, or (None) the innermost open slice ends."""


def nested_rows(slices: Iterable[Slice]) -> list[list[Mark]]:
    """Rows of begin and end marks, each row well nested and in time order.

    A slice goes to the first row in which it lies inside the slice that is open there, or in which none is open; so
    slices that nest share one row, and slices that overlap get further ones.

    >>> from tilewright.trace import Track
    >>> t = Track("p", "l")
    >>> rows = nested_rows([Slice(t, "a", 0, 4), Slice(t, "b", 1, 2), Slice(t, "c", 2, 4)])
    >>> [[(time, s and s.name) for time, s in row] for row in rows]
    [[(0, 'a'), (1, 'b'), (3, None), (4, None)], [(2, 'c'), (6, None)]]
    """
    rows: list[list[Mark]] = []
    open_ends: list[list[int]] = []
    for each in sorted(slices, key=lambda s: (s.start, -s.duration)):
        end = each.start + each.duration
        for row, ends in zip(rows, open_ends, strict=True):
            _close(row, ends, each.start)
            if not ends or end <= ends[-1]:
                break
        else:
            row, ends = [], []
            rows.append(row)
            open_ends.append(ends)
        row.append((each.start, each))
        ends.append(end)
    for row, ends in zip(rows, open_ends, strict=True):
        _close(row, ends, None)
    return rows


def _close(row: list[Mark], ends: list[int], until: int | None) -> None:
    while ends and (until is None or ends[-1] <= until):
        row.append((ends.pop(), None))

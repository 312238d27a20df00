"""A plan as it is run: primitives at places, and the tables of numbers that the kernels read.

RUN         contiguous on both sides: bytes copied in vectors (LINES, SHORTS: the same for whole lines, 16 or 32)
JOIN        runs of 16 or 32 bytes that make whole lines of the target together
ZIP         p rows interleaved: the target takes one element of each row in turn, (8,128)(p,1) and its like
UNZIP       the other way round
TRANSPOSE   any other pair of loops, in small blocks
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.layout.move._blocks import NO_GAPS
from tilewright.layout.move._once import once

__all__ = [
    "CALL",
    "CORE",
    "INNER",
    "JOIN",
    "KIND",
    "LENGTH",
    "LINES",
    "NUMBERS",
    "PADDED",
    "REPEAT",
    "ROWS",
    "RUN",
    "RUNS",
    "SHORTS",
    "STREAM",
    "TRANSPOSE",
    "UNZIP",
    "ZIP",
    "MovePlan",
    "Work",
]

Array = np.ndarray[Any, Any]
RUN, ZIP, UNZIP, TRANSPOSE, LINES, SHORTS, JOIN = range(7)


@dataclass(frozen=True, eq=False)
class Work:
    """One primitive at many places.

    ============  =======================================================================================
    ``numbers``   kind, stream, count and (source, target) steps of the repeat, of the core's two loops
    ``inner``     int64[k, 2]: source and target (or scratch) places within an entry
    ``rows``      int64[r, 2]: target and scratch places of the rows that leave the scratch, none if direct
    ``width``     bytes of such a row
    ``runs``      int64[r]: where the source's runs begin within an entry; fetched while the entry before is moved
    ``length``    bytes of such a run
    ``padded``    bytes of scratch that hold padding where no data goes, 0 if the rows have none
    ``places``    int64[n, 3]: source and target places of the entries, bytes of theirs rows (0 if direct)
    ============  =======================================================================================
    """

    numbers: tuple[int, ...]
    inner: Array
    rows: Array
    width: int
    runs: Array
    length: int
    places: Array
    padded: int = 0

    @property
    def kind(self) -> int:
        """Which primitive it is."""
        return self.numbers[KIND]

    @property
    def written(self) -> Array:
        """int64[n]: first target bytes of the rows that are written whole, padding too."""
        if not self.padded:
            return np.zeros(0, np.int64)
        return (self.places[:, 1, None] + self.rows[None, :, 0]).reshape(-1)


# Where the kernel finds a work's numbers in its row, and the tables in the plan's header.
KIND, STREAM, REPEAT, CORE, INNER, ROWS, RUNS, LENGTH, PADDED, CALL, NUMBERS = 0, 1, 2, 5, 11, 13, 15, 17, 18, 19, 20
HEADER = ("works", "count of works", "inner", "rows", "runs", "places", "starts", "parts", "pads", "count of pads")
_PART = 1 << 19  # bytes after which the edges catch up with the bulk, while their lines are near, and threads meet


@dataclass(frozen=True, eq=False)
class MovePlan:
    """What to do for one pair of address maps, elements being ``size`` bytes wide; ``total`` bytes of data.

    ``pads`` int64[n, 2] is padding (first byte, bytes) to be filled that no work writes.
    """

    works: tuple[Work, ...]
    size: int
    total: int
    pads: Array = field(default_factory=lambda: NO_GAPS)

    @property
    def parts(self) -> int:
        """Into how many parts threads divide the move."""
        return max(1, self.total // _PART)

    @once
    def tables(self) -> tuple[Array, ...]:
        """What the kernel reads, the same whoever asks at the same time: their addresses are given away.

        First the header; then a row of numbers per work; inner places, rows, runs and places end to end;
        int64[works, parts + 1], where each part's places begin; and the pads.
        """
        from tilewright.layout.move._kernels_elements import address_of_primitive

        numbers, inner, outs, runs = [], 0, 0, 0
        for w in self.works:
            counts = len(w.inner), len(w.rows), len(w.runs)
            wide = w.numbers[CORE] if w.kind in (SHORTS, JOIN) else self.size
            call = address_of_primitive(w.kind, wide, w.numbers[CORE + 3])
            numbers.append([*w.numbers, inner, counts[0], outs, counts[1], runs, counts[2], w.length, w.padded, call])
            inner, outs, runs = inner + counts[0], outs + counts[1], runs + counts[2]
        each = ([getattr(w, name) for w in self.works] for name in ("inner", "rows", "runs", "places"))
        whole = (np.ascontiguousarray(np.concatenate(part), np.int64) for part in each)
        places = np.array([len(w.places) for w in self.works])
        starts = (np.cumsum(places) - places)[:, None] + np.arange(self.parts + 1) * places[:, None] // self.parts
        works, *rest = np.array(numbers, np.int64), *whole, np.ascontiguousarray(starts, np.int64)
        pads = np.ascontiguousarray(self.pads, np.int64)
        where = [works.ctypes.data, len(works), *(table.ctypes.data for table in rest), self.parts]
        return np.array([*where, pads.ctypes.data, len(pads)], np.int64), works, *rest, pads

    @once
    def kernel(self) -> Any:
        """What makes the move (numba comes with it)."""
        from tilewright.layout.move._kernels import move

        return move

    @once
    def header(self) -> int:
        """The address of the table that tells where the others are and how long (``HEADER``)."""
        return int(self.tables[0].ctypes.data)

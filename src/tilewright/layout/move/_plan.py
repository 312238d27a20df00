"""From boxes to what the kernels do: primitives, inner and outer tables of places, and how bytes are stored.

    RUN         contiguous on both sides: bytes copied in vectors (LINES, SHORTS: the same for whole lines, 16 or 32)
    ZIP         p rows interleaved: the target takes one element of each row in turn, (8,128)(p,1) and its like
    UNZIP       the other way round
    TRANSPOSE   any other pair of loops, in small blocks

**Order.** Whole runs follow the source, so that it is read in order. Zips and unzips follow the *tiled* side (the
target when packing, the source when unpacking), blocks the other one, which then reads and writes page after page.

**Stores.** A primitive that writes whole lines streams them past the caches, which saves reading them first. Other
boxes go block by block: a block takes a few kilobytes that are contiguous on each side (two loops are cut where they
are too long), is put together in a scratch buffer in the nearest cache, and leaves it in long streamed rows. Neither
ragged rows nor the 32-byte columns of a FRACTAL_NZ matrix then touch a line twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.layout.move._blocks import (
    LINE,
    NO_GAPS,
    SCRATCH,
    Cut,
    Shells,
    block_of,
    places_of,
    row_loops,
    runs_of,
    shells_of,
)
from tilewright.layout.move._nest import Box, Loop, merged

__all__ = [
    "CALL",
    "CORE",
    "INNER",
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
    "clipped",
    "left_over",
    "plan_moves",
]

Array = np.ndarray[Any, Any]
RUN, ZIP, UNZIP, TRANSPOSE, LINES, SHORTS = range(6)
_LONG_RUN = 1024  # bytes from which a run is streamed wherever it lies
_ROW = 256  # bytes from which a block's row is worth its way through the scratch buffer
_ENTRY_BYTES = 1 << 17  # what one entry of the outer table moves at most, so that threads can share
_MOST_PLACES = 1 << 24


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

    @property
    def tables(self) -> tuple[Array, ...]:
        """What the kernel reads, made once, whoever asks at the same time: their addresses are given away."""
        found: tuple[Array, ...] | None = self.__dict__.get("_tables")
        return found or self.__dict__.setdefault("_tables", self._made())

    def _made(self) -> tuple[Array, ...]:
        """A row of numbers per work; inner places, rows, runs and places end to end.

        Then int64[works, parts + 1], where each part's places begin; the pads; and, first, the header.
        """
        from tilewright.layout.move._kernels_elements import address_of_primitive

        numbers, inner, outs, runs = [], 0, 0, 0
        for w in self.works:
            counts, size = (len(w.inner), len(w.rows), len(w.runs)), self.size
            call = address_of_primitive(w.kind, w.numbers[CORE] if w.kind == SHORTS else size, w.numbers[CORE + 3])
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

    @cached_property
    def kernel(self) -> Any:
        """What makes the move (numba comes with it)."""
        from tilewright.layout.move._kernels import move

        return move

    @cached_property
    def header(self) -> int:
        """The address of the table that tells where the others are and how long (``HEADER``)."""
        return int(self.tables[0].ctypes.data)


# -- the primitive -----------------------------------------------------------------------------------------------------


def _one_step(loops: Sequence[Loop], size: int, side: str) -> Loop | None:
    return next((loop for loop in loops if getattr(loop, side) == size), None)


def _core(box: Box, size: int) -> tuple[int, list[Loop]]:
    """The primitive and its loops: (elements,) of a run, else (elements, rows)."""
    loops = sorted(box.loops, key=lambda x: (abs(x.target), abs(x.source)))
    into, out_of = _one_step(loops, size, "target"), _one_step(loops, size, "source")
    if not loops or (into and into is out_of):
        return RUN, [into or Loop(1, size, size)]
    if into and out_of:
        if into.count in (2, 4, 8) and out_of.target == into.count * size:
            return ZIP, [out_of, into]
        if out_of.count in (2, 4, 8) and into.source == out_of.count * size:
            return UNZIP, [into, out_of]
    first = into or loops[0]
    second = out_of if out_of is not first else None
    second = second or next((loop for loop in loops if loop is not first), None)
    return TRANSPOSE, [first, second] if second else [first]


def _split(box: Box, loop: Loop, count: int) -> list[Box]:
    """The box with ``loop`` cut into blocks of ``count``, and a box for what is left."""
    times, left = divmod(loop.count, count)
    others = tuple(other for other in box.loops if other is not loop)
    outer = Loop(times, loop.source * count, loop.target * count)
    found = [replace(box, loops=(replace(loop, count=count), *((outer,) if times > 1 else ()), *others))]
    if left:
        rest = (replace(loop, count=left),) if left > 1 else ()
        places = box.sources + times * outer.source, box.targets + times * outer.target
        found.append(Box(*places, (*rest, *others)))
    return found


# -- works -------------------------------------------------------------------------------------------------------------


def _refined(kind: int, core: Sequence[Loop], size: int, stream: bool) -> tuple[int, bool]:
    """The kernel's kind and whether it streams: runs by their length, rows below a line one element at a time."""
    row = core[0].count * size
    if kind == RUN and not stream and row % LINE == 0:
        return LINES, False
    if kind == RUN:
        return (SHORTS, stream) if row in (16, 32) else (RUN, stream)
    return (TRANSPOSE, False) if row < LINE else (kind, stream)


def _writes_lines(kind: int, core: Sequence[Loop], box: Box, size: int) -> bool:
    """Whether the primitive writes whole lines wherever it stands, if the target starts on one."""
    if kind == TRANSPOSE or core[0].count * size % LINE or (kind != RUN and core[1].count > 4):
        return False
    steps = [loop.target for loop in box.loops if loop not in core or (kind == UNZIP and loop is core[1])]
    return not any(t % LINE for t in steps) and not (box.targets % LINE).any()


@dataclass(frozen=True)
class _Builder:
    """Makes works of boxes; ``by_target`` tells which side is the tiled one."""

    size: int
    by_target: bool
    aligned: bool
    gaps: Array

    def works(self, box: Box, shells: Shells | None = None) -> list[Work]:
        """The box's work, or those of the boxes it is cut into."""
        kind, core = _core(box, self.size)
        direct = self.aligned and _writes_lines(kind, core, box, self.size)
        run = core[0].count * self.size
        if direct or (kind == RUN and run >= _LONG_RUN):
            most = _ENTRY_BYTES // (self.size * (core[1].count if kind != RUN else 1))
            if core[0].count > most:
                return [w for part in _split(box, core[0], most) for w in self.works(part)]
            return [self._direct(box, LINES if kind == RUN and direct else kind, core, stream=True)]
        shells = shells_of(box, self.size, self.gaps) if shells is None else shells
        joined = self._joined(box, kind, core)
        block = block_of(box, core, self.size, self.by_target, shells, joined is not None)
        if isinstance(block, Cut):
            return [w for part in _split(box, block.loop, block.count) for w in self.works(part)]
        if joined in block and joined is not None:
            return [self._direct(box, kind, core, stream=True, block=[joined, *(x for x in block if x is not joined)])]
        row, width = row_loops(block, self.size, shells)
        if width < _ROW:
            return [self._direct(box, kind, core, stream=False, block=block)]
        if shells and math.prod(x.count for x in block if x not in row) * (width + 2 * LINE) > SCRATCH - 2 * LINE:
            return self.works(box, {})  # so much padding that it does not fit into the scratch buffer
        return [self._staged(box, kind, core, block, row, width)]

    def _joined(self, box: Box, kind: int, core: Sequence[Loop]) -> Loop | None:
        """The loop along which runs of 16 or 32 bytes make whole lines, everywhere in the box."""
        run = core[0].count * self.size
        if not self.aligned or kind != RUN or run not in (16, 32):
            return None
        along = next((loop for loop in box.loops if loop.target == run), None)
        if along is None or along.count * run % LINE or along.count * run < _ROW:
            return None
        steps = [loop.target for loop in box.loops if loop not in core and loop is not along]
        return None if any(t % LINE for t in steps) or (box.targets % LINE).any() else along

    def _near(self, loop: Loop) -> tuple[int, int]:
        sides = abs(loop.target), abs(loop.source)
        return sides if self.by_target else sides[::-1]

    def _outer(self, box: Box, loops: Sequence[Loop], along_tiles: bool) -> Array:
        """Places of the entries: the box's own slowest, then the loops along the tiled side or the other."""
        ordered = sorted(loops, key=lambda loop: self._near(loop)[:: 1 if along_tiles else -1])
        steps = places_of(ordered, [loop.target for loop in ordered])
        own = np.stack([box.sources, box.targets], axis=-1)
        return (own[:, None, :] + steps[None, :, :]).reshape(-1, 2)

    def _direct(self, box: Box, kind: int, core: Sequence[Loop], stream: bool, block: Sequence[Loop] = ()) -> Work:
        inner, moved = [loop for loop in block if loop not in core], self.size
        joined = inner[:1] if kind == RUN and stream else []
        for loop in [*core, *inner]:
            moved *= loop.count
        along = self if kind not in (RUN, LINES) else replace(self, by_target=False)
        rest = sorted((loop for loop in box.loops if loop not in core and loop not in inner), key=along._near)
        while rest and moved * rest[0].count <= _ENTRY_BYTES:
            moved *= rest[0].count
            inner.append(rest.pop(0))
        inner = [*joined, *sorted((loop for loop in inner if loop not in joined), key=along._near)]
        targets = [loop.target for loop in (*core, *inner)]
        none = np.zeros((0, 2), np.int64)
        runs = runs_of([*core, *inner], self.size) if stream and (kind == ZIP or joined) else (none[:, 0], 0)
        return self._work(kind, stream, core, inner, targets, along._outer(box, rest, True), none, 0, runs)

    def _staged(
        self, box: Box, kind: int, core: Sequence[Loop], block: Sequence[Loop], row: Sequence[Loop], width: int
    ) -> Work:
        pitch = -(-width // LINE) * LINE + LINE  # rows apart by no power of two
        across = sorted((loop for loop in block if loop not in row), key=self._near)
        scratch: dict[int, int] = {id(loop): loop.target for loop in row}
        for loop in across:
            scratch[id(loop)] = pitch
            pitch *= loop.count
        sides = (lambda loop: loop.target, lambda loop: scratch[id(loop)])
        inner = sorted((loop for loop in block if loop not in core), key=self._near)
        targets = [scratch[id(loop)] for loop in (*core, *inner)]
        rows = np.stack([places_of(across, [x(loop) for loop in across])[:, 1] for x in sides], axis=-1)
        outer = self._outer(box, [loop for loop in box.loops if loop not in block], False)
        work = self._work(kind, False, core, inner, targets, outer, rows, width, runs_of(block, self.size))
        data = math.prod(loop.count for loop in row) * self.size
        return replace(work, padded=-(-pitch // LINE) * LINE if data < width else 0)

    def _work(
        self,
        kind: int,
        stream: bool,
        core: Sequence[Loop],
        inner: Sequence[Loop],
        targets: Sequence[int],
        outer: Array,
        rows: Array,
        width: int,
        runs: tuple[Array, int],
    ) -> Work:
        kind, stream = _refined(kind, core, self.size, stream)
        steps = [(loop.count, loop.source, target) for loop, target in zip((*core, *inner), targets, strict=True)]
        one = (1, 0, 0)
        two, others = [*steps[: len(core)], one][:2], steps[len(core) :]
        if kind in (RUN, LINES, SHORTS):
            two[0] = (two[0][0] * self.size, 1, 1)
        repeat = others[0] if others else one
        places = places_of(inner[1:], targets[len(core) + 1 :])
        outer = np.concatenate([outer, np.full((len(outer), 1), width)], axis=1)
        return Work((kind, int(stream), *repeat, *two[0], *two[1]), places, rows, width, *runs, outer)


def _most_places(box: Box, size: int) -> int:
    """More entries than the box will need."""
    moved = size
    for loop in box.loops:
        moved *= loop.count
    return len(box.targets) * -(-moved // _ROW)


def plan_moves(
    boxes: Sequence[Box], size: int, total: int, by_target: bool, aligned: bool = True, gaps: Array = NO_GAPS
) -> MovePlan | None:
    """The plan for ``boxes`` of ``size``-byte elements, ``total`` bytes in all; None where it takes too many places.

    ``by_target`` tells which side is the tiled one; ``aligned``, that the target starts on a cache line; ``gaps``
    int64[n, 2], ascending, is padding (first byte, bytes) that the move may write too: see :func:`left_over`.
    """
    if size > 8:  # the kernels' widest element: a complex128 is two of 8 bytes
        pairs = [replace(b, loops=merged((Loop(size // 8, 8, 8), *b.loops))) for b in boxes]
        return plan_moves(pairs, 8, total, by_target, aligned)
    if sum(_most_places(box, size) for box in boxes) > _MOST_PLACES:
        return None
    build = _Builder(size, by_target, aligned, gaps)
    return MovePlan(tuple(w for box in boxes for w in build.works(box)), size, total)


def left_over(plan: MovePlan, gaps: Array) -> Array:
    """Those of ``gaps`` that the plan's works do not write themselves."""
    for work in plan.works:
        starts = np.sort(work.written)
        if len(starts) and len(gaps):
            row = starts[np.maximum(np.searchsorted(starts, gaps[:, 0], "right") - 1, 0)]
            gaps = gaps[(gaps[:, 0] < row) | (gaps[:, 0] + gaps[:, 1] > row + work.width)]
    return gaps


def clipped(plan: MovePlan, row: int, beyond: int, pitch: int) -> MovePlan | None:
    """The plan whose target rows, ``pitch`` bytes apart, end after ``row`` bytes, where it wrote ``beyond`` bytes more.

    None unless every piece of a row goes through the scratch memory and is longer than what it may write too much:
    no piece begins behind the row's end then, where it would be taken for one of the next row.
    """
    works = []
    for work in plan.works:
        left = row - work.places[:, 1] % pitch
        within = work.width <= left + beyond
        if not len(work.rows) or work.width <= beyond or not within.all() or (work.rows[:, 0] % pitch).any():
            return None
        places = work.places.copy()
        places[:, 2] = np.minimum(work.width, left)
        works.append(replace(work, places=places))
    return replace(plan, works=tuple(works))

"""From boxes to what the kernels do: primitives, places within entries and of them, kinds of stores.

**Order.** Whole runs follow the source, so that it is read in order. Zips and unzips follow the *tiled* side (the
target when packing, the source when unpacking), blocks the other one, which then reads and writes page after page.

**Stores.** A primitive that writes whole lines streams them past the caches, which saves reading them first. Other
boxes go block by block: a block takes a few kilobytes that are contiguous on each side (two loops are cut where they
are too long), is put together in a scratch buffer in the nearest cache, and leaves it in long streamed rows. Neither
ragged rows nor the 32-byte columns of a FRACTAL_NZ matrix then touch a line twice. A ragged edge goes with its
*shell*, the padding that fills its tiles up: written whole it costs no more than a full tile does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.types import Array
from tilewright.layout.move import JOIN, LINE, LINES, RUN, SCRATCH, SHORTS, TRANSPOSE, UNZIP, ZIP
from tilewright.layout.move.calls import NO_GAPS, MovePlan, Work, address_of, run_plan
from tilewright.layout.move.nest import Box, Loop, Term, boxes_of, layout_terms, line_up, merged

# Blocks: which loops of a box go through the scratch buffer together, and the padding that goes with them.

# Bytes a block takes contiguously on the tiled side and on the other, and in all, packing and unpacking.
_PACK_BLOCK, _UNPACK_BLOCK = (512, 512, 1 << 13), (4096, 512, 1 << 13)
_NARROW_BLOCK = (4096, 256, 1 << 13)  # unpacking runs shorter than a line
_FAR_BLOCK = (8192, 512, 1 << 14)  # unpacking what lies in many runs
_WAY, _PLACES = 1 << 17, 8  # bytes after which lines share a place in the second cache, and how many of them fit there
_SHELL_BLOCK = (4096, 512, 1 << 13)  # packing a ragged edge together with its padding
_MOST_SHELLS = 1 << 20

# Bytes of a box's data that lie together, and those up to the next, where all between is padding.
Shells = dict[int, int]


def shells_of(box: Box, size: int, gaps: Array) -> Shells:
    """Where a box of a ragged edge, taken with the padding behind its data, goes on without a gap.

    Written whole, from scratch memory that holds the padding already, such an edge costs no more than a full tile;
    written as it is, every line it shares with padding is read, written and later written again.
    """
    shells: Shells = {}
    loops = sorted(box.loops, key=lambda x: x.target)
    extent = size
    for k, loop in enumerate(loops):
        if loop.target < extent:
            break
        if loop.target > extent:
            if loop.target > _SHELL_BLOCK[0] or math.prod(x.count for x in loops[k:]) * len(box.targets) > _MOST_SHELLS:
                break
            if not len(gaps):
                break
            starts = starts_of(box, loops[k:])[:, 1] + extent
            within = np.maximum(np.searchsorted(gaps[:, 0], starts, "right") - 1, 0)
            begin, end = gaps[within, 0], gaps[within, 0] + gaps[within, 1]
            if not ((begin <= starts) & (starts + loop.target - extent <= end)).all():  # not padding everywhere
                break
            shells[extent] = loop.target
        extent = loop.target * loop.count
    return shells


Cut = tuple[Loop, int]
"""A loop that has to be cut before the block is small enough, and the steps of it that a block may take."""


def _grow(
    box: Box, side: str, block: list[Loop], cores: int, size: int, limits: tuple[int, int], shells: Shells
) -> Cut | None:
    """Add to ``block`` (the first ``cores`` are the core's) the loops contiguous on one side, up to ``limits`` bytes
    there and in all."""
    extent, (most, in_all) = size, limits
    for loop in sorted(box.loops, key=lambda x: getattr(x, side)):
        extent = shells.get(extent, extent) if side == "target" else extent
        if getattr(loop, side) != extent:
            if getattr(loop, side) < extent:
                continue
            return None
        if loop in block[cores:]:  # the other side took it whole
            extent *= loop.count
            continue
        total = size * math.prod(chosen.count for chosen in block if chosen is not loop)
        room = min(most // extent, in_all // total)
        if loop.count > room:
            return (loop, -(-loop.count // -(-loop.count // room))) if room > 1 else None
        if loop not in block:
            block.append(loop)
        extent *= loop.count
    return None


def _limits(box: Box, run: int, packing: bool, shells: Shells, joined: bool) -> tuple[int, int, int]:
    """Bytes that a block may take on the tiled side, on the other, and in all.

    What lies in one run is fetched ahead into the nearest cache, which then holds two blocks and the scratch memory.
    Runs far apart wait in the second one, so they may be longer. Runs that are ``joined``, of ``run`` bytes, are read
    in turn, a piece of each; rows or columns a power of two apart share a place in the caches, and push each other out
    unless all of them find room there: of sixteen columns of a row, 128 KiB apart, all sixteen share one place.
    """
    if shells:
        return _SHELL_BLOCK
    if packing:
        return (run * _PLACES if joined else _PACK_BLOCK[0], *_PACK_BLOCK[1:])
    near = _NARROW_BLOCK if run < LINE else _UNPACK_BLOCK
    for loop in sorted(box.loops, key=lambda x: abs(x.target)):
        if 0 < abs(loop.target) < near[1] and abs(loop.source) > near[0]:  # 0: an array whose rows are all the same one
            tiled, plain, in_all = _FAR_BLOCK
            crowd = plain // abs(loop.target) * math.gcd(loop.source, _WAY) / _WAY
            return (tiled, run * _PLACES if joined and crowd > _PLACES else plain, in_all)
    return near


def block_of(
    box: Box, core: Sequence[Loop], size: int, packing: bool, shells: Shells, joined: bool = False
) -> list[Loop] | Cut:
    """The loops of one block, the core's among them, or what to cut first; ``joined``: runs make lines together."""
    block = list(core)
    longest = max(core, key=lambda loop: loop.count)
    tiled, plain, in_all = _limits(box, core[0].count * size, packing, shells, joined)
    for side, most in (("target", tiled if packing else plain), ("source", plain if packing else tiled)):
        cut = _grow(box, side, block, len(core), size, (most, in_all), shells)
        if cut is not None:
            return cut
    if np.prod([loop.count for loop in block]) * size > SCRATCH // 2:
        return longest, longest.count // 2
    return block


def row_loops(block: Sequence[Loop], size: int, shells: Shells) -> tuple[list[Loop], int]:
    """The block's loops that make one contiguous target row, padding within and behind it included, and its bytes."""
    row, extent = [], size
    for loop in sorted(block, key=lambda x: abs(x.target)):
        extent = shells.get(extent, extent)
        if loop.target == extent:
            row.append(loop)
            extent *= loop.count
    return row, shells.get(extent, extent)


def places_of(loops: Sequence[Loop], targets: Sequence[int]) -> Array:
    """int64[n, 2]: (source, target) of all steps, the first loop fastest; ``targets`` are the steps to use."""
    places = np.zeros((1, 2), np.int64)
    for loop, target in zip(loops, targets, strict=True):
        steps = np.arange(loop.count, dtype=np.int64)[:, None] * np.array([loop.source, target])
        places = (steps[:, None, :] + places[None, :, :]).reshape(-1, 2)
    return places


def starts_of(box: Box, loops: Sequence[Loop]) -> Array:
    """int64[n, 2]: (source, target) where all steps of these loops of the box begin, the box's own places slowest."""
    own, steps = np.stack([box.sources, box.targets], axis=-1), places_of(loops, [loop.target for loop in loops])
    return (own[:, None, :] + steps).reshape(-1, 2)


def runs_of(loops: Sequence[Loop], size: int) -> tuple[Array, int]:
    """int64[r], bytes: where the runs begin that ``loops`` read, in order of address, and how long each is."""
    at, extent = np.zeros(1, np.int64), size
    for loop in sorted(loops, key=lambda x: abs(x.source)):
        if loop.source == extent:
            extent *= loop.count
        else:
            at = (np.arange(loop.count)[:, None] * loop.source + at).reshape(-1)
    return np.sort(at), extent


# Short runs that make whole lines together: where a line's runs come from, and how many lines follow each other.

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
    per_line = LINE // run
    first = next((loop for loop in loops if loop.target == run), None)
    if run not in SHORT_RUNS or first is None:
        return None
    if first.count % per_line == 0 and first.count > per_line:
        return Lines((first,), first.count // per_line, per_line * first.source, first.source, 2 * first.source)
    second = next((loop for loop in loops if loop.target == run * first.count), None)
    if per_line % first.count or second is None or second.count * first.count % per_line:
        return None
    times = per_line // first.count  # steps of the second loop to a line
    wide = second.source if times > 1 else 2 * first.source
    return Lines((first, second), second.count // times, times * second.source, first.source, wide)


_LONG_RUN = 1024  # bytes from which a run is streamed wherever it lies
_ROW = 256  # bytes from which a block's row is worth its way through the scratch buffer
_ENTRY_BYTES = 1 << 17  # what one entry of the outer table moves at most, so that threads can share
_MOST_PLACES = 1 << 24


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
    parts = [replace(box, loops=(replace(loop, count=count), *((outer,) if times > 1 else ()), *others))]
    if left:
        rest = (replace(loop, count=left),) if left > 1 else ()
        places = box.sources + times * outer.source, box.targets + times * outer.target
        parts.append(Box(*places, (*rest, *others)))
    return parts


def _refined(kind: int, core: Sequence[Loop], size: int, stream: bool) -> tuple[int, bool]:
    """The kernel's kind and whether it streams: runs by their length, rows below a line one element at a time."""
    row = core[0].count * size
    if kind == RUN and not stream and row % LINE == 0:
        return LINES, False
    if kind == RUN:
        return (SHORTS if row in SHORT_RUNS and not stream else RUN), stream
    return (TRANSPOSE, False) if row < LINE else (kind, stream)


def _writes_lines(kind: int, core: Sequence[Loop], box: Box, size: int) -> bool:
    """Whether the primitive writes whole lines wherever it stands, if the target starts on one."""
    if kind == TRANSPOSE or core[0].count * size % LINE or (kind != RUN and core[1].count > 4):
        return False
    steps = [loop.target for loop in box.loops if loop not in core or (kind == UNZIP and loop is core[1])]
    return not any(t % LINE for t in steps) and not (box.targets % LINE).any()


@dataclass(frozen=True)
class _Builder:
    """Makes works of boxes; ``by_target``: the target is the tiled side."""

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
        lines = self._lines(box, kind, core)
        block = block_of(box, core, self.size, self.by_target, shells, lines is not None)
        if isinstance(block, tuple):
            return [w for part in _split(box, *block) for w in self.works(part)]
        if lines and all(loop in block for loop in lines.loops):
            return [self._direct(box, kind, core, stream=True, block=block, lines=lines)]
        row, width = row_loops(block, self.size, shells)
        if width < _ROW:
            return [self._direct(box, kind, core, stream=False, block=block)]
        if shells and math.prod(x.count for x in block if x not in row) * (width + 2 * LINE) > SCRATCH - 2 * LINE:
            return self.works(box, {})  # so much padding that it does not fit into the scratch buffer
        return [self._staged(box, kind, core, block, row, width)]

    def _lines(self, box: Box, kind: int, core: Sequence[Loop]) -> Lines | None:
        """The lines that short runs make together everywhere in the box, if the target is made of whole lines."""
        if not self.aligned or kind != RUN:
            return None
        lines = lines_of(box.loops, core[0].count * self.size)
        if lines is None:
            return None
        steps = [loop.target for loop in box.loops if loop not in core and loop not in lines.loops]
        return None if any(t % LINE for t in steps) or (box.targets % LINE).any() else lines

    def _near(self, loop: Loop) -> tuple[int, int]:
        sides = abs(loop.target), abs(loop.source)
        return sides if self.by_target else sides[::-1]

    def _outer(self, box: Box, loops: Sequence[Loop], along_tiles: bool) -> Array:
        """Places of the entries: the box's own slowest, then the loops along the tiled side or the other."""
        return starts_of(box, sorted(loops, key=lambda loop: self._near(loop)[:: 1 if along_tiles else -1]))

    def _direct(
        self,
        box: Box,
        kind: int,
        core: Sequence[Loop],
        stream: bool,
        block: Sequence[Loop] = (),
        lines: Lines | None = None,
    ) -> Work:
        inner = [loop for loop in block if loop not in core]
        moved = self.size * math.prod(loop.count for loop in (*core, *inner))
        along = self if kind not in (RUN, LINES) else replace(self, by_target=False)
        rest = sorted((loop for loop in box.loops if loop not in core and loop not in inner), key=along._near)
        while rest and moved * rest[0].count <= _ENTRY_BYTES:
            moved *= rest[0].count
            inner.append(rest.pop(0))
        inner.sort(key=along._near)
        targets = [loop.target for loop in (*core, *inner)]
        none = np.zeros((0, 2), np.int64)
        runs = runs_of([*core, *inner], self.size) if stream and (kind == ZIP or lines) else (none[:, 0], 0)
        return self._work(kind, stream, core, inner, targets, along._outer(box, rest, True), none, 0, runs, lines)

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
        lines: Lines | None = None,
    ) -> Work:
        kind, stream = (JOIN, stream) if lines else _refined(kind, core, self.size, stream)
        steps = [(loop.count, loop.source, target) for loop, target in zip((*core, *inner), targets, strict=True)]
        one = (1, 0, 0)
        two, others = [*steps[: len(core)], one][:2], list(zip(inner, targets[len(core) :], strict=True))
        if kind in (RUN, LINES, SHORTS, JOIN):
            two[0] = (two[0][0] * self.size, 1, 1)
        repeat = steps[len(core)] if others else one
        if lines:
            repeat, two[1] = (lines.count, lines.step, LINE), (0, lines.pitch, lines.wide)
            others = [(loop, target) for loop, target in others if loop not in lines.loops]
        else:
            others = others[1:]
        places = places_of([loop for loop, _ in others], [target for _, target in others])
        outer = np.concatenate([outer, np.full((len(outer), 1), width)], axis=1)
        return Work((kind, int(stream), *repeat, *two[0], *two[1]), places, rows, width, *runs, outer)


def plan_moves(
    boxes: Sequence[Box], size: int, total: int, by_target: bool, aligned: bool = True, gaps: Array = NO_GAPS
) -> MovePlan | None:
    """The plan for ``boxes`` of ``size``-byte elements, ``total`` bytes in all; None where it takes too many places.

    ``by_target``: the target is the tiled side; ``aligned``: it starts on a cache line; ``gaps``
    int64[n, 2], ascending, is padding (first byte, bytes) that the move may write too: see :func:`left_over`.
    """
    if size > 8:  # the kernels' widest element: a complex128 is two of 8 bytes
        pairs = [replace(b, loops=merged((Loop(size // 8, 8, 8), *b.loops))) for b in boxes]
        return plan_moves(pairs, 8, total, by_target, aligned)
    moved = [size * math.prod(loop.count for loop in box.loops) for box in boxes]
    if sum(len(b.targets) * -(-m // _ROW) for b, m in zip(boxes, moved, strict=True)) > _MOST_PLACES:
        return None  # these are more entries than the boxes need
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


# -- moves: plans are made once per pair of address maps and kept, then run by threads ---------------------------------

_KEPT = 64


def aligned_empty(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised array that starts on a cache line, so that whole lines can be streamed into it."""
    raw = np.empty(count * dtype.itemsize + LINE, np.uint8)
    first = -address_of(raw) % LINE
    return raw[first : first + count * dtype.itemsize].view(dtype)


def _layout_to_array(
    layout: AddressMap, shape: tuple[int, ...], strides: Sequence[int], slot: int, packing: bool
) -> list[Box] | None:
    tiled = layout_terms(layout, slot)
    if tiled is None:
        return None
    array, (base, terms) = tuple((Term(stride),) for stride in strides), tiled
    if packing:
        return boxes_of(line_up(shape, array, shape, terms), (0, base))
    return boxes_of(line_up(shape, terms, shape, array), (base, 0))


def _padding(boxes: Sequence[Box], size: int, total: int) -> Array | None:
    """int64[n, 2]: first byte and bytes of what no box writes; None where there is so much that a fill is faster."""
    starts, lengths = [np.array([total])], [np.array([0])]
    for box in boxes:
        extent, loops = size, sorted(box.loops, key=lambda x: x.target)
        while loops and loops[0].target == extent:
            extent *= loops.pop(0).count
        count = len(box.targets) * math.prod(loop.count for loop in loops)
        if count > total // 512 + 64:
            return None
        starts.append(starts_of(box, loops)[:, 1])
        lengths.append(np.full(count, extent))
    begin, length = np.concatenate(starts), np.concatenate(lengths)
    order = np.argsort(begin, kind="stable")
    ends = np.concatenate([[0], (begin + length)[order]])[:-1]
    bytes_left = begin[order] - ends
    gaps: Array = np.stack([ends, bytes_left], axis=-1)[bytes_left > 0]
    return gaps


def _filled_plan(boxes: Sequence[Box], slot: int, total: int, aligned: bool) -> tuple[MovePlan, bool] | None:
    """A plan that writes padding too, and whether there is so much of it that the target is filled beforehand."""
    gaps = _padding(boxes, slot, total)
    whole, gaps = gaps is None, NO_GAPS if gaps is None else gaps
    plan = plan_moves(boxes, slot, total, by_target=True, aligned=aligned, gaps=gaps)
    return None if plan is None else (replace(plan, pads=left_over(plan, gaps)), whole)


@lru_cache(maxsize=_KEPT)
def pack_plan(layout: AddressMap, strides: tuple[int, ...], slot: int, aligned: bool) -> tuple[MovePlan, bool] | None:
    """How an array of these strides (in bytes) goes into a buffer of ``slot``-byte slots; None without boxes."""
    total = layout.num_slots * slot
    boxes = _layout_to_array(layout, layout.shape, strides, slot, packing=True)
    return _filled_plan(boxes, slot, total, aligned) if boxes else None


@lru_cache(maxsize=_KEPT)
def unpack_plan(layout: AddressMap, strides: tuple[int, ...], slot: int, aligned: bool) -> MovePlan | None:
    """How a buffer of ``slot``-byte slots goes into an array of these strides (in bytes); None without boxes."""
    total = layout.num_elements * slot
    boxes = _layout_to_array(layout, layout.shape, strides, slot, packing=False)
    if not boxes:
        return None
    return _unpack_rounded_rows(layout, strides, slot, aligned) or plan_moves(boxes, slot, total, False, aligned)


def _unpack_rounded_rows(layout: AddressMap, strides: tuple[int, ...], slot: int, aligned: bool) -> MovePlan | None:
    """The plan that unpacks rows whose length is no multiple of the tile as if it were; None where that does not help.

    ``strides`` are the array's in bytes, ``slot`` is the bytes of an element; ``aligned``: the array starts on a cache
    line.

    The padding behind a row's end is read and goes no further than the scratch memory. All tiles are alike then, and
    a row that is written piece by piece has no seam where its last, narrow tile begins.
    """
    sizes = [n for n in layout.shape[:-1] if n > 1]
    steps = [step for n, step in zip(layout.shape[:-1], strides, strict=False) if n > 1]
    terms = layout_terms(layout, slot)
    if not sizes or strides[-1] != slot or terms is None:
        return None
    row, pitch = layout.shape[-1] * slot, min(steps)
    whole = max((mark for term in terms[1][-1] for mark in term.marks if mark < layout.shape[-1]), default=1)
    beyond = -layout.shape[-1] % whole
    if not beyond or pitch < row or any(step % pitch for step in steps):
        return None
    shape = (*layout.shape[:-1], layout.shape[-1] + beyond)
    boxes = _layout_to_array(layout, shape, strides, slot, packing=False)
    if not boxes or any(box.reach[0] < 0 or box.reach[1] + slot > layout.num_slots * slot for box in boxes):
        return None
    plan = plan_moves(boxes, slot, layout.num_elements * slot, False, aligned)
    return None if plan is None else clipped(plan, row, beyond * slot, pitch)


@lru_cache(maxsize=_KEPT)
def relayout_plan(
    a: AddressMap, b: AddressMap, order: tuple[int, ...], slot: int, aligned: bool
) -> tuple[MovePlan, bool] | None:
    """How a buffer of layout ``a`` goes into one of layout ``b`` = reshape(transpose(a, order)); None without boxes."""
    boxes = relayout_boxes(a, b, order, slot)
    return _filled_plan(boxes, slot, b.num_slots * slot, aligned) if boxes else None


def relayout_boxes(a: AddressMap, b: AddressMap, order: Sequence[int], slot: int) -> list[Box] | None:
    """The boxes of a move from layout to layout."""
    ours, theirs = layout_terms(a, slot), layout_terms(b, slot)
    if ours is None or theirs is None:
        return None
    shape, terms = tuple(a.shape[d] for d in order), tuple(ours[1][d] for d in order)
    return boxes_of(line_up(shape, terms, b.shape, theirs[1]), (ours[0], theirs[0]))


def zero_of(dtype: np.dtype[Any]) -> Any:
    """The value whose bytes are zero: 0, but 2**-127 of f8e8m0fnu, which has no 0."""
    return np.zeros(1, dtype)[0]


def run_filled(filled_plan: tuple[MovePlan, bool], target: Array, source: Array, fill: Any) -> None:
    """Move the data and put ``fill`` (a value of the target's type) into all padding."""
    plan, whole = filled_plan
    words = np.full(max(1, 8 // target.dtype.itemsize), fill, target.dtype).view(np.int64).tolist()
    if whole or len(set(words)) > 1:  # the kernel takes 8 bytes; a complex value's halves may differ
        target[:] = fill
        run_plan(replace(plan, pads=NO_GAPS) if len(plan.pads) else plan, target, source)
    else:
        run_plan(plan, target, source, words[0])

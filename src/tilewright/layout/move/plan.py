"""From boxes to what the kernels do: primitives (``words.py``), places within entries and of them, kinds of stores.

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
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.move.blocks import (
    NO_GAPS,
    SHORT_RUNS,
    Cut,
    Lines,
    Shells,
    block_of,
    lines_of,
    places_of,
    row_loops,
    runs_of,
    shells_of,
)
from tilewright.layout.move.calls import MovePlan, Work, run_plan
from tilewright.layout.move.nest import Box, Loop, array_terms, boxes_of, layout_terms, line_up, merged
from tilewright.layout.move.words import JOIN, LINE, LINES, RUN, SCRATCH, SHORTS, TRANSPOSE, UNZIP, ZIP

Array = np.ndarray[Any, Any]
_LONG_RUN = 1024  # bytes from which a run is streamed wherever it lies
_ROW = 256  # bytes from which a block's row is worth its way through the scratch buffer
_ENTRY_BYTES = 1 << 17  # what one entry of the outer table moves at most, so that threads can share
_MOST_PLACES = 1 << 24


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
    parts = [replace(box, loops=(replace(loop, count=count), *((outer,) if times > 1 else ()), *others))]
    if left:
        rest = (replace(loop, count=left),) if left > 1 else ()
        places = box.sources + times * outer.source, box.targets + times * outer.target
        parts.append(Box(*places, (*rest, *others)))
    return parts


# -- works -------------------------------------------------------------------------------------------------------------


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
        if isinstance(block, Cut):
            return [w for part in _split(box, block.loop, block.count) for w in self.works(part)]
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
        ordered = sorted(loops, key=lambda loop: self._near(loop)[:: 1 if along_tiles else -1])
        steps = places_of(ordered, [loop.target for loop in ordered])
        own = np.stack([box.sources, box.targets], axis=-1)
        return (own[:, None, :] + steps[None, :, :]).reshape(-1, 2)

    def _direct(
        self,
        box: Box,
        kind: int,
        core: Sequence[Loop],
        stream: bool,
        block: Sequence[Loop] = (),
        lines: Lines | None = None,
    ) -> Work:
        inner, moved = [loop for loop in block if loop not in core], self.size
        for loop in [*core, *inner]:
            moved *= loop.count
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

    ``by_target``: the target is the tiled side; ``aligned``: it starts on a cache line; ``gaps``
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


# -- moves: plans are made once per pair of address maps and kept, then run by threads ---------------------------------

_KEPT = 64


def aligned_empty(count: int, dtype: np.dtype[Any]) -> Array:
    """An uninitialised array that starts on a cache line, so that whole lines can be streamed into it."""
    raw = np.empty(count * dtype.itemsize + LINE, np.uint8)
    first = -raw.ctypes.data % LINE
    return raw[first : first + count * dtype.itemsize].view(dtype)


# -- plans -------------------------------------------------------------------------------------------------------------


def _layout_to_array(
    layout: AddressMap, shape: tuple[int, ...], strides: Sequence[int], slot: int, packing: bool
) -> list[Box] | None:
    tiled = layout_terms(layout, slot)
    if tiled is None:
        return None
    array, (base, terms) = array_terms(strides), tiled
    if packing:
        return boxes_of(line_up(shape, array, shape, terms), (0, base))
    return boxes_of(line_up(shape, terms, shape, array), (base, 0))


def _padding(boxes: Sequence[Box], size: int, total: int) -> Array | None:
    """int64[n, 2]: first byte and bytes of what no box writes; None where there is so much that a fill is faster."""
    starts, lengths = [np.array([total])], [np.array([0])]
    for box in boxes:
        extent, places = size, box.targets
        loops = sorted(box.loops, key=lambda x: x.target)
        inner = 0
        while inner < len(loops) and loops[inner].target == extent:
            extent *= loops[inner].count
            inner += 1
        count = len(places)
        for loop in loops[inner:]:
            count *= loop.count
        if count > total // 512 + 64:
            return None
        for loop in loops[inner:]:
            places = (places[:, None] + np.arange(loop.count) * loop.target).reshape(-1)
        starts.append(places)
        lengths.append(np.full(len(places), extent))
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
    return _ragged_rows(layout, strides, slot, aligned) or plan_moves(boxes, slot, total, False, aligned)


def _ragged_rows(layout: AddressMap, strides: tuple[int, ...], slot: int, aligned: bool) -> MovePlan | None:
    """How to unpack ragged rows as if they ended with their last tile; None where that does not help.

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


# -- padding -----------------------------------------------------------------------------------------------------------


def zero_of(dtype: np.dtype[Any]) -> Any:
    """The value whose bytes are zero: 0, but 2**-127 of f8e8m0fnu, which has no 0."""
    return np.zeros(1, dtype)[0]


def padding_of(fill: Any, dtype: np.dtype[Any]) -> int | None:
    """8 bytes of elements ``fill``, as the kernel takes them; None for a complex one whose halves differ."""
    words = np.full(max(1, 8 // dtype.itemsize), fill, dtype).view(np.int64)
    return int(words[0]) if (words == words[0]).all() else None


def run_filled(filled_plan: tuple[MovePlan, bool], target: Array, source: Array, fill: Any) -> None:
    """Move the data and put ``fill`` (a value of the target's type) into all padding."""
    plan, whole = filled_plan
    value = padding_of(fill, target.dtype)
    if whole or value is None:
        target[:] = fill
        run_plan(replace(plan, pads=NO_GAPS) if len(plan.pads) else plan, target, source)
    else:
        run_plan(plan, target, source, value)

"""From boxes to what the kernels do: a primitive, two repeats around it, and tables of places for all outer loops.

    run         contiguous on both sides: bytes copied in vectors
    zip         p rows interleaved: the target takes one element of each row in turn, (8,128)(p,1) and its like
    unzip       the other way round
    transpose   any other pair of loops, in small blocks

The order of the loops decides how well caches work. They follow the *tiled* side (the target when packing, the source
when unpacking), whose neighbours lie close; a long loop there that jumps on the other side (the 4096 rows of a
FRACTAL_NZ column) is cut so that both sides get whole cache lines at a time.

Stores. A line that one primitive writes whole is streamed past the caches, which saves reading it first. Where lines
are written in pieces, a part of the target (``span`` bytes) is made in a scratch buffer that stays in the cache and is
streamed out as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.layout._nest import Box, Loop, merged

__all__ = ["LINES", "RUN", "SHORTS", "TRANSPOSE", "UNZIP", "ZIP", "MovePlan", "Work", "plan_moves"]

Array = np.ndarray[Any, Any]
_LINE = 64
_PAGE = 4096
_LONG_RUN = 512  # bytes from which a run is worth streaming wherever it lies
_CORE_BYTES = 1 << 15  # one primitive moves at most so much, so that threads can share
_REPEAT_BYTES = 1 << 16  # ... and with its repeats so much
_SPANS = (1 << 12, 1 << 18)  # bytes of a part made in scratch: worth its call, and fit for the second-level cache
_MOST_PLACES = 1 << 22
RUN, ZIP, UNZIP, TRANSPOSE, LINES, SHORTS = range(6)


@dataclass(frozen=True, eq=False)
class Work:
    """One primitive at many places. ``row`` is what the kernels read; ``sources`` and ``targets`` are in bytes."""

    row: tuple[int, ...]
    sources: Array
    targets: Array

    @classmethod
    def of(
        cls, kind: int, stream: bool, repeats: Sequence[Loop], core: Sequence[Loop], sides: tuple[Array, Array]
    ) -> Work:
        """``repeats`` (at most two) and ``core`` (at most two) with the fastest loop first."""
        inner = [*repeats, Loop(1, 0, 0), Loop(1, 0, 0)][1::-1] + [*core, Loop(1, 0, 0), Loop(1, 0, 0)][:2]
        numbers = [n for loop in inner for n in (loop.count, loop.source, loop.target)]
        return cls((kind, int(stream), *numbers), *sides)


@dataclass(frozen=True, eq=False)
class MovePlan:
    """What to do for one pair of address maps.

    ==========  ==================================================================================
    ``works``   primitives with their places
    ``size``    bytes of an element, the width of the kernel
    ``span``    bytes of a part made in scratch, 0 for none; parts are then numbered by target place
    ``total``   bytes of the target
    ==========  ==================================================================================
    """

    works: tuple[Work, ...]
    size: int
    span: int
    total: int

    @cached_property
    def tables(self) -> tuple[Array, Array, Array]:
        """What the kernels read: rows of numbers, and the places of all works end to end."""
        rows = np.array([work.row for work in self.works], np.int64)
        sources, targets = ([getattr(w, side) for w in self.works] for side in ("sources", "targets"))
        return rows, np.concatenate(sources), np.concatenate(targets)

    @cached_property
    def _starts(self) -> dict[int, Array]:
        return {}

    def starts(self, parts: int) -> Array:
        """int64[works, parts + 1]: where each part's places begin in the tables."""
        if parts not in self._starts:
            found, base = np.empty((len(self.works), parts + 1), np.int64), 0
            for k, work in enumerate(self.works):
                if self.span:
                    found[k] = base + np.searchsorted(work.targets // self.span, np.arange(parts + 1))
                else:
                    found[k] = base + np.arange(parts + 1) * len(work.targets) // parts
                base += len(work.targets)
            self._starts[parts] = found
        return self._starts[parts]


# -- the primitive -----------------------------------------------------------------------------------------------------


def _one_step(loops: Sequence[Loop], size: int, side: str) -> Loop | None:
    return next((loop for loop in loops if getattr(loop, side) == size), None)


def _core(loops: Sequence[Loop], size: int) -> tuple[int, list[Loop]]:
    """The primitive and its loops: (bytes,) of a run, else (elements, rows)."""
    loops = sorted(loops, key=lambda x: (abs(x.target), abs(x.source)))
    into, out_of = _one_step(loops, size, "target"), _one_step(loops, size, "source")
    if into and into == out_of:
        return RUN, [into]
    if into and out_of:
        if into.count in (2, 4, 8) and out_of.target == into.count * size:
            return ZIP, [out_of, into]
        if out_of.count in (2, 4, 8) and into.source == out_of.count * size:
            return UNZIP, [into, out_of]
    if not loops:
        return RUN, []
    first = into or loops[0]
    second = out_of if out_of is not first else None
    second = second or next((loop for loop in loops if loop is not first), None)
    return TRANSPOSE, [first, second] if second else [first]


def _cut_loop(loop: Loop, count: int) -> tuple[Loop, Loop, Loop]:
    """``count`` steps, the times that fits, and what is left, as loops."""
    times, rest = divmod(loop.count, count)
    outer = Loop(times, loop.source * count, loop.target * count)
    return replace(loop, count=count), outer, replace(loop, count=rest)


def _split_box(box: Box, loop: Loop, count: int) -> list[Box]:
    """The box with ``loop`` cut into blocks of ``count``, and a box for the rest."""
    inner, outer, rest = _cut_loop(loop, count)
    others = tuple(other for other in box.loops if other is not loop)
    found = [replace(box, loops=(inner, outer, *others))]
    if rest.count:
        at = outer.count * outer.source, outer.count * outer.target
        left = (rest, *others) if rest.count > 1 else others
        found.append(Box(box.sources + at[0], box.targets + at[1], left))
    return found


# -- the order ---------------------------------------------------------------------------------------------------------


def _near(loop: Loop, by_target: bool) -> int:
    return abs(loop.target if by_target else loop.source)


def _long_jump(box: Box, core: Sequence[Loop], by_target: bool) -> tuple[Loop, int] | None:
    """A loop to cut, and where: long on the tiled side, far apart on the other, with closer loops outside it."""
    for loop in box.loops:
        stride, jump = _near(loop, by_target), _near(loop, not by_target)
        if loop in core or stride * loop.count <= _PAGE or jump < _LONG_RUN or not 0 < stride < 1024:
            continue
        closer = [x for x in box.loops if x not in core and _near(x, by_target) > stride]
        if any(_near(x, not by_target) < jump for x in closer):
            return loop, max(2, 2048 // stride)
    return None


def _blocked(box: Box, size: int, by_target: bool) -> list[Box]:
    """Boxes whose primitives are short enough to share and whose long jumps are cut."""
    kind, core = _core(box.loops, size)
    long = next((loop for loop in core if loop.count * size > _CORE_BYTES), None)
    if long is not None:
        parts = _split_box(box, long, _CORE_BYTES // size // (1 if kind == RUN else 8))
    else:
        jump = _long_jump(box, core, by_target)
        if jump is None or jump[1] >= jump[0].count:
            return [box]
        inner, count = jump
        parts = _split_box(box, inner, count)
        return [parts[0], *(part for rest in parts[1:] for part in _blocked(rest, size, by_target))]
    return [piece for part in parts for piece in _blocked(part, size, by_target)]


def _ordered(loops: Sequence[Loop], by_target: bool) -> list[Loop]:
    """Fastest first: along the tiled side, but what an inner block cut off comes last of all it jumps over."""

    def key(loop: Loop) -> tuple[int, int]:
        stride, jump = _near(loop, by_target), _near(loop, not by_target)
        behind = [_near(x, by_target) for x in loops if _near(x, not by_target) < jump and stride < _PAGE <= jump]
        return (max([stride, *behind]) if stride >= 1024 and behind else stride, jump)

    return sorted(loops, key=key)


def _table(box: Box, loops: Sequence[Loop]) -> tuple[Array, Array]:
    """Places of the box's outer loops, the last of ``loops`` slowest; of the box's own places slower still."""
    sources, targets = box.sources, box.targets
    for loop in reversed(loops):
        k = np.arange(loop.count, dtype=np.int64)
        sources = (sources[:, None] + k * loop.source).reshape(-1)
        targets = (targets[:, None] + k * loop.target).reshape(-1)
    return sources, targets


def _places(box: Box, inner: int) -> int:
    count = len(box.targets)
    for loop in box.loops:
        count *= loop.count
    return count // max(inner, 1)


# -- stores ------------------------------------------------------------------------------------------------------------


def _whole_lines(kind: int, core: Sequence[Loop], repeats: Sequence[Loop], box: Box, size: int) -> bool:
    """Whether the primitive and its repeats write whole lines in order, if the target starts on a line."""
    row = core[0].count * size if core else size
    if kind == TRANSPOSE or (kind != RUN and (row % _LINE or core[1].count > 4)):
        return False
    if kind == RUN and row % _LINE and row not in (16, 32):
        return False
    extent = size
    for loop in [*reversed(core), *repeats] if kind != UNZIP else core[:1]:
        if loop.target != extent:
            break
        extent *= loop.count
    steps = [loop.target for loop in box.loops if abs(loop.target) >= extent]
    return extent % _LINE == 0 and not any(t % _LINE for t in steps) and not (box.targets % _LINE).any()


def _refined(kind: int, core: Sequence[Loop], size: int, stream: bool) -> tuple[int, bool]:
    """The kernel's kind, and whether it streams: runs by their length, short zips one by one."""
    row = core[0].count * size if core else size
    if kind == RUN:
        if row % _LINE == 0 and (stream or row < _LONG_RUN):
            return LINES, stream
        if row in (16, 32):
            return SHORTS, stream
        return RUN, row >= _LONG_RUN
    return (TRANSPOSE, False) if row < _LINE else (kind, stream)


# -- the whole ---------------------------------------------------------------------------------------------------------


def _work(box: Box, size: int, by_target: bool, span: int, aligned: bool) -> Work | None:
    kind, core = _core(box.loops, size)
    others = _ordered([loop for loop in box.loops if loop not in core], by_target)
    near = [loop for loop in others if not span or abs(loop.target) < span]
    repeats: list[Loop] = []
    done = size
    for loop in core:
        done *= loop.count
    for loop in near[:2]:
        if done * loop.count <= _REPEAT_BYTES:
            repeats.append(loop)
            done *= loop.count
        else:
            break
    outer = near[len(repeats) :] + [loop for loop in others if loop not in near]
    if _places(box, done // size) > _MOST_PLACES:
        return None
    stream = aligned and not span and _whole_lines(kind, core, repeats, box, size)
    kind, stream = _refined(kind, core, size, stream)
    if span and kind == RUN:
        stream = False  # into the cache
    if kind in (RUN, LINES, SHORTS):
        core = [replace(core[0], count=core[0].count * size)] if core else [Loop(size, 0, 0)]
    sources, targets = _table(box, outer)
    if span:
        order = np.argsort(targets // span, kind="stable")
        sources, targets = sources[order], targets[order]
    return Work.of(kind, stream, repeats, core, (sources, targets))


def _spans(boxes: Sequence[Box], size: int) -> list[int]:
    """Part sizes that no box and no primitive straddles, ascending."""
    steps = {abs(loop.target) for box in boxes for loop in box.loops}
    found = []
    for span in sorted(s for s in steps if _SPANS[0] <= s <= _SPANS[1]):
        if all(_inside(box, span, size) for box in boxes):
            found.append(span)
    return found


def _inside(box: Box, span: int, size: int) -> bool:
    if any(loop.target >= span for loop in _core(box.loops, size)[1]):
        return False
    near = [loop for loop in box.loops if abs(loop.target) < span]
    if any(loop.target < 0 for loop in box.loops) or any(loop.target % span for loop in box.loops if loop not in near):
        return False
    reach = sum((loop.count - 1) * loop.target for loop in near)
    return bool((box.targets % span + reach < span).all())


def plan_moves(
    boxes: Sequence[Box], size: int, total: int, by_target: bool, aligned: bool = True, dense: bool = False
) -> MovePlan | None:
    """The plan for ``boxes`` of ``size``-byte elements into a target of ``total`` bytes; None where it is too large.

    ``by_target`` tells which side is the tiled one. ``aligned``: the target starts on a cache line. ``dense``: every
    byte of the target is written by this move or is padding, so that parts of it may be made in scratch.
    """
    if size > 8:  # the kernels' widest element: a complex128 is two of 8 bytes
        pairs = [replace(b, loops=merged((Loop(size // 8, 8, 8), *b.loops))) for b in boxes]
        return plan_moves(pairs, 8, total, by_target, aligned, dense)
    span = 0
    if dense and not all(_direct(box, size, aligned) for box in boxes):
        span = max(_spans(boxes, size), default=0)
    cut = [piece for box in boxes for piece in _blocked(box, size, by_target)]
    works = [_work(box, size, by_target, span, aligned) for box in cut]
    if any(work is None for work in works):
        return None
    return MovePlan(tuple(w for w in works if w is not None), size, span, total)


def _direct(box: Box, size: int, aligned: bool) -> bool:
    """Whether the box needs no scratch: long runs, or lines written whole."""
    kind, core = _core(box.loops, size)
    if kind == RUN:
        length = core[0].count * size if core else size
        return length >= 4 * _LONG_RUN or (aligned and length % _LINE == 0 and not _off_line(box))
    return kind == UNZIP and aligned and core[0].count * size % _LINE == 0 and core[1].count < 8 and not _off_line(box)


def _off_line(box: Box) -> bool:
    return any(loop.target % _LINE for loop in box.loops if abs(loop.target) >= _LINE) or bool(
        (box.targets % _LINE).any()
    )

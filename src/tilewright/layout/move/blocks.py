"""Blocks: which loops of a box go through the scratch buffer together, and the padding that goes with them.

A block takes a few kilobytes that are contiguous on each side, so that both are read and written in long rows. A
ragged edge goes with its *shell*, the padding that fills its tiles up: written whole it costs no more than a full
tile does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.layout.move.nest import Box, Loop
from tilewright.layout.move.words import LINE, SCRATCH

Array = np.ndarray[Any, Any]
NO_GAPS = np.zeros((0, 2), np.int64)
# Bytes a block takes contiguously on the tiled side and on the other, and in all, packing and unpacking.
_PACK_BLOCK, _UNPACK_BLOCK = (512, 512, 1 << 13), (4096, 512, 1 << 13)
_NARROW_BLOCK = (4096, 256, 1 << 13)  # unpacking runs shorter than a line
_FAR_BLOCK = (8192, 512, 1 << 14)  # unpacking what lies in many runs
_WAY, _PLACES = 1 << 17, 8  # bytes after which lines share a place in the second cache, and how many of them fit there
_SHELL_BLOCK = (4096, 512, 1 << 13)  # packing a ragged edge together with its padding
_MOST_SHELLS = 1 << 20

# -- padding -----------------------------------------------------------------------------------------------------------

# Bytes of a box's data that lie together, and those up to the next, where all between is padding.
Shells = dict[int, int]


def _all_padding(gaps: Array, starts: Array, length: int) -> bool:
    """Whether the ``length`` bytes from each of ``starts`` lie within one of ``gaps`` int64[n, 2] (start, bytes)."""
    if not len(gaps):
        return False
    within = np.maximum(np.searchsorted(gaps[:, 0], starts, "right") - 1, 0)
    begin, end = gaps[within, 0], gaps[within, 0] + gaps[within, 1]
    return bool(((begin <= starts) & (starts + length <= end)).all())


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
            starts = box.targets + extent
            for other in loops[k:]:
                starts = (starts[:, None] + np.arange(other.count) * other.target).reshape(-1)
            if not _all_padding(gaps, starts, loop.target - extent):
                break
            shells[extent] = loop.target
        extent = loop.target * loop.count
    return shells


# -- blocks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """A loop that has to be cut before the block is small enough."""

    loop: Loop
    count: int


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
        total = size
        for chosen in block:
            if chosen is not loop:
                total *= chosen.count
        room = min(most // extent, in_all // total)
        if loop.count > room:
            return Cut(loop, -(-loop.count // -(-loop.count // room))) if room > 1 else None
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
        return Cut(longest, longest.count // 2)
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

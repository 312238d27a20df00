"""Checks of every buffer write, off by default: each store is held to its bounds, and canaries lie between buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.embed._types import Entries, Index, Ints, Longs
from tilewright.errors import CheckFailed
from tilewright.kernels import njit

if TYPE_CHECKING:
    from tilewright.embed._buffers import Buffers
    from tilewright.embed._tally import Tally

__all__ = ["CANARY", "GUARD", "check_canaries", "put", "set_canaries", "write_checked"]

GUARD = 64
"""Slots of canaries before, between and behind the stacks' buffers, where they are asked for."""

CANARY = 0x5CA1AB1E
"""Neither padding nor an id that fits a table of less than 1.5 milliard rows a shard."""

_FINE = -1


@njit(cache=True, nogil=True)
def _put_entries(
    out: Entries, at: Index, entries: Entries, begin: Index, n: Index, low: Index, high: Index
) -> np.int64:
    """Copy ``n`` entries, each store tested; the first slot outside ``low .. high``, or -1."""
    for j in range(n):
        if at + j < low or at + j >= high:
            return np.int64(at + j)
        out[0][at + j] = entries[0][begin + j]
        out[1][at + j] = entries[1][begin + j]
        out[2][at + j] = entries[2][begin + j]
    return np.int64(_FINE)


@njit(cache=True, nogil=True)
def _put_pointers(out: Ints, at: Index, pointers: Ints, low: Index, high: Index) -> np.int64:
    for j in range(pointers.size):
        if at + j < low or at + j >= high:
            return np.int64(at + j)
        out[at + j] = pointers[j]
    return np.int64(_FINE)


def put(buffers: Buffers, stack: int, source: int, at: tuple[int, int], made: tuple[Entries, int, Ints]) -> None:
    """Store ``made`` (entries, how many, pointers) at slot and pointer ``at``; :class:`CheckFailed` outside of them."""
    entries, n, pointers = made
    low, high = buffers.bounds(stack, source)
    wrong = int(_put_entries(buffers.out, at[0], entries, 0, n, low, high))
    if wrong != _FINE:
        raise _outside(buffers, stack, source, f"slot {wrong}", low, high)
    low, high = buffers.pointer_bounds(stack, source)
    wrong = int(_put_pointers(buffers.row_pointers, at[1], pointers, low, high))
    if wrong != _FINE:
        raise _outside(buffers, stack, source, f"row pointer {wrong}", low, high)


def write_checked(buffers: Buffers, tally: Tally, places: Longs) -> None:
    """What ``write_plain`` does, every store tested; slower by far."""
    from tilewright.embed._write import write_plain

    stacks, sources = places.shape[:2]
    for k in range(stacks):
        units = tally.first_unit[k : k + 2]
        for l in range(sources):
            origin, at, end, pointer = (int(x) for x in places[k, l])
            room = max(0, end - at)
            entries = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.float32)
            pointers = np.empty(buffers.segment, np.int32)
            _check_fits(buffers, tally, (k, l), at, end)
            one = np.array([[[0, 0, room, 0]]], np.int64)
            part = slice(l, l + 1)
            counts = np.ascontiguousarray(tally.counts[:, :, part])
            bases = np.ascontiguousarray(tally.bases[:, part])
            ends = np.full((1, 1), room, np.int64)
            write_plain(units, (0, 1), bases, counts, tally.entries, one, ends, entries, pointers)
            put(buffers, k, l, (at, pointer), (entries, room, pointers + np.int32(at - origin)))
            buffers.ends[k, l] = at + int(ends[0, 0])


def _check_fits(buffers: Buffers, tally: Tally, where: tuple[int, int], at: int, end: int) -> None:
    """The partitions, each rounded up to 8, have room between ``at`` and ``end``."""
    k, l = where
    first, last = int(tally.first_unit[k]), int(tally.first_unit[k + 1])
    need = int((-(-tally.counts[first:last, 0, l].sum(axis=0, dtype=np.int64) // 8) * 8).sum())
    if at + need > end:
        raise _outside(buffers, k, l, f"slot {at + need - 1}", at, end)


def _outside(buffers: Buffers, stack: int, source: int, what: str, low: int, high: int) -> CheckFailed:
    name = buffers.stacking.groups[stack].name
    told = f"a write to {what}, outside {low} .. {high - 1}"
    return CheckFailed(
        told, where=f"memory bounds: stack {name!r}, source {source}", how="please report it: a bug here"
    )


def _gaps(buffers: Buffers) -> list[tuple[str, int]]:
    """Every gap: what lies before it, and its first slot."""
    names = list(buffers.stacking.stacks)
    sizes = buffers.slots * (buffers.sources // buffers.per_device)
    ends = zip(names, (buffers.first_slot + sizes).tolist())
    return [("the first stack's front", 0), *((f"stack {name!r}", end) for name, end in ends)]


def set_canaries(buffers: Buffers) -> None:
    """Fill the gaps."""
    for _, begin in _gaps(buffers):
        for flat in buffers.out:
            flat.view(np.int32)[begin : begin + GUARD] = CANARY


def check_canaries(buffers: Buffers) -> None:
    """:class:`CheckFailed` that names the buffer beside the first gap that was written to."""
    for name, begin in _gaps(buffers):
        for kind, flat in zip(("embedding_ids", "sample_ids", "gains"), buffers.out):
            wrong = np.flatnonzero(flat.view(np.int32)[begin : begin + GUARD] != CANARY)
            if wrong.size:
                what = f"{kind}: {wrong.size} canaries overwritten, the first {int(wrong[0])} slots behind the end"
                raise CheckFailed(what, where=f"buffer check: {name}", how="please report it: a bug here")

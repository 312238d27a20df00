"""Step 3 of preprocessing: the padded buffers of every stack, and where each source's slots begin in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tilewright.embed.host.arrays import (
    Block,
    Entries,
    Floats,
    Index,
    Ints,
    Longs,
    lease,
    physical_bytes,
    recycled,
    run_all,
)
from tilewright.embed.host.batch import BUCKETS
from tilewright.embed.host.tally import Tally
from tilewright.embed.model.formulas import round8
from tilewright.embed.model.stacking import Stacking
from tilewright.errors import CheckFailed, UsageError
from tilewright.kernels import njit

if TYPE_CHECKING:
    from tilewright.embed.host.tally import Tally


def _check_memory(need: int) -> None:
    """Systems that overcommit memory would end the process when the buffers are filled: say so before."""
    have = physical_bytes()
    if need > have:
        what = f"the buffers take {need} bytes, the machine has {have}"
        how = 'lower max_ids_per_partition; overflow="drop" or "error" take 64 times less'
        raise UsageError(what, where="preprocess", how=how)


@dataclass(frozen=True, eq=False)
class Buffers:
    """The buffers of all stacks, stack after stack in four flat arrays.

    ``slots`` and ``pointers`` int64[stacks]: per device; ``first_slot`` and ``first_pointer``: where a stack begins.
    ``ends`` int64[stacks, sources]: where the data of the batch ended that these buffers held before; padding since.
    ``bounds_checked``: every store is tested; ``guard``: slots of canaries before, between and behind the stacks.
    """

    stacking: Stacking
    sources: int
    minibatch_layout: bool
    slots: Longs
    first_slot: Longs
    pointers: int
    row_pointers: Ints
    out: Entries
    ends: Longs
    block: Block
    bounds_checked: bool = False
    guard: int = 0

    @classmethod
    def allocate(
        cls,
        stacking: Stacking,
        sources: int,
        max_ids: Longs,
        minibatch_layout: bool,
        bounds_checked: bool = False,
        guard: int = 0,
    ) -> Buffers:
        """Room for ``max_ids`` int64[stacks] entries per partition, 64 times in the mini-batch layout; not filled."""
        topology = stacking.topology
        per_device = topology.sparsecores_per_device
        devices, times = sources // per_device, BUCKETS if minibatch_layout else 1
        slots = round8(max_ids) * (per_device * topology.sparsecores * times)
        for name, n in zip(stacking.stacks, slots):
            if n >= 2**31:
                what = f"the buffer would have {n} slots per device, more than int32 pointers reach"
                raise UsageError(what, where=f"stack {name!r}", how="lower max_ids_per_partition")
        ends = np.cumsum(slots * devices + guard)
        pointers = per_device * max(topology.sparsecores, 8) * times
        total, all_pointers = int(ends[-1]) + guard, pointers * devices * len(slots)
        _check_memory(12 * total + 4 * all_pointers)
        memory, block = lease(12 * total, (tuple(slots.tolist()), sources, per_device, minibatch_layout, guard))
        flat = memory[: 12 * total].view(np.int32).reshape(3, total)
        out = flat[0], flat[1], flat[2].view(np.float32)
        known: Longs = np.full((len(slots), sources), total, np.int64) if block.content is None else block.content
        block.content = None  # until this batch is written
        row_pointers = recycled(all_pointers, np.int32)
        first = ends - slots * devices
        made = (slots, first, pointers, row_pointers, out, known, block)
        return cls(stacking, sources, minibatch_layout, *made, bounds_checked, guard)

    def bounds(self, stack: int, source: int) -> tuple[int, int]:
        """First slot, and the one behind the last, that a source may write: its slice, or its device's buffer."""
        device, inside = divmod(source, self.per_device)
        low = int(self.first_slot[stack]) + device * int(self.slots[stack])
        if self.minibatch_layout:
            return low, low + int(self.slots[stack])
        own = int(self.slots[stack]) // self.per_device
        return low + inside * own, low + (inside + 1) * own

    def pointer_bounds(self, stack: int, source: int) -> tuple[int, int]:
        """The same for row pointers."""
        device, inside = divmod(source, self.per_device)
        low = stack * (self.row_pointers.size // len(self.slots)) + device * self.pointers
        if self.minibatch_layout:
            return low, low + self.pointers
        return low + inside * self.segment, low + (inside + 1) * self.segment

    def done(self) -> None:
        """Say that the buffers are written, and ``ends`` with them."""
        self.block.content = self.ends

    @property
    def per_device(self) -> int:
        """SparseCores behind one device."""
        return self.stacking.topology.sparsecores_per_device

    @property
    def segment(self) -> int:
        """Pointers of one source and mini-batch."""
        return max(self.stacking.topology.sparsecores, 8)

    def places(self, required: Longs) -> Longs:
        """int64[stacks, sources, 4] for one mini-batch: slot that pointers count from, first slot, end, first pointer.

        ``required`` int64[stacks, sources]: slots each source uses.
        """
        stacks = len(self.slots)
        device, inside = np.divmod(np.arange(self.sources), self.per_device)
        base = self.first_slot[:, None] + device * self.slots[:, None]
        places = np.empty((stacks, self.sources, 4), np.int64)
        if self.minibatch_layout:
            ends = required.reshape(stacks, -1, self.per_device).cumsum(axis=2)
            starts = base + (ends - required.reshape(ends.shape)).reshape(stacks, -1)
            places[..., 0], places[..., 1] = base, starts
            places[:, :-1, 2] = starts[:, 1:]
            places[:, self.per_device - 1 :: self.per_device, 2] = (base + self.slots[:, None])[:, :: self.per_device]
        else:
            own = self.slots[:, None] // self.per_device
            places[..., 0] = places[..., 1] = base + inside * own
            places[..., 2] = places[..., 0] + own
        places[..., 3] = np.arange(stacks)[:, None] * (self.row_pointers.size // stacks)
        places[..., 3] += device * self.pointers + inside * self.segment
        return places

    def write(self, tally: Tally, required: Longs, threads: int) -> None:
        """Fill the buffers where nothing is cut or dropped."""
        places = self.places(required)
        if self.bounds_checked:
            write_checked(self, tally, places)
        else:
            self._write_plain(tally, places, threads)
        if self.minibatch_layout:
            self.repeat_last_pointer(1)
        self.done()

    def _write_plain(self, tally: Tally, places: Longs, threads: int) -> None:
        from tilewright.embed.host.write_kernels import write_plain

        parts = min(threads, self.sources) if self.out[0].size > 1 << 15 else 1
        cuts = [self.sources * i // parts for i in range(parts + 1)]
        run_all(
            [
                partial(
                    write_plain,
                    tally.first_unit,
                    cut,
                    tally.bases,
                    tally.counts,
                    tally.entries,
                    places,
                    self.ends,
                    self.out,
                    self.row_pointers,
                )
                for cut in pairwise(cuts)
            ],
            threads,
        )

    def repeat_last_pointer(self, minibatches: int) -> None:
        """Segments that no mini-batch uses hold the device's last pointer."""
        per_device = self.row_pointers.reshape(-1, self.pointers)
        used = self.per_device * minibatches * self.segment
        per_device[:, used:] = per_device[:, used - 1 : used]

    def views(self) -> tuple[dict[str, Ints], dict[str, Ints], dict[str, Ints], dict[str, Floats]]:
        """Row pointers, rows, samples and gains of every stack, [devices, ...], read-only: the memory comes back."""
        names = list(self.stacking.stacks)
        devices = self.sources // self.per_device
        pointers = self.row_pointers.reshape(len(names), devices, self.pointers)
        rows, samples, gains = (flat.view() for flat in self.out)
        rows.flags.writeable = samples.flags.writeable = gains.flags.writeable = False
        places = zip(names, self.first_slot.tolist(), self.slots.tolist())
        at = [(name, slice(first, first + n * devices), (devices, n)) for name, first, n in places]
        return (
            dict(zip(names, pointers)),
            {name: rows[part].reshape(shape) for name, part, shape in at},
            {name: samples[part].reshape(shape) for name, part, shape in at},
            {name: gains[part].reshape(shape) for name, part, shape in at},
        )


# Checks of every buffer write, off by default: each store is held to its bounds, and canaries lie between buffers.

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
    from tilewright.embed.host.write_kernels import write_plain

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

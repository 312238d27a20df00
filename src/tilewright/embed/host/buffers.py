"""Step 3 of preprocessing: the padded buffers of every stack, and where each source's slots begin in them."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Entries, Floats, Ints, Longs, lease, recycled
from tilewright.embed.host.tally import Tally
from tilewright.embed.model.formulas import pointers_per_device, pointers_per_segment, slots_per_device
from tilewright.embed.model.stacking import Stacking
from tilewright.errors import CheckFailed, UsageError
from tilewright.kernels.threads import run_all, thread_count
from tilewright.layout.index.types import machine_bytes

GUARD = 64
"""Slots of canaries before, between and behind the stacks' buffers, where they are asked for."""
CANARY = 0x5CA1AB1E
"""Neither padding nor an id that fits a table of less than 1.5 billion rows a shard."""

Arrays: TypeAlias = tuple[dict[str, Ints], dict[str, Ints], dict[str, Ints], dict[str, Floats]]
"""Row pointers, embedding ids, sample ids and gains of every stack, as a HostBatch has them."""


class Buffers:
    """The buffers of all stacks, stack after stack in four flat arrays ``row_pointers`` and ``out``; not filled yet.

    Room for ``max_ids`` entries per partition of every stack, 64 times in the mini-batch layout. ``slots``
    int64[stacks], ``pointers`` of each: per device. ``first_slot`` int64[stacks]: where a stack begins.
    ``ends`` int64[stacks, sources]: where the data of the batch ended that these buffers held before; padding since.
    ``bounds_checked``: every store is tested; ``guard``: slots of canaries before, between and behind the stacks.
    """

    def __init__(
        self,
        stacking: Stacking,
        sources: int,
        max_ids: tuple[int, ...],
        minibatch_layout: bool,
        bounds_checked: bool = False,
        guarded: bool = False,
    ) -> None:
        self.stacking, self.sources, self.minibatch_layout = stacking, sources, minibatch_layout
        self.bounds_checked, self.guard = bounds_checked, GUARD if guarded else 0
        shards, devices = stacking.topology.sparsecores, sources // self.per_device
        sizes = [slots_per_device(n, shards, self.per_device, minibatch_layout) for n in max_ids]
        for name, n in zip(stacking.stacks, sizes):
            if n >= 2**31:
                problem = f"the buffer would have {n} slots per device, more than int32 pointers reach"
                raise UsageError(problem, where=f"stack {name!r}", how="lower max_ids_per_partition")
        self.slots: Longs = np.array(sizes, np.int64)
        stops = np.cumsum(self.slots * devices + self.guard)
        self.first_slot: Longs = stops - self.slots * devices
        self.pointers = pointers_per_device(shards, self.per_device, minibatch_layout)
        total, all_pointers = int(stops[-1]) + self.guard, self.pointers * devices * len(sizes)
        need, have = 12 * total + 4 * all_pointers, machine_bytes()
        if need > have:  # systems that overcommit memory would end the process when the buffers are filled
            problem = f"the buffers take {need} bytes, the machine has {have}"
            how = 'lower max_ids_per_partition; minibatch_layout="needed" takes 64 times less where nothing is cut'
            raise UsageError(problem, where="preprocess", how=how)
        memory, self.block = lease(12 * total, (tuple(sizes), sources, self.per_device, minibatch_layout, self.guard))
        flat = memory[: 12 * total].view(np.int32).reshape(3, total)
        self.out: Entries = flat[0], flat[1], flat[2].view(np.float32)
        known = self.block.content
        self.ends: Longs = np.full((len(sizes), sources), total, np.int64) if known is None else known
        self.block.content = None  # until this batch is written
        self.row_pointers: Ints = recycled(all_pointers, np.int32)
        for _, begin in self._gaps():
            flat[:, begin : begin + GUARD] = CANARY

    @property
    def per_device(self) -> int:
        """SparseCores behind one device."""
        return self.stacking.topology.sparsecores_per_device

    @property
    def segment(self) -> int:
        """Pointers of one source and mini-batch."""
        return pointers_per_segment(self.stacking.topology.sparsecores)

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

    def write(self, tally: Tally, required: Longs) -> tuple[Arrays, Longs]:
        """The buffers filled where nothing is cut or dropped; int64[stacks, S]: entries dropped per shard, none."""
        from tilewright.embed.host.write_kernels import write_plain

        threads = thread_count()
        parts = min(threads, self.sources) if self.out[0].size > 1 << 15 else 1
        cuts = [self.sources * i // parts for i in range(parts + 1)]
        rest = tally.runs, self.places(required), self.ends, self.out, self.row_pointers
        run_all([partial(write_plain, tally.first_unit, cut, *rest) for cut in pairwise(cuts)], threads)
        return self.finished(), np.zeros((len(self.slots), tally.counts.shape[3]), np.int64)

    def finished(self, minibatches: int = 1) -> Arrays:
        """The arrays of all stacks, [devices, ...], once they are written; read-only, for the memory comes back."""
        if self.minibatch_layout:  # segments that no mini-batch uses hold the device's last pointer
            per_device = self.row_pointers.reshape(-1, self.pointers)
            used = self.per_device * minibatches * self.segment
            per_device[:, used:] = per_device[:, used - 1 : used]
        self._check_canaries()
        self.block.content = self.ends
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

    def put(
        self, stack: int, source: int, at: tuple[int, int], end: int, entries: Entries, number: int, pointers: Ints
    ) -> None:
        """Store so many entries, and the pointers, from slot and pointer ``at`` on; :class:`CheckFailed` where one of
        them lies outside of what the source may write: its slice, which ends at ``end``, or its device's buffer."""
        device, inside = divmod(source, self.per_device)
        low, size = int(self.first_slot[stack]) + device * int(self.slots[stack]), int(self.slots[stack])
        first = stack * (self.row_pointers.size // len(self.slots)) + device * self.pointers
        high, last = low + size, first + self.pointers
        if not self.minibatch_layout:
            low, first = low + inside * (size // self.per_device), first + inside * self.segment
            high, last = min(low + size // self.per_device, end), first + self.segment
        for kind, begin, count, least, bound in (
            ("slot", at[0], number, low, high),
            ("row pointer", at[1], pointers.size, first, last),
        ):
            if begin < least or begin + count > bound:
                wrong = begin if begin < least else max(begin, bound)
                where = f"memory bounds: stack {self.stacking.groups[stack].name!r}, source {source}"
                problem = f"a write to {kind} {wrong}, outside {least} .. {bound - 1}"
                raise CheckFailed(problem, where=where, how="please report it: a bug here")
        for flat, values in zip(self.out, entries):
            flat[at[0] : at[0] + number] = values[:number]
        self.row_pointers[at[1] : at[1] + pointers.size] = pointers

    def _gaps(self) -> list[tuple[str, int]]:
        """Every gap between the stacks' buffers, if they are guarded: what lies before it, and its first slot."""
        if not self.guard:
            return []
        sizes = self.slots * (self.sources // self.per_device)
        ends = zip(self.stacking.stacks, (self.first_slot + sizes).tolist())
        return [("the first stack's front", 0), *((f"stack {name!r}", end) for name, end in ends)]

    def _check_canaries(self) -> None:
        """:class:`CheckFailed` that names the buffer beside the first gap that was written to."""
        for name, begin in self._gaps():
            for kind, flat in zip(("embedding_ids", "sample_ids", "gains"), self.out):
                wrong = np.flatnonzero(flat.view(np.int32)[begin : begin + GUARD] != CANARY)
                if wrong.size:
                    slots = f"{wrong.size} canaries overwritten, the first {int(wrong[0])} slots behind the end"
                    how = "please report it: a bug here"
                    raise CheckFailed(f"{kind}: {slots}", where=f"buffer check: {name}", how=how)

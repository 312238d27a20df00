"""Step 3 of preprocessing: the padded buffers of every stack, and where each source's slots begin in them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from tilewright.embed._formulas import round8
from tilewright.embed._minibatch import BUCKETS
from tilewright.embed._recycle import Block, lease, physical_bytes, recycled
from tilewright.embed._stacking import Stacking
from tilewright.embed._tally import Tally
from tilewright.embed._threads import run_all
from tilewright.embed._types import Entries, Floats, Ints, Longs
from tilewright.errors import UsageError

__all__ = ["Buffers"]


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
            from tilewright.embed._guards import write_checked

            write_checked(self, tally, places)
        else:
            self._write_plain(tally, places, threads)
        if self.minibatch_layout:
            self.repeat_last_pointer(1)
        self.done()

    def _write_plain(self, tally: Tally, places: Longs, threads: int) -> None:
        from tilewright.embed._write import write_plain

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

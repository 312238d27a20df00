"""What preprocessing hands to the SparseCores: padded buffers per stack, and what was counted on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.embed._stacking import Stacking
from tilewright.embed._types import Entries, Floats, Ints, Longs
from tilewright.errors import UsageError

__all__ = ["HostBatch", "StackStats"]


class StackStats(NamedTuple):
    """What one batch asked of one stack, counted over merged entries, before any drop and over all mini-batches.

    ==================================  ==========================================================================
    ``max_ids_per_partition``           int64[S]: per shard, the most entries any source has for it
    ``max_unique_ids_per_partition``    int64[S]: per shard, the most distinct ids any source has for it
    ``required_buffer_size``            int64[sources]: slots a source needs, the sum over shards of round8(entries)
    ``dropped_ids``                     int64[S]: per shard, entries dropped, summed over sources
    ==================================  ==========================================================================
    """

    max_ids_per_partition: Longs
    max_unique_ids_per_partition: Longs
    required_buffer_size: Longs
    dropped_ids: Longs


@dataclass(frozen=True, eq=False)
class HostBatch:
    """One batch, laid out for the SparseCores of this process.

    With n = SparseCores per device, S = all SparseCores and m = max(S, 8), every stack has::

        row_pointers   int32 [devices, n * m]     END of each partition; a partition starts where the one before it
                                                  ended, rounded up to 8
        embedding_ids  int32 [devices, slots]     local row on the shard;   pads: 2**31 - 1
        sample_ids     int32 [devices, slots]     sample inside the slice;  pads: 2**31 - 1
        gains          float32 [devices, slots]   combiner weight;          pads: NaN

    In the plain layout each source owns ``slots / n`` slots and its pointers count from the start of them. In the
    mini-batch layout (``minibatch_layout``) both are 64 times as long, the segments of m pointers (source-major,
    mini-batch-minor) lie one behind the other, and pointers count from the start of the device's buffer.

    ``sources`` is the range of SparseCores fed by this process, ``batch_sizes`` the whole batch of every feature,
    ``split_bits`` the agreed nodes of the bucket tree at which a mini-batch begins.
    """

    stacking: Stacking
    batch_sizes: Mapping[str, int]
    sources: range
    num_minibatches: int
    minibatch_layout: bool
    split_bits: int
    row_pointers: Mapping[str, Ints]
    embedding_ids: Mapping[str, Ints]
    sample_ids: Mapping[str, Ints]
    gains: Mapping[str, Floats]
    stats: Mapping[str, StackStats]

    def __repr__(self) -> str:
        """What it is of, without the arrays."""
        shape = f"{len(self.stats)} stacks, {len(self.sources)} sources, {self.num_minibatches} mini-batches"
        return f"<HostBatch of {len(self.batch_sizes)} features: {shape}>"

    def partition(self, stack: str, source: int, shard: int, minibatch: int | None = None) -> Entries:
        """Entries that ``source`` has for ``shard`` without padding; None: all mini-batches, one behind the other.

        Sources are numbered over all SparseCores. Raises :class:`UsageError` for anything this batch does not hold.
        """
        if minibatch is None:
            parts = [self.partition(stack, source, shard, m) for m in range(self.num_minibatches)]
            ids, samples, gains = zip(*parts)
            return np.concatenate(ids), np.concatenate(samples), np.concatenate(gains)
        self._check(stack, source, shard, minibatch)
        device, begin, end = self._bounds(stack, source - self.sources.start, shard, minibatch)
        where = (device, slice(begin, end))
        return self.embedding_ids[stack][where], self.sample_ids[stack][where], self.gains[stack][where]

    def _bounds(self, stack: str, local: int, shard: int, minibatch: int) -> tuple[int, int, int]:
        """Device, first and last slot (within the device's buffer) of a partition."""
        per_device = self.stacking.topology.sparsecores_per_device
        pointers_per_segment = max(self.stacking.topology.sparsecores, 8)
        device, in_device = divmod(local, per_device)
        segment = in_device * self.num_minibatches + minibatch
        pointers = self.row_pointers[stack][device]
        at = segment * pointers_per_segment + shard
        base = 0 if self.minibatch_layout else in_device * (self.embedding_ids[stack].shape[1] // per_device)
        first_of_all = at == 0 or (shard == 0 and not self.minibatch_layout)
        begin = 0 if first_of_all else -(-int(pointers[at - 1]) // 8) * 8
        return device, base + begin, base + int(pointers[at])

    def _check(self, stack: str, source: int, shard: int, minibatch: int) -> None:
        if stack not in self.row_pointers:
            raise UsageError(f"no stack called {stack!r}", where="partition", how=f"one of {list(self.row_pointers)}")
        for name, value, allowed in (
            ("source", source, self.sources),
            ("shard", shard, range(self.stacking.topology.sparsecores)),
            ("minibatch", minibatch, range(self.num_minibatches)),
        ):
            if value not in allowed:
                how = f"{allowed.start} to {allowed.stop - 1}"
                raise UsageError(f"{name} {value!r} is not in this batch", where="partition", how=how)

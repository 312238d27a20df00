"""Padding, and what other arrangements would save: stacking, narrow rows that share a line, host rate against steps."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import numpy as np

from tilewright.embed.host.observe import Observed
from tilewright.embed.host.preprocess import preprocess
from tilewright.embed.host.tally import tally
from tilewright.embed.model.formulas import (
    packed_table_bytes,
    padded_table_bytes,
    pointers_per_device,
    slots_per_device,
)
from tilewright.embed.model.stacking import Stacking, stack
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.types import Feeding, Savings
from tilewright.targets import Target, target
from tilewright.threads import thread_count


def savings_of(observed: Observed, alone: Mapping[str, Limits], today: Mapping[str, Limits]) -> Savings:
    """From the limits the replayed batches need, table by table (``alone``) and stack by stack (``today``; where no
    tables are stacked, in the stacks they could form)."""
    stacking = observed.stacking
    stacked = _could_be(observed, today) if len(today) == len(alone) else today
    shards = stacking.topology.sparsecores
    sizes = {p.table: padded_table_bytes(p.table.vocab, p.table.width, shards) for p in stacking.placements}
    packed = {table: packed_table_bytes(table.vocab, table.width, shards) for table in sizes}
    return Savings(
        table_bytes=sum(sizes.values()),
        packed_table_bytes=sum(packed.values()),
        packed_tables=tuple(table.name for table in sizes if packed[table] < sizes[table]),
        separate_buffer_bytes=buffer_bytes(stacking, alone),
        stacked_buffer_bytes=buffer_bytes(stacking, stacked),
    )


def _could_be(observed: Observed, today: Mapping[str, Limits]) -> Mapping[str, Limits]:
    """Limits of the automatic stacks, counted."""
    mine = observed.stacking
    other = stack(mine.features, mine.topology, batch_size=observed.sizes)
    if len(other.groups) == len(mine.groups):
        return today
    most = np.zeros((len(other.groups), 2), np.int64)
    for batch in observed.sample:
        np.maximum(most, tally(batch, other, observed.bad_ids).per_stack.max(axis=(2, 3)), out=most)
    return {name: Limits.holding(ids, unique) for name, (ids, unique) in zip(other.stacks, most)}


def buffer_bytes(stacking: Stacking, limits: Mapping[str, Limits]) -> int:
    """Bytes of one batch on one device in the plain layout, one set of buffers for each of ``limits``."""
    shards, per_device = stacking.topology.sparsecores, stacking.topology.sparsecores_per_device
    slots = sum(slots_per_device(limit.max_ids_per_partition, shards, per_device) for limit in limits.values())
    return 12 * slots + 4 * len(limits) * pointers_per_device(shards, per_device)


def feeding_of(observed: Observed, limits: Mapping[str, Limits], chip: str | Target | None) -> Feeding:
    """The fastest of the replayed batches on this host, and a step's least time by HBM traffic.

    A step reads every distinct row of a partition once for the lookup, and reads and writes it and its optimizer slots
    for the update; the vectors exchanged are written and read once each way.
    """
    stacking, times = observed.stacking, []
    for batch in observed.sample[:4] * 2:
        start = perf_counter()
        preprocess(batch, stacking, limits, overflow="drop", bad_ids=observed.bad_ids)
        times.append(perf_counter() - start)
    moved = 0.0
    for group in stacking.groups:
        rows = observed.means(group.name)[1] * stacking.topology.sparsecores**2
        touched = rows * (1 + 2 * (1 + len(group.optimizer.slots)))
        exchanged = 4 * group.samples_per_sparsecore(observed.sizes) * stacking.topology.sparsecores
        moved += 4 * group.padded_width * (touched + exchanged)
    per_chip = round(moved / stacking.topology.chips)
    hbm = target(chip).memory("hbm") if chip is not None else None
    rate = hbm.bytes_per_second if hbm else 0
    return Feeding(min(times), thread_count(), per_chip, per_chip / rate if rate else 0.0)

"""What preprocessing hands to the SparseCores: padded buffers per stack, and what was counted on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Entries, Floats, Ints, Longs
from tilewright.embed.model.formulas import BUCKETS, pointers_per_segment, round8
from tilewright.embed.model.stacking import Stacking
from tilewright.errors import CheckFailed, UsageError


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
        shape = f"{len(self.stats)} stacks, {len(self.sources)} sources, {self.num_minibatches} mini-batches"
        return f"<HostBatch of {len(self.batch_sizes)} features: {shape}>"

    def partition(self, stack: str, source: int, shard: int, minibatch: int | None = None) -> Entries:
        """Entries that ``source`` has for ``shard`` without padding; None: all mini-batches, one behind the other.

        Sources are numbered over all SparseCores. Raises :class:`UsageError` for anything this batch does not hold.
        """
        minibatches = range(self.num_minibatches) if minibatch is None else (minibatch,)
        for number in minibatches:
            self._check(stack, source, shard, number)
        begins, ends = (of[source - self.sources.start, list(minibatches), shard] for of in self.spans(stack))
        buffers = (of_stacks[stack].reshape(-1) for of_stacks in (self.embedding_ids, self.sample_ids, self.gains))
        ids, samples, gains = (np.concatenate([flat[a:b] for a, b in zip(begins, ends)]) for flat in buffers)
        return ids, samples, gains

    def spans(self, stack: str) -> tuple[Longs, Longs]:
        """int64[sources, mini-batches, S] each: the first slot of every partition and the one behind its last, of the
        devices' buffers laid end to end."""
        topology, slots = self.stacking.topology, self.embedding_ids[stack].shape[1]
        per_device, segment = topology.sparsecores_per_device, pointers_per_segment(topology.sparsecores)
        pointers = self.row_pointers[stack].astype(np.int64)
        both = partition_spans(pointers, slots, per_device, self.minibatch_layout)
        first, used = np.arange(len(pointers))[:, None] * slots, per_device * self.num_minibatches * segment
        begins, ends = ((first + part)[:, :used].reshape(len(self.sources), -1, segment) for part in both)
        return begins[..., : topology.sparsecores], ends[..., : topology.sparsecores]

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


def partition_spans(pointers: Any, slots: int, sources: int, minibatch_layout: bool, xp: Any = np) -> tuple[Any, Any]:
    """Where each partition begins and ends in its device's buffer of so many slots, from row pointers [devices, n].

    ``sources``: SparseCores of a device; ``xp`` is numpy or jax.numpy.
    """
    runs = pointers.reshape(len(pointers), 1 if minibatch_layout else sources, -1)
    begins = xp.concatenate([xp.zeros_like(runs[..., :1]), round8(runs[..., :-1])], axis=-1)
    base = xp.arange(runs.shape[1], dtype=runs.dtype)[:, None] * (slots // runs.shape[1])
    return (base + begins).reshape(pointers.shape), (base + runs).reshape(pointers.shape)


# Mini-batches over the vocabulary: where they begin, and what all processes of a step must agree on.


def minibatch_starts(bits: int, buckets: int = BUCKETS) -> list[int]:
    """First bucket of every mini-batch.

    >>> minibatch_starts(0b1010001, buckets=8)
    [0, 1, 2, 4]
    """
    starts = [0]
    node, size = 0, 2
    while size <= buckets:
        for left in range(0, buckets, size):
            if bits >> node & 1:
                starts.append(left + size // 2)
            node += 1
        size *= 2
    return sorted(starts)


@dataclass(frozen=True)
class Agreement:
    """What all processes that feed one step must agree on: split bits ORed, buffer sizes the largest.

    ``max_ids`` holds, per stack in order, the entries a partition of the buffers must have room for.

    >>> Agreement.join([Agreement(1, (8, 16)), Agreement(4, (32, 8))])
    Agreement(split_bits=5, max_ids=(32, 16))
    """

    split_bits: int
    max_ids: tuple[int, ...]

    @staticmethod
    def join(parts: Iterable[Agreement]) -> Agreement:
        """The agreement of several processes, given what each of them proposes."""
        parts = list(parts)
        bits = 0
        for part in parts:
            bits |= part.split_bits
        return Agreement(bits, tuple(max(sizes) for sizes in zip(*(p.max_ids for p in parts))))


Agree: TypeAlias = Callable[[Agreement], Agreement]
"""Called once per batch by every process with its own proposal; returns the joined one."""


# Checks of a finished batch: every entry's row, sample and gain are what they can be.


def check_host_batch(host: HostBatch, *, id_bounds: bool = True, nan: bool = True) -> None:
    """Hold every entry of a batch to its table and slice, as the chips' own checks would.

    ``id_bounds``: local rows below the stack's rows on a shard, samples inside the slice, row pointers inside the
    buffer and never falling. ``nan``: gains are finite. Raises :class:`CheckFailed` that names stack, source, shard and
    mini-batch.

    >>> from tilewright.embed import Feature, Table, Topology, preprocess, stack
    >>> stacking = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> check_host_batch(preprocess({"f": [[1], [2]]}, stacking))
    """
    if id_bounds:
        _check_pointers(host)
    for name, stack in host.stacking.stacks.items():
        samples = stack.samples_per_sparsecore(host.batch_sizes)
        for place, (rows, ids, gains) in _partitions(host, name):
            if id_bounds:
                _inside(rows, stack.rows_per_shard, "local row", place)
                _inside(ids, samples, "sample", place)
            if nan and not np.isfinite(gains).all():
                wrong = gains[~np.isfinite(gains)][0]
                raise CheckFailed(f"a gain of {wrong}", where=f"NaN check, stage gains: {place}")


def _partitions(host: HostBatch, name: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    buffers = [of_stacks[name].reshape(-1) for of_stacks in (host.embedding_ids, host.sample_ids, host.gains)]
    begins, ends = host.spans(name)
    for source, minibatch, shard in np.ndindex(begins.shape):
        at = slice(begins[source, minibatch, shard], ends[source, minibatch, shard])
        place = f"stack {name!r}, source {host.sources[source]}, shard {shard}, mini-batch {minibatch}"
        yield place, [flat[at] for flat in buffers]


def _inside(values: np.ndarray, bound: int, noun: str, place: str) -> None:
    wrong = values[(values < 0) | (values >= bound)]
    if wrong.size:
        raise CheckFailed(f"{noun} {int(wrong[0])} is not in 0 .. {bound - 1}", where=f"id bounds: {place}")


def _check_pointers(host: HostBatch) -> None:
    """Pointers never fall inside a source's slice and stay inside it."""
    per_device = host.stacking.topology.sparsecores_per_device
    for name, pointers in host.row_pointers.items():
        slots = host.embedding_ids[name].shape[1]
        parts = 1 if host.minibatch_layout else per_device
        slices = pointers.reshape(pointers.shape[0] * parts, -1).astype(np.int64)
        if (slices < 0).any() or (slices > slots // parts).any() or (np.diff(slices, axis=1) < 0).any():
            raise CheckFailed("row pointers fall or leave the buffer", where=f"id bounds: stack {name!r}")

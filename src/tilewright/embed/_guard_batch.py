"""Checks of a finished batch: every entry's row, sample and gain are what they can be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.embed._host_batch import HostBatch
from tilewright.errors import CheckFailed

__all__ = ["check_host_batch"]


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


def _partitions(host: HostBatch, name: str) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    for source in host.sources:
        for minibatch in range(host.num_minibatches):
            for shard in range(host.stacking.topology.sparsecores):
                place = f"stack {name!r}, source {source}, shard {shard}, mini-batch {minibatch}"
                yield place, host.partition(name, source, shard, minibatch)


def _inside(values: np.ndarray, bound: int, what: str, place: str) -> None:
    wrong = values[(values < 0) | (values >= bound)]
    if wrong.size:
        raise CheckFailed(f"{what} {int(wrong[0])} is not in 0 .. {bound - 1}", where=f"id bounds: {place}")


def _check_pointers(host: HostBatch) -> None:
    """Pointers never fall inside a source's slice and stay inside it."""
    per_device = host.stacking.topology.sparsecores_per_device
    for name, pointers in host.row_pointers.items():
        slots = host.embedding_ids[name].shape[1]
        parts = 1 if host.minibatch_layout else per_device
        slices = pointers.reshape(pointers.shape[0] * parts, -1).astype(np.int64)
        if (slices < 0).any() or (slices > slots // parts).any() or (np.diff(slices, axis=1) < 0).any():
            raise CheckFailed("row pointers fall or leave the buffer", where=f"id bounds: stack {name!r}")

"""Mini-batches over the samples: a batch fed as several smaller ones, where the vocabulary cannot be cut any finer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.embed._host_batch import HostBatch
from tilewright.embed._inputs import Ragged
from tilewright.embed._preprocess import preprocess, ragged_inputs, source_slices
from tilewright.embed._stacking import Stacking
from tilewright.embed._tables import Limits, count
from tilewright.embed._types import Longs
from tilewright.errors import LimitError, UsageError

__all__ = ["preprocess_samples", "sample_order"]


def preprocess_samples(
    batch: Mapping[str, Any],
    stacking: Stacking,
    limits: Mapping[str, Limits],
    parts: int | None = None,
    bad_ids: str = "error",
) -> list[HostBatch]:
    """The batch in ``parts`` cut along the samples, each a whole batch for the SparseCores, in the plain layout.

    Part k holds the k-th of ``parts`` equal runs of every source's slice, so each sample stays on its SparseCore; the
    activations of the parts, one behind the other, are those of the batch in the order of :func:`sample_order`.
    ``parts`` None: the smallest number that divides every slice and keeps the limits. Unlike mini-batches over the
    vocabulary the buffers are those of the limits, not 64 times as large, and no sum crosses parts.

    Raises :class:`LimitError` where even one sample a slice exceeds a limit, :class:`UsageError` for ``parts`` that do
    not divide the slices.

    >>> from tilewright.embed import Feature, Table, Topology, stack
    >>> stacking = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> len(preprocess_samples({"f": [[0, 2], [4], [1], [3]]}, stacking, {"t": Limits(2, 2)}))
    2
    """
    inputs = ragged_inputs(batch, stacking, source_slices(stacking, None, False))
    shards = stacking.topology.sparsecores
    slices = int(np.gcd.reduce([ragged.batch_size // shards for ragged in inputs.values()]))
    if parts is not None and slices % count(parts, "parts", "preprocess"):
        what = f"parts = {parts} does not divide slices of {slices} samples"
        raise UsageError(what, where="preprocess", how=f"take a divisor of {slices}")
    tries = [n for n in range(1, slices + 1) if slices % n == 0] if parts is None else [parts]
    for n in tries:
        try:
            return [_part(inputs, k, n, shards, stacking, limits, bad_ids) for k in range(n)]
        except LimitError:
            if n == tries[-1]:
                raise
    raise AssertionError("no divisor")  # pragma: no cover


def sample_order(batch_size: int, parts: int, shards: int) -> Longs:
    """Which sample of the batch each row of the parts' activations is, the parts one behind the other.

    >>> sample_order(8, parts=2, shards=2).tolist()
    [0, 1, 4, 5, 2, 3, 6, 7]
    """
    return np.arange(batch_size).reshape(shards, parts, -1).transpose(1, 0, 2).reshape(-1)


def _part(
    inputs: Mapping[str, Ragged],
    k: int,
    parts: int,
    shards: int,
    stacking: Stacking,
    limits: Mapping[str, Limits],
    bad_ids: str,
) -> HostBatch:
    chosen = {}
    for name, ragged in inputs.items():
        order = sample_order(ragged.batch_size, parts, shards).reshape(parts, -1)[k]
        chosen[name] = _take(ragged, order)
    return preprocess(chosen, stacking, limits, "error", bad_ids)


def _take(ragged: Ragged, samples: Longs) -> tuple[Any, ...]:
    """(values, offsets) or (values, offsets, weights) of the given samples."""
    begin, end = ragged.bounds(samples), ragged.bounds(samples + 1)
    offsets = np.concatenate([[0], np.cumsum(end - begin)])
    places = np.repeat(begin - offsets[:-1], end - begin) + np.arange(offsets[-1])
    flat = ragged.values[places], offsets
    return flat if ragged.weights is None else (*flat, ragged.weights[places])

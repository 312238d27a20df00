"""Compile every kernel of the host side and of lookups on CPU, so that a first use does not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.embed.host.preprocess import preprocess
from tilewright.embed.host.write_kernels import hash_ids
from tilewright.embed.logs.criteo import CATEGORICAL, read_criteo
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking, stack
from tilewright.embed.model.tables import Feature, Limits, Table, Topology
from tilewright.embed.pods.plan import batch_peaks
from tilewright.embed.serving.sum_kernels import DESCRIBED, serve
from tilewright.extras import installed
from tilewright.files import scratch_folder
from tilewright.kernels import Job, do_jobs

_CLICK = "\t".join(["1", *["3"] * 13, *["a"] * 26]) + "\n"


def _stacking() -> Stacking:
    features = (Feature("a", Table("one", 64, 8)), Feature("b", Table("two", 64, 8, combiner="mean")))
    return stack(features, Topology(1, 2))


def _batch(dtype: Any) -> dict[str, Any]:
    ids = np.arange(32, dtype=dtype)
    return {"a": (ids, np.arange(0, 33, 4)), "b": (ids, np.arange(0, 33, 4), np.ones(32, np.float32))}


def _plain(dtype: Any) -> None:
    preprocess(_batch(dtype), _stacking())
    if dtype is np.int64:
        preprocess(_batch(dtype), _stacking(), sparsecore=SparseCoreConfig(assert_level="bounds"))


def _limited(overflow: str, most: int) -> None:
    stacking = _stacking()
    limits = {group.name: Limits(most, most) for group in stacking.groups}
    preprocess(_batch(np.int32), stacking, limits, overflow=overflow)


def _clicks() -> None:
    with scratch_folder() as folder:
        path = folder / "clicks.tsv"
        path.write_text(_CLICK)
        list(read_criteo(path, [4] * len(CATEGORICAL), 1))


def _rows() -> None:
    """The kernels that XLA calls, where jax is installed."""
    if not installed("jax"):
        return
    from tilewright.embed.device.batch import device_batch
    from tilewright.embed.device.row_kernels import lookup_target, sum_target, update_target

    device_batch(preprocess(_batch(np.int32), _stacking()))
    for target in (lookup_target, sum_target, update_target):
        target()


def warm(report: Callable[[str, float], None] | None = None) -> None:
    """Compile all kernels of this package, or load them from the cache; ``report`` is told each one's name and seconds.

    >>> names = []
    >>> warm(lambda name, seconds: names.append(name))
    >>> names[0]
    'batches of 32-bit ids'
    """
    no_requests = np.empty((0, DESCRIBED), np.int64), np.empty((0, 2), np.float32)
    jobs: tuple[Job, ...] = (
        ("batches of 32-bit ids", lambda: _plain(np.int32)),
        ("batches of 64-bit ids", lambda: _plain(np.int64)),
        ("mini-batches", lambda: _limited("minibatch", 4)),
        ("dropped ids", lambda: _limited("drop", 2)),
        ("hashes of ids", lambda: hash_ids(np.arange(4))),
        ("Criteo's logs", _clicks),
        ("rows inside jit", _rows),
        ("peaks of pods", lambda: [batch_peaks(_batch(kind), _stacking()) for kind in (np.int32, np.int64)]),
        ("lookups of exported tables", lambda: serve(*no_requests, 0, 1)),
    )
    do_jobs(jobs, report)

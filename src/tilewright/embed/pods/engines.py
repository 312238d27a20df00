"""Who counts: this process, or workers of Ray Data. The result has the same bits."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeAlias

from tilewright.embed.pods.peaks import PartitionPeaks
from tilewright.embed.pods.sources import BatchSource
from tilewright.errors import TilewrightError, UsageError
from tilewright.extras import need

ENGINES = ("local", "ray")
_PARTS = 4
"""Parts of the log per worker: the last ones finish together."""

Progress = Callable[[int, int], None]
Source: TypeAlias = BatchSource | Iterable[Mapping[str, Any]]
"""Batches by number, or, for one process, batches in turn."""


def count_locally(source: Source, peaks: PartitionPeaks, progress: Progress) -> None:
    """Count all batches into ``peaks``, one after the other."""
    total = source.batches if isinstance(source, BatchSource) else 0
    batches = source.read(0, total) if isinstance(source, BatchSource) else source
    for number, batch in enumerate(batches):
        _add(peaks, number, batch)
        progress(number + 1, total)


def _add(peaks: PartitionPeaks, number: int, batch: Mapping[str, Any]) -> None:
    try:
        peaks.add(number, batch)
    except UsageError as error:
        where = f"batch {number + 1}" + (f", {error.where}" if error.where not in ("", "batch") else "")
        raise UsageError(error.what, where=where, how=error.how) from None


def count_with_ray(source: Source, peaks: PartitionPeaks, progress: Progress, workers: int) -> None:
    """The same by tasks of Ray Data, on the cluster that is connected or on ``workers`` processes of this machine.

    A task that dies is run again by Ray. Raises :class:`UsageError` where ray is missing, or where it gives up.
    """
    ray = _ray()
    if not isinstance(source, BatchSource):
        raise UsageError("batches that only come in turn", where="ray", how="give a LogBatches or a MadeBatches")
    total, mine = source.batches, not ray.is_initialized()
    if mine:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        for done, part in _parts(ray, source, peaks, total, workers):
            peaks.merge(part)
            progress(done, total)
    finally:
        if mine:
            ray.shutdown()


def _parts(
    ray: Any, source: BatchSource, peaks: PartitionPeaks, total: int, workers: int
) -> Iterator[tuple[int, PartitionPeaks]]:
    """Batches done, and what each part of the log counted."""
    count = min(total, workers * _PARTS)
    bounds = [total * k // count for k in range(count + 1)]
    ranges = [{"first": first, "last": last} for first, last in pairwise(bounds)]
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.from_items(ranges, override_num_blocks=count).map(_counting(source, peaks))
    done = 0
    try:
        for row in data.iter_rows():
            result = pickle.loads(row["counted"])
            if isinstance(result, TilewrightError):
                raise result
            done += result.batches
            yield done, result
    except ray.exceptions.RayError as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"a worker failed: {text}", where="ray", how="see its log, or take --engine local") from None
    if done != total:
        raise UsageError(f"{done} of {total} batches came back", where="ray", how="run it again")


def _counting(source: BatchSource, peaks: PartitionPeaks) -> Callable[[dict[str, int]], dict[str, bytes]]:
    stacking, bad_ids, apart = peaks.stacking, peaks.bad_ids, peaks.apart

    def counted(part: dict[str, int]) -> dict[str, bytes]:
        """What a worker does: its range, one batch at a time; an error of ours comes back as a value."""
        found, first = PartitionPeaks(stacking, bad_ids, apart), int(part["first"])
        try:
            for number, batch in enumerate(source.read(first, int(part["last"])), first):
                _add(found, number, batch)
        except TilewrightError as error:
            return {"counted": pickle.dumps(error)}
        return {"counted": pickle.dumps(found)}

    return counted


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    need("ray", what="the ray engine", how="take --engine local")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray

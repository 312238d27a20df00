"""A plan for a whole pod: limits, buffers, memory and a verdict, from a log of any length or from none."""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.tables import HashedTables, pack_narrow
from tilewright.embed.logs.log import Log, log_part, part_rows
from tilewright.embed.model.stacking import ACTIVATION_BYTES, Stacking, stack
from tilewright.embed.model.tables import Feature, Limits, Topology, count
from tilewright.embed.planning.confidence import Confidence, log_chance
from tilewright.embed.planning.plan import made_plan, naming_batch
from tilewright.embed.planning.result import Plan
from tilewright.embed.planning.types import allowed_by, check_headroom, raised, stack_plan
from tilewright.embed.pods.peaks import PartitionPeaks
from tilewright.errors import TilewrightError, UsageError
from tilewright.extras import need
from tilewright.kernels.threads import thread_count
from tilewright.targets import Target

ENGINES = ("local", "ray")
_PARTS = 4
"""Parts of the log per worker: the last ones finish together."""
CHANCE = 1e-3
"""That some partition of a stack exceeds the limits of uniform ids in a batch, at most."""


# Batches by number, so that workers can share a log, and who counts them. The result has the same bits.


@runtime_checkable
class BatchSource(Protocol):
    """Batches 0 .. ``batches`` - 1, any range of them in any process. It must be possible to pickle it."""

    @property
    def batches(self) -> int:
        """How many there are."""

    def read(self, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        """The batches ``first`` .. ``last`` - 1, as ``preprocess`` takes them, one at a time in memory."""


@dataclass(frozen=True)
class MadeBatches:
    """Batches that a function makes from their numbers.

    >>> source = MadeBatches(3, lambda number: {"f": [[number]]})
    >>> list(source.read(1, 3))
    [{'f': [[1]]}, {'f': [[2]]}]
    """

    batches: int
    make: Callable[[int], Mapping[str, Any]]

    def read(self, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        return (self.make(number) for number in range(first, last))


@dataclass(frozen=True)
class LogBatches:
    """The whole batches of logs in turn; of each the rows behind its last whole batch are left out. ``hashed``: which
    tables have fewer rows than the log has ids.

    Raises :class:`UsageError` for a log that cannot be read in parts.
    """

    logs: Sequence[Log]
    hashed: HashedTables | None = None

    @cached_property
    def counts(self) -> tuple[int, ...]:
        return tuple(part_rows(log) // log.batch for log in self.logs)

    @property
    def batches(self) -> int:
        total = sum(self.counts)
        if not total:
            log = self.logs[0]
            raise UsageError(f"less than one batch of {log.batch}", where=log.path, how="give a smaller --batch")
        return total

    def read(self, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        at = 0
        for log, held in zip(self.logs, self.counts):
            begin, end = max(first - at, 0), min(last - at, held)
            if begin < end:
                for part in log_part(log, begin, end):
                    yield part.features if self.hashed is None else self.hashed.batch(part.features)
            at += held


Progress: TypeAlias = Callable[[int, int], None]
"""Told how many batches are done, and of how many (0: not known)."""
Source: TypeAlias = BatchSource | Iterable[Mapping[str, Any]]
"""Batches by number, or, for one process, batches in turn."""


def count_locally(source: Source, peaks: PartitionPeaks, progress: Progress) -> None:
    """Count all batches into ``peaks``, one after the other."""
    total = source.batches if isinstance(source, BatchSource) else 0
    batches = source.read(0, total) if isinstance(source, BatchSource) else source
    for number, batch in enumerate(batches):
        with naming_batch(number + 1):
            peaks.add(number, batch)
        progress(number + 1, total)


def count_with_ray(source: Source, peaks: PartitionPeaks, progress: Progress, workers: int) -> None:
    """Count all batches by tasks of Ray Data, on the cluster connected or on ``workers`` processes of this machine.

    A task that dies is run again by Ray. Raises :class:`UsageError` where ray is missing, or where it gives up.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    need("ray", what="the ray engine", how="take --engine local")
    import ray
    import ray.data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    if not isinstance(source, BatchSource):
        raise UsageError("batches that only come in turn", where="ray", how="give a LogBatches or a MadeBatches")
    total, mine = source.batches, not ray.is_initialized()
    if mine:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
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
    parts = min(total, workers * _PARTS)
    bounds = [total * k // parts for k in range(parts + 1)]
    ranges = [{"first": first, "last": last} for first, last in pairwise(bounds)]
    ray.data.DataContext.get_current().enable_progress_bars = False
    data = ray.data.from_items(ranges, override_num_blocks=parts).map(_worker(source, peaks))
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


def _worker(source: BatchSource, peaks: PartitionPeaks) -> Callable[[dict[str, int]], dict[str, bytes]]:
    stacking, bad_ids, apart = peaks.stacking, peaks.bad_ids, peaks.apart

    def counted(part: dict[str, int]) -> dict[str, bytes]:
        """What a worker does: its range, one batch at a time; an error of ours comes back as a value."""
        found, first = PartitionPeaks(stacking, bad_ids, apart), int(part["first"])
        try:
            for number, batch in enumerate(source.read(first, int(part["last"])), first):
                with naming_batch(number + 1):
                    found.add(number, batch)
        except TilewrightError as error:
            return {"counted": pickle.dumps(error)}
        return {"counted": pickle.dumps(found)}

    return counted


# The plan.


def plan_pod(
    source: Source | None,
    features: Iterable[Feature],
    topology: Topology,
    batch: int,
    *,
    target: str | Target | None = None,
    headroom: float = 0.0,
    engine: str = "local",
    workers: int = 0,
    ids_per_sample: int = 1,
    table_stacking: bool = True,
    stacks: Iterable[Iterable[str]] = (),
    rotation: int | Mapping[str, int] | None = None,
    activation_bytes: int = ACTIVATION_BYTES,
    prefetched_batches: int = 2,
    pipelining: bool = True,
    serialized_tables: int = 0,
    bad_ids: str = "error",
    apart: Mapping[str, Longs] | None = None,
    dense_bytes: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Plan:
    """Limits, buffers, memory and verdict for ``batch`` samples on any number of chips.

    ``source`` gives the log's batches: they are counted one at a time, and only maxima are kept, however long the log
    is and however many partitions there are. ``engine``: ``local``, or ``ray`` with so many ``workers`` (0: as many as
    there are processors); the plan has the same bits. The plan's ``confidence`` says how often a fresh batch exceeds
    the limits. Without a source limits are those of uniform ids, ``ids_per_sample`` of every feature.

    ``apart``: table -> ids, rising, that every shard holds (:func:`hot_rows`); they are not counted. The other
    arguments are those of :func:`plan`.

    Raises :class:`UsageError` as :func:`plan` does.

    >>> from tilewright.embed import Table
    >>> features = [Feature(f"t{k}", Table(f"t{k}", 10**9, 16)) for k in range(4)]
    >>> made = plan_pod(None, features, Topology.for_target("tpu-v5p", 4096), 1 << 20, target="tpu-v5p")
    >>> made.fits, made.limits["t0_t1"]
    (True, Limits(max_ids_per_partition=8, max_unique_ids_per_partition=8))
    """
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r}", where="plan", how=f"one of {', '.join(ENGINES)}")
    check_headroom(headroom)
    ids_per_sample = count(ids_per_sample, "ids_per_sample", "plan")
    shape = {"stacks": stacks, "rotation": rotation, "activation_bytes": activation_bytes}
    stacking = stack(features, topology, table_stacking, batch, **shape)  # type: ignore[arg-type]
    peaks = PartitionPeaks(stacking, bad_ids, apart or {})
    confidence, means, observed = None, dict[str, float](), dict[str, Limits]()
    if source is None:
        sizes = {feature.name: batch for feature in stacking.features}
        limits = {n: raised(limit, headroom) for n, limit in uniform_limits(stacking, sizes, ids_per_sample).items()}
        each = ids_per_sample * topology.sparsecores
        distinct = {group.name: float(group.samples_per_sparsecore(sizes) * each) for group in stacking.groups}
    else:
        told = progress or (lambda done, total: None)
        if engine == "ray":
            count_with_ray(source, peaks, told, workers or thread_count())
        else:
            count_locally(source, peaks, told)
        if not peaks.batches:
            raise UsageError("no batches", where="plan", how="give at least one batch")
        sizes, confidence, observed = peaks.sizes, confidence_of(peaks, headroom), peaks.limits()
        limits = {name: raised(limit, headroom) for name, limit in observed.items()}
        entries, unique = (dict(zip(stacking.stacks, kind)) for kind in peaks.totals.T.tolist())
        means = {name: n / (peaks.batches * topology.sparsecores**2) for name, n in entries.items()}
        distinct = {name: n / peaks.batches for name, n in unique.items()}
    planned = tuple(
        stack_plan(
            *(group, topology, sizes, limits[group.name], target),
            observed=observed.get(group.name),
            mean_ids=means.get(group.name),
        )
        for group in stacking.groups
    )
    return made_plan(
        stacking,
        planned,
        distinct,
        target,
        (prefetched_batches, pipelining, serialized_tables, apart, count(dense_bytes, "dense_bytes", "plan", least=0)),
        pack_narrow(stacking.features, False),
        batch=max(sizes.values()),
        batches=peaks.batches,
        confidence=confidence,
    )


def confidence_of(peaks: PartitionPeaks, headroom: float = 0.0) -> Confidence:
    """How often fresh batches exceed limits learnt from such batches, with the headroom given."""
    allowed = allowed_by(headroom)
    alone = peaks.most > allowed(peaks.second)
    records = len(set(peaks.holder[alone].tolist())) if peaks.batches > 1 else 1
    judges = np.array(list(peaks.held_out.values()), np.int64).reshape(-1, *peaks.most.shape)
    if not peaks.learnt_batches:
        judges = judges[:0]
    exceeded = int((judges > allowed(peaks.learnt)).any(axis=(1, 2)).sum())
    return Confidence(peaks.batches, records, len(judges), exceeded)


# Limits without a log: ids as a good hash would spread them, so that partitions are balls thrown into bins.


def uniform_limits(stacking: Stacking, sizes: Mapping[str, int], ids_per_sample: int) -> dict[str, Limits]:
    """Stack -> limits that a batch of uniform ids exceeds with a chance of at most 0.1 %.

    A source's ids fall on every shard with the same chance; S x S partitions are bounded one by one and added up. Real
    ids are not uniform: a log, even a small one, says more.
    """
    limits = {}
    for group in stacking.groups:
        entries = group.samples_per_sparsecore(sizes) * ids_per_sample
        most = fullest(entries, group.shards, CHANCE / group.shards**2)
        limits[group.name] = Limits.holding(most, min(most, group.rows_per_shard))
    return limits


@cache
def fullest(entries: int, shards: int, chance: float) -> int:
    """The smallest n such that of ``entries`` thrown into ``shards`` one shard gets more with at most that chance.

    >>> fullest(64, 1, 0.1), fullest(64, 64, 1e-9)
    (64, 11)
    """
    if shards == 1:
        return entries
    p, mean = 1 / shards, entries / shards
    n = math.floor(mean)
    while n < entries and _chance_above(n, entries, p) > chance:
        n += max(1, n >> 10)
    return min(n, entries)


def _chance_above(n: int, entries: int, p: float) -> float:
    """The chance of more than ``n``, for n not below the mean: terms fall at least like a geometric series."""
    if n >= entries:
        return 0.0
    first = math.exp(log_chance(n + 1, entries, p))
    ratio = (entries - n - 1) / (n + 2) * p / (1 - p)
    return first / (1 - ratio) if ratio < 1 else 1.0

"""A plan for a whole pod: limits, buffers, memory and a verdict, from a log of any length or from none."""

from __future__ import annotations

import logging
import math
import os
import pickle
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.inputs import BAD_IDS, check_choice, ragged_inputs, source_slices
from tilewright.embed.host.tables import GOLDEN, HashedTables, pack_narrow, splitmix64, without_hot
from tilewright.embed.host.tally import complaint, planned, room_for
from tilewright.embed.logs.log import Log, log_part, part_rows
from tilewright.embed.model.stacking import ACTIVATION_BYTES, Stacking, stack
from tilewright.embed.model.tables import Feature, Limits, Topology, count
from tilewright.embed.planning.confidence import HELD_OUT, confidence_in, log_chance
from tilewright.embed.planning.plan import naming_batch
from tilewright.embed.planning.result import Plan
from tilewright.embed.planning.types import given_fields, stack_plans
from tilewright.errors import TilewrightError, UsageError, check_known
from tilewright.extras import need
from tilewright.kernels.threads import run_all, thread_count
from tilewright.targets import Target

ENGINES = ("local", "ray")
_PARTS = 4
"""Parts of the log per worker: the last ones finish together."""
CHANCE = 1e-3
"""That some partition of a stack exceeds the limits of uniform ids in a batch, at most."""
KEPT = 1024
"""Held-out batches whose peaks are kept, those with the smallest hashes of their number."""
_NO_BATCH = -1


# What a log asks of the partitions: per batch the fullest ones. Everything kept is a maximum, a sum, or the few batches
# with the smallest hashes, so that parts counted by several workers join to the same bits however they are dealt out.


def batch_peaks(
    batch: Mapping[str, Any], stacking: Stacking, bad_ids: str = "error", apart: Mapping[str, Longs] | None = None
) -> tuple[Longs, dict[str, int]]:
    """int64[stacks, 4]: most entries and distinct ids of any partition, entries, and distinct ids by source, of every
    stack; and the batch of every feature. ``apart``: table -> ids, rising, that every shard holds.

    Raises :class:`UsageError` for input that cannot be read and for a bad id.
    """
    check_choice("bad_ids", bad_ids, BAD_IDS)
    slices = source_slices(stacking)
    inputs = ragged_inputs(without_hot(batch, stacking.features, apart or {}), stacking, slices)
    if bad_ids != "error":
        inputs = {f.name: inputs[f.name].inside(f.table.vocab, bad_ids, f.name) for f in stacking.features}
    inputs = {name: replace(ragged, weights=None) for name, ragged in inputs.items()}  # they change no count
    plan, work = planned(stacking, inputs, slices, whole=True)
    found = np.zeros((len(plan.parts), len(work), 4), np.int64)
    jobs = [partial(_part_peaks, work, *part, plan.scratch, of) for part, of in zip(plan.parts, found)]
    if any(run_all(jobs, thread_count())):
        raise complaint(stacking, inputs, slices)
    made = np.concatenate([found[..., :2].max(axis=0), found[..., 2:].sum(axis=0)], axis=1)
    return made, {name: ragged.batch_size for name, ragged in inputs.items()}


def _part_peaks(work: list[Any], units: range, part: tuple[int, int], sizes: tuple[int, int], found: Longs) -> bool:
    """The four numbers of :func:`batch_peaks` for some sources of some stacks; whether an id is bad."""
    from tilewright.embed.host.reduce_kernels import peak_unit

    room = room_for(sizes)
    return any(peak_unit(work[u], (*part, 0), room, found[u]) for u in units)


def mixed(number: int) -> int:
    """A hash of a batch's number: which of them are kept does not follow their order."""
    return int(splitmix64((number + 1) * GOLDEN & (1 << 64) - 1))


@dataclass
class PartitionPeaks:
    """The peaks of some batches of a log, of every stack's entries and distinct ids; ``merge`` joins two.

    ==============  ==============================================================================================
    ``batches``     how many; ``sizes``: the first batch's samples of every feature
    ``most``        int64[stacks, 2]: the fullest partition of all batches
    ``second``      the same without the batch that holds ``most``; ``holder``: that batch's number
    ``learnt``      the fullest of the batches that are not held out; ``learnt_batches``: how many
    ``held_out``    number -> int64[stacks, 2], of held-out batches, at most 1,024; ``held_out_batches``: of all
    ``totals``      int64[stacks, 2]: entries, and distinct ids by source
    ==============  ==============================================================================================
    """

    stacking: Stacking
    bad_ids: str = "error"
    apart: Mapping[str, Longs] = field(default_factory=dict)
    batches: int = 0
    learnt_batches: int = 0
    held_out_batches: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    held_out: dict[int, Longs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = len(self.stacking.groups), 2
        self.most, self.second = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.holder = np.full(shape, _NO_BATCH, np.int64)
        self.learnt, self.totals = np.zeros(shape, np.int64), np.zeros(shape, np.int64)

    def add(self, number: int, batch: Mapping[str, Any]) -> None:
        """Count batch ``number`` of the log; numbers must not repeat."""
        found, sizes = batch_peaks(batch, self.stacking, self.bad_ids, self.apart)
        one = PartitionPeaks(self.stacking)
        one.batches, one.sizes, one.most, one.totals = 1, sizes, found[:, :2], found[:, 2:]
        one.holder = np.full_like(one.holder, number)
        if number % HELD_OUT == HELD_OUT - 1:
            one.held_out, one.held_out_batches = {number: found[:, :2]}, 1
        else:
            one.learnt, one.learnt_batches = found[:, :2], 1
        self.merge(one)

    def merge(self, other: PartitionPeaks) -> None:
        """Add what ``other`` counted: the same whichever comes first."""
        if self.sizes and other.sizes and self.sizes != other.sizes:
            raise UsageError("batches of different sizes", where="plan", how="leave a last, shorter batch out")
        self.sizes = self.sizes or dict(other.sizes)
        high, low = np.maximum(self.most, other.most), np.minimum(self.most, other.most)
        mine, theirs = self.holder, other.holder
        ties = np.where((mine < 0) | (theirs < 0), np.maximum(mine, theirs), np.minimum(mine, theirs))
        holder = np.where(self.most > other.most, mine, np.where(self.most < other.most, theirs, ties))
        both = self.batches and other.batches
        self.second = np.maximum(np.maximum(self.second, other.second), low if both else 0)
        self.most, self.holder = high, holder
        self.learnt, self.totals = np.maximum(self.learnt, other.learnt), self.totals + other.totals
        self.batches += other.batches
        self.learnt_batches += other.learnt_batches
        self.held_out_batches += other.held_out_batches
        together = {**self.held_out, **other.held_out}
        self.held_out = {number: together[number] for number in sorted(together, key=mixed)[:KEPT]}

    def limits(self) -> dict[str, Limits]:
        return {name: Limits.holding(*counts) for name, counts in zip(self.stacking.stacks, self.most.tolist())}


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
    parts = min(total, workers * _PARTS)
    ranges = [{"first": a, "last": b} for a, b in pairwise(total * k // parts for k in range(parts + 1))]
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        for row in ray.data.from_items(ranges, override_num_blocks=parts).map(_worker(source, peaks)).iter_rows():
            if isinstance(part := pickle.loads(row["counted"]), TilewrightError):
                raise part
            peaks.merge(part)
            progress(peaks.batches, total)
    except ray.exceptions.RayError as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"a worker failed: {text}", where="ray", how="see its log, or take --engine local") from None
    finally:
        if mine:
            ray.shutdown()
    if peaks.batches != total:
        raise UsageError(f"{peaks.batches} of {total} batches came back", where="ray", how="run it again")


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
    check_known(engine, ENGINES, f"engine {engine!r}", where="plan")
    counts = {"serialized_tables": serialized_tables, "dense_bytes": dense_bytes}
    given = given_fields(headroom, target, pipelining, apart, prefetched_batches=prefetched_batches, **counts)
    ids_per_sample = count(ids_per_sample, "ids_per_sample", "plan")
    shape = {"stacks": stacks, "rotation": rotation, "activation_bytes": activation_bytes}
    stacking = stack(features, topology, table_stacking, batch, **shape)  # type: ignore[arg-type]
    peaks = PartitionPeaks(stacking, bad_ids, apart or {})
    confidence, known = None, {name: dict[str, Any](observed=None, mean_ids=None) for name in stacking.stacks}
    if source is None:
        sizes = {feature.name: batch for feature in stacking.features}
        limits = {
            n: limit.with_headroom(headroom) for n, limit in uniform_limits(stacking, sizes, ids_per_sample).items()
        }
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
        sizes, observed, shape_of = peaks.sizes, peaks.limits(), (-1, *peaks.most.shape)
        judges = np.array(list(peaks.held_out.values()) if peaks.learnt_batches else [], np.int64).reshape(shape_of)
        counted = peaks.most, peaks.second, peaks.holder
        confidence = confidence_in(peaks.batches, counted, peaks.learnt, judges, headroom)
        limits = {name: limit.with_headroom(headroom) for name, limit in observed.items()}
        entries, unique = (dict(zip(stacking.stacks, kind)) for kind in peaks.totals.T.tolist())
        partitions = peaks.batches * topology.sparsecores**2
        known = {name: {"observed": observed[name], "mean_ids": n / partitions} for name, n in entries.items()}
        distinct = {name: n / peaks.batches for name, n in unique.items()}
    return Plan(
        stacking=stacking,
        stacks=stack_plans(stacking, sizes, limits, target, known),
        distinct=distinct,
        narrow=pack_narrow(stacking.features, False),
        **given,
        batch=max(sizes.values()),
        batches=peaks.batches,
        confidence=confidence,
    )


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
    least = range(entries // shards, entries)  # the bound below is one from the mean on
    return least.start + bisect_left(least, True, key=lambda n: _chance_above(n, entries, 1 / shards) <= chance)


def _chance_above(n: int, entries: int, p: float) -> float:
    """The chance of more than ``n``, for n not below the mean: terms fall at least like a geometric series."""
    first = math.exp(log_chance(n + 1, entries, p))
    ratio = (entries - n - 1) / (n + 2) * p / (1 - p)
    return first / (1 - ratio) if ratio < 1 else 1.0

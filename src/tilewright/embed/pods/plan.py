"""A plan for a whole pod: limits, buffers, memory and a verdict, from a log of any length or from none."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.model.formulas import (
    padded_table_bytes,
    pointers_per_device,
    slots_per_device,
)
from tilewright.embed.model.limits import limits_json
from tilewright.embed.model.optimizers import name_of
from tilewright.embed.model.stacking import Stack, Stacking, stack
from tilewright.embed.model.tables import Feature, Limits, Topology, count
from tilewright.embed.planning.confidence import Confidence
from tilewright.embed.planning.memory import SparseMemory, memory
from tilewright.embed.planning.plan import heap_of, raised
from tilewright.embed.planning.types import Heap, StackFigures, heap_json, program_json, verdict_of
from tilewright.embed.pods.engines import ENGINES, Source, count_locally, count_with_ray
from tilewright.embed.pods.peaks import PartitionPeaks, limits_of_peaks
from tilewright.embed.pods.traffic import Traffic, traffic_of
from tilewright.embed.pods.uniform import uniform_limits
from tilewright.errors import UsageError
from tilewright.files import write_whole
from tilewright.kernels.threads import thread_count
from tilewright.targets import Target, target


@dataclass(frozen=True)
class PodStack(StackFigures):
    """One stack on a pod; the names mean what they mean in :class:`StackPlan`. ``mean_ids`` None: no log."""

    name: str
    tables: tuple[str, ...]
    features: int
    padded_width: int
    rows_per_shard: int
    optimizer: str
    limits: Limits
    mean_ids: float | None
    slots: int
    pointers: int
    samples_per_sparsecore: int
    forward: SparseMemory | None
    backward: SparseMemory | None


@dataclass(frozen=True)
class PodPlan:
    """What tables need on a pod. ``confidence`` None: there was no log, and limits are those of uniform ids.

    ``serialized_fits``: the least num_serialized_tables_to_optimize_hbm with which HBM holds it all; 0 where it does so
    anyway, or with none. ``hot``: rows of tables that every device holds, which the limits leave out.
    """

    stacking: Stacking
    target: str
    samples: int
    stacks: tuple[PodStack, ...]
    heap: Heap
    traffic: Traffic
    confidence: Confidence | None
    headroom: float = 0.0
    prefetched_batches: int = 2
    serialized_fits: int = 0
    hot: Mapping[str, Longs] = field(default_factory=dict, hash=False)

    @property
    def limits(self) -> dict[str, Limits]:
        """Stack -> limits, as ``preprocess`` takes them."""
        return {stack.name: stack.limits for stack in self.stacks}

    @cached_property
    def verdict(self) -> str:
        """One sentence: whether everything compiles and fits, or what does not."""
        verdict = verdict_of(self.target, self.stacks, self.heap)
        if not self.serialized_fits:
            return verdict
        return f"{verdict}; or set num_serialized_tables_to_optimize_hbm to {self.serialized_fits}, with which it fits"

    @property
    def fits(self) -> bool | None:
        """Whether every stack compiles and a chip's HBM holds it all; None without a target."""
        if not self.target:
            return None
        compiles = all(program.compiles for stack in self.stacks for program in stack.programs)
        return compiles and self.heap.total <= self.heap.capacity

    @property
    def basis(self) -> str:
        """Where the limits come from."""
        return "log" if self.confidence else "uniform ids"

    def to_json(self) -> dict[str, Any]:
        """Plain values with a ``schema_version``; stacks that are alike stand together, with their number."""
        topology, tables = self.stacking.topology, [p.table for p in self.stacking.placements]
        shards = topology.sparsecores
        return {
            "schema_version": 1,
            "kind": "embedding_pod_plan",
            "target": self.target or None,
            "topology": {**vars(topology), "sparsecores": shards},
            "batch": self.samples,
            "basis": self.basis,
            "fits": self.fits,
            "verdict": self.verdict,
            "num_serialized_tables_that_fit": self.serialized_fits or None,
            "confidence": self.confidence.to_json() if self.confidence else None,
            "hot_rows": self._hot_json(),
            "tables": {
                "count": len(tables),
                "rows": sum(table.vocab for table in tables),
                "parameters": sum(table.vocab * table.width for table in tables),
                "data_bytes": sum(4 * table.vocab * table.width for table in tables),
                "padded_bytes": sum(padded_table_bytes(table.vocab, table.width, shards) for table in tables),
            },
            "stacks": [_stack_json(stacks) for stacks in self.alike()],
            "buffer_bytes_per_device": sum(stack.buffer_bytes for stack in self.stacks),
            "step_per_chip": self.traffic.to_json(),
            "hbm_per_chip": heap_json(self.heap, self.prefetched_batches),
        }

    def alike(self) -> list[list[PodStack]]:
        """Stacks that differ in nothing but names, and in what a log says of them, together."""
        groups: dict[Any, list[PodStack]] = {}
        for one in self.stacks:
            key = len(one.tables), one.features, one.padded_width, one.rows_per_shard, one.optimizer, one.limits
            groups.setdefault((*key, one.samples_per_sparsecore), []).append(one)
        return list(groups.values())

    def limits_json(self) -> dict[str, Any]:
        """The content of the limits file, its confidence with it."""
        facts = {"target": self.target or None, "topology": dict(vars(self.stacking.topology)), "batch": self.samples}
        confidence = self.confidence.to_json() if self.confidence else None
        facts |= {"rotation": self.stacking.rotations, "basis": self.basis, "confidence": confidence}
        facts |= {"narrow_packing": False}
        return limits_json(self.limits, **facts, hot_rows=self._hot_json())

    def _hot_json(self) -> dict[str, list[int]]:
        return {name: ids.tolist() for name, ids in self.hot.items()}

    def write_limits(self, path: str | Path) -> None:
        """Write the limits as JSON, for :func:`read_limits`."""
        write_whole(path, json.dumps(self.limits_json(), indent=2) + "\n")


def _stack_json(alike: list[PodStack]) -> dict[str, Any]:
    one = alike[0]
    means = [stack.mean_ids for stack in alike if stack.mean_ids is not None]
    return {
        "count": len(alike),
        "name": one.name,
        "tables": len(one.tables),
        "padded_width": one.padded_width,
        "rows_per_shard": one.rows_per_shard,
        "optimizer": one.optimizer,
        "samples_per_sparsecore": one.samples_per_sparsecore,
        "limits": dict(vars(one.limits)),
        "mean_ids": float(np.mean(means)) if means else None,
        "buffer_bytes_per_device": one.buffer_bytes,
        "programs": [program_json(program) for program in one.programs],
    }


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
    prefetched_batches: int = 2,
    pipelining: bool = True,
    serialized_tables: int = 0,
    bad_ids: str = "error",
    apart: Mapping[str, Longs] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PodPlan:
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
    (True, Limits(max_ids_per_partition=4, max_unique_ids_per_partition=4))
    """
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r}", where="plan", how=f"one of {', '.join(ENGINES)}")
    if not 0 <= headroom <= 100:
        raise UsageError(f"headroom {headroom}", where="plan", how="give a share of at least 0, such as 0.1")
    ids_per_sample = count(ids_per_sample, "ids_per_sample", "plan")
    stacking = stack(features, topology, table_stacking, batch, stacks=stacks, rotation=rotation)
    confidence, means = None, dict[str, float]()
    if source is None:
        sizes = {feature.name: batch for feature in stacking.features}
        limits = uniform_limits(stacking, sizes, ids_per_sample)
        each = ids_per_sample * topology.sparsecores
        distinct = {group.name: float(group.samples_per_sparsecore(sizes) * each) for group in stacking.groups}
    else:
        peaks = PartitionPeaks(stacking, bad_ids, apart or {})
        told = progress or (lambda done, total: None)
        if engine == "ray":
            count_with_ray(source, peaks, told, workers or thread_count())
        else:
            count_locally(source, peaks, told)
        if not peaks.batches:
            raise UsageError("no batches", where="plan", how="give at least one batch")
        sizes, confidence = peaks.sizes, confidence_of(peaks, headroom)
        limits = {name: raised(limit, headroom) for name, limit in peaks.limits().items()}
        means = _means(peaks)
        distinct = dict(zip(stacking.stacks, (peaks.totals[:, 1] / peaks.batches).tolist()))
    per_device = topology.sparsecores_per_device
    made = tuple(_pod_stack(group, per_device, sizes, limits[group.name], means, target) for group in stacking.groups)
    heap = heap_of(stacking, made, prefetched_batches, target, pipelining, serialized_tables)
    fitting = 0
    if heap.capacity and heap.total > heap.capacity:

        def fits(n: int) -> bool:
            return heap_of(stacking, made, prefetched_batches, target, pipelining, n).total <= heap.capacity

        fitting = bisect_left(range(1, len(made) + 1), True, key=fits) + 1
        fitting = fitting if fitting <= len(made) else 0
    per_core = {one.name: one.samples_per_sparsecore for one in made}
    traffic = traffic_of(stacking, per_core, distinct, sum(one.buffer_bytes for one in made), target)
    return PodPlan(
        stacking=stacking,
        target=_name(target),
        samples=max(sizes.values()),
        stacks=made,
        heap=heap,
        traffic=traffic,
        confidence=confidence,
        headroom=headroom,
        prefetched_batches=prefetched_batches,
        serialized_fits=fitting,
        hot=apart or {},
    )


def _name(chip: str | Target | None) -> str:
    return "" if chip is None else target(chip).name


def _means(peaks: PartitionPeaks) -> dict[str, float]:
    partitions = peaks.batches * peaks.stacking.topology.sparsecores**2
    return {name: total / partitions for name, total in zip(peaks.stacking.stacks, peaks.totals[:, 0].tolist())}


def confidence_of(peaks: PartitionPeaks, headroom: float = 0.0) -> Confidence:
    """How often fresh batches exceed limits learnt from such batches, with the headroom given."""

    def allowed(most: Longs) -> Longs:
        limits = (raised(limit, headroom) for limit in limits_of_peaks(peaks.stacking, most).values())
        return np.array([(limit.max_ids_per_partition, limit.max_unique_ids_per_partition) for limit in limits])

    alone = peaks.most > allowed(peaks.second)
    records = len(set(peaks.holder[alone].tolist())) if peaks.batches > 1 else 1
    judges = np.array(list(peaks.held_out.values()), np.int64).reshape(-1, *peaks.most.shape)
    if not peaks.learnt_batches:
        judges = judges[:0]
    exceeded = int((judges > allowed(peaks.learnt)).any(axis=(1, 2)).sum())
    return Confidence(peaks.batches, records, len(judges), exceeded)


def _pod_stack(
    group: Stack,
    per_device: int,
    sizes: Mapping[str, int],
    limits: Limits,
    means: Mapping[str, float],
    chip: str | Target | None,
) -> PodStack:
    shards = group.shards

    def program(op: Any) -> SparseMemory | None:
        return memory(chip, shards, group.padded_width, limits, op) if chip is not None else None

    return PodStack(
        name=group.name,
        tables=tuple(table.name for table in group.tables),
        features=len(group.features),
        padded_width=group.padded_width,
        rows_per_shard=group.rows_per_shard,
        optimizer=name_of(group.optimizer),
        limits=limits,
        mean_ids=means.get(group.name),
        slots=slots_per_device(limits.max_ids_per_partition, shards, per_device),
        pointers=pointers_per_device(shards, per_device),
        samples_per_sparsecore=group.samples_per_sparsecore(sizes),
        forward=program("forward"),
        backward=program(group.optimizer),
    )

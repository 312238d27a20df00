"""Counters from everything they can be learnt from: a check, preprocessed batches, a log and a model, a file.

A plan's own counters are ``plan_counters``, beside the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed.diagnosis.xprof import is_trace, read_trace
from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import HostBatch
from tilewright.embed.host.overflow import Check, Overflow, limit_table
from tilewright.embed.host.preprocess import preprocess
from tilewright.embed.host.tables import NarrowTables
from tilewright.embed.host.tally import tally
from tilewright.embed.logs.config import EmbedConfig
from tilewright.embed.model.formulas import pointers_per_segment, round8
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.optimizers import name_of
from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed.planning.memory import memory
from tilewright.embed.planning.plan import plan
from tilewright.embed.planning.skew import Work, added, quantile_of
from tilewright.embed.planning.types import TYPICAL, plan_counters
from tilewright.errors import LimitError, UsageError
from tilewright.reading import check_keys, read_file, table_of, typed
from tilewright.targets import target


def _limits_of(limits: Limits | None) -> dict[str, Any]:
    """The fields of :class:`StackCounters` that hold the limits."""
    return dict.fromkeys(vars(Limits(1, 1))) if limits is None else dict(vars(limits))


def _kind_of(group: Stack) -> dict[str, Any]:
    """Its fields that a stack itself fills."""
    optimizer = name_of(group.optimizer)
    shape = {"tables": len(group.tables), "width": group.padded_width}
    return {**shape, "optimizer": optimizer, "combiner": group.combiner}


# A check of batches against limits as counters: are the limits too low, too high, too large for a tile?

_SEEN = {"max_ids_per_partition": "observed_ids", "max_unique_ids_per_partition": "observed_unique_ids"}


def check_counters(check: Check, stacking: Stacking, target: str = "") -> Counters:
    """Every stack's limits beside the most that was asked of it."""
    known: dict[str, dict[str, Any]] = {}
    for excess in check.limits:
        if excess.knob in _SEEN:
            seen = {excess.knob: excess.limit, _SEEN[excess.knob]: excess.observed}
            known[excess.what] = known.get(excess.what, {}) | seen
    topology = stacking.topology
    return Counters(
        target=target,
        chips=topology.chips,
        sparsecores=topology.sparsecores,
        steps=check.batches,
        steps_over=check.partitions_over / check.batches,
        uncut=check.uncut,
        uncut_because=check.uncut_because,
        stacks={
            name: StackCounters(**_kind_of(group), **known[name])
            for name, group in stacking.stacks.items()
            if name in known
        },
    )


# Preprocessed batches as counters: what a run was fed, batch by batch.


def batch_counters(
    batches: Iterable[HostBatch],
    limits: Mapping[str, Limits] | None = None,
    target: str = "",
) -> Counters:
    """Counters of the batches a run was fed, read once and not kept; ``limits`` are those it was compiled with.

    Every new shape of the buffers is counted as a program compiled: that is what jit does.

    Raises :class:`UsageError` for no batches, or batches of several models.

    >>> from tilewright.embed import Feature, Table, Topology, preprocess, stack
    >>> model = stack([Feature("f", Table("t", vocab=8, width=8))], Topology(chips=1, sparsecores_per_chip=2))
    >>> counters = batch_counters(preprocess({"f": ids}, model) for ids in ([[0, 2], [4]], [[1], [1]]))
    >>> counters.steps, counters.stacks["t"].observed_ids, counters.stacks["t"].shard_ids
    (2, 2, (3, 2))
    """
    fed: _Fed | None = None
    for batch in batches:
        fed = fed or _Fed(batch)
        fed.add(batch)
    if fed is None:
        raise UsageError("no batches", where="batch_counters", how="give at least one preprocessed batch")
    return fed.counters(limits or {}, target)


class _Fed:
    """What a run was fed: sums and maxima so far."""

    def __init__(self, first: HostBatch) -> None:
        self.stacking, self.sizes, self.sources = first.stacking, first.batch_sizes, len(first.sources)
        shards = first.stacking.topology.sparsecores
        self.per_shard = {name: np.zeros(shards, np.int64) for name in first.stats}
        self.work = {name: Work(group) for name, group in first.stacking.stacks.items()}
        self.dropped = dict.fromkeys(first.stats, 0)
        self.most = dict.fromkeys(first.stats, (0, 0))
        self.histograms = {name: np.zeros(1, np.int64) for name in first.stats}
        self.steps = self.minibatches = self.over = self.bytes = 0
        self.layout = first.minibatch_layout
        self.shapes: set[tuple[int, ...]] = set()

    def add(self, batch: HostBatch) -> None:
        """One more batch."""
        if batch.stacking != self.stacking:
            raise UsageError("batches of several stackings", where="batch_counters", how="count each model by itself")
        self.steps += 1
        self.minibatches += batch.num_minibatches
        self.over += batch.num_minibatches > 1 or any(s.dropped_ids.any() for s in batch.stats.values())
        for name, stats in batch.stats.items():
            counts = partition_counts(batch, name)
            self.per_shard[name] += counts.sum(axis=0) + stats.dropped_ids
            self.work[name].add(counts.sum(axis=0), partition_counts(batch, name, distinct=True).sum(axis=0))
            self.dropped[name] += int(stats.dropped_ids.sum())
            both = int(stats.max_ids_per_partition.max()), int(stats.max_unique_ids_per_partition.max())
            self.most[name] = max(self.most[name][0], both[0]), max(self.most[name][1], both[1])
            self.histograms[name] = added(self.histograms[name], counts)
        arrays = [a for kind in (batch.row_pointers, batch.embedding_ids) for a in kind.values()]
        self.shapes.add(tuple(a.shape[1] for a in arrays))
        size = sum(a.nbytes for a in arrays) + 2 * sum(a.nbytes for a in batch.embedding_ids.values())
        self.bytes = max(self.bytes, size * self.stacking.topology.sparsecores_per_chip // self.sources)

    def counters(self, limits: Mapping[str, Limits], target: str) -> Counters:
        """All of it."""
        topology = self.stacking.topology
        return Counters(
            target=target,
            chips=topology.chips,
            sparsecores=topology.sparsecores,
            steps=self.steps,
            minibatches=self.minibatches,
            steps_over=self.over / self.steps,
            compilations=len(self.shapes),
            minibatch_layout=self.layout,
            buffer_bytes=self.bytes,
            stacks={name: self._stack(name, limits.get(name)) for name in self.most},
            tables={p.table.name: TableCounters(p.table.vocab, p.table.width) for p in self.stacking.placements},
        )

    def _stack(self, name: str, limits: Limits | None) -> StackCounters:
        group, shards = self.stacking.stacks[name], self.per_shard[name]
        wait, wait_rows, wait_ids = self.work[name].ratios
        partitions = self.steps * self.sources * len(shards)
        dropped = self.dropped[name]
        return StackCounters(
            **_kind_of(group),
            **_limits_of(limits),
            samples_per_sparsecore=group.samples_per_sparsecore(self.sizes),
            observed_ids=self.most[name][0],
            observed_unique_ids=self.most[name][1],
            typical_ids=None if dropped else quantile_of(self.histograms[name], TYPICAL),
            mean_ids=float(shards.sum() / partitions),
            shard_ids=tuple(shards.tolist()),
            wait=wait,
            wait_rows=wait_rows,
            wait_ids=wait_ids,
            ids=int(shards.sum()),
            dropped_ids=dropped,
        )


def partition_counts(batch: HostBatch, stack: str, distinct: bool = False) -> Longs:
    """int64[sources, S]: entries kept of every partition, or their distinct rows, all mini-batches together.

    Entries follow from the row pointers; equal rows of a partition are neighbours.
    """
    topology = batch.stacking.topology
    segment = pointers_per_segment(topology.sparsecores)
    segments = topology.sparsecores_per_device * (batch.num_minibatches if batch.minibatch_layout else 1)
    ends = batch.row_pointers[stack].astype(np.int64)[:, : segments * segment]
    rows = batch.embedding_ids[stack]
    if not batch.minibatch_layout:  # every source counts from the start of its own slice
        ends, rows = ends.reshape(-1, segment), rows.reshape(len(batch.sources), -1)
    starts = np.zeros_like(ends)
    starts[:, 1:] = round8(ends[:, :-1])
    counts = ends - starts
    if distinct:
        for k in range(len(rows)):
            used = int(ends[k, -1])
            changes = np.append(0, np.cumsum(rows[k, 1:used] != rows[k, : max(0, used - 1)]))
            some = np.flatnonzero(counts[k])
            counts[k, some] = 1 + changes[ends[k, some] - 1] - changes[starts[k, some]]
    counts = counts.reshape(len(batch.sources), -1, segment)[:, :, : topology.sparsecores]
    return np.asarray(counts.sum(axis=1), np.int64)


# A log against a model's limits as counters: what a run would be fed, before it is run.

Batch: TypeAlias = Mapping[str, Any]


def log_counters(
    batches: Iterable[Batch],
    model: EmbedConfig,
    limits: Mapping[str, Limits] | None = None,
    *,
    bad_ids: str = "error",
    progress: Callable[[int], None] | None = None,
) -> Counters:
    """Counters of a log's batches under ``limits`` (the model's own where None; without any, the log's maxima).

    One pass over the batches: what each asks, into how many mini-batches ``preprocess`` cuts it, what it then drops
    where ``allow_id_dropping`` is set, and, scaled to these limits, the stack of the programs.

    Raises :class:`UsageError` for whatever ``plan`` refuses.
    """
    knobs, narrow = model.sparsecore, model.narrow
    stacking = model.stacking(not knobs.disable_table_stacking)
    limits = model.limits if limits is None else limits
    under = _Under(stacking, limits or {}, bad_ids, narrow, drop=knobs.allow_id_dropping)
    learnt = plan(
        under.watch(batches),
        model.features,
        model.topology,
        target=model.target,
        stacking=stacking,
        narrow_packing=model.narrow_packing,
        prefetched_batches=knobs.maximum_parallel_iterations,
        pipelining=not knobs.disable_full_embedding_pipelining,
        serialized_tables=knobs.num_serialized_tables_to_optimize_hbm,
        bad_ids=bad_ids,
        progress=progress,
    )
    counters = plan_counters(learnt, knobs)
    return _under_limits(counters, under) if limits else counters


class _Under:
    """Mini-batches and drops of the batches that pass through."""

    def __init__(
        self, stacking: Stacking, limits: Mapping[str, Limits], bad_ids: str, narrow: NarrowTables, *, drop: bool
    ) -> None:
        self.narrow = narrow
        self.stacking, self.limits, self.bad_ids, self.drop = stacking, limits, bad_ids, drop
        self.minibatches = self.over = self.uncut = self.steps = 0
        self.because = ""
        self.dropped = dict.fromkeys(stacking.stacks, 0)
        self.ids = dict.fromkeys(stacking.stacks, 0)

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches, counted on their way."""
        for batch in batches:
            if self.limits:
                self._add(batch)
            yield batch

    def _add(self, batch: Batch) -> None:
        batch = self.narrow.batch(batch, self.bad_ids)
        counted = tally(batch, self.stacking, self.bad_ids)
        overflow = Overflow(self.stacking, counted, limit_table(self.limits, self.stacking))
        over = bool(overflow.over.any())
        self.steps += 1
        self.over += over
        try:
            self.minibatches += overflow.minibatches(self.drop)
        except LimitError as error:
            self.uncut += 1
            self.because = self.because or str(error)
        for name, counts in zip(self.ids, counted.per_stack):
            self.ids[name] += int(counts[0].sum())
        if over and self.drop:
            host = preprocess(
                batch,
                self.stacking,
                self.limits,
                bad_ids=self.bad_ids,
                allow_id_dropping=True,
                minibatch_layout="needed",
            )
            for name, stats in host.stats.items():
                self.dropped[name] += int(stats.dropped_ids.sum())


def _under_limits(counters: Counters, under: _Under) -> Counters:
    """The counters with the limits of ``under`` in place of those the log would need."""
    stacks = {
        name: replace(
            stack,
            **_limits_of(under.limits.get(name)),
            ids=under.ids[name],
            dropped_ids=under.dropped[name] if under.drop else None,
            dropped_share=None,
        )
        for name, stack in counters.stacks.items()
    }
    now, then = (_program_bytes(counters, side) for side in (counters.stacks, stacks))
    hbm = counters.hbm
    if now[0]:
        hbm = replace(hbm, forward_stack=round((hbm.forward_stack or 0) * then[0] / now[0]))
    if now[1]:
        hbm = replace(hbm, backward_stack=round((hbm.backward_stack or 0) * then[1] / now[1]))
    over = under.over / under.steps
    return replace(
        counters,
        stacks=stacks,
        minibatches=under.minibatches,
        uncut=under.uncut,
        uncut_because=under.because,
        steps_over=over,
        hbm=hbm,
    )


def _program_bytes(counters: Counters, stacks: Mapping[str, StackCounters]) -> tuple[int, int]:
    """HBM stack of the lookups and of the updates, each alone."""
    sums = [0, 0]
    for counted in stacks.values():
        if counted.limits is not None and counters.target:
            for i, op in enumerate(counted.operations):
                sums[i] += memory(counters.target, counters.shards, counted.width, counted.limits, op).stack_bytes
    return sums[0], sums[1]


# Counters of a run as a TOML or JSON file, written by hand from a profile or by a training loop.

COUNTERS_TEMPLATE = Path(__file__).with_name("counters_template.toml").read_text(encoding="utf-8")
"""A counters file to fill in, with every section."""


def read_counters(path: str | Path) -> Counters:
    """Counters from a ``.toml`` or ``.json`` file (:data:`COUNTERS_TEMPLATE` shows every section).

    JSON may also be what ``embed plan --json``, ``embed diagnose --json`` or ``run`` (``report.json``) wrote: their
    counters are taken. Of a profiler's trace (a folder, ``.xplane.pb``, ``.trace.json.gz``) :func:`read_trace` takes
    steps and seconds.

    Raises :class:`UsageError` that names the file and the entry: no such file, not TOML or JSON, an unknown key (with
    the nearest one), a value of a wrong type or below 0, an unknown target.
    """
    if is_trace(path):
        return read_trace(path)
    return parse_counters(read_file(path, "JSON" if str(path).endswith(".json") else "TOML"), str(path))


def parse_counters(value: Any, where: str = "counters") -> Counters:
    """The same from values already parsed.

    >>> parse_counters({"target": "tpu-v6e", "chips": 2, "seconds": {"step": 0.02}}).shards
    4
    """
    value = table_of(value, where)
    if isinstance(value.get("table"), list) or isinstance(value.get("feature"), list):
        how = "`tilewright embed diagnose LOG --config MODEL` judges a model; --template prints counters to fill in"
        raise UsageError("a model, not counters", where=where, how=how)
    if value.get("kind") == "run":
        value = table_of(value.get("plan") or {}, where)
    if value.get("kind") in ("embedding_plan", "embedding_diagnosis"):
        if "counters" not in value:
            raise UsageError("holds no counters", where=where, how="write it again with this version")
        value = table_of(value["counters"], where)
    if value.get("kind", "embedding_counters") != "embedding_counters":
        problem = f"a file of kind {value['kind']!r} holds no counters"
        raise UsageError(problem, where=where, how="`tilewright embed diagnose --template` prints one to fill in")
    try:
        return _counters({k: v for k, v in value.items() if k not in ("kind", "schema_version")}, where)
    except UsageError as error:
        inside = error.where if error.where.startswith(where) else ": ".join(filter(None, (where, error.where)))
        raise UsageError(error.what, where=inside, how=error.how) from None


_PARTS: dict[str, type[Any]] = {"seconds": Seconds, "hbm": HbmCounters}
_NAMED: dict[str, tuple[str, type[Any]]] = {
    **dict.fromkeys(("stack", "stacks"), ("stacks", StackCounters)),
    **dict.fromkeys(("table", "tables"), ("tables", TableCounters)),
}


def _counters(value: Mapping[str, Any], where: str) -> Counters:
    plain: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    for key, entry in value.items():
        if key in _PARTS:
            parts[key] = typed(entry, _PARTS[key], f"{where}: {key}")
        elif key == "sparsecore":
            knobs = table_of(entry, f"{where}: {key}")
            check_keys(knobs, [knob.name for knob in fields(SparseCoreConfig)], f"{where}: {key}")
            parts[key] = SparseCoreConfig(**knobs)
        elif key in _NAMED:
            name, kind = _NAMED[key]
            named = table_of(entry, f"{where}: {key}", f"write [{key}.NAME] for each")
            parts[name] = {n: typed(of_name, kind, f"{where}: {key} {n!r}") for n, of_name in named.items()}
        else:
            plain[key] = entry
    counters = replace(typed(plain, Counters, where), **parts)
    return _with_capacity(counters) if counters.target else counters


def _with_capacity(counters: Counters) -> Counters:
    """HBM figures are of the target's HBM."""
    chip = target(counters.target)
    if chip.sparse is None:
        raise UsageError(f"{chip.name} has no SparseCores", where="target", how="take one that has, such as tpu-v5p")
    hbm = chip.memory("hbm")
    if hbm is None or counters.hbm == HbmCounters() or counters.hbm.capacity is not None:
        return counters
    return counters.merged(Counters(hbm=HbmCounters(capacity=hbm.bytes)))

"""Counters from all they can be learnt from: a check, preprocessed batches, a log and a model, a file, a profile.

A plan's own counters are ``Plan.counters``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.host.batch import HostBatch
from tilewright.embed.host.preprocess import Check, Replay
from tilewright.embed.logs.config import EmbedConfig
from tilewright.embed.model.counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.lookup_time import StackWork
from tilewright.embed.model.optimizers import name_of
from tilewright.embed.model.stacking import Stack, Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.plan import Loads, plan, quantile_of
from tilewright.embed.planning.types import TYPICAL
from tilewright.errors import UsageError, placed_at
from tilewright.reading import check_keys, read_file, table_of, typed
from tilewright.targets import target
from tilewright.trace import XEvent, is_profile, read_profile


def _limits_of(limits: Limits | None) -> dict[str, Any]:
    """The fields of :class:`StackCounters` that hold the limits."""
    return dict.fromkeys(vars(Limits(1, 1))) if limits is None else dict(vars(limits))


def _facts_of(group: Stack) -> dict[str, Any]:
    optimizer = name_of(group.optimizer)
    shape = {"tables": len(group.tables), "width": group.padded_width, "rows": group.vocab}
    return {**shape, "optimizer": optimizer, "combiner": group.combiner}


def _chips_of(stacking: Stacking, target: str) -> dict[str, Any]:
    return {"target": target, "chips": stacking.topology.chips, "sparsecores": stacking.topology.sparsecores}


# A check of batches against limits as counters: are the limits too low, too high, too large for a tile?

_SEEN = {"max_ids_per_partition": "observed_ids", "max_unique_ids_per_partition": "observed_unique_ids"}


def check_counters(check: Check, stacking: Stacking, target: str = "") -> Counters:
    """Counters of a check: every stack's limits beside the most ids that a partition had."""
    known: dict[str, dict[str, Any]] = {}
    for excess in check.limits:
        if excess.knob in _SEEN:
            seen = {excess.knob: excess.limit, _SEEN[excess.knob]: excess.observed}
            known[excess.what] = known.get(excess.what, {}) | seen
    return Counters(
        **_chips_of(stacking, target),
        steps=check.batches,
        steps_over=check.partitions_over / check.batches,
        uncut=check.uncut,
        uncut_because=check.uncut_because,
        stacks={
            name: StackCounters(**_facts_of(group), **known[name])
            for name, group in stacking.stacks.items()
            if name in known
        },
    )


# Preprocessed batches as counters: what a run was fed, batch by batch.


def batch_counters(
    batches: Iterable[HostBatch], limits: Mapping[str, Limits] | None = None, target: str = ""
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
    fed: _RunTotals | None = None
    for batch in batches:
        fed = fed or _RunTotals(batch, target)
        fed.add(batch)
    if fed is None:
        raise UsageError("no batches", where="batch_counters", how="give at least one preprocessed batch")
    return fed.counters(limits or {}, target)


class _RunTotals:
    """What a run was fed: sums and maxima so far."""

    def __init__(self, first: HostBatch, chip: str) -> None:
        self.stacking, self.sizes, self.sources = first.stacking, first.batch_sizes, len(first.sources)
        topology = first.stacking.topology
        self.loads = {
            name: Loads(StackWork.of(group, chip or None), topology, histograms=True)
            for name, group in first.stacking.stacks.items()
        }
        self.dropped = dict.fromkeys(first.stats, 0)
        self.steps = self.minibatches = self.over = self.bytes = 0
        self.layout = first.minibatch_layout
        self.shapes: set[tuple[int, ...]] = set()

    def add(self, batch: HostBatch) -> None:
        if batch.stacking != self.stacking:
            raise UsageError("batches of several stackings", where="batch_counters", how="count each model by itself")
        self.steps += 1
        self.minibatches += batch.num_minibatches
        self.over += batch.num_minibatches > 1 or any(s.dropped_ids.any() for s in batch.stats.values())
        for name, stats in batch.stats.items():
            loads = self.loads[name]
            loads.add(np.stack([partition_counts(batch, name), partition_counts(batch, name, distinct=True)]))
            loads.received[0] += stats.dropped_ids
            asked = stats.max_ids_per_partition.max(), stats.max_unique_ids_per_partition.max()
            np.maximum(loads.most, asked, out=loads.most)  # before any were dropped
            self.dropped[name] += int(stats.dropped_ids.sum())
        arrays = [a for kind in (batch.row_pointers, batch.embedding_ids) for a in kind.values()]
        self.shapes.add(tuple(a.shape[1] for a in arrays))
        size = sum(a.nbytes for a in arrays) + 2 * sum(a.nbytes for a in batch.embedding_ids.values())
        self.bytes = max(self.bytes, size * self.stacking.topology.sparsecores_per_chip // self.sources)

    def counters(self, limits: Mapping[str, Limits], target: str) -> Counters:
        return Counters(
            **_chips_of(self.stacking, target),
            steps=self.steps,
            minibatches=self.minibatches,
            steps_over=self.over / self.steps,
            compilations=len(self.shapes),
            minibatch_layout=self.layout,
            buffer_bytes=self.bytes,
            stacks={name: self._stack(name, limits.get(name)) for name in self.dropped},
            tables={p.table.name: TableCounters(p.table.vocab, p.table.width) for p in self.stacking.placements},
        )

    def _stack(self, name: str, limits: Limits | None) -> StackCounters:
        group, loads, dropped = self.stacking.stacks[name], self.loads[name], self.dropped[name]
        shards, (most, most_unique) = loads.received[0].tolist(), loads.most.tolist()
        return StackCounters(
            **_facts_of(group),
            **_limits_of(limits),
            samples_per_sparsecore=group.samples_per_sparsecore(self.sizes),
            observed_ids=most,
            observed_unique_ids=most_unique,
            typical_ids=None if dropped else quantile_of(loads.histograms[0], TYPICAL),
            mean_ids=loads.means()[0],
            shard_ids=tuple(shards),
            **loads.waits,
            ids=sum(shards),
            dropped_ids=dropped,
        )


def partition_counts(batch: HostBatch, stack: str, distinct: bool = False) -> Longs:
    """int64[sources, S]: entries kept of every partition, or their distinct rows, all mini-batches together.

    Equal rows of a partition are neighbours.
    """
    begins, ends = batch.spans(stack)
    counts = ends - begins
    if distinct:
        rows, some = batch.embedding_ids[stack].reshape(-1), counts > 0
        changes = np.append(0, np.cumsum(rows[1:] != rows[:-1]))
        counts[some] = 1 + changes[ends[some] - 1] - changes[begins[some]]
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
    stacking = model.stacking()
    limits = (model.limits if limits is None else limits) or {}
    drop = knobs.allow_id_dropping
    under = Replay(stacking, [limits], bad_ids, drop=drop, allow_id_dropping=drop)

    def watched() -> Iterator[Batch]:
        for batch in batches:
            if limits:
                under.add(narrow.batch(batch, bad_ids))
            yield batch

    learnt = plan(
        watched(),
        model.features,
        model.topology,
        stacking=stacking,
        narrow_packing=model.narrow_packing,
        **model.plan_options,
        bad_ids=bad_ids,
        progress=progress,
    )
    if not limits:
        return learnt.counters(knobs)
    counters, [dropped], [refused] = learnt.under(limits).counters(knobs), under.dropped.tolist(), under.refused
    stacks = {
        name: replace(
            stack, **_limits_of(limits.get(name)), ids=ids, dropped_ids=lost if under.drop else None, dropped_share=None
        )
        for (name, stack), ids, lost in zip(counters.stacks.items(), under.entries.tolist(), dropped)
    }
    return replace(
        counters,
        stacks=stacks,
        fresh_over=None,  # that was said of the log's own maxima
        minibatches=sum(under.minibatches[0]),
        uncut=len(refused),
        uncut_because=next(iter(refused), ""),
        steps_over=under.over[0] / under.steps,
    )


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
    if is_profile(path):
        return read_trace(path)
    return parse_counters(read_file(path, "JSON" if str(path).endswith(".json") else "TOML"), str(path))


def parse_counters(value: Any, where: str = "counters") -> Counters:
    """Counters from the values of a JSON or TOML file, as :func:`read_counters` reads them.

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
    with placed_at(where, within=True):
        return _decoded({k: v for k, v in value.items() if k not in ("kind", "schema_version")}, where)


_PARTS: dict[str, type[Any]] = {"seconds": Seconds, "hbm": HbmCounters}
_NAMED: dict[str, tuple[str, type[Any]]] = {
    **dict.fromkeys(("stack", "stacks"), ("stacks", StackCounters)),
    **dict.fromkeys(("table", "tables"), ("tables", TableCounters)),
}


def _decoded(value: Mapping[str, Any], where: str) -> Counters:
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
    """HBM figures are of what the target's HBM has for a program."""
    chip = target(counters.target)
    if chip.sparse is None:
        raise UsageError(f"{chip.name} has no SparseCores", where="target", how="take one that has, such as tpu-v5p")
    hbm = chip.whole.memory("hbm")
    if hbm is None or counters.hbm == HbmCounters() or counters.hbm.capacity is not None:
        return counters
    return counters.merged(Counters(hbm=HbmCounters(capacity=hbm.usable)))


# A profile of a run on TPUs: jax.profiler's XSpace (``.xplane.pb``) or trace-viewer JSON.
#
# Both have planes (processes) of lines (threads) of events. A TPU's plane is ``/device:TPU:N``, a SparseCore's
# ``/device:TPU:N SparseCore M``. What is busy is the union of a line's operations within the measured steps.

_CHIP = re.compile(r"/device:TPU:\d+$")
_SPARSECORE = re.compile(r"(/device:TPU:\d+) SparseCore \d+$")
_PREPROCESSING = re.compile(r"(^|[ .:])(preprocess|preprocess_sparse_dense_matmul\w*)$")
_SECOND = 10**12
_Lines: TypeAlias = dict[str, list[XEvent]]


def read_trace(path: str | Path) -> Counters:
    """Steps and seconds of a trace, or of the newest one under a profiler's folder.

    =================  ===========================================================================================
    ``step``           from the first step's begin to the last one's end, over their number ("Steps", else modules)
    ``tensorcore``     operations of the busiest TensorCore ("XLA Ops"), overlaps counted once
    ``sparsecore``     operations of the busiest SparseCore lane ("Sparse Core Ops", else its modules)
    ``wait``           the most that a chip had nothing to do on either
    ``host``           preprocessing, where the trace has its calls (jax.profiler's Python tracer)
    =================  ===========================================================================================

    Raises :class:`UsageError` for a file that is no trace, is cut off, or has no TPU's steps.
    """
    planes: dict[str, _Lines] = {}
    for plane in read_profile(path, planes=("/device:TPU:", "/host:"), stats=False):
        for line in plane.lines:
            planes.setdefault(plane.name, {}).setdefault(line.display or line.name, []).extend(line.events)
    return _trace_counters(planes, str(path))


def _trace_counters(planes: dict[str, _Lines], where: str) -> Counters:
    chips = {name: lines for name, lines in planes.items() if _CHIP.fullmatch(name)}
    windows = {name: steps for name, lines in chips.items() if (steps := _steps(lines))}
    if not windows:
        how = "jax.profiler.trace(folder) around some steps on a TPU writes plugins/profile/*/*.xplane.pb"
        raise UsageError("no TPU's steps in it", where=where, how=how)
    longest: dict[str, float] = {}
    count = 0
    for name, steps in windows.items():
        begin, end = _span(steps)
        count = max(count, len(steps))
        work = _clipped(chips[name].get("XLA Ops", ()), begin, end)
        lanes = [
            _clipped(lines.get("Sparse Core Ops") or lines.get("Sparse Core Modules") or (), begin, end)
            for plane, lines in planes.items()
            if (match := _SPARSECORE.fullmatch(plane)) and match[1] == name
        ]
        seconds = {"step": end - begin, "tensorcore": _union_length([work])}
        if lanes:
            seconds["sparsecore"] = max(_union_length([lane]) for lane in lanes)
        seconds["wait"] = end - begin - _union_length([work, *lanes])
        for kind, value in seconds.items():
            longest[kind] = max(longest.get(kind, 0.0), value / len(steps) / _SECOND)
    host = [line for name, lines in planes.items() if name.startswith("/host:") for line in lines.values()]
    calls = [event for line in host for event in line if _PREPROCESSING.search(event.display or event.name)]
    if calls:
        longest["host"] = _union_length([_clipped(calls, *_span(calls))]) / count / _SECOND
    return Counters(steps=count, seconds=Seconds(**longest))


def _span(events: list[XEvent]) -> tuple[int, int]:
    """Begin of the first and end of the last."""
    return min(event.start for event in events), max(event.start + event.picoseconds for event in events)


def _steps(lines: _Lines) -> list[XEvent]:
    """The marked steps; else the runs of the module that ran longest."""
    if steps := lines.get("Steps"):
        return steps
    runs: _Lines = {}
    for event in lines.get("XLA Modules", ()):
        runs.setdefault((event.display or event.name).partition("(")[0], []).append(event)
    return max(runs.values(), key=lambda events: sum(event.picoseconds for event in events), default=[])


def _clipped(events: Iterable[XEvent], begin: int, end: int) -> Any:
    """int64[n, 2]: what lies inside, from ``begin`` on; picoseconds since 1970 would not fit."""
    spans = np.array([(e.start - begin, e.start + e.picoseconds - begin) for e in events], np.int64)
    spans = spans.reshape(-1, 2).clip(0, end - begin)
    return spans[spans[:, 1] > spans[:, 0]]


def _union_length(spans: list[Any]) -> int:
    """Length of the union of spans [begin, end]."""
    every = np.concatenate(spans)
    every = every[np.argsort(every[:, 0], kind="stable")]
    if not len(every):
        return 0
    reached = np.maximum.accumulate(every[:, 1])
    fresh = np.maximum(every[1:, 1] - np.maximum(every[1:, 0], reached[:-1]), 0)
    return int(every[0, 1] - every[0, 0] + fresh.sum())

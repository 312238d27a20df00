"""A plan and its parts as plain frozen values, of a log or of a pod: verdict, limits file, JSON, counters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tilewright.embed.host.arrays import Longs
from tilewright.embed.model.counters import (
    Counters,
    HbmCounters,
    Seconds,
    StackCounters,
    TableCounters,
    key,
    plain,
)
from tilewright.embed.model.formulas import BUCKETS, padded_table_bytes
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits, limits_json
from tilewright.embed.planning.confidence import Confidence
from tilewright.embed.planning.memory import SparseMemory
from tilewright.files import write_whole
from tilewright.render import bytes_text

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
"""Shares of the partitions whose limits a plan names."""
TYPICAL = 0.99
"""The share of the partitions that is called typical: one of the above."""
AS_IT_IS = "as it is"
"""The remedy that changes nothing."""


@dataclass(frozen=True)
class Savings:
    """Bytes now and in another arrangement; tables count all chips, buffers one batch on one device.

    ==================================  ============================================================================
    ``table_bytes``                     tables as they are padded today
    ``packed_table_bytes``              with rows of 1 to 4 floats sharing 32-byte lines, 8 // width to a line
    ``packed_tables``                   the tables that gain by it
    ``separate_buffer_bytes``           the replayed batches' buffers, every table alone
    ``stacked_buffer_bytes``            the same in the stacks planned (or possible)
    ==================================  ============================================================================
    """

    table_bytes: int = 0
    packed_table_bytes: int = 0
    packed_tables: tuple[str, ...] = ()
    separate_buffer_bytes: int = field(metadata=key("separate_buffer_bytes_per_device"), default=0)
    stacked_buffer_bytes: int = field(metadata=key("stacked_buffer_bytes_per_device"), default=0)


@dataclass(frozen=True)
class Feeding:
    """Host against chip: ``host_seconds`` a whole batch took on this host with ``threads`` threads (measured, the
    fastest of the batches run again), and what a step takes on the chip at least (modelled: ``step_bytes`` of one chip
    at the rate of its HBM; 0.0 without a target)."""

    host_seconds: float = field(metadata=key("host_seconds_per_batch"))
    threads: int = field(metadata=key("host_threads"))
    step_bytes: int = field(metadata=key("step_bytes_per_chip"))
    step_seconds: float = field(metadata=key(""))

    def to_json(self) -> dict[str, Any]:
        """Plain values, each marked as measured or modelled."""
        least = self.step_seconds or None
        return {**plain(self), "step_seconds_at_least": least, "host_basis": "measured", "step_basis": "modelled"}


@dataclass(frozen=True)
class Traffic:
    """Of one step and one chip; with C chips, W floats a row (padded), s floats of slots:

    ================  ==============================================================================================
    ``rows``          U, rows asked of the chip, once for every source SparseCore that asks: distinct ids / C
    ``hbm_bytes``     4 * (U * (3 W + 2 s) + 4 * W * samples): a row is read for the lookup; row and slots are read and
                      written for the update; activations and their gradients are written and read
    ``link_bytes``    out of the chip: U * (4 + 8 W) * (C - 1) / C: an id, its vector, and its gradient
    ``host_bytes``    the batch's buffers, from the host
    ``seconds``       the slower of HBM and links at full rate; 0.0 without a target that says both
    ================  ==============================================================================================
    """

    rows: float
    hbm_bytes: float
    link_bytes: float
    host_bytes: int
    seconds: float


@dataclass(frozen=True)
class HotId:
    """An id of a stack's fullest shard: ``share`` of that shard's entries, ``entries`` in the replayed batches."""

    stack: str
    table: str
    id: int
    shard: int
    entries: int
    share: float


@dataclass(frozen=True)
class Remedy:
    """A stack's fullest partitions, imbalance and ``wait`` in the replayed batches, if ``change`` were made."""

    stack: str
    change: str
    limits: Limits = field(metadata=key(""))
    imbalance: float = 1.0
    wait: float = 1.0


@dataclass(frozen=True)
class Skew:
    """``hot``: the ids that fill the fullest shards; ``remedies``: what changes would give, "as it is" first;
    ``alone``: limits of every table, were it not stacked."""

    hot: tuple[HotId, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    alone: Mapping[str, Limits] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        changes = [{**plain(remedy), **vars(remedy.limits)} for remedy in self.remedies]
        return {"hot_ids": plain(self.hot), "changes": changes, "tables_alone": plain(self.alone)}


@dataclass(frozen=True)
class TablePlan:
    """One table in HBM. Bytes count all chips; ``wasted`` shares are of ``padded_bytes``; ``packed_bytes``: were rows
    of 1 to 4 floats to share 32-byte lines, 8 // width to a line; ``unpacked_bytes``: had every row lines of its own.
    One of the two is ``padded_bytes``, as ``rows_per_line`` says: 1, or those of a packed table."""

    name: str
    stack: str
    vocab: int
    width: int
    padded_vocab: int
    padded_width: int
    data_bytes: int
    padded_bytes: int
    packed_bytes: int
    unpacked_bytes: int
    rows_per_line: int = 1

    @property
    def wasted_by_width(self) -> float:
        """The share of the padded bytes that is padding of rows to 8 floats: 7/8 for a width of 1."""
        return 1 - self.width / self.padded_width

    @property
    def wasted_by_vocab(self) -> float:
        """The share that is whole rows of padding (to 8 rows on every shard)."""
        return (1 - self.vocab / self.padded_vocab) * self.width / self.padded_width

    DERIVED: ClassVar = {"wasted_by_width": "wasted_by_width", "wasted_by_vocab": "wasted_by_vocab"}


@dataclass(frozen=True)
class StackPlan:
    """One stack: what the log asks of it, the limits chosen, the buffers and the compiler's verdicts.

    ============================  ==================================================================================
    ``limits``                    the chosen quantile of the counts of all partitions (source x shard x batch)
    ``observed``                  the largest of those counts; without a log the limits
    ``mean_ids``                  entries of the average partition; None without a log
    ``slots``, ``pointers``       of one device's buffers, in the plain layout; ``buffer_bytes`` of both
    ``samples_per_sparsecore``    rows of the stack's activations on one SparseCore
    ``forward``, ``backward``     verdicts on lookup and update, None without a target
    ============================  ==================================================================================

    Only where every partition was counted, not on a pod:

    ============================  ==================================================================================
    ``imbalance``                 entries of the fullest shard over those of the average shard, all batches together
    ``wait``                      what a step waits for, modelled: the shard that moves most bytes, of rows and of ids,
                                  over the average one; ``wait_rows``, ``wait_ids``: the same of either alone
    ``per_shard``                 entries every shard received, all batches together
    ``quantiles``                 (quantile, limits that hold it) of the partitions, ascending
    ``drop_rate``                 share of entries lost if ids above ``limits`` are dropped (replayed batches)
    ``partitions_over``           share of partitions above ``limits``
    ============================  ==================================================================================
    """

    name: str
    tables: tuple[str, ...]
    features: int
    padded_width: int
    rows_per_shard: int
    optimizer: str
    samples_per_sparsecore: int
    limits: Limits
    observed: Limits
    mean_ids: float | None
    slots: int = field(metadata=key("slots_per_device"))
    pointers: int = field(metadata=key("row_pointers_per_device"))
    forward: SparseMemory | None = field(metadata=key(""))
    backward: SparseMemory | None = field(metadata=key(""))
    imbalance: float = 1.0
    wait: float = 1.0
    wait_rows: float = 1.0
    wait_ids: float = 1.0
    per_shard: tuple[int, ...] = field(metadata=key("ids_per_shard"), default=())
    quantiles: tuple[tuple[float, Limits], ...] = field(metadata=key(""), default=())
    drop_rate: float = 0.0
    partitions_over: float = 0.0

    DERIVED: ClassVar = {"buffer_bytes_per_device": "buffer_bytes"}

    @property
    def label(self) -> str:
        """The name, or the first and last table where it is long."""
        return self.name if len(self.name) <= 28 else f"{self.tables[0]} … {self.tables[-1]}"

    @property
    def programs(self) -> tuple[SparseMemory, ...]:
        """Lookup and update; none without a target."""
        return tuple(program for program in (self.forward, self.backward) if program)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one batch on one device: three words per slot, one per pointer."""
        return 12 * self.slots + 4 * self.pointers

    def to_json(self) -> dict[str, Any]:
        """Plain values; quantiles and programs one by one."""
        quantiles = [{"quantile": quantile, **vars(limits)} for quantile, limits in self.quantiles]
        return {**plain(self), "quantiles": quantiles, "programs": [program.to_json() for program in self.programs]}


@dataclass(frozen=True)
class CurvePoint:
    """What limits at ``fraction`` of the observed maxima would mean: ``buffer_bytes`` of one batch on one device in the
    plain layout, ``minibatch_buffer_bytes`` in that of mini-batches; mini-batches and drops over the replayed batches.

    ``minibatches_mean``, ``minibatches_max`` are of the batches that can be cut (None: not one can); ``uncut`` is the
    share that cannot, because the ids of one hash bucket alone exceed a limit: ``preprocess`` refuses those, and
    ``uncut_because`` is what it says of the first.
    """

    fraction: float
    limits: Mapping[str, Limits]
    buffer_bytes: int = field(metadata=key("buffer_bytes_per_device"))
    batches_over: float = 0.0
    minibatches_mean: float | None = None
    minibatches_max: int | None = None
    drop_rate: float = 0.0
    uncut: float = 0.0
    uncut_because: str = ""

    @property
    def minibatch_buffer_bytes(self) -> int:
        """Every buffer is as many times as large as there are hash buckets."""
        return self.buffer_bytes * BUCKETS

    DERIVED: ClassVar = {"minibatch_buffer_bytes_per_device": "minibatch_buffer_bytes"}


@dataclass(frozen=True)
class Heap:
    """HBM of one chip, in bytes: what stays (tables, optimizer slots, inputs fetched ahead, activations and their
    gradients on the way between SparseCores and TensorCore, what pipelining holds on top) and the stack in use,
    ``measured`` or ``modelled`` as ``stack_note`` says.

    Inputs are in the plain layout; ``if_cut``: what they take on top where each is laid out for mini-batches."""

    tables: int = field(metadata=key("tables_bytes"))
    slots: int = field(metadata=key("slots_bytes"))
    inputs: int = field(metadata=key("inputs_bytes"))
    exchange: int = field(metadata=key("exchange_bytes"))
    pipelined: int = field(metadata=key("pipelined_bytes"))
    forward_stack: int = field(metadata=key("forward_stack_bytes"))
    backward_stack: int = field(metadata=key("backward_stack_bytes"))
    capacity: int = field(metadata=key(""))
    stack_basis: str
    stack_note: str
    if_cut: int = field(metadata=key("minibatch_layout_bytes_more"), default=0)

    @property
    def total(self) -> int:
        """Heap and the larger of the two stacks."""
        kept = self.tables + self.slots + self.inputs + self.exchange + self.pipelined
        return kept + max(self.forward_stack, self.backward_stack)

    def to_json(self) -> dict[str, Any]:
        """Plain values; the capacity is None without a target."""
        return {**plain(self), "layout": "plain", "total_bytes": self.total, "capacity_bytes": self.capacity or None}


@dataclass(frozen=True)
class Plan:
    """What embedding tables need on a topology: see :func:`plan` and :func:`plan_pod`.

    ``batch``: samples, of all chips together. ``confidence``: how often a fresh batch exceeds the limits; None where
    they are a quantile (``batches_over`` then says how many of the log's exceed them) or where there was no log
    (``batches`` 0): they are then those of uniform ids.

    A pod's plan says of a step what it moves (``traffic``); of ``hot``, the rows of tables that every device holds and
    the limits leave out; and in ``serialized_fits`` the least num_serialized_tables_to_optimize_hbm with which HBM
    holds it all (0 where it does so anyway, or with none). All that follows is of a log whose partitions were all
    counted. ``uncut``: the share of the replayed batches that exceed the limits and that mini-batches cannot cut, and
    why.
    """

    stacking: Stacking
    target: str
    batch: int
    batches: int
    stacks: tuple[StackPlan, ...]
    heap: Heap
    prefetched_batches: int
    confidence: Confidence | None = None
    traffic: Traffic | None = None
    hot: Mapping[str, Longs] = field(default_factory=dict, hash=False)
    serialized_fits: int = 0
    quantile: float = 1.0
    replayed: int = 0
    batches_over: float = 0.0
    uncut: float = 0.0
    uncut_because: str = ""
    tables: tuple[TablePlan, ...] = ()
    curve: tuple[CurvePoint, ...] = ()
    skew: Skew = field(default_factory=Skew)
    savings: Savings = Savings()
    feeding: Feeding | None = None

    @property
    def limits(self) -> dict[str, Limits]:
        """Stack -> the chosen limits, as ``preprocess`` takes them."""
        return {stack.name: stack.limits for stack in self.stacks}

    @property
    def samples(self) -> int:
        return self.batch * self.batches

    @property
    def basis(self) -> str:
        """Where the limits come from."""
        return "log" if self.batches else "uniform ids"

    @property
    def fits(self) -> bool | None:
        """Whether every stack compiles and a chip's HBM holds it all; None without a target."""
        if not self.target:
            return None
        compiles = all(program.compiles for stack in self.stacks for program in stack.programs)
        return compiles and self.heap.total <= self.heap.capacity

    @cached_property
    def verdict(self) -> str:
        """One sentence: whether everything compiles and fits, or what does not."""
        if not self.target:
            return "no target given: limits and buffers only"
        figures = f"{bytes_text(self.heap.total)} of {bytes_text(self.heap.capacity)} HBM a chip"
        verdict = f"compiles and fits on {self.target}: {figures}"
        failing = ((stack, program) for stack in self.stacks for program in stack.programs if not program.compiles)
        if failed := next(failing, None):
            stack, program = failed
            best, advice = program.largest_limits, ""
            if best is not None:
                ids, unique = best.max_ids_per_partition, best.max_unique_ids_per_partition
                advice = f"; limits of {ids} ids and {unique} distinct ids would compile"
            refused = f"stack {stack.label}, {program.op}: {program.reason}"
            verdict = f"does not compile on {self.target}: {refused}{advice}"
        elif self.heap.total > self.heap.capacity:
            verdict = f"does not fit on {self.target}: {figures}; take more chips, or smaller tables"
        if not self.serialized_fits:
            return verdict
        return f"{verdict}; or set num_serialized_tables_to_optimize_hbm to {self.serialized_fits}, with which it fits"

    def alike(self) -> list[list[StackPlan]]:
        """Stacks that differ in nothing but names, and in what a log says of them, together."""
        groups: dict[Any, list[StackPlan]] = {}
        for one in self.stacks:
            shape = len(one.tables), one.features, one.padded_width, one.rows_per_shard
            groups.setdefault((*shape, one.optimizer, one.limits, one.samples_per_sparsecore), []).append(one)
        return list(groups.values())

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values with a ``schema_version``; ``counters`` is what :func:`diagnose` reads.

        Of a pod stacks that are alike stand together, with their number.
        """
        topology = self.stacking.topology
        return {
            "schema_version": 1,
            **(self._pod_json() if self.feeding is None else self._log_json(self.feeding)),
            "target": self.target or None,
            "topology": {**vars(topology), "sparsecores": topology.sparsecores},
            "batch": self.batch,
            "fits": self.fits,
            "verdict": self.verdict,
            "confidence": self.confidence.to_json() if self.confidence else None,
            "hbm_per_chip": {**self.heap.to_json(), "prefetched_batches": self.prefetched_batches},
        }

    def _log_json(self, feeding: Feeding) -> dict[str, Any]:
        numbers = ("quantile", "batches", "samples", "batches_over", "uncut", "uncut_because")
        return {
            "kind": "embedding_plan",
            "counters": plan_counters(self).to_json(),
            **{name: getattr(self, name) for name in numbers},
            "replayed_batches": self.replayed,
            "stacks": [stack.to_json() for stack in self.stacks],
            "tables": plain(self.tables),
            "curve": plain(self.curve),
            "skew": self.skew.to_json(),
            "savings": plain(self.savings),
            "feeding": feeding.to_json(),
        }

    def _pod_json(self) -> dict[str, Any]:
        tables, shards = [p.table for p in self.stacking.placements], self.stacking.topology.sparsecores
        stacks = []
        for alike in self.alike():
            whole, means = alike[0].to_json(), [stack.mean_ids for stack in alike if stack.mean_ids is not None]
            kept = ("name", "padded_width", "rows_per_shard", "optimizer", "samples_per_sparsecore", "limits")
            one = {name: whole[name] for name in (*kept, "buffer_bytes_per_device", "programs")}
            mean = float(np.mean(means)) if means else None
            stacks.append({"count": len(alike), **one, "tables": len(alike[0].tables), "mean_ids": mean})
        return {
            "kind": "embedding_pod_plan",
            "basis": self.basis,
            "num_serialized_tables_that_fit": self.serialized_fits or None,
            "hot_rows": self._hot_json(),
            "tables": {
                "count": len(tables),
                "rows": sum(table.vocab for table in tables),
                "parameters": sum(table.vocab * table.width for table in tables),
                "data_bytes": sum(4 * table.vocab * table.width for table in tables),
                "padded_bytes": sum(padded_table_bytes(table.vocab, table.width, shards) for table in tables),
            },
            "stacks": stacks,
            "buffer_bytes_per_device": sum(stack.buffer_bytes for stack in self.stacks),
            "step_per_chip": {**plain(self.traffic), "basis": "modelled"},
        }

    def _hot_json(self) -> dict[str, list[int]]:
        return {name: ids.tolist() for name, ids in self.hot.items()}

    def limits_json(self) -> dict[str, Any]:
        """The content of the limits file: the chosen limits, and what they were learnt from."""
        facts: dict[str, Any] = {"target": self.target or None, "topology": dict(vars(self.stacking.topology))}
        facts |= {"rotation": self.stacking.rotations, "batch": self.batch}
        facts |= {"narrow_packing": any(table.rows_per_line > 1 for table in self.tables)}
        if self.feeding is not None:
            facts |= {"quantile": self.quantile, "batches": self.batches}
        else:
            sure = self.confidence.to_json() if self.confidence else None
            facts |= {"basis": self.basis, "confidence": sure, "hot_rows": self._hot_json()}
        return limits_json(self.limits, **facts)

    def write_limits(self, path: str | Path) -> None:
        """Write the chosen limits as JSON, for :func:`read_limits`."""
        write_whole(path, json.dumps(self.limits_json(), indent=2) + "\n")

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, limits and what lies in HBM; ``plan_html(plan)`` is the whole page."""
        from tilewright.render import Column, count_text
        from tilewright.render.tables import glance, glance_table

        log = f"{count_text(self.batches)} batches of {count_text(self.batch)} samples" if self.batches else self.basis
        tables, chips = len(self.stacking.placements), self.stacking.topology
        head = f"{tables} tables in {len(self.stacks)} stacks on {chips.sparsecores} SparseCores, from {log}"
        sure = f"confidence: {self.confidence.sentence}" if self.confidence is not None else ""
        columns = [Column("stack", "code"), Column("ids a partition", "count"), Column("distinct ids", "count")]
        columns += [Column("imbalance", "ratio")]
        rows = [(s.label, *vars(s.limits).values(), s.imbalance) for s in self.stacks]
        heap = [(part, getattr(self.heap, part)) for part in ("tables", "slots", "inputs", "exchange", "total")]
        limits = glance_table(columns, rows, caption="limits")
        memory = glance_table((Column("what"), Column("bytes", "bytes")), heap, caption="HBM of one chip")
        return glance(head, self.verdict, sure, limits, memory)


def plan_counters(plan: Plan, sparsecore: SparseCoreConfig | None = None) -> Counters:
    """A plan's counts, with the guide's knobs in use where they are given.

    Steps are the log's batches; ``seconds.host`` is this host's preprocessing time, ``hbm.moved`` the least traffic of
    a step. Times of a chip are not in a plan: put them on top with :meth:`Counters.merged`.
    """
    topology, heap, feeding = plan.stacking.topology, plan.heap, plan.feeding
    return Counters(
        target=plan.target,
        chips=topology.chips,
        sparsecores=topology.sparsecores,
        steps=plan.batches,
        steps_over=plan.batches_over,
        uncut=round(plan.uncut * plan.batches),
        uncut_because=plan.uncut_because,
        buffer_bytes=sum(stack.buffer_bytes for stack in plan.stacks) * topology.devices // topology.chips,
        seconds=Seconds(host=feeding.host_seconds if feeding else None),
        hbm=HbmCounters(
            tables=heap.tables,
            slots=heap.slots,
            inputs=heap.inputs,
            exchange=heap.exchange + heap.pipelined,
            forward_stack=heap.forward_stack if plan.target else None,
            backward_stack=heap.backward_stack if plan.target else None,
            capacity=heap.capacity or None,
            moved=feeding.step_bytes if feeding else None,
            moved_modelled=True,
        ),
        stacks={stack.name: _stack_counters(plan, stack) for stack in plan.stacks},
        # a packed table as the lines it lives in
        tables={t.name: TableCounters(-(-t.vocab // t.rows_per_line), t.width * t.rows_per_line) for t in plan.tables},
        sparsecore=sparsecore,
    )


def _stack_counters(plan: Plan, stack: StackPlan) -> StackCounters:
    typical = dict(stack.quantiles).get(TYPICAL)
    hot = next((hot for hot in plan.skew.hot if hot.stack == stack.name), None)
    remedies = [remedy for remedy in plan.skew.remedies if remedy.stack == stack.name]
    alike = ("label", "optimizer", "samples_per_sparsecore", "mean_ids", "imbalance", "wait", "wait_rows", "wait_ids")
    return StackCounters(
        **{name: getattr(stack, name) for name in alike},
        **vars(stack.limits),
        tables=len(stack.tables),
        width=stack.padded_width,
        combiner=plan.stacking.stacks[stack.name].combiner,
        observed_ids=stack.observed.max_ids_per_partition,
        observed_unique_ids=stack.observed.max_unique_ids_per_partition,
        typical_ids=typical.max_ids_per_partition if typical else None,
        typical_unique_ids=typical.max_unique_ids_per_partition if typical else None,
        dropped_share=stack.drop_rate,
        hot=(hot.table, hot.id, hot.share) if hot else None,
        remedies={remedy.change: (*vars(remedy.limits).values(), remedy.imbalance) for remedy in remedies},
        remedy_waits={remedy.change: remedy.wait for remedy in remedies},
    )

"""A plan and its parts: plain frozen values, their JSON, and the counters a diagnosis reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tilewright.embed.model.formulas import BUCKETS
from tilewright.embed.model.knobs import SparseCoreConfig
from tilewright.embed.model.limits import limits_json
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.confidence import Confidence
from tilewright.embed.planning.counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed.planning.memory import SparseMemory
from tilewright.files import write_whole
from tilewright.render import bytes_text

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
"""Shares of the partitions whose limits a plan names."""
TYPICAL = 0.99
"""The share of the partitions that is called typical: one of the above."""

# What a plan says about padding, stacking and the host.


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

    table_bytes: int
    packed_table_bytes: int
    packed_tables: tuple[str, ...]
    separate_buffer_bytes: int
    stacked_buffer_bytes: int


@dataclass(frozen=True)
class Feeding:
    """Host against chip: ``host_seconds`` a whole batch took on this host with ``threads`` threads (measured, the
    fastest of the batches run again), and what a step takes on the chip at least (modelled: ``step_bytes`` of one chip
    at the rate of its HBM; 0.0 without a target)."""

    host_seconds: float
    threads: int
    step_bytes: int
    step_seconds: float


# What a plan says about uneven partitions.

AS_IT_IS = "as it is"


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
    limits: Limits
    imbalance: float
    wait: float = 1.0


@dataclass(frozen=True)
class Skew:
    """``hot``: the ids that fill the fullest shards; ``remedies``: what changes would give, "as it is" first;
    ``alone``: limits of every table, were it not stacked."""

    hot: tuple[HotId, ...]
    remedies: tuple[Remedy, ...]
    alone: Mapping[str, Limits]


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


class StackFigures:
    """What the plan of one stack says of itself, for a log's plan and a pod's alike."""

    name: str
    tables: tuple[str, ...]
    slots: int
    pointers: int
    forward: SparseMemory | None
    backward: SparseMemory | None

    @property
    def label(self) -> str:
        """The name, or the first and last table where it is long."""
        return short_label(self.name, self.tables)

    @property
    def programs(self) -> tuple[SparseMemory, ...]:
        """Lookup and update; none without a target."""
        return tuple(program for program in (self.forward, self.backward) if program)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one batch on one device: three words per slot, one per pointer."""
        return 12 * self.slots + 4 * self.pointers


@dataclass(frozen=True)
class StackPlan(StackFigures):
    """One stack: what the log asks of it, the limits chosen, the buffers and the compiler's verdicts.

    ============================  ==================================================================================
    ``observed``                  the largest counts of any partition (source x shard x batch)
    ``limits``                    the chosen quantile of the same
    ``mean_ids``                  entries of the average partition
    ``imbalance``                 entries of the fullest shard over those of the average shard, all batches together
    ``wait``                      what a step waits for, modelled: the shard that moves most bytes, of rows and of ids,
                                  over the average one; ``wait_rows``, ``wait_ids``: the same of either alone
    ``per_shard``                 entries every shard received, all batches together
    ``quantiles``                 (quantile, limits that hold it) of the partitions, ascending
    ``drop_rate``                 share of entries lost if ids above ``limits`` are dropped (replayed batches)
    ``partitions_over``           share of partitions above ``limits``
    ``slots``, ``pointers``       of one device's buffers, in the plain layout; ``buffer_bytes`` of both
    ``samples_per_sparsecore``    rows of the stack's activations on one SparseCore
    ``forward``, ``backward``     verdicts on lookup and update, None without a target
    ============================  ==================================================================================
    """

    name: str
    tables: tuple[str, ...]
    features: int
    padded_width: int
    rows_per_shard: int
    optimizer: str
    observed: Limits
    limits: Limits
    mean_ids: float
    imbalance: float
    drop_rate: float
    partitions_over: float
    slots: int
    pointers: int
    samples_per_sparsecore: int
    forward: SparseMemory | None
    backward: SparseMemory | None
    quantiles: tuple[tuple[float, Limits], ...]
    per_shard: tuple[int, ...]
    wait: float = 1.0
    wait_rows: float = 1.0
    wait_ids: float = 1.0


def short_label(name: str, tables: tuple[str, ...]) -> str:
    """A stack's name, or its first and last table where it is long."""
    return name if len(name) <= 28 else f"{tables[0]} … {tables[-1]}"


class Buffered(Protocol):
    """What a stack's share of HBM follows from; :class:`StackPlan` says what the names mean."""

    @property
    def label(self) -> str:
        """A short name."""

    @property
    def padded_width(self) -> int:
        """Floats per row."""

    @property
    def samples_per_sparsecore(self) -> int:
        """Rows of its activations."""

    @property
    def buffer_bytes(self) -> int:
        """Of one batch on one device."""

    @property
    def forward(self) -> SparseMemory | None:
        """Verdict on the lookup."""

    @property
    def backward(self) -> SparseMemory | None:
        """Verdict on the update."""

    @property
    def programs(self) -> tuple[SparseMemory, ...]:
        """Both."""


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
    buffer_bytes: int
    batches_over: float
    minibatches_mean: float | None
    minibatches_max: int | None
    drop_rate: float
    uncut: float = 0.0
    uncut_because: str = ""

    @property
    def minibatch_buffer_bytes(self) -> int:
        """Every buffer is as many times as large as there are hash buckets."""
        return self.buffer_bytes * BUCKETS


@dataclass(frozen=True)
class Heap:
    """HBM of one chip, in bytes: what stays (tables, optimizer slots, inputs fetched ahead, activations and their
    gradients on the way between SparseCores and TensorCore, what pipelining holds on top) and the stack in use,
    ``measured`` or ``modelled`` as ``stack_note`` says.

    Inputs are in the plain layout; ``if_cut``: what they take on top where each is laid out for mini-batches."""

    tables: int
    slots: int
    inputs: int
    exchange: int
    pipelined: int
    forward_stack: int
    backward_stack: int
    capacity: int
    stack_basis: str
    stack_note: str
    if_cut: int = 0

    @property
    def total(self) -> int:
        """Heap and the larger of the two stacks."""
        kept = self.tables + self.slots + self.inputs + self.exchange + self.pipelined
        return kept + max(self.forward_stack, self.backward_stack)


def verdict_of(target: str, stacks: Sequence[Buffered], heap: Heap) -> str:
    """One sentence: whether everything compiles and fits, or what does not."""
    if not target:
        return "no target given: limits and buffers only"
    failing = [(stack.label, program) for stack in stacks for program in stack.programs if not program.compiles]
    if failing:
        label, program = failing[0]
        advice = ""
        if best := program.largest_limits:
            ids, unique = best.max_ids_per_partition, best.max_unique_ids_per_partition
            advice = f"; limits of {ids} ids and {unique} distinct ids would compile"
        return f"does not compile on {target}: stack {label}, {program.op}: {program.reason}{advice}"
    figures = f"{bytes_text(heap.total)} of {bytes_text(heap.capacity)} HBM a chip"
    if heap.total > heap.capacity:
        return f"does not fit on {target}: {figures}; take more chips, or smaller tables"
    return f"compiles and fits on {target}: {figures}"


@dataclass(frozen=True)
class Plan:
    """What embedding tables need on a topology, learnt from logged batches: see :func:`plan`.

    ``uncut``: the share of the replayed batches that exceed the limits and that mini-batches cannot cut, and why.
    ``confidence``: how often a fresh batch exceeds the limits; None where they are a quantile: ``batches_over`` then
    says how many of the log's exceed them.
    """

    stacking: Stacking
    target: str
    quantile: float
    batches: int
    samples: int
    replayed: int
    batches_over: float
    prefetched_batches: int
    stacks: tuple[StackPlan, ...]
    tables: tuple[TablePlan, ...]
    curve: tuple[CurvePoint, ...]
    heap: Heap
    skew: Skew
    savings: Savings
    feeding: Feeding
    confidence: Confidence | None = None
    uncut: float = 0.0
    uncut_because: str = ""

    @property
    def limits(self) -> dict[str, Limits]:
        """Stack -> the chosen limits, as ``preprocess`` takes them."""
        return {stack.name: stack.limits for stack in self.stacks}

    @property
    def batch(self) -> int:
        """Samples of one batch, of all chips together."""
        return self.samples // self.batches

    @property
    def verdict(self) -> str:
        """One sentence: whether everything compiles and fits, or what does not."""
        return verdict_of(self.target, self.stacks, self.heap)

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict, limits and what lies in HBM; ``plan_html(plan)`` is the whole page."""
        from tilewright.render import Column, count_text, glance
        from tilewright.render.tables import glance_table

        chips = self.stacking.topology
        log = f"{count_text(self.batches)} batches of {count_text(self.batch)} samples"
        head = f"{len(self.tables)} tables in {len(self.stacks)} stacks on {chips.sparsecores} SparseCores, from {log}"
        sure = f"confidence: {self.confidence.sentence}" if self.confidence is not None else ""
        columns = [Column("stack", "code"), Column("ids a partition", "count"), Column("distinct ids", "count")]
        columns += [Column("imbalance", "ratio")]
        rows = [(s.label, *vars(s.limits).values(), s.imbalance) for s in self.stacks]
        heap = [(part, getattr(self.heap, part)) for part in ("tables", "slots", "inputs", "exchange", "total")]
        limits = glance_table(columns, rows, caption="limits")
        memory = glance_table((Column("what"), Column("bytes", "bytes")), heap, caption="HBM of one chip")
        return glance(head, self.verdict, sure, limits, memory)

    @property
    def fits(self) -> bool | None:
        """Whether every stack compiles and a chip's HBM holds it all; None without a target."""
        if not self.target:
            return None
        return (
            all(m.compiles for stack in self.stacks for m in stack.programs) and self.heap.total <= self.heap.capacity
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values with a ``schema_version``; ``counters`` is what :func:`diagnose` reads."""
        topology, savings, feeding = self.stacking.topology, self.savings, self.feeding
        return {
            "schema_version": 1,
            "kind": "embedding_plan",
            "counters": plan_counters(self).to_json(),
            "target": self.target or None,
            "topology": {**vars(topology), "sparsecores": topology.sparsecores},
            **_picked(self, "quantile", "batches", "batch", "samples", replayed_batches="replayed"),
            **_picked(self, "batches_over", "uncut", "uncut_because", "fits", "verdict"),
            "confidence": self.confidence.to_json() if self.confidence else None,
            "stacks": [_stack_json(stack) for stack in self.stacks],
            "tables": [
                {**vars(table), **_picked(table, "wasted_by_width", "wasted_by_vocab")} for table in self.tables
            ],
            "curve": [_point_json(point) for point in self.curve],
            "skew": {
                "hot_ids": [dict(vars(hot)) for hot in self.skew.hot],
                "changes": [
                    {**_picked(remedy, "stack", "change", "imbalance", "wait"), **vars(remedy.limits)}
                    for remedy in self.skew.remedies
                ],
                "tables_alone": limits_json(self.skew.alone)["stacks"],
            },
            "savings": {
                **_picked(savings, "table_bytes", "packed_table_bytes"),
                "packed_tables": list(savings.packed_tables),
                "separate_buffer_bytes_per_device": savings.separate_buffer_bytes,
                "stacked_buffer_bytes_per_device": savings.stacked_buffer_bytes,
            },
            "feeding": {
                "host_seconds_per_batch": feeding.host_seconds,
                "host_threads": feeding.threads,
                "host_basis": "measured",
                "step_bytes_per_chip": feeding.step_bytes,
                "step_seconds_at_least": feeding.step_seconds or None,
                "step_basis": "modelled",
            },
            "hbm_per_chip": heap_json(self.heap, self.prefetched_batches),
        }

    def limits_json(self) -> dict[str, Any]:
        """The content of the limits file: the chosen limits, and what they were learnt from."""
        learnt = _picked(self, "quantile", "batches", "batch")
        packed = any(table.rows_per_line > 1 for table in self.tables)
        facts = {"topology": dict(vars(self.stacking.topology)), "rotation": self.stacking.rotations}
        return limits_json(self.limits, target=self.target or None, **facts, **learnt, narrow_packing=packed)

    def write_limits(self, path: str | Path) -> None:
        """Write the chosen limits as JSON, for :func:`read_limits`."""
        write_whole(path, json.dumps(self.limits_json(), indent=2) + "\n")


def _picked(value: Any, *names: str, **renamed: str) -> dict[str, Any]:
    """Attributes of ``value`` under their own names, or under others: ``new_name="attribute"``."""
    return {new: getattr(value, name) for new, name in [*zip(names, names), *renamed.items()]}


def heap_json(heap: Heap, prefetched_batches: int) -> dict[str, Any]:
    parts = ("tables", "slots", "inputs", "exchange", "pipelined", "forward_stack", "backward_stack")
    return {
        **{f"{part}_bytes": getattr(heap, part) for part in parts},
        "prefetched_batches": prefetched_batches,
        "layout": "plain",
        "minibatch_layout_bytes_more": heap.if_cut,
        **_picked(heap, "stack_basis", "stack_note", total_bytes="total"),
        "capacity_bytes": heap.capacity or None,
    }


def _point_json(point: CurvePoint) -> dict[str, Any]:
    return {
        "fraction": point.fraction,
        "buffer_bytes_per_device": point.buffer_bytes,
        "minibatch_buffer_bytes_per_device": point.minibatch_buffer_bytes,
        **_picked(point, "batches_over", "minibatches_mean", "minibatches_max", "uncut", "uncut_because", "drop_rate"),
        "limits": limits_json(point.limits)["stacks"],
    }


def _stack_json(stack: StackPlan) -> dict[str, Any]:
    return {
        "name": stack.name,
        "tables": list(stack.tables),
        **_picked(stack, "features", "padded_width", "rows_per_shard", "optimizer", "samples_per_sparsecore"),
        "limits": dict(vars(stack.limits)),
        "observed": dict(vars(stack.observed)),
        "quantiles": [{"quantile": quantile, **vars(limits)} for quantile, limits in stack.quantiles],
        "ids_per_shard": list(stack.per_shard),
        **_picked(stack, "mean_ids", "imbalance", "wait", "wait_rows", "wait_ids"),
        **_picked(stack, "drop_rate", "partitions_over", slots_per_device="slots"),
        **_picked(stack, row_pointers_per_device="pointers", buffer_bytes_per_device="buffer_bytes"),
        "programs": [program_json(program) for program in stack.programs],
    }


def program_json(program: SparseMemory) -> dict[str, Any]:
    largest = program.largest_limits
    return {
        **_picked(program, "op", "compiles", "reason", "logical_replica_count", "guide_bytes", "stack_bytes"),
        **_picked(program, "tile_bytes", "tile_limit", "basis", "note"),
        "largest_limits": dict(vars(largest)) if largest else None,
    }


# A plan as counters: what a log asks, before any step has been run.


def plan_counters(plan: Plan, sparsecore: SparseCoreConfig | None = None) -> Counters:
    """A plan's counts, with the guide's knobs in use where they are given.

    Steps are the log's batches; ``seconds.host`` is this host's preprocessing time, ``hbm.moved`` the least traffic of
    a step. Times of a chip are not in a plan: put them on top with :meth:`Counters.merged`.
    """
    topology, heap = plan.stacking.topology, plan.heap
    return Counters(
        target=plan.target,
        chips=topology.chips,
        sparsecores=topology.sparsecores,
        steps=plan.batches,
        steps_over=plan.batches_over,
        uncut=round(plan.uncut * plan.batches),
        uncut_because=plan.uncut_because,
        buffer_bytes=sum(stack.buffer_bytes for stack in plan.stacks) * topology.devices // topology.chips,
        seconds=Seconds(host=plan.feeding.host_seconds),
        hbm=HbmCounters(
            tables=heap.tables,
            slots=heap.slots,
            inputs=heap.inputs,
            exchange=heap.exchange + heap.pipelined,
            forward_stack=heap.forward_stack if plan.target else None,
            backward_stack=heap.backward_stack if plan.target else None,
            capacity=heap.capacity or None,
            moved=plan.feeding.step_bytes,
            moved_modelled=True,
        ),
        stacks={stack.name: _stack_counters(plan, stack) for stack in plan.stacks},
        tables={table.name: _line_counters(table) for table in plan.tables},
        sparsecore=sparsecore,
    )


def _line_counters(table: TablePlan) -> TableCounters:
    """A packed table as the lines it lives in."""
    lines = -(-table.vocab // table.rows_per_line)
    return TableCounters(lines, table.width * table.rows_per_line)


def _stack_counters(plan: Plan, stack: StackPlan) -> StackCounters:
    typical = dict(stack.quantiles)[TYPICAL]
    hot = next((hot for hot in plan.skew.hot if hot.stack == stack.name), None)
    remedies = [remedy for remedy in plan.skew.remedies if remedy.stack == stack.name]
    return StackCounters(
        tables=len(stack.tables),
        width=stack.padded_width,
        label=stack.label,
        optimizer=stack.optimizer,
        combiner=plan.stacking.stacks[stack.name].combiner,
        samples_per_sparsecore=stack.samples_per_sparsecore,
        max_ids_per_partition=stack.limits.max_ids_per_partition,
        max_unique_ids_per_partition=stack.limits.max_unique_ids_per_partition,
        observed_ids=stack.observed.max_ids_per_partition,
        observed_unique_ids=stack.observed.max_unique_ids_per_partition,
        typical_ids=typical.max_ids_per_partition,
        typical_unique_ids=typical.max_unique_ids_per_partition,
        mean_ids=stack.mean_ids,
        imbalance=stack.imbalance,
        wait=stack.wait,
        wait_rows=stack.wait_rows,
        wait_ids=stack.wait_ids,
        dropped_share=stack.drop_rate,
        hot=(hot.table, hot.id, hot.share) if hot else None,
        remedies={remedy.change: (*vars(remedy.limits).values(), remedy.imbalance) for remedy in remedies},
        remedy_waits={remedy.change: remedy.wait for remedy in remedies},
    )

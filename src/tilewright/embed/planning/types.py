"""A plan's parts: plain frozen values that print, draw and become JSON elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.embed.model.formulas import MINIBATCH_FACTOR
from tilewright.embed.model.limits import limits_json
from tilewright.embed.model.stacking import Stacking
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.memory import SparseMemory

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
    """A stack's fullest partitions and imbalance in the replayed batches, if ``change`` were made."""

    stack: str
    change: str
    limits: Limits
    imbalance: float


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


@dataclass(frozen=True)
class StackPlan:
    """One stack: what the log asks of it, the limits chosen, the buffers and the compiler's verdicts.

    ============================  ==================================================================================
    ``observed``                  the largest counts of any partition (source x shard x batch)
    ``limits``                    the chosen quantile of the same
    ``mean_ids``                  entries of the average partition
    ``imbalance``                 entries of the fullest shard over those of the average shard, all batches together
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

    @property
    def programs(self) -> tuple[SparseMemory, ...]:
        """Lookup and update; none without a target."""
        return tuple(program for program in (self.forward, self.backward) if program)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one batch on one device: three words per slot, one per pointer."""
        return 12 * self.slots + 4 * self.pointers


@dataclass(frozen=True)
class CurvePoint:
    """What limits at ``fraction`` of the observed maxima would mean: ``buffer_bytes`` of one batch on one device in the
    plain layout, ``minibatch_buffer_bytes`` in that of mini-batches; mini-batches and drops over the replayed batches.
    """

    fraction: float
    limits: Mapping[str, Limits]
    buffer_bytes: int
    batches_over: float
    minibatches_mean: float
    minibatches_max: int
    drop_rate: float

    @property
    def minibatch_buffer_bytes(self) -> int:
        """Every buffer is as many times as large as there are hash buckets."""
        return self.buffer_bytes * MINIBATCH_FACTOR


@dataclass(frozen=True)
class Heap:
    """HBM of one chip, in bytes: what stays (tables, optimizer slots, inputs fetched ahead, activations and their
    gradients on the way between SparseCores and TensorCore, what pipelining holds on top) and the stack in use,
    ``measured`` or ``modelled`` as ``stack_note`` says."""

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

    @property
    def total(self) -> int:
        """Heap and the larger of the two stacks."""
        kept = self.tables + self.slots + self.inputs + self.exchange + self.pipelined
        return kept + max(self.forward_stack, self.backward_stack)


@dataclass(frozen=True)
class Plan:
    """What embedding tables need on a topology, learnt from logged batches: see :func:`plan`."""

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
        from tilewright.embed.planning.faces import verdict

        return verdict(self)

    @property
    def fits(self) -> bool | None:
        """Whether every stack compiles and a chip's HBM holds it all; None without a target."""
        if not self.target:
            return None
        return (
            all(m.compiles for stack in self.stacks for m in stack.programs) and self.heap.total <= self.heap.capacity
        )

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values with a ``schema_version``."""

        return to_json(self)

    def write_limits(self, path: str | Path) -> None:
        """Write the chosen limits as JSON, for :func:`read_limits`."""
        import json

        from tilewright.files import write_whole

        write_whole(path, json.dumps(limits_file(self), indent=2) + "\n")


# A plan as plain values.


def _limits(limits: Limits) -> Mapping[str, int]:
    found: Mapping[str, int] = limits_json({"it": limits})["stacks"]["it"]
    return found


def limits_file(plan: Plan) -> dict[str, Any]:
    """Content of the limits file."""
    topology = plan.stacking.topology
    where = {
        "chips": topology.chips,
        "sparsecores_per_chip": topology.sparsecores_per_chip,
        "devices": topology.devices,
    }
    learnt = {"quantile": plan.quantile, "batches": plan.batches, "batch": plan.batch}
    learnt["narrow_packing"] = any(table.rows_per_line > 1 for table in plan.tables)
    return limits_json(plan.limits, target=plan.target or None, topology=where, **learnt)


def to_json(plan: Plan) -> dict[str, Any]:
    """Plain values; ``counters`` is what :func:`diagnose` reads."""
    from tilewright.embed.diagnosis.sources import plan_counters

    topology = plan.stacking.topology
    return {
        "schema_version": 1,
        "kind": "embedding_plan",
        "counters": plan_counters(plan).to_json(),
        "target": plan.target or None,
        "topology": {
            "chips": topology.chips,
            "sparsecores_per_chip": topology.sparsecores_per_chip,
            "devices": topology.devices,
            "sparsecores": topology.sparsecores,
        },
        "quantile": plan.quantile,
        "batches": plan.batches,
        "batch": plan.batch,
        "samples": plan.samples,
        "replayed_batches": plan.replayed,
        "batches_over": plan.batches_over,
        "fits": plan.fits,
        "verdict": plan.verdict,
        "stacks": [_stack_json(stack) for stack in plan.stacks],
        "tables": [_table_json(table) for table in plan.tables],
        "curve": [_point_json(point) for point in plan.curve],
        "skew": _skew_json(plan),
        "savings": {
            "table_bytes": plan.savings.table_bytes,
            "packed_table_bytes": plan.savings.packed_table_bytes,
            "packed_tables": list(plan.savings.packed_tables),
            "separate_buffer_bytes_per_device": plan.savings.separate_buffer_bytes,
            "stacked_buffer_bytes_per_device": plan.savings.stacked_buffer_bytes,
        },
        "feeding": {
            "host_seconds_per_batch": plan.feeding.host_seconds,
            "host_threads": plan.feeding.threads,
            "host_basis": "measured",
            "step_bytes_per_chip": plan.feeding.step_bytes,
            "step_seconds_at_least": plan.feeding.step_seconds or None,
            "step_basis": "modelled",
        },
        "hbm_per_chip": _heap_json(plan),
    }


def _heap_json(plan: Plan) -> dict[str, Any]:
    return {
        "tables_bytes": plan.heap.tables,
        "slots_bytes": plan.heap.slots,
        "inputs_bytes": plan.heap.inputs,
        "exchange_bytes": plan.heap.exchange,
        "pipelined_bytes": plan.heap.pipelined,
        "prefetched_batches": plan.prefetched_batches,
        "forward_stack_bytes": plan.heap.forward_stack,
        "backward_stack_bytes": plan.heap.backward_stack,
        "stack_basis": plan.heap.stack_basis,
        "stack_note": plan.heap.stack_note,
        "total_bytes": plan.heap.total,
        "capacity_bytes": plan.heap.capacity or None,
    }


def _table_json(table: TablePlan) -> dict[str, Any]:
    return {
        "name": table.name,
        "stack": table.stack,
        "vocab": table.vocab,
        "width": table.width,
        "padded_vocab": table.padded_vocab,
        "padded_width": table.padded_width,
        "data_bytes": table.data_bytes,
        "padded_bytes": table.padded_bytes,
        "wasted_by_width": table.wasted_by_width,
        "wasted_by_vocab": table.wasted_by_vocab,
        "packed_bytes": table.packed_bytes,
        "unpacked_bytes": table.unpacked_bytes,
        "rows_per_line": table.rows_per_line,
    }


def _point_json(point: CurvePoint) -> dict[str, Any]:
    return {
        "fraction": point.fraction,
        "buffer_bytes_per_device": point.buffer_bytes,
        "minibatch_buffer_bytes_per_device": point.minibatch_buffer_bytes,
        "batches_over": point.batches_over,
        "minibatches_mean": point.minibatches_mean,
        "minibatches_max": point.minibatches_max,
        "drop_rate": point.drop_rate,
        "limits": limits_json(point.limits)["stacks"],
    }


def _skew_json(plan: Plan) -> dict[str, Any]:
    return {
        "hot_ids": [
            {"stack": h.stack, "table": h.table, "id": h.id, "shard": h.shard, "entries": h.entries, "share": h.share}
            for h in plan.skew.hot
        ],
        "changes": [
            {"stack": r.stack, "change": r.change, **_limits(r.limits), "imbalance": r.imbalance}
            for r in plan.skew.remedies
        ],
        "tables_alone": limits_json(plan.skew.alone)["stacks"],
    }


def _stack_json(stack: StackPlan) -> dict[str, Any]:
    return {
        "name": stack.name,
        "tables": list(stack.tables),
        "features": stack.features,
        "padded_width": stack.padded_width,
        "rows_per_shard": stack.rows_per_shard,
        "optimizer": stack.optimizer,
        "samples_per_sparsecore": stack.samples_per_sparsecore,
        "limits": _limits(stack.limits),
        "observed": _limits(stack.observed),
        "quantiles": [{"quantile": q, **_limits(limits)} for q, limits in stack.quantiles],
        "ids_per_shard": list(stack.per_shard),
        "mean_ids": stack.mean_ids,
        "imbalance": stack.imbalance,
        "drop_rate": stack.drop_rate,
        "partitions_over": stack.partitions_over,
        "slots_per_device": stack.slots,
        "row_pointers_per_device": stack.pointers,
        "buffer_bytes_per_device": stack.buffer_bytes,
        "programs": [_program_json(program) for program in stack.programs],
    }


def _program_json(program: SparseMemory) -> dict[str, Any]:
    largest = program.largest_limits
    return {
        "op": program.op,
        "compiles": program.compiles,
        "reason": program.reason,
        "logical_replica_count": program.logical_replica_count,
        "guide_bytes": program.guide_bytes,
        "stack_bytes": program.stack_bytes,
        "tile_bytes": program.tile_bytes,
        "tile_limit": program.tile_limit,
        "largest_limits": _limits(largest) if largest else None,
        "basis": program.basis,
        "note": program.note,
    }

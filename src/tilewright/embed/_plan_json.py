"""A plan as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.embed._limits_file import limits_json
from tilewright.embed._memory import SparseMemory
from tilewright.embed._plan_types import CurvePoint, Plan, StackPlan, TablePlan
from tilewright.embed._tables import Limits

__all__ = ["limits_file", "to_json"]


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
    from tilewright.embed._diagnose_plan import plan_counters

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

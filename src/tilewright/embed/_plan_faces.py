"""A plan's faces: JSON, the terminal, and blocks of an HTML page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.embed._limits_file import limits_json
from tilewright.embed._memory import SparseMemory
from tilewright.embed._plan_fields import CURVE, MEMORY, STACKS, TABLES, stack_label
from tilewright.embed._plan_types import Plan, StackPlan
from tilewright.render import Bar as _Bar
from tilewright.render import (
    Card,
    Column,
    Curve,
    Html,
    Tone,
    bar_chart,
    bytes_text,
    cards,
    cells,
    count_text,
    join,
    line_chart,
    note,
    percent_text,
    print_table,
    table,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["limits_file", "plan_html", "print_plan", "to_json", "verdict"]


def _programs(stack: StackPlan) -> list[SparseMemory]:
    return [program for program in (stack.forward, stack.backward) if program]


def verdict(plan: Plan) -> str:
    """One sentence."""
    if not plan.target:
        return "no target given: limits and buffers only"
    failing = [(stack_label(s), m) for s in plan.stacks for m in _programs(s) if not m.compiles]
    if failing:
        name, program = failing[0]
        best = program.largest_limits
        mend = ""
        if best:
            ids, unique = best.max_ids_per_partition, best.max_unique_ids_per_partition
            mend = f"; limits of {ids} ids and {unique} distinct ids would compile"
        return f"does not compile on {plan.target}: stack {name}, {program.op}: {program.reason}{mend}"
    heap = plan.heap
    figures = f"{bytes_text(heap.total)} of {bytes_text(heap.capacity)} HBM a chip"
    if heap.total > heap.capacity:
        return f"does not fit on {plan.target}: {figures}; take more chips, or smaller tables"
    return f"compiles and fits on {plan.target}: {figures}"


def limits_file(plan: Plan) -> dict[str, Any]:
    """Content of the limits file."""
    topology = plan.stacking.topology
    where = {
        "chips": topology.chips,
        "sparsecores_per_chip": topology.sparsecores_per_chip,
        "devices": topology.devices,
    }
    return limits_json(
        plan.limits, target=plan.target or None, topology=where, quantile=plan.quantile, batches=plan.batches
    )


def _all_programs(plan: Plan) -> list[tuple[StackPlan, SparseMemory]]:
    return [(stack, program) for stack in plan.stacks for program in _programs(stack)]


def _heap_parts(plan: Plan) -> list[tuple[str, int]]:
    heap = plan.heap
    parts = [("tables", heap.tables), ("optimizer slots", heap.slots), ("inputs fetched ahead", heap.inputs)]
    if plan.target:
        parts += [("stack of the lookup", heap.forward_stack), ("stack of the update", heap.backward_stack)]
    return parts


def _many(n: int, one: str, many: str = "") -> str:
    return f"{count_text(n)} {one if n == 1 else many or one + 's'}"


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """The plan as terminal tables."""
    from rich.console import Console

    console = console or Console()
    topology = plan.stacking.topology
    log = f"{_many(plan.batches, 'batch', 'batches')}, {_many(plan.samples, 'sample')}"
    what = f"{_many(len(plan.tables), 'table')} in {_many(len(plan.stacks), 'stack')}"
    where = f"{_many(topology.sparsecores, 'SparseCore')} ({_many(topology.chips, 'chip')})"
    console.print(f"{log}, {what} on {where}", highlight=False, soft_wrap=True)
    console.print(plan.verdict, highlight=False, soft_wrap=True)
    for title, columns, rows in (
        (f"limits holding {percent_text(plan.quantile)} of the partitions", STACKS, cells(STACKS, plan.stacks)),
        ("compiler, per SparseCore", MEMORY, cells(MEMORY, _all_programs(plan))),
        ("HBM of one chip", (Column("what"), Column("bytes", "bytes")), _heap_parts(plan)),
        ("tables", TABLES, cells(TABLES, plan.tables)),
        (f"lower limits ({plan.replayed} batches run again)", CURVE, cells(CURVE, plan.curve)),
    ):
        if rows:
            console.print()
            print_table(columns, rows, title=title, console=console)


def plan_html(plan: Plan) -> Html:
    """The plan as blocks of a page: figures, tables and the two drawings. Put it into ``Page.section``."""
    wasted = sum(t.padded_bytes - t.data_bytes for t in plan.tables) / max(1, sum(t.padded_bytes for t in plan.tables))
    worst = max(plan.stacks, key=lambda s: s.imbalance)
    tone: Tone = "plain" if plan.fits is None else "good" if plan.fits else "bad"
    blocks = [
        note(plan.verdict, tone=tone),
        cards(
            [
                Card("stacks", str(len(plan.stacks)), _many(len(plan.tables), "table")),
                Card("HBM a chip", bytes_text(plan.heap.total), _of(plan)),
                Card("padding", percent_text(wasted), "of the tables' bytes"),
                Card("imbalance", f"{worst.imbalance:.2f}", "fullest shard over the average"),
                Card("batches over", percent_text(plan.batches_over), "would be cut into mini-batches"),
            ]
        ),
        table(
            STACKS,
            cells(STACKS, plan.stacks),
            caption=f"Limits that hold {percent_text(plan.quantile)} of the partitions",
        ),
    ]
    if plan.target:
        blocks.append(
            table(MEMORY, cells(MEMORY, _all_programs(plan)), caption="What the compiler says, per SparseCore")
        )
    bars = [_Bar(name, (float(size),)) for name, size in _heap_parts(plan)]
    blocks.append(bar_chart(bars, title="HBM of one chip", kind="bytes"))
    shares = [p.fraction * 100 for p in reversed(plan.curve)]
    means = [p.minibatches_mean for p in reversed(plan.curve)]
    blocks.append(
        line_chart(
            [Curve("mini-batches per step", shares, means)],
            title="Mini-batches under lower limits",
            x_label="limits, percent of the observed maxima",
            y_label="mini-batches",
        )
    )
    replayed = f"Lower limits ({plan.replayed} batches run again)"
    blocks.append(table(CURVE, cells(CURVE, plan.curve), caption=replayed))
    blocks.append(table(TABLES, cells(TABLES, plan.tables), caption="Tables in HBM"))
    return join(blocks, "\n")


def _of(plan: Plan) -> str:
    return f"of {bytes_text(plan.heap.capacity)}" if plan.heap.capacity else "heap only: no target"


def to_json(plan: Plan) -> dict[str, Any]:
    """Plain values."""
    topology = plan.stacking.topology
    return {
        "schema_version": 1,
        "kind": "embedding_plan",
        "target": plan.target or None,
        "topology": {
            "chips": topology.chips,
            "sparsecores_per_chip": topology.sparsecores_per_chip,
            "devices": topology.devices,
            "sparsecores": topology.sparsecores,
        },
        "quantile": plan.quantile,
        "batches": plan.batches,
        "samples": plan.samples,
        "replayed_batches": plan.replayed,
        "batches_over": plan.batches_over,
        "fits": plan.fits,
        "verdict": plan.verdict,
        "stacks": [_stack_json(stack) for stack in plan.stacks],
        "tables": [
            dict(zip(_TABLE_KEYS, (t.name, t.stack, *row[1:])))
            for t, row in zip(plan.tables, cells(TABLES, plan.tables))
        ],
        "curve": [
            {**dict(zip(_CURVE_KEYS, row)), "limits": limits_json(p.limits)["stacks"]}
            for p, row in zip(plan.curve, cells(CURVE, plan.curve))
        ],
        "hbm_per_chip": {
            "tables_bytes": plan.heap.tables,
            "slots_bytes": plan.heap.slots,
            "inputs_bytes": plan.heap.inputs,
            "prefetched_batches": plan.prefetched_batches,
            "forward_stack_bytes": plan.heap.forward_stack,
            "backward_stack_bytes": plan.heap.backward_stack,
            "stack_basis": plan.heap.stack_basis,
            "total_bytes": plan.heap.total,
            "capacity_bytes": plan.heap.capacity or None,
        },
    }


_TABLE_KEYS = (
    *("name", "stack", "vocab", "width", "padded_vocab", "padded_width"),
    *("data_bytes", "padded_bytes", "wasted_by_width", "wasted_by_vocab"),
)
_CURVE_KEYS = ("fraction", "batches_over", "minibatches_mean", "minibatches_max", "drop_rate")


def _stack_json(stack: StackPlan) -> dict[str, Any]:
    return {
        "name": stack.name,
        "tables": list(stack.tables),
        "features": stack.features,
        "padded_width": stack.padded_width,
        "rows_per_shard": stack.rows_per_shard,
        "optimizer": stack.optimizer,
        "samples_per_sparsecore": stack.samples_per_sparsecore,
        "limits": limits_json({"it": stack.limits})["stacks"]["it"],
        "observed": limits_json({"it": stack.observed})["stacks"]["it"],
        "mean_ids": stack.mean_ids,
        "imbalance": stack.imbalance,
        "drop_rate": stack.drop_rate,
        "partitions_over": stack.partitions_over,
        "slots_per_device": stack.slots,
        "row_pointers_per_device": stack.pointers,
        "buffer_bytes_per_device": stack.buffer_bytes,
        "programs": [_program_json(program) for program in _programs(stack)],
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
        "largest_limits": limits_json({"it": largest})["stacks"]["it"] if largest else None,
        "basis": program.basis,
        "note": program.note,
    }

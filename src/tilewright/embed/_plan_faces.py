"""A plan on the terminal, and its sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.embed._memory import SparseMemory
from tilewright.embed._plan_fields import (
    CURVE,
    HOT,
    MEMORY,
    QUANTILES,
    REMEDIES,
    SAVINGS,
    STACKS,
    hot_rows,
    remedy_rows,
    savings,
    stack_label,
    table_fields,
)
from tilewright.embed._plan_types import Plan, StackPlan
from tilewright.render import Column, bytes_text, cells, count_text, percent_text, print_table, seconds_text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["all_programs", "feeding", "heap_parts", "many", "modelled", "packed", "print_plan", "verdict"]


def verdict(plan: Plan) -> str:
    """One sentence."""
    if not plan.target:
        return "no target given: limits and buffers only"
    failing = [(stack_label(s), m) for s in plan.stacks for m in s.programs if not m.compiles]
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


def all_programs(plan: Plan) -> list[tuple[StackPlan, SparseMemory]]:
    """(stack, program) of every stack."""
    return [(stack, program) for stack in plan.stacks for program in stack.programs]


def heap_parts(plan: Plan) -> list[tuple[str, int]]:
    """What lies in the HBM of one chip."""
    heap = plan.heap
    parts = [("tables", heap.tables), ("optimizer slots", heap.slots), ("inputs fetched ahead", heap.inputs)]
    parts += [("activations and gradients", heap.exchange)]
    if heap.pipelined:
        parts += [("held for pipelining", heap.pipelined)]
    if plan.target:
        parts += [("stack of the lookup", heap.forward_stack), ("stack of the update", heap.backward_stack)]
    return parts


def many(n: int, one: str, many: str = "") -> str:
    """A number and its noun."""
    return f"{count_text(n)} {one if n == 1 else many or one + 's'}"


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """The plan as terminal tables."""
    from rich.console import Console

    console = console or Console()
    topology = plan.stacking.topology
    log = f"{many(plan.batches, 'batch', 'batches')}, {many(plan.samples, 'sample')}"
    what = f"{many(len(plan.tables), 'table')} in {many(len(plan.stacks), 'stack')}"
    where = f"{many(topology.sparsecores, 'SparseCore')} ({many(topology.chips, 'chip')})"
    console.print(f"{log}, {what} on {where}", highlight=False, soft_wrap=True)
    console.print(plan.verdict, highlight=False, soft_wrap=True)
    for title, columns, rows in _tables(plan):
        if rows:
            console.print()
            print_table(columns, rows, title=title, console=console)
    console.print()
    for line in (*packed(plan), *modelled(plan), feeding(plan)):
        console.print(line, highlight=False, soft_wrap=True)


def _tables(plan: Plan) -> list[tuple[str, Sequence[Column], Sequence[Sequence[object]]]]:
    """The terminal's: of several stacks only the most uneven one is explained, the page and the JSON have all."""
    worst = max(plan.stacks, key=lambda s: s.imbalance)
    again = f"{many(plan.replayed, 'batch', 'batches')} run again"
    limits = f"limits holding {percent_text(plan.quantile)} of the partitions"
    columns = table_fields(plan)
    return [
        (limits, STACKS, cells(STACKS, plan.stacks)),
        ("ids / distinct ids that hold a share of the partitions", QUANTILES, cells(QUANTILES, plan.stacks)),
        ("compiler, per SparseCore", MEMORY, cells(MEMORY, all_programs(plan))),
        ("HBM of one chip", (Column("what"), Column("bytes", "bytes")), heap_parts(plan)),
        ("tables", columns, cells(columns, plan.tables)),
        ("arrangements", SAVINGS, cells(SAVINGS, savings(plan))),
        (f"lower limits ({again})", CURVE, cells(CURVE, plan.curve)),
        (f"what would even shards out ({again})", REMEDIES, cells(REMEDIES, remedy_rows(plan, [worst]))),
        ("hottest ids of its fullest shard", HOT, cells(HOT, hot_rows(plan, [worst]))),
    ]


def modelled(plan: Plan) -> list[str]:
    """What of the memory is modelled, and how; nothing where all of it follows measured rules."""
    notes = [m.note for _, m in all_programs(plan) if m.basis == "modelled"]
    if plan.target and plan.heap.stack_basis == "modelled":
        notes.append(plan.heap.stack_note)
    return [f"modelled: {note}" for note in dict.fromkeys(part for each in notes for part in each.split("; "))]


def packed(plan: Plan) -> list[str]:
    """What a line stands for, where tables are packed."""
    lines = [f"{t.rows_per_line} rows of {t.name}" for t in plan.tables if t.rows_per_line > 1]
    ids = "ids shown of these tables are lines: id // rows of the model's"
    return [f"packed: {', '.join(lines)} share a line; {ids}"] if lines else []


def feeding(plan: Plan) -> str:
    """Host against chip, in a sentence that says what is measured and what modelled."""
    found = plan.feeding
    threads = many(found.threads, "thread")
    host = f"feeding: this host makes a batch of all chips in {seconds_text(found.host_seconds)} (measured, {threads})"
    moved = f"a step moves {bytes_text(found.step_bytes)} through each chip's HBM"
    if not found.step_seconds:
        return f"{host}; {moved}"
    ratio = found.host_seconds / found.step_seconds
    keeps = (
        "it keeps up with any step" if ratio <= 1 else f"a step shorter than {seconds_text(found.host_seconds)} waits"
    )
    return f"{host}; {moved}, at least {seconds_text(found.step_seconds)} (modelled): {keeps}"

"""A plan as counters: what a log asks, before any step has been run."""

from __future__ import annotations

from tilewright.embed._diagnose_counters import Counters, HbmCounters, Seconds, StackCounters, TableCounters
from tilewright.embed._knobs import SparseCoreConfig
from tilewright.embed._plan_fields import stack_label
from tilewright.embed._plan_types import Plan, StackPlan, TablePlan
from tilewright.embed._tables import Limits

__all__ = ["plan_counters"]

_TYPICAL = 0.99


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
        buffer_bytes=sum(each.buffer_bytes for each in plan.stacks) * topology.devices // topology.chips,
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
        stacks={each.name: _stack(plan, each) for each in plan.stacks},
        tables={each.name: _table(each) for each in plan.tables},
        sparsecore=sparsecore,
    )


def _table(each: TablePlan) -> TableCounters:
    """A packed table as the lines it lives in."""
    lines = -(-each.vocab // each.rows_per_line)
    return TableCounters(lines, each.width * each.rows_per_line)


def _stack(plan: Plan, each: StackPlan) -> StackCounters:
    typical = next((limits for q, limits in each.quantiles if q == _TYPICAL), Limits(1, 1))
    hot = next((h for h in plan.skew.hot if h.stack == each.name), None)
    return StackCounters(
        tables=len(each.tables),
        width=each.padded_width,
        label=stack_label(each),
        optimizer=each.optimizer,
        combiner=plan.stacking.stacks[each.name].combiner,
        samples_per_sparsecore=each.samples_per_sparsecore,
        max_ids_per_partition=each.limits.max_ids_per_partition,
        max_unique_ids_per_partition=each.limits.max_unique_ids_per_partition,
        observed_ids=each.observed.max_ids_per_partition,
        observed_unique_ids=each.observed.max_unique_ids_per_partition,
        typical_ids=typical.max_ids_per_partition,
        typical_unique_ids=typical.max_unique_ids_per_partition,
        mean_ids=each.mean_ids,
        imbalance=each.imbalance,
        dropped_share=each.drop_rate,
        hot=(hot.table, hot.id, hot.share) if hot else (),
        remedies={
            r.change: (r.limits.max_ids_per_partition, r.limits.max_unique_ids_per_partition, r.imbalance)
            for r in plan.skew.remedies
            if r.stack == each.name
        },
    )

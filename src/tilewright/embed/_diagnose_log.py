"""A log against a model's limits as counters: what a run would be fed, before it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tilewright.embed._config import EmbedConfig
from tilewright.embed._diagnose_counters import Counters, StackCounters
from tilewright.embed._diagnose_plan import plan_counters
from tilewright.embed._memory import OPERATIONS, memory
from tilewright.embed._narrow import NarrowTables
from tilewright.embed._plan import plan
from tilewright.embed._stacking import Stacking, stack
from tilewright.embed._tables import Limits

__all__ = ["log_counters"]

Batch = Mapping[str, Any]


def log_counters(
    batches: Iterable[Batch],
    model: EmbedConfig,
    limits: Mapping[str, Limits] | None = None,
    *,
    bad_ids: str = "error",
    progress: Callable[[int], None] | None = None,
) -> Counters:
    """Counters of a log's batches under ``limits`` (the model's own where None; without any, the log's maxima).

    One pass over the batches: what each asks, into how many mini-batches it is cut, what would be dropped where
    ``allow_id_dropping`` is set, and, scaled to these limits, the stack of the programs.

    Raises :class:`UsageError` for whatever ``plan`` refuses.
    """
    knobs, narrow = model.sparsecore, model.narrow
    sizes, together = narrow.batch_sizes(model.batch), not knobs.disable_table_stacking
    stacking = stack(narrow.features, model.topology, together, sizes, stacks=model.stacks)
    limits = model.limits if limits is None else limits
    under = _Under(stacking, limits or {}, bad_ids, narrow, drop=knobs.allow_id_dropping)
    made = plan(
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
    counters = plan_counters(made, knobs)
    return _under_limits(counters, under) if limits else counters


class _Under:
    """Mini-batches and drops of the batches that pass through."""

    def __init__(
        self, stacking: Stacking, limits: Mapping[str, Limits], bad_ids: str, narrow: NarrowTables, *, drop: bool
    ) -> None:
        self.narrow = narrow
        self.stacking, self.limits, self.bad_ids, self.drop = stacking, limits, bad_ids, drop
        self.minibatches = self.over = self.steps = 0
        self.dropped = dict.fromkeys(stacking.stacks, 0)
        self.ids = dict.fromkeys(stacking.stacks, 0)

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches, counted on their way."""
        for batch in batches:
            if self.limits:
                self._add(batch)
            yield batch

    def _add(self, batch: Batch) -> None:
        from tilewright.embed._observe import count_batch, splits
        from tilewright.embed._overflow import limit_table
        from tilewright.embed._preprocess import preprocess

        batch = self.narrow.batch(batch, self.bad_ids)
        table = limit_table(self.limits, self.stacking)
        made, counts, _ = count_batch(batch, self.stacking, self.bad_ids)
        over = any((found.max(axis=(1, 2)) > most).any() for found, most in zip(counts, table))
        self.steps += 1
        self.over += over
        self.minibatches += splits(self.stacking, made, table) if over and not self.drop else 1
        for name, found in zip(self.ids, counts):
            self.ids[name] += int(found[0].sum())
        if over and self.drop:
            host = preprocess(batch, self.stacking, self.limits, overflow="drop", bad_ids=self.bad_ids)
            for name, stats in host.stats.items():
                self.dropped[name] += int(stats.dropped_ids.sum())


def _under_limits(counters: Counters, under: _Under) -> Counters:
    """The counters with the limits of ``under`` in place of those the log would need."""
    stacks = {}
    for name, each in counters.stacks.items():
        limits = under.limits.get(name)
        stacks[name] = replace(
            each,
            max_ids_per_partition=limits.max_ids_per_partition if limits else None,
            max_unique_ids_per_partition=limits.max_unique_ids_per_partition if limits else None,
            ids=under.ids[name],
            dropped_ids=under.dropped[name] if under.drop else None,
            dropped_share=None,
        )
    now, then = (_program_bytes(counters, each) for each in (counters.stacks, stacks))
    hbm = counters.hbm
    if now[0]:
        hbm = replace(hbm, forward_stack=round((hbm.forward_stack or 0) * then[0] / now[0]))
    if now[1]:
        hbm = replace(hbm, backward_stack=round((hbm.backward_stack or 0) * then[1] / now[1]))
    return replace(
        counters,
        stacks=stacks,
        minibatches=under.minibatches,
        steps_over=under.over / under.steps,
        hbm=hbm,
    )


def _program_bytes(counters: Counters, stacks: Mapping[str, StackCounters]) -> tuple[int, int]:
    """HBM stack of the lookups and of the updates, each alone."""
    sums = [0, 0]
    for each in stacks.values():
        if each.limits is not None and counters.target:
            for i, op in enumerate(("forward", each.optimizer.lower())):
                if op in OPERATIONS:
                    found = memory(counters.target, counters.shards, each.width, each.limits, op)
                    sums[i] += found.stack_bytes
    return sums[0], sums[1]

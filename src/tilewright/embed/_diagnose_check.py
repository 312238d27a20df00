"""A check of batches against limits as counters: are the limits too low, too high, too large for a tile?"""

from __future__ import annotations

from dataclasses import replace

from tilewright.embed._check import Check
from tilewright.embed._diagnose_counters import Counters, StackCounters
from tilewright.embed._stacking import Stacking

__all__ = ["check_counters"]

_SEEN = {"max_ids_per_partition": "observed_ids", "max_unique_ids_per_partition": "observed_unique_ids"}


def check_counters(check: Check, stacking: Stacking, target: str = "") -> Counters:
    """Every stack's limits beside the most that was asked of it."""
    stacks = {
        name: StackCounters(
            tables=len(stack.tables),
            width=stack.padded_width,
            optimizer=type(stack.optimizer).__name__,
            combiner=stack.combiner,
        )
        for name, stack in stacking.stacks.items()
    }
    for each in check.limits:
        if each.what in stacks and each.knob in _SEEN:
            found = {each.knob: each.limit, _SEEN[each.knob]: each.observed}
            stacks[each.what] = replace(stacks[each.what], **found)  # type: ignore[arg-type]
    topology = stacking.topology
    return Counters(
        target=target,
        chips=topology.chips,
        sparsecores=topology.sparsecores,
        steps=check.batches,
        steps_over=check.batches_over / check.batches,
        stacks={name: each for name, each in stacks.items() if each.limits is not None},
    )

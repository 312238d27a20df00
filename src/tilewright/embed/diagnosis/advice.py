"""What to change so that a stack compiles: every change alone, with the numbers at which it does."""

from __future__ import annotations

import math

import numpy as np

from tilewright.embed.model.formulas import round8
from tilewright.embed.model.tables import Limits
from tilewright.embed.planning.memory import RULE_VERSION, TileRule


def tight(rule: TileRule, limits: Limits) -> dict[str, int]:
    """The fewest bytes a tile would need, at the most replicas, spare included."""
    unique = np.asarray(limits.max_unique_ids_per_partition, np.int64)
    ids = np.asarray(limits.max_ids_per_partition, np.int64)
    return {"needed per tile, at least": rule.least_bytes(unique, ids)}


def advice_for(rule: TileRule, limits: Limits, best: Limits | None, *, ids_known: bool) -> tuple[str, ...]:
    """Changes, the smallest first."""
    if rule.fits(limits.max_unique_ids_per_partition, limits.max_ids_per_partition):
        return (f"by the rules measured against {RULE_VERSION} these limits compile: compare the compiler's version",)
    lines = []
    if rule.width % 8:
        lines.append(_padding_advice(rule, limits))
    lines += _limits_advice(rule, limits, best, ids_known)
    if best is not None:
        share = best.max_unique_ids_per_partition / limits.max_unique_ids_per_partition
        lines.append(
            f"keep the limits of the log and cut the batch to {share:.0%} or less (ids fall in proportion, "
            "distinct ids more slowly: check it with `embed plan --batch`)"
        )
        times = math.ceil(1 / share)
        lines.append(
            f"or take {times} times the chips: each source then has 1/{times} of the samples, each shard 1/{times} of "
            f"the rows, so even ids need 1/{times * times} of the limits and the hottest ones 1/{times}"
        )
    lines.append("or let the host cut mini-batches: compile with limits that fit, and keep every id")
    return tuple(lines)


def _padding_advice(rule: TileRule, limits: Limits) -> str:
    padded = round8(rule.width)
    wide = TileRule(rule.tile_limit, rule.fixed, rule.op, rule.sparsecores, padded)
    same = wide.fits(limits.max_unique_ids_per_partition, limits.max_ids_per_partition)
    then = "the same limits then compile" if same else f"limits up to {_text(wide.largest(limits))} then compile"
    return f"make the width {padded}, a multiple of 8: {then}"


def _limits_advice(rule: TileRule, limits: Limits, best: Limits | None, ids_known: bool) -> list[str]:
    lines = []
    unique = rule.largest_unique(limits.max_ids_per_partition)
    if unique and ids_known and unique < limits.max_unique_ids_per_partition:
        now = limits.max_unique_ids_per_partition
        lines.append(f"lower max_unique_ids_per_partition alone from {now:,} to {unique:,}")
    ids = rule.largest_ids(limits.max_unique_ids_per_partition)
    if ids and ids_known and ids < limits.max_ids_per_partition:
        lines.append(f"lower max_ids_per_partition alone from {limits.max_ids_per_partition:,} to {ids:,}")
    if best is not None:
        lines.append(f"lower both limits to {_text(best)}")
    else:
        lines.append("no limits of this proportion compile: lower max_ids_per_partition first")
    return lines


def _text(limits: Limits | None) -> str:
    if limits is None:
        return "none"
    return f"{limits.max_ids_per_partition:,} ids and {limits.max_unique_ids_per_partition:,} distinct ids"

"""Uneven loads: shards that receive more than others, and logs whose neighbours are alike."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.embed._diagnose_counters import Counters, StackCounters
from tilewright.embed._diagnose_types import Finding, Rule
from tilewright.render import percent_text

__all__ = ["RULES"]

_UNEVEN, _VERY = 1.5, 3.0
"""The fullest shard over the average one: a warning, severe."""
_FEW, _FEW_OF_SHARD = 8, 64
"""Fewer ids per partition than this fill no buffer's 8 slots; fewer per shard, in all steps, are uneven by chance."""
_PEAK = 4.0
"""The fullest partition over the average one, where shards are even: the log is clustered."""
_AS_IT_IS = "as it is"


def _skew(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        uneven = stack.unevenness
        if uneven is None or uneven < _UNEVEN or _by_chance(counters, stack, uneven):
            continue
        small = stack.mean_ids is not None and stack.mean_ids < _FEW
        evidence: dict[str, float] = {"fullest shard over the average": round(uneven, 4)}
        if stack.mean_ids is not None:
            evidence["ids of the average partition"] = round(stack.mean_ids, 2)
        cause = "one shard receives more ids than the others, and every step waits for it"
        if stack.hot:
            table, hot, share = stack.hot
            cause += f"; id {hot} of table {table} alone is {percent_text(share)} of what it receives"
            evidence["share of the hottest id"] = share
        advice, effect = _remedies(stack, uneven)
        yield Finding(
            "skew",
            "severe" if uneven >= _VERY and not small else "warning",
            cause,
            advice,
            subject=name,
            evidence=evidence,
            effect=effect,
        )


def _by_chance(counters: Counters, stack: StackCounters, uneven: float) -> bool:
    """Whether shards that receive so few ids may differ so: five deviations of a random count."""
    if stack.mean_ids is None:
        return False
    if not counters.shards:
        return stack.mean_ids < _FEW
    received = stack.mean_ids * counters.shards * max(1, counters.steps or 1)
    return received < _FEW_OF_SHARD or uneven < 1 + 5 / math.sqrt(received)


def _remedies(stack: StackCounters, uneven: float) -> tuple[tuple[str, ...], str]:
    """What was tried on the log, the best first; the usual changes where nothing was."""
    gains = sorted((values[2], change) for change, values in stack.remedies.items() if change != _AS_IT_IS)
    best = [(left, change) for left, change in gains if left < 0.95 * uneven]
    if best:
        advice = [f"{change}: imbalance {left:.2f} instead of {uneven:.2f}" for left, change in best[:3]]
        return tuple(advice), f"up to {uneven / best[0][0]:.2f} times the lookups of a step that waits for one shard"
    if stack.remedies:
        return (
            "neither rotating, hashing nor shuffling helps on this log: hold the hottest ids in a small dense table",
        ), ""
    return (
        "hash the ids before they are looked up, so that neighbours do not share a shard",
        "give the hottest ids a small dense table of their own, or a default vector",
        "stack the table with others: rotation puts their hot rows on different shards",
    ), f"at most {uneven:.2f} times the lookups of a step that waits for one shard"


def _clustered(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        mean, most, uneven = stack.mean_ids, stack.observed_ids, stack.unevenness
        if not mean or not most or mean < _FEW or uneven is None or most < _PEAK * mean * uneven:
            continue
        shuffled = next((v for change, v in stack.remedies.items() if "shuffle" in change), None)
        effect = f"limits of {shuffled[0]:.0f} ids instead of {most}" if shuffled and shuffled[0] < most else ""
        yield Finding(
            "clustered-log",
            "warning",
            "the fullest partition holds far more than its shard's share: neighbouring samples have the same ids, as "
            "in a log ordered by time or user",
            (
                "shuffle the log over a window of many batches before it is cut into batches",
                "or interleave samples, so that every SparseCore's slice holds a mixture",
            ),
            subject=name,
            evidence={"ids of the fullest partition": most, "ids of the average partition": round(mean, 2)},
            effect=effect,
        )


RULES = (
    Rule(
        "skew",
        "guide section 10, data distribution skew",
        ("stack.imbalance|stack.shard_ids",),
        "the fullest shard receives 1.5 times the average, more than by chance (3: severe, where partitions fill)",
        _skew,
    ),
    Rule(
        "clustered-log",
        "guide section 10, data distribution skew; section 7, observed limits",
        ("stack.mean_ids", "stack.observed_ids", "stack.imbalance|stack.shard_ids"),
        "shards are even and yet a partition holds 4 times its share",
        _clustered,
    ),
)

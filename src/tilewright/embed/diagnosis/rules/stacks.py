"""How tables are grouped, and in which format they are held."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.embed.diagnosis.finding import Finding, rule
from tilewright.embed.model.stacking import ACTIVATION_BYTES
from tilewright.embed.planning.counters import Counters, StackCounters
from tilewright.embed.planning.types import AS_IT_IS
from tilewright.render import bytes_text, count_text, percent_text
from tilewright.targets import target

_FEWEST, _MOST = 5, 100
"""Tables a stack: the guide's advice."""
_FULL = 0.5
"""Tables and slots that take this share of HBM are worth a narrower format."""


@rule(
    "too-few-tables-stacked",
    "guide section 10, table stacking: 5 to 100 tables",
    needs=("stack.tables", "stack.width"),
    when="five tables or more of one kind stand in stacks of fewer than five, and could share one",
)
def too_few_tables_stacked(counters: Counters) -> Iterator[Finding]:
    off = counters.knobs.disable_table_stacking
    kinds: dict[tuple[int, str, str], list[tuple[str, StackCounters]]] = {}
    for name, stack in counters.stacks.items():
        kinds.setdefault((stack.width, stack.optimizer, stack.combiner), []).append((name, stack))
    for (width, optimizer, _), members in kinds.items():
        small = [(name, stack) for name, stack in members if stack.tables < _FEWEST]
        tables, stacks = sum(stack.tables for _, stack in small), len(small)
        fit = _could_be(small, width)
        if not width or tables < _FEWEST or fit >= stacks:
            continue
        why = "table stacking is switched off" if off else "tables that could share a stack stand alone"
        yield Finding(
            "warning",
            f"{why}: each stack has its own buffers, programs and exchange between chips, whose latency nothing hides",
            (
                f"{'let' if off else 'stack'} the {count_text(tables)} tables of width {width}"
                + (f" ({optimizer})" if optimizer else "")
                + (" stack: disable_table_stacking = false" if off else f" into {fit} instead of {stacks} stacks"),
            ),
            evidence={
                "tables": tables,
                "stacks": stacks,
                "tables a stack": round(tables / stacks, 2),
                "stacks at 2 MiB of activations each": fit,
            },
            effect=f"{fit} exchanges each way a step instead of {stacks}",
        )


def _could_be(small: list[tuple[str, StackCounters]], width: int) -> int:
    """Stacks these would make within the activation bytes of a stack, and a hundred tables each: first fit."""
    sizes: list[tuple[int, int]] = []
    for _, stack in small:
        size = 4 * width * (stack.samples_per_sparsecore or 0)
        for i, (bytes_, tables) in enumerate(sizes):
            if bytes_ + size <= ACTIVATION_BYTES and tables + stack.tables <= _MOST:
                sizes[i] = bytes_ + size, tables + stack.tables
                break
        else:
            sizes.append((size, stack.tables))
    return len(sizes)


@rule(
    "too-many-tables-stacked",
    "guide section 10, table stacking: 5 to 100 tables",
    needs=("stack.tables",),
    when="a stack has more than 100 tables",
)
def too_many_tables_stacked(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        if stack.tables <= _MOST:
            continue
        parts = math.ceil(stack.tables / _MOST)
        yield Finding(
            "warning",
            "one logical table of so many grows until its limits meet the scratchpad's",
            (f"stack the {stack.tables} tables by hand into {parts} stacks of {math.ceil(stack.tables / parts)}",),
            subject=name,
            evidence={"tables": stack.tables, "the guide's most": _MOST},
            effect=f"limits of each stack near 1/{parts} of today's",
        )


@rule(
    "float32",
    "guide section 10, numerics and quantisation; section 13",
    needs=("tables", "hbm.capacity|seconds.sparsecore"),
    when="the SparseCores are the slower unit, or tables fill half of HBM, and rows are float32",
)
def float32(counters: Counters) -> Iterator[Finding]:
    names = [name for name, table in counters.tables.items() if table.dtype == "float32"]
    if not names:
        return
    hbm, seconds = counters.hbm, counters.seconds
    share = ((hbm.tables or 0) + hbm.slots) / hbm.capacity if hbm.capacity else 0.0
    bound = bool(
        seconds.sparsecore and seconds.tensorcore and seconds.sparsecore >= max(seconds.tensorcore, seconds.host or 0.0)
    )
    if share < _FULL and not bound:
        return
    sparse = target(counters.target).sparse if counters.target else None
    wider = sparse is not None and sparse.simd_bf16 > sparse.simd_f32
    evidence: dict[str, float] = {"float32 tables": len(names)}
    if share:
        evidence["share of HBM for tables and slots"] = round(share, 4)
    if bound:
        evidence |= {"sparsecore seconds": seconds.sparsecore or 0.0, "tensorcore seconds": seconds.tensorcore or 0.0}
    why = "the SparseCores are the slower unit" if bound else f"tables take {percent_text(share)} of HBM"
    half = f", {bytes_text((hbm.tables or 0) / 2)} a chip less" if hbm.tables else ""
    yield Finding(
        "warning" if bound else "note",
        f"rows are float32 and {why}: every row read, exchanged and updated is twice as long as in bfloat16",
        (
            "hold rows in bfloat16, or train with simulated quantisation (quantization_config_low, _high, "
            "_num_buckets = 256) and serve int8, a quarter of the bytes; compare the model's quality",
        ),
        evidence=evidence,
        effect=f"half the bytes of tables and exchange{half}"
        + (f"; {sparse.simd_bf16} lanes instead of {sparse.simd_f32} on {counters.target}" if sparse and wider else ""),
    )


# Uneven loads: shards that receive more than others, and logs whose neighbours are alike.

_UNEVEN, _VERY = 1.5, 3.0
"""The fullest shard's work over the average one's: a warning, severe."""
_FEW, _FEW_OF_SHARD = 8, 64
"""Fewer ids per partition than this fill no buffer's 8 slots; fewer per shard, in all steps, are uneven by chance."""
_PEAK = 4.0
"""The fullest partition over the average one, where shards are even: the log is clustered."""


@rule(
    "skew",
    "guide section 10, data distribution skew",
    needs=("stack.wait|stack.imbalance|stack.shard_ids",),
    when="a step waits for a shard with 1.5 times the average work (rows and ids), more than by chance (3: severe, "
    "where partitions fill)",
)
def skew(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        uneven = stack.unevenness if stack.wait is None else stack.wait
        if uneven is None or uneven < _UNEVEN or _by_chance(counters, stack, uneven):
            continue
        small = stack.mean_ids is not None and stack.mean_ids < _FEW
        evidence: dict[str, float] = {"fullest shard over the average": round(uneven, 4)}
        for kind, ratio in (("rows fetched", stack.wait_rows), ("ids combined", stack.wait_ids)):
            if ratio is not None:
                evidence[f"the same of {kind} alone"] = round(ratio, 4)
        if stack.mean_ids is not None:
            evidence["ids of the average partition"] = round(stack.mean_ids, 2)
        more = "receives more ids"
        if stack.wait is not None:
            more = "fetches more rows" if (stack.wait_rows or 0) > (stack.wait_ids or 0) else "combines more ids"
        cause = f"one shard {more} than the others, and every step waits for it"
        if stack.hot:
            table, hot, share = stack.hot
            cause += f"; id {hot} of table {table} alone is {percent_text(share)} of what it receives"
            evidence["share of the hottest id"] = share
        advice, effect = _remedies(name, stack, uneven)
        yield Finding(
            "severe" if uneven >= _VERY and not small else "warning",
            cause,
            advice,
            subject=name,
            evidence=evidence,
            effect=effect,
        )


def _by_chance(counters: Counters, stack: StackCounters, uneven: float) -> bool:
    """Whether shards that receive so few ids may differ so: five deviations of a random count.

    A wait is of single steps, in which more is chance; it is none where shards also differ over all steps together.
    """
    if stack.mean_ids is None:
        return False
    if not counters.shards:
        return stack.mean_ids < _FEW
    each = stack.mean_ids * counters.shards
    together = each * max(1, counters.steps or 1)
    if stack.wait is None:
        return _like_chance(uneven, together)
    lasting = stack.unevenness or 1.0
    return _like_chance(uneven, each) and (lasting < _UNEVEN or _like_chance(lasting, together))


def _like_chance(uneven: float, received: float) -> bool:
    return received < _FEW_OF_SHARD or uneven < 1 + 5 / math.sqrt(received)


_KNOBS = {"hottest id held apart": " (embed plan --hot finds such rows, embed.take_hot trains them)"}
"""Where a change has a knob of its own."""


def _knob(change: str, name: str) -> str:
    """Where a change is made: a rotation by a line of the model's file, to paste."""
    step = "0" if change == "no rotation" else change.removeprefix("rotation by ")
    if not step.isdecimal():
        return _KNOBS.get(change, "")
    key = name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else f'"{name}"'
    return f" (at the top of the model's file: rotation.{key} = {step})"


def _remedies(name: str, stack: StackCounters, uneven: float) -> tuple[tuple[str, ...], str]:
    """What was tried on the log, the best first; the usual changes where nothing was."""
    then = stack.remedy_waits if stack.wait is not None else {c: v[2] for c, v in stack.remedies.items()}
    gains = sorted((left, change) for change, left in then.items() if change != AS_IT_IS)
    best = [(left, change) for left, change in gains if left < 0.95 * uneven]
    if best:
        noun = "imbalance" if stack.wait is None else "wait"
        advice = (f"{c}: {noun} {left:.2f} instead of {uneven:.2f}{_knob(c, name)}" for left, c in best[:3])
        return tuple(advice), f"up to {uneven / best[0][0]:.2f} times the lookups of a step that waits for one shard"
    if then:
        return (
            "neither rotating, hashing nor shuffling helps on this log: hold the hottest rows on every device "
            "(embed plan --hot)",
        ), ""
    return (
        "hash the ids before they are looked up, so that neighbours do not share a shard",
        "hold the hottest rows on every device (embed plan --hot, embed.take_hot), or give them a default vector",
        "stack the table with others: rotation puts their hot rows on different shards",
    ), f"at most {uneven:.2f} times the lookups of a step that waits for one shard"


@rule(
    "clustered-log",
    "guide section 10, data distribution skew; section 7, observed limits",
    needs=("stack.mean_ids", "stack.observed_ids", "stack.imbalance|stack.shard_ids"),
    when="shards are even and yet a partition holds 4 times its share",
)
def clustered_log(counters: Counters) -> Iterator[Finding]:
    for name, stack in counters.stacks.items():
        mean, most, uneven = stack.mean_ids, stack.observed_ids, stack.unevenness
        if not mean or not most or mean < _FEW or uneven is None or most < _PEAK * mean * uneven:
            continue
        shuffled = next((v for change, v in stack.remedies.items() if "shuffle" in change), None)
        effect = f"limits of {shuffled[0]:.0f} ids instead of {most}" if shuffled and shuffled[0] < most else ""
        yield Finding(
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

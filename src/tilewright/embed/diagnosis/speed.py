"""What a step takes longer than it must: waits, settings, the grouping and format of tables, uneven shards."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tilewright.embed.diagnosis.finding import Finding, Severity, rule, stack_rule
from tilewright.embed.diagnosis.fit import serialized_stack
from tilewright.embed.logs.config import change_text
from tilewright.embed.model.counters import Counters, StackCounters
from tilewright.embed.model.stacking import ACTIVATION_BYTES, MAX_STACK_VOCAB, first_fit
from tilewright.embed.planning.types import AS_IT_IS
from tilewright.render import bytes_text, count_text, percent_text, seconds_text
from tilewright.targets import target

# Where a step's time goes: a host that cannot feed, units that wait for each other, HBM that is full.

_SEVERE, _WARNING = 0.2, 0.05
"""Shares of the step that are lost."""
_DICTATES = 0.9
"""A host that takes this share of the step, or more, dictates it."""
_BUSY_HBM = 0.6, 0.8
"""Shares of the HBM bandwidth in use: a warning, severe. Random rows rarely reach more."""


_PAYS = 0.02
"""Advice that is modelled to gain less of a step than this is not given."""


def _pays(gain: float | None) -> bool:
    """Whether advice of so much gain is worth giving; what is not modelled is."""
    return gain is None or gain >= _PAYS


def _shorter(gain: float | None) -> str:
    """The gain as the end of a sentence on an advice's effect."""
    return "" if gain is None else f"; a step {percent_text(gain)} shorter, modelled"


def _severity(share: float) -> Severity:
    return "severe" if share >= _SEVERE else "warning" if share >= _WARNING else "note"


def _device_seconds(counters: Counters) -> float | None:
    """Seconds the chip itself needs for a step, if its units overlap as they are told to."""
    seconds = counters.seconds
    if seconds.sparsecore is None or seconds.tensorcore is None:
        return None
    if counters.knobs.disable_full_embedding_pipelining:
        return seconds.sparsecore + seconds.tensorcore
    return max(seconds.sparsecore, seconds.tensorcore)


@rule(
    "guide section 10, host bottleneck; section 11, host activity",
    needs="seconds.wait|seconds.host",
    when="the chip waits 5 % of a step or more for its input (20 %: severe)",
)
def host_bound(counters: Counters) -> Iterator[Finding]:
    seconds, device = counters.seconds, _device_seconds(counters)
    step, host = seconds.step, seconds.host
    if seconds.wait is not None and step:
        lost, least = min(1.0, seconds.wait / step), max(0.0, step - seconds.wait)
    elif step and host and device and host >= _DICTATES * step:
        lost, least = 1 - device / step, device
    elif host and device and not step and host > device:
        lost, least = 1 - device / host, device
    else:
        yield from _feeding_note(counters)
        return
    if lost < _WARNING:
        return
    now = step or host or 0.0
    evidence = {"lost share of the step": round(lost, 4), "step seconds": now, "seconds without the host": least}
    if host:
        evidence["host seconds per batch"] = host
    advice = [_faster_host(host, least)] if host else ["measure the host's seconds per batch (seconds.host)"]
    ahead = counters.knobs.maximum_parallel_iterations
    if ahead < 2:
        advice.append(
            f"set maximum_parallel_iterations from {ahead} to 2: the next batch is then made while a step runs"
        )
    advice.append("read a columnar log (Parquet) of ids already hashed, and give the batches as (values, offsets)")
    yield Finding(
        _severity(lost),
        "the chip waits for batches: the host reads, preprocesses and copies them more slowly than a step takes",
        tuple(advice),
        evidence=evidence,
        effect=_effect_on_steps(least, now),
        lost=lost,
    )


def _effect_on_steps(then: float, now: float) -> str:
    """The effect of shorter steps, in words; "" where a unit is said to need no time at all."""
    if then <= 0:
        return ""
    return f"steps of {seconds_text(then)} instead of {seconds_text(now)}, {now / then:.2f} times as many"


def _faster_host(host: float, least: float) -> str:
    if least <= 0:
        return "make the host faster: the chip does nothing but wait for it"
    times = math.ceil(host / least * 10 - 1e-9) / 10
    if times <= 1:
        return "the host alone would be fast enough: look for waits between reading, preprocessing and copying"
    more = math.ceil(times)
    return (
        f"make the host {times:.1f} times faster: {more} preprocessing processes or threads for each one now "
        "(TILEWRIGHT_THREADS), or as many hosts"
    )


def _feeding_note(counters: Counters) -> Iterator[Finding]:
    """Without a measured step: what the host allows at most, against lookups and updates as a plan models them."""
    host, took = counters.seconds.host, counters.seconds.modelled
    if counters.seconds.step or not host or not took or host <= took:
        return
    yield Finding(
        "note",
        f"this host makes a batch in {seconds_text(host)}, lookups and updates take {seconds_text(took)} (modelled): "
        f"steps shorter than {seconds_text(host)} will wait for the host",
        (f"measure a step (seconds.step): below {seconds_text(host)}, give the host more threads or processes",),
        evidence={"host seconds per batch": host, "modelled seconds of lookups and updates": took},
    )


@rule(
    "guide section 10, TC/SC synchronisation; section 5",
    needs="sparsecore|seconds.step",
    when="pipelining is off, or a step takes as long as both units together (20 % lost: severe)",
)
def missing_overlap(counters: Counters) -> Iterator[Finding]:
    seconds = counters.seconds
    off = counters.knobs.disable_full_embedding_pipelining
    sparse, dense, step = seconds.sparsecore, seconds.tensorcore, seconds.step
    if not sparse or not dense:
        if off:
            yield Finding("warning", _OFF, (_ON,), effect="up to 2 times as many steps")
        return
    together, apart = max(sparse, dense), sparse + dense
    serial = off or (step is not None and step >= _DICTATES * apart and (seconds.host or 0.0) < _DICTATES * step)
    lost = 1 - together / max(apart, step or 0.0)
    if not serial or lost < _WARNING:
        return
    now = max(apart, step or 0.0)
    hidden = max(0.0, min(1.0, (apart - now) / min(sparse, dense)))
    advice = [_ON if off else "find what makes one unit wait: a dense input of the lookup, a host call inside the step"]
    advice.append("compare the model's quality: pipelined gradients reach the tables two steps late")
    yield Finding(
        _severity(lost),
        _OFF if off else "SparseCores and TensorCore run one after the other though pipelining is on",
        tuple(advice),
        evidence={
            "sparsecore seconds": sparse,
            "tensorcore seconds": dense,
            "step seconds": now,
            "overlapped share of the shorter": round(hidden, 4),
        },
        effect=_effect_on_steps(together, now),
        lost=lost,
    )


_OFF = "full embedding pipelining is switched off: the TensorCore stands still while the SparseCores work, and back"
_ON = "set tf_xla_disable_full_embedding_pipelining to false"


@rule(
    "guide section 10, HBM bandwidth saturation",
    needs="target hbm.moved seconds.sparsecore|seconds.step",
    when="60 % of the bandwidth in use while the SparseCores work (80 %: severe)",
)
def hbm_bandwidth(counters: Counters) -> Iterator[Finding]:
    memory = target(counters.target).whole.memory("hbm") if counters.target else None
    moved, rate = counters.hbm.moved, memory.bytes_per_second if memory else 0.0
    busy = counters.seconds.sparsecore or counters.seconds.step
    if not moved or not busy or not rate:
        return
    share = moved / rate / busy
    if share < _BUSY_HBM[0] or math.isinf(share):  # so short a time was not measured
        return
    times = math.ceil(share / _BUSY_HBM[0])
    advice = [f"take {times} times the chips ({counters.chips * times}): each then moves 1/{times} of the rows"]
    narrow = [name for name, t in counters.tables.items() if t.width % 8]
    if narrow:
        some = ", ".join(narrow[:3])
        advice.append(f"make widths multiples of 8 or pack narrow rows ({some}): padding is moved like data")
    advice.append("look fewer rows up: cut long histories, merge ids repeated in a sample before the batch is made")
    floor = " (a lower bound: no padding, no row read twice)" if counters.hbm.moved_modelled else ""
    yield Finding(
        "severe" if share >= _BUSY_HBM[1] else "warning",
        f"rows move through HBM at {share:.0%} of its bandwidth{floor}",
        tuple(advice),
        evidence={
            "HBM bytes per step and chip": moved,
            "HBM bytes per second": rate,
            "seconds the SparseCores are busy": busy,
            "share of the bandwidth": round(share, 4),
        },
        effect=f"{share / times:.0%} of the bandwidth, {bytes_text(moved / times)} a chip and step",
    )


# Settings of a run that cost more than they give: tables in turn, checks left on.


@rule(
    "guide section 9, serialisation; section 11, flags against behaviour",
    needs="sparsecore hbm.tables hbm.forward_stack|hbm.backward_stack hbm.capacity",
    when="serialised tables although HBM holds every stack at once",
)
def needless_serialization(counters: Counters) -> Iterator[Finding]:
    hbm, turns = counters.hbm, counters.knobs.num_serialized_tables_to_optimize_hbm
    stacks = max(1, len(counters.stacks))
    most = serialized_stack(counters)[0]
    if turns < 2 or hbm.heap + most > (hbm.capacity or 0):
        return
    free = (hbm.capacity or 0) - hbm.heap
    yield Finding(
        "warning",
        "tables are processed one after the other to save HBM stack, and HBM has room for all of them at once",
        ("set xla_sc_num_serialized_tables_to_optimize_hbm to 0",),
        change={"sparsecore": {"num_serialized_tables_to_optimize_hbm": 0}},
        evidence={"serialized tables": turns, "bytes of stack, at most": most, "bytes free beside the heap": free},
        effect=f"all {stacks} stacks at once, within {bytes_text(free)}" if counters.stacks else "all stacks at once",
    )


@rule("guide section 12, flags for debugging", needs="sparsecore", when="NaN, bounds or buffer checks are on")
def checks_left_on(counters: Counters) -> Iterator[Finding]:
    knobs = counters.knobs
    if on := [knob for knob in fields(knobs) if knob.name in _CHECKS and getattr(knobs, knob.name) != knob.default]:
        bounds = knobs.assert_level == "bounds"
        yield Finding(
            "warning",
            f"checks for debugging are on and slow every step: {', '.join(knob.metadata['flag'] for knob in on)}",
            (
                "leave these flags out of LIBTPU_INIT_ARGS once the fault is found",
                *(["take an alarm of the bounds check for a hint: complex strided accesses raise false ones"] * bounds),
            ),
            evidence={"checks": len(on)},
            change={"sparsecore": {knob.name: knob.default for knob in on}},
        )


_CHECKS = ("detect_nan", "assert_level", "buffer_contents_sanitizer_config", "verify_launch_id_across_cores")

# How tables are grouped, and in which format they are held.

_FEWEST, _MOST = 5, 100
"""Tables a stack: the guide's advice."""
_FULL = 0.5
"""Tables and slots that take this share of HBM are worth a narrower format."""


@rule(
    "guide section 10, table stacking: 5 to 100 tables",
    needs="stack.tables stack.width",
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
        if not width or tables < _FEWEST:
            continue
        change: dict[str, Any] = {"sparsecore": {"disable_table_stacking": False}} if off else {}
        fit, most = _first_fit(small, width, ACTIVATION_BYTES), ACTIVATION_BYTES
        if fit >= stacks:  # at the most activations of a stack as it is: at which would they share stacks of five?
            sizes = [4 * width * (stack.samples_per_sparsecore or 0) for _, stack in small]
            while most < sum(sizes) and tables < _FEWEST * _first_fit(small, width, most):
                most *= 2
            fit, change = _first_fit(small, width, most), {"activation_bytes": most}
        saved = counters.seconds.gain((counters.seconds.launches or 0.0) * (stacks - fit) / len(counters.stacks))
        if fit >= stacks or not _pays(saved):
            continue
        why = "table stacking is switched off" if off else "tables that could share a stack stand alone"
        if most > ACTIVATION_BYTES:
            why += f", as a stack may hold {bytes_text(ACTIVATION_BYTES)} of activations"
        yield Finding(
            "warning",
            f"{why}: each stack has its own buffers, programs and exchange between chips, whose latency nothing hides",
            (
                f"{'let' if off else 'stack'} the {count_text(tables)} tables of width {width}"
                + (f" ({optimizer})" if optimizer else "")
                + (" stack: disable_table_stacking = false" if off else f" into {fit} instead of {stacks} stacks")
                + (f": activation_bytes = {most}" if most > ACTIVATION_BYTES else ""),
            ),
            change=change,
            evidence={
                "tables": tables,
                "stacks": stacks,
                "tables a stack": round(tables / stacks, 2),
                f"stacks at {most >> 20} MiB of activations each": fit,
            },
            effect=f"{fit} exchanges each way a step instead of {stacks}" + _shorter(saved),
            lost=saved or 0.0,
        )


def _first_fit(small: list[tuple[str, StackCounters]], width: int, most: int) -> int:
    """How many stacks these tables fill, first fit, each of at most ``most`` activation bytes, a hundred tables, and
    rows that 32-bit ids can tell apart."""
    sizes = ((4 * width * (stack.samples_per_sparsecore or 0), stack.tables, stack.rows) for _, stack in small)
    return 1 + max(first_fit(sizes, (most, _MOST, MAX_STACK_VOCAB)))


@stack_rule(
    "guide section 10, table stacking: 5 to 100 tables", needs="stack.tables", when="a stack has more than 100 tables"
)
def too_many_tables_stacked(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    if stack.tables <= _MOST:
        return
    parts = math.ceil(stack.tables / _MOST)
    yield Finding(
        "warning",
        "one logical table of so many grows until its limits meet the scratchpad's",
        (f"stack the {stack.tables} tables by hand into {parts} stacks of {math.ceil(stack.tables / parts)}",),
        evidence={"tables": stack.tables, "the guide's most": _MOST},
        effect=f"limits of each stack near 1/{parts} of today's",
    )


@rule(
    "guide section 10, numerics and quantisation; section 13",
    needs="tables hbm.capacity|seconds.sparsecore",
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
    evidence: dict[str, float] = {"float32 tables": len(names)}
    if share:
        evidence["share of HBM for tables and slots"] = round(share, 4)
    if bound:
        evidence |= {"sparsecore seconds": seconds.sparsecore or 0.0, "tensorcore seconds": seconds.tensorcore or 0.0}
    why = "the SparseCores are the slower unit" if bound else f"tables take {percent_text(share)} of HBM"
    half = f", {bytes_text((hbm.tables or 0) / 2)} a chip less" if hbm.tables else ""
    yield Finding(
        "warning" if bound else "note",
        f"rows are float32, the only type that training has, and {why}",
        (
            "make rows half as wide, or hash the largest tables' ids into fewer rows; compare the model's quality",
            "where this is the serving's memory, train with simulated quantisation (quantization_config_low, _high, "
            "_num_buckets = 256) and serve int8 (embed export), a quarter of the bytes",
        ),
        evidence=evidence,
        effect=f"half the bytes of tables and exchange{half}",
        bytes=(hbm.tables or 0) / 2 * counters.chips,
    )


# Uneven loads: shards that receive more than others, and logs whose neighbours are alike.

_UNEVEN, _VERY = 1.5, 3.0
"""The fullest shard's work over the average one's: a warning, severe."""
_FEW, _FEW_OF_SHARD = 8, 64
"""Fewer ids per partition than this fill no buffer's 8 slots; fewer per shard, in all steps, are uneven by chance."""
_PEAK = 4.0
"""The fullest partition over the average one, where shards are even: the log is clustered."""


@stack_rule(
    "guide section 10, data distribution skew",
    needs="stack.wait|stack.imbalance|stack.shard_ids",
    when="a step waits for a shard with 1.5 times the average work (rows and ids), more than by chance (3: severe, "
    "where partitions fill)",
)
def skew(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    uneven = stack.unevenness if stack.wait is None else stack.wait
    if uneven is None or uneven < _UNEVEN or _by_chance(counters, stack, uneven):
        return
    lost = counters.seconds.gain(stack.wait_seconds)
    if not _pays(lost):  # even shards would not pay
        return
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
    if stack.common:
        table, by = stack.common
        reached = counters.shards // math.gcd(counters.shards, by)
        cause += f"; ids of table {table}, multiples of {by} apart, reach {reached} of {counters.shards} shards"
        evidence["common factor"] = by
    elif stack.hot:
        table, hot, share = stack.hot
        cause += f"; id {hot} of table {table} alone is {percent_text(share)} of what it receives"
        evidence["share of the hottest id"] = share
    if lost is not None:
        evidence["share of the step, modelled"] = lost
    advice, effect = _remedies(name, stack, uneven, lost)
    yield Finding(
        "severe" if uneven >= _VERY and not small and (lost is None or lost >= _SEVERE) else "warning",
        cause,
        advice,
        evidence=evidence,
        effect=effect,
        lost=lost or 0.0,
        change=next(filter(None, (_written(change, name, stack) for _, change in _gains(stack, uneven, lost))), {}),
    )


@rule(
    "guide section 10, data distribution skew; the ids of a log",
    needs="table.used sparsecores|target",
    when="fewer ids of a table are in use than there are SparseCores",
)
def too_few_ids(counters: Counters) -> Iterator[Finding]:
    shards = counters.shards
    few = {name: table for name, table in counters.tables.items() if table.used and table.used < shards}
    held = sum(table.padded_bytes(shards) for table in few.values())
    if few:
        names = ", ".join(f"{name} ({table.used})" for name, table in list(few.items())[:4]) + ", ..." * (len(few) > 4)
        yield Finding(
            "note",
            f"fewer ids than SparseCores are in use: most hold none of them, the others serve every sample: {names}",
            ("hold these rows in the dense model: jax.nn.one_hot(ids, rows) @ table, ids numbered from 0",),
            subject=next(iter(few)) if len(few) == 1 else "",
            evidence={"tables concerned": len(few), "bytes of their rows": held},
            effect=f"{bytes_text(held)} of HBM, all chips together",
            bytes=held,
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


def _written(change: str, name: str, stack: StackCounters) -> dict[str, Any]:
    """What a remedy writes into the model's file; {} where it is done to the log."""
    step = "0" if change == "no rotation" else change.removeprefix("rotation by ")
    if step.isdecimal():
        return {"rotation": {name: int(step)}}
    if change == "hottest id held apart" and stack.hot:
        return {"hot_rows": {stack.hot[0]: [stack.hot[1]]}}
    return {}


def _knob(change: str, name: str, stack: StackCounters) -> str:
    """Where a change is made: lines of the model's file, to paste."""
    written = _written(change, name, stack)
    return f" (at the top of the model's file: {change_text(written)})" if written else ""


def _gains(stack: StackCounters, uneven: float, lost: float | None) -> list[tuple[float, str]]:
    """What was tried on the log and helps: the waits left, or imbalances, the least first. ``lost``: the share of a
    step that even shards would save, of which what is left is not saved."""
    then = stack.remedy_waits if stack.wait is not None else {c: v[2] for c, v in stack.remedies.items()}
    helps = ((left, change) for change, left in then.items() if change != AS_IT_IS and left < 0.95 * uneven)
    return sorted((left, change) for left, change in helps if _pays(_saved(left, uneven, lost)))


def _saved(left: float, uneven: float, lost: float | None) -> float | None:
    return None if lost is None else lost * (uneven - left) / (uneven - 1)


def _remedies(name: str, stack: StackCounters, uneven: float, lost: float | None) -> tuple[tuple[str, ...], str]:
    """What was tried on the log, the best first; the usual changes where nothing was."""
    divided = tuple[str, ...]()
    if stack.common:
        table, by = stack.common
        divided = (f"look up ids // {by} of table {table}, whose vocab then is 1/{by}: every shard has its part",)
    if best := _gains(stack, uneven, lost):
        noun = "imbalance" if stack.wait is None else "wait"
        advice = (f"{c}: {noun} {left:.2f} instead of {uneven:.2f}{_knob(c, name, stack)}" for left, c in best[:3])
        shorter = _shorter(_saved(best[0][0], uneven, lost))
        effect = f"up to {uneven / best[0][0]:.2f} times the lookups of a step that waits for one shard"
        return (*divided, *advice), effect + shorter
    if stack.remedies or stack.remedy_waits:
        return (
            "neither rotating, hashing nor shuffling helps on this log: hold the hottest rows on every device "
            "(embed plan --hot 0.01)",
        ), ""
    return (
        "hash the ids before they are looked up, so that neighbours do not share a shard",
        "hold the hottest rows on every device (embed plan --hot 0.01, in limits that embed train takes), or give them "
        "a default vector",
        "stack the table with others: rotation puts their hot rows on different shards",
    ), f"at most {uneven:.2f} times the lookups of a step that waits for one shard"


@stack_rule(
    "guide section 10, data distribution skew; section 7, observed limits",
    needs="stack.mean_ids stack.observed_ids stack.imbalance|stack.shard_ids",
    when="shards are even and yet a partition holds 4 times its share",
)
def clustered_log(counters: Counters, name: str, stack: StackCounters) -> Iterator[Finding]:
    mean, most, uneven = stack.mean_ids, stack.observed_ids, stack.unevenness
    if not mean or not most or mean < _FEW or uneven is None or most < _PEAK * mean * uneven:
        return
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
        evidence={"ids of the fullest partition": most, "ids of the average partition": round(mean, 2)},
        effect=effect,
    )

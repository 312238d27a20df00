"""Where a step's time goes: a host that cannot feed, units that wait for each other, HBM that is full."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.embed.diagnosis.finding import Finding, Severity, rule
from tilewright.embed.diagnosis.rules.memory import serialized_share
from tilewright.embed.planning.counters import Counters
from tilewright.render import bytes_text, seconds_text
from tilewright.targets import target

_SEVERE, _WARNING = 0.2, 0.05
"""Shares of the step that are lost."""
_DICTATES = 0.9
"""A host that takes this share of the step, or more, dictates it."""
_BUSY_HBM = 0.6, 0.8
"""Shares of the HBM bandwidth in use: a warning, severe. Random rows rarely reach more."""


def _severity(share: float) -> Severity:
    return "severe" if share >= _SEVERE else "warning" if share >= _WARNING else "note"


def _device(counters: Counters) -> float | None:
    """Seconds the chip itself needs for a step, if its units overlap as they are told to."""
    seconds = counters.seconds
    if seconds.sparsecore is None or seconds.tensorcore is None:
        return None
    if counters.knobs.disable_full_embedding_pipelining:
        return seconds.sparsecore + seconds.tensorcore
    return max(seconds.sparsecore, seconds.tensorcore)


def _bandwidth(counters: Counters) -> float:
    memory = target(counters.target).memory("hbm") if counters.target else None
    return memory.bytes_per_second if memory else 0.0


@rule(
    "host-bound",
    "guide section 10, host bottleneck; section 11, host activity",
    needs=("seconds.wait|seconds.host",),
    when="the chip waits 5 % of a step or more for its input (20 %: severe)",
)
def host_bound(counters: Counters) -> Iterator[Finding]:
    seconds, device = counters.seconds, _device(counters)
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
        effect=_steps(least, now),
    )


def _steps(then: float, now: float) -> str:
    """What shorter steps give; nothing where a unit is said to need no time at all."""
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
    """Without a measured step: what the host allows at most, against the least time HBM traffic takes."""
    host, rate, moved = counters.seconds.host, _bandwidth(counters), counters.hbm.moved
    if counters.seconds.step or not (host and rate and moved) or host <= moved / rate:
        return
    yield Finding(
        "note",
        f"this host makes a batch in {seconds_text(host)}, HBM traffic alone takes {seconds_text(moved / rate)}: steps "
        f"shorter than {seconds_text(host)} will wait for the host",
        (f"measure a step (seconds.step): below {seconds_text(host)}, give the host more threads or processes",),
        evidence={"host seconds per batch": host, "least seconds of HBM traffic": moved / rate},
    )


@rule(
    "missing-overlap",
    "guide section 10, TC/SC synchronisation; section 5",
    needs=("sparsecore|seconds.step",),
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
        effect=_steps(together, now),
    )


_OFF = "full embedding pipelining is switched off: the TensorCore stands still while the SparseCores work, and back"
_ON = "set tf_xla_disable_full_embedding_pipelining to false"


@rule(
    "hbm-bandwidth",
    "guide section 10, HBM bandwidth saturation",
    needs=("target", "hbm.moved", "seconds.sparsecore|seconds.step"),
    when="60 % of the bandwidth in use while the SparseCores work (80 %: severe)",
)
def hbm_bandwidth(counters: Counters) -> Iterator[Finding]:
    moved, rate = counters.hbm.moved, _bandwidth(counters)
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
    "needless-serialization",
    "guide section 9, serialisation; section 11, flags against behaviour",
    needs=("sparsecore", "hbm.tables", "hbm.forward_stack|hbm.backward_stack", "hbm.capacity"),
    when="serialised tables although HBM holds every stack at once",
)
def needless_serialization(counters: Counters) -> Iterator[Finding]:
    hbm, turns = counters.hbm, counters.knobs.num_serialized_tables_to_optimize_hbm
    stacks = max(1, len(counters.stacks))
    most = round(hbm.stack * serialized_share(counters, 0))
    if turns < 2 or hbm.heap + most > (hbm.capacity or 0):
        return
    free = (hbm.capacity or 0) - hbm.heap
    yield Finding(
        "warning",
        "tables are processed one after the other to save HBM stack, and HBM has room for all of them at once",
        ("set xla_sc_num_serialized_tables_to_optimize_hbm to 0",),
        evidence={
            "serialized tables": turns,
            "bytes of stack, at most": most,
            "bytes free beside the heap": free,
        },
        effect=f"all {stacks} stacks at once, within {bytes_text(free)}" if counters.stacks else "all stacks at once",
    )


@rule(
    "checks-left-on",
    "guide section 12, flags for debugging",
    needs=("sparsecore",),
    when="NaN, bounds or buffer checks are on",
)
def checks_left_on(counters: Counters) -> Iterator[Finding]:
    knobs = counters.knobs
    on = [
        flag
        for flag, used in (
            ("xla_sc_detect_nan", knobs.detect_nan),
            ("xla_sc_assert_level=bounds", knobs.assert_level != "none"),
            ("xla_tpu_buffer_contents_sanitizer_config", knobs.buffer_contents_sanitizer_config != ""),
            ("xla_tpu_verify_launch_id_across_cores", knobs.verify_launch_id_across_cores),
        )
        if used
    ]
    if on:
        yield Finding(
            "warning",
            f"checks for debugging are on and slow every step: {', '.join(on)}",
            ("leave these flags out of LIBTPU_INIT_ARGS once the fault is found",),
            evidence={"checks": len(on)},
        )

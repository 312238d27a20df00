"""Settings of a run that cost more than they give: tables in turn, checks left on."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.embed._diagnose_counters import Counters
from tilewright.embed._diagnose_types import Finding, Rule
from tilewright.embed._heap import live_stacks
from tilewright.render import bytes_text

__all__ = ["RULES"]


def _serialized(counters: Counters) -> Iterator[Finding]:
    hbm, turns = counters.hbm, counters.knobs.num_serialized_tables_to_optimize_hbm
    stacks = max(1, len(counters.stacks))
    most = hbm.stack * stacks // live_stacks(stacks, turns)
    if turns < 1 or hbm.heap + most > (hbm.capacity or 0):
        return
    free = (hbm.capacity or 0) - hbm.heap
    yield Finding(
        "needless-serialization",
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


def _checks(counters: Counters) -> Iterator[Finding]:
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
            "checks-left-on",
            "warning",
            f"checks for debugging are on and slow every step: {', '.join(on)}",
            ("leave these flags out of LIBTPU_INIT_ARGS once the fault is found",),
            evidence={"checks": len(on)},
        )


RULES = (
    Rule(
        "needless-serialization",
        "guide section 9, serialisation; section 11, flags against behaviour",
        ("sparsecore", "hbm.tables", "hbm.forward_stack|hbm.backward_stack", "hbm.capacity"),
        "serialised tables although HBM holds every stack at once",
        _serialized,
    ),
    Rule(
        "checks-left-on",
        "guide section 12, flags for debugging",
        ("sparsecore",),
        "NaN, bounds or buffer checks are on",
        _checks,
    ),
)

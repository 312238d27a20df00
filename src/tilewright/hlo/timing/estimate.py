"""``estimate``: how long one run of a program takes on a chip, modelled."""

from __future__ import annotations

from tilewright.hlo.graphs.graph import collector_paused
from tilewright.hlo.program import Program
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.timing.alone import price_alone
from tilewright.hlo.timing.chip import Chip, chip_of
from tilewright.hlo.timing.fusing import Fusing
from tilewright.hlo.timing.row import later, rest_of_transfers
from tilewright.hlo.timing.scheduled import Schedule
from tilewright.hlo.timing.step import StepTime, share_with_a_time
from tilewright.render import percent_text
from tilewright.targets import Target
from tilewright.targets import target as find_target


@collector_paused()
def estimate(program: Program, target: Target | str) -> StepTime:
    """What one run of ``program`` takes on ``target`` (a Target, or the name of one), modelled operation by operation.

    An optimised dump brings its own fusions, layouts, memory spaces and order. StableHLO carries none: layouts are
    predicted, and so is what the compiler fuses; the result is labelled so. Nothing is fitted on whole models but what
    one call costs beyond its kernels, which is left out for programs of one operation.

    Raises :class:`UnsupportedError` for a target without time constants. What cannot be priced is a row that says why,
    and ``.priced`` says what share of the flops and bytes has a time.

    >>> from tilewright.hlo import load
    >>> text = '''func.func @main(%a: tensor<4096x4096xbf16>, %b: tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16> {
    ...   %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    ...     : (tensor<4096x4096xbf16>, tensor<4096x4096xbf16>) -> tensor<4096x4096xbf16>
    ...   return %0 : tensor<4096x4096xbf16>
    ... }'''
    >>> step = estimate(load(text), "tpu-v6e")
    >>> step.rows[0].bound, step.flops
    ('matrix', 137438953472)
    """
    machine = find_target(target) if isinstance(target, str) else target
    return estimate_placed(Context(program, machine), chip_of(machine))


def estimate_placed(context: Context, chip: Chip) -> StepTime:
    """The estimate of a program that has been put under its target."""
    program, call_us = context.program, chip.kernel["call_us"]
    notes = [chip.note, *program.notes]
    predicted = program.kind == "stablehlo"
    alone = price_alone(chip, program, context) if predicted else None
    if alone is not None:
        rows, seconds, call_us = [alone], alone.seconds, 0.0
    elif predicted:
        rows, us, priced = Fusing(chip, context, program.entry).price()
        if priced <= 1 and all(row.runs <= 1 for row in rows):
            call_us = 0.0
            if priced:  # a lone kernel has nothing to start beside
                more = max(0.0, chip["stream"]["launch_us"] - chip.kernel["near_launch_us"])
                first = next(k for k, row in enumerate(rows) if not row.unpriced)
                rows[first], us = later(rows[first], more), us + more
        seconds = us / 1e6
    else:
        schedule = Schedule(context, chip)
        schedule.run(program.entry, 1)
        rows, seconds = schedule.rows, schedule.now / 1e6
        if program.attributes.get("is_scheduled") != "true":
            notes.append("the module has no schedule: its operations are taken in the order of the text")
    if context.unknown_loops and alone is None:
        notes.append(f"loops of unknown length count as one trip: {', '.join(context.unknown_loops[:3])}")
    if rest := rest_of_transfers(chip, rows, seconds):
        rows, seconds = [*rows, rest], seconds + rest.seconds
    flops = share_with_a_time((row.flops, row.untimed_flops) for row in rows)
    moved = share_with_a_time((row.bytes, row.untimed_bytes) for row in rows)
    if min(flops, moved) < 1:
        lacking = f"{percent_text(1 - flops)} of the flops and {percent_text(1 - moved)} of the bytes"
        silent = any(row.unpriced and row.op == "custom-call" and not row.untimed_flops for row in rows)
        unsaid = " (custom calls that do not say their flops left out)" if silent else ""
        notes.append(f"{lacking} have no time{unsaid}: the total is a lower bound")
    call = call_us / 1e6
    return StepTime(
        *(program.name, chip.name, seconds + call, call, tuple(rows), predicted, min(flops, moved)),
        matrix_peak=chip.matrix_peak,
        hbm_peak=chip.hbm_peak,
        notes=tuple(notes),
    )

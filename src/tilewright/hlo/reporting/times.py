"""Modelled times for the report's rows: those of the step that ``timing`` makes of the same program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import UnsupportedError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.reporting.types import MovementRow, TimeSummary
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.timing.chip import Chip, chip_of
from tilewright.hlo.timing.estimate import estimate_placed
from tilewright.hlo.timing.tiles import MEGA
from tilewright.targets import Target

Times = dict[tuple[int, str], tuple[float, str]]
"""(line of the text, name) of an operation -> the microseconds of all its runs, and what bounds it."""
_LOOPS = "loops of unknown length"
"""How a step's note on them begins; the report has its own."""


def price(context: Context) -> tuple[TimeSummary | None, Times]:
    """The modelled step, None for a target without a time model, and the times of its operations."""
    try:
        chip = chip_of(context.chip) if context.chip is not None else None
    except UnsupportedError:
        chip = None
    if chip is None:
        return None, {}
    step = estimate_placed(context, chip)
    starts, ends = {}, {}
    for _, op in context.program.operations():
        if op.opcode.endswith("-start"):
            starts[op.name] = op.line
        elif op.opcode.endswith("-done"):
            ends[op.line] = op
    times: Times = {}
    for row in step.rows:
        if row.unpriced:
            continue
        key = row.line, row.name.rpartition("/")[2]
        end = ends.get(row.line)
        if end is not None and end.operands[:1] and end.operands[0] in starts:
            key = starts[end.operands[0]], end.operands[0]  # what a transfer takes is the wait for its end
        before, _ = times.get(key, (0.0, ""))
        times[key] = before + row.seconds * 1e6, row.bound
    notes = tuple(n for n in step.notes if not n.startswith(_LOOPS) and n not in context.program.notes)
    return TimeSummary(step.seconds * 1e6, step.call_seconds * 1e6, step.priced, notes), times


def times_of_lines(context: Context) -> defaultdict[str, float]:
    """The modelled microseconds of each line of the user's program."""
    lines: defaultdict[str, float] = defaultdict(float)
    for computation, op in context.program.operations():
        if time := context.modelled.get((op.line, op.name)):
            lines[context.source(computation.name, op)] += time[0]
    return lines


def with_times_of_bitcasts(rows: Sequence[MovementRow], context: Context) -> tuple[MovementRow, ...]:
    """The rows of a StableHLO program, the time of a bitcast with the operation beside it that moves instead.

    A predicted kernel stands at the transpose; by the predicted layouts its reshape may be what turns the data.
    """
    places = {(row.path.rpartition(" > ")[2], row.name): number for number, row in enumerate(rows)}
    given: dict[int, tuple[float, str]] = {}
    for computation in context.program.computations:
        near: dict[str, list[str]] = defaultdict(list)
        priced = []
        for op in computation.operations:
            for name in op.operands:
                near[op.name].append(name)
                near[name].append(op.name)
            time = context.modelled.get((op.line, op.name))
            place = places.get((computation.name, op.name))
            if time is not None and time[0] and place is not None and rows[place].bitcast:
                priced.append((op.name, time))
        for name, time in priced:
            beside = (places.get((computation.name, other), -1) for other in near[name])
            moving = [n for n in beside if n >= 0 and rows[n].moved_bytes and rows[n].modelled_us is None]
            if moving and moving[0] not in given:
                given[moving[0]] = time
    return tuple(
        replace(row, modelled_us=given[n][0], bound=given[n][1]) if n in given else row for n, row in enumerate(rows)
    )


def with_lone_kernels(
    rows: Sequence[MovementRow], time: TimeSummary, chip: Target
) -> tuple[tuple[MovementRow, ...], TimeSummary]:
    """Rows of a normalised program that move, and that its step has no kernel for, get one; the step grows by them.

    The step's model lets every broadcast, slice and reshape flow into kernels; the report knows which stand alone.
    """
    priced, more, timed = chip_of(chip), 0.0, list[MovementRow]()
    for row in rows:
        has_kernel = plain_opcode(row.op) in ("transpose", "gather", "scatter", "dynamic-update-slice")
        if row.moved_bytes and row.modelled_us is None and not has_kernel:
            row = replace(row, modelled_us=_lone_kernel_us(row, priced), bound="hbm")
            more += row.modelled_us or 0.0
        timed.append(row)
    return tuple(timed), replace(time, step_us=time.step_us + more)


def _lone_kernel_us(row: MovementRow, chip: Chip) -> float:
    """Microseconds of all runs of a kernel that only moves this row's bytes."""
    moves = chip.stream_us(row.moved_bytes / MEGA, chip.kernel["mb_per_us"])
    return row.runs * (chip.kernel["near_launch_us"] + moves)

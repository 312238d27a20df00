"""``estimate``: how long one run of a program takes on a chip, modelled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.graphs.graph import collector_paused
from tilewright.hlo.opcodes import DOTS, REARRANGES, TAKES_NO_TIME
from tilewright.hlo.program import Computation, Operation, Program
from tilewright.hlo.semantics.collectives import slice_of
from tilewright.hlo.semantics.context import Context, Moved, movers
from tilewright.hlo.semantics.fusions import in_other_kernels
from tilewright.hlo.semantics.partitioning import of_one_device
from tilewright.hlo.semantics.predicting import Normalised, fused_along, in_normal_form
from tilewright.hlo.semantics.tiles import MEGA, Tiles
from tilewright.hlo.timing.alone import price_alone
from tilewright.hlo.timing.chip import Chip, chip_of
from tilewright.hlo.timing.fusing import Fusing
from tilewright.hlo.timing.row import Run, rest_of_transfers, timed
from tilewright.hlo.timing.scheduled import Schedule
from tilewright.hlo.timing.step import StepTime, TimeRow
from tilewright.render import count_text, percent_text
from tilewright.targets import Target
from tilewright.targets import target as find_target

UNKNOWN_LOOPS = "loops of unknown length"
"""How the note on them begins."""


@collector_paused()
def estimate(program: Program, target: Target | str, assume: Mapping[str, float] | None = None) -> StepTime:
    """What one run of ``program`` takes on ``target`` (a Target, or the name of one), modelled operation by operation.

    An optimised dump brings its own fusions, layouts, memory spaces and order. StableHLO carries none: layouts are
    predicted, and so is what the compiler fuses; the result is labelled so. Nothing is fitted on whole models but what
    one call costs beside its kernels (``.call_seconds``), which is the same for every program.

    ``assume`` states what only a serving step's data says, such as ``{"kv_len": 2048}``; what is not stated is assumed,
    and ``.notes`` say what. Of StableHLO with shardings it is one device's part (:func:`tilewright.hlo.partition`).

    Raises :class:`UnsupportedError` for a target without time constants, UsageError for an unknown assumption. What
    cannot be priced is a row that says why, and ``.priced`` says what share of the flops and bytes has a time.

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
    chip, program = chip_of(machine), of_one_device(program)
    alone = _only_operation(program) is not None
    step = None if alone else _predict(program, machine, tuple((assume or {}).items())).step
    return step or estimate_placed(Context(program, machine, assume=assume), chip)


def estimate_placed(context: Context, chip: Chip) -> StepTime:
    """The estimate of a program that has been put under its target."""
    program = context.program
    notes, brought = [chip.note, *program.notes], dict[str, float]()
    predicted = program.kind == "stablehlo"
    alone = _price_alone(chip, program, context) if predicted else None
    if alone is not None:
        rows, seconds, brought = [alone], alone.seconds, {"its arguments": alone.resident / MEGA}
    elif predicted:
        fusing = Fusing(chip, context, program.entry)
        seconds, rows = fusing.price() / 1e6, fusing.rows
        notes += fusing.pallas.notes
        brought = {name: fusing.tiles[name].megabytes for name in {fusing.prefetched} - {""}}
    else:
        schedule = Schedule(context, chip)
        schedule.run(program.entry, 1)
        rows, seconds, brought = schedule.rows, schedule.now / 1e6, schedule.brought
        notes += schedule.kernels.notes
        if program.attributes.get("is_scheduled") != "true":
            notes.append("the module has no schedule: its operations are taken in the order of the text")
    if any(row.lane == "link" for row in rows) and (on := slice_of(program, chip.machine)):
        notes.append(f"the slice is taken to be of {on}")
    if context.unknown_loops and alone is None:
        notes.append(f"{UNKNOWN_LOOPS} count as one trip: {', '.join(context.unknown_loops[:3])}; state trips for more")
    if context.stated_loops:
        trips, loops = count_text(round(context.assume["trips"])), ", ".join(context.stated_loops[:3])
        notes.append(f"loops whose length data decides run {trips} times, as stated: {loops}")
    if rest := rest_of_transfers(chip, rows, seconds):
        rows, seconds = [*rows, rest], seconds + rest.seconds
    named = {op.name: op.op_name or op.name for op in program.entry.operations if op.name in brought}
    step = StepTime(
        *(program.name, chip.machine.name, seconds, chip.kernel["call_us"] / 1e6, tuple(rows), predicted),
        matrix_peak=chip.matrix_peaks.get("bf16", 0.0),
        hbm_peak=chip.hbm_peak,
        notes=tuple(notes),
        brought=tuple((named.get(name, name), round(MEGA * size)) for name, size in brought.items() if size),
        mixed=tuple(chip.machine.errors[kind] for kind in ("mixed", "all") if kind in chip.machine.errors),
    )
    if step.priced == 1:
        return step
    lacking = f"{percent_text(1 - step.priced_flops)} of the flops and {percent_text(1 - step.priced_bytes)}"
    silent = any(row.unpriced and row.op == "custom-call" and not row.untimed_flops for row in rows)
    unsaid = " (custom calls that do not say their flops left out)" if silent else ""
    bound = f"{lacking} of the bytes have no time{unsaid}: the total is a lower bound"
    return replace(step, notes=(*notes, bound))


# What the step is of: the program as its compiler will see it, every operation of it with its time.

_Times = dict[tuple[int, str], tuple[float, str]]
"""(line of the text, name) of an operation -> the microseconds of all its runs, and what bounds it."""
_Moves = Sequence[tuple[Computation, Operation, Moved]]
_HAVE_KERNELS = frozenset({"custom-call", "dynamic-update-slice", "gather", "scatter", "transpose"})
"""Operations that the walk over a StableHLO program gives a kernel wherever they stand."""


class Prediction(NamedTuple):
    """A step (None without a time model) and the program that it is of, under its target, with times (``modelled``).

    ``form``: the version of the normal form that a StableHLO program was brought into, 0 where it is as it was written.
    """

    step: StepTime | None
    context: Context
    form: int = 0


def predict(program: Program, machine: Target | None, assume: Mapping[str, float] | None = None) -> Prediction:
    """The modelled step, and the program under its target as the target's compiler will see it.

    The kernels of a StableHLO program are walked as it is written; what of its normal form is written out between them,
    and flowed into none, are kernels too, behind the others.
    """
    return _predict(of_one_device(program), machine, tuple((assume or {}).items()))


@lru_cache(maxsize=3)
def _predict(program: Program, machine: Target | None, assume: tuple[tuple[str, float], ...]) -> Prediction:
    """Kept for the last few: whoever has asked for a step's time asks for its report and for advice on it next."""
    chip, step, times = None, None, _Times()
    context, normal = Context(program, machine, assume=dict(assume)), Normalised(program, version=0)
    with suppress(UnsupportedError):
        chip = chip_of(machine) if machine is not None else None
    if chip is not None:
        step = estimate_placed(context, chip)
        context.modelled = times = _times(step, program)
    if program.kind == "stablehlo" and machine is not None and machine.compiler_normalizes:
        normal = in_normal_form(program)
    if normal.version:
        times = dict(normal.times_of(times))
        context = Context(normal.program, machine, times, fused_along(normal.program), dict(assume))
    if chip is not None and step is not None and program.kind == "stablehlo":
        moves = tuple(movers(context))
        _give_to_movers(times, moves)
        times.update(dict.fromkeys(in_other_kernels(context) - times.keys(), (0.0, "latency")))
        if normal.version and _only_operation(program) is None:
            step = _with_lone_kernels(step, moves, times, chip)
    return Prediction(step, context, normal.version)


def _times(step: StepTime, program: Program) -> _Times:
    """The times of a step's rows, by their operations; what a transfer takes is the wait for its end."""
    transfers = [op for _, op in program.operations() if op.opcode.endswith(("-start", "-done"))]
    begun = {op.name: op.line for op in transfers if op.opcode.endswith("-start")}
    ends = {op.line: op.operands[0] for op in transfers if op.opcode.endswith("-done") and op.operands}
    times: _Times = {}
    for row in step.rows:
        if row.unpriced:
            continue
        start = ends.get(row.line, "")
        key = (begun[start], start) if start in begun else (row.line, row.name.rpartition("/")[2])
        before, _ = times.get(key, (0.0, ""))
        moves = 0.0 if row.flops and plain_opcode(row.op) in REARRANGES else row.seconds  # else its kernel multiplies
        times[key] = before + moves * 1e6, row.bound
    return times


def _give_to_movers(times: _Times, moves: _Moves) -> None:
    """The time of a bitcast goes to the operation beside it that moves instead.

    A predicted kernel stands at the transpose; by the predicted layouts its reshape may be what turns the data.
    """
    found = {(computation.name, op.name): (op, moved) for computation, op, moved in moves}
    readers = defaultdict[tuple[str, str], list[str]](list)
    for computation, op, _ in moves:
        for name in op.operands:
            readers[computation.name, name].append(op.name)
    for computation, op, moved in moves:
        if not moved.cost.bitcast or not times.get((op.line, op.name), (0.0, ""))[0]:
            continue
        near = (*op.operands, *readers[computation.name, op.name])
        for other, moves_it in filter(None, (found.get((computation.name, name)) for name in near)):
            if moves_it.counted and moves_it.cost.moved_bytes and (other.line, other.name) not in times:
                times[other.line, other.name] = times.pop((op.line, op.name))
                break


def _with_lone_kernels(step: StepTime, moves: _Moves, times: _Times, chip: Chip) -> StepTime:
    """The step with a kernel for all that moves, counts and has none: broadcasts, slices and reshapes written out."""
    rows, clock = list(step.rows), step.device_seconds
    for _, op, moved in moves:
        key, size = (op.line, op.name), moved.cost.moved_bytes
        if not moved.counted or not size or key in times or moved.name in _HAVE_KERNELS:
            continue
        us = chip.kernel["near_launch_us"] + chip.stream_us(size / MEGA)
        run = Run(us, "hbm", megabytes=size / MEGA)
        row = timed(chip, replace(op, line=0), run, moved.placed.source, 1e6 * clock, moved.placed.runs.count)
        rows, clock, times[key] = [*rows, row], clock + row.seconds, (row.seconds * 1e6, row.bound)
    return replace(step, device_seconds=clock, rows=tuple(rows))


# A program of one operation: its operands arguments, its result returned. Priced by the mechanism measured for it.


def _price_alone(chip: Chip, program: Program, context: Context) -> TimeRow | None:
    """The one operation of a program that consists of one, priced by its own mechanism; None for other programs."""
    op = _only_operation(program)
    if op is None:
        return None
    try:
        layouts = [layout for shape in (*op.operand_shapes, op.shape) if (layout := context.layout(shape)) is not None]
        if len(layouts) < 2 or context.layout(op.shape) is None or any(0 in layout.shape for layout in layouts):
            return None
        *operands, result = map(Tiles.of, layouts)
        run = price_alone(chip.mechanisms, op, operands, result)
    except (TilewrightError, OverflowError, IndexError, ValueError):
        return None  # dims that do not fit the shapes; the row of the general way says what is wrong
    return timed(chip, op, run, context.source(program.entry.name, op)) if run else None


def _only_operation(program: Program) -> Operation | None:
    """The one operation that takes time, without the converts that jax writes around sums and behind products."""
    timed = (op for op in program.entry.operations if op.opcode not in TAKES_NO_TIME and op.opcode != "iota")
    real = [*islice(timed, 4)]  # no more can be one
    kinds = [plain_opcode(op.opcode) for op in real]
    product = len(kinds) == 2 and kinds[0] in DOTS and kinds[1] == "convert"
    chained = all(after.operands[:1] == (before.name,) for before, after in pairwise(real))
    if chained and (product or kinds == ["convert", "reduce", "convert"]):
        first, core = real[0], real[-2]
        shapes = core.operand_shapes if product else (*first.operand_shapes[:1], *core.operand_shapes[1:])
        real = [replace(core, operand_shapes=shapes, shape=real[-1].shape)]
    return real[0] if len(real) == 1 and len(program.computations) == 1 + len(real[0].calls) else None

"""``estimate``: how long one run of a program takes on a chip, modelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import fsum, prod

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.graphs.graph import collector_paused
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE, TAKES_NO_TIME
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import matrix_type, product_sizes
from tilewright.hlo.timing import mechanisms
from tilewright.hlo.timing.chip import Chip, chip_of
from tilewright.hlo.timing.fusing import Fusing
from tilewright.hlo.timing.mechanisms import Price, Tiles
from tilewright.hlo.timing.row import Run, rest_of_transfers, timed, with_longer_start
from tilewright.hlo.timing.scheduled import Schedule
from tilewright.hlo.timing.step import StepTime, TimeRow, share_with_a_time
from tilewright.render import percent_text
from tilewright.targets import Target, TimeConstants
from tilewright.targets import target as find_target


@collector_paused()
def estimate(program: Program, target: Target | str, assume: Mapping[str, float] | None = None) -> StepTime:
    """What one run of ``program`` takes on ``target`` (a Target, or the name of one), modelled operation by operation.

    An optimised dump brings its own fusions, layouts, memory spaces and order. StableHLO carries none: layouts are
    predicted, and so is what the compiler fuses; the result is labelled so. Nothing is fitted on whole models but what
    one call costs beyond its kernels, which is left out for programs of one operation.

    ``assume`` states what only a serving step's data says, such as ``{"kv_len": 2048}``; what is not stated is assumed,
    and ``.notes`` say what.

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
    return estimate_placed(Context(program, machine, assume=assume), chip_of(machine))


def estimate_placed(context: Context, chip: Chip) -> StepTime:
    """The estimate of a program that has been put under its target."""
    program, call_us = context.program, chip.kernel["call_us"]
    notes = [chip.note, *program.notes]
    predicted = program.kind == "stablehlo"
    alone = _price_alone(chip, program, context) if predicted else None
    if alone is not None:
        rows, seconds, call_us = [alone], alone.seconds, 0.0
    elif predicted:
        fusing = Fusing(chip, context, program.entry)
        rows, us, priced = fusing.price()
        notes += fusing.pallas.notes
        if priced <= 1 and all(row.runs <= 1 for row in rows):
            call_us = 0.0
            if priced:  # a lone kernel has nothing to start beside
                more = max(0.0, chip["stream"]["launch_us"] - chip.kernel["near_launch_us"])
                first = next(k for k, row in enumerate(rows) if not row.unpriced)
                rows[first], us = with_longer_start(rows[first], more), us + more
        seconds = us / 1e6
    else:
        schedule = Schedule(context, chip)
        schedule.run(program.entry, 1)
        rows, seconds = schedule.rows, schedule.now / 1e6
        notes += schedule.kernels.notes
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


# A program of one operation: its operands arguments, its result returned. Priced by the mechanism measured for it.

_MEASURED = DOTS | {"exponential", "transpose", "broadcast", "concatenate", "reduce", "reshape"}


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
        priced = mechanism(chip.mechanisms, op, operands, result)
    except (TilewrightError, OverflowError, IndexError, ValueError):
        return None  # dims that do not fit the shapes; the row of the general way says what is wrong
    if priced is None:
        return None
    kind, price = priced
    sizes = product_sizes(op, operands, result) if kind in ("product", "batched_product") else None
    run = Run(
        *(price.microseconds, price.bound),
        megabytes=fsum(tiles.megabytes for tiles in (*operands, result)) - price.resident,
        flops={matrix_type(op): 2 * prod(sizes)} if sizes else {},
        resident=price.resident,
        depth=sizes[-1] if sizes else 0,
        lane="matrix" if sizes else "vector",
        measured=plain_opcode(op.opcode) in _MEASURED,
    )
    return timed(chip, op, run, chip[kind], context.source(program.entry.name, op))


def _only_operation(program: Program) -> Operation | None:
    """The one operation that takes time, without the converts that jax writes around sums and behind products."""
    real = [op for op in program.entry.operations if op.opcode not in TAKES_NO_TIME | {"iota"}]
    if len(real) == 2 and plain_opcode(real[0].opcode) in DOTS and plain_opcode(real[1].opcode) == "convert":
        product, narrow = real
        if narrow.operands == (product.name,):
            real = [replace(product, shape=narrow.shape)]
    if len(real) == 3 and [plain_opcode(op.opcode) for op in real] == ["convert", "reduce", "convert"]:
        widen, add, narrow = real
        chained = add.operands[:1] == (widen.name,) and narrow.operands == (add.name,)
        if chained and widen.operand_shapes and add.operand_shapes:
            shapes = (widen.operand_shapes[0], *add.operand_shapes[1:])
            real = [replace(add, operand_shapes=shapes, shape=narrow.shape)]
    return real[0] if len(real) == 1 and len(program.computations) == 1 + len(real[0].calls) else None


def mechanism(
    constants: Mapping[str, TimeConstants], op: Operation, operands: list[Tiles], result: Tiles
) -> tuple[str, Price] | None:
    """The name of an operation's mechanism and its price; None for an operation that none was measured for."""
    name, operand, dims = plain_opcode(op.opcode), operands[0], op.integers("dimensions")
    if name in ELEMENTWISE and all(tiles.shape in (result.shape, ()) for tiles in operands):
        return "stream", mechanisms.elementwise(constants["stream"], operands, result)
    if name == "transpose":
        return "stream", mechanisms.copy(constants["stream"], operand, result)
    if name == "broadcast" and operand.shape:
        repeated = [d for d in range(len(result.shape)) if d not in dims or operand.shape[dims.index(d)] == 1]
        grown = [d for d in repeated if result.shape[d] > 1] or repeated[-1:]
        if len(grown) == 1 and len(operand.shape) == len(result.shape):
            return "broadcast", mechanisms.broadcast(constants["broadcast"], operand, result, grown[0])
    if name == "concatenate" and len(dims) == 1 and len(result.shape) > 1:
        return "concatenate", mechanisms.concatenate(constants["concatenate"], operands, result, dims[0])
    if name == "reduce" and dims == (2,) and len(operand.shape) == 3:
        return "reduce", mechanisms.reduce(constants["reduce"], operand, result, dims[0])
    if name == "reshape" and len(operand.shape) == 3 and result.shape == (operand.shape[0], prod(operand.shape[1:])):
        return "reshape", mechanisms.reshape(constants["reshape"], operand, result)
    sizes = product_sizes(op, operands, result) if name in DOTS else None
    if sizes is None:
        return None
    batch, *matrix = sizes
    a, b, (rows, columns, depth) = *operands[:2], matrix
    if not op.integers("lhs_batch_dims"):
        along = (op.integers("lhs_contracting_dims") or (1,))[0], (op.integers("rhs_contracting_dims") or (0,))[0]
        return "product", mechanisms.product(constants["product"], a, b, result, (rows, columns, depth), along)
    kind = "batched_product"
    if kind not in constants:
        return None
    return kind, mechanisms.batched_product(constants[kind], a, b, result, batch, (rows, columns, depth))

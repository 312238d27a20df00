"""A program of one operation: its operands arguments, its result returned. Priced by the mechanism measured for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import fsum, prod

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import DOTS, ELEMENTWISE, TAKES_NO_TIME
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.semantics.context import Context
from tilewright.hlo.semantics.dims import matrix_type, product_sizes
from tilewright.hlo.timing import mechanisms
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.row import Run, timed
from tilewright.hlo.timing.step import TimeRow
from tilewright.hlo.timing.tiles import Price, Tiles
from tilewright.targets import TimeConstants

_MEASURED = DOTS | {"exponential", "transpose", "broadcast", "concatenate", "reduce", "reshape"}


def price_alone(chip: Chip, program: Program, context: Context) -> TimeRow | None:
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

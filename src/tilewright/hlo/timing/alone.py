"""A program of one operation: its operands arguments, its result returned. Priced by the mechanism measured for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import fsum, prod

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.program import Operation, Program
from tilewright.hlo.reporting.context import Context
from tilewright.hlo.timing.chip import Chip
from tilewright.hlo.timing.mechanisms import broadcasts as broadcasts
from tilewright.hlo.timing.mechanisms import concatenates as concatenates
from tilewright.hlo.timing.mechanisms import products as products
from tilewright.hlo.timing.mechanisms import reductions as reductions
from tilewright.hlo.timing.mechanisms import reshapes as reshapes
from tilewright.hlo.timing.mechanisms import streams as streams
from tilewright.hlo.timing.mechanisms.price import Price
from tilewright.hlo.timing.mechanisms.tiles import Tiles
from tilewright.hlo.timing.mechanisms.work import ELEMENTWISE, matrix_type, product_sizes
from tilewright.hlo.timing.row import Run, timed
from tilewright.hlo.timing.step import TimeRow
from tilewright.targets import TimeConstants

_NONE = frozenset({"parameter", "constant", "return", "tuple", "get-tuple-element", "iota"})
_PRODUCTS = frozenset({"dot-general", "dot"})
_MEASURED = _PRODUCTS | {"exponential", "transpose", "broadcast", "concatenate", "reduce", "reshape"}


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
    real = [op for op in program.entry.operations if op.opcode not in _NONE]
    if len(real) == 2 and plain_opcode(real[0].opcode) in _PRODUCTS and plain_opcode(real[1].opcode) == "convert":
        product, narrow = real
        if narrow.operands == (product.name,):
            real = [replace(product, shape=narrow.shape)]
    if len(real) == 3 and [plain_opcode(op.opcode) for op in real] == ["convert", "reduce", "convert"]:
        widen, add, narrow = real
        chained = add.operands[:1] == (widen.name,) and narrow.operands == (add.name,)
        if chained and widen.operand_shapes and add.operand_shapes:
            shapes = (widen.operand_shapes[0], *add.operand_shapes[1:])
            real = [replace(add, operand_shapes=shapes, shape=narrow.shape)]
    if len(real) != 1 or len(program.computations) != 1 + len(real[0].calls):
        return None
    return real[0]


def mechanism(
    constants: Mapping[str, TimeConstants], op: Operation, operands: list[Tiles], result: Tiles
) -> tuple[str, Price] | None:
    """The name of an operation's mechanism and its price; None for an operation that none was measured for."""
    name, operand = plain_opcode(op.opcode), operands[0]
    dims = op.integers("dimensions")
    if name in ELEMENTWISE and all(tiles.shape in (result.shape, ()) for tiles in operands):
        return "stream", streams.elementwise(constants["stream"], operands, result)
    if name == "transpose":
        return "stream", streams.copy(constants["stream"], operand, result)
    if name == "broadcast" and operand.shape:
        repeated = [d for d in range(len(result.shape)) if d not in dims or operand.shape[dims.index(d)] == 1]
        grown = [d for d in repeated if result.shape[d] > 1] or repeated[-1:]
        if len(grown) == 1 and len(operand.shape) == len(result.shape):
            return "broadcast", broadcasts.broadcast(constants["broadcast"], operand, result, grown[0])
    if name == "concatenate" and len(dims) == 1 and len(result.shape) > 1:
        return "concatenate", concatenates.concatenate(constants["concatenate"], operands, result, dims[0])
    if name == "reduce" and dims == (2,) and len(operand.shape) == 3:
        return "reduce", reductions.reduce(constants["reduce"], operand, result, dims[0])
    if name == "reshape" and len(operand.shape) == 3 and result.shape == (operand.shape[0], prod(operand.shape[1:])):
        return "reshape", reshapes.reshape(constants["reshape"], operand, result)
    sizes = product_sizes(op, operands, result) if name in _PRODUCTS else None
    return _product(constants, op, operands, result, sizes) if sizes else None


def _product(
    constants: Mapping[str, TimeConstants],
    op: Operation,
    operands: list[Tiles],
    result: Tiles,
    sizes: tuple[int, int, int, int],
) -> tuple[str, Price] | None:
    batch, *matrix = sizes
    rows, columns, depth = matrix
    a, b = operands[:2]
    if op.integers("lhs_batch_dims"):
        if "batched_product" not in constants:
            return None
        mine = constants["batched_product"]
        return "batched_product", products.batched_product(mine, a, b, result, batch, (rows, columns, depth))
    deep = (op.integers("lhs_contracting_dims") or (1,))[0], (op.integers("rhs_contracting_dims") or (0,))[0]
    return "product", products.product(constants["product"], a, b, result, (rows, columns, depth), deep)

"""Operations whose work is to move data: which they are, and what each moves by itself under a target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import Traffic, plain_opcode, traffic
from tilewright.hlo.opcodes import REARRANGES, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation
from tilewright.hlo.semantics.context import Context, Placed
from tilewright.layout import TensorLayout

_OF_SEVERAL = WRITES_IN_PLACE.keys() | {"concatenate", "custom-call", "gather"}
"""Movers of which all operands count."""
_MOVERS = _OF_SEVERAL | REARRANGES | {"bitcast", "bitcast-convert", "convert", "reverse"}


class Moved(NamedTuple):
    """What an operation moves: ``cost``, which counts where it is ``counted``.

    Nothing counts inside a fusion (``fused``), in a conversion that keeps the order, and in what is expected ``along``
    with a kernel that computes. A custom call has no cost here: what it does, its target says.
    """

    name: str
    placed: Placed
    operands: list[TensorLayout]
    result: TensorLayout
    dimensions: tuple[int, ...] | None
    cost: Traffic
    along: bool
    counted: bool


def moved_by(context: Context, computation: Computation, op: Operation, fused: bool = False) -> Moved | None:
    """What the operation moves, None if that is not its work. Raises ParseError for shapes that do not fit it."""
    name = plain_opcode(op.opcode).removesuffix("-start")
    if name not in _MOVERS:
        return None
    placed = context.placed(computation, op, op.operand_shapes if name in _OF_SEVERAL else op.operand_shapes[:1])
    operands = [layout for layout in placed.operands if layout is not None]
    result = _written_by(placed)
    if result is None or not operands or (name == "convert" and not result.rank):
        return None
    if name == "custom-call":
        return Moved(name, placed, operands, result, None, Traffic(False, 0, 0), False, not fused)
    dimensions = op.integers("dimensions") if "dimensions" in op.attributes else None
    cost = traffic(name, op, operands, result, dimensions)
    in_place = name == "convert" and operands[0].minor_to_major == result.minor_to_major
    along = not fused and not cost.bitcast and (computation.name, op.name) in context.fused_along
    return Moved(name, placed, operands, result, dimensions, cost, along, not (fused or in_place or along))


def movers(context: Context) -> Iterator[tuple[Computation, Operation, Moved]]:
    """Every operation outside fusions whose work is to move, in the program's order."""
    for computation in context.program.computations:
        if computation.name not in context.program.fused:
            for op in computation.operations:
                found = None
                with suppress(TilewrightError):  # shapes that contradict each other: the report says which
                    found = moved_by(context, computation, op)
                if found is not None:
                    yield computation, op, found


def _written_by(placed: Placed) -> TensorLayout | None:
    """The array an operation writes; a started one has it in its tuple."""
    opcode, number = placed.op.opcode, 0
    if placed.op.shape.startswith("("):
        if not opcode.endswith("-start"):
            return None
        number = 0 if opcode == "copy-start" else len(placed.op.operands)  # most put their operands first
    return placed.results[number] if number < len(placed.results) else None

"""What an operation asks of the units: passes of the matrix unit, vector registers, rotations, gathered rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import ELEMENTWISE, MOVES_ONLY, PRODUCTS, TRANSCENDENTAL, WRITTEN_OUT
from tilewright.hlo.program import Operation
from tilewright.hlo.semantics.dims import gathered_rows, matrix_type, product_sizes
from tilewright.hlo.timing.mechanisms import matrix_us
from tilewright.hlo.timing.tiles import Tiles
from tilewright.targets import TimeConstants

REGISTER = 1024
"""Elements of a vector register: 8 sublanes of 128 lanes."""

_REGISTER_BY_REGISTER = ELEMENTWISE | {"map", "reverse", "reduce-window", "select-and-scatter", "set-dimension-size"}
"""Operations that are priced by the registers of their result."""


@dataclass
class Work:
    """What one kernel asks of the units."""

    matrix_us: float = 0.0  # microseconds of passes on the matrix unit
    products: Counter[str] = field(default_factory=Counter)  # type on the matrix unit -> multiplications and additions
    registers: float = 0.0  # registers through the vector unit, operation by operation
    transcendental: float = 0.0  # registers through the transcendental unit
    rotations: float = 0.0  # registers turned across lanes
    rows: int = 0  # rows gathered or scattered one by one
    link_us: float = 0.0  # microseconds of exchanges with other chips
    unknown: tuple[str, ...] = ()  # why operations have no price

    def include(self, other: Work) -> None:
        """Add what ``other`` asks for."""
        for part in fields(self):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))

    def vector_us(self, constants: TimeConstants) -> float:
        """Microseconds of the vector unit; its slots for arithmetic and for transcendentals work side by side."""
        arithmetic = self.registers * constants["vector_ns"]
        special = self.transcendental * constants["transcendental_ns"]
        return (max(arithmetic, special) + self.rotations * constants["rotation_ns"]) / 1e3


def add_operation(
    work: Work, constants: TimeConstants, op: Operation, operands: Sequence[Tiles], result: Tiles
) -> None:
    """Add what ``op`` asks of the units to ``work``."""
    name = plain_opcode(op.opcode)
    if name in PRODUCTS:
        sizes = product_sizes(op, operands, result)
        if sizes is None:
            work.unknown += (f"{name} does not say its dims",)
            return
        batch, rows, columns, depth = sizes
        work.matrix_us += batch * matrix_us(constants, rows, columns, depth) / constants["efficiency"]
        work.products[matrix_type(op)] += 2 * batch * rows * columns * depth
    elif name in ("gather", "scatter"):
        indices = operands[1] if len(operands) > 1 else result
        work.rows += gathered_rows(op, indices, result)
    elif name in MOVES_ONLY:
        return
    elif name == "reduce":
        operand = operands[0] if operands else result
        work.registers += operand.elements / REGISTER
        reduced = set(op.integers("dimensions"))
        if operand.minor_to_major and operand.minor_to_major[0] in reduced:
            length = max(operand.shape[operand.minor_to_major[0]], 128)
            work.rotations += operand.elements / length / 8
    elif name not in _REGISTER_BY_REGISTER:
        work.unknown += (f"no mechanism for {name} is known",)
    else:
        registers = max((t.elements for t in (result, *operands[:1])), default=0) / REGISTER
        passes, more = WRITTEN_OUT.get(name, (TRANSCENDENTAL.get(name, 0), 0))
        work.transcendental += registers * passes
        per_register = more + constants["transcendental_ops"] * (passes if more else 1) if passes else 1.0
        work.registers += registers * (constants["convert_ops"] if name == "convert" else per_register)

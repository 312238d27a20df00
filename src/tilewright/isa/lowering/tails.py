"""What is done to a product's sums before they are stored: rounding to the result's type, a region of its users."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.errors import UnsupportedError
from tilewright.hlo import Node, Value
from tilewright.isa.chip.parts import Part
from tilewright.isa.lowering.grouping import Group
from tilewright.isa.lowering.reading import Reading, machine_type, operations
from tilewright.isa.lowering.sources import Groups
from tilewright.isa.lowering.tables import Lowering, folded
from tilewright.isa.lowering.vectors import Region, specification
from tilewright.isa.multiply.matmul import operand_windows
from tilewright.isa.vector.spec import Input, Op, Output, VectorSpec


@dataclass
class Tail:
    """``table``: where C is stored, of the value ``out``; ``spec`` and its other ``tables``: None for the sums alone.

    ``nodes``: of the product and of the region; ``operations``: the region's arithmetic.
    """

    table: str
    out: Value
    nodes: tuple[Node, ...]
    spec: VectorSpec | None = None
    tables: dict[str, str] = field(default_factory=dict)
    operations: int = 0

    def windows(self, part: Part) -> tuple[tuple[str, str, Part], ...]:
        """The region's tensors as the program of this part of C sees them."""
        found = []
        for name, window in operand_windows(self.spec, part).items():
            assert isinstance(window, Part)
            found.append((name, self.tables[name], window))
        return tuple(found)


def tail_of(lowering: Lowering, node: Node, groups: Groups, sums: str, after: Group | None) -> Tail:
    """The table of C, and what becomes of the sums: of ``groups`` of the result's dims, rows and columns."""
    out = node.result
    if after is not None:
        return _region_tail(lowering, node, groups, sums, after)
    dtype = str(machine_type(out))
    table = lowering.new_table(out, groups)
    if dtype == sums:
        return Tail(table, out, (node,))
    body = (Op("convert", (0,), dtype),)
    rows, columns = folded(out.sizes, groups)
    spec = VectorSpec(rows, columns, (Input("acc", sums),), body, (Output("y0", 1, dtype),))
    return Tail(table, out, (node,), spec)


def _region_tail(lowering: Lowering, node: Node, groups: Groups, sums: str, after: Group) -> Tail:
    place = after.region.place_of(node)
    order = tuple(tuple(place[d] for d in group if place[d] is not None) for group in groups)
    (out,) = after.outputs
    written = specification(lowering, after.region, after.nodes, (out,), (node, sums), (order[0], order[1]))
    spec = written.spec
    if any(each.form == "rows" for each in spec.inputs) or spec.outputs[0].form != "full":
        raise UnsupportedError("an epilogue with repeated rows")
    if (spec.rows, spec.cols) != folded(node.result.sizes, groups):
        raise UnsupportedError("a region that is larger than the product")
    work = sum(operations(each) for each in after.nodes)
    return Tail(written.tables["y0"], out, (node, *after.nodes), spec, written.tables, work)


def takes_product(reading: Reading, region: Region, node: Node) -> bool:
    """Whether a region can be done to a product's sums: every element of it, and nothing that goes along rows."""
    if any(member.name == "reduce" for member in region.places):
        return False
    place = region.place_of(node)
    return place is not None and {d for d in place if d is not None} == region.long

"""MLIR module -> graph: one Block per function, nested bodies included, nothing changed."""

from __future__ import annotations

from typing import Any

from tilewright.hlo.graphs.bodies import reduction
from tilewright.hlo.graphs.graph import Block, Node, Value
from tilewright.hlo.graphs.literal import Literal
from tilewright.hlo.ir import ir

_PREFIX = "stablehlo."


class _Reader:
    """Reads blocks, remembering which MLIR value became which Value."""

    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}
        self.types: dict[Any, tuple[tuple[int, ...] | None, str]] = {}
        self.position = 0

    def type_of(self, handle: Any) -> tuple[tuple[int, ...] | None, str]:
        """Static shape and element type; shape None for whatever is not a plain static array."""
        kind = handle.type
        if kind not in self.types:
            found: tuple[tuple[int, ...] | None, str] = (None, str(kind))
            if isinstance(kind, ir.RankedTensorType):
                plain = kind.has_static_shape and kind.encoding is None
                found = (tuple(kind.shape) if plain else None, str(kind.element_type))
            self.types[kind] = found
        return self.types[kind]

    def block(self, handle: Any, name: str, owner: Node | None) -> Block:
        block = Block(name, owner)
        block.handle = handle
        for argument in handle.arguments:
            value = block.add_argument(*self.type_of(argument))
            value.handle = argument
            self.values[argument] = value
        for each in handle.operations:
            block.append(self.operation(each.operation))
        return block

    def operation(self, handle: Any) -> Node:
        name: str = handle.name
        op = Node(name.removeprefix(_PREFIX), [self.values[v] for v in handle.operands])
        op.handle, op.read, op.position = handle, tuple(op.operands), self.position
        self.position += 1
        op.plain = not any("." in key for key in handle.attributes)
        if reader := _ATTRIBUTES.get(op.name):
            op.attributes = reader(handle)
        for result in handle.results:
            value = op.add_result(*self.type_of(result))
            value.handle = result
            self.values[result] = value
        if len(op.attributes) < 2 or op.name != "reduce":  # the body of a reduction that is understood says no more
            for region in handle.regions:
                op.blocks += [self.block(body, "", op) for body in region.blocks]
        return op


def _integers(handle: Any, name: str) -> tuple[int, ...]:
    return tuple(ir.DenseI64ArrayAttr(handle.attributes[name]))


_ATTRIBUTES: dict[str, Any] = {
    "broadcast_in_dim": lambda handle: {"dims": _integers(handle, "broadcast_dimensions")},
    "transpose": lambda handle: {"permutation": _integers(handle, "permutation")},
    "constant": lambda handle: {"literal": Literal(handle)},
    "iota": lambda handle: {"dim": int(ir.IntegerAttr(handle.attributes["iota_dimension"]).value)},
    "reduce": lambda handle: {"dims": _integers(handle, "dimensions"), **reduction(handle)},
}


def read_functions(module: Any) -> list[Block]:
    """A Block for the body of every function of the module, in order; each is named after its function."""
    reader = _Reader()
    bodies = []
    for each in module.body.operations:
        handle = each.operation
        if handle.name == "func.func" and len(handle.regions[0].blocks) == 1:
            name = ir.StringAttr(handle.attributes["sym_name"]).value
            body = reader.block(handle.regions[0].blocks[0], name, None)
            body.module = module
            bodies.append(body)
    return bodies

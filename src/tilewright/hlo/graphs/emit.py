"""Graph -> MLIR: write what rewrites changed back into the module the graph was read from (always a clone).

Operations that were read keep their MLIR operation; made ones are created from their name, attributes and the
operation they are ``like``. Everything is put in order before the terminator, and what the graph no longer holds is
erased last of all, users before definitions, when nothing else refers to it.
"""

from __future__ import annotations

from typing import Any

from tilewright.hlo.graphs.graph import Block, Node, Value, in_order, walk
from tilewright.hlo.ir import ir


def write_functions(module: Any, bodies: list[Block]) -> None:
    """Bring the module's function bodies in line with the graph."""
    with module.context, ir.Location.unknown(module.context):
        for body in bodies:
            for block in walk(body):
                _retype(block)
        for body in bodies:
            for block in walk(body):
                if block.changed:
                    _write_block(block)
            _connect(body)
        for body in bodies:
            for block in reversed(list(walk(body))):
                if block.changed:
                    _erase_dead(block)


def _retype(block: Block) -> None:
    """Arguments of bodies and results of loops and conditionals may have changed their shapes."""
    if not block.changed:
        return
    held = [v for op in block.operations if op.blocks and op.handle is not None for v in op.results]
    for value in [*block.arguments, *held] if block.owner is not None else held:
        if value.shape is not None and tuple(value.handle.type.shape) != value.shape:
            value.handle.set_type(_tensor(value))


def _write_block(block: Block) -> None:
    *inner, last = block.operations
    block.operations = [*in_order(inner), last]
    terminator = last.handle
    for op in block.operations[:-1]:
        if op.handle is None:
            with ir.InsertionPoint(terminator), op.like.handle.location if op.like else ir.Location.unknown():
                op.handle = _create(op)
            for value, handle in zip(op.results, op.handle.results):
                value.handle = handle
        else:
            op.handle.move_before(terminator)


def _connect(body: Block) -> None:
    """Give operations that were read their new operands."""
    for block in walk(body):
        for op in block.operations:
            for index, (old, new) in enumerate(zip(op.read, op.operands)):
                if old is not new:
                    op.handle.operands[index] = new.handle


def _erase_dead(block: Block) -> None:
    kept = {op.handle for op in block.operations}
    dead = [view.operation for view in block.handle.operations if view.operation not in kept]
    for handle in reversed(dead):
        handle.erase()


def _tensor(value: Value) -> Any:
    return ir.RankedTensorType.get(value.shape, ir.Type.parse(value.dtype))


def _create(op: Node) -> Any:
    if op.name == "constant":
        return _constant(op)
    name = op.name if "." in op.name else f"stablehlo.{op.name}"
    attributes = _named(op)
    if op.name == "reduce":
        return _reduce(op, attributes)
    operands = [value.handle for value in op.operands]
    return ir.Operation.create(name, [_tensor(v) for v in op.results], operands, attributes)


def _named(op: Node) -> dict[str, Any]:
    """MLIR attributes: those of the operation it is like (if of the same kind), then its own."""
    attributes = {}
    if op.like is not None and op.like.handle is not None and op.like.name == op.name and op.name not in _STRUCTURAL:
        attributes = {key: op.like.handle.attributes[key] for key in op.like.handle.attributes}
    for key, name in _ARRAYS.items():
        if key in op.attributes:
            attributes["dimensions" if op.name == "reduce" else name] = ir.DenseI64ArrayAttr.get(op.attributes[key])
    if op.name == "iota":
        attributes["iota_dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), op.attributes["dim"])
    return attributes


_STRUCTURAL = frozenset({"broadcast_in_dim", "transpose", "reduce", "reshape", "constant", "iota"})
_ARRAYS = {"dims": "broadcast_dimensions", "permutation": "permutation", "sizes": "slice_sizes"}


def _constant(op: Node) -> Any:
    literal, result = op.attributes["literal"], op.result
    kind = _tensor(result)
    value = literal.attribute(result.shape, kind) if literal.element is None else None
    if value is not None:
        return ir.Operation.create("stablehlo.constant", [kind], [], {"value": value})
    text = literal.attribute_text(result.shape, str(kind))
    constant = ir.Operation.parse(f'"stablehlo.constant"() {{value = {text}}} : () -> {kind}')
    ir.InsertionPoint.current.insert(constant)
    return constant.operation


def _reduce(op: Node, attributes: dict[str, Any]) -> Any:
    handles = [value.handle for value in op.operands]
    if "chooses" in op.attributes:
        return _like(op, handles, attributes)
    monoids = op.attributes.get("monoids") or (op.attributes["monoid"],)
    reduce = ir.Operation.create("stablehlo.reduce", [_tensor(v) for v in op.results], handles, attributes, regions=1)
    scalars = [ir.RankedTensorType.get([], ir.Type.parse(v.dtype)) for v in op.results]
    body = reduce.regions[0].blocks.append(*scalars, *scalars)
    arguments = list(body.arguments)
    with ir.InsertionPoint(body):
        pairs = zip(monoids, scalars, arguments, arguments[len(scalars) :])
        combined = [ir.Operation.create(f"stablehlo.{m}", [kind], [a, b]).results[0] for m, kind, a, b in pairs]
        ir.Operation.create("stablehlo.return", [], combined)
    return reduce


def _like(op: Node, handles: list[Any], attributes: dict[str, Any]) -> Any:
    """A copy of the operation ``op`` is like, its body included, on other operands."""
    assert op.like is not None
    copy = op.like.handle.clone().operation
    for index, handle in enumerate(handles):
        copy.operands[index] = handle
    for key, value in attributes.items():
        copy.attributes[key] = value
    for result, value in zip(copy.results, op.results):
        result.set_type(_tensor(value))
    return copy

"""MLIR module -> graph: one Block per function, nested bodies included, nothing changed."""

from __future__ import annotations

from typing import Any

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
            shape, dtype = None, str(kind)
            if isinstance(kind, ir.RankedTensorType):
                plain = kind.has_static_shape and kind.encoding is None
                shape, dtype = tuple(kind.shape) if plain else None, str(kind.element_type)
            self.types[kind] = (shape, dtype)
        return self.types[kind]

    def block(self, handle: Any, name: str, owner: Node | None) -> Block:
        block = Block(name, owner)
        block.handle = handle
        for argument in handle.arguments:
            value = block.add_argument(*self.type_of(argument))
            value.handle = argument
            self.values[argument] = value
        for view in handle.operations:
            block.append(self.operation(view.operation))
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
        if len(op.attributes) < 2 or op.name != "reduce":  # a reduction that is understood needs no body
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
    "reduce": lambda handle: {"dims": _integers(handle, "dimensions"), **_reduction(handle)},
}


def read_functions(module: Any) -> list[Block]:
    """A Block for the body of every function of the module, in order; each is named after its function."""
    reader = _Reader()
    bodies = []
    for view in module.body.operations:
        handle = view.operation
        if handle.name == "func.func" and len(handle.regions[0].blocks) == 1:
            name = ir.StringAttr(handle.attributes["sym_name"]).value
            body = reader.block(handle.regions[0].blocks[0], name, None)
            body.module = module
            bodies.append(body)
    return bodies


# What a reduction's body does: exactly one monoid operation for each array, or the choice of an extreme (argmax).

#: Reduction bodies that are exactly one associative and commutative operation with an identity.
MONOIDS = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


def _reduction(handle: Any) -> dict[str, Any]:
    """What rewrites may know of a ``stablehlo.reduce``; empty where its body is not understood.

    ============  ====================================================================================================
    ``monoid``    one array: the body's only operation, on both block arguments
    ``monoids``   several arrays: the same for each of them, apart from the others
    ``chooses``   two arrays, values and indices: ``GT`` for the first largest value (argmax), ``LT`` for the smallest
    ============  ====================================================================================================

    StableHLO lets a reduction accumulate in another type than its operand's; such a one is no monoid of the operand.
    """
    body = handle.regions[0].blocks[0]
    operations = [view.operation for view in body.operations]
    arguments, count = list(body.arguments), len(handle.results)
    if len(arguments) != 2 * count or not _keeps_types(handle, arguments):
        return {}
    *inner, last = operations
    if len(inner) == count:
        monoids = _monoids(inner, last, arguments)
        if monoids:
            return {"monoid": monoids[0]} if count == 1 else {"monoids": monoids}
    if count == 2 and len(inner) <= _LONGEST_CHOICE:
        direction = _choice(inner, last, arguments)
        if direction:
            return {"chooses": direction}
    return {}


def _keeps_types(handle: Any, arguments: list[Any]) -> bool:
    """Whether every array is accumulated in its own element type."""
    count = len(handle.results)
    groups = zip(handle.results, handle.operands[:count], handle.operands[count:], arguments[:count], arguments[count:])
    return all(len({str(value.type.element_type) for value in group}) == 1 for group in groups)


def _monoids(inner: list[Any], last: Any, arguments: list[Any]) -> tuple[str, ...]:
    """The monoid of each result in order, () if some result is anything else."""
    by_result = {op.results[0]: op for op in inner}
    monoids = []
    for k, returned in enumerate(last.operands):
        op = by_result.pop(returned, None)
        if op is None or op.name.removeprefix(_PREFIX) not in MONOIDS or len(op.attributes):
            return ()
        pair, operands = [arguments[k], arguments[k + len(arguments) // 2]], list(op.operands)
        if operands not in (pair, pair[::-1]):
            return ()
        monoids.append(op.name.removeprefix(_PREFIX))
    return tuple(monoids)


_LONGEST_CHOICE = 9


def _choice(inner: list[Any], last: Any, arguments: list[Any]) -> str:
    """``GT`` or ``LT`` if the body keeps the larger (smaller) value and, of equal ones, the smaller index, as JAX does.

        pick       a > b, or a is not a number            result 0     pick ? a : b
        pick index pick, or a = b and i < j               result 1     pick index ? i : j

    For integers that is the minimum of a total order of pairs. Anything else gives "".
    """
    a, i, b, j = arguments
    terms: dict[Any, Any] = {a: "a", b: "b", i: "i", j: "j"}
    for op in inner:
        if len(op.results) != 1 or any(operand not in terms for operand in op.operands):
            return ""
        terms[op.results[0]] = _term(op, terms)
    results = [terms.get(returned) for returned in last.operands]
    for direction in ("GT", "LT"):
        larger = ((direction, "a", "b"), ("or", frozenset({(direction, "a", "b"), ("NE", "a", "a")})))
        tie = ("and", frozenset({("EQ", "a", "b"), ("LT", "i", "j")}))
        for pick in larger:
            pick_index = ("or", frozenset({pick, tie}))
            if results == [("select", pick, "a", "b"), ("select", pick_index, "i", "j")]:
                return direction
    return ""


def _term(op: Any, terms: dict[Any, Any]) -> Any:
    """An operation as a nested tuple; the operands of ``and`` and ``or`` in no order."""
    name, operands = op.name.removeprefix(_PREFIX), [terms[operand] for operand in op.operands]
    if name == "compare":
        kinds = [str(op.attributes[key]) for key in op.attributes if key == "compare_type"]
        if any("TOTALORDER" in kind for kind in kinds):
            return ("compare", *operands)
        name = str(ir.Attribute(op.attributes["comparison_direction"])).rpartition(" ")[2].rstrip(">")
        return (name, *operands)
    return (name, frozenset(operands)) if name in ("and", "or") else (name, *operands)

"""MLIR module -> graph -> MLIR: one Block per function, nested bodies included, nothing changed but by rewrites.

Writing goes back into the module the graph was read from (always a clone). Operations that were read keep their MLIR
operation; new ones are created from their name, attributes and the operation they are ``like``. Everything is put in
order before the terminator, and what the graph no longer holds is erased last of all, users before definitions, when
nothing else refers to it.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.hlo.graphs.attributes import PARTS, WRITTEN, read_attributes, write_attributes
from tilewright.hlo.graphs.graph import Block, Node, Value, in_order, walk
from tilewright.hlo.ir import context, ir

Array = np.ndarray[Any, Any]

# Constants: read when needed, compared with a monoid's identity, laid out in another shape.

_SPLAT = re.compile(r"dense<([^\[<>\"]+)> : tensor<")
_ELEMENTS = re.compile(r'dense<(?:"0x([0-9A-F]+)"|(\[[^<>"]*\]))> : tensor<')


class Literal:
    """The value of a ``stablehlo.constant``: one repeated element, or a handle on all of them.

    ``element`` is MLIR's text of the repeated element (``-0.000000e+00``, ``0xFF800000``, ``(1.0,0.0)``), or None.
    ``order`` gives the handle's elements, by their row-major numbers, in their new order; None where it is unchanged.
    """

    def __init__(self, handle: Any = None, element: str | None = None, order: Any = None) -> None:
        self.handle, self.order = handle, order
        if element is not None:
            self.element = element

    @cached_property
    def element(self) -> str | None:
        """The repeated element's text, None where the elements differ."""
        try:
            value = self.handle.attributes["value"]
        except TypeError:  # complex numbers have no attribute class; printing an operation renumbers its function
            text = self.handle.get_asm(large_elements_limit=4, print_generic_op_form=True)
        else:
            if not getattr(value, "is_splat", False):
                return None
            text = str(value)
        match = _SPLAT.search(text)
        return match[1].strip() if match else None

    @cached_property
    def key(self) -> object:
        """Equal for constants known to be equal."""
        if self.element is not None:
            return self.element
        return id(self.handle) if self.order is None else (id(self.handle), self.order.tobytes())

    @property
    def movable(self) -> bool:
        """Whether it can be laid out in another shape: all but constants kept outside the program's text."""
        return self.element is not None or self.array() is not None or self.elements is not None

    def array(self) -> Array | None:
        """The elements, None for element types the bindings give no buffer of."""
        try:
            array = np.array(self.handle.attributes["value"])
        except (TypeError, ValueError, RuntimeError):  # complex and narrow floats have no buffer in the bindings
            return None
        if array.dtype == object:
            return None
        return array if self.order is None else array.reshape(-1)[self.order]

    def transposed(self, shape: tuple[int, ...], permutation: tuple[int, ...]) -> Literal:
        """The literal of ``numpy.transpose(constant of that shape, permutation)``."""
        if self.element is not None:
            return self
        order = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape).transpose(permutation).reshape(-1)
        return Literal(self.handle, order=order if self.order is None else self.order[order])

    @cached_property
    def elements(self) -> list[str] | bytes | None:
        """All elements in row-major order as MLIR writes them: a few as texts, many as their little-endian bytes.

        This is how constants without a buffer are read (bf16, complex, int4, 8-bit floats). None for a splat, and for
        a resource outside the text.
        """
        try:
            text = str(self.handle.attributes["value"])
        except TypeError:
            text = self.handle.get_asm(print_generic_op_form=True)
        match = _ELEMENTS.search(text)
        if match is None:
            return None
        if match[1]:
            return _reordered(bytes.fromhex(match[1]), self.order)
        listed = match[2].replace("[", "").replace("]", "").split(", ")
        return listed if self.order is None else [listed[k] for k in self.order]

    def attribute_text(self, shape: tuple[int, ...], tensor: str) -> str:
        """The attribute for the MLIR type ``tensor`` of ``shape``: what MLIR has no buffer of is written as text."""
        if self.element is not None:
            return f"dense<{self.element}> : {tensor}"
        assert self.elements is not None
        if isinstance(self.elements, bytes):
            return f'dense<"0x{self.elements.hex().upper()}"> : {tensor}'
        return f"dense<{_nested(self.elements, shape)}> : {tensor}"

    def attribute(self, shape: tuple[int, ...], tensor_type: Any) -> Any:
        """The attribute of a constant that is not a splat, its elements in row-major order in ``shape``.

        None where the bindings give no buffer of the element type.
        """
        array = self.array()
        if array is None:
            return None
        array = np.ascontiguousarray(array.reshape(shape))  # booleans too are one byte each to the bindings
        return ir.DenseElementsAttr.get(array, type=tensor_type.element_type, shape=list(shape))


def _reordered(raw: bytes, order: Any) -> bytes:
    if order is None:
        return raw
    rows: Array = np.frombuffer(raw, np.uint8).reshape(len(order), -1)
    return bytes(rows[order])


def _nested(elements: list[str], shape: tuple[int, ...]) -> str:
    """Nested brackets, innermost first: ``[[a, b], [c, d]]``."""
    for size in reversed(shape):
        elements = [f"[{', '.join(elements[k : k + size])}]" for k in range(0, len(elements), size)]
    return elements[0]


_PREFIX = "stablehlo."


class _Reader:
    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}
        self.types: dict[Any, tuple[tuple[int, ...] | None, str]] = {}
        self.said: dict[tuple[Any, ...], dict[str, Any]] = {}  # an operation's name and attributes -> as plain values
        self.position = 0

    def type_of(self, handle: Any) -> tuple[tuple[int, ...] | None, str]:
        """Static shape and element type; shape None for whatever is not a plain static array."""
        kind = handle.type
        if known := self.types.get(kind):
            return known
        shape, dtype = None, str(kind)
        if isinstance(kind, ir.RankedTensorType):
            plain = kind.has_static_shape and kind.encoding is None
            shape, dtype = tuple(kind.shape) if plain else None, str(kind.element_type)
        return self.types.setdefault(kind, (shape, dtype))

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
        name, values = handle.name.removeprefix(_PREFIX), self.values
        names = [*handle.attributes]
        op = Node(name, [values[v] for v in handle.operands], self.attributes(name, handle, names))
        op.handle, op.read, op.position = handle, tuple(op.operands), self.position
        self.position += 1
        op.plain = "." not in "".join(names) and "other" not in op.attributes
        for result in handle.results:
            value = op.add_result(*self.type_of(result))
            value.handle = result
            values[result] = value
        understood = name in _REDUCTIONS and not _BODIES.isdisjoint(op.attributes)  # then they say what the body does
        if len(handle.regions) and not understood:
            op.blocks = [self.block(body, "", op) for region in handle.regions for body in region.blocks]
        return op

    def attributes(self, name: str, handle: Any, names: list[str]) -> dict[str, Any]:
        """What rewrites look at: the plain attributes, a constant's literal, what a reduction's body does."""
        if name == "constant":
            return {"literal": Literal(handle)}
        if name not in PARTS:
            return {}
        held = handle.attributes
        said = name, *names, *[held[key] for key in names]
        attributes = self.said.get(said) or self.said.setdefault(said, read_attributes(name, handle))
        if name == "scatter" and len(handle.results) == 1:
            *inner, last = (view.operation for view in handle.regions[0].blocks[0].operations)
            monoids = _monoids(inner, last, list(handle.regions[0].blocks[0].arguments)) if len(inner) == 1 else ()
            return {**attributes, "monoid": monoids[0]} if monoids else attributes
        return {**attributes, **_reduction(handle)} if name in _REDUCTIONS else attributes


_REDUCTIONS = frozenset({"reduce", "reduce_window"})
_BODIES = frozenset({"monoid", "monoids", "chooses"})


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
    """What rewrites may know of the body of a ``reduce`` or a ``reduce_window``; empty for any other.

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
    accumulated = zip(handle.results, handle.operands, handle.operands[count:], arguments, arguments[count:])
    kept = all(len({value.type.element_type for value in group}) == 1 for group in accumulated)
    if len(arguments) != 2 * count or not kept:
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


# Writing back.


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
    if op.name in _REDUCTIONS:
        return _reduce(op, name, attributes)
    operands = [value.handle for value in op.operands]
    return ir.Operation.create(name, [_tensor(v) for v in op.results], operands, attributes)


def _named(op: Node) -> dict[str, Any]:
    """MLIR attributes: those of the operation it is like (if of the same kind), then its own."""
    attributes = {}
    if op.like is not None and op.like.handle is not None and op.like.name == op.name and op.name not in _STRUCTURAL:
        attributes = {key: op.like.handle.attributes[key] for key in op.like.handle.attributes}
    return attributes | write_attributes(op.name, op.attributes)


#: Their own attributes are all they have; nothing is lent to them.
_STRUCTURAL = WRITTEN - {"compare"} | {"reshape", "constant"}


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


def _reduce(op: Node, name: str, attributes: dict[str, Any]) -> Any:
    handles = [value.handle for value in op.operands]
    if "chooses" in op.attributes:
        return _like(op, handles, attributes)
    monoids = op.attributes.get("monoids") or (op.attributes["monoid"],)
    reduce = ir.Operation.create(name, [_tensor(v) for v in op.results], handles, attributes, regions=1)
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


# A block by itself: what a region costs is asked of a module that holds nothing else.


def module_text(block: Block) -> str:
    """A block of operations that need no bodies, as a module whose ``main`` takes the block's arguments.

    The terminator's operands are what it returns; the block's own handles are used up.
    """
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        inputs, outputs = block.arguments, block.operations[-1].operands
        kind = ir.FunctionType.get([_tensor(v) for v in inputs], [_tensor(v) for v in outputs])
        named = {"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(kind)}
        with ir.InsertionPoint(module.body):
            function = ir.Operation.create("func.func", attributes=named, regions=1)
        body = function.regions[0].blocks.append(*kind.inputs)
        for value, handle in zip(inputs, body.arguments):
            value.handle = handle
        with ir.InsertionPoint(body):
            for op in block.operations[:-1]:
                handle = _create(op)
                for value, made in zip(op.results, handle.results):
                    value.handle = made
            ir.Operation.create("func.return", [], [value.handle for value in outputs])
        return str(module.operation.get_asm())

"""MLIR module -> graph -> MLIR: one Block per function, nested bodies included, nothing changed but by rewrites.

Writing goes back into the module the graph was read from (always a clone). Operations that were read keep their MLIR
operation; new ones are created from their name, attributes and the operation they are ``like``. Everything is put in
order before the terminator, and what the graph no longer holds is erased last of all, users before definitions, when
nothing else refers to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tilewright.hlo.graphs.graph import Block, Node, Value, in_order, walk
from tilewright.hlo.ir import context, ir

# The attributes of operations as plain values, read from MLIR and written back.
#
# ``PARTS`` says for each operation that rewrites may make which plain attributes it has and how MLIR writes them. They
# are the whole meaning of the operation beside its operands: two operations with equal attributes do the same.
# Attributes that have no part come back as ``other``; such an operation counts as not plain and is left alone. A
# reduction has also what its body does: ``monoid``, ``monoids`` or ``chooses``; so has a ``scatter``.
#
# Dims and sizes are tuples of integers, ``padding`` is ((low, high), ...), ``precision`` a pair such as ``("HIGHEST",
# "HIGHEST")``, one for each operand, ``numbers`` of a convolution ``("b01f", "01io", "b01f")``, ``direction`` of a
# comparison one of ``EQ NE GE GT LE LT``, its ``kind`` ``FLOAT SIGNED UNSIGNED TOTALORDER`` or "".

Attributes = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One attribute of MLIR, called ``mlir``, and the plain one ``key`` that it is; "" where it is several.

    ``read`` takes MLIR's and gives the plain value (the plain attributes, where it is several); ``write`` is its
    inverse, None for what need not be written. ``default``: of the attributes read before, where MLIR's is absent.
    """

    mlir: str
    key: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]
    default: Callable[[Attributes], Any] | None = None


def _integers(mlir: str, key: str, default: Callable[[Attributes], Any] | None = None) -> Part:
    return Part(
        mlir, key, lambda a: tuple(ir.DenseI64ArrayAttr(a)), lambda v: ir.DenseI64ArrayAttr.get(list(v)), default
    )


def _integer(mlir: str, key: str) -> Part:
    i64 = lambda value: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)  # noqa: E731
    return Part(mlir, key, lambda attribute: int(ir.IntegerAttr(attribute).value), i64)


def _word(mlir: str, key: str, tag: str, default: Callable[[Attributes], Any] | None = None) -> Part:
    """``#stablehlo<TAG WORD>``; a word may be missing."""

    def read(attribute: Any) -> str:
        match = re.search(rf"{tag} (\w+)", str(attribute))
        return match[1] if match else ""

    return Part(mlir, key, read, lambda v: ir.Attribute.parse(f"#stablehlo<{tag} {v}>") if v else None, default)


def _dimension_numbers(mlir: str, tag: str, lists: Mapping[str, str], index_dim: bool = False) -> Part:
    """``#stablehlo.TAG<lhs_batching_dimensions = [0], ...>``; ``lists``: plain attribute -> MLIR's name of its list."""

    def read(attribute: Any) -> Attributes:
        named = _fields(str(attribute))
        own: Attributes = {key: named.get(name, ()) for key, name in lists.items()}
        return own | ({"index_dim": named.get("index_vector_dim", (0,))[0]} if index_dim else {})

    def write(own: Attributes) -> Any:
        parts = [f"{name} = [{', '.join(map(str, own[key]))}]" for key, name in lists.items() if own[key]]
        parts += [f"index_vector_dim = {own['index_dim']}"] if index_dim else []
        return ir.Attribute.parse(f"#stablehlo.{tag}<{', '.join(parts)}>")

    return Part(mlir, "", read, write)


_FIELD = re.compile(r"(\w+) = (?:\[([\d, ]*)\]|(\d+))")


@lru_cache(maxsize=4096)
def _fields(text: str) -> dict[str, tuple[int, ...]]:
    """The lists in an attribute's text by name; a number is a list of one."""
    return {
        name: tuple(int(word) for word in (listed or number).split(",") if word.strip())
        for name, listed, number in _FIELD.findall(text)
    }


_CONVOLUTION = re.compile(r"<\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]>")


def _read_numbers(attribute: Any) -> tuple[str, ...]:
    match = _CONVOLUTION.search(str(attribute))
    assert match is not None
    return tuple(part.replace(", ", "") for part in match.groups())


def _write_numbers(numbers: tuple[str, ...]) -> Any:
    lhs, rhs, out = (f"[{', '.join(part)}]" for part in numbers)
    return ir.Attribute.parse(f"#stablehlo.conv<{lhs}x{rhs}->{out}>")


def _read_padding(attribute: Any) -> tuple[tuple[int, int], ...]:
    rows = np.array(ir.DenseIntElementsAttr(attribute)).reshape(-1, 2).tolist()
    return tuple((int(low), int(high)) for low, high in rows)


def _write_padding(pairs: tuple[tuple[int, int], ...]) -> Any:
    rows = ", ".join(f"[{low}, {high}]" for low, high in pairs)
    return ir.Attribute.parse(f"dense<{f'[{rows}]' if pairs else ''}> : tensor<{len(pairs)}x2xi64>")


_ANY_PRECISION = ("DEFAULT", "DEFAULT")


def _read_precision(attribute: Any) -> tuple[str, str]:
    words = re.findall(r"DEFAULT|HIGHEST|HIGH", str(attribute))
    return (words[0], words[1]) if len(words) == 2 else _ANY_PRECISION


def _write_precision(pair: tuple[str, str]) -> Any:
    return ir.Attribute.parse("[" + ", ".join(f"#stablehlo<precision {word}>" for word in pair) + "]")


def _repeated(value: Any) -> Callable[[Attributes], Any]:
    """A default of one value for each dim of the window."""
    return lambda own: (value,) * (len(own["window"]) if "window" in own else len(own["numbers"][0]) - 2)


_PRECISION = Part("precision_config", "precision", _read_precision, _write_precision, lambda own: _ANY_PRECISION)
_PADDING = Part("padding", "padding", _read_padding, _write_padding, _repeated((0, 0)))
_REVERSAL = Part(
    "window_reversal",
    "reversal",
    lambda v: tuple(map(bool, ir.DenseBoolArrayAttr(v))),
    lambda v: ir.DenseBoolArrayAttr.get([*v]),
    _repeated(False),
)
_SORTED = Part(
    "indices_are_sorted", "sorted", lambda a: "true" in str(a), lambda v: ir.BoolAttr.get(v), lambda own: False
)
_DIMS = (_integers("dimensions", "dims"),)
_DOTTED = {"lhs_batch": "lhs_batching_dimensions", "rhs_batch": "rhs_batching_dimensions"}
_DOTTED |= {"lhs_contract": "lhs_contracting_dimensions", "rhs_contract": "rhs_contracting_dimensions"}
_GATHERED = {"offset_dims": "offset_dims", "collapsed": "collapsed_slice_dims", "batch": "operand_batching_dims"}
_GATHERED |= {"indices_batch": "start_indices_batching_dims", "index_map": "start_index_map"}
_SCATTERED = {"window_dims": "update_window_dims", "inserted": "inserted_window_dims", "batch": "input_batching_dims"}
_SCATTERED |= {"indices_batch": "scatter_indices_batching_dims", "index_map": "scatter_dims_to_operand_dims"}

#: Name of an operation -> its parts.
PARTS: dict[str, tuple[Part, ...]] = {
    "broadcast_in_dim": (_integers("broadcast_dimensions", "dims"),),
    "compare": (
        _word("comparison_direction", "direction", "comparison_direction"),
        _word("compare_type", "kind", "comparison_type", lambda own: ""),
    ),
    "concatenate": (_integer("dimension", "dim"),),
    "convolution": (
        Part("dimension_numbers", "numbers", _read_numbers, _write_numbers),
        _integers("window_strides", "strides", _repeated(1)),
        _PADDING,
        _integers("lhs_dilation", "lhs_dilation", _repeated(1)),
        _integers("rhs_dilation", "rhs_dilation", _repeated(1)),
        _REVERSAL,
        _integer("feature_group_count", "groups"),
        _integer("batch_group_count", "batch_groups"),
        _PRECISION,
    ),
    "custom_call": (
        Part("call_target_name", "target", lambda a: str(ir.StringAttr(a).value), lambda v: ir.StringAttr.get(v)),
    ),
    "dot_general": (_dimension_numbers("dot_dimension_numbers", "dot", _DOTTED), _PRECISION),
    "dynamic_slice": (_integers("slice_sizes", "sizes"),),
    "gather": (
        _dimension_numbers("dimension_numbers", "gather", _GATHERED, index_dim=True),
        _integers("slice_sizes", "sizes"),
        _SORTED,
    ),
    "iota": (_integer("iota_dimension", "dim"),),
    "pad": (
        _integers("edge_padding_low", "low"),
        _integers("edge_padding_high", "high"),
        _integers("interior_padding", "interior"),
    ),
    "reduce": _DIMS,
    "reduce_window": (
        _integers("window_dimensions", "window"),
        _integers("window_strides", "strides", _repeated(1)),
        _integers("base_dilations", "base_dilation", _repeated(1)),
        _integers("window_dilations", "window_dilation", _repeated(1)),
        _PADDING,
    ),
    "reverse": _DIMS,
    "scatter": (_dimension_numbers("scatter_dimension_numbers", "scatter", _SCATTERED, index_dim=True),),
    "slice": (
        _integers("start_indices", "start"),
        _integers("limit_indices", "limit"),
        _integers("strides", "strides"),
    ),
    "transpose": (_integers("permutation", "permutation"),),
}
#: What says nothing that a rewrite must keep.
_NO_MATTER = {"scatter": {"indices_are_sorted", "unique_indices"}}
_KNOWN = {name: {part.mlir for part in parts} | _NO_MATTER.get(name, set()) for name, parts in PARTS.items()}
#: Operations that are read, and never made.
_READ_ONLY = frozenset({"custom_call", "scatter"})
#: Operations that a rewrite may make of their plain attributes.
WRITTEN = frozenset(PARTS) - _READ_ONLY


def read_attributes(name: str, handle: Any) -> Attributes:
    """The attributes of an MLIR operation as plain values; {} for operations that have no parts."""
    if name not in PARTS:
        return {}
    own: Attributes = {"other": "kept"} if name == "custom_call" else {}
    held = handle.attributes
    for part in PARTS[name]:
        value = part.default(own) if part.default and part.mlir not in held else part.read(held[part.mlir])
        if part.key:
            own[part.key] = value
        else:
            own.update(value)
    others = [key for key in held if key not in _KNOWN[name] and "." not in key]
    return own | ({"other": "; ".join(f"{key} = {held[key]}" for key in others)} if others else {})


def write_attributes(name: str, own: Attributes) -> Attributes:
    """The plain attributes of an operation as MLIR's."""
    if name not in WRITTEN or not own:
        return {}
    written = {part.mlir: part.write(own[part.key] if part.key else own) for part in PARTS[name]}
    return {key: value for key, value in written.items() if value is not None}


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


class Reader:
    """Reads the functions of a module; what one operation was found to say, others that say the same are not asked."""

    def __init__(self) -> None:
        self.values: dict[Any, Value] = {}
        self.types: dict[Any, tuple[tuple[int, ...] | None, str]] = {}
        self.said: dict[tuple[Any, ...], Node] = {}  # name, attributes and types -> the first that says so
        self.position = 0

    def type_of(self, kind: Any) -> tuple[tuple[int, ...] | None, str]:
        """Static shape and element type; shape None for whatever is not a plain static array."""
        shape, dtype = None, str(kind)
        if isinstance(kind, ir.RankedTensorType):
            plain = kind.has_static_shape and kind.encoding is None
            shape, dtype = tuple(kind.shape) if plain else None, str(kind.element_type)
        return self.types.setdefault(kind, (shape, dtype))

    def functions(self, module: Any) -> list[Block]:
        bodies = []
        for view in module.body.operations:
            handle = view.operation
            if handle.name == "func.func" and len(handle.regions[0].blocks) == 1:
                name = ir.StringAttr(handle.attributes["sym_name"]).value
                bodies.append(self.block(handle.regions[0].blocks[0], name, None))
                bodies[-1].module = module
        return bodies

    def block(self, handle: Any, name: str, owner: Node | None) -> Block:
        block = Block(name, owner)
        block.handle = handle
        for argument in handle.arguments:
            value = block.add_argument(*self.type_of(argument.type))
            value.handle = argument
            self.values[argument] = value
        self.fill(block)
        return block

    def fill(self, block: Block) -> None:
        for view in block.handle.operations:
            block.append(self.operation(view.operation))

    def operation(self, handle: Any, operands: Iterable[Value] | None = None) -> Node:
        """An operation; of these ``operands``, where they are known."""
        name, held, regions, values = handle.name.removeprefix(_PREFIX), handle.attributes, handle.regions, self.values
        names, results = [*held] if len(held) else [], [*handle.results]
        types = [self.types.get(kind := result.type) or self.type_of(kind) for result in results]
        does = _body(name, handle) if len(regions) else {}
        try:
            said = name, *names, *[held[key] for key in names], *types, *does.items()
        except TypeError:  # complex numbers have no attribute class
            said = (handle,)
        first = self.said.get(said)
        operands = map(values.__getitem__, handle.operands) if operands is None else operands
        op = Node(name, operands, first.attributes if first else None)
        op.handle, op.read, op.position = handle, tuple(op.operands), self.position
        self.position += 1
        for result, kind in zip(results, types):
            values[result] = value = op.add_result(*kind)
            value.handle = result
        if first is not None:
            op.plain, op.said = first.plain, first.said or first.key
        else:
            op.attributes = {"literal": Literal(handle)} if name == "constant" else read_attributes(name, handle) | does
            op.plain = "." not in "".join(names) and "other" not in op.attributes
            if name != "constant" or op.attributes["literal"].element is not None:
                self.said[said] = op
        if len(regions) and not (does and name in _REDUCTIONS):  # else the attributes say what the body does
            op.blocks = [self.block(body, "", op) for region in regions for body in region.blocks]
        return op


def _body(name: str, handle: Any) -> dict[str, Any]:
    """What rewrites may know of the body of a reduction or a scatter."""
    if name == "scatter" and len(handle.results) == 1:
        *inner, last = (view.operation for view in handle.regions[0].blocks[0].operations)
        monoids = _monoids(inner, last, list(handle.regions[0].blocks[0].arguments)) if len(inner) == 1 else ()
        return {"monoid": monoids[0]} if monoids else {}
    return _reduction(handle) if name in _REDUCTIONS else {}


_REDUCTIONS = frozenset({"reduce", "reduce_window"})


def read_functions(module: Any) -> list[Block]:
    """A Block for the body of every function of the module, in order; each is named after its function."""
    return Reader().functions(module)


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
    blocks = [block for body in bodies for block in walk(body)]
    changed = [block for block in blocks if block.changed]
    with module.context, ir.Location.unknown(module.context):
        for block in changed:
            _retype(block)
        for block in changed:
            _write_block(block)
        for op in (op for block in blocks for op in block.operations):  # give what was read its new operands
            for index, (old, new) in enumerate(zip(op.read, op.operands)):
                if old is not new:
                    op.handle.operands[index] = new.handle
        for block in reversed(changed):
            _erase_dead(block)


def _retype(block: Block) -> None:
    """Arguments of bodies and results of loops and conditionals may have changed their shapes."""
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
        else:
            op.handle.move_before(terminator)


def _erase_dead(block: Block) -> None:
    kept = {op.handle for op in block.operations}
    dead = [view.operation for view in block.handle.operations if view.operation not in kept]
    for handle in reversed(dead):
        handle.erase()


def _tensor(value: Value) -> Any:
    return ir.RankedTensorType.get(value.shape, ir.Type.parse(value.dtype))


def _create(op: Node) -> Any:
    """The operation in MLIR, which gives its results their handles."""
    if op.name == "constant":
        made = _constant(op)
    elif op.name in _REDUCTIONS:
        made = _reduce(op, _named(op))
    else:
        name, operands = op.name if "." in op.name else f"{_PREFIX}{op.name}", [value.handle for value in op.operands]
        made = ir.Operation.create(name, [_tensor(v) for v in op.results], operands, _named(op))
    for value, handle in zip(op.results, made.results):
        value.handle = handle
    return made


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
    array = literal.array() if literal.element is None else None
    if array is not None:  # the bindings take booleans, too, one byte each
        array = np.ascontiguousarray(array.reshape(result.shape))
        value = ir.DenseElementsAttr.get(array, type=kind.element_type, shape=list(array.shape))
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
    results = [_tensor(v) for v in op.results]
    reduce = ir.Operation.create(f"{_PREFIX}{op.name}", results, handles, attributes, regions=1)
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
                _create(op)
            ir.Operation.create("func.return", [], [value.handle for value in outputs])
        return str(module.operation.get_asm())

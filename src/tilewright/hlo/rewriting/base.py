"""What a rewrite is: a frozen dataclass with a name, options as fields, and one sweep over a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from tilewright.hlo.graphs.graph import Block, Node, Value, replace_value
from tilewright.hlo.graphs.mlir import Literal

_NAMES = """abs add and atan2 cbrt ceil clamp compare complex convert cosine count_leading_zeros divide exponential
exponential_minus_one floor imag is_finite log log_plus_one logistic maximum minimum multiply negate not or popcnt
power real reduce_precision remainder round_nearest_afz round_nearest_even rsqrt select shift_left
shift_right_arithmetic shift_right_logical sign sine sqrt subtract tan tanh xor
chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.bessel_i1e chlo.conj chlo.cosh chlo.digamma
chlo.erf chlo.erf_inv chlo.erfc chlo.is_inf chlo.is_neg_inf chlo.is_pos_inf chlo.lgamma chlo.next_after
chlo.polygamma chlo.sinh chlo.square chlo.tan chlo.zeta"""
#: Operations that act on each element alone, so that they commute with every reshape.
ELEMENTWISE = frozenset(_NAMES.split())

#: Operations without effects that rewrites understand, make and may drop.
PURE = ELEMENTWISE | {"bitcast_convert", "broadcast_in_dim", "constant", "iota", "reduce", "reshape", "transpose"}


def is_elementwise(op: Node) -> bool:
    """Whether ``op`` commutes with every reshape and transpose of its operands.

    A ``bitcast_convert`` does as long as it keeps the shape: between types of one width.
    """
    return op.name in ELEMENTWISE or (op.name == "bitcast_convert" and op.operands[0].shape == op.result.shape)


def is_static(*values: Value) -> bool:
    """Whether every value is an array of known shape without a dim of size 0."""
    return all(v.shape is not None and 0 not in v.shape for v in values)


def made_by(value: Value, name: str) -> Node | None:
    """The operation called ``name`` that makes ``value``, if rewrites may look through it: plain, static operands."""
    op = value.operation
    return op if op is not None and op.name == name and op.plain and is_static(*op.operands) else None


class Maker:
    """Makes operations for one place in a block; the obvious simplifications happen as they are made.

    >>> block = Block()
    >>> x = block.add_argument((8, 256), "f32")
    >>> make = Maker(block)
    >>> make.reshape(make.reshape(x, (8, 32, 8)), (8, 256)) is x
    True
    """

    def __init__(self, block: Block, like: Node | None = None, sweep: dict[Any, Any] | None = None) -> None:
        self.block, self.like = block, like
        self.sweep = {} if sweep is None else sweep  # what a rewrite learnt in this sweep of the block

    def operation(
        self,
        name: str,
        operands: Sequence[Value],
        shape: Sequence[int],
        dtype: str,
        attributes: dict[str, Any] | None = None,
    ) -> Value:
        """Any operation with one result."""
        op = Node(name, operands, attributes)
        if self.like is not None:
            op.like, op.position = self.like.lender, self.like.position
        self.block.append(op)
        return op.add_result(tuple(shape), dtype)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """``value`` in another shape; reshapes do not pile up."""
        source = value
        while source.operation is not None and source.operation.name == "reshape":
            source = source.operation.operands[0]
            if not is_static(source):
                source = value
                break
        if source.shape == tuple(shape):
            return source
        return self.operation("reshape", [source], shape, source.dtype)

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """``numpy.transpose``; transposes do not pile up, and the identity makes nothing."""
        inner = value.operation
        if inner is not None and inner.name == "transpose" and inner.plain:
            value, first = inner.operands[0], inner.attributes["permutation"]
            permutation = [first[d] for d in permutation]
        if list(permutation) == list(range(len(permutation))):
            return value
        shape = [value.sizes[d] for d in permutation]
        return self.operation("transpose", [value], shape, value.dtype, {"permutation": tuple(permutation)})

    def broadcast(self, value: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
        """``broadcast_in_dim``; one that changes nothing makes nothing."""
        if value.shape == tuple(shape) and list(dims) == list(range(len(dims))):
            return value
        return self.operation("broadcast_in_dim", [value], shape, value.dtype, {"dims": tuple(dims)})

    def constant(self, element: str, dtype: str, shape: Sequence[int] = ()) -> Value:
        """One repeated element, given as MLIR writes it."""
        return self.operation("constant", [], shape, dtype, {"literal": Literal(element=element)})

    def iota(self, size: int, dtype: str) -> Value:
        """``[0, 1, ..., size - 1]``."""
        return self.operation("iota", [], (size,), dtype, {"dim": 0})

    def relaid(self, constant: Node, shape: Sequence[int]) -> Value:
        """A constant's elements in another shape."""
        return self.operation("constant", [], shape, constant.result.dtype, dict(constant.attributes))

    def turned(self, constant: Node, permutation: Sequence[int]) -> Value:
        """A constant, transposed at compile time."""
        shape, literal = constant.result.shape or (), constant.attributes["literal"]
        turned = {"literal": literal.transposed(shape, tuple(permutation))}
        return self.operation("constant", [], [shape[d] for d in permutation], constant.result.dtype, turned)

    def convert(self, value: Value, dtype: str) -> Value:
        """``value`` in another element type."""
        return value if value.dtype == dtype else self.operation("convert", [value], value.sizes, dtype)

    def reduce(self, value: Value, init: Value, dims: Sequence[int], monoid: str) -> Value:
        """Reduce ``dims`` of one array from ``init``."""
        shape = [size for d, size in enumerate(value.sizes) if d not in dims]
        attributes = {"dims": tuple(sorted(dims)), "monoid": monoid}
        return self.operation("reduce", [value, init], shape, value.dtype, attributes)

    def reduces(self, op: Node, values: Sequence[Value], inits: Sequence[Value], dims: Sequence[int]) -> list[Value]:
        """The reduction ``op`` of several arrays, of others; its body goes with it."""
        shape = tuple(size for d, size in enumerate(values[0].sizes) if d not in dims)
        reduce = Node("reduce", [*values, *inits], {**op.attributes, "dims": tuple(sorted(dims))})
        reduce.like, reduce.position = op.lender, op.position
        self.block.append(reduce)
        return [reduce.add_result(shape, value.dtype) for value in values]

    def same(self, op: Node, operands: Sequence[Value], shape: Sequence[int]) -> Value:
        """The elementwise ``op`` on other operands of another shape; its own attributes go with it."""
        return Maker(self.block, op).operation(op.name, operands, shape, op.result.dtype, dict(op.attributes))


def pass_text(step: Any) -> str:
    """A rewrite as pipelines name it: its name, and in braces the options that differ from their defaults."""
    changed = [(f.name, getattr(step, f.name)) for f in fields(step) if getattr(step, f.name) != f.default]
    options = " ".join(f"{key}={str(value).lower()}" for key, value in changed)
    return f"{step.name}{{{options}}}" if options else str(step.name)


def option(default: bool | int, summary: str) -> Any:
    """A dataclass field that is an option, with one line that ``--list-passes`` shows."""
    return field(default=default, metadata={"summary": summary})


@dataclass(frozen=True)
class Rewrite:
    """One named step of a pipeline. ``str()`` prints it with the options that differ from their defaults."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def apply(self, block: Block) -> int:
        """Rewrite the operations of ``block`` (not of nested ones); returns how many places changed."""
        raise NotImplementedError

    def __str__(self) -> str:
        """``reduce-of-reshape`` or ``reduce-of-reshape{allow_reassociation=false}``."""
        return pass_text(self)


@dataclass(frozen=True)
class LocalRewrite(Rewrite):
    """A rewrite that looks at one operation at a time and may give new values for its results.

    ``roots`` names the operations it looks at, so that a sweep passes by all others; empty for all.
    """

    roots: ClassVar[frozenset[str]] = frozenset()

    def rewrite(self, op: Node, make: Maker) -> Value | None:
        """The value to use instead of the only result of ``op``, or None to leave it."""
        raise NotImplementedError

    def rewrite_all(self, op: Node, make: Maker) -> list[Value] | None:
        """The values to use instead of all results of ``op``, or None to leave it."""
        value = self.rewrite(op, make) if len(op.results) == 1 and op.plain else None
        return None if value is None else [value]

    def apply(self, block: Block) -> int:
        """One sweep in order, new operations taking the place of the one they replace."""
        count = 0
        sweep: dict[Any, Any] = {}
        old, block.operations = block.operations, []
        for op in old:
            looks = not self.roots or op.name in self.roots
            values = self.rewrite_all(op, Maker(block, op, sweep)) if looks else None
            if values is None:
                block.operations.append(op)
                continue
            for result, value in zip(op.results, values):
                replace_value(result, value)
            op.drop()
            count += 1
        block.changed |= count > 0
        return count

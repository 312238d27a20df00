"""Which operations rewrites understand, and ``Maker``, which makes them and simplifies the obvious as it does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from tilewright.hlo.graphs.graph import Block, Node, Value
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
PURE = ELEMENTWISE | {
    "bitcast_convert", "broadcast_in_dim", "concatenate", "constant", "convolution", "dot_general", "dynamic_slice",
    "gather", "iota", "pad", "reduce", "reduce_window", "reshape", "reverse", "slice", "transpose",
}  # fmt: skip

#: What only moves elements: every element of the operand stands once in the result, in another shape or order.
MOVES = frozenset({"reshape", "transpose"})
#: What moves elements or repeats them.
MOVES_AND_REPEATS = MOVES | {"broadcast_in_dim"}


def is_elementwise(op: Node) -> bool:
    """Whether ``op`` commutes with every reshape and transpose of its operands.

    A ``bitcast_convert`` does as long as it keeps the shape: between types of one width.
    """
    return op.name in ELEMENTWISE or (op.name == "bitcast_convert" and op.operands[0].shape == op.result.shape)


def is_static(*values: Value) -> bool:
    """Whether every value is an array of known shape without a dim of size 0."""
    return not [value for value in values if value.shape is None or 0 in value.shape]


def made_by(value: Value, *names: str) -> Node | None:
    """The operation of one of these names that makes ``value``, if rewrites may look through it, else None.

    They may where it carries no attributes of foreign dialects and the shapes of its operands are known.
    """
    op = value.operation
    return op if op is not None and op.name in names and op.plain and is_static(*op.operands) else None


class Maker:
    """Makes operations for one place in a block; the obvious simplifications happen as they are made.

    >>> block = Block()
    >>> x = block.add_argument((8, 256), "f32")
    >>> make = Maker(block)
    >>> make.reshape(make.reshape(x, (8, 32, 8)), (8, 256)) is x
    True
    """

    def __init__(self, block: Block, like: Node | None = None) -> None:
        self.block, self.like = block, like
        self.sweep: dict[Any, Any] = {}  # what a rewrite has found out in this sweep of the block

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

    def reshaped_constant(self, constant: Node, shape: Sequence[int]) -> Value:
        """A constant's elements in another shape of the same size."""
        return self.operation("constant", [], shape, constant.result.dtype, dict(constant.attributes))

    def transposed_constant(self, constant: Node, permutation: Sequence[int]) -> Value:
        """A constant, transposed at compile time."""
        shape, literal = constant.result.shape or (), constant.attributes["literal"]
        attributes = {"literal": literal.transposed(shape, tuple(permutation))}
        return self.operation("constant", [], [shape[d] for d in permutation], constant.result.dtype, attributes)

    def convert(self, value: Value, dtype: str) -> Value:
        """``value`` in another element type."""
        return value if value.dtype == dtype else self.operation("convert", [value], value.sizes, dtype)

    def reduce(self, value: Value, init: Value, dims: Sequence[int], monoid: str) -> Value:
        """Reduce ``dims`` of one array from ``init``."""
        shape = [size for d, size in enumerate(value.sizes) if d not in dims]
        attributes = {"dims": tuple(sorted(dims)), "monoid": monoid}
        return self.operation("reduce", [value, init], shape, value.dtype, attributes)

    def reduce_several(
        self, op: Node, values: Sequence[Value], inits: Sequence[Value], dims: Sequence[int]
    ) -> list[Value]:
        """Reduce other arrays together by the body of ``op``, a reduction of as many arrays; one result for each."""
        shape = tuple(size for d, size in enumerate(values[0].sizes) if d not in dims)
        reduce = Node("reduce", [*values, *inits], {**op.attributes, "dims": tuple(sorted(dims))})
        reduce.like, reduce.position = op.lender, op.position
        self.block.append(reduce)
        return [reduce.add_result(shape, value.dtype) for value in values]

    def elementwise(self, op: Node, operands: Sequence[Value], shape: Sequence[int]) -> Value:
        """The elementwise ``op``, with its attributes, on other operands, which have another shape."""
        return Maker(self.block, op).operation(op.name, operands, shape, op.result.dtype, op.attributes)

    # Arithmetic.

    def binary(self, name: str, left: Value, right: Value) -> Value:
        """An elementwise operation of two operands of one shape: ``add``, ``multiply``, ``maximum`` ..."""
        return self.operation(name, [left, right], left.sizes, left.dtype)

    def total(self, values: Iterable[Value], name: str = "add") -> Value:
        """The values added up one after the other, or combined by another operation of two operands."""
        return reduce(partial(self.binary, name), values)

    def compare(self, left: Value, right: Value, direction: str) -> Value:
        """``EQ NE GE GT LE LT`` of two operands of one shape, as i1."""
        attributes = {"direction": direction, "kind": _comparison_kind(left.dtype)}
        return self.operation("compare", [left, right], left.sizes, "i1", attributes)

    def select(self, predicate: Value, then: Value, otherwise: Value) -> Value:
        """``where(predicate, then, otherwise)``; the predicate has their shape or none."""
        return self.operation("select", [predicate, then, otherwise], then.sizes, then.dtype)

    def in_range(self, index: Value, count: int) -> Value:
        """Whether each index is 0 at least and below ``count``."""
        ends = (self.full(str(end), index.dtype, index.sizes) for end in (0, count))
        return self.binary("and", *(self.compare(index, end, way) for end, way in zip(ends, ("GE", "LT"))))

    def full(self, element: str, dtype: str, shape: Sequence[int]) -> Value:
        """A scalar constant spread over ``shape``, as JAX writes one."""
        return self.broadcast(self.constant(element, dtype), shape, ())

    def iota(self, shape: Sequence[int], dim: int, dtype: str = "i32") -> Value:
        """``0, 1, 2, ...`` along dim ``dim`` of ``shape``."""
        return self.operation("iota", [], shape, dtype, {"dim": dim})

    # Products and windows.

    def dot(
        self,
        left: Value,
        right: Value,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: str | None = None,
        precision: tuple[str, str] = ("DEFAULT", "DEFAULT"),
    ) -> Value:
        """``dot_general``: the result has the batch dims, then the left's free dims, then the right's."""
        free_left = [d for d in range(len(left.sizes)) if d not in (*contract[0], *batch[0])]
        free_right = [d for d in range(len(right.sizes)) if d not in (*contract[1], *batch[1])]
        shape = [left.sizes[d] for d in (*batch[0], *free_left)] + [right.sizes[d] for d in free_right]
        attributes = {
            "lhs_batch": tuple(batch[0]), "rhs_batch": tuple(batch[1]),
            "lhs_contract": tuple(contract[0]), "rhs_contract": tuple(contract[1]), "precision": precision,
        }  # fmt: skip
        return self.operation("dot_general", [left, right], shape, dtype or left.dtype, attributes)

    def group_matrix(self, members: int, group: int, dtype: str, repeats: bool = False) -> Value:
        """The 0/1 matrix [members, members // group] that sums groups of neighbours: 1 at ``[i, i // group]``.

        With ``repeats`` its transpose, which repeats each element ``group`` times.
        """
        shape = (members // group, members) if repeats else (members, members // group)
        members_, groups = self.iota(shape, int(repeats)), self.iota(shape, int(not repeats))
        of = self.binary("divide", members_, self.full(str(group), "i32", shape))
        return self.convert(self.compare(of, groups, "EQ"), dtype)

    def convolution(self, value: Value, kernel: Value, dtype: str, own: Mapping[str, Any]) -> Value:
        """A convolution with all the attributes that ``graphs/mlir.py`` gives one; in groups of channels too."""
        numbers, spatial = own["numbers"], []
        for k, (stride, pads) in enumerate(zip(own["strides"], own["padding"])):
            size = (value.sizes[numbers[0].index(str(k))] - 1) * own["lhs_dilation"][k] + 1 + sum(pads)
            window = (kernel.sizes[numbers[1].index(str(k))] - 1) * own["rhs_dilation"][k] + 1
            spatial.append((size - window) // stride + 1)
        named = {"b": value.sizes[numbers[0].index("b")], "f": kernel.sizes[numbers[1].index("o")]}
        shape = [named[letter] if letter in named else spatial[int(letter)] for letter in numbers[2]]
        return self.operation("convolution", [value, kernel], shape, dtype, dict(own))

    def reduce_window(self, value: Value, init: Value, own: Mapping[str, Any]) -> Value:
        """Reduce undilated windows; ``own`` are all the attributes of a ``reduce_window``, its ``monoid`` included."""
        dims = zip(value.sizes, own["padding"], own["window"], own["strides"])
        shape = [(size + sum(pads) - window) // stride + 1 for size, pads, window, stride in dims]
        return self.operation("reduce_window", [value, init], shape, value.dtype, dict(own))

    # Parts of arrays.

    def slice(
        self, value: Value, start: Sequence[int], limit: Sequence[int], strides: Sequence[int] | None = None
    ) -> Value:
        """``value[start:limit:stride]`` in every dim; the whole array makes nothing."""
        steps = tuple(strides or (1,) * len(value.sizes))
        if tuple(limit) == value.sizes and not any(start) and set(steps) <= {1}:
            return value
        shape = [-(-(b - a) // step) for a, b, step in zip(start, limit, steps)]
        attributes = {"start": tuple(start), "limit": tuple(limit), "strides": steps}
        return self.operation("slice", [value], shape, value.dtype, attributes)

    def part(self, value: Value, dim: int, start: int, limit: int, stride: int = 1) -> Value:
        """``value[..., start:limit:stride, ...]`` in one dim."""
        rank = len(value.sizes)
        starts = [start if d == dim else 0 for d in range(rank)]
        limits = [limit if d == dim else size for d, size in enumerate(value.sizes)]
        return self.slice(value, starts, limits, [stride if d == dim else 1 for d in range(rank)])

    def concatenate(self, values: Sequence[Value], dim: int) -> Value:
        """The arrays behind each other in ``dim``."""
        if len(values) == 1:
            return values[0]
        shape = list(values[0].sizes)
        shape[dim] = sum(value.sizes[dim] for value in values)
        return self.operation("concatenate", values, shape, values[0].dtype, {"dim": dim})

    def pad(self, value: Value, fill: Value, low: Sequence[int], high: Sequence[int]) -> Value:
        """Elements of the scalar ``fill`` before and after those of ``value``, so many in each dim."""
        shape = [before + size + after for size, before, after in zip(value.sizes, low, high)]
        attributes = {"low": tuple(low), "high": tuple(high), "interior": (0,) * len(shape)}
        return self.operation("pad", [value, fill], shape, value.dtype, attributes)


def _comparison_kind(dtype: str) -> str:
    if dtype.startswith(("ui", "i1")) and dtype not in ("i16", "i128"):
        return "UNSIGNED"
    return "SIGNED" if dtype.startswith(("i", "si")) else "FLOAT"


def precision_for_zero_one(dtype: str) -> tuple[str, str]:
    """What a product of a 0/1 matrix and values of ``dtype`` needs to be exact: nothing for bf16, all passes for f32.

    >>> precision_for_zero_one("f32")
    ('HIGHEST', 'HIGHEST')
    """
    return ("DEFAULT", "DEFAULT") if dtype == "bf16" else ("HIGHEST", "HIGHEST")

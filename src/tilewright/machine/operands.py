"""A program's layers as an NPU with lanes has them: which tensors, in which storage, cut along which dims.

    images    [n, c, h, w]     channels go round the NPUs, aligned to the execution unit
    weights   [oc, ic, kh, kw] output channels go round the NPUs, input channels side by side
    matrices  [rows, columns]  rows go round the NPUs (Sophgo's matrix2); whatever is no image is one

Layers are those of the matrix unit's compiler: a product with what is done to its sums, a region of work on elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from tilewright.hlo import Node, Value, array_dtype
from tilewright.isa import Compiled
from tilewright.layout import lane_matrix2, lane_weights, lanes
from tilewright.layout.index.types import dtype_name
from tilewright.layout.kinds.lanes import LaneLayout
from tilewright.targets import LaneMemory

Sizes = Mapping[str, int]
"""How much of each axis of a layer is worked on at once."""
_UNTOUCHED = frozenset({"broadcast_in_dim", "reshape", "transpose", "slice", "constant", "iota"})


@dataclass(frozen=True)
class Axis:
    """A dim along which a layer may be cut, and its size."""

    name: str
    size: int


@dataclass(frozen=True)
class Operand:
    """A tensor of a layer. ``role``: ``in``, ``out`` or ``work`` (made and used inside).

    ``place(sizes)``: its layout for a slice, the whole without sizes; ``axes``: those it is cut along. ``root``: the
    value it is, ``key``: the same as it is stored, None where it is transposed on its way.
    """

    name: str
    role: str
    place: Callable[[Sizes], LaneLayout]
    axes: frozenset[str]
    bits: int
    root: Value
    key: tuple[Any, ...] | None = None

    def bytes(self, sizes: Sizes) -> int:
        """Bytes of a slice's elements, without padding."""
        return self.place(sizes).num_elements * self.bits // 8


@dataclass(frozen=True)
class NpuLayer:
    """``operands`` of one layer, ``instructions`` as lists of their names, ``axes`` that it may be cut along."""

    name: str
    operands: tuple[Operand, ...]
    instructions: tuple[tuple[str, ...], ...]
    axes: tuple[Axis, ...]

    @property
    def whole(self) -> dict[str, int]:
        return {axis.name: axis.size for axis in self.axes}


def layers_of(compiled: Compiled, memory: LaneMemory) -> Iterator[NpuLayer]:
    reader = _Reader(compiled.lowering.reading, memory)
    for step in compiled.lowering.steps:
        if any(node.name not in _UNTOUCHED for node in step.nodes) and step.outputs:
            yield reader.layer(step.name, step.nodes, step.outputs)


class _Reader:
    def __init__(self, reading: Any, memory: LaneMemory) -> None:
        self.reading, self.memory = reading, memory
        self.images: dict[Value, str] = {}

    def layer(self, name: str, nodes: Sequence[Node], outputs: Sequence[Value]) -> NpuLayer:
        """One layer: its tensors, and every node as an instruction on them."""
        fixed = self.reading.fixed
        computing = [n for n in nodes if n.name not in _UNTOUCHED and not fixed.issuperset(n.results)]
        product = next((node for node in computing if node.name in ("dot_general", "convolution")), None)
        if product is not None and product.name == "convolution":
            shaped: _Dims = _Convolution(self, product)
        elif product is not None:
            shaped = _Product(product)
        else:
            shaped = _Elements(self, computing, outputs)
        sums = [node for node in computing if node.name == "reduce"]
        if product is not None and sums:  # of what a product makes: along whole rows at most
            kept = ("batch", "rows") if all(map(_sums_last_dim, sums)) else ()
            shaped.axes = tuple(axis for axis in shaped.axes if axis.name in kept)
        for value in (*outputs, *(v for node in computing for v in node.results)):
            if shaped.order and len(value.sizes) == 4:
                self.images[value] = shaped.order
        return _Layer(self, name, shaped).build(computing, outputs)

    def order(self, value: Value) -> str:
        """The letters of an image's dims, such as ``b01f``; "" for what is no image."""
        while value.operation is not None and value.operation.name == "reshape":
            value = value.operation.operands[0]
        return self.images.get(value, "") if len(value.sizes) == 4 else ""


_Stored = tuple[Callable[[Sizes], LaneLayout], frozenset[str]]
"""The layout of a slice, and the axes that it depends on."""
_KINDS: dict[str, Callable[..., LaneLayout]] = {
    "images": lanes,
    "compact images": partial(lanes, mode="compact"),
    "weights": lane_weights,
    "matrix": lambda shape, dtype, memory: lane_matrix2(shape[0], shape[1], dtype, memory),
}


def _stored(kind: str, dims: Sequence[Sequence[str | int]], whole: Sizes, value: Value, memory: LaneMemory) -> _Stored:
    """``value`` stored as ``kind``: each dim is a product of numbers and of axes, which are ``whole`` where uncut."""
    dtype = _dtype(value)

    def place(sizes: Sizes) -> LaneLayout:
        full = {**whole, **sizes}
        shape = tuple(prod(full[size] if isinstance(size, str) else size for size in dim) for dim in dims)
        return _KINDS[kind](shape, dtype, memory)

    return place, frozenset(size for dim in dims for size in dim if isinstance(size, str))


def _whole_matrix(value: Value, memory: LaneMemory) -> _Stored:
    rows, columns = _rows_and_columns(value.sizes)
    return _stored("matrix", [[rows], [columns]], {}, value, memory)


class _Dims:
    """What the values of a layer are cut along."""

    order = ""
    axes: tuple[Axis, ...] = ()
    node: Node | None = None  # the product, where the layer is one

    def place(self, value: Value, memory: LaneMemory) -> _Stored:
        """How a value of the layer is stored."""
        raise NotImplementedError

    def is_operand(self, value: Value) -> bool:
        """Whether it is an operand of the product itself, and not of what is done to the sums."""
        return self.node is not None and value in self.node.operands

    def is_transposed(self, value: Value) -> bool:
        """Whether the layer wants the elements of a value in another order than they are in."""
        return False


def _dtype(value: Value) -> str:
    name = dtype_name(array_dtype(value))
    return "u8" if name == "pred" else name


class _Convolution(_Dims):
    node: Node

    def __init__(self, reader: _Reader, node: Node) -> None:
        own = node.attributes
        self.node, self.numbers = node, own["numbers"]
        self.order = self.numbers[2]
        x, w, out = node.operands[0].sizes, node.operands[1].sizes, node.result.sizes
        self.x = {letter: x[k] for k, letter in enumerate(self.numbers[0])}
        self.w = {letter: w[k] for k, letter in enumerate(self.numbers[1])}
        self.out = {letter: out[k] for k, letter in enumerate(self.numbers[2])}
        self.groups = own["groups"]
        cut = [Axis("n", self.out["b"]), Axis("h", self.out["0"])]
        if self.groups in (1, self.x["f"]):
            cut.append(Axis("c", self.out["f"]))
        self.axes = tuple(axis for axis in cut if axis.size > 1)
        reader.images.setdefault(node.operands[0], self.numbers[0])

    def _rows(self, rows: int) -> int:
        """Input rows that so many output rows need."""
        own = self.node.attributes
        window = (self.w["0"] - 1) * own["rhs_dilation"][0] + 1
        return min(int(self.x["0"]), int((rows - 1) * own["strides"][0] + window))

    def place(self, value: Value, memory: LaneMemory) -> _Stored:
        out, x, w = self.out, self.x, self.w
        whole = {"n": out["b"], "h": out["0"], "c": out["f"]}
        if value is self.node.operands[1]:
            return _stored("weights", [["c"], [w["i"]], [w["0"]], [w["1"]]], whole, value, memory)
        if value is self.node.operands[0]:
            dtype, depthwise = _dtype(value), 1 < self.groups == x["f"]

            def image(sizes: Sizes) -> LaneLayout:
                full = {**whole, **sizes}
                depth = full["c"] * x["f"] // out["f"] if depthwise else x["f"]
                return lanes((full["n"], max(1, depth), self._rows(full["h"]), x["1"]), dtype, memory)

            return image, frozenset({"n", "h", "c"} if depthwise else {"n", "h"})
        if prod(value.sizes) == prod(self.node.result.sizes):
            return _stored("images", [["n"], ["c"], ["h"], [out["1"]]], whole, value, memory)
        if prod(value.sizes) == out["f"]:
            return _stored("compact images", [[1], ["c"], [1], [1]], whole, value, memory)
        return _whole_matrix(value, memory)


def _rows_and_columns(sizes: Sequence[int]) -> tuple[int, int]:
    return prod(sizes[:-1]), sizes[-1] if sizes else 1


class _Product(_Dims):
    node: Node

    def __init__(self, node: Node) -> None:
        self.node = node
        (a, b), (left, right) = (operand.sizes for operand in node.operands), node.side_dims
        self.batch, self.m, self.k = (prod(a[d] for d in dims) for dims in left)
        self.n = prod(b[d] for d in right[1])
        cut = (Axis("batch", self.batch), Axis("rows", self.m), Axis("columns", self.n))
        self.axes = tuple(axis for axis in cut if axis.size > 1)

    def is_transposed(self, value: Value) -> bool:
        """Batch, rows and depth, or batch, depth and columns, is the order wanted."""
        if not self.is_operand(value):
            return False
        left = value is self.node.operands[0]
        batch, free, depth = self.node.side_dims[0 if left else 1]
        return (*batch, *((*free, *depth) if left else (*depth, *free))) != tuple(range(len(value.sizes)))

    def place(self, value: Value, memory: LaneMemory) -> _Stored:
        whole, size = {"batch": self.batch, "rows": self.m, "columns": self.n}, prod(value.sizes)
        dims: list[list[str | int]] = [["batch", "rows"], ["columns"]]
        if value is self.node.operands[0]:
            dims = [["batch", "rows"], [self.k]]
        elif value is self.node.operands[1]:
            dims = [["batch", self.k], ["columns"]]
        elif size == self.n != self.batch * self.m * self.n:
            dims = [[1], ["columns"]]
        elif size != self.batch * self.m * self.n:
            return _whole_matrix(value, memory)
        return _stored("matrix", dims, whole, value, memory)


class _Elements(_Dims):
    """Work on elements: cut along rows, where only rows are summed up, else along images, or channels of images.

    A sum over what is cut may only be a result: then all slices add up to it, and it stands there whole.
    """

    def __init__(self, reader: _Reader, nodes: Sequence[Node], outputs: Sequence[Value]) -> None:
        values = [v for node in nodes for v in (*node.operands, *node.results)]
        self.order = next((order for v in values if (order := reader.order(v))), "")
        largest = max(values, key=lambda v: prod(v.sizes))
        self.rows, self.columns = _rows_and_columns(largest.sizes)
        self.first = largest.sizes[0] if largest.sizes else 1
        self.added: dict[Value, set[str]] = {}
        sums = [node for node in nodes if node.name == "reduce"]
        self.sizes = {"n": self.first, "c": 1}
        if self.order and len(largest.sizes) == 4:
            self.sizes = {name: largest.sizes[self.order.index(of)] for name, of in (("n", "b"), ("c", "f"))}
        elif not self.order and all(map(_sums_last_dim, sums)):
            self.sizes = {"rows": self.rows}
        used = {reader.reading.root(v) for node in nodes for v in node.operands}
        axes = [] if any(node.name in _WHOLE for node in nodes) else list(self.sizes)
        for node in sums if "rows" not in self.sizes else ():
            over = [axis for axis in self.sizes if self._over(node, axis)]
            if any(v in used for v in node.results):
                axes = [axis for axis in axes if axis not in over]
            for value in node.results:
                self.added[value] = set(over)
            if self.order and len(node.operands[0].sizes) != 4:  # channels may be in groups there
                axes = [axis for axis in axes if axis != "c"]
        self.axes = tuple(Axis(name, self.sizes[name]) for name in axes if self.sizes[name] > 1)

    def _over(self, node: Node, axis: str) -> bool:
        """Whether a sum is over an axis: images, or channels of images."""
        sizes, dims = node.operands[0].sizes, node.attributes["dims"]
        if self.order and len(sizes) == 4:
            return self.order.index("b" if axis == "n" else "f") in dims
        return axis == "n" and 0 in dims and sizes[:1] == (self.first,)

    def place(self, value: Value, memory: LaneMemory) -> _Stored:
        place, axes = self._place(value, memory)
        whole = self.added.get(value, set()) & axes
        if not whole:
            return place, axes
        return lambda s: place({axis: size for axis, size in s.items() if axis not in whole}), axes - whole

    def _place(self, value: Value, memory: LaneMemory) -> _Stored:
        size, own = prod(value.sizes), value.sizes
        if self.order and len(own) == 4:
            named = dict(zip(self.order, own, strict=True))
            first: list[list[str | int]] = [
                [axis if named[of] == self.sizes[axis] > 1 else named[of]] for axis, of in (("n", "b"), ("c", "f"))
            ]
            return _stored("images", [*first, [named["0"]], [named["1"]]], self.sizes, value, memory)
        if self.order and size == self.sizes["c"] > 1:
            return _stored("compact images", [[1], ["c"], [1], [1]], self.sizes, value, memory)
        if "rows" in self.sizes and size and size % self.rows == 0 and size >= self.rows:
            return _stored("matrix", [["rows"], [size // self.rows]], self.sizes, value, memory)
        if own[:1] == (self.sizes.get("n"),) and len(own) > 1:
            rows, columns = _rows_and_columns(own[1:])
            return _stored("matrix", [["n", rows], [columns]], self.sizes, value, memory)
        return _whole_matrix(value, memory)


def _sums_last_dim(node: Node) -> bool:
    return tuple(node.attributes["dims"]) == (len(node.operands[0].sizes) - 1,)


_WHOLE = frozenset(
    {"sort", "scatter", "gather", "select_and_scatter", "dynamic_slice", "dynamic_update_slice", "reverse"}
)


class _Layer:
    """The tensors of one layer as its nodes are met; what is made and used inside shares slots."""

    def __init__(self, reader: _Reader, name: str, dims: _Dims) -> None:
        self.reader, self.name, self.dims = reader, name, dims
        self.operands: dict[str, Operand] = {}
        self.names: dict[Value, str] = {}
        self.free: list[str] = []

    def build(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> NpuLayer:
        reading = self.reader.reading
        results = {reading.root(v) for v in outputs}
        last = {reading.root(v): k for k, node in enumerate(nodes) for v in node.operands}
        instructions = []
        for k, node in enumerate(nodes):
            used = [name for v in node.operands if (name := self._operand_of(v))]
            ending = [v for v in node.operands if last[reading.root(v)] == k and reading.root(v) not in results]
            for value in ending:  # an operation on elements writes over what it reads last
                slot = self.names.get(reading.root(value), "")
                if slot.startswith("work") and slot not in self.free:
                    self.free.append(slot)
            for value in node.results:
                used.append(self._result(value, value in results))
            instructions.append(tuple(dict.fromkeys(used)))
        return NpuLayer(self.name, tuple(self.operands.values()), tuple(instructions), self.dims.axes)

    def _operand_of(self, value: Value) -> str:
        reading = self.reader.reading
        root = reading.root(value)
        if root in self.names:
            return self.names[root]
        if prod(value.sizes) <= 1 or reading.number(value) is not None:
            return ""
        return self._add("in", value if self.dims.is_operand(value) else root, root)

    def _result(self, value: Value, output: bool) -> str:
        if output:
            return self._add("out", value, value)
        place, axes = self._placed(value)
        bits = array_dtype(value).itemsize * 8
        for name in self.free:
            slot = self.operands[name]
            if slot.axes == axes and slot.bits == bits and slot.place({}).shape == place({}).shape:
                self.free.remove(name)
                self.names[value] = name
                return name
        return self._add("work", value, value)

    def _placed(self, value: Value) -> _Stored:
        place, axes = self.dims.place(value, self.reader.memory)
        return place, axes & frozenset(axis.name for axis in self.dims.axes)

    def _add(self, role: str, value: Value, root: Value) -> str:
        name = f"{role}{len(self.operands)} {_dtype(value)}[{','.join(map(str, value.sizes))}]"
        place, axes = self._placed(value)
        bits = array_dtype(value).itemsize * 8
        plain = role != "work" and _only_reshaped(value, root) and not self.dims.is_transposed(value)
        key = (root, place({}).tensor, place({}).mode) if plain else None
        self.operands[name] = Operand(name, role, place, axes, bits, root, key)
        self.names[root] = name
        return name


def _only_reshaped(value: Value, root: Value) -> bool:
    """Whether ``value`` is ``root`` in its own order of elements, perhaps with other dims."""
    while value is not root:
        if value.operation is None or value.operation.name != "reshape":
            return False
        value = value.operation.operands[0]
    return True

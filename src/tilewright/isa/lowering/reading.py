"""A program as the compiler sees it: operations that do something, constants by value, groups that are one layer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilewright.hlo import Block, Node, Value, XlaValues, array_dtype, inputs_of
from tilewright.isa.language.errors import Array
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.layout.index.types import dtype_name

LAYOUT = frozenset({"broadcast_in_dim", "reshape", "transpose", "slice", "reverse"})
"""Operations that only say which elements; nothing is done for them until the elements are used."""
MOVING = frozenset({
    "broadcast_in_dim", "reshape", "transpose", "slice", "reverse", "concatenate", "pad", "gather", "dynamic_slice",
    "dynamic_update_slice", "iota", "constant", "optimization_barrier", "bitcast_convert", "real_dynamic_slice",
})  # fmt: skip
"""Operations without arithmetic."""
_IMPURE = frozenset({"custom_call", "rng", "rng_bit_generator", "infeed", "while", "case", "if"})


def machine_type(value: Value) -> str | None:
    """The machine's name of a value's element type (booleans are bytes), None for one it has not, or no array."""
    if value.shape is None or 0 in value.shape:
        return None
    dtype = array_dtype(value)
    name = "u8" if dtype.kind == "b" else dtype_name(dtype)
    return name if name in ELEMENT_TYPES else None


@dataclass
class Reading:
    """``nodes``: alive, neither constant nor :data:`LAYOUT`; ``constants``: arrays of those that nodes use."""

    block: Block
    xla: XlaValues
    nodes: list[Node] = field(default_factory=list)
    constants: dict[Value, Array] = field(default_factory=dict)
    fixed: set[Value] = field(default_factory=set)

    @classmethod
    def of(cls, block: Block, apart: bool = False) -> Reading:
        """Read it; constants are computed by XLA, all in one call, for a text in a process of its own (``apart``)."""
        reading = cls(block, XlaValues(apart))
        alive = _alive(block)
        for node in alive:
            known = all(v.shape is not None for v in node.results)
            known &= reading.fixed.issuperset(node.operands)
            if known and node.name not in _IMPURE and not node.blocks:
                reading.fixed |= set(node.results)
            elif node.name not in LAYOUT or node.operands[0].shape is None:
                reading.nodes.append(node)
        used = [v for node in reading.nodes for v in inputs_of([node])] + list(block.operations[-1].operands)
        wanted = list(dict.fromkeys(v for u in used if (v := reading.root(u)) in reading.fixed))
        if wanted:
            nodes = reading.closure([v.operation for v in wanted if v.operation is not None], stop=())[0]
            reading.constants = dict(zip(wanted, reading.xla.of(nodes, (), wanted, ()), strict=True))
        return reading

    @property
    def results(self) -> list[Value]:
        return list(self.block.operations[-1].operands)

    def root(self, value: Value) -> Value:
        """What ``value`` names elements of: an argument, a constant, or what an operation makes."""
        while value.operation is not None and value.operation.name in LAYOUT and value not in self.constants:
            value = value.operation.operands[0]
        return value

    def number(self, value: Value) -> Any:
        """The one number a constant value repeats, None for others."""
        array = self.constants.get(self.root(value))
        if array is None or not array.size:
            return None
        first = array.reshape(-1)[0]
        same = array.size == 1 or bool((array == first).all())
        return first if same else None

    def closure(self, nodes: Iterable[Node], stop: Sequence[Value]) -> tuple[list[Node], list[Value]]:
        """``nodes`` and what names elements or is a small constant before them, in order; and what they take then."""
        found, open_ = set[Node](), list(nodes)
        while open_:
            node = open_.pop()
            if node in found:
                continue
            found.add(node)
            for value in inputs_of([node]):
                maker = value.operation
                if maker is None or value in stop:
                    continue
                large = value in self.constants and self.constants[value].size > 1024
                if maker.name in LAYOUT or (value in self.fixed and not large):
                    open_.append(maker)
        ordered = sorted(found, key=lambda node: node.position)
        return ordered, inputs_of(ordered)


def _alive(block: Block) -> list[Node]:
    wanted, alive = set(block.operations[-1].operands), []
    for node in reversed(block.operations[:-1]):
        if not wanted.isdisjoint(node.results):
            alive.append(node)
            wanted |= set(inputs_of([node]))
    return alive[::-1]


def operations(node: Node) -> int:
    """Arithmetic operations of a node: one for each element made or summed, two for a multiply-add."""
    if node.name in MOVING:
        return 0
    if node.name in ("dot_general", "convolution", "reduce_window"):
        return (1 if node.name == "reduce_window" else 2) * node.terms * prod(node.result.sizes)
    return max((prod(v.sizes) for v in (*node.results, *node.operands[:1]) if v.shape is not None), default=0)


# Which operations make one layer: a product, a copy, a region of work on elements, a region left to XLA.


ALONE = {
    **dict.fromkeys(("dot_general", "convolution"), "matrix"),
    **dict.fromkeys(("concatenate", "pad", "gather", "dynamic_slice", "scatter"), "copy"),
    "reduce_window": "window",
}
"""Operations that are a layer of their own, and its kind."""


@dataclass(eq=False)
class Group:
    """Operations of one layer; ``region``: what a vector region knows of itself.

    ``product``: one whose sums the region takes before they are stored. ``outputs``: what others want of it.
    """

    kind: str
    nodes: list[Node] = field(default_factory=list)
    region: Any = None
    product: Node | None = None
    outputs: tuple[Value, ...] = ()

    @property
    def label(self) -> str:
        """What its step is called: its operation, or elements where there are several."""
        return self.nodes[0].name.removeprefix("chlo.") if len(self.nodes) == 1 else "elements"

    @property
    def operations(self) -> int:
        """Arithmetic operations of all its nodes."""
        return sum(map(operations, self.nodes))

    @property
    def position(self) -> int:
        return max(node.position for node in self.nodes)

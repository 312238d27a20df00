"""A program as the compiler sees it: operations that do something, constants by value, groups that are one layer."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from tilewright.hlo import Block, Node, Value, XlaValues, array_dtype, inputs_of
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.layout.index.types import dtype_name

Array = np.ndarray[Any, Any]
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
    fixed: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, block: Block, apart: bool = False) -> Reading:
        """Read it; constants are computed by XLA, all in one call, for a text in a process of its own (``apart``)."""
        reading = cls(block, XlaValues(apart))
        alive = _alive(block)
        for node in alive:
            known = all(v.shape is not None for v in node.results)
            known &= all(id(v) in reading.fixed for v in node.operands)
            if known and node.name not in _IMPURE and not node.blocks:
                reading.fixed |= {id(v) for v in node.results}
            elif node.name not in LAYOUT or node.operands[0].shape is None:
                reading.nodes.append(node)
        used = [v for node in reading.nodes for v in inputs_of([node])] + list(block.operations[-1].operands)
        wanted = list(dict.fromkeys(v for u in used for v in reading._constants_behind(u)))
        if wanted:
            nodes = reading.closure([v.operation for v in wanted if v.operation is not None], stop=())[0]
            reading.constants = dict(zip(wanted, reading.xla.of(nodes, (), wanted, ()), strict=True))
        return reading

    @property
    def results(self) -> list[Value]:
        return list(self.block.operations[-1].operands)

    def _constants_behind(self, value: Value) -> list[Value]:
        """The constant that ``value`` is or is a layout of, as a list of at most one."""
        while value.operation is not None and value.operation.name in LAYOUT:
            value = value.operation.operands[0]
        return [value] if id(value) in self.fixed else []

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
        found: dict[int, Node] = {}
        open_ = list(nodes)
        while open_:
            node = open_.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            for value in inputs_of([node]):
                maker = value.operation
                if maker is None or value in stop:
                    continue
                large = value in self.constants and self.constants[value].size > 1024
                if maker.name in LAYOUT or (id(value) in self.fixed and not large):
                    open_.append(maker)
        ordered = sorted(found.values(), key=lambda node: node.position)
        return ordered, inputs_of(ordered)


def _alive(block: Block) -> list[Node]:
    """Operations whose results are used, in order."""
    wanted, alive = {id(v) for v in block.operations[-1].operands}, []
    for node in reversed(block.operations[:-1]):
        if any(id(v) in wanted for v in node.results):
            alive.append(node)
            wanted |= {id(v) for v in inputs_of([node])}
    return alive[::-1]


def operations(node: Node) -> int:
    """Arithmetic operations of a node: one for each element made or summed, two for a multiply-add."""
    own = node.attributes
    if node.name in MOVING:
        return 0
    if node.name == "dot_general":
        depth: int = prod(node.operands[0].sizes[d] for d in own["lhs_contract"])
        return 2 * depth * prod(node.result.sizes)
    if node.name == "convolution":
        outs: int = node.operands[1].sizes[own["numbers"][1].index("o")]
        return 2 * prod(node.operands[1].sizes) // outs * prod(node.result.sizes)
    if node.name == "reduce_window":
        window: tuple[int, ...] = own["window"]
        return prod(window) * prod(node.result.sizes)
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
        """The position of its last operation."""
        return max(node.position for node in self.nodes)


def group_operations(
    reading: Reading, new_region: Callable[[Node], Any], takes: Callable[[Any, Node], bool]
) -> list[Group]:
    """All operations in groups, in an order that makes everything before it is used.

    From the last operation to the first: one joins a group of its users of its own kind, where everything else that
    uses it comes after that group. ``new_region``: the region a vector operation begins, or None where it is none; a
    region decides by ``region.joins(node)`` whether it takes another. ``takes``: whether a region can be done to the
    sums of a product.
    """
    grouping = _Grouping(reading, new_region)
    for node in reversed(reading.nodes):
        grouping.place(node)
    for node in reading.nodes:
        if grouping.group[node].kind == "matrix":
            grouping.absorb(node, takes)
    groups = grouping.ordered()
    for group in groups:
        group.outputs = grouping.outputs(group)
    return groups


class _Grouping:
    def __init__(self, reading: Reading, new_region: Callable[[Node], Any]) -> None:
        self.reading, self.new_region = reading, new_region
        self.group: dict[Node, Group] = {}
        self.users: dict[Node, list[Node]] = {node: [] for node in reading.nodes}
        for node in reading.nodes:
            for maker in {self._maker(v) for v in inputs_of([node])}:
                if maker in self.users:
                    self.users[maker].append(node)

    def _maker(self, value: Value) -> Any:
        return self.reading.root(value).operation

    def place(self, node: Node) -> None:
        region = None if node.name in ALONE else self.new_region(node)
        kind = ALONE.get(node.name, "vector" if region is not None else "other")
        if kind in ("vector", "other"):
            near = {id(self.group[u]): self.group[u] for u in self.users[node] if self.group[u].kind == kind}
            for group in sorted(near.values(), key=lambda g: g.position):
                if self._comes_first(node, group) and (kind == "other" or group.region.joins(node)):
                    group.nodes.append(node)
                    self.group[node] = group
                    return
        self.group[node] = Group(kind, [node], region)

    def _comes_first(self, node: Node, group: Group) -> bool:
        """Whether no other user of ``node`` leads to ``group``."""
        open_ = [self.group[u] for u in self.users[node] if self.group[u] is not group]
        seen = {id(g) for g in open_}
        while open_:
            for after in self._after(open_.pop()):
                if after is group:
                    return False
                if id(after) not in seen:
                    seen.add(id(after))
                    open_.append(after)
        return True

    def absorb(self, node: Node, takes: Callable[[Any, Node], bool]) -> None:
        """Merge a product with the one region that uses its result, if that region can be done to its sums."""
        near = {id(self.group[u]): self.group[u] for u in self.users[node]}
        results = {id(self.reading.root(v)) for v in self.reading.results}
        if len(near) != 1 or id(node.result) in results:
            return
        (group,) = near.values()
        makers = {self._maker(v) for v in inputs_of(group.nodes)}
        products = sum(maker in self.group and self.group[maker].kind == "matrix" for maker in makers)
        if group.kind == "vector" and (group.product is not None or products > 1):
            group = self._apart(node, group) or group
        fits = group.kind == "vector" and group.product is None and len(self.outputs(group)) == 1
        if fits and takes(group.region, node):
            group.product = node
            self.group[node] = group

    def _apart(self, node: Node, group: Group) -> Group | None:
        """What the group does to this product alone, up to its narrowest result, as a group of its own.

        None where nothing gets narrower by it: no byte would be saved then.
        """
        chain: list[Node] = []
        while True:
            last = chain[-1] if chain else node
            users = self.users[last]
            if len(users) != 1 or self.group[users[0]] is not group or len(users[0].results) != 1:
                break
            others = {self._maker(v) for v in inputs_of(users)} - {last}
            if any(self.group.get(maker) is group for maker in others):
                break
            chain.append(users[0])
        widths = [prod(one.result.sizes) * array_dtype(one.result).itemsize for one in (node, *chain)]
        count = widths.index(min(widths))
        if not count:
            return None
        chain = chain[:count]
        region = self.new_region(chain[-1])
        if region is None or not all(region.joins(one) for one in reversed(chain[:-1])):
            return None
        apart = Group("vector", chain, region)
        for one in chain:
            group.nodes.remove(one)
            del group.region.places[one]
            self.group[one] = apart
        return apart

    def outputs(self, group: Group) -> tuple[Value, ...]:
        """The values of a group that other groups or the caller use."""
        results = {id(self.reading.root(v)) for v in self.reading.results}
        made = [v for node in group.nodes for v in node.results]
        used = {
            id(self.reading.root(v))
            for node in group.nodes
            for user in self.users[node]
            if self.group[user] is not group
            for v in inputs_of([user])
        }
        return tuple(v for v in made if id(v) in used or id(v) in results)

    def _after(self, group: Group) -> list[Group]:
        nodes = group.nodes + ([group.product] if group.product is not None else [])
        found = {id(self.group[u]): self.group[u] for node in nodes for u in self.users[node]}
        return [g for g in found.values() if g is not group]

    def ordered(self) -> list[Group]:
        groups = list({id(g): g for g in self.group.values()}.values())
        waiting = {id(g): 0 for g in groups}
        for group in groups:
            for after in self._after(group):
                waiting[id(after)] += 1
        ready = [(g.position, n, g) for n, g in enumerate(groups) if not waiting[id(g)]]
        heapq.heapify(ready)
        done, count = [], len(groups)
        while ready:
            *_, group = heapq.heappop(ready)
            group.nodes.sort(key=lambda node: node.position)
            done.append(group)
            for after in self._after(group):
                waiting[id(after)] -= 1
                if not waiting[id(after)]:
                    count += 1
                    heapq.heappush(ready, (after.position, count, after))
        assert len(done) == len(groups), "layers in a circle"
        return done

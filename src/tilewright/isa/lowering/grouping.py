"""Which operations make one layer: a product, a copy, a region of work on elements, a region left to XLA."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilewright.hlo import Node, Value, array_dtype, inputs_of
from tilewright.isa.lowering.reading import Reading

ALONE = {
    **dict.fromkeys(("dot_general", "convolution"), "matrix"),
    **dict.fromkeys(("concatenate", "pad", "gather", "dynamic_slice", "scatter"), "copy"),
    "reduce_window": "window",
}
"""Operations that are a layer of their own, and its kind."""


def _bytes(value: Value) -> int:
    return prod(value.sizes) * int(array_dtype(value).itemsize)


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
    def position(self) -> int:
        """Where it would stand: at its last operation."""
        return max(node.position for node in self.nodes)


def groups_of(reading: Reading, new_region: Callable[[Node], Any], takes: Callable[[Any, Node], bool]) -> list[Group]:
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
        """Give a product to the one region that uses it, if that can take it."""
        near = {id(self.group[u]): self.group[u] for u in self.users[node]}
        results = {id(self.reading.root(v)) for v in self.reading.results}
        if len(near) != 1 or id(node.result) in results:
            return
        (group,) = near.values()
        if group.kind == "vector" and (group.product is not None or self._products(group) > 1):
            group = self._apart(node, group) or group
        fits = group.kind == "vector" and group.product is None and len(self.outputs(group)) == 1
        if fits and takes(group.region, node):
            group.product = node
            self.group[node] = group

    def _products(self, group: Group) -> int:
        """How many products it takes that no group has yet."""
        makers = {self._maker(v) for v in inputs_of(group.nodes)}
        return sum(maker in self.group and self.group[maker].kind == "matrix" for maker in makers)

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
        widths = [_bytes(one.result) for one in (node, *chain)]
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
            group.region.leaves(one)
            self.group[one] = apart
        return apart

    def outputs(self, group: Group) -> tuple[Value, ...]:
        """What other groups, or the caller, want of a group."""
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

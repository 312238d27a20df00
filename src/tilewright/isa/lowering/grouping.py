"""Which operations make one layer: a product, a copy, a region of work on elements, a region left to XLA."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.hlo import Node, Value, inputs_of
from tilewright.isa.lowering.reading import Reading

PRODUCTS = {"dot_general": "matrix", "convolution": "matrix", "concatenate": "copy", "pad": "copy"}


@dataclass(eq=False)
class Group:
    """Operations of one layer; ``region``: what a vector region knows of itself."""

    kind: str
    nodes: list[Node] = field(default_factory=list)
    region: Any = None

    @property
    def position(self) -> int:
        """Where it would stand: at its last operation."""
        return max(node.position for node in self.nodes)


def groups_of(reading: Reading, new_region: Callable[[Node], Any]) -> list[Group]:
    """All operations in groups, in an order that makes everything before it is used.

    From the last operation to the first: one joins a group of its users of its own kind, where everything else that
    uses it comes after that group. ``new_region``: the region a vector operation begins, or None where it is none; a
    region decides by ``region.joins(node)`` whether it takes another.
    """
    grouping = _Grouping(reading, new_region)
    for node in reversed(reading.nodes):
        grouping.place(node)
    return grouping.ordered()


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
        region = None if node.name in PRODUCTS else self.new_region(node)
        kind = PRODUCTS.get(node.name, "vector" if region is not None else "other")
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

    def _after(self, group: Group) -> list[Group]:
        found = {id(self.group[u]): self.group[u] for node in group.nodes for u in self.users[node]}
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

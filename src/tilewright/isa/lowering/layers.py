"""From a program's operations to steps: each group by what lowers it, and by XLA on the host where nothing does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from graphlib import TopologicalSorter
from math import prod
from typing import Any

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.hlo import Block, Node, Value, array_dtype, inputs_of
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.lowering import moves
from tilewright.isa.lowering.products import lower_convolution, lower_product
from tilewright.isa.lowering.reading import ALONE, MOVING, Group, Reading
from tilewright.isa.lowering.sources import Step
from tilewright.isa.lowering.tables import Lowering
from tilewright.isa.lowering.vectors import Region, specification, takes_product, vector_jobs
from tilewright.isa.lowering.windows import lower_reduction, lower_windows, over_leading


def lower(block: Block, config: MatrixUnitConfig, apart: bool = False) -> Lowering:
    """All of a program as steps on tables; ``apart``: XLA's part runs in a process of its own."""
    reading = Reading.of(block, apart)
    lowering = Lowering(reading, config)
    for group in group_operations(reading):
        _lower_group(lowering, group)
    return lowering


_PRODUCTS = {"dot_general": lower_product, "convolution": lower_convolution}
_ALONE = {
    "concatenate": moves.lower_concatenate,
    "pad": moves.lower_pad,
    "gather": moves.lower_gather,
    "dynamic_slice": moves.lower_dynamic_slice,
    "scatter": moves.lower_scatter,
    "reduce_window": lower_windows,
}
"""What lowers the operations that are a layer of their own."""


def _lower_group(lowering: Lowering, group: Group) -> None:
    first = len(lowering.steps)
    if group.product is not None:  # both in one program, or one after the other
        try:
            with _undone_on_error(lowering):
                _PRODUCTS[group.product.name](lowering, group.product, group)
                _complete(lowering, first)
            return
        except TilewrightError:
            _lower_group(lowering, Group("matrix", [group.product], outputs=tuple(group.product.results)))
            first = len(lowering.steps)
    try:
        with _undone_on_error(lowering):
            _lower_alone(lowering, group)
    except TilewrightError as error:  # a step that XLA computes on the host, from the values the machine made
        lowering.on_host |= set(group.outputs)
        name, nodes, own = lowering.name(group.label), tuple(group.nodes), group.operations
        lowering.steps.append(Step(name, "host", nodes, (), group.outputs, fallback=str(error), operations=own))
    _complete(lowering, first)


def _lower_alone(lowering: Lowering, group: Group) -> None:
    """Lower a group that is done to no product's sums; UnsupportedError where the machine has no program for it."""
    node = group.nodes[0]
    if group.kind == "matrix":
        _PRODUCTS[node.name](lowering, node, None)
    elif node.name in _ALONE:
        _ALONE[node.name](lowering, node)
    elif group.kind == "vector":
        if len(group.nodes) == 1 and node.name == "reduce" and over_leading(node):
            # A program of windows, or else of a copy that has the dims that are summed over behind the others.
            with suppress(TilewrightError), _undone_on_error(lowering):
                lower_reduction(lowering, node)
                return
        _vector(lowering, group)
    else:
        names = dict.fromkeys(node.name for node in group.nodes if node.name not in MOVING)
        raise UnsupportedError(f"the machine has no program for {', '.join(names) or node.name}")


@contextmanager
def _undone_on_error(lowering: Lowering) -> Iterator[None]:
    """Tables, places, names and steps are as they were before, where what is lowered meanwhile cannot be."""
    places = {value: list(sources) for value, sources in lowering.places.items()}
    before = dict(lowering.tables), places, dict(lowering.names), list(lowering.steps)
    try:
        yield
    except TilewrightError:
        lowering.tables, lowering.places, lowering.names, lowering.steps = before
        raise


def _complete(lowering: Lowering, first: int) -> None:
    """Give the steps from ``first`` on what names elements before their operations, and what they take then."""
    for step in lowering.steps[first:]:
        if step.nodes:
            nodes, inputs = lowering.reading.closure(step.nodes, stop=())
            step.nodes, step.inputs = tuple(nodes), tuple(inputs)
        if step.fallback:
            found = [lowering.places[v][0].table for v in step.inputs if v in lowering.places]
            step.reads = tuple(table for table in found if lowering.tables[table].held is None)


def _vector(lowering: Lowering, group: Group) -> None:
    spec, tables = specification(lowering, group.region, group.nodes, group.outputs)
    jobs = vector_jobs(lowering, spec, tables)
    reads, writes = (tuple(tables[each.name] for each in several) for several in (spec.inputs, spec.outputs))
    name, nodes = lowering.name(group.label), tuple(group.nodes)
    lowering.steps.append(Step(name, "vector", nodes, (), group.outputs, jobs, "", reads, writes, group.operations))


# Which operations one program does together.


def group_operations(reading: Reading) -> list[Group]:
    """All operations in groups, in an order that makes everything before it is used.

    From the last operation to the first: one joins a group of its users of its own kind, where everything else that
    uses it comes after that group. Then products join the one region of work on elements that uses their sums.
    """
    grouping = _Grouping(reading)
    for node in reversed(reading.nodes):
        grouping.place(node)
    for node in reading.nodes:
        if grouping.group[node].kind == "matrix":
            grouping.absorb(node)
    groups = grouping.ordered()
    for group in groups:
        group.outputs = grouping.outputs(group)
    return groups


class _Grouping:
    def __init__(self, reading: Reading) -> None:
        self.reading, self.group = reading, dict[Node, Group]()
        self.results = {reading.root(value) for value in reading.results}
        self.users: dict[Node, list[Node]] = {node: [] for node in reading.nodes}
        for node in reading.nodes:
            for maker in {self._maker(v) for v in inputs_of([node])}:
                if maker in self.users:
                    self.users[maker].append(node)

    def _maker(self, value: Value) -> Any:
        return self.reading.root(value).operation

    def place(self, node: Node) -> None:
        region = None if node.name in ALONE else Region.starting_at(self.reading, node)
        kind = ALONE.get(node.name, "vector" if region is not None else "other")
        if kind in ("vector", "other"):
            near = dict.fromkeys(self.group[u] for u in self.users[node] if self.group[u].kind == kind)
            for group in sorted(near, key=lambda g: g.position):
                if self._comes_first(node, group) and (kind == "other" or group.region.joins(node)):
                    group.nodes.append(node)
                    self.group[node] = group
                    return
        self.group[node] = Group(kind, [node], region)

    def _comes_first(self, node: Node, group: Group) -> bool:
        """Whether no other user of ``node`` leads to ``group``."""
        open_ = [self.group[u] for u in self.users[node] if self.group[u] is not group]
        seen = set(open_)
        while open_:
            for after in self._after(open_.pop()):
                if after is group:
                    return False
                if after not in seen:
                    seen.add(after)
                    open_.append(after)
        return True

    def absorb(self, node: Node) -> None:
        """Merge a product with the one region that uses its result, if that region can be done to its sums."""
        near = {self.group[user] for user in self.users[node]}
        if len(near) != 1 or node.result in self.results:
            return
        (group,) = near
        makers = {self._maker(v) for v in inputs_of(group.nodes)}
        products = sum(maker in self.group and self.group[maker].kind == "matrix" for maker in makers)
        if group.kind == "vector" and (group.product is not None or products > 1):
            group = self._apart(node, group) or group
        fits = group.kind == "vector" and group.product is None and len(self.outputs(group)) == 1
        if fits and takes_product(self.reading, group.region, node):
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
        region = Region.starting_at(self.reading, chain[-1])
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
        users = {user for node in group.nodes for user in self.users[node] if self.group[user] is not group}
        used = {self.reading.root(value) for user in users for value in inputs_of([user])} | self.results
        return tuple(value for node in group.nodes for value in node.results if value in used)

    def _after(self, group: Group) -> list[Group]:
        nodes = group.nodes + ([group.product] if group.product is not None else [])
        found = dict.fromkeys(self.group[user] for node in nodes for user in self.users[node])
        return [after for after in found if after is not group]

    def ordered(self) -> list[Group]:
        groups = list(dict.fromkeys(self.group.values()))
        sorter = TopologicalSorter[Group](dict.fromkeys(groups, ()))
        for group in groups:
            for after in self._after(group):
                sorter.add(after, group)
        sorter.prepare()
        ready, done = list[Group](), list[Group]()
        while sorter:
            ready = sorted([*ready, *sorter.get_ready()], key=lambda group: group.position)
            group = ready.pop(0)
            group.nodes.sort(key=lambda node: node.position)
            done.append(group)
            sorter.done(group)
        return done

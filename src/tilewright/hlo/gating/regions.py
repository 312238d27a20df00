"""Regions: the parts of a program that reshapes join, which the gate rewrites whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeGuard

from tilewright.hlo.gating.moves import SMALL, bytes_moved, is_unit_step
from tilewright.hlo.graphs.graph import Block, Node, Value, inputs_of
from tilewright.hlo.rewrites.cleanup import operation_key
from tilewright.hlo.rewriting.maker import MOVES, MOVES_AND_REPEATS, is_elementwise, is_static
from tilewright.targets import Target

# A region grows from a reshape's result of shape S: over every value of shape S that elementwise operations, reshapes,
# broadcasts and reductions connect, and through transposes over values of S with its dims in another order; then over
# the small operations between its reductions and its broadcasts (the statistics of a normalisation). Constants, iotas
# and broadcasts of scalars are copied in, so that they join nothing.
#
#     x ---reshape--->[S]--+--subtract-->[S]--multiply-->[S]--reshape---> y
#                          |      ^                ^
#                          reduce-+-> small ops ---+            all of this is one region; x is its input, y its output
#
# What frees a reshape may stand behind the next one: ``grown`` adds, over every reshape of a region, what the values on
# its other side connect.


@dataclass(frozen=True, eq=False)
class Region:
    """``operations`` in program order, all of ``block``; ``leaves`` are copied in; ``shape`` is what joins them.

    What it takes in and gives out is kept as it was when first asked for, before anything is put in its place.
    """

    block: Block
    shape: tuple[int, ...]
    operations: tuple[Node, ...]
    leaves: tuple[Node, ...]

    @property
    def members(self) -> tuple[Node, ...]:
        """What a candidate is a copy of: the leaves, then the operations."""
        return (*self.leaves, *self.operations)

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """What the members take from outside, by first use."""
        return tuple(inputs_of(self.members))

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """Results that somebody outside uses."""
        inside = set(self.operations)
        return tuple(v for op in self.operations for v in op.results if any(user not in inside for user in v.users))

    @cached_property
    def key(self) -> Hashable | None:
        """Equal for regions of equal meaning alone: every operation with the numbers of its operands.

        None where a region holds operations that a rewrite made: such a one is judged for itself.
        """
        if any(op.handle is None for op in self.members):
            return None
        numbers = {value: number for number, value in enumerate(self.inputs)}
        described: list[Hashable] = [(value.shape, value.dtype) for value in self.inputs]
        for op in self.members:
            described.append((operation_key(op), tuple(numbers[v] for v in op.operands)))
            for value in op.results:
                numbers[value] = len(numbers)
        return *described, tuple(numbers[v] for v in self.outputs)


def collect(block: Block, target: Target) -> list[Region]:
    """The regions of a block; each operation is in at most one.

    Reshapes that split or merge dims come before those that add or drop unit dims, which join what is left, transposes
    come last, and those that move most on the target before those that are bitcasts, whose regions would take the
    others' operations. On linear memory no region begins at a transpose: XLA's CPU backend cancels them itself.
    """
    seen: set[Value] = set()
    taken: set[Node] = set()
    seeds = [op for op in block.operations if _is_seed(op, target)]
    places = {op: place for place, op in enumerate(block.operations)} if seeds else {}
    seeds.sort(key=lambda op: (_rank(op), -bytes_moved(op, target), -_elements(op.result)))
    regions = []
    for seed in seeds:
        if seed.result in seen or seed in taken:
            continue
        region = _around(block, _flood(block, [seed.result], seen, taken), seed.result.sizes, places, taken)
        taken |= set(region.operations)
        regions.append(region)
    return regions


#: A region grows to so many operations and no further: layers stay apart, and alike.
_LARGEST = 256


def grown(region: Region, places: dict[Node, int]) -> Region | None:
    """The region with what stands on the other side of its reshapes and transposes; None where that is nothing.

    None too where the region would become too large.

    ``places`` numbers the operations of the block.
    """
    inside = set(region.operations)
    borders = [
        value
        for op in region.operations
        if op.name in MOVES and is_static(op.operands[0])
        for value in (op.operands[0], op.result)
    ]
    core = inside | _flood(region.block, borders, set(), set(), _LARGEST)
    if len(core) > _LARGEST:
        return None
    wider = _around(region.block, core, region.shape, places, set())
    return wider if len(inside) < len(wider.operations) <= _LARGEST else None


def _around(block: Block, core: set[Node], shape: tuple[int, ...], places: dict[Node, int], taken: set[Node]) -> Region:
    """The region of a core: with the small operations in between, and all that costs nothing to have twice."""
    operations = core | (_between(core, places) - taken)
    operations |= _fed_leaves(operations) - taken
    members = tuple(sorted(operations, key=places.__getitem__))
    return Region(block, shape, members, tuple(leaves_of(operations, places)))


def _is_seed(op: Node, target: Target) -> bool:
    """A reshape that splits or merges dims; one that adds or drops unit dims, or a transpose, of what is large."""
    if op.name not in MOVES or not op.plain or not is_static(op.result, op.operands[0]):
        return False
    if op.name == "transpose" and target.layout_rule == "linear":
        return False
    return _rank(op) == 0 or bytes_moved(op, target) >= SMALL


def _rank(op: Node) -> int:
    """Which seeds come first: what splits and merges dims, then unit dims, then transposes."""
    return 2 if op.name == "transpose" else int(is_unit_step(op))


def _elements(value: Value) -> int:
    return prod(value.shape or ())


def _is_leaf(op: Node) -> bool:
    """Costs nothing to have twice: a constant, an iota, or a broadcast of a scalar."""
    if not op.plain:
        return False
    return op.name in ("constant", "iota") or (op.name == "broadcast_in_dim" and op.operands[0].shape == ())


def _is_kind(op: Node) -> bool:
    """An operation regions are made of."""
    if not op.plain or not op.results or op.result.shape is None:
        return False
    if op.name == "reduce":
        return len(op.attributes) > 1 and is_static(op.operands[0])
    return is_elementwise(op) or op.name in MOVES_AND_REPEATS


def _flood(
    block: Block, values: Iterable[Value], seen: set[Value], taken: set[Node], most: int | None = None
) -> set[Node]:
    """Every operation joined to one of the values by values of its shape, in any order of the dims.

    Past ``most`` operations the search ends: a caller that has no use for more does not walk the whole block each time.
    """
    joined: set[Node] = set()
    open_ = list(values)
    while open_ and (most is None or len(joined) <= most):
        value = open_.pop()
        if value in seen:
            continue
        seen.add(value)
        for op in (*_makers(value), *_users(value)):
            if op.block is not block or op in joined or op in taken:
                continue
            joined.add(op)
            if op.name == "transpose":
                open_ += [op.operands[0], op.result]
            elif is_elementwise(op):
                open_ += [v for v in (*op.operands, op.result) if v.shape == value.shape]
    return joined


def _makers(value: Value) -> list[Node]:
    """The operation that makes ``value``, if regions are made of such."""
    op = value.operation
    if op is None or _is_leaf(op) or not _is_kind(op):
        return []
    return [op] if is_elementwise(op) or (op.name != "reduce" and is_static(*op.operands)) else []


def _users(value: Value) -> list[Node]:
    """Users of a value that join its region: all that regions are made of, but broadcasts."""
    return [
        op for op in value.users
        if _is_kind(op) and op.name != "broadcast_in_dim" and op.operands[0].shape is not None
    ]  # fmt: skip


def _between(core: set[Node], places: dict[Node, int]) -> set[Node]:
    """Small operations that lead from the core's reductions to its broadcasts, and what only moves data around them.

    Definitions come before uses, so all of them stand between the first reduction and the last operation of the core:
    the search never leaves that span (``places`` numbers the block's operations).
    """
    starts = [result for op in core if op.name == "reduce" for result in op.results]
    ends = [v for op in core for v in op.operands if v.operation is not None]
    limit = max((_elements(op.result) for op in core), default=0)
    first = min((places[op] for op in core if op.name == "reduce"), default=len(places))
    last = max(places[op] for op in core)

    def small(op: Node | None) -> TypeGuard[Node]:
        return op is not None and op in places and op not in core and _is_kind(op) and _elements(op.result) < limit

    def inner(operations: Iterable[Node | None]) -> list[Node]:
        return [op for op in operations if small(op) and first < places[op] < last]

    def movers(value: Value) -> list[Node]:
        op = value.operation
        return [op] if small(op) and op.name in MOVES_AND_REPEATS else []

    forward = _reach(starts, lambda value: inner(value.users), lambda op: op.results)
    backward = _reach(ends, lambda value: inner([value.operation]), lambda op: op.operands)
    both = forward & backward
    around = _reach([v for op in core | both for v in op.operands], movers, lambda op: op.operands)
    return {op for op in both | around if not _is_leaf(op)}


def _reach(
    values: list[Value], step: Callable[[Value], Iterable[Node]], go_on: Callable[[Node], list[Value]]
) -> set[Node]:
    """Operations reachable from the values: ``step`` leads from a value to operations, ``go_on`` back to values."""
    reached: set[Node] = set()
    open_ = list(values)
    while open_:
        for op in step(open_.pop()):
            if op not in reached:
                reached.add(op)
                open_ += go_on(op)
    return reached


def _fed_leaves(operations: set[Node]) -> set[Node]:
    """Broadcasts of a scalar that the region itself computes: such a leaf belongs to it."""
    used = {v.operation for op in operations for v in op.operands if v.operation is not None}
    return {op for op in used - operations if _is_leaf(op) and any(v.operation in operations for v in op.operands)}


def leaves_of(operations: set[Node], places: dict[Node, int]) -> list[Node]:
    """Constants and broadcasts of scalars the operations use, producers first."""
    leaves: dict[Node, None] = {}
    for op in sorted(operations, key=places.__getitem__):
        for value in op.operands:
            leaf = value.operation
            if leaf is not None and leaf not in operations and _is_leaf(leaf):
                for inner in leaf.operands:
                    if inner.operation is not None and _is_leaf(inner.operation):
                        leaves[inner.operation] = None
                leaves[leaf] = None
    return list(leaves)

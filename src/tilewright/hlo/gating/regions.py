"""Regions: the parts of a program that reshapes join, rewritten whole or not at all, and what their blocks cost."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from math import prod
from typing import TypeGuard

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import movement, place
from tilewright.hlo.graphs.dims import only_unit_dims_differ
from tilewright.hlo.graphs.graph import Block, Node, Value, inputs_of, operations_in
from tilewright.hlo.program import reached
from tilewright.hlo.rewriting.maker import MOVES, MOVES_AND_REPEATS, is_elementwise, is_static
from tilewright.layout import TensorLayout
from tilewright.layout.index.types import xla_dtype
from tilewright.targets import Target

# What the operations of a graph cost under a target: bytes moved, and the charge for short inner runs.


def layout_of(value: Value, target: Target) -> TensorLayout | None:
    """Where an array lies on the target; None for what has no layout: unknown or empty shapes, tokens, odd types."""
    if value.shape is None or 0 in value.shape:
        return None
    try:
        return place(value.shape, xla_dtype(value.dtype), target)
    except TilewrightError:  # an element type without a layout (a token, a quantised type): nothing to count
        return None


#: Unit dims added to or dropped from statistics and parameters are no gain: what moves less than this, or less than
#: this share of the largest array around.
SMALL = 1 << 16
_SMALL_SHARE = 16


@dataclass(frozen=True)
class Cost:
    """What a block costs, in bytes: ``moved`` by reshapes and transposes, ``regrouped`` by those among them that do
    more than add or drop unit dims, ``charged`` for reductions over short inner runs; a fall by fewer than ``small``
    does not count where only unit dims move. ``padded``, on targets with ``tiles``: padding that the other operations
    write, as each of them writes main memory there. ``strided``, on linear memory: what reductions over outer dims read
    by strides, counted like a transpose; only a rise of it counts. ``converted``, where nothing is known to fuse them:
    what conversions of the element type read and write, and their users read more for them; only a rise counts too."""

    moved: int
    regrouped: int
    charged: int
    small: int
    padded: int = 0
    strided: int = 0
    converted: int = 0

    @property
    def total(self) -> int:
        """Bytes moved, charged and padded together."""
        return self.moved + self.charged + self.padded

    @property
    def counts(self) -> bool:
        """Whether anything is there to be gained."""
        return bool(self.regrouped or self.charged) or self.moved >= self.small

    def falls_to(self, other: Cost) -> bool:
        """Whether ``other`` is cheaper, and by more than unit dims of small arrays."""
        gain = self.total - other.total - other.added_to(self)
        unit_steps = self.moved - self.regrouped - (other.moved - other.regrouped)
        return gain > 0 and (gain > unit_steps or gain >= self.small)

    def added_to(self, before: Cost) -> int:
        """What is not moved by reshapes, but would come on top of it."""
        return max(0, self.strided - before.strided) + max(0, self.converted - before.converted)


def cost(block: Block, target: Target) -> Cost:
    """The cost of one block's own operations under ``target``."""
    moves = [(op, bytes_moved(op, target)) for op in block.operations if op.name in MOVES]
    values = (*block.arguments, *(value for op in block.operations for value in op.results))
    layouts = (layout_of(value, target) for value in values)
    largest = max((layout.data_bytes for layout in layouts if layout is not None), default=0)
    # XLA, on a TPU or on linear memory, computes a conversion where its result is used.
    fuses = target.compiler_normalizes or target.layout_rule == "linear"
    return Cost(
        moved=sum(count for _, count in moves),
        regrouped=sum(count for op, count in moves if not is_unit_step(op)),
        charged=sum(short_run_charge(op, target) for op in block.operations if op.name == "reduce"),
        small=max(SMALL, largest // _SMALL_SHARE),
        padded=0 if target.tiles is None else sum(_padding(op, target) for op in block.operations),
        strided=sum(_strided(op, target) for op in block.operations if op.name == "reduce")
        if target.short_run_bytes
        else 0,
        converted=0 if fuses else sum(map(_converted, block.operations, repeat(target))),
    )


def _converted(op: Node, target: Target) -> int:
    if op.name != "convert":
        return 0
    source, result = layout_of(op.operands[0], target), layout_of(op.result, target)
    if source is None or result is None:
        return 0
    more = max(0, result.size_bytes - source.size_bytes)
    return source.size_bytes + result.size_bytes + more * len(op.result.users)


def _strided(op: Node, target: Target) -> int:
    """Bytes that a reduction which keeps the innermost dim is taken to read and write: twice its operand.

    What XLA's CPU backend fuses into such a reduction, it computes along the strides. A layer norm moved off the
    innermost dim runs faster alone, but made a whole model 4 % slower: 3 sums for 2 transposes. Sums over short inner
    runs are charged for them, and what they gain was measured off the innermost dim: they count as there already.
    """
    shape = op.operands[0].shape if op.operands else None
    kept = [d for d, size in enumerate(shape or ()) if size != 1]
    if not kept or (kept[-1] in op.attributes["dims"] and not short_run_charge(op, target)):
        return 0
    layout = layout_of(op.operands[0], target)
    return 0 if layout is None else 2 * layout.size_bytes


#: Reshapes and transposes are counted as moves; constants are there already.
_COUNTED_ELSEWHERE = MOVES | {"constant", "iota"}


def _padding(op: Node, target: Target) -> int:
    """Bytes of padding that an operation writes."""
    if op.name in _COUNTED_ELSEWHERE:
        return 0
    layouts = (layout_of(value, target) for value in op.results)
    return sum(layout.size_bytes - layout.data_bytes for layout in layouts if layout is not None)


def bytes_moved(op: Node, target: Target) -> int:
    """Padded bytes a reshape or transpose reads and writes under ``target``, 0 where it is a bitcast.

    Broadcasts make new data where it is used; they are not counted here.
    """
    if op.name not in MOVES:
        return 0
    source, result = layout_of(op.operands[0], target), layout_of(op.result, target)
    if source is None or result is None:
        return 0
    return movement(op.name, [source], result, op.attributes.get("permutation")).moved_bytes


def is_unit_step(op: Node) -> bool:
    """A reshape that only adds or drops unit dims."""
    return op.name == "reshape" and only_unit_dims_differ(op.operands[0].shape or (), op.result.shape or ())


def short_run_charge(op: Node, target: Target) -> int:
    """What a reduction costs on linear memory because neighbours in memory are not treated alike, in bytes.

    The inner run is the longest row of innermost dims that are all reduced or all kept: that many elements can be
    worked on with one vector instruction after the other. A run of r bytes, shorter than s, is charged s / r - 1 times
    the operand's bytes; s is ``target.short_run_bytes`` where the run is reduced (it must be summed up across the
    vector), ``target.short_kept_run_bytes`` where it is kept (one vector is enough).
    """
    if op.name != "reduce" or not op.operands or not op.operands[0].shape:
        return 0
    value, dims = op.operands[0], set(op.attributes["dims"])
    sizes = [(size, d in dims) for d, size in enumerate(value.shape or ()) if size != 1]
    if not sizes:
        return 0
    short = target.short_run_bytes if sizes[-1][1] else target.short_kept_run_bytes
    layout = layout_of(value, target) if short else None
    if layout is None:
        return 0
    run = layout.size_bytes // max(1, prod(n for n, _ in sizes))
    for size, reduced in reversed(sizes):
        if reduced != sizes[-1][1]:
            break
        run *= size
    return layout.size_bytes * max(0, short - run) // run


def moved(blocks: Iterable[Block], target: Target) -> int:
    """Bytes that reshapes and transposes of whole function bodies move."""
    return sum(bytes_moved(op, target) for body in blocks for op in operations_in(body))


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
            described.append((op.key, tuple(numbers[v] for v in op.operands)))
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
    near = lambda op: (other for value in go_on(op) for other in step(value))  # noqa: E731
    return {*reached((op for value in values for op in step(value)), near)}


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

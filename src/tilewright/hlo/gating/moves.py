"""What the operations of a graph cost under a target: bytes moved, and the charge for short inner runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from math import prod

from tilewright.errors import TilewrightError
from tilewright.hlo.cost import movement, place
from tilewright.hlo.graphs.dims import only_unit_dims_differ
from tilewright.hlo.graphs.graph import Block, Node, Value, walk
from tilewright.hlo.rewriting.maker import MOVES
from tilewright.layout import TensorLayout
from tilewright.layout.index.types import xla_dtype
from tilewright.targets import Target


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
    return sum(bytes_moved(op, target) for body in blocks for block in walk(body) for op in block.operations)

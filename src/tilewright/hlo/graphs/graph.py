"""A program as the rewrites see it: plain Python values and nodes, with their users.

The rewrites never touch MLIR: its handles dangle when operations are erased and cost microseconds each. A module is
read into this graph, rewritten, and written back into a clone of the module (``mlir.py``).

    Block            a function body, a loop body, or one region taken out for a trial
      .arguments     Values that come from outside
      .operations    Nodes in an order that defines every value before its use; the last one is the terminator
        .operands    Values
        .results     Values, each with a shape, an element type and its users
        .blocks      nested bodies; their operations may use values of the blocks around them
"""

from __future__ import annotations

import gc
import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from graphlib import TopologicalSorter
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UnsupportedError
from tilewright.layout import TensorLayout, parse
from tilewright.layout.index.types import xla_dtype

Shape = tuple[int, ...]


class Value:
    """An array of ``shape`` and MLIR element type ``dtype``; ``shape`` is None for dynamic arrays, tokens, tuples."""

    __slots__ = ("dtype", "handle", "index", "operation", "shape", "users")

    def __init__(self, shape: Shape | None, dtype: str, operation: Node | None = None, index: int = 0) -> None:
        self.shape, self.dtype, self.operation, self.index = shape, dtype, operation, index
        self.users: dict[Node, int] = {}
        self.handle: Any = None

    @property
    def sizes(self) -> Shape:
        """The shape of a value that is known to have one."""
        assert self.shape is not None
        return self.shape

    @property
    def xla(self) -> str:
        """The type of a value that is known to have a shape as XLA writes it: ``pred[8,32]``."""
        return f"{xla_dtype(self.dtype)}[{','.join(map(str, self.sizes))}]"

    def __repr__(self) -> str:
        """The type as a reader writes it: ``f32[8,32]``."""
        return f"{self.dtype}[{'?' if self.shape is None else ','.join(map(str, self.shape))}]"


@lru_cache(maxsize=256)
def numpy_dtype(element_type: str) -> np.dtype[Any]:
    """The numpy type of an MLIR element type: ``bf16`` -> bfloat16. UnsupportedError where there is none."""
    try:
        layout = parse(f"{xla_dtype(element_type)}[]")
        assert isinstance(layout, TensorLayout)
        return layout.numpy_dtype
    except TilewrightError as error:
        raise UnsupportedError(f"numpy has no element type {element_type}") from error


def array_dtype(value: Value) -> np.dtype[Any]:
    """The numpy type of a value's elements."""
    return numpy_dtype(value.dtype)


class Node:
    """One operation of a graph.

    ==============  ================================================================================================
    ``name``        ``reshape`` for ``stablehlo.reshape``; other dialects keep their prefix (``chlo.square``)
    ``attributes``  what rewrites look at: ``dims`` (broadcast, reduce), ``permutation``, ``monoid``, ``literal``
    ``handle``      the MLIR operation it was read from, None for one a rewrite made
    ``like``        for a made one: the operation that lends attributes and source position
    ``plain``       it carries no attributes of foreign dialects (shardings and the like)
    ``position``    its place in the original order; a made one takes the place of ``like``
    ``edited``      the ``edits`` of its block when it was put there, or given another operand
    ``said``        its name and attributes as a key, once somebody has asked for its ``key``
    ``origins``     what it was in the program, then the calls that it came with, innermost first (``predicting.py``)
    ==============  ================================================================================================
    """

    __slots__ = (
        "attributes", "block", "blocks", "edited", "handle", "like", "name", "operands", "origins", "plain", "position",
        "read", "results", "said",
    )  # fmt: skip

    def __init__(self, name: str, operands: Iterable[Value], attributes: dict[str, Any] | None = None) -> None:
        self.name = name
        self.operands: list[Value] = list(operands)
        self.attributes = {} if attributes is None else attributes
        self.results: list[Value] = []
        self.blocks: Sequence[Block] = ()
        self.block: Block | None = None
        self.handle: Any = None
        self.like: Node | None = None
        self.read: tuple[Value, ...] = ()
        self.plain = True
        self.position = self.edited = 0
        self.said: tuple[Any, ...] | None = None
        self.origins: tuple[Any, ...] = ()
        for value in self.operands:
            value.users[self] = value.users.get(self, 0) + 1

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def lender(self) -> Node:
        """What lends a made operation attributes and position; one that was read lends its own."""
        return self.like if self.handle is None and self.like is not None else self

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for operations that surely do the same to equal operands, their results' types included."""
        if self.said is None:
            own = self.attributes["literal"].key if self.name == "constant" else (*sorted(self.attributes.items()),)
            lender, lent = self.lender, ""
            if not self.attributes and lender.name == self.name:  # what only MLIR knows, such as an accuracy
                named = lender.handle.attributes if lender is self and self.handle is not None else ()
                lent = lender.key[2] if lender is not self else "; ".join([f"{key} = {named[key]}" for key in named])
            self.said = self.name, own, lent, *[(v.shape, v.dtype) for v in self.results]
        return self.said

    @property
    def trips(self) -> int | None:
        """How often the body of a counted loop runs; None where constants do not say, and for all but loops."""
        if self.name != "while":
            return None
        condition, body = self.blocks
        test = condition.operations[-1].operands[0].operation
        if test is None or test.name != "compare" or test.attributes["direction"] not in FLIPPED:
            return None
        (counter, bound), direction = test.operands, test.attributes["direction"]
        if counter not in condition.arguments:
            counter, bound, direction = bound, counter, FLIPPED[direction]
        k = counter.index
        grown = body.operations[-1].operands[k].operation if counter in condition.arguments else None
        if grown is None or grown.name not in ("add", "subtract") or body.arguments[k] not in grown.operands:
            return None
        by = next((value for value in grown.operands if value is not body.arguments[k]), None)
        start, step, end = (_integer(value) for value in (self.operands[k], by, bound))
        if start is None or step is None or end is None or not step:
            return None
        return trip_count(start, -step if grown.name == "subtract" else step, direction, end)

    def rearranged(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """What a reshape, transpose, broadcast, slice or reverse makes of its operand's elements."""
        shape, own = self.result.sizes, self.attributes
        if self.name == "transpose":
            return array.transpose(own["permutation"])
        if self.name == "slice":
            return array[tuple(slice(*cut) for cut in zip(own["start"], own["limit"], own["strides"], strict=True))]
        if self.name == "reverse":
            return np.flip(array, own["dims"])
        if self.name == "broadcast_in_dim":
            order, wide = sorted(range(len(own["dims"])), key=own["dims"].__getitem__), [1] * len(shape)
            for k in order:
                wide[own["dims"][k]] = array.shape[k]
            return np.broadcast_to(array.transpose(order).reshape(wide), shape)
        return array.reshape(shape)

    @property
    def terms(self) -> int:
        """Of a product or a windowed sum: the elements, or products, that one of its results adds up; 1 of others."""
        own = self.attributes
        if self.name == "dot_general":
            return prod(self.operands[0].sizes[dim] for dim in own["lhs_contract"])
        if self.name == "convolution":
            weights = self.operands[1].sizes
            return prod(weights) // max(1, int(weights[own["numbers"][1].index("o")]))
        return prod(own["window"]) if self.name == "reduce_window" else 1

    @property
    def side_dims(self) -> Sequence[tuple[tuple[int, ...], ...]]:
        """Of each operand of a dot_general: its batch dims, those that stand in the result alone, those summed over."""
        own, sides = self.attributes, []
        for operand, name in zip(self.operands, ("lhs", "rhs"), strict=True):
            batch, deep = own[f"{name}_batch"], own[f"{name}_contract"]
            sides.append((batch, tuple(d for d in range(len(operand.sizes)) if d not in (*batch, *deep)), deep))
        return sides

    def sides(self, *operands: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        """Both operands of a dot_general as [batches, own dims, summed dims]."""
        sides = []
        for array, groups in zip(operands, self.side_dims, strict=True):
            turned = array.transpose([d for group in groups for d in group])
            sides.append(turned.reshape([prod(array.shape[d] for d in group) for group in groups]))
        return sides

    def add_result(self, shape: Shape | None, dtype: str) -> Value:
        value = Value(shape, dtype, self, len(self.results))
        self.results.append(value)
        return value

    def set_operand(self, index: int, value: Value) -> None:
        """Replace one operand, keeping both values' users right."""
        if self.block is not None:
            self.block.edits = self.edited = self.block.edits + 1
        _release(self.operands[index], self)
        self.operands[index] = value
        value.users[self] = value.users.get(self, 0) + 1

    def drop(self) -> None:
        """Take it out of the graph: it uses nothing any more."""
        for value in self.operands:
            _release(value, self)
        self.operands, self.block = [], None

    def __repr__(self) -> str:
        """``reshape(f32[8,256]) -> f32[8,32,8]``."""
        results = ", ".join(map(repr, self.results))
        return f"{self.name}({', '.join(map(repr, self.operands))}) -> {results}"


FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}
"""The comparisons that counted loops go on by -> the same with its operands the other way round."""
_INTEGER = re.compile(r"-?\d{1,18}$")


def trip_count(start: int, step: int, direction: str, bound: int) -> int | None:
    """How many of start, start + step, ... pass the comparison before the first fails; None: never, or not so."""
    if direction == "NE":
        trips, rest = divmod(bound - start, step)
        return trips if rest == 0 and trips >= 0 else None
    if direction in ("GT", "GE"):
        start, step, bound = -start, -step, -bound
    distance = bound - start + (direction in ("LE", "GE"))
    if distance <= 0:
        return 0
    return -(-distance // step) if step > 0 else None


def _integer(value: Value | None) -> int | None:
    """The integer of a constant, None for anything else."""
    made = None if value is None else value.operation
    element = made.attributes["literal"].element if made is not None and made.name == "constant" else None
    return int(element) if element is not None and _INTEGER.match(element) else None


def _release(value: Value, user: Node) -> None:
    count = value.users[user] - 1
    if count:
        value.users[user] = count
    else:
        del value.users[user]
        maker = value.operation
        if not value.users and maker is not None and maker.block is not None and maker.block.loose is not None:
            maker.block.loose.append(maker)


class Block:
    """A list of operations; ``owner`` is the operation it is a body of, None for a function or a trial.

    A function's block holds its MLIR ``module``: the bindings do not keep it alive for the handles in it. ``edits``
    counts the operations that were put into it, and the operands that they were given since; ``seen``: those that the
    rewrite at work has seen before, -1 for none. ``loose``: the operations put into it, or with a result that lost its
    last user, since somebody dropped what nobody uses; None where nobody has. ``merged``: the edits after which no two
    of its operations compute the same.
    """

    __slots__ = (
        "arguments", "changed", "edits", "handle", "loose", "merged", "module", "name", "operations", "owner", "seen",
    )  # fmt: skip

    def __init__(self, name: str = "", owner: Node | None = None) -> None:
        self.name, self.owner = name, owner
        self.arguments: list[Value] = []
        self.operations: list[Node] = []
        self.handle: Any = None
        self.module: Any = None
        self.changed, self.edits, self.merged, self.seen = False, 0, -1, -1
        self.loose: list[Node] | None = None

    def add_argument(self, shape: Shape | None, dtype: str) -> Value:
        self.arguments.append(Value(shape, dtype, None, len(self.arguments)))
        return self.arguments[-1]

    def append(self, operation: Node) -> Node:
        operation.block = self
        self.edits = operation.edited = self.edits + 1
        self.operations.append(operation)
        if self.loose is not None:
            self.loose.append(operation)
        return operation


def replace_value(old: Value, new: Value) -> None:
    for user in list(old.users):
        for index, value in enumerate(user.operands):
            if value is old:
                user.set_operand(index, new)


def walk(block: Block) -> Iterator[Block]:
    """This block and every block nested in it, outermost first."""
    open_ = [block]
    while open_:
        current = open_.pop()
        yield current
        open_ += [inner for op in reversed(current.operations) if op.blocks for inner in reversed(op.blocks)]


def operations_in(body: Block) -> Iterator[Node]:
    """Every operation of a block and of those nested in it."""
    return (op for block in walk(body) for op in block.operations)


def captured(operation: Node) -> list[Value]:
    """Values of outer blocks that an operation's bodies use."""
    if not operation.blocks:
        return []
    bodies = [inner for body in operation.blocks for inner in walk(body)]
    own = {id(v) for body in bodies for v in body.arguments}
    own |= {id(v) for body in bodies for op in body.operations for v in op.results}
    return [v for body in bodies for op in body.operations for v in op.operands if id(v) not in own]


def inputs_of(nodes: Sequence[Node]) -> list[Value]:
    """What these operations take from others, in the order of first use."""
    made = {v for node in nodes for v in node.results}
    return list(dict.fromkeys(v for node in nodes for v in (*node.operands, *captured(node)) if v not in made))


def in_order(operations: Sequence[Node]) -> list[Node]:
    """The operations with every definition before its uses, otherwise in the order of their positions."""
    order, later = sorted(operations, key=attrgetter("position")), set(operations)
    for op in order:
        later.discard(op)
        read = op.operands if not op.blocks else (*op.operands, *captured(op))
        if not later.isdisjoint([value.operation for value in read]):
            break
    else:
        return order
    makers = {op: [v.operation for v in (*op.operands, *captured(op))] for op in order}
    needs = {op: {each for each in found if each is not None and each is not op} for op, found in makers.items()}
    serials = {op: serial for serial, op in enumerate(operations)}
    sorter = TopologicalSorter({op: needs[op] & serials.keys() for op in order})
    sorter.prepare()
    ready, done = list[tuple[int, int, Node]](), list[Node]()
    while sorter.is_active():
        for op in sorter.get_ready():
            heapq.heappush(ready, (op.position, serials[op], op))
        done.append(heapq.heappop(ready)[2])
        sorter.done(done[-1])
    return done


# The garbage collector stands still while a large program is read, reported or rewritten.
#
# A growing graph makes the collector walk everything again and again: a third of the time of a rewrite at 10,000
# operations, more than that at 40,000, and next to nothing to be freed.


_MUCH_MADE = 100_000
"""Objects made, from which on it pays to ask whether others are frozen: Python counts those one by one."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic collection inside (or in the function this decorates); afterwards it is as it was before.

    Where much was made inside, that moves to the oldest generation: the next young collection need not walk it.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            # Freezing and unfreezing move every object, and look at none. What others have frozen stays so.
            if gc.get_count()[0] > _MUCH_MADE and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()

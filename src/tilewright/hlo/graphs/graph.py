"""A program as the rewrites see it: plain Python values and operations, with their users.

The rewrites never touch MLIR: its handles dangle when operations are erased and cost microseconds each. A module is
read into this graph (``_read``), rewritten, and written back into a clone of the module (``_emit``).

    Block            a function body, a loop body, or one region taken out for a trial
      .arguments     Values that come from outside
      .operations    Operations in an order that defines every value before its use; the last one is the terminator
        .operands    Values
        .results     Values, each with a shape, an element type and its users
        .blocks      nested bodies; their operations may use values of the blocks around them
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

Shape = tuple[int, ...]


class Value:
    """An array of ``shape`` and MLIR element type ``dtype``; ``shape`` is None for dynamic arrays, tokens, tuples."""

    __slots__ = ("dtype", "handle", "index", "operation", "shape", "users")

    def __init__(self, shape: Shape | None, dtype: str, operation: Operation | None = None, index: int = 0) -> None:
        self.shape, self.dtype, self.operation, self.index = shape, dtype, operation, index
        self.users: dict[Operation, int] = {}
        self.handle: Any = None

    def __repr__(self) -> str:
        """The type as a reader writes it: ``f32[8,32]``."""
        return f"{self.dtype}[{'?' if self.shape is None else ','.join(map(str, self.shape))}]"


class Operation:
    """One operation.

    ==============  ================================================================================================
    ``name``        ``reshape`` for ``stablehlo.reshape``; other dialects keep their prefix (``chlo.square``)
    ``attributes``  what rewrites look at: ``dims`` (broadcast, reduce), ``permutation``, ``monoid``, ``literal``
    ``handle``      the MLIR operation it was read from, None for one a rewrite made
    ``like``        for a made one: the operation that lends attributes and source position
    ``plain``       it carries no attributes of foreign dialects (shardings and the like)
    ``position``    its place in the original order; a made one takes the place of ``like``
    ==============  ================================================================================================
    """

    __slots__ = (
        "attributes", "block", "blocks", "handle", "like", "name", "operands", "plain", "position", "read", "results",
    )  # fmt: skip

    def __init__(self, name: str, operands: Iterable[Value], attributes: dict[str, Any] | None = None) -> None:
        self.name = name
        self.operands: list[Value] = list(operands)
        self.attributes = attributes or {}
        self.results: list[Value] = []
        self.blocks: list[Block] = []
        self.block: Block | None = None
        self.handle: Any = None
        self.like: Operation | None = None
        self.read: tuple[Value, ...] = ()
        self.plain = True
        self.position = 0
        for value in self.operands:
            value.users[self] = value.users.get(self, 0) + 1

    @property
    def result(self) -> Value:
        """Its first result."""
        return self.results[0]

    def add_result(self, shape: Shape | None, dtype: str) -> Value:
        """One more result."""
        value = Value(shape, dtype, self, len(self.results))
        self.results.append(value)
        return value

    def set_operand(self, index: int, value: Value) -> None:
        """Replace one operand, keeping both values' users right."""
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
        made = ", ".join(map(repr, self.results))
        return f"{self.name}({', '.join(map(repr, self.operands))}) -> {made}"


def _release(value: Value, user: Operation) -> None:
    count = value.users[user] - 1
    if count:
        value.users[user] = count
    else:
        del value.users[user]


class Block:
    """A list of operations; ``owner`` is the operation it is a body of, None for a function or a trial.

    A function's block holds its MLIR ``module``: the bindings do not keep it alive for the handles in it.
    """

    __slots__ = ("arguments", "changed", "handle", "module", "name", "operations", "owner")

    def __init__(self, name: str = "", owner: Operation | None = None) -> None:
        self.name, self.owner = name, owner
        self.arguments: list[Value] = []
        self.operations: list[Operation] = []
        self.handle: Any = None
        self.module: Any = None
        self.changed = False

    def add_argument(self, shape: Shape | None, dtype: str) -> Value:
        """One more argument."""
        self.arguments.append(Value(shape, dtype, None, len(self.arguments)))
        return self.arguments[-1]

    def append(self, operation: Operation) -> Operation:
        """Put an operation at the end."""
        operation.block = self
        self.operations.append(operation)
        return operation


def replace_value(old: Value, new: Value) -> None:
    """Let every user of ``old`` use ``new``."""
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
        open_ += [inner for op in reversed(current.operations) for inner in reversed(op.blocks)]


def captured(operation: Operation) -> list[Value]:
    """Values of outer blocks that an operation's bodies use."""
    if not operation.blocks:
        return []
    bodies = [inner for body in operation.blocks for inner in walk(body)]
    own = {id(v) for body in bodies for v in body.arguments}
    own |= {id(v) for body in bodies for op in body.operations for v in op.results}
    return [v for body in bodies for op in body.operations for v in op.operands if id(v) not in own]


def in_order(operations: Sequence[Operation]) -> list[Operation]:
    """The operations with every definition before its uses, otherwise in the order of their positions."""
    waiting: dict[Operation, int] = {}
    blocked: dict[Operation, list[Operation]] = {}
    inside = set(operations)
    ready: list[tuple[int, int, Operation]] = []
    for serial, op in enumerate(operations):
        needs = {v.operation for v in (*op.operands, *captured(op)) if v.operation in inside}
        needs.discard(op)
        waiting[op] = len(needs)
        for need in needs:
            if need is not None:
                blocked.setdefault(need, []).append(op)
        if not needs:
            ready.append((op.position, serial, op))
    heapq.heapify(ready)
    serials = {op: serial for serial, op in enumerate(operations)}
    done: list[Operation] = []
    while ready:
        op = heapq.heappop(ready)[2]
        done.append(op)
        for user in blocked.get(op, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.position, serials[user], user))
    assert len(done) == len(operations), "a rewrite made a cycle"
    return done

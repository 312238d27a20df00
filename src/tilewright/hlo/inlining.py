"""What an operation runs, calls followed: a computation with its calls' bodies in place, the operations of a fusion.

And what a compiler makes of those operations before it fuses them (``simplified``).

For programs as they are read, whatever they came from; ``rewrites/inline.py`` does the same to MLIR modules, in place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.opcodes import DOTS, INSIDE, MARKER_CALLS, TAKES_NO_TIME, WRITES_IN_PLACE
from tilewright.hlo.program import Computation, Operation, Program, Source

_UPDATES = WRITES_IN_PLACE.keys() | {name.replace("-", "_") for name in WRITES_IN_PLACE}
_UNCHANGED = frozenset({"pad", "slice", "reshape", "convert"})
"""Operations that do nothing where their result has the operand's shape and nothing is padded."""
_NOT_ZERO = re.compile("[1-9]")
_MANY_ROWS = 1024
"""Rows from which a scatter takes them in their order."""
DEEPEST = 64
"""Calls inside calls that are followed; a program that calls itself ends there."""
_MOST_OPERATIONS = 1_000_000
"""Operations from which calls are not followed: a few lines of calls of calls can ask for any number of them."""


def inlined(program: Program, computation: Computation) -> list[Operation]:
    """A computation's operations with the bodies of its calls in their place; names of a body carry its call's.

    A result of an operation with several, ``%1#0``, is an operation of its own (``get-tuple-element``), as in HLO; a
    barrier is one for each of its operands.
    """
    operations, elements, seen = list[Operation](), set[str](), 0

    def put(body: Computation, given: Sequence[str], prefix: str, source: Source | None, depth: int) -> tuple[str, ...]:
        """Put a body's operations behind the others, with ``given`` for its parameters; what its results are called."""
        nonlocal seen
        seen += len(body.operations)
        names = dict(zip([op.name for op in body.operations if op.opcode == "parameter"], given))
        for op in body.operations:
            operands, results = op.operands, None  # the names of results that are others'
            same = not prefix and "#" not in "".join(operands) and names.keys().isdisjoint(operands)
            if not same:
                known = ((names.get(name) or names.get(name.partition("#")[0]), name) for name in operands)
                operands = tuple([found or prefix + name for found, name in known])
            if op.opcode in _BARRIERS:
                results = tuple([f"{prefix}{op.name}#{k}" for k in range(len(operands))])
                operations.extend(
                    replace(op, name=result, shape=shape, operands=(name,), operand_shapes=(shape,))
                    for result, name, shape in zip(results, operands, op.operand_shapes)
                )
                elements.update(results)
            else:
                for name, shape in zip(operands, op.operand_shapes) if not same else ():
                    if "#" in name and name not in elements:
                        elements.add(name)
                        part = Operation(name, "get-tuple-element", shape, (name.partition("#")[0],), line=op.line)
                        operations.append(replace(part, source=source))
            if op.opcode == "return" and prefix:
                return operands
            if op.opcode == "call" and len(op.calls) == 1 and depth < DEEPEST and seen <= _MOST_OPERATIONS:
                called, inside = program.by_name[op.calls[0]], f"{prefix}{op.name}/"
                results = put(called, operands, inside, op.source or source, depth + 1)
            if results is not None:
                names |= {f"{op.name}#{k}" if len(results) > 1 else op.name: name for k, name in enumerate(results)}
            elif not prefix:
                operations.append(op if same else op.reading(operands))
            elif op.opcode != "parameter":
                operations.append(op.reading(operands, prefix + op.name, op.source or source))
        return ()

    put(computation, (), "", None, 0)
    return operations


_BARRIERS = frozenset({"optimization_barrier", "optimization-barrier"})


def operations_of(program: Program, op: Operation, depth: int = 0) -> Iterator[Operation]:
    """What an operation runs: the operations of all it calls, those of fusions in their fusion's place, or itself."""
    if not op.calls or depth > DEEPEST:
        yield op
        return
    for name in op.calls:
        for inner in program.by_name[name].operations:
            if inner.opcode in ("fusion", "call", "custom-call") or inner.opcode.endswith("-start"):
                yield from operations_of(program, inner, depth + 1)
            else:
                yield inner


# What the compiler makes of operations before it fuses them.


def simplified(program: Program, computation: Computation, captured: Collection[str]) -> list[Operation]:
    """A computation's operations, calls in place, without those that say the same, nothing, or what nobody wants.

    ``captured``: names that regions read of the computation around them.
    """
    operations = list[Operation]()
    for op in inlined(program, computation):
        restated = plain_opcode(op.opcode) in _RESTATED
        operations += as_choice(op) or _in_order(op) or _as_sum(_marked(op)) if restated else (op,)
    operations = _once(operations, program)
    return _widened_first(_wanted(_without_barriers(operations), captured, program))


_RESTATED = DOTS | {"custom-call", "scatter"}


@lru_cache(maxsize=16384)
def dims_of(shape: str) -> tuple[int, ...]:
    """The dims of an array's shape that are numbers."""
    return tuple(map(int, re.findall(r"\d+", shape.partition("]")[0].partition("[")[2])))


def _marked(op: Operation) -> Operation:
    """A custom call that only tells the compiler something is its operand under another name."""
    marks = op.operands and any(mark in op.target for mark in MARKER_CALLS)
    return replace(op, opcode="bitcast") if marks else op


def _as_sum(op: Operation) -> Sequence[Operation]:
    """A product without free dims, of two arrays of one form, as the multiplication and the reduction that it is."""
    if plain_opcode(op.opcode) not in DOTS:
        return [op]
    over, shapes = op.integers("lhs_contracting_dims"), op.operand_shapes[:2]
    same = op.integers("lhs_batch_dims"), over
    if (
        not over
        or same != (op.integers("rhs_batch_dims"), op.integers("rhs_contracting_dims"))
        or len({shape.partition("[")[2] for shape in shapes}) != 1
        or shapes[0].count(",") + 1 != len(same[0]) + len(over)
    ):
        return [op]
    name, shape = f"{op.name}.each", f"{op.shape.partition('[')[0]}[{shapes[0].partition('[')[2]}"
    dims = {"dimensions": "{" + ",".join(map(str, over)) + "}"}
    each = replace(op, name=name, opcode="multiply", shape=shape, attributes={})
    return [each, replace(op, opcode="reduce", operands=(name,), operand_shapes=(shape,), attributes=dims)]


def as_choice(op: Operation) -> Sequence[Operation]:
    """A scatter of one number into each row, the gradient of one taken from each, as the choice that it is compiled to.

    Each index is compared with the place, and where they agree the update is taken. () for all other operations.
    """
    if plain_opcode(op.opcode) != "scatter" or len(op.operand_shapes) != 3 or op.shape.startswith("("):
        return ()
    rows = dims_of(op.shape)
    taken, updates = ([n for n in dims_of(shape) if n > 1] for shape in op.operand_shapes[1:])
    if updates != taken or updates not in [[n for n in (*rows[:k], *rows[k + 1 :]) if n > 1] for k in range(len(rows))]:
        return ()
    at = Operation(f"{op.name}.at", "compare", f"pred{op.shape[op.shape.find('[') :]}", op.operands[1:2])
    at = replace(at, operand_shapes=op.operand_shapes[1:2], source=op.source, line=op.line)
    operands, shapes = (at.name, *op.operands[2:], op.operands[0]), (at.shape, *op.operand_shapes[2:], op.shape)
    return [at, replace(op, opcode="select", operands=operands, operand_shapes=shapes, attributes={}, calls=())]


def _in_order(op: Operation) -> Sequence[Operation]:
    """A scatter of many rows behind the sort of its indices: it takes the rows in their order. () for all others."""
    if plain_opcode(op.opcode) != "scatter" or len(op.operand_shapes) != 3:
        return ()
    count = prod(dims_of(op.operand_shapes[1])[:-1])
    if count < _MANY_ROWS:
        return ()
    shape, flat, ordered = f"s32[{count}]", f"{op.name}.flat", f"{op.name}.sort"
    return [
        Operation(flat, "reshape", shape, op.operands[1:2], op.operand_shapes[1:2]),
        Operation(ordered, "sort", shape, (flat, flat), (shape, shape), line=op.line, source=op.source),
        replace(op, operands=(op.operands[0], ordered, op.operands[2])),
    ]


def _renamed(operations: Sequence[Operation], same: Callable[[Operation], str]) -> list[Operation]:
    """The operations without those that only name a value again: ``same`` gives its first name, "" for the others."""
    names, found = dict[str, str](), list[Operation]()
    renamed = names.keys()
    for op in operations:
        if not renamed.isdisjoint(op.operands):
            op = op.reading(tuple([names.get(name, name) for name in op.operands]))
        if known := same(op):
            names[op.name] = known
        else:
            found.append(op)
    return found


def _once(operations: Sequence[Operation], program: Program) -> list[Operation]:
    """The operations without those that compute what another has computed."""
    firsts, known = dict[tuple[object, ...], Operation](), dict[tuple[object, ...], str]()
    written = {op.name: op.operands[0] for op in operations if op.opcode in _UPDATES and op.operands}

    def more(op: Operation) -> tuple[object, ...]:
        called = [inner.opcode for callee in op.calls for inner in program.by_name[callee].operations]
        return frozenset(op.attributes.items()), *called

    def same(op: Operation) -> str:
        kind, padding = plain_opcode(op.opcode), op.attributes.get("padding", "")
        if kind in _UNCHANGED and op.operand_shapes[:1] == (op.shape,) and not _NOT_ZERO.search(padding):
            return op.operands[0]
        if kind == "select" and len(op.operands) == 3 and op.operand_shapes[:1] == ("pred[]",):
            _, yes, no = op.operands  # an update that is made or not: the update itself chooses, in place
            if updated := yes if written.get(yes) == no else no if written.get(no) == yes else "":
                return updated
        merges = (op.name and not op.calls) or kind == "reduce"
        told = op.operands or "literal" in op.attributes  # which constant it is, and along which dim it counts
        if not merges or kind not in INSIDE or not told:
            return ""
        said = kind, op.shape, op.operands
        if (first := firsts.setdefault(said, op)) is op:  # most have no other of these operands
            return ""
        known.setdefault((*said, *more(first)), first.name)
        name = known.setdefault((*said, *more(op)), op.name)
        return name if name != op.name else ""

    return _renamed(operations, same)


def _without_barriers(operations: Sequence[Operation]) -> list[Operation]:
    """The operations that read what went into barriers: those only keep what is computed again from being merged."""
    return _renamed(operations, lambda op: op.operands[0] if op.opcode in _BARRIERS else "")


_IDLE = INSIDE | {"get-tuple-element"}


def _wanted(operations: list[Operation], captured: Collection[str], program: Program) -> list[Operation]:
    """The operations without those whose values nothing reads, loops that do nothing else among them."""
    read, found = set(captured), list[Operation]()
    for op in reversed(operations):
        kind = plain_opcode(op.opcode)
        idle = kind in _IDLE or (kind == "while" and all(_is_idle(program, callee) for callee in op.calls))
        if op.name in read or not idle or not op.operands:
            read.update(op.operands)
            found.append(op)
    return found[::-1]


def _is_idle(program: Program, computation: str, depth: int = 0) -> bool:
    """Whether a computation does nothing but give its results: no custom call, no exchange, no loop within it."""
    return all(
        plain_opcode(op.opcode) in INSIDE | TAKES_NO_TIME | WRITES_IN_PLACE.keys()
        or (op.opcode == "call" and depth < DEEPEST and all(_is_idle(program, each, depth + 1) for each in op.calls))
        for op in program.by_name[computation].operations
    )


def _widened_first(operations: list[Operation]) -> list[Operation]:
    """The operations with the type changed before a reshape where only that is wanted of it, as the compiler does."""
    reshapes = {op.name: op for op in operations if op.opcode == "reshape" and op.operand_shapes}
    firsts = [op for op in operations if op.opcode == "convert" and op.operands and op.operands[0] in reshapes]
    asked = {op.operands[0] for op in firsts}
    read = Counter(name for op in operations if not asked.isdisjoint(op.operands) for name in asked & {*op.operands})
    swapped: dict[str, Operation] = {}
    for first in (op for op in firsts if read[op.operands[0]] == 1):
        op = reshapes[first.operands[0]]
        wide = f"{first.shape.partition('[')[0]}[{op.operand_shapes[0].partition('[')[2]}"
        swapped[op.name] = replace(
            first, name=op.name, line=op.line, shape=wide, operands=op.operands, operand_shapes=op.operand_shapes
        )
        swapped[first.name] = replace(
            op, name=first.name, line=first.line, shape=first.shape, operands=(op.name,), operand_shapes=(wide,)
        )
    return [swapped.get(op.name, op) for op in operations] if swapped else operations

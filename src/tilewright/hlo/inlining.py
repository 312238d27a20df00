"""What an operation runs, calls followed: a computation with its calls' bodies in place, the operations of a fusion.

For programs as they are read, whatever they came from; ``rewrites/inline.py`` does the same to MLIR modules, in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.hlo.cost import plain_opcode
from tilewright.hlo.program import Computation, Operation, Program

DEEPEST = 64
"""Calls inside calls that are followed; a program that calls itself ends there."""
_MOST_OPERATIONS = 1_000_000
"""Operations from which calls are not followed: a few lines of calls of calls can ask for any number of them."""


def inlined(
    program: Program, computation: Computation, prefix: str = "", depth: int = 0, seen: list[int] | None = None
) -> list[Operation]:
    """A computation's operations with the bodies of its calls in their place; names of a body carry its call's.

    A result of an operation with several, ``%1#0``, is an operation of its own (``get-tuple-element``), as in HLO; a
    barrier is one for each of its operands. ``seen`` counts operations over all calls.
    """
    seen = seen if seen is not None else [0]
    seen[0] += len(computation.operations)
    names: dict[str, str] = {}
    elements: set[str] = set()
    operations: list[Operation] = []

    def known(name: str) -> str:
        return names.get(name) or names.get(name.partition("#")[0]) or prefix + name

    def rename(op: Operation, results: tuple[str, ...]) -> None:
        several = len(results) > 1
        names.update({f"{op.name}#{k}" if several else op.name: name for k, name in enumerate(results)})

    for op in computation.operations:
        numbered = "#" in "".join(op.operands)
        same = not prefix and not numbered and names.keys().isdisjoint(op.operands)
        operands = op.operands if same else tuple([known(name) for name in op.operands])
        if plain_opcode(op.opcode) == "optimization-barrier":
            results = tuple(f"{prefix}{op.name}#{k}" for k in range(len(operands)))
            operations += [
                replace(op, name=result, shape=shape, operands=(name,), operand_shapes=(shape,))
                for result, name, shape in zip(results, operands, op.operand_shapes)
            ]
            elements.update(results)
            rename(op, results)
            continue
        for name, shape in zip(operands, op.operand_shapes) if not same else ():
            whole, mark, _ = name.partition("#")
            if mark and name not in elements:
                elements.add(name)
                operations.append(Operation(name, "get-tuple-element", shape, (whole,), line=op.line))
        if op.opcode != "call" or len(op.calls) != 1 or depth == DEEPEST or seen[0] > _MOST_OPERATIONS:
            operations.append(op if same else op.reading(operands, prefix + op.name))
            continue
        body = inlined(program, program.by_name[op.calls[0]], f"{prefix}{op.name}/", depth + 1, seen)
        elements.update(inner.name for inner in body if "#" in inner.name)
        renamed = dict(zip((inner.name for inner in body if inner.opcode == "parameter"), operands))
        for inner in body:
            wanted = tuple(renamed.get(name, name) for name in inner.operands)
            if inner.opcode == "return":
                rename(op, wanted)
            elif inner.opcode != "parameter":
                operations.append(inner.reading(wanted, source=inner.source or op.source))
    return operations


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

"""Trials: a region copied into a block of its own, rewritten there, and put in the region's place if it pays.

The layers of a deep network are alike. Two regions whose :class:`Outline` has the same key compute the same thing of
their inputs, so one trial serves both: it is never moved into the program, but copied there, each operation lending
attributes and source position from its counterpart in the region at hand.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tilewright.hlo.gating._regions import Region
from tilewright.hlo.graphs._graph import Block, Operation, Value, in_order, replace_value
from tilewright.hlo.rewrites.common_subexpressions import what_it_does
from tilewright.hlo.rewrites.dead_code import DeadCode

__all__ = ["Outline", "Trial", "another", "outline", "settle", "splice", "take_out"]


@dataclass(frozen=True, eq=False)
class Outline:
    """What a region takes in and gives out, in a fixed order, and a key that only regions of equal meaning share.

    ``key`` is None where a region holds operations that a rewrite made: such a one is judged for itself.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    key: Hashable | None


@dataclass(frozen=True, eq=False)
class Trial:
    """A region's copy in ``body``: its inputs became the arguments, its outputs the operands of the terminator."""

    region: Region
    body: Block


def outline(region: Region) -> Outline:
    """Inputs by first use, outputs in order, and the key: every operation with the numbers of its operands."""
    numbers: dict[Value, int] = {}
    inputs: list[Value] = []
    told: list[Hashable] = []
    made = False
    for op in region.members:
        for value in op.operands:
            if value not in numbers:
                numbers[value] = len(numbers)
                inputs.append(value)
                told.append((value.shape, value.dtype))
        told.append((what_it_does(op), tuple(numbers[v] for v in op.operands)))
        for value in op.results:
            numbers[value] = len(numbers)
        made |= op.handle is None
    outputs = tuple(region.outputs)
    told.append(tuple(numbers[v] for v in outputs))
    return Outline(tuple(inputs), outputs, None if made else tuple(told))


def take_out(region: Region, seen: Outline) -> Trial:
    """Copy a region into a block of its own."""
    body = Block("trial")
    copies = {value: body.add_argument(value.shape, value.dtype) for value in seen.inputs}
    for op in region.members:
        copy = Operation(op.name, [copies[v] for v in op.operands], dict(op.attributes))
        copy.like = op.like if op.handle is None and op.like is not None else op
        copy.position = op.position
        body.append(copy)
        copies.update((old, copy.add_result(old.shape, old.dtype)) for old in op.results)
    body.append(Operation("return", [copies[v] for v in seen.outputs]))
    return Trial(region, body)


def another(trial: Trial) -> Trial:
    """The same trial once more, to be rewritten further."""
    body = Block("trial")
    values = {value: body.add_argument(value.shape, value.dtype) for value in trial.body.arguments}
    for op in trial.body.operations:
        copy = Operation(op.name, [values[v] for v in op.operands], dict(op.attributes))
        copy.like, copy.position = op.like, op.position
        body.append(copy)
        values.update((old, copy.add_result(old.shape, old.dtype)) for old in op.results)
    return Trial(trial.region, body)


def splice(region: Region, seen: Outline, trial: Trial) -> None:
    """Put a copy of the trial in the region's place; :func:`settle` the block after the last splice."""
    block = region.block
    values = dict(zip(trial.body.arguments, seen.inputs))
    lenders = dict(zip(trial.region.members, region.members))
    *operations, end = trial.body.operations
    for op in operations:
        copy = Operation(op.name, [values[v] for v in op.operands], dict(op.attributes))
        copy.like = lenders.get(op.like, op.like) if op.like is not None else None
        copy.position = op.position if copy.like is None or copy.like is op.like else copy.like.position
        values.update((old, copy.add_result(old.shape, old.dtype)) for old in op.results)
        block.append(copy)
    for old, new in zip(seen.outputs, end.operands):
        replace_value(old, values[new])
    for op in region.operations:
        op.drop()
    block.changed = True


def settle(block: Block) -> None:
    """After splices: drop what was replaced and nobody uses, and put the rest in order before the terminator."""
    standing = [op for op in block.operations if op.block is block]
    last = next(op for op in reversed(standing) if op.handle is not None)
    block.operations = [*in_order([op for op in standing if op is not last]), last]
    DeadCode().apply(block)

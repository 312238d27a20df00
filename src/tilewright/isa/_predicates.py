"""Comparisons into predicates, logic on them, and votes: one uniform register from what all threads say."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.isa._floats import as_float
from tilewright.isa._operands import Handler, number, scalar_cost, source, write
from tilewright.isa._program import Instruction
from tilewright.isa._state import Pe

__all__ = ["PREDICATE_HANDLERS", "compare"]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def compare(condition: str | None, x: Any, y: Any) -> Any:
    """X cond Y, of signed integers or, where the condition ends in u, of the same words unsigned."""
    name = condition or ""
    if name.endswith("u"):
        return _COMPARE[name[:-1]](x & 0xFFFFFFFF, y & 0xFFFFFFFF)
    return _COMPARE[name](x, y)


def _cmp(pe: Pe, instruction: Instruction) -> None:
    # operands
    x, y = (source(pe, o) for o in instruction.operands[1:])
    # operation, result
    write(pe, instruction, compare(instruction.suffix("cond"), x, y))
    # cost
    scalar_cost(pe, instruction)


def _fcmp(pe: Pe, instruction: Instruction) -> None:
    # operands
    x, y = (as_float(pe, o) for o in instruction.operands[1:])
    # operation, result
    write(pe, instruction, compare(instruction.suffix("cond"), x, y))
    # cost
    scalar_cost(pe, instruction)


def _logic(operation: Callable[..., Any]) -> Handler:
    def execute(pe: Pe, instruction: Instruction) -> None:
        # operands
        values = [pe.predicates[:, number(o)] for o in instruction.operands[1:]]
        # operation, result
        write(pe, instruction, operation(*values))
        # cost
        scalar_cost(pe, instruction)

    return execute


def _vote(operation: Callable[[Any], Any]) -> Handler:
    def execute(pe: Pe, instruction: Instruction) -> None:
        # operands
        votes = pe.predicates[:, number(instruction.operands[1])]
        # operation, result
        write(pe, instruction, int(operation(votes)))
        # cost
        scalar_cost(pe, instruction)

    return execute


PREDICATE_HANDLERS: dict[str, Handler] = {
    "cmp": _cmp,
    "fcmp": _fcmp,
    "pand": _logic(np.logical_and),
    "por": _logic(np.logical_or),
    "pxor": _logic(np.logical_xor),
    "pnot": _logic(np.logical_not),
    "pany": _vote(np.any),
    "pall": _vote(np.all),
    "pcount": _vote(np.count_nonzero),
}

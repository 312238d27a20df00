"""How finely does a program compute: the coarsest floating type that values are rounded to on their way to a result."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo.graphs.graph import Block, Node, Value, array_dtype, captured, walk
from tilewright.hlo.proving.agreement import is_integral, unit

#: Operations whose results are elements of their operands, or values that every floating type of theirs has exactly.
_EXACT = frozenset(
    {"abs", "broadcast_in_dim", "ceil", "clamp", "compare", "concatenate", "constant", "dynamic_slice"}
    | {"dynamic_update_slice", "floor", "gather", "imag", "iota", "maximum", "minimum", "negate", "pad", "real"}
    | {"optimization_barrier", "reshape", "reverse", "round_nearest_even", "select", "sign", "slice", "transpose"}
)
_EXTREMES = frozenset({"maximum", "minimum"})


def coarsest(body: Block) -> list[np.dtype[Any] | None]:
    """For each result of a function body the coarsest type it was rounded to on its way; None where to none.

    Arguments are what they are, and widening is exact: only operations that round count. All that a loop or a branch
    does counts for each of its results.
    """
    found: dict[Value, np.dtype[Any]] = {}
    for op in body.operations[:-1]:
        before = [found[value] for value in (*op.operands, *captured(op)) if value in found]
        inner = [each for block in op.blocks for part in walk(block) for each in part.operations]
        types = [*before, *(dtype for each in (op, *inner) for dtype in _rounds_to(each))]
        if types:
            found.update(dict.fromkeys(op.results, max(types, key=unit)))
    return [found.get(value) for value in body.operations[-1].operands]


def _rounds_to(op: Node) -> list[np.dtype[Any]]:
    """The floating types that an operation itself rounds to; what its bodies do is asked of their operations."""
    if op.name in _EXACT or op.blocks or op.attributes.get("monoid") in _EXTREMES or "chooses" in op.attributes:
        return []
    types = [dtype for dtype in map(_floating, op.results) if dtype is not None]
    given = _floating(op.operands[0]) if op.name == "convert" else None
    if types and given is not None and unit(given) >= unit(types[0]):
        return []  # a finer type has every value of a coarser one
    return types


def _floating(value: Value) -> np.dtype[Any] | None:
    """The floating type of an array; None for integers, tokens and what numpy has no type for."""
    try:
        dtype = array_dtype(value) if value.shape is not None else None
    except UnsupportedError:
        return None
    return None if dtype is None or is_integral(dtype) else dtype

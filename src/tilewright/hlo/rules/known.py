"""What is known of values before the program runs: that they are finite, and the elements of small integer ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.hlo.graphs.graph import Node, Value

#: Results that are bounded for every operand that is a number. None of them turns NaN into a number, so their operand
#: must be finite too, unless it is an integer.
_BOUNDED = frozenset({"tanh", "logistic", "sine", "cosine", "sign", "chlo.erf"})
#: Finite for finite operands: no overflow from values that are finite.
_KEEPING = frozenset({
    "reshape", "broadcast_in_dim", "transpose", "slice", "reverse", "concatenate", "negate", "abs", "maximum",
    "minimum", "select", "pad", "dynamic_slice", "gather", "floor", "ceil", "round_nearest_even", "round_nearest_afz",
}) | _BOUNDED  # fmt: skip
_DEPTH = 12


def is_finite(value: Value, depth: int = _DEPTH) -> bool:
    """Whether no element can be NaN or an infinity: integers, constants, and what only moves or bounds such.

    >>> from tilewright.hlo.graphs.graph import Block
    >>> block = Block()
    >>> is_finite(block.add_argument((8,), "i32")), is_finite(block.add_argument((8,), "f32"))
    (True, False)
    """
    if value.dtype.lstrip("us").startswith("i"):
        return True
    node = value.operation
    if node is None or depth == 0:
        return False
    if node.name == "constant":
        element = node.attributes["literal"].element
        return element is not None and not element.startswith("0x") and element not in ("inf", "nan")
    if node.name == "iota":
        return True
    if node.name == "convert":
        return is_finite(node.operands[0], depth - 1) and not _narrows(node.operands[0].dtype, value.dtype)
    if node.name == "multiply":  # a factor of 0 or 1 keeps it; products of others may overflow
        masks = [operand for operand in node.operands if _is_mask(operand)]
        return bool(masks) and all(is_finite(operand, depth - 1) for operand in node.operands)
    if node.name in _KEEPING:
        parts = node.operands[1:] if node.name == "select" else node.operands
        return all(is_finite(operand, depth - 1) for operand in parts)
    return False


def _is_mask(value: Value) -> bool:
    node = value.operation
    return node is not None and node.name == "convert" and node.operands[0].dtype == "i1"


_WIDEST = {"f64": 1023, "f32": 127, "bf16": 127, "f16": 15}


def _narrows(source: str, target: str) -> bool:
    """Whether a conversion may overflow to an infinity."""
    if source not in _WIDEST:  # an integer: f16 ends at 65504
        small = source in ("i1", "i8", "ui8", "i4", "ui4", "i2", "ui2")
        return target not in _WIDEST or (target == "f16" and not small)
    return _WIDEST.get(target, 0) < _WIDEST[source]


# Elements that depend on nothing but constants: the indices of a gather, mostly.

Array = np.ndarray[Any, Any]

#: Larger values are not looked at.
_MOST_ELEMENTS = 1 << 20
_MOST_STEPS = 40


def elements_of(value: Value) -> Array | None:
    """The elements as int64 (bool for i1), None where they depend on an argument or on an operation unknown here."""
    known: dict[Value, Array | None] = {}
    return _elements(value, known, _MOST_STEPS)


def _elements(value: Value, known: dict[Value, Array | None], depth: int) -> Array | None:
    if value not in known:
        known[value] = None
        node = value.operation
        if node is not None and depth and value.shape is not None and np.prod(value.shape) <= _MOST_ELEMENTS:
            known[value] = _computed(node, known, depth - 1)
    return known[value]


def _computed(node: Node, known: dict[Value, Array | None], depth: int) -> Array | None:
    result = node.result
    if not result.dtype.lstrip("us").startswith("i") or node.name not in _OPERATIONS:
        return None
    operands = []
    for operand in node.operands:
        array = _elements(operand, known, depth)
        if array is None:
            return None
        operands.append(array)
    array = _OPERATIONS[node.name](node, *operands)
    return None if array is None else np.asarray(array).astype(bool if result.dtype == "i1" else np.int64)


def _constant(node: Node) -> Array | None:
    literal, shape = node.attributes["literal"], node.result.sizes
    if literal.element is not None:
        text = literal.element
        return np.full(shape, text == "true" if text in ("true", "false") else int(text, 0))
    array = literal.array()
    return None if array is None else np.asarray(array).reshape(shape)


def _broadcast(node: Node, x: Array) -> Array:
    shape, dims = node.result.sizes, node.attributes["dims"]
    wide = [1] * len(shape)
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    for k in order:
        wide[dims[k]] = x.shape[k]
    return np.broadcast_to(x.transpose(order).reshape(wide), shape)


def _iota(node: Node) -> Array:
    shape, dim = node.result.sizes, node.attributes["dim"]
    return np.broadcast_to(np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape)


def _slice(node: Node, x: Array) -> Array:
    own = node.attributes
    return x[tuple(slice(a, b, step) for a, b, step in zip(own["start"], own["limit"], own["strides"]))]


def _towards_zero(node: Node, a: Array, b: Array) -> Array | None:
    return None if not b.all() else np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


_COMPARE: dict[str, Any] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal
}  # fmt: skip
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda node, a, b: a + b,
    "and": lambda node, a, b: a & b,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda node, low, x, high: np.clip(x, low, high),
    "compare": lambda node, a, b: _COMPARE[node.attributes["direction"]](a, b),
    "concatenate": lambda node, *x: np.concatenate(x, node.attributes["dim"]),
    "constant": _constant,
    "convert": lambda node, x: x,
    "divide": _towards_zero,
    "iota": _iota,
    "maximum": lambda node, a, b: np.maximum(a, b),
    "minimum": lambda node, a, b: np.minimum(a, b),
    "multiply": lambda node, a, b: a * b,
    "negate": lambda node, x: -x,
    "or": lambda node, a, b: a | b,
    "remainder": lambda node, a, b: np.fmod(a, b) if b.all() else None,
    "reshape": lambda node, x: x.reshape(node.result.sizes),
    "select": lambda node, p, a, b: np.where(p, a, b),
    "sign": lambda node, x: np.sign(x),
    "slice": _slice,
    "subtract": lambda node, a, b: a - b,
    "transpose": lambda node, x: x.transpose(node.attributes["permutation"]),
}

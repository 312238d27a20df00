"""The elements of small integer values that depend on nothing but constants: the indices of a gather, mostly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.hlo.graphs.graph import Node, Value

Array = np.ndarray[Any, Any]

#: Larger values are not looked at.
_MOST = 1 << 20
_DEPTH = 40


def elements_of(value: Value) -> Array | None:
    """The elements as int64 (bool for i1), None where they depend on an argument or on an operation unknown here."""
    known: dict[Value, Array | None] = {}
    return _elements(value, known, _DEPTH)


def _elements(value: Value, known: dict[Value, Array | None], depth: int) -> Array | None:
    if value not in known:
        known[value] = None
        node = value.operation
        if node is not None and depth and value.shape is not None and np.prod(value.shape) <= _MOST:
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

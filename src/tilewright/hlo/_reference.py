"""Evaluate a graph with numpy in float64: a reference that owes nothing to XLA.

XLA's own CPU backend can be wrong under jit, so a check of a rewrite compares with this too. Floating values are kept
in float64 and complex128, integers in their own widths. Operations it does not know raise UnsupportedError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo._cost import xla_dtype
from tilewright.hlo._graph import Block, Operation, Value
from tilewright.hlo._ir import ir

__all__ = ["evaluate", "own_dtype", "wide_dtype"]

Array = np.ndarray[Any, Any]
_UNARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "cbrt": np.cbrt, "ceil": np.ceil, "cosine": np.cos, "exponential": np.exp,
    "exponential_minus_one": np.expm1, "floor": np.floor, "imag": np.imag, "is_finite": np.isfinite, "log": np.log,
    "log_plus_one": np.log1p, "logistic": lambda x: 1 / (1 + np.exp(-x)), "negate": np.negative, "not": np.invert,
    "real": np.real, "round_nearest_even": np.round, "rsqrt": lambda x: 1 / np.sqrt(x), "sign": np.sign, "sine": np.sin,
    "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh, "chlo.square": np.square, "chlo.erf": np.vectorize(math.erf),
}  # fmt: skip
_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "and": np.bitwise_and, "atan2": np.arctan2, "complex": lambda a, b: a + 1j * b,
    "maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply, "or": np.bitwise_or, "power": np.power,
    "remainder": np.fmod,
    "subtract": np.subtract, "xor": np.bitwise_xor,
}  # fmt: skip
_COMPARE: dict[str, Callable[..., Any]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def wide_dtype(element_type: str) -> np.dtype[Any]:
    """The numpy type that holds values of an MLIR element type exactly."""
    name = xla_dtype(element_type)
    if name == "pred":
        return np.dtype(bool)
    if name[0] in "su" and name[1:].isdigit():
        return np.dtype((_SIGNED if name[0] == "s" else _UNSIGNED)[max(8, int(name[1:]))])
    return np.dtype(np.complex128 if name[0] == "c" else np.float64)


def own_dtype(element_type: str) -> np.dtype[Any]:
    """The numpy type of an MLIR element type itself."""
    name = xla_dtype(element_type)
    wide: np.dtype[Any] = wide_dtype(element_type)
    if wide.kind in "biu":
        return wide
    plain = {"f16": "float16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128"}
    if name in plain:
        return np.dtype(plain[name])
    found = getattr(ml_dtypes, "bfloat16" if name == "bf16" else f"float{name[1:].replace('e', '_e', 1)}", None)
    if found is None:
        raise UnsupportedError(f"numpy has no element type {name}")
    dtype: np.dtype[Any] = np.dtype(found)
    return dtype


def evaluate(block: Block, arguments: Sequence[Array]) -> list[Array]:
    """The values of a function body's results. Floating arguments are widened to float64 first."""
    values: dict[Value, Array] = {}
    for parameter, array in zip(block.arguments, arguments):
        values[parameter] = np.asarray(array).astype(wide_dtype(parameter.dtype))
    with np.errstate(all="ignore"):
        for op in block.operations[:-1]:
            operands = [values[v] for v in op.operands]
            values[op.result] = np.asarray(_one(op, operands)).astype(wide_dtype(op.result.dtype), copy=False)
    return [values[v] for v in block.operations[-1].operands]


def _one(op: Operation, x: list[Array]) -> Any:
    if op.name in _UNARY:
        return _UNARY[op.name](x[0])
    if op.name in _BINARY:
        return _BINARY[op.name](x[0], x[1])
    if op.name in _OTHERS:
        return _OTHERS[op.name](op, x)
    raise UnsupportedError(f"the float64 reference does not know {op.name}")


def _attribute(op: Operation, name: str) -> Any:
    origin = op if op.handle is not None else op.like
    assert origin is not None
    return origin.handle.attributes[name]


def _divide(op: Operation, x: list[Array]) -> Array:
    a, b = x
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    safe = np.where(b == 0, 1, b)
    down = a // safe
    towards_zero = down + ((a % safe != 0) & ((a < 0) != (b < 0)))  # numpy rounds down, StableHLO towards zero
    return np.where(b == 0, np.invert(np.zeros_like(a)), towards_zero)


def _reduce(op: Operation, x: list[Array]) -> Array:
    monoid, dims = op.attributes.get("monoid"), op.attributes["dims"]
    if monoid is None:
        raise UnsupportedError("the float64 reference does not know reductions of other bodies")
    ufunc: Any = _BINARY[monoid]
    return np.asarray(ufunc(x[1], ufunc.reduce(x[0], axis=dims, dtype=x[0].dtype, initial=_start(monoid, x[0].dtype))))


def _start(monoid: str, dtype: np.dtype[Any]) -> Any:
    """The identity of a monoid; -0.0 for floating sums, as +0.0 would swallow a -0.0."""
    if monoid in ("maximum", "minimum"):
        low = monoid == "maximum"
        if dtype.kind == "b":
            return not low
        if dtype.kind in "iu":
            return np.iinfo(dtype).min if low else np.iinfo(dtype).max
        return -np.inf if low else np.inf
    if monoid == "and":
        return True if dtype.kind == "b" else np.invert(np.zeros((), dtype))
    if monoid == "add" and dtype.kind in "fc":
        return -0.0 if dtype.kind == "f" else complex(-0.0, -0.0)
    return 1 if monoid == "multiply" else 0


def _broadcast(op: Operation, x: list[Array]) -> Array:
    shape, dims = op.result.shape or (), op.attributes["dims"]
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    wide = [1] * len(shape)
    for k in order:
        wide[dims[k]] = x[0].shape[k]
    return np.broadcast_to(x[0].transpose(order).reshape(wide), shape)


def _constant(op: Operation, x: list[Array]) -> Array:
    literal, result = op.attributes["literal"], op.result
    dtype = wide_dtype(result.dtype)
    if literal.element is None:
        found = literal.array()
        if found is None:
            raise UnsupportedError(f"the float64 reference cannot read a constant of type {result!r}")
        return np.asarray(found).reshape(result.shape or ()).astype(dtype)
    return np.full(result.shape or (), _number(literal.element, result.dtype), dtype)


def _number(text: str, element_type: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text.startswith("0x") and not element_type.lstrip("us").startswith("i"):
        bits = int(text, 16)
        kinds: dict[str, tuple[Any, Any]] = {
            "f64": (np.uint64, np.float64), "f32": (np.uint32, np.float32), "f16": (np.uint16, np.float16)
        }  # fmt: skip
        if element_type == "bf16":
            return np.uint32(bits << 16).view(np.float32)
        word, kind = kinds[element_type]
        return word(bits).view(kind)
    if text.startswith("("):
        real, imaginary = text.strip("()").split(",")
        return complex(float(real), float(imaginary))
    return float(text) if any(c in text for c in ".eE") else int(text, 0)


def _compare(op: Operation, x: list[Array]) -> Array:
    direction = str(_attribute(op, "comparison_direction")).rpartition(" ")[2].rstrip(">")
    return np.asarray(_COMPARE[direction](x[0], x[1]))


def _convert(op: Operation, x: list[Array]) -> Array:
    kind = wide_dtype(op.result.dtype)
    return np.asarray(x[0] != 0 if kind.kind == "b" else x[0].astype(kind))


def _iota(op: Operation, x: list[Array]) -> Array:
    shape, dim = op.result.shape or (), int(ir.IntegerAttr(_attribute(op, "iota_dimension")).value)
    wide = [1] * len(shape)
    wide[dim] = shape[dim]
    return np.broadcast_to(np.arange(shape[dim]).reshape(wide), shape)


_OTHERS: dict[str, Callable[[Operation, list[Array]], Any]] = {
    "broadcast_in_dim": _broadcast,
    "clamp": lambda op, x: np.minimum(np.maximum(x[1], x[0]), x[2]),
    "compare": _compare,
    "constant": _constant,
    "convert": _convert,
    "divide": _divide,
    "iota": _iota,
    "reduce": _reduce,
    "reshape": lambda op, x: x[0].reshape(op.result.shape or ()),
    "select": lambda op, x: np.where(x[0], x[1], x[2]),
    "transpose": lambda op, x: x[0].transpose(op.attributes["permutation"]),
}

"""A graph evaluated with numpy in float64, which owes nothing to XLA: what the tests of values hold programs to.

Floating values are kept in float64 and complex128, integers in their own widths. Operations it does not know raise
UnsupportedError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError
from tilewright.hlo.graphs.graph import Block, Node, Value, numpy_dtype
from tilewright.layout.index.types import xla_dtype

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
    "maximum": np.maximum, "minimum": np.minimum, "multiply": np.multiply, "or": np.bitwise_or,
    "power": lambda a, b: _integer_power(a, b) if a.dtype.kind in "iu" else np.power(a, b),
    "remainder": lambda a, b: np.where(b == 0, a, np.fmod(a, b)) if a.dtype.kind in "iu" else np.fmod(a, b),
    "subtract": np.subtract, "xor": np.bitwise_xor,
}  # fmt: skip
_COMPARE: dict[str, Callable[..., Any]] = {
    "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
}  # fmt: skip
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def wide_dtype(element_type: str) -> np.dtype[Any]:
    """The numpy type that holds values of an MLIR element type exactly, and wraps where it does."""
    name = xla_dtype(element_type)
    if name == "pred":
        return np.dtype(bool)
    if name[0] in "su" and name[1:].isdigit():
        integer = (_SIGNED if name[0] == "s" else _UNSIGNED).get(int(name[1:]))
        if integer is None:
            raise UnsupportedError(f"the float64 reference has no integers of type {name}")
        return np.dtype(integer)
    return np.dtype(np.complex128 if name[0] == "c" else np.float64)


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


def _one(op: Node, x: list[Array]) -> Any:
    """The value of one operation; what numpy cannot do with these operands is as unknown as an unknown operation."""
    try:
        return _value(op, x)
    except (ValueError, TypeError, KeyError, OverflowError, ArithmeticError) as error:
        raise UnsupportedError(f"the float64 reference cannot evaluate this {op.name}: {error}") from error


def _value(op: Node, x: list[Array]) -> Any:
    if op.name in _UNARY:
        return _UNARY[op.name](x[0])
    if op.name in _BINARY:
        return _BINARY[op.name](x[0], x[1])
    if op.name in _OTHERS:
        return _OTHERS[op.name](op, x)
    raise UnsupportedError(f"the float64 reference does not know {op.name}")


def _divide(op: Node, x: list[Array]) -> Array:
    a, b = x
    if a.dtype.kind not in "iu":
        return np.asarray(a / b)
    safe = np.where(b == 0, 1, b)
    down = a // safe
    towards_zero = down + ((a % safe != 0) & ((a < 0) != (b < 0)))  # numpy rounds down, StableHLO towards zero
    return np.where(b == 0, np.invert(np.zeros_like(a)), towards_zero)


def _integer_power(a: Array, b: Array) -> Array:
    """XLA's: a negative exponent gives 0, except of 1 and -1."""
    power = np.power(a, np.maximum(b, 0))
    if a.dtype.kind == "u":
        return np.asarray(power)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, power)


def _reduce(op: Node, x: list[Array]) -> Array:
    monoid, dims = op.attributes.get("monoid"), op.attributes["dims"]
    if monoid is None:
        raise UnsupportedError("the float64 reference knows only reductions by one operation")
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


def _broadcast(op: Node, x: list[Array]) -> Array:
    shape, dims = op.result.shape or (), op.attributes["dims"]
    order = sorted(range(len(dims)), key=lambda k: dims[k])
    wide = [1] * len(shape)
    for k in order:
        wide[dims[k]] = x[0].shape[k]
    return np.broadcast_to(x[0].transpose(order).reshape(wide), shape)


def _constant(op: Node, x: list[Array]) -> Array:
    literal, result = op.attributes["literal"], op.result
    dtype = wide_dtype(result.dtype)
    if literal.element is None:
        array = literal.array()
        if array is None:
            array = _written(literal.elements, result)
        return np.asarray(array).reshape(result.shape or ()).astype(dtype)
    return np.full(result.shape or (), _number(literal.element, result.dtype), dtype)


def _written(elements: list[str] | bytes | None, result: Value) -> Array:
    if elements is None:
        raise UnsupportedError(f"the float64 reference cannot read a constant of type {result!r}")
    if isinstance(elements, bytes):
        return np.frombuffer(elements, numpy_dtype(result.dtype))
    return np.array([_number(element, result.dtype) for element in elements])


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
        part = element_type.removeprefix("complex<").rstrip(">")
        return complex(_number(real.strip(), part), _number(imaginary.strip(), part))
    return float(text) if any(c in text for c in ".eE") else int(text, 0)


def _compare(op: Node, x: list[Array]) -> Array:
    return np.asarray(_COMPARE[op.attributes["direction"]](x[0], x[1]))


def _convert(op: Node, x: list[Array]) -> Array:
    kind, array = wide_dtype(op.result.dtype), x[0]
    if kind.kind == "b":
        return np.asarray(array != 0)
    if array.dtype.kind == "c" and kind.kind != "c":
        array = array.real
    if array.dtype.kind == "f" and kind.kind in "iu":
        return _saturate(array, kind)
    return np.asarray(array.astype(kind))


def _saturate(x: Array, kind: np.dtype[Any]) -> Array:
    """Towards zero; beyond the range its ends, and 0 for what is not a number, as XLA does."""
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    inside = (x > float(low)) & (x < float(high))
    whole = np.where(inside, x, 0).astype(kind)
    return np.where(x >= float(high), high, np.where(x <= float(low), low, whole)).astype(kind)


def _iota(op: Node, x: list[Array]) -> Array:
    shape, dim = op.result.shape or (), op.attributes["dim"]
    wide = [1] * len(shape)
    wide[dim] = shape[dim]
    return np.broadcast_to(np.arange(shape[dim]).reshape(wide), shape)


def _dot(op: Node, x: list[Array]) -> Array:
    own = op.attributes
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    names = [[""] * array.ndim for array in x]
    for left, right in (("lhs_batch", "rhs_batch"), ("lhs_contract", "rhs_contract")):
        for i, j in zip(own[left], own[right]):
            names[0][i] = names[1][j] = next(letters)
    batch = "".join(names[0][d] for d in own["lhs_batch"])
    free = []
    for side in names:
        for d, name in enumerate(side):
            if not name:
                side[d] = next(letters)
                free.append(side[d])
    subscripts = f"{''.join(names[0])},{''.join(names[1])}->{batch}{''.join(free)}"
    kind = wide_dtype(op.result.dtype)
    return np.asarray(np.einsum(subscripts, x[0].astype(kind), x[1].astype(kind), optimize=True))


def _padded(array: Array, fill: Any, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Array:
    """StableHLO's pad: negative sizes cut off."""
    for d in range(array.ndim):
        size = array.shape[d] + max(array.shape[d] - 1, 0) * interior[d]
        wide = np.full((*array.shape[:d], size, *array.shape[d + 1 :]), fill, array.dtype)
        wide[(slice(None),) * d + (slice(None, None, interior[d] + 1),)] = array
        cut = wide[(slice(None),) * d + (slice(max(-low[d], 0), size - max(-high[d], 0)),)]
        widths = [(max(low[d], 0), max(high[d], 0)) if k == d else (0, 0) for k in range(array.ndim)]
        array = np.pad(cut, widths, constant_values=fill)
    return array


def _windows(array: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """A view with the places of a window behind the array's own dims."""
    reach = [(size - 1) * step + 1 for size, step in zip(window, dilation)]
    view = np.lib.stride_tricks.sliding_window_view(array, reach)
    places = tuple(slice(None, None, step) for step in strides)
    return np.asarray(view[places + tuple(slice(None, None, step) for step in dilation)])


def _reduce_window(op: Node, x: list[Array]) -> Array:
    own, monoid = op.attributes, op.attributes.get("monoid")
    if monoid is None:
        raise UnsupportedError("the float64 reference knows only reductions by one operation")
    gaps = [step - 1 for step in own["base_dilation"]]
    start = _start(monoid, x[0].dtype)
    array = _padded(x[0], start, [low for low, _ in own["padding"]], [high for _, high in own["padding"]], gaps)
    windows = _windows(array, own["window"], own["strides"], own["window_dilation"])
    ufunc: Any = _BINARY[monoid]
    axes = tuple(range(x[0].ndim, 2 * x[0].ndim))
    return np.asarray(ufunc(x[1], ufunc.reduce(windows, axis=axes, dtype=x[0].dtype, initial=start)))


def _convolution(op: Node, x: list[Array]) -> Array:
    own = op.attributes
    if own["batch_groups"] != 1:
        raise UnsupportedError("the float64 reference knows no convolutions with batch groups")
    spatial = [str(k) for k in range(x[0].ndim - 2)]
    places = [["bf", "oi", "bf"][k] for k in range(3)]
    order = [[own["numbers"][k].index(c) for c in (*places[k], *spatial)] for k in range(3)]
    kind = wide_dtype(op.result.dtype)
    value, kernel = x[0].transpose(order[0]).astype(kind), x[1].transpose(order[1]).astype(kind)
    turned = tuple(k + 2 for k, flag in enumerate(own["reversal"]) if flag)
    kernel = np.flip(kernel, turned) if turned else kernel
    low, high = ([0, 0, *(pair[k] for pair in own["padding"])] for k in range(2))
    value = _padded(value, 0, low, high, [0, 0, *(step - 1 for step in own["lhs_dilation"])])
    windows = _windows(value, [1, 1, *kernel.shape[2:]], [1, 1, *own["strides"]], [1, 1, *own["rhs_dilation"]])
    windows = windows.reshape(*windows.shape[: value.ndim], *kernel.shape[2:])
    groups, rank = own["groups"], len(spatial)
    batch, out = value.shape[0], windows.shape[2 : 2 + rank]
    windows = windows.reshape(batch, groups, value.shape[1] // groups, *windows.shape[2:])
    kernel = kernel.reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:])
    window_axes = list(range(30, 30 + rank))
    result = np.einsum(
        windows, [0, 1, 2, *range(3, 3 + rank), *window_axes], kernel, [1, 29, 2, *window_axes],
        [0, 1, 29, *range(3, 3 + rank)],
    )  # fmt: skip
    result = result.reshape(batch, -1, *out)
    return np.asarray(result.transpose(np.argsort(order[2])))


_INTO = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


def _scatter(op: Node, x: list[Array]) -> Array:
    """An update whose window is not all inside is left out."""
    own, (array, indices, updates) = op.attributes, x
    if own.get("monoid") not in _INTO:
        raise UnsupportedError("the float64 reference knows only scatters by one operation")
    vectors = np.moveaxis(np.expand_dims(indices, -1) if own["index_dim"] == indices.ndim else indices,
                          own["index_dim"], -1)  # fmt: skip
    scattered = [d for d in range(updates.ndim) if d not in own["window_dims"]]
    places = np.indices(updates.shape)
    at = tuple(places[d] for d in scattered)
    windows = iter(own["window_dims"])
    where, inside = [], np.ones(updates.shape, bool)
    for dim, size in enumerate(array.shape):
        start = np.zeros(updates.shape, np.int64)
        window = 1
        if dim in own["index_map"]:
            start = vectors[(*at, own["index_map"].index(dim))].astype(np.int64)
        if dim in own["batch"]:
            vector_dim = own["indices_batch"][own["batch"].index(dim)]
            start = at[vector_dim - (vector_dim > own["index_dim"])]
        offset = np.zeros(updates.shape, np.int64)
        if dim not in own["inserted"] and dim not in own["batch"]:
            along = next(windows)
            offset, window = places[along], updates.shape[along]
        inside &= (start >= 0) & (start <= size - window)
        where.append(start + offset)
    result = array.copy()
    _INTO[own["monoid"]].at(result, tuple(place[inside] for place in where), updates[inside])
    return result


def _gather(op: Node, x: list[Array]) -> Array:
    own, operand, indices = op.attributes, x[0], x[1].astype(np.int64)
    index_dim, sizes, result = own["index_dim"], own["sizes"], op.result.sizes
    if index_dim == indices.ndim:
        indices = indices[..., None]
    indices = np.moveaxis(indices, index_dim, -1)
    batch_dims = [d for d in range(len(result)) if d not in own["offset_dims"]]
    kept = [d for d in range(operand.ndim) if d not in (*own["collapsed"], *own["batch"])]
    grid = np.indices(result, sparse=True)
    places: list[Any] = [0] * operand.ndim
    batch_grid = tuple(grid[d] for d in batch_dims)
    for k, d in enumerate(own["index_map"]):
        places[d] = np.clip(indices[(*batch_grid, k)], 0, operand.shape[d] - sizes[d])
    for d, k in zip(own["batch"], own["indices_batch"]):
        places[d] = batch_grid[k - (k > index_dim)]
    for offset, d in zip(sorted(own["offset_dims"]), kept):
        places[d] = places[d] + grid[offset]
    return np.asarray(operand[tuple(np.broadcast_arrays(*places))] if places else operand)


def _dynamic_slice(op: Node, x: list[Array]) -> Array:
    sizes = op.attributes["sizes"]
    starts = [int(np.clip(int(s), 0, full - size)) for s, full, size in zip(x[1:], x[0].shape, sizes)]
    return x[0][tuple(slice(start, start + size) for start, size in zip(starts, sizes))]


def _slice(op: Node, x: list[Array]) -> Array:
    own = op.attributes
    return x[0][tuple(slice(a, b, step) for a, b, step in zip(own["start"], own["limit"], own["strides"]))]


_OTHERS: dict[str, Callable[[Node, list[Array]], Any]] = {
    "concatenate": lambda op, x: np.concatenate(x, op.attributes["dim"]),
    "convolution": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "scatter": _scatter,
    "pad": lambda op, x: _padded(x[0], x[1], op.attributes["low"], op.attributes["high"], op.attributes["interior"]),
    "reduce_window": _reduce_window,
    "reverse": lambda op, x: np.flip(x[0], op.attributes["dims"]),
    "slice": _slice,
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

"""Every step held against XLA, on the machine's own inputs of that step; and how far two evaluations may lie apart.

What IEEE determines (sums of two, products, quotients, conversions) has no room at all. A function has a few units in
its last place, a sum of many terms what rounding after every addition may come to, in any of the usual orders; and both
are carried on through what follows. So a small element beside large ones is held to its own size.

    allowed(result) = what the operands' errors become + what this operation adds + rounding to its type
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isqrt, prod

import numpy as np

from tilewright.errors import CheckFailed, UnsupportedError
from tilewright.hlo import Node, Value, array_dtype
from tilewright.isa.compiler.running import Execution
from tilewright.isa.language.errors import Array
from tilewright.isa.lowering.reading import LAYOUT
from tilewright.isa.lowering.sources import Step
from tilewright.isa.lowering.tables import folded_array


def check_step(execution: Execution, step: Step) -> None:
    """Raise :class:`CheckFailed` where a step's values are not XLA's.

    What XLA makes of all its operations together is asked first; it may round less often, so each of them alone is
    asked then. Floats may differ at an element by what rounding may come to at that element.
    """
    if step.fallback:
        return
    if step.copied is not None:
        _check_copy(execution, step)
    if not step.outputs:
        return
    xla = execution.lowering.reading.xla
    arrays = [execution.value(v) for v in step.inputs]
    found = [execution.value(v) for v in step.outputs]
    values: dict[Value, Array]
    try:
        together = xla.of(step.nodes, step.inputs, step.outputs, arrays)
        pairs = zip(found, together, strict=True)
        if all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs):
            return
        values = xla.each(step.nodes, step.inputs, arrays)
    except UnsupportedError:  # some products of narrow floats, on a CPU
        values = xla.each(step.nodes, step.inputs, arrays, {"dot_general": exact_product})
        together = [values[v] for v in step.outputs]
    allowed = allowances(step.nodes, values)
    problems: list[str] = []
    for wanted in (together, [values[v] for v in step.outputs]):
        several = zip(step.outputs, found, wanted, strict=True)
        problems = [text for v, have, want in several if (text := difference(have, want, allowed.get(v)))]
        if not problems:
            return
    raise CheckFailed(f"layer {step.name} ({step.unit}): {problems[0]}", where="against XLA")


def _check_copy(execution: Execution, step: Step) -> None:
    assert step.copied is not None
    source, table, groups = step.copied
    value = next(v for v, places in execution.lowering.places.items() if any(p.table == table for p in places))
    have = execution.machine.tensor(table)
    root = execution.lowering.reading.root(value)
    before = [p.table for p in execution.lowering.places.get(root, []) if p.table != table]
    if not before:
        return
    stood = execution.in_table(root, execution.lowering.places[root][0].table)
    want = folded_array(stood if value is root else execution.value(value), groups).view(have.dtype)
    if have.tobytes() != want.tobytes():
        where = np.argwhere(have != want)
        raise CheckFailed(f"layer {step.name} (copy of {source.table}): wrong from {where[0].tolist()} of {table} on")


def difference(have: Array, want: Array, allowed: Array | None) -> str:
    """What is wrong, "" where nothing is: equal, or apart by no more than ``allowed`` at that element."""
    if have.shape != want.shape or have.dtype != want.dtype:
        return f"{have.dtype}{list(have.shape)} where {want.dtype}{list(want.shape)} was expected"
    one, other = have.astype(np.float64), want.astype(np.float64)
    wrong = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    if have.dtype.kind not in "iub":  # XLA makes 0 of such numbers on a CPU
        wrong &= ~((np.abs(one) < SMALLEST) & (np.abs(other) < SMALLEST))
    if allowed is not None:
        with np.errstate(invalid="ignore"):
            wrong &= ~(np.abs(one - other) <= allowed)
    if not wrong.any():
        return ""
    first = tuple(np.argwhere(wrong)[0].tolist())
    room = "" if allowed is None or not allowed[first] else f", {allowed[first]:.2g} apart at most"
    several = f"{int(wrong.sum())} of {wrong.size} values differ, first {list(first)}"
    return f"{several}: {have[first]}, XLA {want[first]}{room}"


# How far two evaluations of some operations may lie apart, element by element.


UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The most that rounding to a type changes a number by, relatively."""
UNITS |= {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
_SINGLE = UNITS["float32"]
_FUNCTION = 8
"""Units of float32 that a function's two values may lie apart."""
SMALLEST = 2.0**-126
"""Below it XLA makes 0 of float32 numbers on a CPU."""
_MONOTONE: dict[str, Callable[[Array], Array]] = {
    "exponential": np.exp, "exponential_minus_one": np.expm1, "log": np.log, "log_plus_one": np.log1p,
    "sqrt": np.sqrt, "tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)), "rsqrt": lambda x: x**-0.5,
    "floor": np.floor, "ceil": np.ceil, "round_nearest_even": np.rint, "sign": np.sign, "cbrt": np.cbrt,
}  # fmt: skip
_COMPOSED = frozenset({"exponential_minus_one", "log_plus_one", "logistic"})
"""Of several operations in XLA, each rounded to the type: two roundings more."""
_DETERMINED = frozenset({"floor", "ceil", "round_nearest_even", "sign", "sqrt"})


def allowances(nodes: Sequence[Node], values: Mapping[Value, Array]) -> dict[Value, Array]:
    """For each result of ``nodes`` that is not determined: how far apart two evaluations may lie, as float64.

    ``values``: of everything these operations take and make, as one evaluation found them.
    """
    errors: dict[Value, Array] = {}
    for value, array in values.items():
        if value.operation not in nodes and array.dtype.name in UNITS:
            size = np.abs(_wide(array))
            tiny = np.where(size < SMALLEST, size, 0.0)
            if tiny.any():
                errors[value] = tiny
    with np.errstate(all="ignore"):
        for node in nodes:
            for result in node.results:
                found = _error(node, values, errors)
                if found is not None:
                    errors[result] = _rounded(found, values[result])
    return errors


def _rounded(error: Array, made: Array) -> Array:
    """The error with what rounding to the type may add to it; infinite results have none."""
    value = np.abs(_wide(made))
    error = np.broadcast_to(error, made.shape)
    unit = UNITS.get(made.dtype.name)
    if unit is not None:
        error = np.where(error > 0, error + 2 * unit * value + SMALLEST, 0.0)
    return np.where(np.isfinite(value), error, 0.0)


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _error(node: Node, values: Mapping[Value, Array], errors: Mapping[Value, Array]) -> Array | None:
    """The error of a node's result before rounding; None where the result is determined."""
    x = [_wide(values[v]) for v in node.operands]
    e = [errors.get(v) for v in node.operands]
    made, name, own = values[node.result], node.name, node.attributes
    floats = made.dtype.name in UNITS
    if name in ("dot_general", "convolution"):
        return _products(node, x) if floats else None
    if name in ("reduce", "reduce_window"):
        return _reduced(node, x[0], e[0], UNITS.get(made.dtype.name, 0.0))
    if name in LAYOUT or name == "concatenate":  # what only moves elements moves their errors
        if all(each is None for each in e):
            return None
        full = [np.broadcast_to(0.0 if each is None else each, v.shape) for each, v in zip(e, x, strict=True)]
        return np.concatenate(full, own["dim"]) if name == "concatenate" else node.rearranged(full[0])
    certain = all(each is None or not each.any() for each in e)
    function = name in _MONOTONE or name in ("chlo.erf", "power")
    if certain and (name in _DETERMINED or not function or not floats):
        return _vanishing(_ARITHMETIC[name](*x)) if floats and name in _ARITHMETIC else None
    none = np.zeros(())
    errs = [none if each is None else each for each in e]
    y = np.abs(_wide(made))
    if name in _MONOTONE:
        unit = UNITS.get(made.dtype.name, 0.0) if name in _COMPOSED else 0.0
        own_error = 0.0 if name in _DETERMINED else (_FUNCTION * _SINGLE + 2 * unit) * y + SMALLEST
        return _between(_MONOTONE[name], x[0], errs[0]) + own_error
    if name == "chlo.erf":
        return 1.13 * errs[0] + _FUNCTION * _SINGLE * y
    if name == "power":
        exponent = np.abs(x[1] * np.log(np.maximum(np.abs(x[0]), SMALLEST)))
        moved = np.abs(x[1]) * errs[0] / np.abs(x[0]) + np.abs(np.log(np.abs(x[0]))) * errs[1]
        moved = np.where(np.isfinite(moved), moved, 0.0) + (_FUNCTION + 4 * exponent) * _SINGLE
        return np.asarray(y * np.expm1(moved))
    if name == "convert":
        return _converted(made, x[0], errs[0])
    if name in _RULES:
        lost = _vanishing(_ARITHMETIC[name](*x)) if floats and name in _ARITHMETIC else None
        return _RULES[name](node, x, errs) + (0.0 if lost is None else lost)
    return np.where(sum(np.broadcast_to(each, made.shape) for each in errs) > 0, np.inf, 0.0)


_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "chlo.square": np.square
}  # fmt: skip


def _vanishing(exact: Array) -> Array | None:
    """The error where a result is so small that XLA may flush it to 0; None where none is."""
    tiny = (exact != 0) & (np.abs(exact) < SMALLEST)
    return np.where(tiny, SMALLEST, 0.0) if tiny.any() else None


def _between(function: Callable[[Array], Array], x: Array, error: Array) -> Array:
    """The error of ``function(x)`` where ``x`` has this error, for a monotone function."""
    here = function(x)
    up, down = np.abs(function(x + error) - here), np.abs(here - function(x - error))
    moved = np.fmax(up, down)
    return np.where(error > 0, np.where(np.isnan(moved), np.inf, moved), 0.0)


def _converted(made: Array, x: Array, error: Array) -> Array:
    if made.dtype.kind == "b":
        return np.where((np.abs(x) <= error) & (error > 0), 1.0, 0.0)
    if made.dtype.name in UNITS:
        return error
    ends = np.iinfo(made.dtype)
    return _between(lambda v: np.clip(np.trunc(v), ends.min, ends.max), x, error)


def _compared(_node: Node, x: list[Array], e: list[Array]) -> Array:
    """1 where the operands' errors may change the answer of a comparison."""
    near = e[0] + e[1]
    return np.where((np.abs(x[0] - x[1]) <= near) & (near > 0), 1.0, 0.0)


def _selected(_node: Node, x: list[Array], e: list[Array]) -> Array:
    chosen = np.where(x[0] != 0, e[1], e[2])
    either = np.abs(x[1] - x[2]) + np.maximum(e[1], e[2])
    return np.where(e[0] > 0, np.where(np.isnan(either), np.inf, either), chosen)


def _quotient(_node: Node, x: list[Array], e: list[Array]) -> Array:
    least = np.abs(x[1]) - e[1]
    moved = (e[0] + np.abs(x[0] / x[1]) * e[1]) / least
    return np.where(e[0] + e[1] > 0, np.where(least > 0, moved, np.inf), 0.0)


def _multiplied(_node: Node, x: list[Array], e: list[Array]) -> Array:
    terms = [np.where(a > 0, a * b, 0.0) for a, b in ((e[1], np.abs(x[0])), (e[0], np.abs(x[1])), (e[0], e[1]))]
    return np.asarray(terms[0] + terms[1] + terms[2])


_RULES: dict[str, Callable[[Node, list[Array], list[Array]], Array]] = {
    **dict.fromkeys(("add", "subtract"), lambda _, x, e: e[0] + e[1]),
    **dict.fromkeys(("maximum", "minimum", "and", "or", "xor"), lambda _, x, e: np.maximum(e[0], e[1])),
    **dict.fromkeys(("negate", "abs", "not"), lambda _, x, e: e[0]),
    "chlo.square": lambda _, x, e: 2 * np.abs(x[0]) * e[0] + e[0] ** 2,
    "is_finite": lambda _, x, e: np.zeros(()),
    "clamp": lambda _, x, e: np.maximum(e[1], np.maximum(e[0], e[2])),
    "compare": _compared,
    "select": _selected,
    "divide": _quotient,
    "multiply": _multiplied,
}
"""What errors of operands become."""


# Sums.


def running(terms: Array) -> Array:
    """All partial sums along the last dim, in size: what rounding after every addition is in proportion to."""
    return np.asarray(np.abs(np.cumsum(terms, -1)).sum(-1) + np.abs(terms).sum(-1))


def _reduced(node: Node, x: Array, error: Array | None, unit: float) -> Array | None:
    own = node.attributes
    if error is None and (own["monoid"] != "add" or not unit):
        return None
    if own["monoid"] != "add":
        assert error is not None
        best = np.max if own["monoid"] in ("maximum", "or") else np.min
        fill = -np.inf if own["monoid"] in ("maximum", "or") else np.inf
        here, up, down = (best(_terms(node, each, fill), -1) for each in (x, x + error, x - error))
        return np.asarray(np.maximum(np.abs(up - here), np.abs(here - down)))
    terms = _terms(node, x, 0.0)
    found = 2 * unit * running(terms) if terms.shape[-1] > 1 else np.zeros(terms.shape[:-1])
    carried = 0.0 if error is None else _terms(node, np.broadcast_to(error, x.shape), 0.0).sum(-1)
    return np.asarray(found + carried)


def _terms(node: Node, x: Array, fill: float) -> Array:
    """The elements that are reduced to each result, along a last dim."""
    own = node.attributes
    if node.name == "reduce":
        kept = [d for d in range(x.ndim) if d not in own["dims"]]
        shape = [x.shape[d] for d in kept]
        return x.transpose(*kept, *own["dims"]).reshape(*shape, -1)
    x = np.pad(x, own["padding"], constant_values=fill)
    return windows_of(x, own["window"], own["strides"], own["window_dilation"])


def windows_of(x: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Array:
    """Every window's elements along a last dim: [places..., elements of a window]."""
    reach = [(w - 1) * d + 1 for w, d in zip(window, dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(x, reach)
    seen = seen[tuple(slice(None, None, s) for s in strides) + tuple(slice(None, None, d) for d in dilation)]
    return seen.reshape(*seen.shape[: x.ndim], -1)


def _products(node: Node, x: list[Array]) -> Array:
    own, (a, b) = node.attributes, x
    if node.name == "dot_general":
        return _product(*node.sides(a, b)).reshape(node.result.sizes)
    (image, kernel, out), groups = own["numbers"], own["groups"]
    rank = len(image) - 2
    order = [[n.index(c) for c in (first, *map(str, range(rank)), last)] for n, first, last in (
        (image, "b", "f"), (kernel, "o", "i"), (out, "b", "f"))]  # fmt: skip
    a, b = a.transpose(order[0]), b.transpose(order[1])
    a = _spread(a, own["padding"], own["lhs_dilation"])
    b = np.flip(b, tuple(1 + d for d, turned in enumerate(own["reversal"]) if turned))
    depth, outs = b.shape[-1], b.shape[0]
    made, shape = [], [node.result.sizes[d] for d in order[2]]
    for g in range(groups):
        part = a[..., g * depth : (g + 1) * depth]
        seen = windows_of(part, (1, *b.shape[1:-1], 1), (1, *own["strides"], 1), (1, *own["rhs_dilation"], 1))
        seen = np.moveaxis(seen, -2, -1).reshape(1, prod(shape[:-1]), -1)  # [.., window, channel]
        weights = b[g * (outs // groups) : (g + 1) * (outs // groups)].reshape(1, outs // groups, -1)
        made.append(_product(seen, weights).reshape(*shape[:-1], -1))
    return np.concatenate(made, -1).transpose(np.argsort(order[2]))


def exact_product(node: Node, a: Array, b: Array) -> Array:
    """A ``dot_general`` of floats in float64, rounded once."""
    one, other = node.sides(_wide(a), _wide(b))
    made: Array = (one @ other.transpose(0, 2, 1)).reshape(node.result.sizes)
    return made.astype(array_dtype(node.result))


def _spread(a: Array, padding: Sequence[tuple[int, int]], apart: Sequence[int]) -> Array:
    """[n, ..., c] with zeros between its elements and around them, or without some at its ends."""
    for d, ((low, high), gap) in enumerate(zip(padding, apart, strict=True), 1):
        wide = np.zeros((*a.shape[:d], (a.shape[d] - 1) * gap + 1, *a.shape[d + 1 :]))
        wide[(slice(None),) * d + (slice(None, None, gap),)] = a
        cut = slice(max(0, -low), wide.shape[d] - max(0, -high))
        around = [(0, 0)] * a.ndim
        around[d] = max(0, low), max(0, high)
        a = np.pad(wide[(slice(None),) * d + (cut,)], around)
    return a


def _product(a: Array, b: Array) -> Array:
    """For [g, m, k] and [g, n, k]: partial sums every so often stand for those between, with the terms between."""
    largest = [np.max(np.abs(side), initial=0.0) or 1.0 for side in (a, b)]
    a, b = ((side / most).astype(np.float32) for side, most in zip((a, b), largest, strict=True))
    b, depth = b.transpose(0, 2, 1), a.shape[-1]
    step = ceil(depth / min(32, max(1, isqrt(depth))))
    size = np.abs(a) @ np.abs(b)
    total, partial = np.zeros_like(size), np.zeros_like(size)
    for first in range(0, depth, step):
        partial = partial + a[..., first : first + step] @ b[:, first : first + step]
        total += np.abs(partial)
    return np.asarray(2 * _SINGLE * (step * (total + size) + 2 * size), np.float64) * largest[0] * largest[1]

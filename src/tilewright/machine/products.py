"""The products of a JAX function, with their operands: what the matrix unit is given to do.

The function is traced to a jaxpr, which is evaluated equation by equation; calls (jit, custom derivatives, remat) are
entered. Taken are matrix products of any dims, batched or not, and convolutions of images, of the types that the unit
multiplies. What is left out is listed with the reason and its share of the multiply-adds: other types, convolutions
with holes in their input, and whatever stands inside loops and branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import jax
import numpy as np

from tilewright.isa import Counts, MatrixUnitConfig, conv2d, expected_conv2d_counts, expected_counts, matmul

_TYPES = {f"{kind}{bits}": bits for kind in ("int", "uint") for bits in (8, 16, 32)}
_TYPES |= {"float32": 32, "float16": 16, "bfloat16": 16}
"""Types that the unit multiplies, and their bits."""
_MOST_OF_A_BATCH = 8
"""Products of a batch that are run: all of them are of one shape, and so cost the same."""


@dataclass(frozen=True)
class Product:
    """One product: ``a`` [.., M, K], ``b`` [.., K, N] and XLA's own ``value`` [.., M, N], perhaps of a batch.

    ``window``: of a convolution, the options of :func:`tilewright.isa.conv2d`; ``a`` then has images [n, h, w, c],
    ``b`` weights [kh, kw, c / groups, out].
    """

    name: str
    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]
    window: tuple[tuple[str, Any], ...] | None = None

    @property
    def macs(self) -> int:
        """Multiply-adds."""
        if self.window is not None:
            return int(self.value.size * prod(self.b.shape[:3]))
        return int(self.value.size * self.a.shape[-1])


@dataclass(frozen=True)
class LeftOut:
    """A product that the unit is not given: what, why, and how many multiply-adds it has."""

    name: str
    why: str
    macs: int


@dataclass(frozen=True)
class Products:
    """``taken``: in program order, with operands and values; ``left``: the others."""

    taken: tuple[Product, ...]
    left: tuple[LeftOut, ...]

    @property
    def left_out(self) -> int:
        """How many are left out."""
        return len(self.left)

    @property
    def share_left_out(self) -> float:
        """Of all multiply-adds."""
        left = sum(each.macs for each in self.left)
        return left / max(1, left + sum(each.macs for each in self.taken))


class _Evaluator:
    def __init__(self) -> None:
        self.found: list[tuple[Any, Any, Any]] = []
        self.windows: list[tuple[tuple[str, Any], ...] | None] = []
        self.left: list[LeftOut] = []

    def run(self, jaxpr: Any, consts: Any, arguments: Any) -> list[Any]:
        """Evaluate a jaxpr as jax.core.eval_jaxpr would, noting every dot_general."""
        values: dict[Any, Any] = {}
        values.update(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            results = self.equation(equation, inputs)
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        inner = _inner(equation)
        if inner is not None:
            return self.run(*_open(inner), inputs)
        for body in _jaxprs(equation):
            self.left += _left_in(body, equation.primitive.name, int(equation.params.get("length", 1)))
        outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
        results = list(outputs) if equation.primitive.multiple_results else [outputs]
        if equation.primitive.name in _PRODUCTS:
            self.note(equation, inputs, results[0])
        return results

    def note(self, equation: Any, inputs: list[Any], value: Any) -> None:
        why = _refused(equation)
        if why:
            self.left.append(LeftOut(_name(equation), why, _macs(equation)))
            return
        if equation.primitive.name == "dot_general":
            a, b = inputs
            self.found.append(_as_matrices(equation.params["dimension_numbers"], a, b, value))
            self.windows.append(None)
            return
        numbers, params = equation.params["dimension_numbers"], equation.params
        (n, c, *image), (o, i, *kernel), (first, last, *out) = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
        x, w = inputs
        value = value.transpose(first, *out, last)
        self.found.append((x.transpose(n, *image, c), w.transpose(*kernel, i, o), value))
        how = {"stride": params["window_strides"], "padding": params["padding"], "dilation": params["rhs_dilation"]}
        self.windows.append((*how.items(), ("groups", params["feature_group_count"])))


_PRODUCTS = ("dot_general", "conv_general_dilated")


def _name(equation: Any) -> str:
    kind = "conv " if equation.primitive.name != "dot_general" else ""
    sides = [f"{var.aval.dtype.name}[{','.join(map(str, var.aval.shape))}]" for var in equation.invars]
    return f"{kind}{sides[0]} {'by' if kind else '@'} {sides[1]}"


def _macs(equation: Any) -> int:
    """Multiply-adds of one equation."""
    out, (a, b) = equation.outvars[0].aval, (var.aval for var in equation.invars)
    if equation.primitive.name == "dot_general":
        (axes, _), _ = equation.params["dimension_numbers"]
        return int(prod(out.shape) * prod(a.shape[axis] for axis in axes))
    outs = b.shape[equation.params["dimension_numbers"].rhs_spec[0]]
    return int(prod(out.shape) * prod(b.shape) // max(1, outs))


def _refused(equation: Any) -> str:
    """Why a product is not for the unit; "" where it is."""
    dtypes = [var.aval.dtype.name for var in equation.invars]
    if any(name not in _TYPES for name in dtypes):
        return f"elements of {' and '.join(dict.fromkeys(dtypes))}"
    integers = all("int" in name for name in dtypes)
    if dtypes[0] != dtypes[1] and not (integers and _TYPES[dtypes[0]] == _TYPES[dtypes[1]]):
        return f"elements of {' and '.join(dtypes)}"
    out = equation.outvars[0].aval.dtype.name
    if integers and out != "int32":
        return f"sums of {out}"
    if not integers and out not in _TYPES:
        return f"sums of {out}"
    if equation.primitive.name == "dot_general":
        return ""
    params = equation.params
    if len(params["window_strides"]) != 2:
        return f"a convolution of {len(params['window_strides'])} dims"
    if any(hole != 1 for hole in params["lhs_dilation"]):
        return "a convolution with holes in its input"
    if params["batch_group_count"] != 1 or any(side < 0 for pair in params["padding"] for side in pair):
        return "a convolution with groups of images, or that crops them"
    return ""


def _as_matrices(numbers: Any, a: Any, b: Any, value: Any) -> tuple[Any, Any, Any]:
    """Operands and value of a dot_general as [.., M, K], [.., K, N] and [.., M, N], with a batch where there is one."""
    (a_axes, b_axes), (a_batch, b_batch) = numbers
    sides = []
    for first, side, axes, batch in ((True, a, a_axes, a_batch), (False, b, b_axes, b_batch)):
        free = [axis for axis in range(side.ndim) if axis not in (*axes, *batch)]
        front = [prod(side.shape[axis] for axis in batch)] if batch else []
        depth, wide = (prod(side.shape[axis] for axis in group) for group in (axes, free))
        order = (*batch, *free, *axes) if first else (*batch, *axes, *free)
        sides.append(side.transpose(order).reshape(*front, *((wide, depth) if first else (depth, wide))))
    return *sides, value.reshape(*sides[0].shape[:-1], sides[1].shape[-1])


_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint")
_CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def _jaxprs(equation: Any) -> list[Any]:
    """Whatever an equation carries inside: the bodies of loops and branches."""
    bodies = []
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(_open(part)[0], "eqns"):
                bodies.append(_open(part)[0])
    return bodies


def _left_in(jaxpr: Any, where: str, times: int) -> list[LeftOut]:
    """Products a body writes down; ``times`` it runs (1 where that is not known)."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in _PRODUCTS:
            found.append(LeftOut(_name(equation), f"inside {where}", times * _macs(equation)))
        for body in _jaxprs(equation):
            found += _left_in(body, where, times * int(equation.params.get("length", 1)))
    return found


def _inner(equation: Any) -> Any:
    """The closed jaxpr of a call (not of a loop, whose body runs many times, nor of a branch), or None."""
    if equation.primitive.name not in (*_CALLS, *_CUSTOM):
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(key)
        if inner is not None and len(_open(inner)[0].invars) == len(equation.invars):
            return inner
    return None


def _open(closed: Any) -> tuple[Any, Any]:
    """The jaxpr and its constants; newer jax keeps both in one object."""
    return getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())


def find_products(fn: Callable[..., Any], *arguments: Any) -> Products:
    """Every product that ``fn(*arguments)`` computes, with its operands and XLA's value (one compilation)."""
    closed = jax.make_jaxpr(fn)(*arguments)
    evaluator = _Evaluator()

    def tapped(*leaves: Any) -> list[tuple[Any, Any, Any]]:
        evaluator.run(*_open(closed), leaves)
        return evaluator.found

    taken = jax.jit(tapped)(*jax.tree_util.tree_leaves(arguments))
    pairs = zip(taken, evaluator.windows, strict=True)
    return Products(tuple(_product(parts, window) for parts, window in pairs), tuple(evaluator.left))


def _product(parts: tuple[Any, ...], window: tuple[tuple[str, Any], ...] | None) -> Product:
    a, b, value = map(np.asarray, parts)
    of = "" if a.dtype == np.float32 else f"{a.dtype.name} "
    shapes = [f"[{','.join(map(str, side.shape))}]" for side in (a, b)]
    return Product(f"{of}{shapes[0]} {'@' if window is None else 'by'} {shapes[1]}", a, b, value, window)


# The dense layers' products of one step on the matrix unit, instruction by instruction, held against XLA.

_BOUNDS = ("l1_misses", "l2_misses", "dram_bytes")
"""Counters whose closed form holds for caches that never evict: a lower bound of a run."""


@dataclass(frozen=True)
class MatrixRun:
    """One product: the machine's counts beside the closed forms, and how far its values are from XLA's.

    ``error`` is the largest difference in units of the float32 rounding of a dot product of this depth,
    K * 2^-24 * (|a| @ |b|), and of XLA's own value where that is narrower; a value below 1 is what two orders of
    summation may differ by. Integers are equal (0) or not (infinity). Of a batch the first ``ran`` are run, and
    everything is counted for all of them.
    """

    name: str
    counts: Counts
    expected: Counts
    cycles: int
    error: float
    ran: int = 1

    @property
    def above_minimum(self) -> tuple[str, ...]:
        """The cache counters above the closed form of caches that never evict."""
        return tuple(name for name in _BOUNDS if getattr(self.counts, name) > getattr(self.expected, name))

    @property
    def counts_equal(self) -> bool:
        """Every counter equals its closed form; cache misses are at least theirs (see :attr:`above_minimum`)."""
        for field in fields(Counts):
            counted, formula = getattr(self.counts, field.name), getattr(self.expected, field.name)
            if counted < formula or (counted > formula and field.name not in _BOUNDS):
                return False
        return True

    @property
    def values_equal(self) -> bool:
        """Within the rounding of float32."""
        return self.error <= 1.0


def run_product(product: Product, config: MatrixUnitConfig) -> MatrixRun:
    """Run ``product`` on the machine and compare values and counts."""
    if product.window is not None:
        return _run_convolution(product, dict(product.window), config)
    sides = [side if side.ndim == 3 else side[None] for side in (product.a, product.b, product.value)]
    a, b, value = (np.ascontiguousarray(side[:_MOST_OF_A_BATCH]) for side in sides)
    batch, (m, k), n = len(sides[0]), a.shape[1:], b.shape[2]
    runs = [matmul(left, right, config=config) for left, right in zip(a, b, strict=True)]
    expected = expected_counts(m, n, k, config=config, element_bytes=a.itemsize)
    times = [run.counts for run in runs] + [runs[0].counts] * (batch - len(runs)) if runs else []
    cycles = sum(run.cycles for run in runs) * batch // max(1, len(runs))
    made = np.stack([run.value for run in runs]) if runs else value
    sizes = np.abs(_wide(a)) @ np.abs(_wide(b))
    error = _error(made, value, sizes, k)
    together = Counts.together([expected] * batch)
    return MatrixRun(product.name, Counts.together(times), together, cycles, error, len(runs))


def _run_convolution(product: Product, how: dict[str, Any], config: MatrixUnitConfig) -> MatrixRun:
    x, w = np.ascontiguousarray(product.a), np.ascontiguousarray(product.b)
    result = conv2d(x, w, config=config, **how)
    expected = expected_conv2d_counts(x.shape, w.shape, config=config, element_bytes=x.itemsize, **how)
    sizes = conv2d(np.abs(_wide(x)).astype(np.float32), np.abs(_wide(w)).astype(np.float32), **how).value
    error = _error(result.value, product.value, sizes, prod(w.shape[:3]))
    return MatrixRun(product.name, result.counts, expected, result.cycles, error)


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float64)


_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def _error(made: np.ndarray[Any, Any], value: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any], depth: int) -> float:
    """How far the machine's value is from XLA's; ``sizes``: the product of the absolute values."""
    if not value.size:
        return 0.0
    if value.dtype.kind in "iu":
        return 0.0 if np.array_equal(made, value) else float("inf")
    exact = _wide(value)
    allowed = depth * 2.0**-24 * sizes + _ROUNDING.get(value.dtype.name, 0.0) * np.abs(exact)
    return float((np.abs(_wide(made) - exact) / np.maximum(allowed, np.finfo(np.float32).tiny)).max())

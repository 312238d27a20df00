"""The matrix products of a JAX function, with their operands: what the matrix unit is given to do.

The function is traced to a jaxpr, which is evaluated equation by equation; calls (jit, custom derivatives, remat) are
entered. Only plain float32 products of two matrices are taken; batched ones (the pairwise dots of a recommender), other
types and those inside loops and branches are counted and left to others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np

from tilewright.isa import Counts, MatrixUnitConfig, expected_counts, matmul


@dataclass(frozen=True)
class Product:
    """One matrix product: ``a`` [M, K], ``b`` [K, N] and XLA's own ``value`` [M, N]."""

    name: str
    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Products:
    """The plain products in program order, and how many others (batched, in loops) were passed over."""

    plain: tuple[Product, ...]
    left_out: int


class _Evaluator:
    def __init__(self) -> None:
        self.found: list[tuple[Any, Any, Any]] = []
        self.left_out = 0

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
        self.left_out += sum(map(_dots_in, _jaxprs(equation)))
        outputs = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
        results = list(outputs) if equation.primitive.multiple_results else [outputs]
        if equation.primitive.name == "dot_general":
            self.note(equation, inputs, results[0])
        return results

    def note(self, equation: Any, inputs: list[Any], value: Any) -> None:
        (a_axes, b_axes), (a_batch, _) = equation.params["dimension_numbers"]
        a, b = inputs
        plain = not a_batch and a.ndim == b.ndim == 2 and len(a_axes) == 1
        if not plain or {str(x.dtype) for x in (a, b, value)} != {"float32"}:
            self.left_out += 1
            return
        self.found.append((a.T if a_axes[0] == 0 else a, b.T if b_axes[0] == 1 else b, value))


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


def _dots_in(jaxpr: Any) -> int:
    """Products a jaxpr writes down, however often they run."""
    count = 0
    for equation in jaxpr.eqns:
        count += int(equation.primitive.name == "dot_general") + sum(map(_dots_in, _jaxprs(equation)))
    return count


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
    """Every matrix product that ``fn(*arguments)`` computes, with its operands and XLA's value (one compilation)."""
    closed = jax.make_jaxpr(fn)(*arguments)
    evaluator = _Evaluator()

    def tapped(*leaves: Any) -> list[tuple[Any, Any, Any]]:
        evaluator.run(*_open(closed), leaves)
        return evaluator.found

    taken = jax.jit(tapped)(*jax.tree_util.tree_leaves(arguments))
    return Products(tuple(_product(*map(np.asarray, parts)) for parts in taken), evaluator.left_out)


def _product(a: Any, b: Any, value: Any) -> Product:
    return Product(f"[{a.shape[0]},{a.shape[1]}] @ [{b.shape[0]},{b.shape[1]}]", a, b, value)


# The dense layers' products of one step on the matrix unit, instruction by instruction, held against XLA.

_BOUNDS = ("l1_misses", "l2_misses", "dram_bytes")
"""Counters whose closed form holds for caches that never evict: a lower bound of a run."""


@dataclass(frozen=True)
class MatrixRun:
    """One product: the machine's counts beside the closed forms, and how far its values are from XLA's.

    ``error`` is the largest difference in units of the float32 rounding of a dot product of this depth,
    K * 2^-24 * (|a| @ |b|); a value below 1 is what two orders of summation may differ by.
    """

    name: str
    counts: Counts
    expected: Counts
    cycles: int
    error: float

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
    a, b = (np.ascontiguousarray(x, np.float32) for x in (product.a, product.b))
    (m, k), n = a.shape, b.shape[1]
    result = matmul(a, b, config=config)
    scale = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
    allowed = np.maximum(k * 2.0**-24 * scale, np.finfo(np.float32).tiny)
    difference = np.abs(result.value.astype(np.float64) - product.value)
    expected = expected_counts(m, n, k, config=config, element_bytes=a.itemsize)
    worst = float((difference / allowed).max()) if difference.size else 0.0
    return MatrixRun(product.name, result.counts, expected, result.cycles, worst)

"""The matrix products of a JAX function, with their operands: what the matrix unit is given to do.

The function is traced to a jaxpr, which is evaluated equation by equation; nested jaxprs (jit, custom derivatives) are
entered. Only plain products of two matrices are taken; batched ones (the pairwise dots of a recommender) are counted
and left to others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

__all__ = ["Product", "Products", "find_products"]


@dataclass(frozen=True)
class Product:
    """One matrix product: ``a`` [M, K], ``b`` [K, N] and XLA's own ``value`` [M, N]."""

    name: str
    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]
    value: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Products:
    """The plain products in program order, and how many batched ones were passed over."""

    plain: tuple[Product, ...]
    batched: int


class _Evaluator:
    def __init__(self) -> None:
        self.found: list[tuple[Any, Any, Any]] = []
        self.batched = 0

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
        found = equation.primitive.bind(*inputs, **equation.primitive.get_bind_params(equation.params))
        results = list(found) if equation.primitive.multiple_results else [found]
        if equation.primitive.name == "dot_general":
            self.note(equation, inputs, results[0])
        return results

    def note(self, equation: Any, inputs: list[Any], value: Any) -> None:
        (a_axes, b_axes), (a_batch, _) = equation.params["dimension_numbers"]
        a, b = inputs
        if a_batch or a.ndim != 2 or b.ndim != 2 or len(a_axes) != 1:
            self.batched += 1
            return
        self.found.append((a.T if a_axes[0] == 0 else a, b.T if b_axes[0] == 1 else b, value))


def _inner(equation: Any) -> Any:
    """The closed jaxpr of a call-like equation, or None."""
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
    return Products(tuple(_product(*map(np.asarray, parts)) for parts in taken), evaluator.batched)


def _product(a: Any, b: Any, value: Any) -> Product:
    return Product(f"[{a.shape[0]},{a.shape[1]}] @ [{b.shape[0]},{b.shape[1]}]", a, b, value)

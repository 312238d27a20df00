"""The products of a JAX function, with their operands: what the matrix unit is given to do, and what it makes of them.

Read off the function's StableHLO, calls put in place. Taken are matrix products of any dims, batched or not, and
convolutions of images, of the types that the unit multiplies. What is left out is listed with the reason and its share
of the multiply-adds: other types, convolutions with holes in their input, and whatever stands inside loops and
branches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from math import prod
from typing import Any

import numpy as np

from tilewright.hlo import Node, Value, XlaValues, array_dtype, from_jax, operations_of
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


def find_products(fn: Callable[..., Any], *arguments: Any) -> Products:
    """Every product that ``fn(*arguments)`` computes, with its operands and XLA's value (one compilation)."""
    program = from_jax(fn, *arguments)
    block = operations_of(program)
    nodes = block.operations[:-1]
    left = tuple(_left_out(nodes))
    taken = [node for node in nodes if node.name in _PRODUCTS and not _refusal(node)]
    wanted = list(dict.fromkeys(value for node in taken for value in (*node.operands, node.result)))
    flat = zip(program.signature.flat(arguments, {}), block.arguments, strict=True)
    given = [np.asarray(array, array_dtype(value)) for array, value in flat]
    values = dict(zip(wanted, XlaValues().of(nodes, block.arguments, wanted, given) if wanted else ()))
    return Products(tuple(_product(node, values) for node in taken), left)


_PRODUCTS = ("dot_general", "convolution")
_INSIDE = {"while": "a loop", "case": "a branch", "if": "a branch"}


def _left_out(nodes: Iterable[Node], why: str = "", times: int = 1) -> Iterator[LeftOut]:
    """The products among operations that run ``times`` times, and in their bodies, that the unit cannot take.

    ``why``: the reason that holds for all of them; "" where each has its own.
    """
    for node in nodes:
        if node.name in _PRODUCTS and (reason := why or _refusal(node)):
            yield LeftOut(_name(node), reason, times * _macs(node))
        for body in node.blocks:
            inside = why or f"inside {_INSIDE.get(node.name, node.name)}"
            yield from _left_out(body.operations, inside, times * (1 if node.trips is None else node.trips))


def _text(value: Value) -> str:
    return f"{array_dtype(value).name}[{','.join(map(str, value.sizes))}]"


def _name(node: Node) -> str:
    a, b = map(_text, node.operands)
    return f"{a} @ {b}" if node.name == "dot_general" else f"conv {a} by {b}"


def _macs(node: Node) -> int:
    (a, b), own = (operand.sizes for operand in node.operands), node.attributes
    if node.name == "dot_general":
        depth: int = prod(a[axis] for axis in own["lhs_contract"])
    else:
        depth = prod(b) // max(1, b[own["numbers"][1].index("o")])
    return depth * prod(node.result.sizes)


def _refusal(node: Node) -> str:
    """Why a product is not for the unit; "" where it is."""
    dtypes = [array_dtype(operand).name for operand in node.operands]
    if any(name not in _TYPES for name in dtypes):
        return f"elements of {' and '.join(dict.fromkeys(dtypes))}"
    integers = all("int" in name for name in dtypes)
    if dtypes[0] != dtypes[1] and not (integers and _TYPES[dtypes[0]] == _TYPES[dtypes[1]]):
        return f"elements of {' and '.join(dtypes)}"
    out = array_dtype(node.result).name
    if out != "int32" if integers else out not in _TYPES:
        return f"sums of {out}"
    if node.name == "dot_general":
        return ""
    own = node.attributes
    if len(own["strides"]) != 2:
        return f"a convolution of {len(own['strides'])} dims"
    if any(hole != 1 for hole in own["lhs_dilation"]):
        return "a convolution with holes in its input"
    if own["batch_groups"] != 1 or any(side < 0 for pair in own["padding"] for side in pair):
        return "a convolution with groups of images, or that crops them"
    return ""


def _product(node: Node, values: dict[Value, np.ndarray[Any, Any]]) -> Product:
    """A product with its operands and value in the order of dims in which the unit has them."""
    own, (a, b), value = node.attributes, (values[operand] for operand in node.operands), values[node.result]
    window = None
    if node.name == "dot_general":
        a, b, value = _as_matrices(own, a, b, value)
    else:
        orders = zip(own["numbers"], ("b01f", "01io", "b01f"), (a, b, value))
        a, b, value = (side.transpose([numbers.index(dim) for dim in order]) for numbers, order, side in orders)
        how = {"stride": own["strides"], "padding": own["padding"], "dilation": own["rhs_dilation"]}
        window = (*how.items(), ("groups", own["groups"]))
    of = "" if a.dtype == np.float32 else f"{a.dtype.name} "
    shapes = [f"[{','.join(map(str, side.shape))}]" for side in (a, b)]
    return Product(f"{of}{shapes[0]} {'@' if window is None else 'by'} {shapes[1]}", a, b, value, window)


def _as_matrices(own: dict[str, Any], a: Any, b: Any, value: Any) -> tuple[Any, Any, Any]:
    """Operands and value of a dot_general as [.., M, K], [.., K, N] and [.., M, N], with a batch where there is one."""
    sides = []
    for side, name in ((a, "lhs"), (b, "rhs")):
        axes, batch = own[f"{name}_contract"], own[f"{name}_batch"]
        free = tuple(axis for axis in range(side.ndim) if axis not in (*axes, *batch))
        matrix = (free, axes) if name == "lhs" else (axes, free)
        groups = (batch, *matrix) if batch else matrix
        sides.append(side.transpose(sum(groups, ())).reshape([prod(side.shape[axis] for axis in g) for g in groups]))
    return *sides, value.reshape(*sides[0].shape[:-1], sides[1].shape[-1])


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

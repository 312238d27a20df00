"""Inputs for trials of programs: ordinary ones, and the edges where rewrites go wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.errors import UsageError
from tilewright.hlo.graphs.graph import Block, Value, array_dtype, walk
from tilewright.hlo.proving.agreement import finfo, is_integral

Array = np.ndarray[Any, Any]
Fill = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], Array]


def _wide(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Both signs, magnitudes spread evenly over forty powers of two, as far as the type reaches."""
    reach = min(20.0, 0.4 * float(finfo(dtype).maxexp))
    return np.asarray(rng.choice([-1.0, 1.0], shape) * np.exp2(rng.uniform(-reach, reach, shape)))


def _denormal(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Below the smallest normal number, one in eight elements, the rest about one."""
    tiny = float(finfo(dtype).smallest_normal) * rng.uniform(-1, 1, shape)
    return np.where(rng.random(shape) < 0.125, tiny, rng.normal(size=shape))


def _large(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Near the largest finite number and of one sign, so that sums overflow in whatever order they are taken."""
    return np.asarray(float(finfo(dtype).max) * rng.uniform(0.25, 0.9, shape))


def _special(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Ordinary elements; in the last quarter of the first dim also NaN, infinities and zeros, one in sixty-four each.

    So some of what is reduced stays ordinary, and a NaN in the wrong place shows.
    """
    array = np.asarray(rng.normal(size=shape))
    part = array[shape[0] * 3 // 4 :] if shape else array
    places, count = rng.permutation(part.size), max(1, part.size // 64)
    flat = part.reshape(-1)  # a view: what is written here stands in the whole
    for lot, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
        flat[places[lot * count : (lot + 1) * count]] = value
    return array


#: Each kind of input: what its floating elements are. Integers are small, and of all sizes in ``wide`` and ``large``.
INPUTS: dict[str, Fill] = {
    "normal": lambda rng, shape, dtype: rng.normal(size=shape),
    "wide": _wide,
    "zeros": lambda rng, shape, dtype: np.asarray(rng.choice([0.0, -0.0], shape)),
    "denormal": _denormal,
    "large": _large,
    "lowest": lambda *given: -_large(*given),  # a maximum that starts from anything but its identity shows
    "special": _special,
}


#: The kinds under which an ordinary program computes no infinity and no NaN.
_TAME = ("normal", "wide", "zeros", "denormal")


def inputs_for(body: Block, kinds: Sequence[str] | None, assume_finite: bool = False) -> list[str]:
    """The kinds to try: all of them (the tame ones), or ``normal`` alone for a program that may never end on others."""
    for kind in kinds or ():
        if kind not in INPUTS:
            raise UsageError(f"no kind of inputs called {kind!r}", how=f"known: {', '.join(INPUTS)}")
    if kinds:
        return list(kinds)
    return ["normal"] if may_never_end(body) else list(_TAME if assume_finite else INPUTS)


def may_never_end(body: Block) -> bool:
    """Whether a loop in it runs until a condition on values holds, instead of a number of times that is known."""
    loops = [op for block in walk(body) for op in block.operations if op.name == "while"]
    return any(not _is_counted(op.blocks[0]) for op in loops)


def _is_counted(condition: Block) -> bool:
    """Only constants and one comparison of an integer that the loop carries with one of them."""
    working = [op for op in condition.operations if op.name != "constant"]
    if [op.name for op in working[:-1]] != ["compare"]:
        return False
    counter, bound = working[0].operands
    constant = bound.operation is not None and bound.operation.name == "constant"
    return counter in condition.arguments and counter.dtype.lstrip("us").startswith("i") and constant


def trial_inputs(values: Sequence[Value], kind: str, seed: int) -> list[Array]:
    """Arrays for the arguments of a program, the same for the same kind and seed."""
    sizes = [math.prod(v.shape or ()) for v in values]
    kinds = [kind if kind != "special" or size == max(sizes) else "normal" for size in sizes]  # one NaN goes far enough
    arrays = [_array(v, k, np.random.default_rng((seed, n))) for n, (v, k) in enumerate(zip(values, kinds))]
    return arrays if kind == next(iter(INPUTS)) else [_choice(array, list(INPUTS).index(kind)) for array in arrays]


def _choice(array: Array, number: int) -> Array:
    """Another integer or boolean scalar for each kind, as it may say which branch is taken; anything else as it is."""
    if array.shape or not is_integral(array.dtype):
        return array
    if array.dtype == np.bool_:
        return np.asarray(number % 2 == 0)
    low, high = _ends(array.dtype)
    scalar = (0, 1, 2, -1, 3, 4)[(number - 1) % 6]
    return np.asarray(max(low, min(high, scalar))).astype(array.dtype)


def _array(value: Value, kind: str, rng: np.random.Generator) -> Array:
    dtype, shape = array_dtype(value), value.shape or ()
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if is_integral(dtype):
        return _integers(dtype, shape, kind, rng)
    fill = INPUTS[kind]
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype.kind != "c":
            return fill(rng, shape, dtype).astype(dtype)
        part, array = np.dtype(f"f{dtype.itemsize // 2}"), np.empty(shape, dtype)
        array.real, array.imag = (fill(rng, shape, part).astype(part) for _ in range(2))
        return array


def _integers(dtype: np.dtype[Any], shape: tuple[int, ...], kind: str, rng: np.random.Generator) -> Array:
    """Small ones of both signs; at the ends of the type for ``large`` and ``lowest``, of every size for ``wide``.

    Scalars stay small: they are numbers of steps and places more often than data.
    """
    low, high = _ends(dtype)
    if kind == "large" and shape:
        return rng.choice(np.array([low, low + 1, high - 1, high, 0, 1], object), shape).astype(dtype)
    if kind == "lowest" and shape:
        return rng.choice(np.array([low, low + 1], object), shape).astype(dtype)
    if kind == "wide" and shape:
        return rng.integers(low, high, shape, dtype=np.int64 if low < 0 else np.uint64, endpoint=True).astype(dtype)
    return rng.integers(max(low, -4), min(high, 4), shape, endpoint=True).astype(dtype)


def _ends(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The smallest and the largest number of an integer type."""
    iinfo: Any = ml_dtypes.iinfo
    return int(iinfo(dtype).min), int(iinfo(dtype).max)

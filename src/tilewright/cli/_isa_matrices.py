"""The matrices of `tilewright isa matmul`: of files or random, and numpy's word on their product."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tilewright.cli._isa_tensors import MOST, tensors
from tilewright.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["difference_of", "operands", "random_matrix", "shape_of"]

_DTYPES = ("s8", "u8", "s16", "u16", "s32", "u32", "f16", "bf16", "f32")
_Sizes = tuple[int | None, int | None]


def random_matrix(shape: tuple[int, int], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Seeded values: the whole range of an integer type, normal floats."""
    import numpy as np

    from tilewright.layout import paged

    rng, kind = np.random.default_rng(seed), paged((1,), dtype).numpy_dtype
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max + 1, shape, dtype=np.int64).astype(kind)
    return rng.normal(size=shape).astype(kind)


def difference_of(value: np.ndarray[Any, Any], a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> tuple[bool, float]:
    """Whether the value is numpy's: exactly modulo 2^32, or for floats within the bound of k float32 roundings.

    What is no finite number in float32 has to be the same; the largest difference is that of the others.
    """
    import numpy as np

    if value.dtype == np.int32:
        exact = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.uint64).astype(np.uint32).view(np.int32)
        wrong = int(np.count_nonzero(exact != value))
        return wrong == 0, float(wrong)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        product = x @ y
        bound = (a.shape[1] + 2) * float(np.finfo(np.float32).eps) * (np.abs(x) @ np.abs(y))
        same = (value == product.astype(np.float32)) | (np.isnan(value) & np.isnan(product))
        difference = np.abs(value - product)
        near = bool((same | (difference <= bound)).all())
    return near, float(difference[np.isfinite(difference)].max(initial=0))


def shape_of(text: str | None, option: str) -> tuple[int, ...] | None:
    """Elements per dim, as 4x16 or 4,16."""
    if text is None:
        return None
    parts = text.replace(",", "x").split("x")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"{option} {text!r}", how="elements per dim of B as it is stored, as 4x16")
    return tuple(int(part) for part in parts)


def operands(
    files: Sequence[str], m: int | None, n: int | None, k: int | None, dtypes: tuple[str, str], seed: int
) -> Any:
    """A and B: those of ``files`` (A=FILE.npy), random ones of the sizes and types for the others."""
    for each in dtypes:
        if each not in _DTYPES:
            raise UsageError(f"no element type called {each!r} for matrices", how=f"one of {', '.join(_DTYPES)}")
    given = tensors(files, (), ())
    for name in given:
        if name not in ("A", "B"):
            raise UsageError(f"--data {name}: no such matrix", how="A=FILE.npy, m x k, or B=FILE.npy, k x n")
    found = [
        _read(name, given[name], dtype) if name in given else None for name, dtype in zip("AB", dtypes, strict=True)
    ]
    depths = [k, *(each.shape[i] for each, i in zip(found, (1, 0), strict=True) if each is not None)]
    depth = next((size for size in depths if size is not None), None)
    asked: tuple[_Sizes, _Sizes] = ((m, depth), (depth, n))
    for name, matrix, sizes in zip("AB", found, asked, strict=True):
        _agree(name, matrix, sizes)
    random = [
        random_matrix(_known(name, sizes), dtype, seed + i) if each is None else each
        for i, (name, each, sizes, dtype) in enumerate(zip("AB", found, asked, dtypes, strict=True))
    ]
    if random[0].shape[0] * random[1].shape[1] > MOST:
        raise UsageError(f"C has more than {MOST} elements", how="this machine is simulated; give smaller sizes")
    return random


def _read(name: str, array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """A matrix as it was saved; numpy saves bf16 as two bytes of no type."""
    from tilewright.isa.multiply.matmul import element_type
    from tilewright.layout import paged

    kind = paged((1,), dtype).numpy_dtype
    if array.dtype.kind == "V" and array.dtype.itemsize == kind.itemsize:
        array = array.view(kind)
    if array.ndim != 2:
        raise UsageError(f"{name} has shape {list(array.shape)}", where="--data", how="a matrix has two dims")
    element_type(array, name)
    return array


def _agree(name: str, array: Any, sizes: _Sizes) -> None:
    if array is None or all(size in (None, side) for size, side in zip(sizes, array.shape, strict=True)):
        return
    asked = " x ".join("any" if size is None else str(size) for size in sizes)
    raise UsageError(f"{name} has shape {list(array.shape)}, not {asked}", where="--data")


def _known(name: str, sizes: _Sizes) -> tuple[int, int]:
    """The shape of a random matrix."""
    rows, columns = sizes
    if rows is None or columns is None:
        missing = {"A": "--m and --k", "B": "--k and --n"}[name]
        raise UsageError(f"the size of {name} is not given", how=f"{missing}, or --data {name}=FILE.npy")
    if prod(sizes) > MOST:  # type: ignore[arg-type]
        raise UsageError(f"{name} has more than {MOST} elements", how="this machine is simulated; give smaller sizes")
    return rows, columns

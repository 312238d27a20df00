"""Element types (XLA's names, widths in bits, numpy types, MLIR's names), and the checks of what callers pass."""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.render.formats import bytes_text

Array = np.ndarray[Any, Any]
TYPE_BITS: dict[str, int] = {
    "pred": 1,
    **{f"{kind}{bits}": bits for kind in "su" for bits in (1, 2, 4, 8, 16, 32, 64)},
    "f4e2m1fn": 4,
    "f6e2m3fn": 6,
    "f6e3m2fn": 6,
    **dict.fromkeys(("f8e3m4", "f8e4m3", "f8e4m3b11fnuz", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"), 8),
    "f8e8m0fnu": 8,
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
    "token": 0,
    "opaque": 0,
}
"""Width of a value in bits. A ``pred`` and every type narrower than 8 bits takes a whole byte unless E(n) says less."""

UNBOUNDED = -1
"""The size of a ``?`` dim."""

_NUMPY = {
    "pred": "bool",
    **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
}
_ML_DTYPES = {
    **{f"s{bits}": f"int{bits}" for bits in (1, 2, 4)},
    **{f"u{bits}": f"uint{bits}" for bits in (1, 2, 4)},
    "bf16": "bfloat16",
    **{name: f"float{name[1:].replace('e', '_e', 1)}" for name in TYPE_BITS if name.startswith(("f4", "f6", "f8"))},
}
_ALIASES = {
    "bool": "pred",
    "float": "f64",
    "int": "s64",
    "fp16": "f16",
    "fp32": "f32",
    **{theirs: ours for table in (_NUMPY, _ML_DTYPES) for ours, theirs in table.items() if ours != "pred"},
}


@cache
def _resolve(name: str) -> str:
    low = name.lower()
    if low in TYPE_BITS:
        return low
    if low in _ALIASES:
        return _ALIASES[low]
    short = low.replace("uint", "u").replace("int", "s").replace("i", "s", 1)
    if short in TYPE_BITS:
        return short
    raise UsageError(f"no element type called {name!r}", how=f"known types: {', '.join(TYPE_BITS)}")


def dtype_name(dtype: Any) -> str:
    """XLA's name of an element type given as a name, a numpy type or anything ``numpy.dtype`` takes.

    >>> dtype_name("F32"), dtype_name(np.int8), dtype_name("bfloat16")
    ('f32', 's8', 'bf16')
    """
    if isinstance(dtype, str):
        return str(_resolve(dtype))
    if dtype is None:  # numpy's default, but hardly what the caller meant
        raise UsageError("None is not an element type")
    try:
        return str(_resolve(np.dtype(dtype).name))
    except TypeError:
        raise UsageError(f"{dtype!r} is not an element type") from None


def type_bits(dtype: str) -> int:
    """Bits one element takes in memory without E(n): whole bytes, so 8 for ``pred`` and ``s4``."""
    return -(-TYPE_BITS[dtype] // 8) * 8


@cache
def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type that holds one element of ``dtype`` (sub-byte types in a byte, as ml_dtypes does)."""
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    if dtype in _ML_DTYPES:
        import ml_dtypes

        scalar: Any = getattr(ml_dtypes, _ML_DTYPES[dtype], None)
        if scalar is not None:
            numpy_type: np.dtype[Any] = np.dtype(scalar)
            return numpy_type
    raise UsageError(f"numpy has no type for {dtype}")


# Memories, n of S(n): XLA itself names 0, 1 and 5; 2, 3 and 6 are those of TPUs' dumps.

_MEMORIES = {
    0: "the default memory (HBM on a TPU)",
    1: "vector memory (VMEM) on a TPU",
    2: "memory of sync flags on a TPU",
    3: "common memory (CMEM) on a TPU v4",
    5: "the host's memory",
    6: "scalar memory (SMEM) on a TPU",
}


def memory_name(space: int) -> str:
    """What memory n of ``S(n)`` is.

    >>> memory_name(5), memory_name(9)
    ("the host's memory", 'a memory without a public name')
    """
    return _MEMORIES.get(space, "a memory without a public name")


# MLIR's names of element types and XLA's: i8 and s8, ui8 and u8, i1 and pred, complex<f32> and c64.

_MLIR = {"pred": "i1", "bf16": "bf16", "f16": "f16", "f32": "f32", "f64": "f64", "f4e2m1fn": "f4E2M1FN"}
_XLA = {"i1": "pred", "complex<f32>": "c64", "complex<f64>": "c128"}
_INTEGER = re.compile(r"([us]?)i([0-9]+)", re.ASCII)


def mlir_type(dtype: str) -> str:
    """MLIR's name of XLA's element type.

    >>> [mlir_type(name) for name in ("f32", "pred", "s32", "u8", "f8e4m3fn", "c64")]
    ['f32', 'i1', 'i32', 'ui8', 'f8E4M3FN', 'complex<f32>']
    """
    if dtype in _MLIR:
        return _MLIR[dtype]
    if dtype[0] in "su":
        return f"{'u' if dtype[0] == 'u' else ''}i{dtype[1:]}"
    if dtype[0] == "c":
        return f"complex<f{int(dtype[1:]) // 2}>"
    return dtype[0] + dtype[1:].upper()


def xla_dtype(element_type: str) -> str:
    """XLA's name of MLIR's element type; a name that MLIR does not have comes back in small letters.

    >>> [xla_dtype(name) for name in ("f32", "i1", "i32", "ui8", "f8E4M3FN", "complex<f32>")]
    ['f32', 'pred', 's32', 'u8', 'f8e4m3fn', 'c64']
    """
    if element_type in _XLA:
        return _XLA[element_type]
    if integer := _INTEGER.fullmatch(element_type):
        return f"{'u' if integer[1] == 'u' else 's'}{integer[2]}"
    return element_type.lower()


# What callers pass, checked before numpy sees it: whole numbers, texts, arrays, and whether memory is enough.


def to_int(value: Any, name: str) -> int:
    """The value as a Python integer; a :class:`UsageError` for a fraction or a text.

    >>> to_int(np.uint8(3), "a size")
    3
    """
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is a whole number, not {value!r}") from None


def to_ints(values: Iterable[Any], name: str) -> tuple[int, ...]:
    """The values as Python integers; ``name`` is what an error calls one of them."""
    try:
        items = tuple(values)
    except TypeError:
        raise UsageError(f"expected a list of whole numbers, {name} each, not {values!r}") from None
    return tuple(to_int(value, name) for value in items)


def round_up(value: int, to: int) -> int:
    """The least multiple of ``to`` from ``value`` up."""
    return -(-value // to) * to


def row_major_strides(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """The strides in bytes of a dense array in C order whose elements have ``size`` bytes."""
    strides = list[int]()
    for n in reversed(shape):
        strides.insert(0, size)
        size *= max(n, 1)
    return tuple(strides)


def text_of(value: Any, name: str) -> str:
    """The value, if it is a text; else a :class:`UsageError` that calls it ``name``."""
    if not isinstance(value, str):
        raise UsageError(f"{name} is a str, not {value!r}")
    return value


def require_layout(value: Any) -> None:
    """A :class:`UsageError` unless it is the layout of one array: a text is not, nor is a tuple of layouts."""
    if not hasattr(value, "axis_terms"):
        kind = "a tuple" if hasattr(value, "elements") else f"a {type(value).__name__}"
        raise UsageError(f"{value!s} is {kind}, not the layout of one array", how="parse(...) reads a text")


def array_of(value: Any, name: str) -> np.ndarray[Any, Any]:
    """``numpy.asarray``, with a :class:`UsageError` for what numpy cannot read."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).partition(". ")[0]
        raise UsageError(f"{name} of type {type(value).__name__} cannot be read as an array: {reason}") from None


@cache
def machine_bytes() -> int:
    """Memory of this machine; as good as endless where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not everywhere
        return 1 << 46


def is_traced(value: Any) -> bool:
    """Whether it is a value that JAX traces, under jit, grad or vmap; jax is not imported for it."""
    # While another thread imports jax the module is there before what it holds; nobody has a traced value then.
    core = getattr(sys.modules.get("jax"), "core", None)
    return core is not None and isinstance(value, core.Tracer)


def require_room(count: int, name: str) -> None:
    """A :class:`UsageError` for ``count`` bytes that this machine cannot hold."""
    if count > machine_bytes():
        raise UsageError(
            f"{name} takes {bytes_text(count)}, and this machine has {bytes_text(machine_bytes())}",
            how="take a slice of the array, or pass out=, a numpy.memmap for instance",
        )

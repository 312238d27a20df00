"""Layouts of arrays of any library that says where their elements are: numpy, torch, cupy, anything with DLPack."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError, UsageError
from tilewright.layout.convert.strided import from_strides
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.types import dtype_name, type_bits


def from_array(x: Any) -> IndexMap:
    """The layout of an array by its strides: numpy's, torch's, cupy's, or whatever an object tells through DLPack.

    No element is read and no library imported, so arrays in any device's memory will do. Dense arrays come out as XLA
    layouts, in whatever order of dims; others as :func:`from_strides` has them. JAX's arrays: :func:`from_jax`.

    >>> import numpy as np
    >>> str(from_array(np.zeros((3, 5), np.float32).T)), from_array(np.zeros((4, 6), np.int8)[:, ::2]).strides
    ('f32[5,3]{0,1}', (6, 2))
    """
    if hasattr(x, "format") and hasattr(x, "aval"):
        from tilewright.layout.exchange.from_jax import from_jax

        return from_jax(x)
    if callable(getattr(x, "stride", None)) and hasattr(x, "shape"):  # torch counts elements
        dtype = _dtype(x)
        return from_strides(tuple(x.shape), _in_bytes(x.stride(), dtype), dtype)
    strides = getattr(x, "strides", None)
    if isinstance(strides, tuple) and hasattr(x, "shape"):  # numpy, cupy: bytes
        return from_strides(tuple(x.shape), strides, _dtype(x))
    for name in ("__array_interface__", "__cuda_array_interface__"):
        if isinstance(told := getattr(x, name, None), dict):
            return _of_interface(told)
    if callable(getattr(x, "__dlpack__", None)):
        return _of_dlpack(x.__dlpack__())
    raise UsageError(
        f"a {type(x).__name__} tells no strides", how="from_strides(shape, strides, dtype) takes them, in bytes"
    )


def _dtype(x: Any) -> str:
    """XLA's name of an array's type: numpy's types and torch's, which print as ``torch.float32``."""
    name = str(x.dtype)
    return dtype_name(name.removeprefix("torch.") if name.startswith("torch.") else x.dtype)


def _in_bytes(strides: Sequence[int], dtype: str) -> tuple[int, ...]:
    return tuple(int(stride) * type_bits(dtype) // 8 for stride in strides)


def _of_interface(told: dict[str, Any]) -> IndexMap:
    """numpy's array interface, version 3; without strides the array is row-major."""
    try:
        shape, dtype = tuple(told["shape"]), dtype_name(np.dtype(told["typestr"]))
    except (KeyError, TypeError) as error:
        raise UsageError(f"the array interface lacks a part: {error}") from None
    strides = told.get("strides")
    return from_strides(shape, _row_major(shape, dtype) if strides is None else strides, dtype)


def _row_major(shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    strides, step = list[int](), type_bits(dtype) // 8
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(size, 1)
    return tuple(strides)


# DLPack: a capsule around a struct that says device, sizes, type and strides (in elements, none for row-major).


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_KINDS = {0: "s", 1: "u", 2: "f", 4: "bf", 5: "c"}


def _of_dlpack(capsule: Any) -> IndexMap:
    """The layout that a capsule tells; the capsule is not taken, so it frees what it holds."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    try:
        tensor = _Tensor.from_address(get(capsule, b"dltensor"))
    except (ValueError, TypeError):
        raise UsageError("__dlpack__ gave no capsule of DLPack") from None
    kind = "pred" if tensor.code == 6 else f"{_KINDS.get(tensor.code, '?')}{tensor.bits}"
    try:
        dtype = dtype_name(kind)
    except TilewrightError:
        raise UsageError(f"DLPack's type {tensor.code} of {tensor.bits} bits has no name in XLA") from None
    shape = tuple(tensor.shape[k] for k in range(tensor.ndim))
    strides = _in_bytes([tensor.strides[k] for k in range(tensor.ndim)], dtype) if tensor.strides else None
    return from_strides(shape, _row_major(shape, dtype) if strides is None else strides, dtype)

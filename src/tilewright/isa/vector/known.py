"""Softmax, layer norm, RMS norm and reductions of rows, as specifications and as calls."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.language.config import MatrixUnitConfig
from tilewright.isa.language.errors import array_of
from tilewright.isa.multiply.matmul import KernelResult
from tilewright.isa.vector.programs import run_vector
from tilewright.isa.vector.spec import FLOATS, Input, Op, Output, VectorSpec
from tilewright.layout import dtype_name

Array = np.ndarray[Any, Any]


def softmax_spec(rows: int, cols: int, dtype: str = "f32") -> VectorSpec:
    """e^(x - the greatest of its row), over the sum of those; in float32."""
    body = (
        Op("convert", (0,), "f32"),
        Op("reduce_max", (1,), "f32"),
        Op("subtract", (1, 2), "f32"),
        Op("exponential", (3,), "f32"),
        Op("reduce_add", (4,), "f32"),
        Op("divide", (4, 5), "f32"),
        Op("convert", (6,), dtype),
    )
    return VectorSpec(rows, cols, (Input("x", dtype),), body, (Output("y", 7, dtype),))


def layer_norm_spec(rows: int, cols: int, dtype: str = "f32", eps: float = 1e-5) -> VectorSpec:
    """(x - mean) * rsqrt(mean of (x - mean)^2 + eps) * gamma + beta; in float32."""
    inputs = (Input("x", dtype), Input("gamma", dtype, "col"), Input("beta", dtype, "col"))
    share: Any = ("const", float(np.float32(1) / np.float32(max(1, cols))), "f32")
    body = (
        *(Op("convert", (n,), "f32") for n in range(3)),  # 3, 4, 5
        Op("reduce_add", (3,), "f32"),
        Op("multiply", (6, share), "f32"),
        Op("subtract", (3, 7), "f32"),
        Op("multiply", (8, 8), "f32"),
        Op("reduce_add", (9,), "f32"),
        Op("multiply", (10, share), "f32"),
        Op("add", (11, ("const", eps, "f32")), "f32"),
        Op("rsqrt", (12,), "f32"),
        Op("multiply", (8, 13), "f32"),
        Op("multiply", (14, 4), "f32"),
        Op("add", (15, 5), "f32"),
        Op("convert", (16,), dtype),
    )
    return VectorSpec(rows, cols, inputs, body, (Output("y", 17, dtype),))


def rms_norm_spec(rows: int, cols: int, dtype: str = "f32", eps: float = 1e-6) -> VectorSpec:
    """x * rsqrt(mean of x^2 + eps) * gamma; in float32."""
    inputs = (Input("x", dtype), Input("gamma", dtype, "col"))
    share: Any = ("const", float(np.float32(1) / np.float32(max(1, cols))), "f32")
    body = (
        *(Op("convert", (n,), "f32") for n in range(2)),  # 2, 3
        Op("multiply", (2, 2), "f32"),
        Op("reduce_add", (4,), "f32"),
        Op("multiply", (5, share), "f32"),
        Op("add", (6, ("const", eps, "f32")), "f32"),
        Op("rsqrt", (7,), "f32"),
        Op("multiply", (2, 8), "f32"),
        Op("multiply", (9, 3), "f32"),
        Op("convert", (10,), dtype),
    )
    return VectorSpec(rows, cols, inputs, body, (Output("y", 11, dtype),))


def _rows_of(x: Any) -> tuple[Array, tuple[int, int], str]:
    array = array_of("x", x)
    if array.ndim == 0 or dtype_name(array.dtype) not in FLOATS:
        raise UsageError(f"x is {array.dtype}{list(array.shape)}", how="floats of one dim or more")
    cols = array.shape[-1]
    return array, (array.size // max(1, cols), cols), dtype_name(array.dtype)


def _shaped(result: KernelResult, shape: tuple[int, ...]) -> KernelResult:
    result.value = result.value.reshape(shape)
    return result


def softmax(x: Any, config: MatrixUnitConfig | None = None, trace: bool = False) -> KernelResult:
    """Softmax along the last dim by vector instructions.

    >>> softmax(np.zeros((2, 4), np.float32)).value.tolist()[0]
    [0.25, 0.25, 0.25, 0.25]
    """
    array, (rows, cols), dtype = _rows_of(x)
    return _shaped(run_vector(softmax_spec(rows, cols, dtype), {"x": array}, config, trace), array.shape)


def layer_norm(
    x: Any, gamma: Any, beta: Any, eps: float = 1e-5, config: MatrixUnitConfig | None = None, trace: bool = False
) -> KernelResult:
    """Layer norm along the last dim by vector instructions; ``gamma``, ``beta``: one for each of its elements."""
    array, (rows, cols), dtype = _rows_of(x)
    spec = layer_norm_spec(rows, cols, dtype, eps)
    return _shaped(run_vector(spec, {"x": array, "gamma": gamma, "beta": beta}, config, trace), array.shape)


def rms_norm(
    x: Any, gamma: Any, eps: float = 1e-6, config: MatrixUnitConfig | None = None, trace: bool = False
) -> KernelResult:
    """RMS norm along the last dim by vector instructions; ``gamma``: one for each of its elements."""
    array, (rows, cols), dtype = _rows_of(x)
    return _shaped(
        run_vector(rms_norm_spec(rows, cols, dtype, eps), {"x": array, "gamma": gamma}, config, trace), array.shape
    )

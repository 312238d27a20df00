"""Matrices and weights over an NPU's local memories, and its global memory (source: Sophgo's tensor storage).

Each is stored as a tensor (N, C, H, W) of :func:`tilewright.layout.lanes`; only the way from the array's index to that
tensor's differs.

    matrix    (rows, columns)     (rows, ceil(columns / w), 1, w) aligned
    matrix2   (rows, columns)     (1, rows, 1, columns) aligned
    weights   (oc, ic, kh, kw)    (1, oc, ceil(ic / IC) * kh * kw, IC) compact, NPU = oc mod X
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import UsageError
from tilewright.layout._checks import whole, wholes
from tilewright.layout._lanes import LaneLayout, Stored, build, lane_bits, lane_memory
from tilewright.layout._steps import Split
from tilewright.layout._tiled import TensorLayout, tiled
from tilewright.layout._types import dtype_name

__all__ = ["global_memory", "lane_matrix", "lane_matrix2", "lane_weights"]


def _matrix_sizes(rows: int, columns: int) -> tuple[int, int]:
    sizes = whole(rows, "a size"), whole(columns, "a size")
    if min(sizes) < 0:
        raise UsageError(f"a matrix has sizes from 0 up, got {rows} x {columns}")
    return sizes


def lane_matrix(
    rows: int,
    columns: int,
    dtype: Any,
    chip: Any = None,
    *,
    columns_per_npu: int,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    start: int = 0,
    n_stride: str | None = None,
) -> LaneLayout:
    """A matrix of which every NPU holds ``columns_per_npu`` neighbouring columns: a tensor (rows, .., 1, w), aligned.

    >>> matrix = lane_matrix(5, 100, "s8", "bm1684x", columns_per_npu=16)
    >>> matrix.tensor, matrix.strides, matrix.address(4, 99)
    ((5, 7, 1, 16), (64, 64, 16, 1), {'npu': 6, 'offset': 259})
    """
    r, c = _matrix_sizes(rows, columns)
    if columns_per_npu < 1:
        raise UsageError(f"columns_per_npu={columns_per_npu} is below 1")
    memory = lane_memory(chip, lanes, eu_bytes, n_stride)
    tensor = (r, -(-c // columns_per_npu), 1, int(columns_per_npu))
    stored = Stored(tensor, "aligned", n=0, c=1, h=(), w=2, steps=(Split(1, int(columns_per_npu)),))
    return build(dtype_name(dtype), (r, c), stored, memory, start, "matrix")


def lane_matrix2(
    rows: int,
    columns: int,
    dtype: Any,
    chip: Any = None,
    *,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    start: int = 0,
    n_stride: str | None = None,
) -> LaneLayout:
    """A matrix whose rows go round the NPUs: a tensor (1, rows, 1, columns), aligned.

    >>> matrix = lane_matrix2(5, 100, "f16", "bm1684x", start=1)
    >>> matrix.strides, matrix.address(4, 99)
    ((128, 128, 100, 1), {'npu': 5, 'offset': 99})
    """
    r, c = _matrix_sizes(rows, columns)
    memory = lane_memory(chip, lanes, eu_bytes, n_stride)
    stored = Stored((1, r, 1, c), "aligned", n=None, c=0, h=(), w=1)
    return build(dtype_name(dtype), (r, c), stored, memory, start, "matrix2")


def _ic_parallel(ic_parallel: int, dtype: str) -> int:
    """Input channels that lie side by side: IC_PARALLEL of one byte, half of two, 1 of four, double of half a byte."""
    bits = lane_bits(dtype)
    if bits not in (4, 8, 16, 32):
        raise UsageError(f"weights of {bits} bits have no place beside each other", how="4, 8, 16 or 32 bits")
    return {4: ic_parallel * 2, 8: ic_parallel, 16: max(1, ic_parallel // 2), 32: 1}[bits]


def lane_weights(
    shape: Sequence[int],
    dtype: Any,
    chip: Any = None,
    *,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    ic_parallel: int | None = None,
) -> LaneLayout:
    """Weights (oc, ic, kh, kw) with IC input channels side by side ("alignIC"): NPU = oc mod X.

    IC follows from the chip's ``ic_parallel`` (or the argument) and the element's width; ``ic`` is padded to IC.

    >>> weights = lane_weights((67, 70, 3, 3), "s8", "bm1684x")
    >>> weights.address(66, 69, 2, 2)
    {'npu': 2, 'offset': 2245}
    """
    dims = wholes(shape, "a size")
    if len(dims) != 4 or any(n < 0 for n in dims):
        raise UsageError(f"weights have four sizes (oc, ic, kh, kw), got {dims}")
    memory = lane_memory(chip, lanes, eu_bytes)
    name = dtype_name(dtype)
    parallel = memory.ic_parallel if ic_parallel is None else ic_parallel
    if parallel < 1:
        raise UsageError("this memory has no IC_PARALLEL", how="pass ic_parallel=")
    side = _ic_parallel(parallel, name)
    oc, ic, kh, kw = dims
    tensor = (1, oc, -(-ic // side) * kh * kw, side)
    # oc, ic div IC, ic mod IC, kh, kw: h counts (ic div IC, kh, kw), w counts ic mod IC.
    stored = Stored(tensor, "compact", n=None, c=0, h=(1, 3, 4), w=2, steps=(Split(1, side),))
    return build(name, dims, stored, memory, mode="weights")


def global_memory(shape: Sequence[int], dtype: Any) -> TensorLayout:
    """A tensor in global memory, one contiguous DDR: row-major, strides C*H*W, H*W, W, 1 in elements.

    >>> tensor = global_memory((2, 2, 3, 2), "f32")
    >>> str(tensor), tensor.offset(1, 1, 2, 1)
    ('f32[2,2,3,2]{3,2,1,0}', 23)
    """
    return tiled(shape, dtype)

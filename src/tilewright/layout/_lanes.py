"""Tensors over the local memories of an NPU (source: Sophgo's tensor storage): axes ``npu`` and ``offset``.

    npu(c) = (start + c) mod X        offset = n*N_stride + ((start + c) div X)*C_stride + h*H_stride + w*W_stride

Strides count elements; every batch starts again at NPU ``start`` on a fresh row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.errors import UsageError
from tilewright.layout._index_map import Axis, IndexMap
from tilewright.layout._linear import is_injective
from tilewright.layout._steps import Pad, Split
from tilewright.layout._types import dtype_name, type_bits
from tilewright.targets import LaneMemory, target

__all__ = ["LaneLayout", "lanes"]

_MODES = ("aligned", "compact", "row_aligned")


@dataclass(frozen=True, repr=False)
class LaneLayout(IndexMap):
    """A tensor (N, C, H, W) over ``lane_count`` local memories; ``strides`` are (N, C, H, W) in elements."""

    strides: tuple[int, int, int, int] = (0, 0, 0, 0)
    lane_count: int = 1
    eu_bytes: int = 1
    start: int = 0
    mode: str = "free"

    @cached_property
    def injective(self) -> bool:
        """Whether no two elements share a place; two channels of one NPU are a multiple of ``lane_count`` apart."""
        batch, channels, height, width = self.shape
        rows = (channels - 1) // self.lane_count + 1
        return is_injective(list(zip((batch, rows, height, width), self.strides, strict=True)))

    def __str__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"{self.dtype}[{dims}] over {self.lane_count} NPUs ({self.mode}, start {self.start})"

    def __repr__(self) -> str:
        return f"<{self}, strides {self.strides}>"


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _strides(mode: str, shape: tuple[int, ...], eu: int, rows: int) -> tuple[int, int, int, int]:
    _, _, height, width = shape
    row = _round_up(width, eu) if mode == "row_aligned" else width
    channel = height * row
    if mode == "aligned":
        channel = _round_up(channel, eu)
    return rows * channel, channel, row, 1


def _memory(chip: Any, count: int | None, eu_bytes: int | None) -> tuple[int, int]:
    if chip is not None:
        unit = chip if isinstance(chip, LaneMemory) else target(chip).lanes
        if unit is None:
            raise UsageError(f"{target(chip).name} has no lane memories", how="name an NPU such as bm1684x")
        return unit.npu_num, unit.eu_bytes
    if count is None or eu_bytes is None or count < 1 or eu_bytes < 1:
        raise UsageError("a lane memory needs chip=, or lanes= and eu_bytes=")
    return count, eu_bytes


def lanes(
    shape: Sequence[int],
    dtype: Any,
    chip: Any = None,
    *,
    lanes: int | None = None,
    eu_bytes: int | None = None,
    start: int = 0,
    mode: str | Sequence[int] = "aligned",
) -> LaneLayout:
    """Where the elements of a tensor (N, C, H, W) lie in an NPU's local memories.

    ``chip`` names a target with lanes (or pass ``lanes=`` and ``eu_bytes=``); ``start`` is the NPU of channel 0;
    ``mode`` is ``aligned`` (channels rounded up to the execution unit), ``compact``, ``row_aligned`` or four free
    strides (N, C, H, W) in elements. The base address of an aligned tensor must be a multiple of ``eu_bytes``.

    >>> fp16 = lanes((2, 3, 4, 5), "f16", lanes=4, eu_bytes=64, start=2)
    >>> fp16.strides, fp16.address(0, 2, 0, 0)
    ((64, 32, 5, 1), {'npu': 0, 'offset': 32})
    """
    dims = tuple(int(n) for n in shape)
    if len(dims) != 4 or any(n < 0 for n in dims):
        raise UsageError(f"a lane tensor has four sizes (N, C, H, W), got {dims}")
    count, unit = _memory(chip, lanes, eu_bytes)
    if not 0 <= start < count:
        raise UsageError(f"start NPU {start} is outside 0..{count - 1}")
    name = dtype_name(dtype)
    bits = type_bits(name)
    if unit * 8 % bits:
        raise UsageError(f"eu_bytes {unit} is no multiple of the {bits // 8} bytes of {name}")
    rows = -(-(start + dims[1]) // count)
    if isinstance(mode, str):
        if mode not in _MODES:
            raise UsageError(f"no lane mode called {mode!r}", how=f"one of {', '.join(_MODES)}, or four strides")
        strides, label = _strides(mode, dims, unit * 8 // bits, rows), mode
    else:
        given = tuple(int(s) for s in mode)
        if len(given) != 4 or any(s < 0 for s in given):
            raise UsageError(f"free strides are four whole numbers (N, C, H, W) from 0 up, got {given}")
        strides, label = (given[0], given[1], given[2], given[3]), "free"
    # Coordinates behind the split: n, row of channels, npu, h, w.
    sizes = (dims[0], rows, dims[2], dims[3])
    reach = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if all(dims) else 0
    span = dims[0] * strides[0] if label != "free" else reach
    terms = tuple(zip((0, 1, 3, 4), strides, strict=True))
    axes = (Axis("npu", ((2, 1),), count), Axis("offset", terms, max(span, reach)))
    steps = (Pad(1, low=start), Split(1, count))
    return LaneLayout(name, dims, steps, axes, (), bits, strides, count, unit, start, label)

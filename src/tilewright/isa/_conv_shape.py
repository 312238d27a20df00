"""The sizes of a convolution, read off the shapes of its images and weights and how it is to be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._checks import whole, wholes

__all__ = ["SPLITS", "ConvShape", "conv_shape"]

Pair = tuple[int, int]
SPLITS = ("images", "rows", "channels")
"""What of the result can be divided among processing elements."""


@dataclass(frozen=True)
class ConvShape:
    """Sizes by (height, width) where there are two; ``depth``: channels that one output channel adds up."""

    images: int
    size: Pair
    depth: int
    outs: int
    groups: int
    kernel: Pair
    stride: Pair
    before: Pair
    dilation: Pair
    out: Pair

    @property
    def pixels(self) -> int:
        """Of the result, all images together."""
        return self.images * self.out[0] * self.out[1]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to multiply."""
        return 0 in (self.pixels, self.outs, self.depth, *self.kernel, *self.size)


def conv_shape(
    x: Sequence[int], w: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: Any, layout: str
) -> ConvShape:
    """The sizes, or one clear error; ``x`` and ``w`` are shapes."""
    if layout not in ("NHWC", "NCHW"):
        raise UsageError(f"layout {layout!r}", how="NHWC or NCHW")
    x, w = wholes("x", x), wholes("w", w)
    if len(x) != 4 or len(w) != 4:
        raise UsageError(f"x has shape {list(x)}, w {list(w)}", how="four dims each")
    images, height, width, channels = x if layout == "NHWC" else (x[0], x[2], x[3], x[1])
    kh, kw, depth, outs = w if layout == "NHWC" else (w[2], w[3], w[1], w[0])
    groups = whole("groups", groups, 1)
    if channels != depth * groups or outs % groups:
        what = f"{channels} channels in {groups} groups, weights for {depth} channels and {outs} outputs"
        raise UsageError(what, how="channels must be groups times those of the weights, outputs a multiple of groups")
    strides, dilations = _two("stride", stride), _two("dilation", dilation)
    spans = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilations, strict=True)]
    pads = _padding(padding, (height, width), spans, strides)
    out = [
        (size + sum(pad) - span) // s + 1 if size + sum(pad) >= span else 0
        for size, pad, span, s in zip((height, width), pads, spans, strides, strict=True)
    ]
    return ConvShape(
        images=images,
        size=(height, width),
        depth=depth,
        outs=outs,
        groups=groups,
        kernel=(kh, kw),
        stride=strides,
        before=(pads[0][0], pads[1][0]),
        dilation=dilations,
        out=(out[0], out[1]),
    )


def _two(name: str, value: int | Sequence[int], least: int = 1) -> Pair:
    both = tuple(value) if isinstance(value, Sequence | np.ndarray) else (value, value)
    if len(both) != 2:
        raise UsageError(f"{name} = {value!r}", how="one number, or two")
    return whole(name, both[0], least), whole(name, both[1], least)


def _padding(padding: Any, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]) -> tuple[Pair, Pair]:
    if isinstance(padding, str):
        if padding.lower() not in ("valid", "same"):
            raise UsageError(f"padding {padding!r}", how="valid, same, or numbers")
        if padding.lower() == "valid":
            return (0, 0), (0, 0)
        needed = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(sizes, spans, strides, strict=True)]
        return (needed[0] // 2, needed[0] - needed[0] // 2), (needed[1] // 2, needed[1] - needed[1] // 2)
    if not isinstance(padding, Sequence | np.ndarray):
        both = _two("padding", padding, 0)
        return (both[0], both[0]), (both[1], both[1])
    rows = list(padding)
    if len(rows) != 2:
        raise UsageError(f"padding = {padding!r}", how="one number, one per dim, or (before, after) per dim")
    return _two("padding", rows[0], 0), _two("padding", rows[1], 0)

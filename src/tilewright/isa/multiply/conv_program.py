"""The program of a convolution: no matrix of patches is made; every thread finds its pixels by coordinates.

A thread group is one output pixel, a loader one output channel. The input is a segment of four dims, channels d1 first,
so that what lies outside the image is outside the segment: not loaded, zero because it was cleared. The weights are one
too, so that channels beyond the last are absent from the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.language.assemble import assemble
from tilewright.isa.language.checks import whole, wholes
from tilewright.isa.language.program import MachineProgram
from tilewright.isa.multiply.matmul_program import A_REGISTER, ACCUMULATORS, MatmulPlan, check, places, store

# The sizes of a convolution, read off the shapes of its images and weights and how it is to be done.

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
        sizes = f"{channels} channels in {groups} groups, weights for {depth} channels and {outs} outputs"
        raise UsageError(sizes, how="channels must be groups times those of the weights, outputs a multiple of groups")
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


@dataclass(frozen=True)
class ConvPlan:
    """``plan`` has the pixels for rows, the channels of a group for columns, and their depth for k.

    A processing element's part: ``plan.m`` pixels from ``pixel`` on of the images it sees, ``channels`` (first, end) of
    all output channels. B and C are windows that begin there; A's channels are all there.
    """

    plan: MatmulPlan
    shape: ConvShape
    pixel: int
    channels: tuple[int, int]

    @property
    def pieces(self) -> list[tuple[int, int, int, int]]:
        """(first group, end, first channel in each, end): whole groups, and what of a group is at either end."""
        width, (first, end) = self.plan.n, self.channels
        (low, before), (high, after) = divmod(first, width), divmod(end, width)
        if before and low == high:
            return [(low, low + 1, before, after)]
        pieces = [(low, low + 1, before, width)] if before else []
        low += bool(before)
        pieces += [(low, high, 0, width)] if high > low else []
        return pieces + ([(high, high + 1, 0, after)] if after else [])


def conv_program(conv: ConvPlan) -> MachineProgram:
    """The program; segments ``$A`` (images, h, w, c), ``$B`` (its out channels, kh, kw, c of a group), ``$C``.

    ur0 first pixel, ur1 first channel of the block, ur20 kh, ur21 kw, ur22 channel, ur14 group; the others as for a
    matrix product. r272, r273: where the pixel's window begins, r274: its image.
    """
    check(conv.plan)
    if conv.plan.config.uniform_registers < 23:
        raise UsageError("conv2d needs 23 uniform registers", where="config")
    lines = places(conv.plan)
    for number, piece in enumerate(conv.pieces):
        lines += _blocks(conv, piece, f"_{number}" if number else "")
    return assemble("\n".join([*lines, "halt"]), conv.plan.config)


def _blocks(conv: ConvPlan, piece: tuple[int, int, int, int], tag: str) -> list[str]:
    plan, (low, high, first, end) = conv.plan, piece
    return [
        f"mov ur14, {low}",
        f"groups{tag}:",
        "mov ur0, 0",
        f"rows{tag}:",
        f"sub ur10, {plan.m}, ur0",
        f"min ur10, ur10, {plan.fit}",
        "cmp.lt p2, r281, ur10",
        "pand p2, p2, p0    # threads with a pixel",
        "add r299, r281, ur0",
        *_window(conv),
        f"mov ur1, {first}",
        f"columns{tag}:",
        f"sub ur11, {end}, ur1",
        f"min ur11, ur11, {plan.columns}",
        f"add ur12, ur11, {plan.ka - 1}",
        f"div ur12, ur12, {plan.ka}",
        f"min ur13, ur12, {ACCUMULATORS}",
        "setmm ur11, ur10",
        "clr r0, ur13",
        f"mul ur15, ur14, {plan.n}",
        "add ur15, ur15, ur1",
        *([f"sub ur15, ur15, {conv.channels[0]}    # the first channel of the part"] if conv.channels[0] else []),
        "add r293, r280, ur15    # every loader's own channel",
        *_depth(conv, tag),
        *store(plan, "ur15"),
        "add ur1, ur1, ur11",
        f"br.lt ur1, {end}, columns{tag}",
        "add ur0, ur0, ur10",
        f"br.lt ur0, {plan.m}, rows{tag}",
        "add ur14, ur14, 1",
        f"br.lt ur14, {high}, groups{tag}",
    ]


def _window(conv: ConvPlan) -> list[str]:
    """From the number of a pixel to its image and the corner of its window."""
    height, width = conv.shape.out
    pixel = "r275" if conv.pixel else "r299"
    return [
        *([f"add r275, r299, {conv.pixel}    # the first pixel of the part"] if conv.pixel else []),
        f"rem r272, {pixel}, {width}",
        f"div r274, {pixel}, {width}",
        f"rem r273, r274, {height}",
        f"div r297, r274, {height}",
        f"mul r272, r272, {conv.shape.stride[1]}",
        f"sub r272, r272, {conv.shape.before[1]}",
        f"mul r273, r273, {conv.shape.stride[0]}",
        f"sub r273, r273, {conv.shape.before[0]}",
    ]


def _depth(conv: ConvPlan, tag: str) -> list[str]:
    plan = conv.plan
    clear = [f"mov r{A_REGISTER + i}, 0" for i in range(plan.config.a_registers)]
    suffixes = f".ka{plan.ka}.kb{plan.kb}.t0{plan.signs}"
    return [
        "mov ur20, 0",
        f"down{tag}:",
        f"mul ur16, ur20, {conv.shape.dilation[0]}",
        "add r296, r273, ur16",
        "mov r292, ur20",
        "mov ur21, 0",
        f"across{tag}:",
        f"mul ur16, ur21, {conv.shape.dilation[1]}",
        "add r295, r272, ur16",
        "mov r291, ur21",
        "mov ur22, 0",
        f"channels{tag}:",
        f"mul ur16, ur14, {plan.k}",
        "add ur16, ur16, ur22",
        "add r294, r286, ur16",
        *clear,
        f"@p2, ld r{A_REGISTER}, ur3:rf294:0x00, {plan.config.a_registers}",
        "mov r290, ur22",
        f"mm{plan.type}{suffixes} r0, ur4:rf290:0x00, r{A_REGISTER}",
        f"add ur22, ur22, {plan.depth}",
        f"br.lt ur22, {plan.k}, channels{tag}",
        "add ur21, ur21, 1",
        f"br.lt ur21, {conv.shape.kernel[1]}, across{tag}",
        "add ur20, ur20, 1",
        f"br.lt ur20, {conv.shape.kernel[0]}, down{tag}",
    ]

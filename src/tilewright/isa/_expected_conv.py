"""Closed forms for the counts of a convolution, written from the formulas alone as those of a product are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa._checks import whole
from tilewright.isa._config import MatrixUnitConfig, checked_config
from tilewright.isa._conv_shape import SPLITS, ConvShape, conv_shape
from tilewright.isa._counts import Counts
from tilewright.isa._expected import PRODUCT_REGISTERS

__all__ = ["expected_conv2d_counts"]


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class _Part:
    """What one element does: pixels of the result, and (group, how many of its output channels)."""

    pixels: tuple[int, int]
    channels: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Machine:
    """How it is done; ``fit``: pixels of one block, ``columns``: output channels of one instruction."""

    config: MatrixUnitConfig
    element_bytes: int
    ka: int
    kb: int
    fit: int
    columns: int

    @property
    def depth(self) -> int:
        """Channels one instruction covers."""
        return self.kb * self.config.a_bytes // self.element_bytes


def expected_conv2d_counts(
    x: Sequence[int],
    w: Sequence[int],
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] | Sequence[Sequence[int]] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NHWC",
    config: MatrixUnitConfig | None = None,
    element_bytes: int = 1,
    ka: int = 1,
    kb: int = 1,
    columns: int | None = None,
    split: str | None = None,
) -> Counts:
    """Counts of :func:`conv2d` for images of shape ``x`` and weights of shape ``w``, without running anything.

    All processing elements together where ``config.pes`` is above 1. ``a_bytes_loaded`` is what lies inside the images
    (padding is not loaded), the channels of the next group included that a whole load takes along. Cache misses are
    those of caches that never evict: lower bounds of a run. Raises :class:`UsageError` as :func:`conv2d` does.

    >>> counts = expected_conv2d_counts((1, 56, 56, 64), (3, 3, 64, 64), padding=1)
    >>> counts.instructions, counts.macs
    (936, 115605504)
    """
    config = checked_config(config)
    shape = conv_shape(x, w, stride, padding, dilation, groups, layout)
    ka, kb = whole("ka", ka, 1), whole("kb", kb, 1)
    if element_bytes not in (1, 2, 4):
        raise UsageError(f"element_bytes = {element_bytes}", how="1, 2 or 4")
    if split not in (None, *SPLITS):
        raise UsageError(f"split {split!r}", how="images, rows or channels")
    if config.kb_mode == "split":
        raise UnsupportedError("conv2d with kb_mode = 'split'", how="kb_mode='chunk'")
    computing = config.compute_threads
    if ka * kb > computing:
        raise UsageError(f"ka * kb = {ka * kb} is more than {computing} threads", how="lower ka or kb")
    per_mm = min(config.default_columns, ka * PRODUCT_REGISTERS) if columns is None else whole("columns", columns, 1)
    if per_mm > config.loader_threads:
        raise UsageError(f"columns = {per_mm} is not within 1..{config.loader_threads} (threads)")
    if shape.empty:
        return Counts()
    how = _Machine(config, element_bytes, ka, kb, computing // (ka * kb), per_mm)
    found = Counts.together(_counts(shape, how, part) for part in _parts(shape, how, split))
    lines = shape.outs * _lines(shape, how)
    return replace(found, l2_misses=lines, dram_bytes=lines * config.line_bytes)


def _parts(shape: ConvShape, how: _Machine, split: str | None) -> Iterator[_Part]:
    pes, rows = how.config.pes, shape.images * shape.out[0]
    if split is None:
        split = "rows" if min(rows, _ceil(shape.pixels, how.fit)) >= pes else "channels"
    count = {"images": shape.images, "rows": rows, "channels": shape.outs}[split]
    width = shape.outs // shape.groups
    for pe in range(pes):
        first, end = count * pe // pes, count * (pe + 1) // pes
        if first == end:
            continue
        pixels, channels = (0, shape.pixels), (first, end)
        if split != "channels":
            each = shape.pixels // count
            pixels, channels = (first * each, end * each), (0, shape.outs)
        of_groups = [(g, min(channels[1], (g + 1) * width) - max(channels[0], g * width)) for g in range(shape.groups)]
        yield _Part(pixels, tuple((group, each) for group, each in of_groups if each > 0))


def _counts(shape: ConvShape, how: _Machine, part: _Part) -> Counts:
    found = [_of_group(shape, how, part, group, outs) for group, outs in part.channels]
    return Counts.together(found)


def _of_group(shape: ConvShape, how: _Machine, part: _Part, group: int, n: int) -> Counts:
    """One group: a product of pixels by channels for every tap of the kernel."""
    m, k, e = part.pixels[1] - part.pixels[0], shape.depth, how.element_bytes
    taps = shape.kernel[0] * shape.kernel[1]
    rounds = taps * _ceil(k, how.depth)
    row_blocks, column_blocks = _ceil(m, how.fit), _ceil(n, how.columns)
    at_once, tail = how.config.columns_per_step, n % how.columns
    whole_steps, last = (_ceil(_ceil(width, how.ka), at_once) for width in (how.columns, tail))
    channels = shape.depth * shape.groups
    loaded = sum(min(how.depth, channels - group * k - at) for at in range(0, k, how.depth))
    per_line = how.config.line_bytes // e
    touched = sum((min(k, at + how.depth) - 1) // per_line - at // per_line + 1 for at in range(0, k, how.depth))
    return Counts(
        instructions=row_blocks * column_blocks * rounds,
        macs=m * n * k * taps,
        column_loads=row_blocks * n * rounds,
        broadcast_elements=row_blocks * n * k * taps,
        steps=row_blocks * rounds * (n // how.columns * whole_steps + last),
        a_register_reads=column_blocks * rounds * _ceil(how.config.a_bytes, 4) * how.ka * how.kb * m,
        a_bytes_loaded=column_blocks * how.ka * _inside(shape, part.pixels) * loaded * e,
        accumulator_reads=m * n * rounds,
        accumulator_writes=m * n * rounds,
        kb_transfers=m * n * rounds * (how.kb - 1),
        l1_touches=row_blocks * n * taps * touched,
        l1_misses=n * _lines(shape, how),
    )


def _lines(shape: ConvShape, how: _Machine) -> int:
    """Lines of the weights of one output channel: every tap begins one."""
    return shape.kernel[0] * shape.kernel[1] * _ceil(shape.depth * how.element_bytes, how.config.line_bytes)


def _inside(shape: ConvShape, pixels: tuple[int, int]) -> int:
    """Taps of all these pixels that lie inside the image."""
    there = []
    for d in range(2):
        at = np.arange(shape.out[d])[:, None] * shape.stride[d] - shape.before[d]
        at = at + np.arange(shape.kernel[d]) * shape.dilation[d]
        there.append(((at >= 0) & (at < shape.size[d])).sum(axis=1))
    image = np.outer(*there).reshape(-1)
    return _up_to(pixels[1], image) - _up_to(pixels[0], image)


def _up_to(pixel: int, image: np.ndarray[Any, Any]) -> int:
    """The sum of all pixels before this one; every image is the same."""
    return pixel // image.size * int(image.sum()) + int(image[: pixel % image.size].sum())

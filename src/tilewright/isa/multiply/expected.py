"""Closed forms for the counts of a whole matrix multiplication.

Written from the formulas alone: nothing here runs a program or shares code with the machine's own counting, so that
the two can be held against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.isa.language.config import MatrixUnitConfig, checked_config
from tilewright.isa.language.counts import Counts
from tilewright.isa.language.errors import Array, whole, wholes
from tilewright.isa.multiply.conv import SPLITS, ConvShape, conv_shape

PRODUCT_REGISTERS = 256
"""Registers which the kernels keep for products: C at r0, A at r256."""


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _spanned(first: int, count: int, unit: int) -> int:
    """Units that ``count`` places from ``first`` on lie in."""
    return (first + count - 1) // unit - first // unit + 1


@dataclass(frozen=True)
class _Grouping:
    """How threads share the work; ``columns``: of one instruction."""

    config: MatrixUnitConfig
    element_bytes: int
    ka: int
    kb: int
    columns: int

    @property
    def fit(self) -> int:
        """Rows of one block."""
        return self.config.compute_threads // (self.ka * self.kb)

    @property
    def depth(self) -> int:
        """Elements of k that one instruction covers."""
        return self.config.a_bytes // self.element_bytes * (1 if self.config.kb_mode == "split" else self.kb)

    @property
    def chunk(self) -> int:
        """Elements of A that each thread of a group has for one instruction."""
        return _ceil(self.depth, self.kb)

    def loaded(self, k: int, there: int) -> int:
        """Elements of a row that a group loads for a depth of ``k``: a chunk a thread, of the ``there`` there are."""
        chunks, rounds = self.kb * self.chunk, _ceil(k, self.depth)
        whole_rounds = min(rounds, max(0, (there - chunks) // self.depth + 1))
        return whole_rounds * chunks + sum(there - first * self.depth for first in range(whole_rounds, rounds))

    def steps(self, n: int) -> int:
        """Steps of one round over ``n`` columns, block by block."""
        widths = self.columns, n % self.columns
        whole_blocks, last = (_ceil(_ceil(width, self.ka), self.config.columns_per_step) for width in widths)
        return n // self.columns * whole_blocks + last


def _grouping(
    config: MatrixUnitConfig, element_bytes: int, ka: int, kb: int, columns: int | None, tail_kb: int = 1
) -> _Grouping:
    """How the threads of this machine share the work, or one clear error."""
    if element_bytes not in (1, 2, 4):
        raise UsageError(f"element_bytes = {element_bytes}", how="1, 2 or 4")
    group, computing, widest = ka * max(kb, tail_kb), config.compute_threads, config.loader_threads
    if group > computing:
        raise UsageError(f"ka * kb = {group} is more than {computing} threads", how="lower ka or kb")
    per_mm = min(config.default_columns, ka * PRODUCT_REGISTERS) if columns is None else whole("columns", columns, 1)
    if per_mm > widest:
        raise UsageError(f"columns = {per_mm} is not within 1..{widest} (threads)")
    return _Grouping(config, element_bytes, ka, kb, per_mm)


@dataclass(frozen=True)
class _Product:
    """Sizes in elements; ``deep`` and ``wide``: a line of B along k and along its columns."""

    m: int
    n: int
    k: int
    how: _Grouping
    order: str
    deep: int
    wide: int
    block_a: int = 1


def expected_counts(
    m: int,
    n: int,
    k: int,
    config: MatrixUnitConfig | None = None,
    element_bytes: int = 1,
    ka: int = 1,
    kb: int = 1,
    transpose_b: bool = False,
    order: str = "k_outer",
    columns: int | None = None,
    line: Sequence[int] | None = None,
    split: str | None = None,
    segments: int | None = None,
    tail_kb: int | None = None,
    block_a: int = 1,
) -> Counts:
    """Counts of C[m, n] += A[m, k] B[k, n] with elements of ``element_bytes``, without running anything.

    ``columns`` per instruction (default min(loaders, ka * 256)); ``transpose_b``: B stored row-major and walked by
    ``t1``; ``line``: of B as it is stored; ``split``, ``segments`` and ``tail_kb`` as for :func:`matmul`, all elements
    together where ``config.pes`` is above 1. Pages change nothing; blocks of A only ``a_bytes_loaded`` in
    column_outer order, where they stay for all columns of an instruction. Cache misses are those of caches
    that never evict: lower bounds of a run. Raises :class:`UsageError` when a group of ka * kb threads does not fit, or
    for columns beyond the threads. Source: the counts section of the specification (the worked example of 256 threads:
    8192 steps, 65536 elements on the bus).

    >>> c = expected_counts(256, 256, 256)
    >>> c.instructions, c.steps, c.broadcast_elements
    (32, 8192, 65536)
    >>> four = MatrixUnitConfig(pes=4)  # each of them needs all of B
    >>> expected_counts(256, 256, 256, four, split="rows").broadcast_elements
    262144
    """
    config = checked_config(config)
    m, n, k = whole("m", m), whole("n", n), whole("k", k)
    ka, kb = whole("ka", ka, 1), whole("kb", kb, 1)
    segments = None if segments is None else min(whole("segments", segments, 1), max(1, n))
    tail_kb = None if tail_kb is None else whole("tail_kb", tail_kb, 1)
    how = _grouping(config, element_bytes, ka, kb, columns, tail_kb or 1)
    if order not in ("k_outer", "column_outer"):
        raise UsageError(f"order {order!r}", how="k_outer or column_outer")
    if split not in (None, "rows", "columns"):
        raise UsageError(f"split {split!r}", how="rows or columns")
    deep, wide = _line(line, config.line_bytes // element_bytes, transpose_b)
    if 0 in (m, n, k):
        return Counts()
    block_a = whole("block_a", block_a, 1)
    whole_one = _Product(m, n, k, how, order, deep, wide, block_a)
    counts = Counts.together(_with_tail(part, first, tail_kb) for part, first in _parts(whole_one, split, segments))
    lines = 0 if segments else _ceil(k, deep) * _ceil(n, wide)  # DMA brings segments in, and L2 is shared
    return replace(counts, l2_misses=lines, dram_bytes=lines * config.line_bytes)


def _line(line: Sequence[int] | None, elements: int, transpose_b: bool) -> tuple[int, int]:
    """Elements of a line along k and along the columns."""
    along = (1, elements) if line is None else wholes("line", line, 1)
    if len(along) != 2 or along[0] * along[1] != elements:
        raise UsageError(f"line = {tuple(along)}", how=f"two numbers, {elements} elements (the machine's line_bytes)")
    return (along[0], along[1]) if transpose_b else (along[1], along[0])


def _parts(p: _Product, split: str | None, segments: int | None) -> Iterator[tuple[_Product, int]]:
    """What is multiplied by a program of its own, or as a segment of its own; the first column in what B is stored."""
    pes = p.how.config.pes
    if split is None:
        split = "columns" if segments or _ceil(p.m, p.how.fit) < pes else "rows"
    if segments and split == "rows" and pes > 1:
        raise UnsupportedError("segments of B shared by several elements", how="split='columns'")
    if split == "rows" and not segments:
        for low, high in _pieces(0, p.m, pes):
            yield replace(p, m=high - low), 0
        return
    for first, end in _pieces(0, p.n, pes):
        for low, high in _pieces(first, end, segments or 1):
            yield replace(p, n=high - low), 0 if segments else low


def _pieces(first: int, end: int, count: int) -> list[tuple[int, int]]:
    """As even as can be, none of them empty."""
    cuts = [first + (end - first) * i // count for i in range(count + 1)]
    return [(low, high) for low, high in pairwise(cuts) if high > low]


def _counts(p: _Product, first: int) -> Counts:
    """Of one product; B's columns are those from ``first`` on of what is stored."""
    how, blocks, rounds = p.how, _ceil(p.n, p.how.columns), _ceil(p.k, p.how.depth)
    in_blocks = p.order == "k_outer"
    columns, steps = (blocks, how.steps(p.n)) if in_blocks else (p.n, p.n)
    loads = blocks if in_blocks or p.block_a > 1 else p.n
    row_blocks, sums = _ceil(p.m, how.fit), p.m * p.n * rounds
    return Counts(
        instructions=row_blocks * columns * rounds,
        macs=p.m * p.n * p.k,
        column_loads=row_blocks * p.n * rounds,
        broadcast_elements=row_blocks * p.n * p.k,
        steps=row_blocks * rounds * steps,
        a_bytes_loaded=loads * how.ka * p.m * how.loaded(p.k, p.k) * how.element_bytes,
        a_register_reads=columns * rounds * _ceil(how.chunk * how.element_bytes, 4) * how.ka * how.kb * p.m,
        accumulator_reads=sums,
        accumulator_writes=sums,
        kb_transfers=sums * (how.kb - 1),
        l1_touches=row_blocks * p.n * _lines_of_walk(p.k, how.depth, p.deep),
        l1_misses=_ceil(p.k, p.deep) * _spanned(first, p.n, p.wide),
    )


def _with_tail(p: _Product, first: int, tail_kb: int | None) -> Counts:
    """The last rows with a kb of their own; L1 has their lines of B already."""
    rest = p.m % p.how.fit
    if not tail_kb or not rest:
        return _counts(p, first)
    last = _counts(replace(p, m=rest, how=replace(p.how, kb=tail_kb), block_a=1), first)
    if rest == p.m:
        return last
    return Counts.together((_counts(replace(p, m=p.m - rest), first), replace(last, l1_misses=0)))


def _lines_of_walk(k: int, depth: int, unit: int) -> int:
    """Lines of ``unit`` elements that rounds of ``depth`` touch, each counted anew, over ``k`` elements.

    Rounds begin at the same places of a line again after ``unit / gcd(unit, depth)`` of them.
    """
    rounds, rest = divmod(k, depth)
    period = unit // gcd(unit, depth)
    touched = [_spanned(s * depth, depth, unit) for s in range(min(period, rounds))]
    cycles, more = divmod(rounds, period)
    total = cycles * sum(touched) + sum(touched[:more])
    return total + (_spanned(rounds * depth, rest, unit) if rest else 0)


# Closed forms for the counts of a convolution, written from the formulas alone as those of a product are.


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
    if split not in (None, *SPLITS):
        raise UsageError(f"split {split!r}", how="images, rows or channels")
    how = _grouping(config, element_bytes, ka, kb, columns)
    if shape.empty:
        return Counts()
    counts = Counts.together(_of_group(shape, how, *part) for part in _conv_parts(shape, how, split))
    # Lines of the weights: every tap of an output channel begins one.
    lines = shape.outs * shape.kernel[0] * shape.kernel[1] * _ceil(shape.depth * element_bytes, config.line_bytes)
    return replace(counts, l2_misses=lines, dram_bytes=lines * config.line_bytes)


def _conv_parts(shape: ConvShape, how: _Grouping, split: str | None) -> Iterator[tuple[tuple[int, int], int, int]]:
    """What each element does: (pixels of the result from the first to the end, group, how many of its channels)."""
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
            share = shape.pixels // count
            pixels, channels = (first * share, end * share), (0, shape.outs)
        for group in range(shape.groups):
            outs = min(channels[1], (group + 1) * width) - max(channels[0], group * width)
            if outs > 0:
                yield pixels, group, outs


def _of_group(shape: ConvShape, how: _Grouping, pixels: tuple[int, int], group: int, n: int) -> Counts:
    """One group: a product of pixels by channels for every tap of the kernel."""
    k, e, taps = shape.depth, how.element_bytes, shape.kernel[0] * shape.kernel[1]
    of_tap = _counts(_Product(pixels[1] - pixels[0], n, k, how, "k_outer", how.config.line_bytes // e, 1), 0)
    # Every load is whole but the last: that of the last group ends with the channels, or with what it may take.
    loaded = how.loaded(k, shape.depth * shape.groups - group * k)
    in_all = {name: taps * count for name, count in of_tap.to_dict().items()}
    in_all["a_bytes_loaded"] = _ceil(n, how.columns) * how.ka * _inside(shape, pixels) * loaded * e
    return Counts(**in_all)


def _inside(shape: ConvShape, pixels: tuple[int, int]) -> int:
    """Taps of all these pixels that lie inside the image."""
    there = []
    for d in range(2):
        begin, count = np.arange(shape.out[d]) * shape.stride[d] - shape.before[d], np.zeros(shape.out[d], np.int64)
        for tap in range(shape.kernel[d]):
            at = begin + tap * shape.dilation[d]
            count += (at >= 0) & (at < shape.size[d])
        there.append(count)
    return _up_to(pixels[1], *there) - _up_to(pixels[0], *there)


def _up_to(pixel: int, high: Array, wide: Array) -> int:
    """The sum of ``high[y] * wide[x]`` over all pixels before this one; every image is the same."""
    images, pixel = divmod(pixel, high.size * wide.size)
    y, x = divmod(pixel, wide.size)
    row, above = int(wide.sum()), int(high[:y].sum())
    return images * int(high.sum()) * row + above * row + (int(high[y]) * int(wide[:x].sum()) if x else 0)

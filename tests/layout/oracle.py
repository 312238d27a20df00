"""The layouts' formulas written down plainly, element by element: an oracle that shares nothing with the package."""

from __future__ import annotations

import itertools
import math


def tiled_offset(index, shape, minor_to_major, tiles):
    """XLA's tiled layout document, read literally."""
    order = list(reversed(minor_to_major))
    sizes = [shape[d] for d in order]
    place = [index[d] for d in order]
    for tile in tiles:
        tile = list(tile)
        while len(tile) > len(sizes):
            sizes.insert(0, 1)
            place.insert(0, 0)
        first = len(sizes) - len(tile)
        while -1 in tile:
            k = tile.index(-1)
            tile.pop(k)
            major_size, major_place = sizes.pop(first + k), place.pop(first + k)
            place[first + k] += major_place * sizes[first + k]
            sizes[first + k] *= major_size
        outer = [(-(-s // t), p // t) for s, p, t in zip(sizes[first:], place[first:], tile, strict=True)]
        inner = [(t, p % t) for p, t in zip(place[first:], tile, strict=True)]
        sizes[first:] = [s for s, _ in outer + inner]
        place[first:] = [p for _, p in outer + inner]
    offset = 0
    for s, p in zip(sizes, place, strict=True):
        offset = offset * s + p
    return offset, math.prod(sizes)


def lane_address(index, shape, lanes, start, strides):
    n, c, h, w = index
    n_stride, c_stride, h_stride, w_stride = strides
    return (start + c) % lanes, n * n_stride + (start + c) // lanes * c_stride + h * h_stride + w * w_stride


def lane_matrix_address(index, columns, per_npu, lanes, start, eu):
    """The matrix as the tensor (rows, ceil(columns / w), 1, w), aligned to ``eu`` elements."""
    row, column = index
    parts = -(-columns // per_npu)
    c_stride = -(-per_npu // eu) * eu
    n_stride = -(-(start + parts) // lanes) * c_stride
    return lane_address((row, column // per_npu, 0, column % per_npu), None, lanes, start, (n_stride, c_stride, 0, 1))


def lane_weights_address(index, shape, lanes, side):
    """The published formula of "alignIC"."""
    oc, ic, kh_i, kw_i = index
    _, channels, kh, kw = shape
    rounded = -(-channels // side) * side
    element = oc // lanes * rounded * kh * kw + ic // side * side * kh * kw + kh_i * kw * side + kw_i * side + ic % side
    return oc % lanes, element


def paged_address(index, shape, page, line):
    """The accelerator patent's formulas; dims are given slowest first, d1 is the last."""
    x, size, p_size, l_size = (list(reversed(v)) for v in (index, shape, page, line))
    page_id = line_id = element = 0
    scale = 1
    for d in range(len(x)):
        page_id += x[d] // p_size[d] * scale
        scale *= -(-size[d] // p_size[d])
    scale = 1
    for d in range(len(x)):
        line_id += x[d] % p_size[d] // l_size[d] * scale
        scale *= p_size[d] // l_size[d]
    scale = 1
    for d in range(len(x)):
        element += x[d] % p_size[d] % l_size[d] * scale
        scale *= l_size[d]
    return page_id, line_id * math.prod(l_size) + element


def shard_address(row, column, shards, rotation, row_offset):
    return (row % shards + rotation) % shards, row // shards + row_offset, column


def all_indices(shape):
    return itertools.product(*(range(n) for n in shape))

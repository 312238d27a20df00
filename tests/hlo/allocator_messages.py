"""The test messages, and what an array takes in memory by plain arithmetic on its text."""

from __future__ import annotations

import json
import math
import re

from tests.conftest import VECTORS

FOLDER = VECTORS / "allocator_messages"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
TEXTS = {name: (FOLDER / name).read_text() for name in EXPECTED}
_BITS = {"pred": 8, "bf16": 16, "f16": 16, "c64": 64, "c128": 128, "f8e4m3fn": 8}
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*)(?::(?:T((?:\([\d,]+\))+))?(?:E\((\d+)\))?(?:S\((\d)\))?)?\})?")


def dims_of(text):
    """The sizes in a shape's text."""
    return [int(n) for n in _SHAPE.fullmatch(text)[2].split(",") if n]


def bits_of(dtype):
    """Bits of an element type."""
    return _BITS.get(dtype) or int(dtype[1:])


def padded_bytes(text):
    """(bytes with padding, bytes of data) of ``f32[3,5]{1,0:T(8,128)}``.

    Dims in physical order, the last ones rounded up to the tile, a tile's rows to those that share a word.
    """
    dtype, _, order, tiles, stored, _ = _SHAPE.fullmatch(text).groups()
    dims = dims_of(text)
    minor_first = [int(d) for d in order.split(",") if d] if order is not None else list(range(len(dims)))[::-1]
    sizes = [dims[d] for d in reversed(minor_first)]
    levels = [[int(n) for n in level.split(",")] for level in re.findall(r"\(([\d,]+)\)", tiles or "")]
    if levels:
        tile = levels[0]
        sizes = [1] * (len(tile) - len(sizes)) + sizes
        first = len(sizes) - len(tile)
        sizes = sizes[:first] + [-(-n // t) * t for n, t in zip(sizes[first:], tile, strict=True)]
        if len(tile) == 2 and len(levels) == 2 and tile[0] % levels[1][0]:
            sizes[-2] = sizes[-2] // tile[0] * (-(-tile[0] // levels[1][0]) * levels[1][0])
    bits = int(stored) if stored else bits_of(dtype)
    return math.prod(sizes) * bits // 8, math.prod(dims) * min(bits, bits_of(dtype)) // 8

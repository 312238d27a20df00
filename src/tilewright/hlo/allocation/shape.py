"""One array of a message: which tile pads which dims, and what that comes to, from its layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins

from tilewright.errors import UsageError
from tilewright.hlo.allocation.reading import StatedSize
from tilewright.layout import TensorLayout, parse, tiled
from tilewright.render import bytes_text, count_text
from tilewright.render.formats import ratio_text

LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class PaddedDim:
    """A dim that its tile pads: ``size`` becomes ``padded``, the next multiple of ``tile``.

    ``dim`` is its number in the shape, None for one that the tile adds to a shape of lower rank.
    """

    dim: int | None
    size: int
    padded: int
    tile: int

    def __str__(self) -> str:
        name = "a dim the shape has not" if self.dim is None else f"dim {self.dim}"
        return f"{name} from {count_text(self.size)} to {count_text(self.padded)}"


@dataclass(frozen=True)
class PaddedShape:
    """A shape with its bytes, recomputed from its layout."""

    shape: str  # its text with the layout that was used
    assumed: bool  # the layout's tiles are not in the message: they are the ones that explain its size
    copies: int  # how many of it the allocation holds (a double buffered window: 2)
    data_bytes: int  # bytes of the elements of all copies
    bytes: int  # with padding
    dims: tuple[PaddedDim, ...]  # the dims that are padded
    rest: float  # factor of the padding that no dim explains: wide elements, packing, alignment
    agrees: bool | None  # whether the message states the same bytes; None where it states none

    @property
    def padding(self) -> int:
        """Bytes that hold no data."""
        return self.bytes - self.data_bytes

    @property
    def factor(self) -> float:
        """Bytes over bytes of data."""
        return self.bytes / self.data_bytes if self.data_bytes else 1.0

    @property
    def layout(self) -> TensorLayout:
        """The layout that ``shape`` writes."""
        return array_of(self.shape)

    @property
    def words(self) -> str:
        """Why it is padded, "" where it is not."""
        if self.padding <= 0:
            return ""
        layout = self.layout
        tiles = "".join(f"({','.join('*' if t < 0 else str(t) for t in tile)})" for tile in layout.tiles)
        parts = [f"tile {tiles} pads {' and '.join(map(str, self.dims))}"] if self.dims else []
        if self.copies * layout.element_bits * layout.num_elements > 8 * self.data_bytes:
            parts.append(f"an element takes {layout.element_bits} bits")
        elif self.rest > 1:
            parts.append(f"{'the rest' if parts else f'tile {tiles}'} is padded {ratio_text(self.rest)}")
        text = ", ".join(parts)
        return f"{text}: {bytes_text(self.padding)} without data"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "shape": self.shape,
            "tiles_assumed": self.assumed,
            "copies": self.copies,
            "data_bytes": self.data_bytes,
            "bytes": self.bytes,
            "padding_bytes": self.padding,
            "factor": self.factor,
            "padded_dims": list(to_builtins(self.dims)),
            "agrees": self.agrees,
            "why": self.words,
        }


def array_of(text: str) -> TensorLayout:
    """The layout of one array.

    Raises :class:`ParseError` for a text that is none, :class:`UsageError` for a tuple or an array without a size.
    """
    layout = parse(text)
    if not isinstance(layout, TensorLayout):
        raise UsageError("it is a tuple, which is a table of pointers")
    if any(size < 0 for size in layout.shape):
        raise UsageError("a dim is unbounded")
    if not layout.element_bits:
        raise UsageError(f"a {layout.dtype} takes no memory")
    return layout


def padded_shape(text: str, stated: StatedSize | None = None, copies: int = 1) -> PaddedShape:
    """The bytes of a shape as a message writes it; ``stated`` is the size it gives for ``copies`` of it.

    Messages of vector memory, and old ones of any, leave the tiles out: then those are taken that come to the stated
    size, the registers' own first. Raises what :func:`array_of` raises.

    >>> found = padded_shape("s32[8388608,8,4]{2,1,0:T(8,128)}")
    >>> found.bytes, found.factor, str(found.dims[0])
    (34359738368, 32.0, 'dim 2 from 4 to 128')
    """
    layout = array_of(text)
    assumed = False
    if not layout.tiles and layout.shape and stated and not stated.covers(copies * layout.size_bytes):
        for candidate in _candidates(layout):
            if stated.covers(copies * candidate.size_bytes):
                layout, assumed = candidate, True
                break
    dims = tuple(_padded_dims(layout))
    padded, sizes = math.prod(dim.padded for dim in dims), math.prod(dim.size for dim in dims)
    size, data = layout.size_bytes, layout.data_bytes
    rest = size * sizes / (data * padded) if data else 1.0
    agrees = None if stated is None else stated.covers(copies * size)
    return PaddedShape(str(layout), assumed, copies, copies * data, copies * size, dims, rest, agrees)


def packing_of(layout: TensorLayout) -> int:
    """Elements that share a 32-bit word."""
    return max(1, 32 // layout.element_bits)


def _candidates(layout: TensorLayout) -> Iterator[TensorLayout]:
    """The same array in the tiles a TPU uses."""
    packing = packing_of(layout)
    inner = [(packing, 1)] if packing > 1 else []
    if len(layout.shape) == 1:
        for length in (1024, 128 * packing, 256, 512, 1024 * packing):
            yield _with_tiles(layout, [(length,), (LANES,), *inner] if packing > 1 else [(length,)])
        return
    for rows in (SUBLANES, SUBLANES * packing, 4, 2, 1):
        if rows >= packing or rows == SUBLANES:
            yield _with_tiles(layout, [(rows, LANES), *inner])


def _with_tiles(layout: TensorLayout, tiles: list[tuple[int, ...]]) -> TensorLayout:
    bits, memory = layout.text.element_bits, layout.memory_space
    return tiled(layout.shape, layout.dtype, layout.minor_to_major, tiles, element_bits=bits, memory_space=memory)


def _padded_dims(layout: TensorLayout) -> Iterator[PaddedDim]:
    """What the outermost tile pads, the most minor dim first; nothing where it merges dims."""
    if not layout.tiles or any(t < 0 for t in layout.tiles[0]):
        return
    order = layout.minor_to_major
    for place, tile in enumerate(reversed(layout.tiles[0])):
        dim = order[place] if place < len(order) else None
        size = layout.shape[dim] if dim is not None else 1
        padded = -(-size // tile) * tile
        if padded != size and size:
            yield PaddedDim(dim, size, padded, tile)

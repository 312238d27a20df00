"""Arrays as they lie in memory: tiles, padding included."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tilewright.layout import TensorLayout

MEGA = 1e6
"""Bytes of the megabyte that the constants are in."""


@dataclass(frozen=True)
class Tiles:
    """One array in its padded, tiled form.

    >>> from tilewright.layout import parse
    >>> t = Tiles.of(parse("bf16[20,300]{1,0:T(8,128)(2,1)}"))
    >>> t.grid, t.count, t.elements, t.role(1)
    ((3, 3), 9, 9216, 'lanes')
    """

    shape: tuple[int, ...]  # logical sizes
    minor_to_major: tuple[int, ...]  # the dims, minor first
    tile: tuple[int, ...]  # the outer tile (sublanes, lanes), such as (8, 128); (1,) or () where there is none
    grid: tuple[int, ...]  # tiles along every physical dim, major to minor; the last two are sublanes and lanes
    count: int  # tiles in all
    elements: int  # elements, padding included
    megabytes: float  # 1e6 bytes, padding included
    space: int  # memory space: 0 HBM, 1 vector memory, others as the chip numbers them

    @staticmethod
    @lru_cache(maxsize=65536)
    def of(layout: TensorLayout) -> Tiles:
        """The tiles of a layout; of a shape without tiles, each element is one."""
        order = layout.minor_to_major
        physical = [layout.shape[d] for d in reversed(order)]
        outer = tuple(size for size in layout.tiles[0] if size > 0) if layout.tiles else ()
        physical = [1] * (max(2, len(outer)) - len(physical)) + physical
        sizes = [1] * (len(physical) - len(outer)) + list(outer)
        grid = tuple(-(-n // t) for n, t in zip(physical, sizes, strict=True))
        elements = prod(grid) * prod(outer)
        megabytes = layout.size_bytes / MEGA
        return Tiles(layout.shape, order, outer, grid, prod(grid), elements, megabytes, layout.memory_space)

    @property
    def small_tile(self) -> bool:
        """Whether the tile has fewer than the 8 sublanes of a whole register."""
        return len(self.tile) < 2 or self.tile[0] != 8

    def role(self, dim: int) -> str:
        """Where a logical dim lies: in ``lanes``, in ``sublanes`` or ``major`` of both."""
        return ("lanes", "sublanes", "major")[min(2, self.minor_to_major.index(dim))]

    def order(self, left_out: int | None = None) -> tuple[int, ...]:
        """The dims, minor first, without one."""
        return tuple(d for d in self.minor_to_major if d != left_out)

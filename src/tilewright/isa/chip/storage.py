"""Where a tensor's elements stand: pages of cache lines, and the page table that says where each page is.

    index (i, j) --layout.paged--> (page, offset) --page table--> physical byte = PTE[page].phys + offset * e

The map is the layout package's; the page table is machine state, applied after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.layout import PagedLayout, dtype_name, paged

ABSENT, LOADING, LOADED = 0, 1, 2
STATES = ("absent", "loading", "loaded")
Array = np.ndarray[Any, Any]
_Tables = tuple[Array, Array, Array, Array]


@dataclass(frozen=True)
class PageEntry:
    """One entry as a row to read: ``location`` is L2 or DDR; an absent page has none, and ``phys`` None.

    >>> print(PageEntry(3, "loaded", "L2", 4096, True))
    page 3: loaded, L2 at byte 4096, stored to
    """

    page: int
    state: str
    location: str = ""
    phys: int | None = None
    dirty: bool = False

    def __str__(self) -> str:
        """One line."""
        place = f", {self.location} at byte {self.phys}" if self.phys is not None else ""
        return f"page {self.page}: {self.state}{place}{', stored to' * self.dirty}"


@dataclass(eq=False)
class PageTable:
    """Entries of one storage, arrays over its pages: physical byte, state, ready cycle, whether in L2, stored to.

    An absent page has no entry: its physical byte is -1.
    """

    phys: Array
    state: Array
    ready: Array
    in_l2: Array
    dirty: Array

    @classmethod
    def of(cls, pages: int) -> PageTable:
        """All pages absent."""
        phys, state = np.full(pages, -1, np.int64), np.full(pages, ABSENT, np.int8)
        return cls(phys, state, np.zeros(pages, np.int64), np.zeros(pages, bool), np.zeros(pages, bool))

    def create(self, page: int, phys: int, state: int, in_l2: bool, ready: int = 0) -> None:
        """A page moved in, or mapped where it stands."""
        self.phys[page], self.state[page], self.in_l2[page] = phys, state, in_l2
        self.ready[page], self.dirty[page] = ready, False

    def delete(self, page: int) -> None:
        """A page moved out has no entry."""
        self.create(page, -1, ABSENT, False)

    def entries(self) -> list[PageEntry]:
        """Every page as a row."""
        rows = zip(self.phys.tolist(), self.state.tolist(), self.in_l2.tolist(), self.dirty.tolist(), strict=True)
        return [
            PageEntry(page, STATES[state], "L2" if in_l2 else "DDR", phys, dirty)
            if state
            else PageEntry(page, "absent")
            for page, (phys, state, in_l2, dirty) in enumerate(rows)
        ]

    @property
    def loading(self) -> bool:
        """Whether any page is on its way."""
        return bool((self.state == LOADING).any())

    def settle(self, pages: Array | None = None) -> int:
        """Entries (of ``pages``) that are loading become loaded; the cycle at which the last is there (0: none was)."""
        loading = self.state == LOADING
        if not loading.any():
            return 0
        if pages is not None:
            touched = np.zeros_like(loading)
            touched[pages] = True
            loading &= touched
            if not loading.any():
                return 0
        self.state[loading] = LOADED
        return int(self.ready[loading].max())


@dataclass(eq=False)
class Storage:
    """The pages of one tensor, or of a part of it.

    ================  ==============================================================================
    ``map``           index -> (page, offset), counted in elements
    ``sizes``         elements per dim, d1 first (the numpy shape reversed)
    ``pages_of``      per dim, d1 first: what a coordinate adds to the page number
    ``offsets_of``    likewise for the offset in the page; both read off ``map``, flat, from ``starts``
    ``home``          first byte in device memory
    ``tensor``        the tensor of the system memory it holds, from index ``base`` (numpy order)
    ================  ==============================================================================
    """

    name: str
    dtype: str
    map: PagedLayout
    home: int
    table: PageTable
    sizes: Array
    starts: Array
    pages_of: Array
    offsets_of: Array
    tensor: str
    base: tuple[int, ...]

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return self.map.element_bits // 8

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, padding included."""
        return self.map.page_elements * self.element_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages."""
        return self.map.num_pages * self.page_bytes

    def home_of(self, page: int) -> int:
        """The page's first byte in device memory."""
        return self.home + page * self.page_bytes

    def line_numbers(self, *along: Array) -> Array:
        """The line of every element at the coordinates ``along`` each dim (numpy order), counted through all pages."""
        last = len(along) - 1
        pages, offsets = np.zeros((2,) + (1,) * len(along), np.int64)
        for d, at in enumerate(along):
            where = int(self.starts[last - d]) + at  # these tables begin with d1, the last dim
            shape = (-1,) + (1,) * (last - d)
            pages = pages + self.pages_of[where].reshape(shape)
            offsets = offsets + self.offsets_of[where].reshape(shape)
        return np.asarray((pages * self.map.page_elements + offsets) // self.map.line_elements)

    def values(self, store: Array) -> Array:
        """The tensor as the page table finds it; a page moved out is read from device memory."""
        homes = self.home + np.arange(self.map.num_pages) * self.page_bytes
        begins = np.where(self.table.phys >= 0, self.table.phys, homes)
        if (np.diff(begins) == self.page_bytes).all():
            raw = store[begins[0] : begins[0] + self.total_bytes]
        else:
            raw = np.concatenate([store[b : b + self.page_bytes] for b in begins])
        return self.map.unpack(raw.view(self.map.numpy_dtype))


def make_storage(
    name: str,
    array: Array,
    home: int,
    line_bytes: int,
    page: Sequence[int] | None = None,
    line: Sequence[int] | None = None,
    order: Sequence[int] | None = None,
    tensor: str = "",
    base: tuple[int, ...] = (),
) -> Storage:
    """The storage of an array whose pages begin at byte ``home``; every page is absent."""
    shape, dtype = array.shape, dtype_name(array.dtype)
    e = array.dtype.itemsize
    fastest = order[0] if order else len(shape) - 1
    line = line or tuple(max(1, line_bytes // e) if d == fastest else 1 for d in range(len(shape)))
    page, line, order = (None if sides is None else tuple(sides) for sides in (page, line, order))
    layout, arrays = _placed(shape, dtype, page, line, order)
    if layout.line_elements * e != line_bytes:
        size = f"a line of {layout.line_elements} elements is {layout.line_elements * e} bytes, not {line_bytes}"
        raise UsageError(size, where=f"segment {name}", how="give line= of the machine's line_bytes")
    table = PageTable.of(layout.num_pages)
    return Storage(name, dtype, layout, home, table, *arrays, tensor or name, base or (0,) * len(shape))


@lru_cache(maxsize=64)
def _placed(shape: tuple[int, ...], dtype: str, *how: tuple[int, ...] | None) -> tuple[PagedLayout, _Tables]:
    """A layout of these page, line and order, and (sizes, starts, pages_of, offsets_of) of it, which nobody changes."""
    page, line, order = how
    layout = paged(shape, dtype, page=page, line=line, order=order)
    sizes = np.array(shape[::-1], np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    walks = [_walk(layout, d) for d in reversed(range(len(shape)))]
    pages_of, offsets_of = np.concatenate(walks, axis=0).T
    return layout, (sizes, starts, np.ascontiguousarray(pages_of), np.ascontiguousarray(offsets_of))


def _walk(layout: PagedLayout, dim: int) -> Array:
    """int64[size, 2]: (page, offset) along one dim. Pages and lines cut each dim alone, so addresses are their sums."""
    indices = np.zeros((layout.shape[dim], layout.rank), np.int64)
    indices[:, dim] = np.arange(layout.shape[dim])
    return layout.addresses(indices)

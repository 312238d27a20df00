"""Tensors in the machine's memory: the host's :class:`Memory`, and a segment with its page table.

    index (i, j) --layout.paged--> (page, offset) --page table--> physical byte = PTE[page].phys + offset * e

The map is the layout package's; the page table is machine state, applied after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa._checks import array_of
from tilewright.layout import PagedLayout, dtype_name, paged

__all__ = ["ABSENT", "LOADED", "LOADING", "Memory", "PageTable", "Placement", "Segment"]

ABSENT, LOADING, LOADED = 0, 1, 2
ELEMENT_TYPES = ("s8", "u8", "s16", "u16", "s32", "u32", "f16", "bf16", "f32")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Placement:
    """What the host says of one segment: its values and how they lie in memory.

    ``page`` and ``line`` in elements per dim, ``order`` the dims from the fastest to the slowest, as in
    :func:`tilewright.layout.paged` (None: the machine's default, lines along the last dim, one page).
    ``resident``: its pages are in the page table from the start; otherwise the program brings them in (``dmain``).
    """

    name: str
    array: Array
    page: tuple[int, ...] | None = None
    line: tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None
    resident: bool = True


class Memory:
    """The tensors a program can reach, by name; the first has handle 1.

    >>> memory = Memory({"A": np.zeros((4, 8), np.int8)})
    >>> memory.add("C", np.zeros((4, 4), np.int32))
    2
    >>> [p.name for p in memory]
    ['A', 'C']
    """

    def __init__(self, tensors: Mapping[str, Any] | None = None) -> None:
        self._placements: dict[str, Placement] = {}
        for name, array in (tensors or {}).items():
            self.add(name, array)

    def __iter__(self) -> Iterator[Placement]:
        """The segments in the order of their handles."""
        return iter(self._placements.values())

    def __len__(self) -> int:
        """Number of segments."""
        return len(self._placements)

    def add(
        self,
        name: str,
        array: Any,
        page: Sequence[int] | None = None,
        line: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
        resident: bool = True,
    ) -> int:
        """Place a tensor of 8, 16 or 32-bit elements with one dim or more; returns its handle.

        The array is copied when the machine starts; results are read from :meth:`RunResult.tensor`. Raises
        :class:`UsageError` for a name that is taken or no identifier, and for element types the machine has not.
        """
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in self._placements:
            raise UsageError(f"a segment cannot be called {name!r}", how="give each its own name of letters and digits")
        values = array_of(f"segment {name}", array)
        if dtype_name(values.dtype) not in ELEMENT_TYPES:
            how = f"the machine's types are {', '.join(ELEMENT_TYPES)}"
            raise UsageError(f"segment {name} has elements of type {values.dtype}", how=how)
        if values.ndim == 0 or values.size == 0:
            raise UsageError(f"segment {name} has shape {values.shape}", how="give one dim or more, none of them 0")
        page, line, order = (None if s is None else tuple(int(n) for n in s) for s in (page, line, order))
        self._placements[name] = Placement(name, values, page, line, order, resident)
        return len(self._placements)


@dataclass
class PageTable:
    """Entries of one segment, arrays over its pages: physical byte, state, ready cycle, whether in L2, stored to."""

    phys: Array
    state: Array
    ready: Array
    in_l2: Array
    dirty: Array

    @classmethod
    def of(cls, pages: int, home: int, page_bytes: int, resident: bool) -> PageTable:
        """Pages one behind the other from ``home``, all loaded or all absent."""
        phys = home + np.arange(pages, dtype=np.int64) * page_bytes if resident else np.full(pages, -1, np.int64)
        state = np.full(pages, LOADED if resident else ABSENT, np.int8)
        flags = np.zeros(pages, bool)
        return cls(phys, state, np.zeros(pages, np.int64), flags.copy(), flags)


@dataclass
class Segment:
    """A segment descriptor.

    ================  ==============================================================================
    ``map``           index -> (page, offset), counted in elements
    ``sizes``         elements per dim, d1 first (the numpy shape reversed)
    ``pages_of``      per dim, d1 first: what a coordinate adds to the page number
    ``offsets_of``    likewise for the offset in the page; both read off ``map``, flat, from ``starts``
    ``home``          the segment's first byte in device memory
    ``selected``      t1 retention: elements already selected, and per line how many are still awaited
    ================  ==============================================================================
    """

    name: str
    handle: int
    dtype: str
    map: PagedLayout
    home: int
    table: PageTable
    sizes: Array
    starts: Array
    pages_of: Array
    offsets_of: Array
    selected: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    awaited: Array = field(default_factory=lambda: np.zeros(0, np.int32))

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

    def await_all(self) -> None:
        """Begin t1 retention: every line awaits each of its elements that lies in the segment (first call only)."""
        if self.selected.size:
            return
        slots = self.map.num_pages * self.map.page_elements
        self.selected = np.zeros(slots, np.uint8)
        pages: Array = np.zeros((), np.int64)
        offsets: Array = np.zeros((), np.int64)
        for d, size in enumerate(self.sizes):
            part = slice(self.starts[d], self.starts[d] + size)
            shape = (-1,) + (1,) * d  # d1 is the last dim of the broadcast sum
            pages = pages + self.pages_of[part].reshape(shape)
            offsets = offsets + self.offsets_of[part].reshape(shape)
        lines = (pages * self.map.page_elements + offsets) // self.map.line_elements
        count = np.bincount(lines.reshape(-1), minlength=slots // self.map.line_elements)
        self.awaited = count.astype(np.int32)


def make_segment(place: Placement, handle: int, home: int, line_bytes: int) -> Segment:
    """The descriptor of a placement whose pages begin at byte ``home``."""
    shape, dtype = place.array.shape, dtype_name(place.array.dtype)
    e = place.array.dtype.itemsize
    fastest = place.order[0] if place.order else len(shape) - 1
    line = place.line or tuple(max(1, line_bytes // e) if d == fastest else 1 for d in range(len(shape)))
    layout = paged(shape, dtype, page=place.page, line=line, order=place.order)
    if layout.line_elements * e != line_bytes:
        what = f"a line of {layout.line_elements} elements is {layout.line_elements * e} bytes, not {line_bytes}"
        raise UsageError(what, where=f"segment {place.name}", how="give line= of the machine's line_bytes")
    sizes = np.array(shape[::-1], np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    walks = [_walk(layout, d) for d in reversed(range(len(shape)))]
    pages_of, offsets_of = np.concatenate(walks, axis=0).T
    table = PageTable.of(layout.num_pages, home, layout.page_elements * e, place.resident)
    arrays = (sizes, starts, np.ascontiguousarray(pages_of), np.ascontiguousarray(offsets_of))
    return Segment(place.name, handle, dtype, layout, home, table, *arrays)


def _walk(layout: PagedLayout, dim: int) -> Array:
    """int64[size, 2]: (page, offset) along one dim. Pages and lines cut each dim alone, so addresses are their sums."""
    indices = np.zeros((layout.shape[dim], layout.rank), np.int64)
    indices[:, dim] = np.arange(layout.shape[dim])
    return layout.addresses(indices)

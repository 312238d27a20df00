"""Where a tensor's elements stand, segments and parts of it, and the host's :class:`TensorMemory` by name.

A tensor has pages of cache lines, and a page table says where each page is.

    index (i, j) --layout.paged--> (page, offset) --page table--> physical byte = PTE[page].phys + offset * e

The map is the layout package's; the page table is machine state, applied after it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import pairwise, product
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.kernels.records import WALK
from tilewright.isa.language.errors import Array, array_of, whole, wholes
from tilewright.isa.language.instructions import ELEMENT_TYPES
from tilewright.layout import paged
from tilewright.layout.index.types import dtype_name
from tilewright.layout.kinds.paged import PagedLayout

ABSENT, LOADING, LOADED = 0, 1, 2
STATES = ("absent", "loading", "loaded")
_Tables = tuple[Array, Array, Array, Array]
_LEFT = WALK.places["left"]


@dataclass(frozen=True)
class PageEntry:
    """One entry as a row to read: ``location`` is L2 or DDR; an absent page has none, and ``phys`` None.

    ``base``, ``distance``: of a relative entry, the page whose address it counts from, and the bytes from there.

    >>> print(PageEntry(3, "loaded", "L2", 4096, True))
    page 3: loaded, L2 at byte 4096, stored to
    >>> print(PageEntry(3, "loaded", "DDR", 4096, base=0, distance=3072))
    page 3: loaded, DDR at byte 4096 (page 0 + 3072)
    """

    page: int
    state: str
    location: str = ""
    phys: int | None = None
    dirty: bool = False
    base: int | None = None
    distance: int = 0

    def __str__(self) -> str:
        place = f", {self.location} at byte {self.phys}" if self.phys is not None else ""
        place += f" (page {self.base} + {self.distance})" if self.base is not None else ""
        return f"page {self.page}: {self.state}{place}{', stored to' * self.dirty}"


@dataclass(eq=False)
class PageTable:
    """Entries of one storage, arrays over its pages: physical byte, state, ready cycle, whether in L2, stored to.

    An absent page has no entry: its physical byte is -1. ``relative``: entries have distances (:attr:`bases`); then
    ``phys`` is what they come to.
    """

    phys: Array
    state: Array
    ready: Array
    in_l2: Array
    dirty: Array
    relative: bool = False

    @classmethod
    def of(cls, pages: int, relative: bool = False) -> PageTable:
        """All pages absent."""
        phys, state = np.full(pages, -1, np.int64), np.full(pages, ABSENT, np.int8)
        return cls(phys, state, np.zeros(pages, np.int64), np.zeros(pages, bool), np.zeros(pages, bool), relative)

    def part(self, first: int, count: int) -> PageTable:
        """Some of the entries, not copied."""
        at = slice(first, first + count)
        return PageTable(self.phys[at], self.state[at], self.ready[at], self.in_l2[at], self.dirty[at], self.relative)

    @property
    def bases(self) -> Array:
        """The page whose address each page's entry counts from; the page itself where its entry is an address.

        Of relative entries that is the first page with an entry in the same memory, so that a page that moves takes no
        other's address with it: when the first one leaves, the next takes its place. Source: [63].
        """
        bases = np.arange(len(self.phys))
        for in_l2 in (False, True) if self.relative else ():
            there = np.flatnonzero((self.state != ABSENT) & (self.in_l2 == in_l2))
            bases[there] = there[:1]
        return bases

    def create(self, page: int, phys: int, state: int, in_l2: bool, ready: int = 0) -> None:
        """A page moved in, or mapped where it stands."""
        self.phys[page], self.state[page], self.in_l2[page] = phys, state, in_l2
        self.ready[page], self.dirty[page] = ready, False

    def delete(self, page: int) -> None:
        """A page moved out has no entry."""
        self.create(page, -1, ABSENT, False)

    def entries(self, now: int = 0) -> list[PageEntry]:
        """Every page as a row; what is there by cycle ``now`` is loaded."""
        there = (self.state == LOADING) & (self.ready <= now)
        entries, bases = [], self.bases.tolist()
        for page, state in enumerate(np.where(there, LOADED, self.state).tolist()):
            if not state:
                entries.append(PageEntry(page, "absent"))
                continue
            base, phys = bases[page], int(self.phys[page])
            counted = (None, 0) if base == page else (base, phys - int(self.phys[base]))
            location = "L2" if self.in_l2[page] else "DDR"
            entries.append(PageEntry(page, STATES[state], location, phys, bool(self.dirty[page]), *counted))
        return entries

    @property
    def loading(self) -> bool:
        """Whether any page is on its way."""
        return bool((self.state == LOADING).any())

    def settle_until(self, now: int) -> None:
        """Entries whose load has happened by this cycle become loaded."""
        self.state[(self.state == LOADING) & (self.ready <= now)] = LOADED

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
        return self.map.element_bits // 8

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, padding included."""
        return self.map.page_elements * self.element_bytes

    @property
    def total_bytes(self) -> int:
        return self.map.num_pages * self.page_bytes

    def home_of(self, page: int) -> int:
        """The page's first byte in device memory."""
        return self.home + page * self.page_bytes

    def map_pages(self, pages: Iterable[int] | None = None) -> None:
        """Make entries for the pages (all) that have none: loaded, where they stand in device memory."""
        for page in range(self.map.num_pages) if pages is None else pages:
            if self.table.state[page] == ABSENT:
                self.table.create(page, self.home_of(page), LOADED, in_l2=False)

    def bytes_along(self, dim: int) -> Array:
        """What every coordinate along a dim (0: d1) adds to an element's byte in its storage."""
        where = self.starts[dim] + np.arange(self.sizes[dim])
        return np.asarray(self.pages_of[where] * self.page_bytes + self.offsets_of[where] * self.element_bytes)

    def line_numbers(self, *along: Array) -> Array:
        """The line of every element at the coordinates ``along`` each dim (numpy order), counted through all pages."""
        added = (self.bytes_along(d)[at] for d, at in enumerate(along[::-1]))  # d1 is the last of them
        every: Array = reduce(lambda fast, slow: np.add.outer(slow, fast), added)
        return every // (self.map.line_elements * self.element_bytes)

    def fill(self, store: Array, array: Array) -> None:
        """Put the tensor's elements where they stand in device memory."""
        into = store[self.home : self.home + self.total_bytes]
        self.map.pack(array, out=into.view(self.map.numpy_dtype))

    def values(self, store: Array) -> Array:
        """The tensor as the page table finds it; a page moved out is read from device memory."""
        size, phys = self.page_bytes, self.table.phys
        begins = np.where(phys >= 0, phys, self.home + np.arange(len(phys)) * size) if len(phys) > 1 else phys
        if len(phys) > 1 and (np.diff(begins) != size).any():
            raw = np.concatenate([store[b : b + size] for b in begins])
        else:
            first = int(begins[0]) if begins[0] >= 0 else self.home
            raw = store[first : first + self.total_bytes]
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
    relative: bool = False,
) -> Storage:
    """The storage of an array whose pages begin at byte ``home``; every page is absent.

    ``relative``: of its page table, see :class:`PageTable`.
    """
    shape, dtype = array.shape, dtype_name(array.dtype)
    e = array.dtype.itemsize
    fastest = order[0] if order else len(shape) - 1
    line = line or tuple(max(1, line_bytes // e) if d == fastest else 1 for d in range(len(shape)))
    page, line, order = (None if sides is None else tuple(sides) for sides in (page, line, order))
    layout, arrays = _layout_and_tables(shape, dtype, page, line, order)
    if layout.line_elements * e != line_bytes:
        size = f"a line of {layout.line_elements} elements is {layout.line_elements * e} bytes, not {line_bytes}"
        raise UsageError(size, where=f"segment {name}", how="give line= of the machine's line_bytes")
    table = PageTable.of(layout.num_pages, relative)
    return Storage(name, dtype, layout, home, table, *arrays, tensor or name, base or (0,) * len(shape))


def view_of(old: Storage, new: Storage) -> Storage | None:
    """``new`` as another way to see bytes of ``old``, both parts of one tensor; None where they cannot be the same.

    They are where both put every element of ``new`` at the same distance from one another, and nothing else of ``old``
    lies among them. Where pages coincide too, so do their entries: a page is in L2 for both of them.
    """
    first = np.array(new.base[::-1], np.int64) - np.array(old.base[::-1], np.int64)
    if old.dtype != new.dtype or (first < 0).any() or (first + new.sizes > old.sizes).any():
        return None
    home, every = old.home, np.zeros(1, np.int64)
    for d, begin in enumerate(first.tolist()):
        theirs, ours = old.bytes_along(d), new.bytes_along(d)
        seen = theirs[begin : begin + len(ours)]
        if (seen - seen[0] != ours - ours[0]).any():
            return None
        home += int(seen[0] - ours[0])
        every = (theirs[:, None] + every).reshape(-1)
    begin, size = home - old.home, new.total_bytes
    among = np.count_nonzero((every >= begin) & (every < begin + size))
    if begin < 0 or begin + size > old.total_bytes or among != int(np.prod(new.sizes)):
        return None
    page, rest = divmod(begin, new.page_bytes)
    together = new.page_bytes == old.page_bytes and not rest
    return replace(new, home=home, table=old.table.part(page, new.map.num_pages) if together else new.table)


@lru_cache(maxsize=64)
def _layout_and_tables(shape: tuple[int, ...], dtype: str, *how: tuple[int, ...] | None) -> tuple[PagedLayout, _Tables]:
    """A layout of these page, line and order, and (sizes, starts, pages_of, offsets_of) of it, which nobody changes."""
    page, line, order = how
    layout = paged(shape, dtype, page=page, line=line, order=order)
    sizes = np.array(shape[::-1], np.int64)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
    walks = [_along_dim(layout, d) for d in reversed(range(len(shape)))]
    pages_of, offsets_of = np.concatenate(walks, axis=0).T
    return layout, (sizes, starts, np.ascontiguousarray(pages_of), np.ascontiguousarray(offsets_of))


def _along_dim(layout: PagedLayout, dim: int) -> Array:
    """int64[size, 2]: (page, offset) along one dim. Pages and lines cut each dim alone, so addresses are their sums."""
    indices = np.zeros((layout.shape[dim], layout.rank), np.int64)
    indices[:, dim] = np.arange(layout.shape[dim])
    return layout.addresses(indices)


@dataclass(frozen=True, eq=False)
class TensorPlacement:
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


class TensorMemory:
    """The tensors a program can reach, by name; the first has handle 1.

    >>> memory = TensorMemory({"A": np.zeros((4, 8), np.int8)})
    >>> memory.add("C", np.zeros((4, 4), np.int32))
    2
    >>> [p.name for p in memory]
    ['A', 'C']
    """

    def __init__(self, tensors: Mapping[str, Any] | None = None) -> None:
        self._placements: dict[str, TensorPlacement] = {}
        if not isinstance(tensors, Mapping | None):
            raise UsageError(f"memory is {type(tensors).__name__}", how="give tensors by name, as in {'A': array}")
        for name, array in (tensors or {}).items():
            self.add(name, array)

    def __iter__(self) -> Iterator[TensorPlacement]:
        """The segments in the order of their handles."""
        return iter(self._placements.values())

    def __len__(self) -> int:
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
        """Place a tensor of 4, 8, 16 or 32-bit elements with one dim or more; returns its handle.

        The array is copied when the machine starts; results are read from :meth:`RunResult.tensor`. Raises
        :class:`UsageError` for a name that is taken or no identifier, and for element types the machine has not.
        """
        checked_name(name, self._placements)
        values = checked_tensor(name, array)
        sides = checked_sides(page=page, line=line, order=order)
        self._placements[name] = TensorPlacement(name, values, **sides, resident=resident)
        return len(self._placements)


def checked_name(name: str, taken: Container[str]) -> None:
    """A segment's name, or one clear error."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name in taken:
        raise UsageError(f"a segment cannot be called {name!r}", how="give each its own name of letters and digits")


def checked_sides(**sides: Sequence[int] | None) -> dict[str, tuple[int, ...] | None]:
    """What is said of pages, lines and order: whole numbers, or None."""
    return {name: None if numbers is None else wholes(name, numbers) for name, numbers in sides.items()}


def checked_tensor(name: str, array: Any) -> Array:
    """An array the machine can hold, or one clear error."""
    values = array_of(f"segment {name}", array)
    if dtype_name(values.dtype) not in ELEMENT_TYPES:
        how = f"the machine's types are {', '.join(ELEMENT_TYPES)}"
        raise UsageError(f"segment {name} has elements of type {values.dtype}", how=how)
    if values.ndim == 0 or values.size == 0:
        raise UsageError(f"segment {name} has shape {values.shape}", how="give one dim or more, none of them 0")
    return values


@dataclass(eq=False)
class Segment:
    """A segment descriptor: a window of a storage.

    ================  ==============================================================================
    ``name``          what the host calls it ("" for one the program made)
    ``base``          where it begins in its storage, per dim, d1 first
    ``sizes``         elements per dim, d1 first
    ``selected``      t1 retention: elements that the walk over it has selected
    ``awaited``       likewise per line how many it has not; ``at_first``: when a walk begins
    ``walk``          the record WALK: how far it was walked, and for which product
    ================  ==============================================================================
    """

    name: str
    handle: int
    storage: Storage
    base: Array
    sizes: Array
    selected: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    awaited: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    at_first: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    walk: Array = field(default_factory=lambda: np.full(len(WALK.names), -1))

    @property
    def map(self) -> PagedLayout:
        return self.storage.map

    @property
    def table(self) -> PageTable:
        return self.storage.table

    @property
    def dtype(self) -> str:
        return self.storage.dtype

    @property
    def element_bytes(self) -> int:
        return self.storage.element_bytes

    @property
    def starts(self) -> Array:
        """Where each dim's first coordinate stands in the storage's address tables."""
        return self.storage.starts + self.base

    def __str__(self) -> str:
        sizes, base = self.sizes[::-1].tolist(), self.base[::-1].tolist()
        name = f"${self.name}" if self.name else "made by the program"
        where = f" from {base}" if any(base) or sizes != list(self.storage.map.shape) else ""
        return f"{name}, {self.dtype}{sizes} of {self.storage.name}{where}"

    def window(self, base: Array, sizes: Array) -> Segment | None:
        """The same descriptor over another window, or None where the storage ends before it; retention begins anew."""
        inside = (base >= 0) & (sizes >= 1) & (base + sizes <= self.storage.sizes)
        return Segment(self.name, self.handle, self.storage, base, sizes) if inside.all() else None

    def begin_retention(self) -> None:
        """Begin t1 retention: every line awaits each of its elements that lies in the segment (first call only)."""
        if self.selected.size:
            return
        layout = self.map
        slots = layout.num_pages * layout.page_elements
        self.selected = np.zeros(slots, np.uint8)
        inside = (base + np.arange(size) for base, size in zip(self.base[::-1], self.sizes[::-1], strict=True))
        lines = self.storage.line_numbers(*inside)
        count = np.bincount(lines.reshape(-1), minlength=slots // layout.line_elements)
        self.at_first = count.astype(np.int32)
        self.awaited = self.at_first.copy()
        self.walk[_LEFT] = self.sizes.prod()

    def restart_walk(self, page: int | None = None) -> None:
        """A walk begins, over all of it or over a page that was brought in; where none ever began there is nothing."""
        if not self.selected.size:
            return
        size, line = self.map.page_elements, self.map.line_elements
        first, end = (0, len(self.selected)) if page is None else (page * size, (page + 1) * size)
        lines = slice(first // line, end // line)
        self.selected[first:end], self.awaited[lines] = 0, self.at_first[lines]
        self.walk[_LEFT] = int(self.sizes.prod()) - int(np.count_nonzero(self.selected))


def whole_segment(storage: Storage, handle: int, name: str) -> Segment:
    return Segment(name, handle, storage, np.zeros_like(storage.sizes), storage.sizes)


# Who does which part: a tensor's logical space divided among processing elements, whatever its storage. The host deals
# out parts in logical coordinates; nothing keeps two elements from being given the same part.


@dataclass(frozen=True)
class Part:
    """A box of a tensor: where it begins and how many elements it has, per dim as numpy counts them.

    >>> print(Part((0, 4), (8, 4)))
    [0:8, 4:8]
    """

    base: tuple[int, ...]
    size: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", wholes("base", self.base))
        object.__setattr__(self, "size", wholes("size", self.size))
        if len(self.base) != len(self.size):
            raise UsageError(f"a part with base {self.base} and size {self.size}", how="one number per dim each")

    def __str__(self) -> str:
        return f"[{', '.join(f'{b}:{b + s}' for b, s in zip(self.base, self.size, strict=True))}]"

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(b, b + s) for b, s in zip(self.base, self.size, strict=True))


def by_dim(shape: Sequence[int], dim: int, pes: int) -> dict[int, tuple[Part, ...]]:
    """One slice along ``dim`` for every processing element, as even as can be; those beyond the elements get none.

    >>> {pe: str(part[0]) for pe, part in by_dim((8, 8), 1, 2).items()}
    {0: '[0:8, 0:4]', 1: '[0:8, 4:8]'}
    """
    shape, pes = wholes("shape", shape, 1), whole("pes", pes, 1, most=1 << 20)
    if whole("dim", dim) >= len(shape):
        raise UsageError(f"dim = {dim} of a tensor of {len(shape)} dims")
    ends = [shape[dim] * pe // pes for pe in range(pes + 1)]
    parts: dict[int, tuple[Part, ...]] = {}
    for pe, (begin, end) in enumerate(pairwise(ends)):
        if end > begin:
            base, size = [0] * len(shape), list(shape)
            base[dim], size[dim] = begin, end - begin
            parts[pe] = (Part(tuple(base), tuple(size)),)
    return parts


def by_blocks(shape: Sequence[int], block: Sequence[int], pes: int) -> dict[int, tuple[Part, ...]]:
    """Blocks in row-major order, dealt out in turn; those at the high ends may be smaller.

    >>> {pe: [str(p) for p in parts] for pe, parts in by_blocks((8, 8), (4, 4), 2).items()}
    {0: ['[0:4, 0:4]', '[4:8, 0:4]'], 1: ['[0:4, 4:8]', '[4:8, 4:8]']}
    """
    return _dealt(shape, block, pes, diagonals=False)


def by_diagonals(shape: Sequence[int], block: Sequence[int], pes: int) -> dict[int, tuple[Part, ...]]:
    """Blocks by diagonals: all whose block indices have the same sum go to one processing element.

    >>> {pe: [str(p) for p in parts] for pe, parts in by_diagonals((8, 8), (4, 4), 2).items()}
    {0: ['[0:4, 0:4]', '[4:8, 4:8]'], 1: ['[0:4, 4:8]', '[4:8, 0:4]']}
    """
    return _dealt(shape, block, pes, diagonals=True)


def _dealt(shape: Sequence[int], block: Sequence[int], pes: int, diagonals: bool) -> dict[int, tuple[Part, ...]]:
    shape, pes = wholes("shape", shape, 1), whole("pes", pes, 1, most=1 << 20)
    sides = wholes("block", block, 1)
    if len(sides) != len(shape):
        raise UsageError(f"a block of {len(sides)} dims in a tensor of {len(shape)}")
    parts: dict[int, tuple[Part, ...]] = {}
    indices = product(*(range(-(-n // side)) for n, side in zip(shape, sides, strict=True)))
    for number, index in enumerate(indices):
        base = tuple(i * side for i, side in zip(index, sides, strict=True))
        size = tuple(min(side, n - b) for side, n, b in zip(sides, shape, base, strict=True))
        pe = (sum(index) if diagonals else number) % pes
        parts[pe] = (*parts.get(pe, ()), Part(base, size))
    return dict(sorted(parts.items()))

"""Segment descriptors, and the host's :class:`TensorMemory` of tensors by name."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.isa.chip.storage import PageTable, Storage
from tilewright.isa.language.checks import array_of, wholes
from tilewright.layout import PagedLayout, dtype_name

ELEMENT_TYPES = ("s8", "u8", "s16", "u16", "s32", "u32", "f16", "bf16", "f32")
Array = np.ndarray[Any, Any]


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
    ``selected``      t1 retention: elements already selected, and per line how many are still awaited
    ================  ==============================================================================
    """

    name: str
    handle: int
    storage: Storage
    base: Array
    sizes: Array
    selected: Array = field(default_factory=lambda: np.zeros(0, np.uint8))
    awaited: Array = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def map(self) -> PagedLayout:
        """The storage's map."""
        return self.storage.map

    @property
    def table(self) -> PageTable:
        """The storage's page table."""
        return self.storage.table

    @property
    def dtype(self) -> str:
        """The element type."""
        return self.storage.dtype

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return self.storage.element_bytes

    @property
    def starts(self) -> Array:
        """Where each dim's first coordinate stands in the storage's address tables."""
        return self.storage.starts + self.base

    def window(self, base: Array, sizes: Array) -> Segment | None:
        """The same descriptor over another window, or None where the storage ends before it; retention begins anew."""
        inside = (base >= 0) & (sizes >= 1) & (base + sizes <= self.storage.sizes)
        return Segment(self.name, self.handle, self.storage, base, sizes) if inside.all() else None

    def forget_all(self) -> None:
        """As if no t1 walk had ever been."""
        self.selected, self.awaited = np.zeros(0, np.uint8), np.zeros(0, np.int32)

    def await_all(self) -> None:
        """Begin t1 retention: every line awaits each of its elements that lies in the segment (first call only)."""
        if self.selected.size:
            return
        layout = self.map
        slots = layout.num_pages * layout.page_elements
        self.selected = np.zeros(slots, np.uint8)
        inside = (base + np.arange(size) for base, size in zip(self.base[::-1], self.sizes[::-1], strict=True))
        lines = self.storage.line_numbers(*inside)
        count = np.bincount(lines.reshape(-1), minlength=slots // layout.line_elements)
        self.awaited = count.astype(np.int32)


def whole_segment(storage: Storage, handle: int, name: str) -> Segment:
    """The descriptor of a whole storage."""
    return Segment(name, handle, storage, np.zeros_like(storage.sizes), storage.sizes)

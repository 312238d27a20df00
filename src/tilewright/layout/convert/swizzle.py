"""CuTe's swizzles, and what shared memory's banks make of a layout (source: CUTLASS's documentation of CuTe).

    Sw<B,M,S>: B bits of the offset, S above bit M, are xored onto the B bits from bit M on

Rows that begin a power of two apart lie in the same banks; the swizzle moves each row on by its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.layout.convert.strided import ConvertedLayout
from tilewright.layout.index.digits import Line
from tilewright.layout.index.index_map import IndexMap

_WIDEST = 16  # bytes that one thread reads at once


@dataclass(frozen=True, repr=False)
class SwizzledLayout(ConvertedLayout):
    """A layout of CuTe whose offsets are swizzled: ``bits``, ``base`` and ``shift`` of elements, from ``first`` on."""

    bits: int = 0
    base: int = 0
    shift: int = 0
    first: int = 0

    @property
    def scrambles(self) -> bool:
        """That its offsets are no sum over the dims."""
        return True

    @cached_property
    def digits(self) -> dict[str, Line] | None:
        """None: an exclusive or has no digit form."""
        self.require_static()
        return None

    def _swizzled(self, value: Any) -> Any:
        low, high = (self.base, self.base + self.shift) if self.shift > 0 else (self.base - self.shift, self.base)
        return value ^ (((value >> high) & ((1 << self.bits) - 1)) << low)

    def scrambled(self, value: Any) -> Any:
        """The offset of a place in the layout without the swizzle."""
        return self._swizzled(value + self.first)

    def unscrambled(self, value: Any) -> Any:
        """The inverse: the swizzle undoes itself, for the bits it reads are not those it changes."""
        return self._swizzled(value) - self.first


def swizzled_extent(reach: int, bits: int, base: int, shift: int) -> int:
    """Slots that a layout of so many reaches at most once its offsets are swizzled."""
    whole = 1 << (base + bits + max(0, -shift))
    return -(-reach // whole) * whole if bits else reach


@dataclass(frozen=True)
class BankConflicts:
    """What reading elements from shared memory takes.

    ==============  ===================================================================================
    ``width``       bytes that a thread reads at once
    ``wavefronts``  passes over the banks that the reads take; ``least``: that so many bytes need
    ``ways``        the most different words of one bank that one pass is asked for
    ==============  ===================================================================================
    """

    width: int
    wavefronts: int
    least: int
    ways: int

    @property
    def conflicts(self) -> int:
        """Passes too many."""
        return self.wavefronts - self.least


def bank_conflicts(layout: IndexMap, threads: IndexMap, *, banks: int = 32, bank_bytes: int = 4) -> BankConflicts:
    """Bank conflicts of a warp that reads a layout's elements, as a thread-value layout hands them out.

    ``threads`` has two dims, thread and value; its offsets number the elements of ``layout``, the first dim fastest, as
    CuTe counts. Values of a thread that lie behind each other are read 16, 8 or 4 bytes at once, by as many threads at
    a time as fill all banks.

    >>> from tilewright.layout import from_cute
    >>> rows = from_cute("(8,8):(1,8)", "f16")  # thread t reads the first 16 bytes of row t
    >>> plain, swizzled = (from_cute(text, "f16") for text in ("(8,64):(64,1)", "Sw<3,3,3> o _0 o (8,64):(64,1)"))
    >>> bank_conflicts(plain, rows).ways, bank_conflicts(swizzled, rows).ways
    (8, 1)
    """
    if threads.rank != 2 or len(layout.axis_terms) != 1 or layout.element_bits % 8:
        raise UsageError("bank conflicts need a layout of whole bytes and a layout of (threads, values)")
    numbers = threads.offsets(np.indices(threads.shape).transpose(1, 2, 0))
    if numbers.size and numbers.max() >= layout.num_elements:
        raise UsageError(f"{threads} names element {numbers.max()} of {layout}, which has {layout.num_elements}")
    dims = layout.indices_of(numbers, range(layout.rank)[::-1])
    size = layout.element_bits // 8
    places = layout.offsets(dims) * size
    width = _width(places, size)
    starts, passes, least, ways = places[:, :: max(1, width // size)], 0, 0, 0
    together = max(1, banks * bank_bytes // max(width, bank_bytes))
    for column in starts.T:
        for begin in range(0, len(column), together):
            first = (column[begin : begin + together] // bank_bytes).tolist()
            words = {at + k for at in first for k in range(-(-width // bank_bytes))}
            most = max(np.bincount([word % banks for word in words]).max(), 1)
            passes, ways = passes + int(most), max(ways, int(most))
            least += -(-len(words) // banks)
    return BankConflicts(width, passes, least, ways)


def _width(places: np.ndarray[Any, Any], size: int) -> int:
    """Bytes that every thread can read at once."""
    for width in (_WIDEST, 8, 4, 2):
        count = width // size
        if count < 2 or places.shape[1] % count:
            continue
        groups = places.reshape(len(places), -1, count)
        aligned = (groups[..., 0] % width == 0).all()
        if aligned and (groups == groups[..., :1] + np.arange(count) * size).all():
            return width
    return size

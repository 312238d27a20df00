"""What moving an array from one layout to another costs, and the move itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.layout.index.bitcast import order_of, why_not
from tilewright.layout.index.checks import require_room
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.move.blocks import LINE
from tilewright.layout.move.moves import aligned_empty, relayout_plan, run_filled
from tilewright.layout.move.pack import buffer_spec, check_buffer, narrow, widen
from tilewright.layout.move.runs import lines_touched, longest_run


@dataclass(frozen=True)
class Relayout:
    """What moving an array from layout ``a`` to layout ``b`` takes; bytes are 0 for a bitcast.

    >>> from tilewright.layout import parse
    >>> move = relayout(parse("f32[16,256]{1,0:T(8,128)}"), parse("f32[16,256]{1,0}"))
    >>> move.longest_run, move.lines_read, move.tiles_read, move.lines_written
    (1024, 256, 4, 256)
    """

    a: IndexMap
    b: IndexMap
    permutation: tuple[int, ...]
    bitcast: bool
    reason: str
    bytes_read: int
    bytes_written: int

    @cached_property
    def longest_run(self) -> int:
        """Bytes of the longest piece that is contiguous in both buffers (rounded up to whole bytes)."""
        elements = longest_run(self.a, self.b, self.permutation)
        return -(-elements * min(self.a.element_bits, self.b.element_bits) // 8)

    @cached_property
    def lines_read(self) -> int:
        """Distinct 64-byte lines of ``a`` that hold data."""
        return lines_touched(self.a, LINE)

    @cached_property
    def lines_written(self) -> int:
        """Distinct 64-byte lines of ``b`` that hold data (padding aside)."""
        return lines_touched(self.b, LINE)

    @cached_property
    def tiles_read(self) -> int:
        """Distinct tiles (first level) or pages of ``a`` that hold data; 64-byte lines where it has neither."""
        return lines_touched(self.a, _tile_bytes(self.a))

    @cached_property
    def tiles_written(self) -> int:
        """Distinct tiles (first level) or pages of ``b`` that hold data; 64-byte lines where it has neither."""
        return lines_touched(self.b, _tile_bytes(self.b))

    @property
    def direct(self) -> bool:
        """Whether :meth:`apply` needs no dense copy of the array in between (a ``*`` that does not divide does)."""
        if (self.a.element_bits < 8) != (self.b.element_bits < 8):
            return False
        return not self.a.num_elements or self._plan(True) is not None

    def _plan(self, aligned: bool) -> Any:
        slot = 1 if self.a.element_bits < 8 else self.a.numpy_dtype.itemsize
        return relayout_plan(self.a, self.b, self.permutation, slot, aligned)

    def apply(self, buffer: Any, out: Any = None) -> np.ndarray[Any, Any]:
        """Move a packed buffer of ``a`` into the layout ``b`` (padding becomes zero); returns the packed buffer.

        Data goes straight from place to place on TILEWRIGHT_THREADS threads. Only where no digit form exists (see
        :attr:`direct`) is the array unpacked and packed again. Raises :class:`UsageError` on a wrong buffer or
        ``out``, where the element types differ, or where ``b`` puts several elements in one place.

        >>> from tilewright.layout import parse
        >>> move = relayout(parse("s32[2,3]{1,0}"), parse("s32[3,2]{1,0:T(2,2)}"), (1, 0))
        >>> move.apply(np.arange(6, dtype=np.int32)).tolist()
        [0, 3, 1, 4, 2, 5, 0, 0]
        """
        source = np.ascontiguousarray(check_buffer(self.a, buffer, "buffer"))
        if self.a.dtype != self.b.dtype:
            raise UsageError(f"a move from {self.a.dtype} to {self.b.dtype}", how="convert the array's type first")
        self.b.require_injective()
        length, dtype = buffer_spec(self.b)
        if out is None:
            require_room(self.b.size_bytes, f"{self.b} with its padding")
        target = aligned_empty(length, dtype) if out is None else check_buffer(self.b, out, "out", write=True)
        if not self.direct:
            return self.b.pack(self.a.unpack(source).transpose(self.permutation).reshape(self.b.shape), target)
        if not target.flags.c_contiguous:
            target[:] = self.apply(source)
        elif self.a.element_bits < 8:
            slots = aligned_empty(self.b.num_slots, np.dtype(np.uint8))
            self._move(widen(source, self.a.element_bits, self.a.num_slots), slots)
            target[:] = narrow(slots, self.b.element_bits, length)
        else:
            self._move(source.copy() if np.may_share_memory(source, target) else source, target)
        return target

    def _move(self, source: np.ndarray[Any, Any], target: np.ndarray[Any, Any]) -> None:
        if self.a.num_elements:
            run_filled(self._plan(target.ctypes.data % LINE == 0), target, source, 0)
        else:
            target[:] = 0


def _tile_bytes(layout: IndexMap) -> int:
    """Bytes of a tile of the first level, or of a page; 64 where the layout has neither."""
    elements = layout.page_elements
    if layout.tiles:
        elements = math.prod(t for t in layout.tiles[0] if t > 0)
    return max(1, elements * layout.element_bits // 8) if elements else LINE


def relayout(a: IndexMap, b: IndexMap, permutation: Sequence[int] | None = None) -> Relayout:
    """The cost of b = reshape(transpose(a, permutation)): nothing for a bitcast, else all padded bytes of both.

    >>> from tilewright.layout import parse
    >>> move = relayout(parse("f32[14,14,256]{2,1,0:T(8,128)}"), parse("f32[196,256]{1,0:T(8,128)}"))
    >>> move.bitcast, move.bytes_read, move.bytes_written, move.reason
    (False, 229376, 204800, '229376 bytes with padding differ from 204800')
    """
    order = order_of(a, b, permutation)
    reason = why_not(a, b, order)
    read, written = (a.size_bytes, b.size_bytes) if reason else (0, 0)
    return Relayout(a, b, order, not reason, reason, read, written)

"""What moving an array to another layout costs (how contiguous it is, which lines it touches), and the move itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from tilewright.errors import UnsupportedError, UsageError
from tilewright.layout.index.address_map import AddressMap
from tilewright.layout.index.bitcast import order_of, why_not
from tilewright.layout.index.index_map import IndexMap
from tilewright.layout.index.types import Array, is_traced, require_room
from tilewright.layout.move import LINE
from tilewright.layout.move.nest import Box, CommonDim, Loop, boxes_of, layout_terms
from tilewright.layout.move.pack import buffer_spec, check_buffer, narrow, widen
from tilewright.layout.move.plan import aligned_empty, relayout_boxes, relayout_plan, run_filled, starts_of, zero_of
from tilewright.render.tables import Column, glance, glance_table

_MOST_RUNS = 1 << 24


class _Runs(NamedTuple):
    """The runs of a box: ``length`` elements from each of its places on, again along ``loops``."""

    length: int
    loops: list[Loop]
    box: Box


def _runs_of(box: Box, both: bool) -> _Runs:
    """Runs that are contiguous on the target's side, or on ``both``."""
    length, around = 1, []
    for loop in sorted(box.loops, key=lambda x: x.target):
        if loop.target == length and (loop.source == length or not both):
            length *= loop.count
        else:
            around.append(loop)
    return _Runs(length, around, box)


def _listed(all_runs: Sequence[_Runs], layout: AddressMap) -> tuple[Array, Array, Array]:
    """(source, target, elements) of every run."""
    if sum(len(runs.box.targets) * math.prod(loop.count for loop in runs.loops) for runs in all_runs) > _MOST_RUNS:
        raise _too_many(layout)
    starts = [starts_of(box, loops[::-1]) for _, loops, box in all_runs]
    sources, targets = np.concatenate(starts).T
    return sources, targets, np.repeat([runs.length for runs in all_runs], [len(each) for each in starts])


def _too_many(layout: AddressMap) -> UnsupportedError:
    return UnsupportedError(f"{layout} lies in more than {_MOST_RUNS} pieces", how="ask for a slice of the array")


def _all_slots(layout: AddressMap, order: Sequence[int]) -> Array:
    if layout.num_elements > _MOST_RUNS:
        raise _too_many(layout)
    return layout.slots_of(np.arange(layout.num_elements), order)


def lines_touched(layout: AddressMap, line_bytes: int) -> int:
    """Distinct lines of ``line_bytes`` bytes that hold an element (or a part of one)."""
    if not layout.num_elements:
        return 0
    bits = layout.element_bits
    terms = layout_terms(layout, 1)
    boxes = None
    if terms is not None:
        dims = [CommonDim(n, (), t) for n, t in zip(layout.shape, terms[1], strict=True) if n > 1]
        boxes = boxes_of(dims, (0, terms[0]))
    if boxes is None:
        starts = np.unique(_all_slots(layout, range(layout.rank)))
        return _count(starts, np.ones(len(starts), np.int64), bits, line_bytes)
    times = 1
    if len(boxes) == 1:
        boxes, times = _without_far(boxes[0], bits, line_bytes)
    _, starts, lengths = _listed([_runs_of(box, both=False) for box in boxes], layout)
    order = np.argsort(starts, kind="stable")
    return times * _count(starts[order], lengths[order], bits, line_bytes)


def _without_far(box: Box, bits: int, line_bytes: int) -> tuple[list[Box], int]:
    """The box without its outermost loops that step whole lines past all that lies within; and how many they make."""
    loops, times, line = sorted(box.loops, key=lambda x: x.target), 1, 8 * line_bytes
    while loops and len(box.targets) == 1:
        far = loops.pop()
        step = far.target * bits
        per_line = line // step if line % step == 0 else 1
        if far.count % per_line == 0 and per_line > 1:  # steps within a line stay
            near = [Loop(per_line, far.source, far.target)]
            far = Loop(far.count // per_line, 0, far.target * per_line)
        else:
            near = []
        reach = sum((loop.count - 1) * loop.target for loop in (*loops, *near)) + 1
        inside = int(box.targets[0]) * bits % line + reach * bits
        if far.target * bits % line or inside > far.target * bits:
            loops += [*near, far]
            break
        loops += near
        times *= far.count
        if near:
            break
    return [Box(box.sources, box.targets, tuple(loops))], times


def _count(starts: Array, lengths: Array, bits: int, line_bytes: int) -> int:
    """How many lines the ascending, disjoint runs of elements touch."""
    line = 8 * line_bytes
    first, last = starts * bits // line, ((starts + lengths) * bits - 1) // line
    shared = first[1:] <= np.maximum.accumulate(last)[:-1]
    return int((last - first + 1).sum() - shared.sum())


# -- the longest run, from the boxes of the move rather than from its elements where no run goes on in another ---------

_MOST_PAIRS = 1 << 12  # pairs of places where boxes begin, in about a quarter of a second
_MOST_TRIES = 1 << 10


def longest_run(a: AddressMap, b: AddressMap, order: Sequence[int]) -> int:
    """Elements of the longest piece that is contiguous in both layouts, b being reshape(transpose(a, order))."""
    if not a.num_elements:
        return 0
    boxes = relayout_boxes(a, b, order, 1)
    if boxes is None:
        sources, targets = _all_slots(a, order), _all_slots(b, range(b.rank))
        lengths = np.ones(len(sources), np.int64)
    else:
        runs = [_runs_of(box, both=True) for box in boxes]
        if not _join(runs):
            return max(some.length for some in runs)
        sources, targets, lengths = _listed(runs, a)
    by_source = np.argsort(sources, kind="stable")
    sources, targets, lengths = sources[by_source], targets[by_source], lengths[by_source]
    goes_on = (np.diff(sources) == lengths[:-1]) & (np.diff(targets) == lengths[:-1])
    ends = np.append(np.nonzero(~goes_on)[0], len(lengths) - 1)
    total = np.cumsum(lengths)[ends]
    return int(np.diff(total, prepend=0).max())


def _join(all_runs: Sequence[_Runs]) -> bool:
    """Whether some run may go on in another one, on both sides at once."""
    if sum(len(runs.box.targets) for runs in all_runs) ** 2 > _MOST_PAIRS:
        return True
    begins = [list(zip(runs.box.sources.tolist(), runs.box.targets.tolist(), strict=True)) for runs in all_runs]
    for (a, begins_a), (b, begins_b) in product(zip(all_runs, begins, strict=True), repeat=2):
        counters = _counters(a, b)
        for (from_source, from_target), (to_source, to_target) in product(begins_a, begins_b):
            source, target = from_source + a.length - to_source, from_target + a.length - to_target
            if _solvable(counters, source, target, [0]):
                return True
    return False


class _Counter(NamedTuple):
    """``low <= k <= high`` steps of ``source`` and ``target`` elements."""

    low: int
    high: int
    source: int
    target: int


def _counters(a: _Runs, b: _Runs) -> list[_Counter]:
    """What lies between a run of ``a`` and one of ``b``, widest steps first."""
    if a is b:
        counters = [_Counter(1 - loop.count, loop.count - 1, loop.source, loop.target) for loop in a.loops]
    else:
        counters = [_Counter(0, loop.count - 1, loop.source, loop.target) for loop in b.loops]
        counters += [_Counter(1 - loop.count, 0, loop.source, loop.target) for loop in a.loops]
    return sorted(counters, key=lambda c: -max(abs(c.source), abs(c.target)))


def _solvable(counters: Sequence[_Counter], source: int, target: int, tries: list[int]) -> bool:
    """Whether some counters add up to both sums; True too once too many have been tried."""
    if not counters:
        return not source and not target
    tries[0] += 1
    if tries[0] > _MOST_TRIES:
        return True
    first, rest = counters[0], counters[1:]
    low, high = first.low, first.high
    for side, total in ((2, source), (3, target)):  # the least and the largest sum of the others there, and ours
        ends = [sorted((c.low * c[side], c.high * c[side])) for c in rest]
        least, most, step = sum(end for end, _ in ends), sum(end for _, end in ends), first[side]
        if not step:
            if not least <= total <= most:
                return False
            continue
        a, b = (total - most, total - least) if step > 0 else (least - total, most - total)
        low, high = max(low, -(-a // abs(step))), min(high, b // abs(step))
    return any(
        _solvable(rest, source - k * first.source, target - k * first.target, tries) for k in range(low, high + 1)
    )


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

    def _repr_html_(self) -> str:
        """What a notebook shows: the verdict and the bytes; ``compare(a, b)`` shows a picture of both layouts."""
        figures = [("read", self.bytes_read), ("written", self.bytes_written)]
        table = glance_table((Column(""), Column("moved", "bytes")), figures)
        return glance(f"{self.a} to {self.b}", self.verdict, table)

    @property
    def verdict(self) -> str:
        """Whether it is a bitcast, and why not, in a line."""
        return "a bitcast: every element keeps its byte" if self.bitcast else f"not a bitcast: {self.reason}"

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
        ``out``, where the element types differ, or where ``b`` puts several elements in one place. Under jit
        the move is made inside the program, see :meth:`IndexMap.pack`.

        >>> from tilewright.layout import parse
        >>> move = relayout(parse("s32[2,3]{1,0}"), parse("s32[3,2]{1,0:T(2,2)}"), (1, 0))
        >>> move.apply(np.arange(6, dtype=np.int32)).tolist()
        [0, 3, 1, 4, 2, 5, 0, 0]
        """
        if is_traced(buffer):
            from tilewright.layout.exchange.inside_jit import relayout_traced

            return relayout_traced(self.a, self.b, self.permutation, buffer, out)  # type: ignore[no-any-return]
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
            run_filled(self._plan(target.ctypes.data % LINE == 0), target, source, zero_of(target.dtype))
        else:
            target[:] = zero_of(target.dtype)


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

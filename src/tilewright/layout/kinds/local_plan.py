"""Where tensors go in an NPU's local memories: bases, holes, banks; and a picture (source: Sophgo's tensor storage).

    byte 0                                                     local_bytes
    | a: aligned, start 0 | gap | b: compact, start 2 |   free    |          the same on every NPU
    |  bank 0    |    bank 1    |    bank 2    |  ...             |

A base is one byte offset, the same on every NPU. Tensors with a base of their own go first; the others take, in the
order given, the lowest base that is free, aligned and, where there is one, in no bank of a fellow operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.layout.index.types import round_up
from tilewright.layout.kinds.lanes import LaneLayout, lane_memory
from tilewright.render import bytes_text, count_text
from tilewright.render.drawing import Drawing, text_width
from tilewright.targets import LaneMemory

Runs = np.ndarray[Any, Any]


class LocalMemoryError(UsageError):
    """A tensor does not fit: ``bytes_short`` bytes are missing on every NPU for ``tensor``."""

    def __init__(self, what: str, *, tensor: str, bytes_short: int, where: str = "", how: str = "") -> None:
        self.tensor, self.bytes_short = tensor, bytes_short
        super().__init__(what, where=where, how=how)


@dataclass(frozen=True)
class LocalTensor:
    """A tensor to place: a lane layout and its base byte, or None to have one chosen."""

    name: str
    layout: LaneLayout
    base: int | None = None


@dataclass(frozen=True)
class BankConflict:
    """Operands ``first`` and ``second`` of instruction number ``instruction`` touch the same ``banks``."""

    instruction: int
    first: str
    second: str
    banks: tuple[int, ...]


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor in its place; all sizes in bytes.

    =================  ===============================================================================
    ``base``, ``end``  first byte and the one behind the last, the same on every NPU
    ``banks``          the banks that its elements touch
    ``start_hole``     places before the start NPU, on the first row of channels of every batch
    ``tail_hole``      places behind the last channel of every batch
    ``inside_hole``    padding inside the channels: rows and channels rounded up, or free strides
    =================  ===============================================================================

    The holes are counted over all NPUs together; with the data they make up the whole region.
    """

    name: str
    layout: LaneLayout
    base: int
    memory: LaneMemory

    @property
    def end(self) -> int:
        return self.base + self.layout.bytes_per_npu

    @cached_property
    def _runs(self) -> Runs:
        return _runs(self.layout, self.base)

    @cached_property
    def banks(self) -> tuple[int, ...]:
        """Banks that hold any element, ascending."""
        size = self.memory.bank_bytes
        touched = np.zeros(self.end // size + 2, np.int64)
        np.add.at(touched, self._runs[:, 1] // size, 1)
        np.add.at(touched, (self._runs[:, 2] - 1) // size + 1, -1)
        return tuple(int(b) for b in np.flatnonzero(np.cumsum(touched)))

    @cached_property
    def data_bytes_per_npu(self) -> tuple[int, ...]:
        """Bytes of elements on every NPU."""
        layout = self.layout
        if not layout.num_elements:
            return (0,) * layout.lane_count
        channel = layout.steps[-1].dim  # type: ignore[attr-defined]
        indices = np.zeros((layout.shape[channel], layout.rank), np.int64)
        indices[:, channel] = np.arange(layout.shape[channel])
        counts = np.bincount(layout.addresses(indices)[:, 0], minlength=layout.lane_count)
        bits = counts * (layout.num_elements // layout.shape[channel]) * layout.element_bits
        return tuple(int(b) for b in -(-bits // 8))

    @cached_property
    def _hole_elements(self) -> tuple[int, int, int]:
        layout = self.layout
        batch, channels = layout.tensor[:2]
        region = layout.axis_terms[1].extent * layout.lane_count
        if layout.mode == "free" or not layout.num_elements:
            return 0, 0, region - layout.num_elements
        channel = layout.strides[1]
        rows = -(-(layout.start + channels) // layout.lane_count)
        # Where the N stride leaves the start out, the next batch begins in the row that the last one wrapped into.
        empty_starts = batch if layout.strides[0] >= rows * channel else 1
        before = empty_starts * layout.start * channel
        return before, region - before - batch * channels * channel, batch * channels * channel - layout.num_elements

    @property
    def start_hole(self) -> int:
        return self._hole_elements[0] * self.layout.element_bits // 8

    @property
    def tail_hole(self) -> int:
        return self._hole_elements[1] * self.layout.element_bits // 8

    @property
    def inside_hole(self) -> int:
        return self._hole_elements[2] * self.layout.element_bits // 8


@dataclass(frozen=True)
class LocalPlan:
    """Tensors placed in the local memories of a chip; all sizes in bytes, per NPU unless it says otherwise."""

    memory: LaneMemory
    tensors: tuple[PlacedTensor, ...]
    conflicts: tuple[BankConflict, ...]

    def __getitem__(self, name: str) -> PlacedTensor:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise UsageError(f"no tensor called {name!r} in the plan")

    @property
    def bytes_used(self) -> int:
        """The end of the last tensor."""
        return max((t.end for t in self.tensors), default=0)

    @property
    def bytes_free(self) -> int:
        """Bytes of one NPU behind the last tensor."""
        return self.memory.local_bytes - self.bytes_used

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """(first byte, end) of what lies unused between the tensors' regions."""
        gaps, at = [], 0
        for tensor in sorted(self.tensors, key=lambda t: t.base):
            if tensor.base > at and tensor.end > tensor.base:
                gaps.append((at, tensor.base))
            at = max(at, tensor.end)
        return tuple(gaps)

    @property
    def data_bytes_per_npu(self) -> tuple[int, ...]:
        """Bytes of elements on every NPU."""
        return tuple(map(sum, zip(*(t.data_bytes_per_npu for t in self.tensors), strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, for JSON."""
        figures = ("base", "end", "banks", "start_hole", "tail_hole", "inside_hole")
        tensors = [
            {"name": t.name, "layout": str(t.layout), "bytes_per_npu": t.layout.bytes_per_npu}
            | {name: getattr(t, name) for name in figures}
            for t in self.tensors
        ]
        conflicts = [
            {"instruction": c.instruction, "operands": (c.first, c.second), "banks": c.banks} for c in self.conflicts
        ]
        memory = {name: getattr(self.memory, name) for name in ("npu_num", "local_bytes")}
        own = {name: getattr(self, name) for name in ("bytes_used", "bytes_free", "data_bytes_per_npu", "gaps")}
        return memory | own | {"tensors": tensors, "conflicts": conflicts}


def _runs(layout: LaneLayout, base: int) -> Runs:
    """int64[runs, 3]: NPU, first byte and the byte behind, of every contiguous run of the stored tensor."""
    batch, channels, height, width = layout.tensor
    if not all(layout.tensor) or not all(layout.shape):
        return np.zeros((0, 3), np.int64)
    n_stride, c_stride, h_stride, w_stride = layout.strides
    length = 1
    loops: list[tuple[int, int]] = []
    for count, stride in ((width, w_stride), (height, h_stride)):
        if stride == length and not loops:
            length *= count
        elif count > 1:
            loops.append((count, stride))
    place = layout.start + np.arange(channels, dtype=np.int64)
    starts = place // layout.lane_count * c_stride
    npus = place % layout.lane_count
    for count, stride in [(batch, n_stride), *loops]:
        starts = (np.arange(count, dtype=np.int64)[:, None] * stride + starts).reshape(-1)
        npus = np.tile(npus, count)
    bits = layout.element_bits
    first, behind = base + starts * bits // 8, base - (-(starts + length) * bits // 8)
    return np.stack([npus, first, behind], axis=-1)


def _collide(a: PlacedTensor, b: PlacedTensor) -> tuple[int, int] | None:
    """(NPU, byte) that both tensors hold elements in, or None."""
    if a.base >= b.end or b.base >= a.end:
        return None
    span = a.memory.local_bytes
    keys = [_merged(t._runs, span) for t in (a, b)]
    # For every run of a: the first run of b that ends behind its start, and the first that starts behind its end.
    first = np.searchsorted(keys[1][:, 1], keys[0][:, 0], side="right")
    behind = np.searchsorted(keys[1][:, 0], keys[0][:, 1], side="left")
    hit = np.flatnonzero(behind > first)
    if not len(hit):
        return None
    place = max(int(keys[0][hit[0], 0]), int(keys[1][first[hit[0]], 0]))
    return place // span, place % span


def _merged(runs: Runs, span: int) -> Runs:
    """[first, behind) over all NPUs' memories end to end, sorted, meeting runs joined."""
    flat: Runs = runs[:, 1:] + runs[:, :1] * span
    flat = flat[np.argsort(flat[:, 0], kind="stable")]
    if not len(flat):
        return flat
    behind = np.maximum.accumulate(flat[:, 1])
    new = np.concatenate([[True], flat[1:, 0] > behind[:-1]])
    last = np.concatenate([np.flatnonzero(new)[1:] - 1, [len(flat) - 1]])
    return np.stack([flat[new, 0], behind[last]], axis=-1)


def _check(tensors: Sequence[LocalTensor], memory: LaneMemory) -> None:
    names = [t.name for t in tensors]
    for tensor in tensors:
        layout = tensor.layout
        if names.count(tensor.name) > 1:
            raise UsageError(f"two tensors are called {tensor.name!r}")
        if (layout.lane_count, layout.eu_bytes) != (memory.npu_num, memory.eu_bytes):
            problem = f"{layout} is not of this chip, which has {memory.npu_num} NPUs and EU_BYTES {memory.eu_bytes}"
            raise UsageError(problem, where=tensor.name, how="make the layout for the chip")
        unit = layout.base_unit
        if tensor.base is not None and (tensor.base < 0 or tensor.base % unit):
            how = f"use {round_up(max(tensor.base, 0), unit)}"
            raise UsageError(f"base {tensor.base} is not a multiple of {unit} bytes", where=tensor.name, how=how)


def fitted(placed: PlacedTensor, where: str = "", how: str = "split the tensor or free another one") -> PlacedTensor:
    """The tensor, if it ends within the memory; else :class:`LocalMemoryError`, by default ``where`` the tensor is."""
    short = placed.end - placed.memory.local_bytes
    if short > 0:
        region = f"{placed.layout.bytes_per_npu} bytes per NPU at base {placed.base}"
        problem = f"{region} overflow the local memory of {placed.memory.local_bytes} bytes by {short} bytes"
        raise LocalMemoryError(problem, tensor=placed.name, bytes_short=short, where=where or placed.name, how=how)
    return placed


def conflicts_of(
    instruction: int, operands: Iterable[str], placed: Mapping[str, PlacedTensor], in_place: bool = True
) -> Iterator[BankConflict]:
    """Pairs of an instruction's operands that share banks; unless ``in_place`` also those of one base."""
    for first, second in combinations(dict.fromkeys(operands), 2):
        shared = set(placed[first].banks) & set(placed[second].banks)
        if shared and (in_place or placed[first].base != placed[second].base):
            yield BankConflict(instruction, first, second, tuple(sorted(shared)))


def _fixed(tensors: Sequence[LocalTensor], memory: LaneMemory) -> dict[str, PlacedTensor]:
    placed: dict[str, PlacedTensor] = {}
    for tensor in tensors:
        if tensor.base is None:
            continue
        new = fitted(PlacedTensor(tensor.name, tensor.layout, tensor.base, memory))
        for other in placed.values():
            if met := _collide(other, new):
                problem = f"NPU {met[0]} byte {met[1]} belongs to {other.name} already"
                raise UsageError(problem, where=tensor.name, how="move its base, or leave the base out")
        placed[tensor.name] = new
    return placed


def _bases(tensor: LocalTensor, memory: LaneMemory, taken: Iterable[PlacedTensor]) -> list[int]:
    """The bases worth trying, ascending: behind a tensor or at the start of a bank, where the region is free."""
    others = [t for t in taken if t.end > t.base]
    edges = {0, *(t.end for t in others), *(b * memory.bank_bytes for b in range(memory.banks))}
    size = tensor.layout.bytes_per_npu
    aligned = {round_up(edge, tensor.layout.base_unit) for edge in edges}
    return [b for b in sorted(aligned) if all(b >= t.end or b + size <= t.base for t in others)]


def _choose(
    tensor: LocalTensor, memory: LaneMemory, placed: dict[str, PlacedTensor], fellows: set[str]
) -> PlacedTensor:
    tries = [PlacedTensor(tensor.name, tensor.layout, base, memory) for base in _bases(tensor, memory, placed.values())]
    fitting = [t for t in tries if t.end <= memory.local_bytes]
    if not fitting:
        return fitted(min(tries, key=lambda t: t.end))
    avoid = {bank for name in fellows if name in placed for bank in placed[name].banks}
    return next((t for t in fitting if not avoid & set(t.banks)), fitting[0])


def plan_local_memory(
    tensors: Sequence[LocalTensor], chip: Any, instructions: Sequence[Sequence[str]] = ()
) -> LocalPlan:
    """Place ``tensors``, all alive at once, in the local memories of ``chip`` (a name, a target or its memory).

    ``instructions`` lists the names of each instruction's operands: bases are chosen to keep them in different banks,
    and what still shares one is reported. Tensors with bases of their own may lie in each other's holes, but not in
    each other's elements. Raises :class:`LocalMemoryError` on overflow and :class:`UsageError` on an unaligned base, on
    tensors that collide and on layouts of another chip.

    >>> from tilewright.layout import lanes
    >>> a = LocalTensor("a", lanes((1, 64, 28, 28), "f16", "bm1684x"))
    >>> b = LocalTensor("b", lanes((1, 64, 28, 28), "f16", "bm1684x"))
    >>> plan = plan_local_memory([a, b], "bm1684x", instructions=[("a", "b")])
    >>> [(t.name, t.base, t.end, t.banks) for t in plan.tensors], plan.gaps, plan.conflicts
    ([('a', 0, 1600, (0,)), ('b', 16384, 17984, (1,))], ((1600, 16384),), ())
    """
    memory = lane_memory(chip, None, None)
    if memory.local_bytes < 1:
        raise UsageError("this memory has no size", how="give local_bytes")
    values: Sequence[Any] = tensors
    if strangers := [value for value in values if not isinstance(value, LocalTensor)]:
        raise UsageError(f"{strangers[0]!r} is not a tensor of a plan", how="LocalTensor(name, layout) makes one")
    _check(tensors, memory)
    known = {t.name for t in tensors}
    for number, operands in enumerate(instructions):
        if unknown := set(operands) - known:
            raise UsageError(f"the operand {min(unknown)!r} of instruction {number} is not a tensor of the plan")
    placed = _fixed(tensors, memory)
    for tensor in tensors:
        if tensor.base is None:
            fellows = {name for operands in instructions if tensor.name in operands for name in operands}
            placed[tensor.name] = _choose(tensor, memory, placed, fellows - {tensor.name})
    conflicts = [each for k, operands in enumerate(instructions) for each in conflicts_of(k, operands, placed)]
    return LocalPlan(memory, tuple(placed[t.name] for t in tensors), tuple(conflicts))


# The plan as an SVG: tensors over the banks, holes hatched, conflicts marked.

_MARGIN, _ROW, _HIGH, _WIDE = 16.0, 30.0, 20.0, 960.0
_TOP = 86.0


def plan_svg(plan: LocalPlan) -> str:
    """Where the tensors of a plan lie in the local memories of a chip, as an SVG.

    From left to right the bytes of one NPU, the same on all of them, cut into banks; one row per tensor, its holes (of
    the start index, behind the last channel, inside the channels) hatched in proportion; a mark where two operands of
    one instruction share a bank.

    >>> from tilewright.layout import LocalTensor, lanes, plan_local_memory
    >>> plan = plan_local_memory([LocalTensor("image", lanes((1, 64, 28, 28), "f16", "bm1684x"))], "bm1684x")
    >>> "image: bytes 0 to 1599 of every NPU" in plan_svg(plan)
    True
    """
    left = _MARGIN + max((text_width(t.name) for t in plan.tensors), default=0.0) + 12
    notes = [
        f"instruction {c.instruction}: {c.first} and {c.second} share bank{'s' * (len(c.banks) > 1)} "
        f"{', '.join(map(str, c.banks))}"
        for c in plan.conflicts
    ]
    width = max(left + _WIDE, *(_MARGIN + text_width(note) for note in notes), 0) + _MARGIN
    rows = _TOP + _ROW * len(plan.tensors)
    title = f"local memory of {plan.memory.npu_num} NPUs, {bytes_text(plan.memory.local_bytes)} each"
    facts = f"{count_text(plan.bytes_used)} bytes used, {count_text(plan.bytes_free)} free on every NPU"
    drawing = Drawing(width, rows + 34 + 16 * len(notes), title=title, description=facts, ground=True)
    drawing.text(_MARGIN, 26, title, "strong large")
    drawing.text(_MARGIN, 46, facts, "soft")
    _draw_banks(drawing, plan, left, rows)
    for k, tensor in enumerate(plan.tensors):
        _draw_tensor(drawing, plan, tensor, k, left)
    drawing.padding(_MARGIN, rows + 12, 24, 12)
    drawing.text(_MARGIN + 30, rows + 22, "holes, in proportion", "soft")
    for k, note in enumerate(notes):
        drawing.text(_MARGIN, rows + 42 + 16 * k, note, "soft")
    return str(drawing.svg())


def _draw_banks(drawing: Drawing, plan: LocalPlan, left: float, bottom: float) -> None:
    """Bank numbers above, bank borders through all rows, bytes at the ends."""
    memory = plan.memory
    step = _WIDE / memory.banks
    shared = {bank for conflict in plan.conflicts for bank in conflict.banks}
    drawing.text(left, _TOP - 24, "0", "soft small")
    end = count_text(memory.local_bytes)
    drawing.text(left + _WIDE, _TOP - 24, f"{end} bytes", "soft small", anchor="end")
    for bank in range(memory.banks):
        x = left + bank * step
        drawing.line(x, _TOP - 4, x, bottom, "grid")
        drawing.text(x + step / 2, _TOP - 8, f"bank {bank}" if step > 50 else str(bank), "soft small", anchor="middle")
        if bank in shared:
            drawing.line(x + 2, _TOP - 3, x + step - 2, _TOP - 3, "mark")
    drawing.rect(left, _TOP - 2, _WIDE, bottom - _TOP + 2, "edge l2 plain")


def _draw_tensor(drawing: Drawing, plan: LocalPlan, tensor: PlacedTensor, row: int, left: float) -> None:
    scale, y = _WIDE / plan.memory.local_bytes, _TOP + row * _ROW + 4
    drawing.text(left - 8, y + 14, tensor.name, anchor="end")
    size = tensor.end - tensor.base
    if not size:
        return
    x, wide = left + tensor.base * scale, max(2.0, size * scale)
    holes = tensor.start_hole + tensor.tail_hole + tensor.inside_hole
    share = min(1.0, holes / (size * tensor.layout.lane_count))
    tip = f"{tensor.name}: bytes {tensor.base} to {tensor.end - 1} of every NPU, {tensor.layout}"
    drawing.rect(x, y, wide * (1 - share), _HIGH, f"cell c{row % 8}", tip=tip)
    if share:
        drawing.padding(
            x + wide * (1 - share), y, wide * share, _HIGH, tip=f"{tip}; {count_text(holes)} bytes of holes"
        )
    label = f"{count_text(tensor.base)} + {count_text(size)}"
    if x + wide + text_width(label, 10.5) + 6 < left + _WIDE:
        drawing.text(x + wide + 5, y + 14, label, "soft small")
    else:
        drawing.text(x - 5, y + 14, label, "soft small", anchor="end")
